//! What the engine answers, looked at natively.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sandbar_sdk::{Engine, Error, Expectation, Recipe, Request, testing};

use crate::Redis;

fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Redis>();
    change(&mut request);
    Redis::plan(request)
}

fn set(request: &mut Request, name: &str, value: &str) {
    let setting = request.settings.iter_mut().find(|(key, _)| key == name).expect("the descriptor names it");
    setting.1 = value.to_owned();
}

fn script(recipe: &Recipe) -> &str {
    &recipe.container.entrypoint.as_ref().expect("the image's own would load modules")[2]
}

#[test]
fn keeps_the_contract() {
    testing::check::<Redis>();
}

#[test]
fn the_bare_service_loads_no_module() {
    let recipe = plan(|_| ()).unwrap();
    assert_eq!((recipe.container.image.as_str(), recipe.container.user.as_str()), ("redis:8-alpine", "redis"));
    assert!(recipe.container.data.is_empty());
    assert_eq!(
        script(&recipe),
        r#"set -eu
: "${ACCOUNT_PASSWORD:?}"
hash=$(printf %s "$ACCOUNT_PASSWORD" | sha256sum)

exec redis-server - <<EOF
port 6379
protected-mode no
save ""
maxmemory-policy noeviction
maxmemory-clients 67108864
enable-module-command no
enable-debug-command no
enable-protected-configs no
sanitize-dump-payload yes
notify-keyspace-events ""
maxmemory 402653184
appendonly no
user default on #${hash%% *} ~* &* +@all -acl +acl|whoami +acl|cat +acl|genpass -config +config|get +config|resetstat -module +module|list -debug -pfdebug -pfselftest -script|debug -shutdown -failover -cluster -replicaof -slaveof -psync -sync -replconf -migrate -restore-asking -save -bgsave -bgrewriteaof
EOF
"#
    );
    assert_eq!(recipe.ready.expect, Expectation::StdoutIs("PONG".to_owned()));
    assert_eq!(recipe.deadline_ms, 15_000);
}

#[test]
fn a_feature_loads_its_module_and_asks_it_something() {
    let recipe = plan(|request| request.features = vec!["search".to_owned()]).unwrap();
    assert_eq!(recipe.container.image, "redis/redis-stack-server:latest");
    assert_eq!(script(&recipe).matches("loadmodule").count(), 1);
    // Looked for before the server starts, and named.
    let look = "\ntest -f /opt/redis-stack/lib/redisearch.so || { echo 'the image has no ";
    assert!(script(&recipe).find(look) < script(&recipe).find("exec redis-server"));
    assert_eq!(script(&recipe).matches(look).count(), 1);
    assert!(script(&recipe).contains("\nloadmodule /opt/redis-stack/lib/redisearch.so\n"));
    assert_eq!(recipe.verify.len(), 1);
    assert_eq!(recipe.verify[0].feature.as_deref(), Some("search"));
    assert!(recipe.verify[0].run.argv.ends_with(&["FT.SUGLEN".to_owned(), "a key that nobody has".to_owned()]));
}

#[test]
fn what_is_kept_is_logged_and_stays_readable() {
    let recipe = plan(|request| request.retained = true).unwrap();
    assert_eq!(recipe.container.image, "redis/redis-stack-server:latest");
    assert_eq!(recipe.container.data[0].path, "/data");
    for line in [
        "mkdir -p /data/redis",
        "appendonly yes",
        "dir /data/redis",
        "maxmemory 268435456",
        "$(test ! -f /opt/redis-stack/lib/rejson.so || echo loadmodule /opt/redis-stack/lib/rejson.so)",
    ] {
        assert!(script(&recipe).lines().any(|found| found == line), "{line}");
    }
}

#[test]
fn a_setting_cannot_add_to_the_script() {
    for (name, value) in [("json-module", "/x $(id)"), ("json-module", "x"), ("notify-keyspace-events", "K\nport 1")] {
        let error = plan(|request| set(request, name, value)).unwrap_err();
        assert!(matches!(error, Error::BadSetting((setting, _)) if setting == name));
    }
    let recipe = plan(|request| set(request, "notify-keyspace-events", "KEA")).unwrap();
    assert!(script(&recipe).contains("notify-keyspace-events \"KEA\"\n"));
}

#[test]
fn an_unknown_feature_is_refused() {
    let error = plan(|request| request.features = vec!["graph".to_owned()]).unwrap_err();
    assert_eq!(error, Error::UnsupportedFeature("graph".to_owned()));
}
