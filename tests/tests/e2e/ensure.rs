//! What provisioning promises.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

/// A service that becomes ready when the test makes the file `/tmp/go` in it.
pub(crate) const GATED: &str = "probe = \"test -e /tmp/go\", deadline-ms = \"120000\"";

pub(crate) fn making(host: &TestHost) -> Option<String> {
    host.containers().into_iter().find(|c| c.contains("-making-"))
}

pub(crate) fn open_gate(container: &str) {
    docker(["exec", container, "touch", "/tmp/go"]).unwrap();
}

fn id(container: &str) -> String {
    docker(["inspect", "--format", "{{.Id}}", container]).unwrap()
}

#[test]
fn the_whole_set_is_made_and_the_answer_filtered() {
    let host = TestHost::start();
    let agent = host.developer("dev-1");
    let first = agent.call("request_sandbox", &json!({ "services": ["redis"] }));
    assert_eq!(first.evidence().as_object().unwrap().keys().collect::<Vec<_>>(), ["redis"]);
    let both = [host.container("pg", "dev-1"), host.container("redis", "dev-1")];
    assert_eq!(host.containers(), both);
    // The rest is there already: the same containers, the same credentials.
    let ids = both.each_ref().map(|c| id(c));
    let second = agent.call("request_sandbox", &json!({}));
    assert_eq!(second.evidence()["redis"], first.evidence()["redis"]);
    assert_eq!(both.each_ref().map(|c| id(c)), ids);

    let status = agent.call("sandbox_status", &json!({}));
    assert_eq!((&status.evidence()["state"], &status.evidence()["project"]), (&json!("live"), &json!("shop")));
    assert!(status.body["lease_expires_at"].as_str().is_some_and(|t| t.ends_with('Z')));
    agent.call("renew_sandbox", &json!({})).evidence();

    let released = agent.call("release_sandbox", &json!({}));
    assert_eq!(released.evidence()["released"], json!(["postgres", "redis"]));
    assert_eq!(released.body["lease_expires_at"], json!(null));
    host.wait_until_empty();
    assert_eq!(agent.call("release_sandbox", &json!({})).evidence()["released"], json!([]));
}

#[test]
fn every_way_of_not_being_live_is_found_out() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let name = host.container("fix", "dev-1");
    let ask = || agent.call("request_sandbox", &json!({})).evidence()["fixture"]["password"].clone();
    let label = |key: &str, value: &str| format!("{}.{key}={value}", host.namespace);
    let mut password = ask();
    let image = sandbar_tests::host::image("redis:8-alpine").unwrap();
    let replaced = [
        label("installation", &host.installation),
        label("sandbox", "1"),
        label("sandbox.owner", &format!("{}-agent-dev-1", host.namespace)),
    ];
    let ways: [(&str, &dyn Fn()); 6] = [
        // Its data is gone, though it runs, and is the one that was made.
        ("restarted", &|| drop(docker(["restart", "--time", "0", &name]).unwrap())),
        // It runs and is the one that was made, and nobody reaches it.
        ("disconnected", &|| drop(docker(["network", "disconnect", "--force", &host.network(), &name]).unwrap())),
        ("paused", &|| drop(docker(["pause", &name]).unwrap())),
        ("stopped", &|| drop(docker(["kill", &name]).unwrap())),
        ("removed", &|| drop(docker(["rm", "--force", &name]).unwrap())),
        ("replaced", &|| {
            docker(["rm", "--force", &name]).unwrap();
            let [a, b, c] = &replaced;
            docker(["run", "--detach", "--name", &name, "--label", a, "--label", b, "--label", c, &image]).unwrap();
        }),
    ];
    for (what, spoil) in ways {
        let before = id(&name);
        spoil();
        let now = ask();
        assert_ne!(now, password, "{what}: the same credentials");
        assert_ne!(id(&name), before, "{what}: the same container");
        assert_eq!(ask(), now, "{what}: a hit");
        password = now;
        wait("the old one to go", || host.containers().len() == 1);
    }
}

#[test]
fn concurrent_calls_share_one_provision() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let agent = agent.clone();
            thread::spawn(move || agent.call("request_sandbox", &json!({})))
        })
        .collect();
    wait("a container in the making", || making(&host).is_some());
    assert_eq!(host.containers().len(), 1, "one container for all of them");
    open_gate(&making(&host).unwrap());
    let answers: Vec<_> = calls.into_iter().map(|c| c.join().unwrap().evidence().clone()).collect();
    assert!(answers.iter().all(|a| *a == answers[0]));
    assert_eq!(host.containers(), [host.container("fix", "dev-1")]);
}

#[test]
fn a_caller_that_disconnects_only_detaches() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let address = host.base().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).unwrap();
    let token = agent.token().unwrap();
    write!(
        stream,
        "POST /v1/do/request_sandbox HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    .unwrap();
    wait("a container in the making", || making(&host).is_some());
    let container = making(&host).unwrap();
    let made = id(&container);
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    drop(stream);
    open_gate(&container);
    // Nobody asks again, and still it is finished.
    wait("the final name", || host.containers() == [host.container("fix", "dev-1")]);
    assert_eq!(id(&host.container("fix", "dev-1")), made);
    agent.call("request_sandbox", &json!({})).evidence();
    assert_eq!(id(&host.container("fix", "dev-1")), made, "the retry finds it");
}

#[test]
fn a_release_stops_a_provision() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let asking = agent.clone();
    let asking = thread::spawn(move || asking.call("request_sandbox", &json!({})));
    wait("a container in the making", || making(&host).is_some());
    assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "making");
    agent.call("release_sandbox", &json!({})).evidence();
    let answer = asking.join().unwrap();
    assert_eq!((answer.status, answer.code()), (409, "invalid_state"), "{:#}", answer.body);
    assert_eq!(answer.body["error"]["retryable"], false);
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn the_end_of_work_stops_a_provision_too() {
    for (verb, body) in
        [("end_work", json!({ "agent": "dev-1", "outcome": "done" })), ("agent_gone", json!({ "agent": "dev-1" }))]
    {
        let host = TestHost::start_with(fixture(GATED));
        let agent = host.developer("dev-1");
        let asking = agent.clone();
        let asking = thread::spawn(move || asking.call("request_sandbox", &json!({})));
        wait("a container in the making", || making(&host).is_some());
        assert_eq!(host.orchestrator().call(verb, &body).evidence()["ended"], true);
        assert_eq!(asking.join().unwrap().status, 409);
        assert_eq!(host.containers(), Vec::<String>::new());
        let answer = agent.call("request_sandbox", &json!({}));
        assert!(answer.error("message").contains("works on no project"), "{:#}", answer.body);
    }
}

#[test]
fn agents_do_not_wait_for_each_other() {
    let host = TestHost::start_with(fixture(GATED));
    let slow = host.developer("slow");
    let waiting = thread::spawn(move || slow.call("request_sandbox", &json!({})));
    wait("a container in the making", || making(&host).is_some());
    let of_slow = making(&host).unwrap();
    let fast = host.developer("fast");
    let asking = thread::spawn(move || fast.call("request_sandbox", &json!({})));
    let mut of_fast = None;
    wait("another container in the making", || {
        of_fast = host.containers().into_iter().find(|c| c.contains("-making-") && *c != of_slow);
        of_fast.is_some()
    });
    open_gate(&of_fast.unwrap());
    asking.join().unwrap().evidence();
    assert!(!waiting.is_finished(), "the other one is still being made");
    open_gate(&of_slow);
    waiting.join().unwrap().evidence();
    assert_eq!(host.containers(), [host.container("fix", "fast"), host.container("fix", "slow")]);
}

#[test]
fn work_on_another_project_lets_the_old_sandbox_go() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let before = agent.call("request_sandbox", &json!({})).evidence().clone();
    host.orchestrator().call("begin_work", &json!({ "agent": "dev-1", "project": "shop-two" })).evidence();
    let after = agent.call("request_sandbox", &json!({})).evidence().clone();
    assert_ne!(before["fixture"]["password"], after["fixture"]["password"]);
    wait("the old one to go", || host.containers() == [host.container("fix", "dev-1")]);
    let status = agent.call("sandbox_status", &json!({}));
    assert_eq!(status.evidence()["project"], "shop-two");
}

#[test]
fn a_larger_wish_waits_and_adds_and_a_smaller_one_is_a_hit() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let ask = |extensions: Value| {
        let agent = agent.clone();
        thread::spawn(move || agent.call("request_sandbox", &json!({ "extensions": { "fixture": extensions } })))
    };
    let small = ask(json!([]));
    wait("a container in the making", || making(&host).is_some());
    let first = making(&host).unwrap();
    let large = ask(json!(["good"]));
    // It joins what is under way, which is not ready yet; then the service alone is made anew with the feature.
    open_gate(&first);
    let mut second = None;
    wait("another container in the making", || {
        second = host.containers().into_iter().find(|c| c.contains("-making-") && *c != first);
        second.is_some()
    });
    open_gate(&second.unwrap());
    let (large, small) = (large.join().unwrap(), small.join().unwrap());
    assert_eq!(large.evidence()["fixture"]["available_extensions"], json!(["good"]));
    let now = agent.call("request_sandbox", &json!({}));
    assert_eq!(now.evidence(), large.evidence());
    assert!(small.status == 200, "{:#}", small.body);
    wait("the old one to go", || host.containers() == [host.container("fix", "dev-1")]);
}

#[test]
fn explain_makes_nothing() {
    let host = TestHost::start_with(Options { services: vec!["redis"], ..Options::default() });
    let agent = host.developer("dev-1");
    let explained = agent.call("request_sandbox", &json!({ "explain": true, "extensions": { "redis": ["search"] } }));
    assert_eq!(
        explained.evidence(),
        &json!({ "redis": {
            "action": "make", "image": "redis/redis-stack-server:latest", "available_extensions": ["search"], "timeline": []
        } })
    );
    assert_eq!(host.containers(), Vec::<String>::new());
    agent.call("request_sandbox", &json!({})).evidence();
    assert_eq!(agent.call("request_sandbox", &json!({ "explain": true })).evidence()["redis"]["action"], "keep");
}

#[test]
fn a_timeline_says_where_a_start_went() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    let ask = json!({ "extensions": { "fixture": ["good"] } });
    let begun = std::time::Instant::now();
    agent.call("request_sandbox", &ask).evidence();
    let whole = begun.elapsed().as_millis();
    let explain = || agent.call("request_sandbox", &json!({ "explain": true })).evidence()["fixture"].clone();
    let explained = explain();
    assert_eq!(explained["action"], "keep");
    let timeline = explained["timeline"].as_array().unwrap();
    let steps: Vec<_> =
        timeline.iter().map(|row| (row["step"].as_str().unwrap(), row["what"].as_str().unwrap())).collect();
    let image = image("redis:8-alpine").unwrap();
    let expected = [("plan", ""), ("create", &image), ("start", &image), ("ready", ""), ("verify", "confirm good")];
    assert_eq!(steps, expected);
    let ms: Vec<_> = timeline.iter().map(|row| u128::from(row["ms"].as_u64().unwrap())).collect();
    assert!(ms.iter().sum::<u128>() <= whole && ms[1] + ms[2] + ms[3] > 0, "{ms:?} of {whole}");
    // It is of the container that is there: a hit changes nothing of it, and no other call is told.
    assert!(agent.call("request_sandbox", &json!({})).evidence()["fixture"].get("timeline").is_none());
    assert_eq!(explain(), explained);
}

#[test]
fn making_is_visible_and_the_rename_is_the_commit() {
    let host = TestHost::start_with(fixture(GATED));
    let agent = host.developer("dev-1");
    let asking = thread::spawn(move || agent.call("request_sandbox", &json!({})));
    wait("a container in the making", || making(&host).is_some());
    let container = making(&host).unwrap();
    let made = id(&container);
    // Labelled from the moment it exists.
    let format = format!("{{{{index .Config.Labels \"{}.sandbox.owner\"}}}}", host.namespace);
    assert_eq!(
        docker(["inspect", "--format", &format, &container]).unwrap(),
        format!("{}-agent-dev-1", host.namespace)
    );
    open_gate(&container);
    asking.join().unwrap().evidence();
    assert_eq!(id(&host.container("fix", "dev-1")), made);
}

#[test]
fn no_volume_is_made() {
    let host = TestHost::start();
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();
    // The images declare volumes; Docker lists here what a container has of them, anonymous ones too, and no tmpfs.
    let mounts = |slug: &str| {
        let container = host.container(slug, "dev-1");
        docker(["inspect", "--format", "{{json .Mounts}}", &container]).unwrap()
    };
    assert_eq!((mounts("pg").as_str(), mounts("redis").as_str()), ("[]", "[]"));
}
