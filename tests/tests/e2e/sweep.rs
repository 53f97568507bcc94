//! `sandbar sweep --installation`: what a lost state directory left.

use std::process::{Command, Output};

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, sandbar};
use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn sweep(host: &TestHost, installation: &str, more: &[&str]) -> Output {
    let mut command = Command::new(sandbar());
    command.args(["sweep", "--installation", installation, "--config"]).arg(host.config()).args(more);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_a_lost_host_left_goes_and_nothing_else() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..fixture("") });
    let other = TestHost::start_with(fixture(""));
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    other.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    let mine = host.container("fix", "dev-1");
    host.kill();

    let dry = sweep(&host, &host.installation, &["--dry-run"]);
    assert!(dry.status.success() && text(&dry.stdout).contains(&format!("would remove {mine}")), "{dry:?}");
    assert!(text(&dry.stdout).contains(&format!("would remove the network {}", host.network())), "{dry:?}");
    assert_eq!(host.containers(), std::slice::from_ref(&mine));

    // An installation of that id in another namespace is another one.
    let nobody = sweep(&other, &host.installation, &[]);
    assert!(nobody.status.success() && text(&nobody.stdout).contains("has no containers"), "{nobody:?}");
    assert_eq!(host.containers(), std::slice::from_ref(&mine));

    let swept = sweep(&host, &host.installation, &[]);
    assert!(swept.status.success() && text(&swept.stdout).contains(&format!("removed {mine}")), "{swept:?}");
    assert!(text(&swept.stdout).contains(&format!("removed the network {}", host.network())), "{swept:?}");
    assert_eq!(host.left().unwrap(), Vec::<String>::new());
    docker(["inspect", &other.container("fix", "dev-1")]).expect("it stays");
}

#[test]
fn a_running_host_s_own_installation_is_not_swept() {
    let host = TestHost::start_with(fixture(""));
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    let swept = sweep(&host, &host.installation, &[]);
    let error = text(&swept.stderr);
    assert!(!swept.status.success() && error.contains("is held by another host: process"), "{error}");
    assert_eq!(host.containers(), [host.container("fix", "dev-1")]);
    let bad = sweep(&host, "no such id!", &[]);
    assert!(!bad.status.success());
}
