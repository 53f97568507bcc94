//! The verbs as tools of MCP: with the official client, in the current protocol and those before, and with messages that no
//! client would send.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, wait};
use sandbar_tests::mcp::{PythonClient, Speaks};
use sandbar_tests::registry::{Image, Real};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

use crate::boxes::{boxes, tenant};
use crate::ensure::{GATED, making, open_gate};

const ALL: [Speaks; 3] = [Speaks::Current, Speaks::Legacy, Speaks::Before];

fn offline() -> TestHost {
    TestHost::start_with(Options {
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        ..Options::default()
    })
}

fn initialize(client: &Client) -> String {
    let raw = client.mcp(
        r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},
            "clientInfo":{"name":"test","version":"0"}}}"#,
        &[],
    );
    assert_eq!((raw.status, &raw.body["result"]["protocolVersion"]), (200, &json!("2025-06-18")), "{raw:?}");
    raw.session.unwrap()
}

const LIST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;

/// The names of what a caller is offered.
fn offered(client: &Client) -> Vec<String> {
    let raw = client.mcp(LIST, &[]);
    let tools = raw.body["result"]["tools"].as_array().unwrap_or_else(|| panic!("{raw:?}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn everybody_is_offered_their_own_verbs() {
    let host = offline();
    let agent = host.register("dev-1");
    for (speaks, protocol) in
        [(Speaks::Current, "2026-07-28"), (Speaks::Legacy, "2025-11-25"), (Speaks::Before, "2025-11-25")]
    {
        let mut client = PythonClient::connect(&agent, speaks);
        assert_eq!(client.protocol, protocol);
        let tools = client.tools();
        let tool = tools.iter().find(|tool| tool["name"] == "request_sandbox").unwrap();
        assert_eq!(tool["inputSchema"]["properties"]["services"]["items"]["type"], "string", "{tool:#}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool:#}");
        assert!(tool["outputSchema"]["properties"]["evidence"].is_object(), "{tool:#}");
        let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, offered(&agent));
    }
    let has = |client: &Client| {
        let names = offered(client);
        ["request_sandbox", "release_sandbox", "begin_work", "read_artifact", "register_agent", "set_switch"]
            .map(|name| names.iter().any(|n| n == name))
    };
    assert_eq!(has(&agent), [true, true, false, true, false, false]);
    assert_eq!(has(&host.orchestrator()), [false, false, true, true, true, false]);
    assert_eq!(has(&host.operator()), [false, false, false, false, true, true]);
    // A role that may not ask for sandboxes.
    let writer = host.orchestrator().tool("register_agent", &json!({ "agent": "doc-1", "role": "writer" }));
    let token = writer.body["result"]["structuredContent"]["evidence"]["token"].as_str().unwrap();
    let writer = host.nobody().with_token(token);
    assert_eq!(has(&writer), [false, true, false, false, false, false]);
    let refused = writer.tool("request_sandbox", &json!({})).body["result"].clone();
    assert_eq!(refused["isError"], true, "{refused:#}");
    assert_eq!(refused["structuredContent"]["error"]["code"], "forbidden");
    assert_eq!(refused["structuredContent"]["error"]["allowed"], json!(["developer", "qa"]));
}

#[test]
fn tools_answer_what_verbs_answer() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let verb = agent.call("request_sandbox", &json!({}));
    for speaks in ALL {
        // It compares results with the schema of the tool.
        let mut client = PythonClient::connect(&agent, speaks);
        let result = client.call("request_sandbox", &json!({}));
        let answer = &result["structuredContent"];
        assert_eq!((&answer["ok"], &answer["evidence"]), (&json!(true), verb.evidence()), "{speaks:?}: {result:#}");
        assert!(answer["lease_expires_at"].is_string() && answer["request_id"].is_string(), "{answer:#}");
        assert_eq!(result["isError"], false);
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, *answer);
        let explained = client.call("request_sandbox", &json!({ "explain": true }));
        assert_eq!(explained["structuredContent"]["evidence"]["fixture"]["action"], "keep", "{explained:#}");
        let status = client.call("sandbox_status", &json!({}));
        assert_eq!(status["structuredContent"]["evidence"]["state"], "live");
    }
    let mut client = PythonClient::connect(&agent, Speaks::Current);
    let released = client.call("release_sandbox", &json!({}));
    assert_eq!(released["structuredContent"]["evidence"]["released"], json!(["fixture"]));
    let log = format!("{:?}", host.log());
    assert!(!log.contains(verb.evidence()["fixture"]["password"].as_str().unwrap()), "the password is in the log");
}

#[test]
fn what_a_verb_refuses_is_an_error_of_its_tool() {
    let host = offline();
    let agent = host.developer("dev-1");
    for speaks in ALL {
        let mut client = PythonClient::connect(&agent, speaks);
        let mut refused = |arguments: Value, code: &str, message: &str| {
            let result = client.call("request_sandbox", &arguments);
            let answer = &result["structuredContent"];
            assert_eq!((&result["isError"], &answer["ok"]), (&json!(true), &json!(false)), "{speaks:?}: {result:#}");
            assert_eq!(answer["error"]["code"], code, "{result:#}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(message), "{result:#}");
            assert!(answer["error"]["remediate"].as_str().is_some_and(|r| !r.is_empty()), "{result:#}");
            let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(text, *answer);
            answer["error"].clone()
        };
        let away = refused(json!({}), "invalid_state", "not reachable");
        assert_eq!(away["retryable"], true);
        refused(json!({ "services": "redis" }), "bad_request", "`services`");
        refused(json!({ "servces": ["redis"] }), "bad_request", "servces");
        let outside = refused(json!({ "services": ["mongo"] }), "invalid_state", "`mongo`");
        assert_eq!((&outside["retryable"], &outside["allowed"]), (&json!(false), &json!(["postgres", "redis"])));
    }
    // What was sent is read, not what a parser made of it.
    let twice = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"request_sandbox",
        "arguments":{"extensions":{"redis":["json"],"redis":[]}}}}"#;
    let twice = agent.mcp(twice, &[]).body;
    let message = &twice["result"]["structuredContent"]["error"]["message"];
    assert!(message.as_str().is_some_and(|m| m.contains("`redis` stands there twice")), "{twice:#}");
    let other = agent.tool("begin_work", &json!({ "agent": "dev-1", "project": "shop" })).body;
    assert_eq!(other["result"]["structuredContent"]["error"]["code"], "forbidden", "{other:#}");
}

#[test]
fn what_is_no_call_is_an_error_of_the_protocol() {
    let host = offline();
    let agent = host.developer("dev-1");
    for speaks in ALL {
        let mut client = PythonClient::connect(&agent, speaks);
        let call = client.begin("no_such_tool", &json!({}), false, None);
        let end = client.end(call);
        assert_eq!(end["error"]["code"], -32602, "{speaks:?}: {end}");
        assert!(end["error"]["message"].as_str().unwrap().contains("`no_such_tool`"), "{end}");
    }
    let bad = |body: &str, status: u16, code: i64| {
        let raw = agent.mcp(body, &[]);
        assert_eq!((raw.status, &raw.body["error"]["code"]), (status, &json!(code)), "{body}: {raw:?}");
        raw.body["id"].clone()
    };
    let call = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
    for params in [r#"{"name":5}"#, "{}", "[]", r#"{"name":"sandbox_status","arguments":[]}"#, "null"] {
        assert_eq!(bad(&call(params), 400, -32602), 7, "{params}");
    }
    bad(r#"{"jsonrpc":"2.0","id":1,"#, 400, -32700);
    bad("", 400, -32700);
    bad("[]", 400, -32600);
    bad(r#"{"jsonrpc":"2.0","id":{},"method":"tools/list"}"#, 400, -32600);
    bad(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call"}"#, 400, -32600);
    bad(r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, 200, -32601);
    assert_eq!(agent.mcp(LIST, &[("mcp-protocol-version", "1999-01-01")]).status, 400);
    // Nothing is said unasked.
    let address = host.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let token = agent.token().unwrap();
    write!(
        stream,
        "GET /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 405") && answer.to_lowercase().contains("allow: post"), "{answer}");
}

#[test]
fn only_who_has_a_token_and_comes_from_here_is_heard() {
    let host = offline();
    for nobody in [host.nobody(), host.nobody().with_token("wrong")] {
        let raw = nobody.mcp(LIST, &[]);
        assert_eq!((raw.status, raw.authenticate.as_deref()), (401, Some("Bearer")), "{raw:?}");
        assert_eq!(raw.body["error"]["code"], "unauthorized");
    }
    let agent = host.register("dev-1");
    for (origin, status) in
        [("http://evil.example", 403), ("null", 403), ("http://localhost:6274", 200), (host.base(), 200)]
    {
        assert_eq!(agent.mcp(LIST, &[("origin", origin)]).status, status, "{origin}");
    }
    assert_eq!(agent.mcp(LIST, &[("host", "evil.example")]).status, 403);
    // A token that is revoked is refused in a session too.
    let session = initialize(&agent);
    assert_eq!(agent.mcp(LIST, &[("mcp-session-id", &session)]).status, 200);
    host.operator().call("rotate_token", &json!({ "agent": "dev-1" })).evidence();
    assert_eq!(agent.mcp(LIST, &[("mcp-session-id", &session)]).status, 401);
}

#[test]
fn a_session_is_its_own_and_outlives_the_host() {
    let mut host = offline();
    let (agent, other) = (host.register("dev-1"), host.register("dev-2"));
    let session = initialize(&agent);
    assert_ne!(session, initialize(&agent));
    let status = |client: &Client, session: &str| client.mcp(LIST, &[("mcp-session-id", session)]).status;
    for (client, session, expected) in [
        (&agent, session.as_str(), 200),
        (&other, &session, 404),
        (&host.orchestrator(), &session, 404),
        (&agent, "made-up", 404),
        (&agent, "", 404),
    ] {
        assert_eq!(status(client, session), expected, "{session}");
    }
    host.kill();
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    assert_eq!(status(&agent, &session), 200);
}

#[test]
fn bodies_are_bounded_as_those_of_verbs() {
    let host = offline();
    let agent = host.developer("dev-1");
    let large = "x".repeat(64 << 10);
    let raw = agent.tool("request_sandbox", &json!({ "services": [large] }));
    assert_eq!((raw.status, &raw.body["error"]["code"]), (413, &json!("too_large")));
    assert_eq!(host.orchestrator().tool("begin_work", &json!({ "agent": large })).status, 413);
    // A file may be larger; what refuses it here is a guard.
    let file = |size: usize| agent.tool("write_file", &json!({ "path": "a", "content": "x".repeat(size) }));
    assert_eq!(file(1 << 20).body["result"]["structuredContent"]["error"]["code"], "invalid_state");
    // Nor is one waited for that is too large even for a file.
    let address = host.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    let token = agent.token().unwrap();
    write!(stream, "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n").unwrap();
    write!(stream, "Content-Length: {}\r\n\r\n", 17 << 20).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[test]
fn a_call_that_was_given_up_goes_on_and_is_joined() {
    let host = TestHost::start_with(fixture(GATED));
    for speaks in ALL {
        let name = format!("dev-{speaks:?}").to_lowercase();
        let agent = host.developer(&name);
        let mut client = PythonClient::connect(&agent, speaks);
        let first = client.begin("request_sandbox", &json!({}), true, Some(3.0));
        wait("a container in the making", || making(&host).is_some());
        let container = making(&host).unwrap();
        let id = docker(["inspect", "--format", "{{.Id}}", &container]).unwrap();
        let end = client.end(first);
        assert!(end["error"]["code"].is_number(), "{speaks:?}: {end}");
        assert_eq!(making(&host).as_ref(), Some(&container), "{speaks:?}");

        let second = client.begin("request_sandbox", &json!({}), true, None);
        client.wait_for_progress(second, "has begun");
        open_gate(&container);
        let end = client.end(second);
        assert_eq!(end["result"]["structuredContent"]["ok"], true, "{speaks:?}: {end}");
        let live = host.container("fix", &name);
        assert_eq!(docker(["inspect", "--format", "{{.Id}}", &live]).unwrap(), id, "{speaks:?}");

        let told = client.progress(first);
        assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "{told:?}");
        for step in ["fixture: create", "fixture: start", "fixture: ready"] {
            assert!(told.iter().any(|(_, message)| message.contains(step)), "{speaks:?}: {step}: {told:?}");
        }
        // Who does not ask is told nothing.
        let quiet = client.begin("sandbox_status", &json!({}), false, None);
        client.end(quiet);
        assert_eq!(client.progress(quiet), []);
    }
}

#[test]
fn a_pull_tells_its_bytes() {
    let registry = Real::open();
    let image = registry.push("team/told:1", &Image::unique());
    let mut options = fixture(&format!("image = {image:?}"));
    options.more.push_str(&format!("grant.images = [{image:?}]\n"));
    options.sandbox.push_str("pull_ahead = false\n");
    let host = TestHost::start_with(options);
    let mut client = PythonClient::connect(&host.developer("dev-1"), Speaks::Current);
    let call = client.begin("request_sandbox", &json!({}), true, None);
    let end = client.end(call);
    assert_eq!(end["result"]["structuredContent"]["ok"], true, "{end}");
    let told = client.progress(call);
    let pull = format!("fixture: pull {image}");
    assert!(told.iter().any(|(_, message)| message.starts_with(&pull)), "{told:?}");
    assert!(told.iter().any(|(_, message)| message.starts_with(&pull) && message.ends_with(" bytes")), "{told:?}");
}

/// Whether a process runs in the container of a box.
fn runs(host: &TestHost, process: &str) -> bool {
    let containers = host.containers();
    let mut boxes = containers.iter().filter(|c| c.starts_with(&format!("{}-box-", host.namespace)));
    boxes.any(|container| docker(["top", container, "-o", "pid,args"]).is_ok_and(|top| top.contains(process)))
}

#[test]
fn a_command_ends_with_its_call() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    // The current protocol cancels by closing the stream, those before by a message.
    for (speaks, process) in [(Speaks::Current, "sleep 4711"), (Speaks::Legacy, "sleep 4712")] {
        let mut client = PythonClient::connect(&agent, speaks);
        let call = client.begin("run_command", &json!({ "service": "box", "command": process }), false, None);
        wait("the command to run", || runs(&host, process));
        client.cancel(call);
        wait("the command to end", || !runs(&host, process));
        // The next one is none the worse for it.
        let after = client.call("run_command", &json!({ "service": "box", "command": "echo on" }));
        assert_eq!(after["structuredContent"]["evidence"]["stdout"], "on\n", "{after:#}");
    }
    // A client that dies closes its streams.
    let mut client = PythonClient::connect(&agent, Speaks::Before);
    client.begin("run_command", &json!({ "service": "box", "command": "sleep 4713" }), false, None);
    wait("the command to run", || runs(&host, "sleep 4713"));
    drop(client);
    wait("the command to end", || !runs(&host, "sleep 4713"));
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_client_cancels_its_own_calls_alone() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let (mine, other) = (initialize(&agent), initialize(&agent));
    let call = json!({ "jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": { "name": "run_command", "arguments": { "service": "box", "command": "sleep 4714" } } });
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}"#;
    std::thread::scope(|scope| {
        let calling = scope.spawn(|| agent.mcp(&call.to_string(), &[("mcp-session-id", &mine)]));
        wait("the command to run", || runs(&host, "sleep 4714"));
        assert_eq!(agent.mcp(cancel, &[("mcp-session-id", &other)]).status, 202);
        assert_eq!(agent.mcp(cancel, &[]).status, 202);
        std::thread::sleep(Duration::from_secs(2));
        assert!(runs(&host, "sleep 4714") && !calling.is_finished());
        assert_eq!(agent.mcp(cancel, &[("mcp-session-id", &mine)]).status, 202);
        wait("the command to end", || !runs(&host, "sleep 4714"));
        assert!(calling.join().unwrap().body["result"].is_null());
    });
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_long_call_is_heard_of() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let mut client = PythonClient::connect(&agent, Speaks::Current);
    let call = client.begin("request_sandbox", &json!({}), true, None);
    // Nor are those left alone that asked for no progress: they get comments.
    let address = host.base().trim_start_matches("http://");
    let open = |headers: &str, meta: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "request_sandbox", "arguments": {}, "_meta": meta } })
        .to_string();
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            agent.token().unwrap(),
            body.len()
        )
        .unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    };
    let before = open("", json!({}));
    let current = open(
        "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: request_sandbox\r\n",
        json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "0" },
            "io.modelcontextprotocol/clientCapabilities": {},
        }),
    );
    let read = |stream: &mut TcpStream, until: &str| {
        let mut text = String::new();
        let since = Instant::now();
        while !text.contains(until) && since.elapsed() < Duration::from_secs(40) {
            let mut part = [0; 4096];
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&part[..read]));
        }
        assert!(text.contains(until), "{text}");
        text
    };
    let mut streams = [before, current];
    for stream in &mut streams {
        let text = read(stream, "\n:");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("text/event-stream"), "{text}");
    }
    client.wait_for_progress(call, "request_sandbox goes on");
    open_gate(&making(&host).unwrap());
    for stream in &mut streams {
        read(stream, "structuredContent");
    }
    assert_eq!(client.end(call)["result"]["structuredContent"]["ok"], true);
}

#[test]
fn the_host_goes_down_with_calls_under_way() {
    let mut host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    for speaks in [Speaks::Current, Speaks::Legacy] {
        let mut client = PythonClient::connect(&agent_of(&host, &agent), speaks);
        let call = client.begin("request_sandbox", &json!({}), true, None);
        wait("a container in the making", || making(&host).is_some());
        let since = Instant::now();
        host.down().unwrap();
        assert!(since.elapsed() < Duration::from_secs(40), "{:?}", since.elapsed());
        let end = client.end(call);
        let error = &end["result"]["structuredContent"]["error"];
        assert_eq!((&error["code"], &error["retryable"]), (&json!("invalid_state"), &json!(true)), "{speaks:?}: {end}");
        host.up().unwrap();
    }
}

/// The same agent after a start, at another address.
fn agent_of(host: &TestHost, agent: &Client) -> Client {
    host.nobody().with_token(agent.token().unwrap())
}
