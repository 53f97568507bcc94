//! Engines that change while the host runs: what is good is taken, and what is bad takes nothing away.

use std::fs;
use std::path::{Path, PathBuf};

use sandbar_core::secret::sha256_hex;
use sandbar_tests::host::{fixture, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A host with a directory of engines that the test may change, with the fixture in it.
fn host() -> (TempDir, TestHost) {
    let dir = tempfile::tempdir().unwrap();
    for file in ["fixture.wasm", "engines.lock"] {
        fs::copy(fixture("").engines.join(file), dir.path().join(file)).unwrap();
    }
    let host = TestHost::start_with(Options { engines: dir.path().to_owned(), ..fixture("variable = \"\"") });
    (dir, host)
}

pub(crate) fn engines(host: &TestHost) -> Value {
    host.nobody().get("/readyz").body["engines"].clone()
}

/// Waits until `/readyz` says something of an engine.
pub(crate) fn wait_for(host: &TestHost, engine: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    wait(what, || is(&engines(host)[engine]));
    engines(host)[engine].clone()
}

fn says(word: &'static str) -> impl Fn(&Value) -> bool {
    move |engine| engine["why"].as_str().is_some_and(|why| why.contains(word))
}

/// The same component with other bytes.
fn another(component: &Path) -> Vec<u8> {
    let mut bytes = fs::read(component).unwrap();
    // A section that says nothing: its kind, its length, the length of its name, and the name.
    bytes.extend(b"\0\x05\x04test");
    bytes
}

/// Puts a file in place in one step.
pub(crate) fn replace(path: &Path, content: &[u8]) {
    let new = path.with_file_name(".new");
    fs::write(&new, content).unwrap();
    fs::rename(new, path).unwrap();
}

fn pin(dir: &Path, old: &str, new: &[u8]) {
    let lock = dir.join("engines.lock");
    let text = fs::read_to_string(&lock).unwrap();
    assert!(text.contains(old));
    replace(&lock, text.replace(old, &sha256_hex(new)).as_bytes());
}

fn edit(host: &TestHost, from: &str, to: &str) {
    let text = fs::read_to_string(host.config()).unwrap();
    assert!(text.contains(from), "{text}");
    replace(&host.config(), text.replacen(from, to, 1).as_bytes());
}

#[test]
fn a_bad_component_takes_nothing_away_and_a_good_one_is_used() {
    let (dir, host) = host();
    let file: PathBuf = dir.path().join("fixture.wasm");
    let good = another(&file);
    let old = engines(&host)["fixture"]["sha256"].as_str().unwrap().to_owned();
    let agent = host.developer("dev-1");
    let first = agent.call("request_sandbox", &json!({})).evidence().clone();

    replace(&file, b"no component");
    let shown = wait_for(&host, "fixture", "the reason", says("pinned"));
    assert_eq!((&shown["state"], &shown["sha256"]), (&json!("serving"), &json!(old)));
    host.developer("dev-2").call("request_sandbox", &json!({})).evidence();

    replace(&file, &good);
    pin(dir.path(), &old, &good);
    let new = json!(sha256_hex(&good));
    let shown = wait_for(&host, "fixture", "the new one", |e| e["sha256"] == new);
    assert_eq!(shown, json!({ "state": "serving", "sha256": new }));
    // What lives goes on, and what is made now is made by the new one.
    assert_eq!(agent.call("request_sandbox", &json!({})).evidence(), &first);
    host.developer("dev-3").call("request_sandbox", &json!({})).evidence();
}

#[test]
fn one_that_is_dropped_in_is_offered_until_it_is_taken_out() {
    let (dir, host) = host();
    let redis = fs::read(Options::default().engines.join("redis.wasm")).unwrap();
    let set = || host.operator().call("set_project", &json!({ "project": "late", "services": ["redis"] }));
    assert_eq!(set().code(), "bad_request");
    // As a copy does it: the beginning first. It is not taken before it has come to rest with its pin.
    fs::write(dir.path().join("redis.wasm"), &redis[..1000]).unwrap();
    wait_for(&host, "redis", "the half to be seen", |e| e["state"] == "pending");
    fs::write(dir.path().join("redis.wasm"), &redis).unwrap();
    let lock = fs::read_to_string(Options::default().engines.join("engines.lock")).unwrap();
    let entry = lock.split_inclusive("\n\n").find(|e| e.contains("redis.wasm")).unwrap();
    let own = fs::read_to_string(dir.path().join("engines.lock")).unwrap();
    replace(&dir.path().join("engines.lock"), format!("{own}\n{entry}").as_bytes());
    let shown = wait_for(&host, "redis", "redis", |e| e["state"] == "serving");
    assert_eq!(shown["sha256"], json!(sha256_hex(&redis)));
    set().evidence();

    fs::remove_file(dir.path().join("redis.wasm")).unwrap();
    wait("redis to go", || engines(&host)["redis"].is_null());
    assert_eq!(set().code(), "bad_request");
    assert_eq!(engines(&host)["fixture"]["state"], "serving");
}

#[test]
fn a_table_is_read_again_and_a_bad_one_changes_nothing() {
    let (_dir, mut host) = host();
    let agent = host.developer("dev-1");
    let image = || {
        let answer = agent.call("request_sandbox", &json!({ "explain": true }));
        answer.evidence()["fixture"]["image"].as_str().unwrap().to_owned()
    };
    let before = image();
    edit(&host, "settings = {", "settings = { image = \"redis:9-test\",");
    wait("the new setting", || image() != before);
    assert_eq!(image(), "redis:9-test");

    edit(&host, "settings = {", "settings = { imgae = \"x\",");
    wait_for(&host, "fixture", "the unknown setting", says("`imgae`"));
    assert_eq!((engines(&host)["fixture"]["state"].clone(), image()), (json!("serving"), "redis:9-test".to_owned()));

    edit(&host, "settings = { imgae = \"x\",", "memory = \"1m\"\nsettings = {");
    wait_for(&host, "fixture", "the memory", says("[engines.fixture] memory"));

    edit(&host, "[engines.fixture]", "[engines.fixture");
    wait_for(&host, "fixture", "the text that is no TOML", says("sandbar.toml"));
    assert_eq!(image(), "redis:9-test");

    // At once where it is asked for, and the host lives on; other tables are not read again, which is said.
    edit(&host, "[engines.fixture\nmemory = \"1m\"\n", "[engines.fixture]\n");
    edit(&host, "enabled = true", "enabled = false");
    host.hang_up();
    wait_for(&host, "fixture", "the reason to go", |e| e["why"].is_null());
    host.wait_for_log("[sandbox] changed in the configuration: that needs a restart").unwrap();
    assert_eq!(image(), "redis:9-test");
}
