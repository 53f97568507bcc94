//! Connections that ask nothing, or ask in ways that no client should.

use std::io::{Read, Write};
use std::net::TcpStream;

use sandbar_tests::host::fixture;
use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn offline() -> TestHost {
    TestHost::start_with(Options {
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        ..Options::default()
    })
}

fn connect(host: &TestHost) -> TcpStream {
    TcpStream::connect(host.base().trim_start_matches("http://")).unwrap()
}

/// Sends some text and answers the status and the body of what comes.
fn raw(host: &TestHost, request: &str) -> (String, serde_json::Value) {
    let mut stream = connect(host);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
    (status, serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn connections_that_ask_nothing_keep_nobody_out() {
    let host = TestHost::start_with(Options { ulimit: Some("-n 150"), ..fixture("") });
    let token = host.developer("dev-1").token().unwrap().to_owned();
    let half: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = connect(&host);
            // It may have been ended already, to make room for the next.
            let _ = write!(stream, "GET /healthz HTTP/1.1\r\nHost: local");
            stream
        })
        .collect();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap().count();
    // Others are served, and Docker is reached for them.
    assert_eq!(host.nobody().get("/healthz").status, 200);
    let agent = host.nobody().with_token(&token);
    agent.call("request_sandbox", &json!({})).evidence();
    assert!(open() < 150, "{}", open());
    agent.call("release_sandbox", &json!({})).evidence();
    assert_eq!(half.len(), 200);
}

#[test]
fn the_host_takes_as_many_descriptors_as_it_may() {
    let host = TestHost::start_with(Options { ulimit: Some("-Sn 64"), ..fixture("") });
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", host.pid())).unwrap();
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files")).unwrap();
    let words: Vec<_> = line.split_whitespace().collect();
    assert!(words[0] == words[1] && words[0] != "64", "{line}");
}

#[test]
fn a_half_sent_request_does_not_hold_up_the_end() {
    let mut host = offline();
    let mut half = connect(&host);
    write!(half, "POST /v1/do/request_sandbox HTTP/1.1\r\nHost: local").unwrap();
    // It is seen: what another one asks is answered.
    assert_eq!(host.nobody().get("/healthz").status, 200);
    host.down().unwrap();
    let mut rest = Vec::new();
    // Closed or reset, and in any case not waiting.
    let _ = half.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn a_body_that_will_be_too_large_is_refused_at_once() {
    let host = offline();
    let token = host.developer("dev-1").token().unwrap().to_owned();
    // Only the head is sent; whoever waited for the body would say that it did not come.
    let (status, body) = raw(
        &host,
        &format!(
            "POST /v1/do/request_sandbox HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: 65537\r\nConnection: close\r\n\r\n"
        ),
    );
    assert_eq!((status.as_str(), &body["error"]["code"]), ("413", &json!("too_large")), "{body:#}");
}

#[test]
fn a_request_names_one_host_and_one_that_is_allowed() {
    let host = offline();
    let ask = |line: &str, hosts: &[&str]| {
        let hosts: String = hosts.iter().map(|h| format!("Host: {h}\r\n")).collect();
        raw(&host, &format!("{line} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n"))
    };
    assert_eq!(ask("GET /healthz", &["localhost"]).0, "200");
    let (status, body) = ask("GET /healthz", &["localhost", "attacker.example"]);
    assert_eq!((status.as_str(), &body["error"]["code"]), ("400", &json!("bad_request")), "{body:#}");
    assert_eq!(ask("GET http://localhost/healthz", &["localhost"]).0, "200");
    assert_eq!(ask("GET http://localhost/healthz", &["attacker.example"]).0, "403");
    assert_eq!(ask("GET http://attacker.example/healthz", &["localhost"]).0, "403");
    assert_eq!(ask("GET /healthz", &[]).0, "403");
}

#[test]
fn every_refusal_is_an_envelope() {
    let host = offline();
    for (line, code) in [
        ("POST /healthz", "bad_request"),
        ("PUT /readyz", "bad_request"),
        ("GET /v1/do/request_sandbox", "bad_request"),
        ("GET /nowhere", "not_found"),
    ] {
        let request = format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let (_, body) = raw(&host, &request);
        assert_eq!((&body["ok"], &body["error"]["code"]), (&json!(false), &json!(code)), "{line}: {body:#}");
    }
}
