//! Hosts and containers that share one Docker.

use sandbar_tests::docker::{docker, run_beside};
use sandbar_tests::host::{fixture, image};
use sandbar_tests::{Options, TestHost};
use serde_json::json;

#[test]
fn two_installations_never_touch_each_other() {
    let mut one = TestHost::start_with(Options { keep_on_shutdown: true, ..fixture("") });
    let two = TestHost::start_with(fixture(""));
    let agents = [one.developer("dev-1"), two.developer("dev-1")];
    let before = agents.each_ref().map(|a| a.call("request_sandbox", &json!({})).evidence().clone());
    let id = |host: &TestHost| docker(["inspect", "--format", "{{.Id}}", &host.container("fix", "dev-1")]).unwrap();
    let of_two = id(&two);
    // Everything that one of them does with what it finds: a crash, a start, a release.
    one.kill();
    one.up().unwrap();
    let again = one.nobody().with_token(agents[0].token().unwrap());
    assert_eq!(again.call("request_sandbox", &json!({})).evidence(), &before[0]);
    again.call("release_sandbox", &json!({})).evidence();
    one.wait_until_empty();
    assert_eq!(id(&two), of_two);
    assert_eq!(agents[1].call("request_sandbox", &json!({})).evidence(), &before[1]);
    docker(["network", "rm", &one.network()]).unwrap();
}

#[test]
fn the_longest_slug_is_a_host_name() {
    let host = TestHost::start_with(Options { services: vec!["redis"], ..Options::default() });
    let slug = "a".repeat(31) + "9";
    let answer = host.developer(&slug).call("request_sandbox", &json!({}));
    let redis = &answer.evidence()["redis"];
    assert_eq!(redis["host"], host.container("redis", &slug));
    let env = serde_json::from_value(redis["env"].clone()).unwrap();
    let ping = ["sh", "-c", "redis-cli -u \"$REDIS_URL\" --no-auth-warning ping"];
    assert_eq!(run_beside(&host.network(), &image("redis:8-alpine").unwrap(), &env, &ping).unwrap(), "PONG");
}

#[test]
fn a_network_that_is_missing_is_made_again() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
    agent.call("request_sandbox", &json!({})).evidence();
    docker(["network", "inspect", &host.network()]).unwrap();
}

#[test]
fn a_network_of_somebody_else_is_used_and_left() {
    let host = TestHost::prepare(fixture(""));
    docker(["network", "create", &host.network()]).unwrap();
    let network = host.network();
    let mut host = host;
    host.up().unwrap();
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    drop(host);
    docker(["network", "inspect", &network]).expect("it is still there");
    docker(["network", "rm", &network]).unwrap();
}

#[test]
fn room_is_bounded() {
    let mut options = fixture("");
    options.sandbox = "max_live = 1".to_owned();
    let host = TestHost::start_with(options);
    let (one, two) = (host.developer("one"), host.developer("two"));
    one.call("request_sandbox", &json!({})).evidence();
    let answer = two.call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (429, "capacity"), "{:#}", answer.body);
    assert!(answer.retry_after.is_some());
    one.call("release_sandbox", &json!({})).evidence();
    two.call("request_sandbox", &json!({})).evidence();
}

#[test]
fn remaking_is_bounded() {
    let host = TestHost::start_with(fixture(""));
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();
    for _ in 0..6 {
        docker(["rm", "--force", &host.container("fix", "dev-1")]).unwrap();
        agent.call("request_sandbox", &json!({})).evidence();
    }
    docker(["rm", "--force", &host.container("fix", "dev-1")]).unwrap();
    let answer = agent.call("request_sandbox", &json!({}));
    assert_eq!((answer.status, answer.code()), (429, "capacity"), "{:#}", answer.body);
    assert!(answer.retry_after.is_some_and(|s| s > 300), "{:?}", answer.retry_after);
}
