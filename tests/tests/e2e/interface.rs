//! The endpoint itself: who is let in, what is read, and the verbs of orchestrators.

use std::io::{Read, Write};
use std::net::TcpStream;

use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn offline() -> TestHost {
    TestHost::start_with(Options {
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        ..Options::default()
    })
}

#[test]
fn callers_without_a_token_are_turned_away() {
    let host = offline();
    for client in [host.nobody(), host.nobody().with_token("wrong"), host.nobody().with_token("")] {
        let answer = client.call("request_sandbox", &json!({}));
        assert_eq!((answer.status, answer.code()), (401, "unauthorized"));
        // Who is not let in does not learn which verbs there are. Nor is the connection lost: it serves the next request.
        for _ in 0..200 {
            assert_eq!(client.call("no_such_verb", &json!({})).status, 401);
        }
    }
}

#[test]
fn bad_requests_name_what_is_bad() {
    let host = offline();
    let agent = host.developer("dev-1");
    let bad = |body: &str, names: &str| {
        let answer = agent.send("request_sandbox", body);
        assert_eq!((answer.status, answer.code()), (400, "bad_request"), "{body}");
        assert!(answer.error("message").contains(names), "{body}: {:#}", answer.body);
    };
    bad(r#"{"servces": ["redis"]}"#, "servces");
    bad(r#"{"services": []}"#, "services");
    bad(r#"{"services": "redis"}"#, "services");
    bad(r#"{"services": ["redis", 1]}"#, "services[1]");
    bad(r#"{"extensions": {"postgres": "vector"}}"#, "extensions.postgres");
    bad(r#"{"services": ["#, "EOF");
    bad(r#"[]"#, "JSON object");
    bad(r#"[["redis"],null,true]"#, "JSON object");
    bad(r#"{"extensions": {"redis": ["json"], "redis": []}}"#, "`extensions`: `redis` stands there twice");
    bad(r#"{} {}"#, "trailing");

    let answer = agent.call("no_such_verb", &json!({}));
    assert_eq!((answer.status, answer.code()), (404, "not_found"));
    assert!(answer.body["error"]["allowed"].as_array().unwrap().contains(&json!("request_sandbox")));
    assert_eq!(host.nobody().get("/").status, 404);
    let answer = agent.call("%ff", &json!({}));
    assert_eq!((answer.status, answer.code()), (404, "not_found"));

    let large = format!(r#"{{"services": ["{}"]}}"#, "x".repeat(64 << 10));
    let answer = agent.send("request_sandbox", &large);
    assert_eq!((answer.status, answer.code()), (413, "too_large"));
}

#[test]
fn verbs_are_for_their_callers() {
    let host = offline();
    let agent = host.developer("dev-1");
    let answer = agent.call("begin_work", &json!({ "agent": "dev-1", "project": "shop" }));
    assert_eq!((answer.status, answer.code()), (403, "forbidden"));
    let answer = host.orchestrator().call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (403, "forbidden"));
}

#[test]
fn an_agent_cannot_name_another() {
    let host = offline();
    let agent = host.developer("dev-1");
    host.developer("dev-2");
    for verb in ["request_sandbox", "release_sandbox", "sandbox_status", "renew_sandbox"] {
        let answer = agent.call(verb, &json!({ "agent": "dev-2" }));
        assert_eq!((answer.status, answer.code()), (400, "bad_request"), "{verb}");
        assert!(answer.error("message").contains("agent"), "{verb}");
    }
}

#[test]
fn orchestrators_act_for_their_own_projects() {
    let host = offline();
    let other = host.nobody().with_token("other-orchestrator-of-a-test");
    host.developer("dev-1");
    let forbidden = |verb: &str, body: serde_json::Value| {
        let answer = other.call(verb, &body);
        assert_eq!((answer.status, answer.code()), (403, "forbidden"), "{verb}: {:#}", answer.body);
    };
    forbidden("begin_work", json!({ "agent": "dev-1", "project": "shop" }));
    // Neither may it take an agent away from somebody else's project, nor end its work.
    forbidden("begin_work", json!({ "agent": "dev-1", "project": "elsewhere" }));
    forbidden("end_work", json!({ "agent": "dev-1", "outcome": "done" }));
    forbidden("agent_gone", json!({ "agent": "dev-1" }));
    forbidden("spawn_env", json!({ "agent": "dev-1", "project": "shop" }));

    // What an orchestrator registered is its own, working or not.
    host.register("dev-2");
    forbidden("begin_work", json!({ "agent": "dev-2", "project": "elsewhere" }));

    let answer = host.orchestrator().call("begin_work", &json!({ "agent": "nobody", "project": "shop" }));
    assert_eq!((answer.status, answer.code()), (404, "not_found"));
}

#[test]
fn a_slug_is_registered_once() {
    let host = offline();
    host.register("dev-1");
    let again = host.orchestrator().call("register_agent", &json!({ "agent": "dev-1", "role": "developer" }));
    assert_eq!((again.status, again.code()), (409, "invalid_state"));
    for bad in ["", "-a", "UPPER", "a_b", "x".repeat(33).as_str()] {
        let answer = host.orchestrator().call("register_agent", &json!({ "agent": bad, "role": "developer" }));
        assert_eq!((answer.status, answer.code()), (400, "bad_request"), "{bad}");
        assert!(answer.error("message").contains("agent"), "{:#}", answer.body);
    }
}

#[test]
fn tokens_are_kept_as_hashes_and_survive_a_restart() {
    let mut host = offline();
    let answer = host.orchestrator().call("register_agent", &json!({ "agent": "dev-1", "role": "developer" }));
    let token = answer.evidence()["token"].as_str().unwrap().to_owned();
    host.orchestrator().call("begin_work", &json!({ "agent": "dev-1", "project": "shop" })).evidence();
    host.kill();
    for file in std::fs::read_dir(host.dir.path().join("state")).unwrap() {
        let path = file.unwrap().path();
        let content = std::fs::read(&path).unwrap_or_default();
        assert!(!content.windows(token.len()).any(|w| w == token.as_bytes()), "{}", path.display());
    }
    host.up().unwrap();
    // It is known, and its work goes on: the guard that refuses is the last one.
    let answer = host.nobody().with_token(&token).call("request_sandbox", &json!({}));
    assert!(answer.error("message").contains("not reachable"), "{:#}", answer.body);
    let log = format!("{:?}", host.log());
    assert!(!log.contains(&token), "the token is in the log");
}

#[test]
fn spawn_env_tells_one_thing_or_the_other() {
    let host = offline();
    host.register("dev-1");
    let spawn = |project: &str| {
        let answer = host.orchestrator().call("spawn_env", &json!({ "agent": "dev-1", "project": project }));
        answer.evidence().clone()
    };
    let marker = format!("{}_SANDBOX_SERVICES_AVAILABLE", host.namespace.to_uppercase());
    let opted_in = spawn("shop");
    assert_eq!(opted_in["env"], json!({ marker: "postgres,redis" }));
    assert!(opted_in["briefing"].as_str().unwrap().contains("request_sandbox"));
    assert_eq!(
        spawn("shop-none"),
        json!({ "env": { "DATABASE_URL": "postgresql://gate", "SECRET": "gate-secret" }, "briefing": null })
    );

    let off = TestHost::start_with(Options {
        enabled: false,
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        ..Options::default()
    });
    let answer = off.orchestrator().call("spawn_env", &json!({ "agent": "x", "project": "shop" }));
    assert_eq!(answer.evidence(), &json!({ "env": { "DATABASE_URL": "postgresql://gate" }, "briefing": null }));
}

#[test]
fn a_lookup_that_fails_answers_neither() {
    let mut host = TestHost::prepare(Options {
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        more: "[projects.shop-three]\ngate_env = { A = \"b\", C = { env = \"NOT_SET_ANYWHERE\" } }\n\
               [orchestrators.third]\ntoken = { env = \"TEST_OPERATOR_TWO\" }\nprojects = [\"shop-three\"]\n"
            .to_owned(),
        ..Options::default()
    });
    host.set_env("TEST_OPERATOR_TWO", "third-orchestrator-token");
    host.up().unwrap();
    let third = host.nobody().with_token("third-orchestrator-token");
    let answer = third.call("spawn_env", &json!({ "agent": "x", "project": "shop-three" }));
    assert_eq!(answer.evidence(), &json!({ "env": {}, "briefing": null }));
}

#[test]
fn a_foreign_host_header_is_refused() {
    let host = offline();
    let address = host.base().trim_start_matches("http://");
    let ask = |name: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(ask("localhost"), "200");
    assert_eq!(ask("attacker.example"), "403");
}

#[test]
fn a_token_that_is_revoked_while_the_body_travels_is_refused() {
    let host = offline();
    let agent = host.developer("dev-1");
    let address = host.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let token = agent.token().unwrap();
    write!(stream, "POST /v1/do/sandbox_status HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n")
        .unwrap();
    write!(stream, "Content-Length: 2\r\nConnection: close\r\n\r\n{{").unwrap();
    host.operator().call("rotate_token", &json!({ "agent": "dev-1" })).evidence();
    write!(stream, "}}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
}

#[test]
fn numbers_that_cannot_be_meant_are_refused() {
    let host = TestHost::prepare(Options {
        sandbox: "pids = 0\nmemory = \"1m\"".to_owned(),
        docker: "network = \"host\"".to_owned(),
        more: "[janitor]\nlease_secs = 9000000000000000000\n".to_owned(),
        ..Options::default()
    });
    let output = host.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for key in ["[sandbox] pids", "[sandbox] memory", "[docker] network", "[janitor] lease_secs"] {
        assert!(said.contains(key), "{key} is not in: {said}");
    }
}

#[test]
fn one_process_is_the_host_of_a_state_directory() {
    let host = offline();
    let output = host.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("held by another host") && said.contains(&host.pid().to_string()), "{said}");
}

#[test]
fn an_unknown_key_shows_its_line() {
    let host = TestHost::prepare(Options::default());
    let text = std::fs::read_to_string(host.config()).unwrap();
    std::fs::write(host.config(), format!("[host]\nlisten_on = 1\n{}", text.replacen("[host]\n", "", 1))).unwrap();
    let output = host.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(said.contains("sandbar.toml:2:1: [host] listen_on: unknown field"), "{said}");
}
