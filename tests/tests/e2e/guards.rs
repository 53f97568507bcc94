//! The six guards of `request_sandbox`, in their order, over HTTP. Each test also has what a later guard would refuse,
//! so that the order shows.

use sandbar_tests::{Answer, Options, TestHost};
use serde_json::json;

fn refused(answer: &Answer, status: u16, message: &str, remediate: &str) {
    assert_eq!(answer.status, status, "{:#}", answer.body);
    assert_eq!(answer.code(), "invalid_state");
    assert!(answer.error("message").contains(message), "{:#}", answer.body);
    assert!(answer.error("remediate").contains(remediate), "{:#}", answer.body);
    assert_eq!(answer.body["error"]["retryable"], status == 503);
    assert!(answer.body["request_id"].as_str().is_some_and(|id| !id.is_empty()));
}

fn no_docker() -> Options {
    Options { docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(), ..Options::default() }
}

#[test]
fn the_switch_comes_first() {
    let host = TestHost::start_with(Options { enabled: false, ..no_docker() });
    let agent = host.register("dev-1");
    let switch = format!("{}_SANDBOX_DB_ENABLED", host.namespace.to_uppercase());
    refused(&agent.call("request_sandbox", &json!({})), 409, "switched off", &switch);
}

#[test]
fn the_environment_sets_the_switch_at_start() {
    let mut host = TestHost::prepare(Options { enabled: false, ..Options::default() });
    let variable = format!("{}_SANDBOX_DB_ENABLED", host.namespace.to_uppercase());
    host.set_env(&variable, "1");
    host.up().unwrap();
    let answer = host.register("dev-1").call("request_sandbox", &json!({}));
    refused(&answer, 409, "works on no project", "begin_work");
}

#[test]
fn work_comes_second() {
    let host = TestHost::start_with(no_docker());
    let agent = host.register("dev-1");
    refused(&agent.call("request_sandbox", &json!({ "services": ["nope"] })), 409, "works on no project", "begin_work");
}

#[test]
fn opting_in_comes_third() {
    let host = TestHost::start_with(no_docker());
    let agent = host.register("dev-1");
    host.orchestrator().call("begin_work", &json!({ "agent": "dev-1", "project": "shop-none" })).evidence();
    let answer = agent.call("request_sandbox", &json!({ "services": ["nope"] }));
    refused(&answer, 409, "opted in to no service", "[projects.shop-none]");
}

#[test]
fn the_opted_in_set_comes_fourth() {
    let host = TestHost::start_with(no_docker());
    let agent = host.developer("dev-1");
    let body = json!({ "services": ["postgres", "mongo"], "extensions": { "redis": ["nope"] } });
    let answer = agent.call("request_sandbox", &body);
    refused(&answer, 409, "`mongo`", "`postgres`, `redis`");
    assert_eq!(answer.body["error"]["allowed"], json!(["postgres", "redis"]));
}

#[test]
fn extensions_come_fifth() {
    let host = TestHost::start_with(no_docker());
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({ "extensions": { "postgres": ["vector", "pgvector"] } }));
    refused(&answer, 409, "`pgvector`", "`vector`");
    assert_eq!(answer.body["error"]["allowed"], json!(["citext", "pg_trgm", "postgis", "uuid-ossp", "vector"]));

    let answer = agent.call("request_sandbox", &json!({ "extensions": { "mongo": ["x"] } }));
    refused(&answer, 409, "`mongo`", "`postgres.vector`");
    assert!(answer.body["error"]["allowed"].as_array().unwrap().contains(&json!("redis.search")));
}

#[test]
fn the_runtime_comes_last_and_is_retryable() {
    let host = TestHost::start_with(no_docker());
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({}));
    refused(&answer, 503, "not reachable", "call again");
    assert!(answer.retry_after.is_some_and(|s| s > 0));
    assert_eq!(host.nobody().get("/readyz").status, 503);
    assert_eq!(host.nobody().get("/healthz").status, 200);
}

#[test]
fn roles_come_before_all_guards() {
    let host = TestHost::start_with(Options { enabled: false, ..no_docker() });
    let answer = host.orchestrator().call("register_agent", &json!({ "agent": "doc-1", "role": "writer" }));
    let writer = host.nobody().with_token(answer.evidence()["token"].as_str().unwrap());
    let answer = writer.call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (403, "forbidden"));
    assert_eq!(answer.body["error"]["allowed"], json!(["developer", "qa"]));
    // The role says nothing about giving back.
    writer.call("release_sandbox", &json!({})).evidence();
}
