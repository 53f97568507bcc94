//! What the engine answers, looked at natively.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sandbar_sdk::{Engine, Error, Recipe, Request, testing};

use crate::Postgres;

fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Postgres>();
    change(&mut request);
    Postgres::plan(request)
}

fn env<'a>(recipe: &'a Recipe, name: &str) -> Option<&'a str> {
    recipe.container.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

fn wish(features: &[&str]) -> Vec<String> {
    features.iter().map(|feature| (*feature).to_owned()).collect()
}

#[test]
fn keeps_the_contract() {
    testing::check::<Postgres>();
}

#[test]
fn the_bare_service() {
    let recipe = plan(|_| ()).unwrap();
    let container = &recipe.container;
    assert_eq!((container.image.as_str(), container.user.as_str()), ("postgres:16-alpine", "postgres"));
    assert!(container.capabilities.is_empty());
    // What starts the server is the file that is put in, and the image's own start finds it too.
    assert_eq!(container.entrypoint.as_deref(), Some(&["/docker-entrypoint-initdb.d/50-account.sh".to_owned()][..]));
    assert_eq!(
        (container.files[0].path.as_str(), container.files[0].mode),
        ("/docker-entrypoint-initdb.d/50-account.sh", 0o755)
    );
    assert_eq!(
        container.command.join(" "),
        "postgres -c listen_addresses=* -c search_path=\"$user\", public, extensions -c maintenance_work_mem=32MB -c jit=off \
         -c fsync=off -c synchronous_commit=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0 \
         -c max_replication_slots=0 -c shared_buffers=16MB -c max_wal_size=8MB -c min_wal_size=8MB \
         -c checkpoint_completion_target=0 -c checkpoint_warning=0"
    );
    assert_eq!(env(&recipe, "ACCOUNT_PASSWORD"), Some("{password}"));
    assert_eq!(env(&recipe, "POSTGRES_PASSWORD"), Some("{admin_password}"));
    assert_eq!(env(&recipe, "ACCOUNT_KIND"), Some("NOSUPERUSER"));
    assert_eq!(recipe.ready.argv.join(" "), "psql -X -h {address} -p {port} -U {user} -d {database} -tAc select 1");
    assert!(recipe.setup.is_empty() && recipe.verify.is_empty());
    assert_eq!((recipe.deadline_ms, recipe.variables.len()), (60_000, 11));
}

#[test]
fn memory_is_shared_out() {
    let recipe = plan(|request| request.memory_bytes = 1 << 30).unwrap();
    let sizes: Vec<_> = recipe.container.data.iter().map(|data| (data.path.as_str(), data.tmpfs_bytes >> 20)).collect();
    assert_eq!(sizes, [("/var/lib/postgresql/data", 320), ("/var/lib/postgresql/wal", 192)]);
    assert_eq!(recipe.container.shm_bytes >> 20, 128);
    // At most a quarter of all tmpfs, and a twelfth of the log's own.
    assert!(recipe.container.command.contains(&"max_wal_size=16MB".to_owned()));
    assert!(matches!(plan(|request| request.memory_bytes = 128 << 20), Err(Error::Other(_))));
}

#[test]
fn a_feature_is_activated_in_both_databases_and_confirmed() {
    let recipe = plan(|request| request.features = wish(&["uuid-ossp", "vector"])).unwrap();
    assert_eq!(recipe.container.image, "{namespace}-sandbox-pg:latest");
    let names: Vec<_> = recipe.setup.iter().chain(&recipe.verify).map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["activate uuid-ossp", "activate vector", "confirm uuid-ossp", "confirm vector"]);
    let argv = &recipe.setup[0].run.argv;
    assert!(argv.iter().any(|argument| argument == "\\connect {database}"));
    let sql: Vec<_> = argv.iter().filter(|argument| argument.contains("CREATE EXTENSION")).collect();
    assert_eq!(sql.len(), 2);
    assert!(sql[0].ends_with("CREATE EXTENSION IF NOT EXISTS \"uuid-ossp\" SCHEMA extensions"));
    assert!(recipe.setup[0].run.env.contains(&("PGPASSWORD".to_owned(), "{admin_password}".to_owned())));
    assert!(recipe.verify[0].run.env.contains(&("PGPASSWORD".to_owned(), "{password}".to_owned())));
}

#[test]
fn what_is_kept_is_written_safely() {
    let recipe = plan(|request| (request.retained, request.superuser) = (true, true)).unwrap();
    assert_eq!(recipe.container.image, "{namespace}-sandbox-pg:latest");
    assert!(!recipe.container.command.iter().any(|argument| argument.ends_with("=off") && argument != "jit=off"));
    assert_eq!(env(&recipe, "POSTGRES_INITDB_ARGS"), Some("--auth=scram-sha-256"));
    assert_eq!(recipe.container.data.len(), 1);
    assert_eq!(recipe.setup[0].run.argv.last().map(String::as_str), Some("ALTER ROLE \"{user}\" SUPERUSER"));
}

#[test]
fn an_unknown_feature_is_refused() {
    let error = plan(|request| request.features = wish(&["plpython3u"])).unwrap_err();
    assert_eq!(error, Error::UnsupportedFeature("plpython3u".to_owned()));
}
