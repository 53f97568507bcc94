//! What a host finds when it starts.

use sandbar_core::secret::sha256_hex;
use sandbar_tests::docker::docker;
use sandbar_tests::host::fixture;
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
        ..fixture("probe = \"exit 1\", deadline-ms = \"60000\"")
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

#[test]
fn a_slug_that_is_taken_again_comes_without_what_its_last_owner_had() {
    let token = "configured-agent-of-a-test";
    let mut options = fixture("");
    let agents = format!("[agents.cfg]\nrole = \"developer\"\ntoken = {{ sha256 = {:?} }}\n", sha256_hex(token));
    options.more.push_str(&agents);
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..options });
    host.orchestrator().call("begin_work", &json!({ "agent": "cfg", "project": "shop" })).evidence();
    host.nobody().with_token(token).call("request_sandbox", &json!({})).evidence();
    host.down().unwrap();
    // The operator takes the agent out of the configuration; somebody else registers its slug.
    let text = std::fs::read_to_string(host.config()).unwrap();
    std::fs::write(host.config(), text.replace(&agents, "")).unwrap();
    host.up().unwrap();
    let other = host.nobody().with_token("other-orchestrator-of-a-test");
    let answer = other.call("register_agent", &json!({ "agent": "cfg", "role": "developer" }));
    let taker = host.nobody().with_token(answer.evidence()["token"].as_str().unwrap());
    assert!(taker.call("request_sandbox", &json!({})).error("message").contains("works on no project"));
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn work_that_ends_before_a_crash_leaves_nothing_to_adopt() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..fixture("") });
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();
    host.kill();
    // As if the host had died between the state file and Docker.
    let path = host.dir.path().join("state/state.sqlite");
    let gone = std::process::Command::new("python3")
        .args([
            "-c",
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('delete from work'); c.commit()",
        ])
        .arg(path)
        .status()
        .unwrap();
    assert!(gone.success());
    host.up().unwrap();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}
