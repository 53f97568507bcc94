//! What a host finds when it starts.

use sandbar_tests::docker::docker;
use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn kept() -> TestHost {
    TestHost::start_with(Options { keep_on_shutdown: true, ..Options::default() })
}

/// Ends a host that keeps its sandboxes without leaving any.
fn give_back(host: &TestHost, agent: &sandbar_tests::Client) {
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn an_upgrade_loses_nothing() {
    let mut host = kept();
    let agent = host.developer("dev-1");
    let before = agent.call("request_sandbox", &json!({}));
    let containers = host.containers();
    host.down().unwrap();
    assert_eq!(host.containers(), containers);
    host.up().unwrap();
    let agent = sandbar_tests::Client::new(host.base(), None).with_token(agent.token().unwrap());
    let after = agent.call("request_sandbox", &json!({}));
    assert_eq!(after.evidence(), before.evidence());
    assert_eq!(host.containers(), containers);
    give_back(&host, &agent);
}

#[test]
fn a_crash_leaves_nothing_half_made() {
    let mut host = TestHost::start_with(Options {
        keep_on_shutdown: true,
        ..sandbar_tests::host::fixture("probe = \"exit 1\", deadline-ms = \"60000\"")
    });
    let agent = host.developer("dev-1");
    let asking = agent.clone();
    let asking = std::thread::spawn(move || asking.try_send("request_sandbox", "{}"));
    sandbar_tests::host::wait("a container in the making", || host.containers().iter().any(|c| c.contains("-making-")));
    host.kill();
    assert!(asking.join().unwrap().is_err());
    assert_eq!(host.containers().len(), 1);
    host.up().unwrap();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn what_is_not_of_this_installation_is_left_alone() {
    let mut host = kept();
    let image = sandbar_tests::host::image("redis:8-alpine").unwrap();
    let name = format!("{}-making-foreign", host.namespace);
    let label = format!("{}.installation=somebody-else", host.namespace);
    let id = docker([
        "create",
        "--name",
        &name,
        "--label",
        &label,
        "--label",
        &format!("{}.sandbox=1", host.namespace),
        &image,
    ])
    .unwrap();
    host.down().unwrap();
    host.up().unwrap();
    assert_eq!(docker(["inspect", "--format", "{{.Id}}", &name]).unwrap(), id);
    docker(["rm", &id]).unwrap();
}
