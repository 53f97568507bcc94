//! Provisions that fail, each over the real interface: what the caller is told, and that nothing is left.

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image};
use sandbar_tests::{Options, TestHost};
use serde_json::json;

#[test]
fn a_container_that_exits_fails_at_once_with_its_last_words() {
    let host = TestHost::start_with(fixture(
        "run = \"echo first; printf 'my password is %s\\\\n' $ACCOUNT_PASSWORD; echo giving up >&2; exit 3\", probe = \"exit 1\", deadline-ms = \"300000\"",
    ));
    let agent = host.developer("dev-1");
    // The readiness deadline is five minutes; a client of the harness would not wait for that to fail.
    let answer = agent.call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (503, "invalid_state"), "{:#}", answer.body);
    assert!(answer.retry_after.is_some());
    let error = &answer.body["error"];
    assert_eq!(error["retryable"], true);
    assert_eq!((&error["details"]["service"], &error["details"]["exit_code"]), (&json!("fixture"), &json!(3)));
    assert!(answer.error("message").contains("exited with code 3"), "{error:#}");
    let mut log: Vec<_> = error["details"]["log"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    log.sort_unstable();
    assert_eq!(log, ["first", "giving up", "my password is ***"]);
    assert_eq!(host.containers(), Vec::<String>::new());
    assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "absent");
}

#[test]
fn a_probe_that_never_succeeds_fails_at_its_deadline() {
    let host = TestHost::start_with(fixture("probe = \"echo not yet >&2; exit 1\", deadline-ms = \"1500\""));
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    assert_eq!((answer.status, &answer.body["error"]["details"]["step"]), (503, &json!("ready")));
    assert!(answer.error("message").contains("exit code 1, not yet"), "{:#}", answer.body);
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn a_feature_that_cannot_be_confirmed_is_named() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({ "extensions": { "fixture": ["good", "bad"] } }));
    assert_eq!(answer.status, 503);
    assert!(answer.error("message").contains("`bad`"), "{:#}", answer.body);
    assert!(answer.error("message").contains("no such module"), "{:#}", answer.body);
    assert_eq!(host.containers(), Vec::<String>::new());
    // The failure blocks nothing else.
    let answer = agent.call("request_sandbox", &json!({ "extensions": { "fixture": ["good"] } }));
    assert_eq!(answer.evidence()["fixture"]["available_extensions"], json!(["good"]));
}

#[test]
fn an_image_that_cannot_be_had_is_named() {
    let mut options = fixture("image = \"localhost:1/nowhere/nothing:1\"");
    options.more.push_str("grant.images = [\"localhost:1/nowhere/*:1\"]\n");
    let host = TestHost::start_with(options);
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    assert_eq!((answer.status, &answer.body["error"]["details"]["step"]), (503, &json!("pull")));
    assert!(answer.error("message").contains("localhost:1/nowhere/nothing:1"), "{:#}", answer.body);
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn a_name_that_somebody_else_has_is_reported_and_left_alone() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let foreign = host.container("fix", "dev-1");
    docker(["create", "--name", &foreign, &image("redis:8-alpine").unwrap()]).unwrap();
    let answer = agent.call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (409, "invalid_state"));
    assert_eq!(answer.body["error"]["details"]["reason"], "name_conflict");
    assert_eq!(answer.body["error"]["retryable"], false);
    assert!(answer.error("remediate").contains("namespace"), "{:#}", answer.body);
    docker(["inspect", &foreign]).expect("it is still there");
    docker(["rm", &foreign]).unwrap();
    agent.call("request_sandbox", &json!({})).evidence();
}

#[test]
fn a_stale_container_of_this_installation_makes_room() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let name = host.container("fix", "dev-1");
    let label = |key: &str, value: &str| format!("{}.{key}={value}", host.namespace);
    let labels = [label("installation", &host.installation), label("sandbox", "1")];
    docker([
        "create",
        "--name",
        &name,
        "--label",
        &labels[0],
        "--label",
        &labels[1],
        &image("redis:8-alpine").unwrap(),
    ])
    .unwrap();
    agent.call("request_sandbox", &json!({})).evidence();
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
}

#[test]
fn one_failing_service_takes_the_others_of_its_provision_with_it() {
    let options = Options {
        services: vec!["redis", "fixture"],
        more: format!(
            "[engines.fixture]\ncomponent = {:?}\nsettings = {{ run = \"exit 7\" }}\n",
            fixture("").engines.join("fixture.wasm").display().to_string()
        ),
        ..Options::default()
    };
    let host = TestHost::start_with(options);
    let answer = host.developer("dev-1").call("request_sandbox", &json!({ "services": ["redis"] }));
    assert_eq!(answer.body["error"]["details"]["service"], "fixture", "{:#}", answer.body);
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn an_engine_that_cannot_be_loaded_is_shown_and_the_others_serve() {
    let options = Options {
        services: vec!["redis", "spoilt"],
        more: "[engines.spoilt]\ncomponent = \"spoilt.wasm\"\nsha256 = \"00\"\n".to_owned(),
        ..Options::default()
    };
    let mut host = TestHost::prepare(options);
    std::fs::write(host.dir.path().join("spoilt.wasm"), "no component").unwrap();
    host.up().unwrap();
    let page = host.nobody().get("/readyz");
    assert_eq!((page.status, &page.body["engines"]["spoilt"]["state"]), (200, &json!("failed")), "{:#}", page.body);
    assert_eq!(page.body["engines"]["redis"]["state"], "serving");
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({}));
    assert!(answer.error("message").contains("`spoilt`"), "{:#}", answer.body);
    agent.call("request_sandbox", &json!({ "services": ["redis"] })).evidence();
}

#[test]
fn a_missing_grant_is_named() {
    let host = TestHost::start_with(fixture("variable = \"HOME\""));
    let page = host.nobody().get("/readyz");
    let why = page.body["engines"]["fixture"]["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("HOME") && why.contains("grant.variables"), "{:#}", page.body);
}
