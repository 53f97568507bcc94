//! What an operator changes while the host runs, what stays over a restart, and what the audit record says.

use sandbar_tests::host::fixture;
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

fn offline() -> Options {
    Options { docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(), ..Options::default() }
}

/// The audit lines of a host, as (message, fields).
fn audit(host: &TestHost) -> Vec<(String, Value)> {
    let lines = host.log().into_iter().filter(|line| line["target"] == "audit");
    lines.map(|l| (l["fields"]["message"].as_str().unwrap_or_default().to_owned(), l["fields"].clone())).collect()
}

#[test]
fn the_switch_is_kept_and_the_environment_counts_most() {
    let mut host = TestHost::start_with(Options { enabled: false, ..offline() });
    let agent = host.register("dev-1");
    let off = |host: &TestHost, agent: &Client| {
        let agent = host.nobody().with_token(agent.token().unwrap());
        agent.call("request_sandbox", &json!({})).error("message").contains("switched off")
    };
    assert!(off(&host, &agent));
    assert_eq!(host.operator().call("set_switch", &json!({ "enabled": true })).evidence(), &json!({ "enabled": true }));
    assert!(!off(&host, &agent));
    // Kept, though the configuration says off.
    host.down().unwrap();
    host.up().unwrap();
    assert!(!off(&host, &agent));
    host.down().unwrap();
    host.set_env(&format!("{}_SANDBOX_DB_ENABLED", host.namespace.to_uppercase()), "0");
    host.up().unwrap();
    assert!(off(&host, &agent));
}

#[test]
fn the_switch_refuses_new_requests_only() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();
    host.operator().call("set_switch", &json!({ "enabled": false })).evidence();
    assert_eq!(agent.call("request_sandbox", &json!({})).status, 409);
    assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "live");
    assert_eq!(agent.call("release_sandbox", &json!({})).evidence()["released"], json!(["fixture"]));
}

#[test]
fn a_project_is_declared_while_running_and_kept() {
    let mut host = TestHost::start_with(Options {
        more: "[orchestrators.late]\ntoken = { env = \"TEST_LATE\" }\nprojects = [\"late\"]\n".to_owned(),
        env: vec![("TEST_LATE".to_owned(), "late-orchestrator-token".to_owned())],
        ..offline()
    });
    let set = |host: &TestHost, body: Value| host.operator().call("set_project", &body);
    let answer = set(
        &host,
        json!({ "project": "late", "services": ["redis", "redis"], "extensions": {
        "redis": ["search", "bloom", "search"], "postgres": [] } }),
    );
    assert_eq!(answer.evidence()["services"], json!(["redis"]));
    assert_eq!(answer.evidence()["extensions"], json!({ "redis": ["bloom", "search"] }), "ordered, empties dropped");

    // What it names must exist; the allowlist is in the answer.
    let answer = set(&host, json!({ "project": "late", "services": ["nope"] }));
    assert_eq!(answer.code(), "bad_request");
    assert!(answer.error("message").contains("`nope`") && answer.error("message").contains("`postgres`"));
    let answer = set(&host, json!({ "project": "late", "extensions": { "postgres": ["pgvector"] } }));
    assert!(answer.error("message").contains("`pgvector`") && answer.error("message").contains("`vector`"));
    let answer = set(&host, json!({ "project": "late", "servces": [] }));
    assert!(answer.error("message").contains("servces"));
    // The host's files and environment are not the operator's token's to read.
    for value in [json!({ "file": "/etc/passwd" }), json!({ "env": "TEST_GATE" })] {
        let answer = set(&host, json!({ "project": "late", "gate_env": { "A": value } }));
        assert_eq!(answer.code(), "bad_request");
        assert!(answer.error("message").contains("`gate_env.A`"), "{:#}", answer.body);
    }
    let answer = set(&host, json!({ "project": "late", "gate_env": { "A=B": "x" } }));
    assert!(answer.code() == "bad_request" && answer.error("message").contains("`A=B`"), "{:#}", answer.body);
    // One that is written in the configuration is changed there.
    let answer = set(&host, json!({ "project": "shop", "services": [] }));
    assert_eq!((answer.status, answer.code()), (409, "invalid_state"));
    assert!(answer.error("remediate").contains("[projects.shop]"));

    host.kill();
    host.up().unwrap();
    let late = host.nobody().with_token("late-orchestrator-token");
    late.call("register_agent", &json!({ "agent": "dev-1", "role": "developer" })).evidence();
    late.call("begin_work", &json!({ "agent": "dev-1", "project": "late" })).evidence();
    let spawn = late.call("spawn_env", &json!({ "agent": "dev-1", "project": "late" }));
    let marker = format!("{}_SANDBOX_SERVICES_AVAILABLE", host.namespace.to_uppercase());
    assert_eq!(spawn.evidence()["env"], json!({ marker: "redis" }));
}

#[test]
fn a_set_that_grows_is_added_to_and_one_that_shrinks_is_cut() {
    let host = TestHost::start_with(Options {
        more: "[orchestrators.late]\ntoken = { env = \"TEST_LATE\" }\nprojects = [\"late\"]\n".to_owned(),
        env: vec![("TEST_LATE".to_owned(), "late-orchestrator-token".to_owned())],
        ..Options::default()
    });
    let declare = |services: &[&str]| {
        host.operator().call("set_project", &json!({ "project": "late", "services": services })).evidence();
    };
    declare(&["redis"]);
    let late = host.nobody().with_token("late-orchestrator-token");
    let registered = late.call("register_agent", &json!({ "agent": "dev-1", "role": "developer" }));
    let agent = host.nobody().with_token(registered.evidence()["token"].as_str().unwrap());
    late.call("begin_work", &json!({ "agent": "dev-1", "project": "late" })).evidence();
    let first = agent.call("request_sandbox", &json!({})).evidence().clone();
    declare(&["redis", "postgres"]);
    let second = agent.call("request_sandbox", &json!({})).evidence().clone();
    assert_eq!(second["redis"], first["redis"], "what was there is kept");
    assert_eq!(second.as_object().unwrap().len(), 2);
    declare(&["postgres"]);
    let third = agent.call("request_sandbox", &json!({})).evidence().clone();
    assert_eq!(third, json!({ "postgres": second["postgres"] }));
    sandbar_tests::host::wait("redis to go", || host.containers() == [host.container("pg", "dev-1")]);
}

#[test]
fn tokens_are_rotated_and_revoked_while_running() {
    // Nothing is there to be made, so who is let in hears that the host has not seen Docker yet.
    let mut host = TestHost::start_with(offline());
    let old = host.register("dev-1");
    let answer = host.operator().call("rotate_token", &json!({ "agent": "dev-1" }));
    let new = host.nobody().with_token(answer.evidence()["token"].as_str().unwrap());
    assert_eq!(old.call("sandbox_status", &json!({})).status, 401);
    assert_eq!(new.call("sandbox_status", &json!({})).status, 503);
    host.kill();
    host.up().unwrap();
    let (old, new) = [old, new].map(|c| host.nobody().with_token(c.token().unwrap())).into();
    assert_eq!(old.call("sandbox_status", &json!({})).status, 401);
    assert_eq!(new.call("sandbox_status", &json!({})).status, 503);

    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    assert_eq!(new.call("sandbox_status", &json!({})).status, 401);
    assert_eq!(host.operator().call("rotate_token", &json!({ "agent": "dev-1" })).code(), "not_found");
    // The slug is free again, and its new owner has none of the old one's work.
    let again = host.register("dev-1");
    assert!(again.call("request_sandbox", &json!({})).error("message").contains("works on no project"));
}

#[test]
fn an_agent_that_is_removed_leaves_no_sandbox() {
    let host = TestHost::start_with(fixture(""));
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    host.wait_until_empty();
}

#[test]
fn only_the_operator_may() {
    let host = TestHost::start_with(offline());
    let agent = host.register("dev-1");
    for (verb, body) in [
        ("set_switch", json!({ "enabled": true })),
        ("set_project", json!({ "project": "x" })),
        ("list_agents", json!({})),
        ("rotate_token", json!({ "agent": "dev-1" })),
        ("remove_agent", json!({ "agent": "dev-1" })),
    ] {
        for caller in [&agent, &host.orchestrator()] {
            let answer = caller.call(verb, &body);
            assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{verb}");
        }
    }
    let agents = host.operator().call("list_agents", &json!({}));
    let expected =
        json!({ "agents": [{ "agent": "dev-1", "role": "developer", "project": null, "configured": false }] });
    assert_eq!(agents.evidence(), &expected);
}

#[test]
fn the_audit_record_says_who_did_what() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let first = agent.call("request_sandbox", &json!({}));
    agent.call("request_sandbox", &json!({ "extensions": { "fixture": ["good"] } })).evidence();
    agent.call("release_sandbox", &json!({})).evidence();
    let record = audit(&host);
    let said: Vec<_> = record.iter().map(|(message, _)| message.as_str()).collect();
    assert_eq!(
        said,
        ["register_agent", "begin_work", "made", "request_sandbox", "remade", "request_sandbox", "released"]
    );
    for (message, fields) in &record {
        assert_eq!(fields["agent"], "dev-1", "{message}");
    }
    let text = format!("{record:?}");
    assert!(!text.contains(first.evidence()["fixture"]["password"].as_str().unwrap()));
    assert!(!text.contains(agent.token().unwrap()));
}
