//! Engines that change while the host runs: what is good is taken, and what is bad takes nothing away.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbar_core::secret::sha256_hex;
use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, wait};
use sandbar_tests::{Client, Options, TestHost};
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

/// Whoever asks for sandboxes and gives them back until told to stop. What was seen is counted by the engine's hash.
struct Load<'a> {
    host: &'a TestHost,
    seen: Mutex<BTreeMap<String, usize>>,
    ended: AtomicBool,
}

impl Load<'_> {
    /// One agent's part.
    fn go_on(&self, agent: &Client, name: &str) {
        let (engine, prefix) = (format!("{}.engine", self.host.namespace), self.host.namespace.to_uppercase());
        while !self.ended.load(Ordering::Relaxed) {
            let first = agent.call("request_sandbox", &json!({})).evidence().clone();
            let shown = docker(["inspect", &self.host.container("fix", name)]).unwrap();
            let container = &serde_json::from_str::<Value>(&shown).unwrap()[0]["Config"];
            let hash = container["Labels"][&engine].as_str().unwrap().to_owned();
            // The variables, the container and its label are all of one recipe.
            let redis = container["Entrypoint"][2].as_str().unwrap().contains("redis-server");
            let env = first["fixture"]["env"].as_object().unwrap();
            let has = |name: &str| env.contains_key(&format!("{prefix}_TEST_{name}"));
            assert_eq!((has("REDIS_HOST"), has("FIXTURE_HOST")), (redis, !redis), "{env:?}");
            // And stay so, whatever was loaded meanwhile.
            assert_eq!(agent.call("request_sandbox", &json!({})).evidence(), &first);
            agent.call("release_sandbox", &json!({})).evidence();
            *self.seen.lock().unwrap().entry(hash).or_default() += 1;
        }
    }

    /// Waits until sandboxes come from an engine that was not there before.
    fn wait_for(&self, hash: &str) {
        let count = || self.seen.lock().unwrap().get(hash).copied().unwrap_or_default();
        let before = count();
        wait("sandboxes of the other engine", || count() > before + 1);
    }
}

#[test]
fn whoever_asks_during_a_swap_gets_the_old_or_the_new_and_never_an_error() {
    let mut host = TestHost::prepare(Options {
        services: vec!["fixture"],
        engines: tempfile::tempdir().unwrap().path().to_owned(),
        more: "[engines.fixture]\ncomponent = \"one.wasm\"\nslug = \"fix\"\ngrant.variables = [\"REDIS_URL\"]\n\
               grant.images = [\"redis:*\", \"redis/redis-stack-server:*\"]\n"
            .to_owned(),
        ..Options::default()
    });
    edit(&host, "[plugins]\n", "[plugins]\nallow_unpinned = true\n");
    let old = fs::read(fixture("").engines.join("fixture.wasm")).unwrap();
    let new = fs::read(Options::default().engines.join("redis.wasm")).unwrap();
    let (old_hash, new_hash) = (sha256_hex(&old), sha256_hex(&new));
    let (one, two) = (host.dir.path().join("one.wasm"), host.dir.path().join("two.wasm"));
    fs::write(&one, &old).unwrap();
    fs::write(&two, &old).unwrap();
    host.up().unwrap();

    let agents = ["dev-1", "dev-2"].map(|name| (host.developer(name), name));
    // One that lives through everything.
    let long = host.developer("dev-3");
    let before = long.call("request_sandbox", &json!({})).evidence().clone();
    let load = Load { host: &host, seen: Mutex::default(), ended: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        // It ends too when this fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(&load.ended);
        for (agent, name) in &agents {
            scope.spawn(|| load.go_on(agent, name));
        }
        load.wait_for(&old_hash);

        // In one step.
        replace(&one, &new);
        wait_for(&host, "fixture", "the new one", |e| e["sha256"] == new_hash);
        load.wait_for(&new_hash);
        // By the table alone: another file, and in the same moment its pin.
        edit(&host, "component = \"one.wasm\"", &format!("component = \"two.wasm\"\nsha256 = \"{old_hash}\""));
        wait_for(&host, "fixture", "the old one", |e| e["sha256"] == old_hash);
        load.wait_for(&old_hash);
        // Back without a pin, in pieces.
        edit(&host, &format!("\nsha256 = \"{old_hash}\""), "");
        wait_for(&host, "fixture", "the table without a pin", |e| e["why"].is_null());
        let again = |line: &&Value| line["fields"]["message"] == "loading the engines again";
        wait("the table to be taken", || host.log().iter().filter(again).count() >= 3);
        let mut file = fs::File::create(&two).unwrap();
        for piece in new.chunks(new.len() / 12) {
            file.write_all(piece).unwrap();
            // This is how slow the writer is.
            std::thread::sleep(Duration::from_millis(300));
        }
        drop(file);
        wait_for(&host, "fixture", "the new one", |e| e["sha256"] == new_hash);
        load.wait_for(&new_hash);
        // A writer that stops in the middle until the host has looked: what is there is no engine, and the other goes on.
        fs::write(&two, &old[..old.len() / 2]).unwrap();
        let shown = wait_for(&host, "fixture", "the half", says("truncated"));
        assert_eq!((&shown["state"], &shown["sha256"]), (&json!("serving"), &json!(new_hash)));
        load.wait_for(&new_hash);
        fs::write(&two, &old).unwrap();
        wait_for(&host, "fixture", "the whole", |e| e["sha256"] == old_hash);
        load.wait_for(&old_hash);
    });
    let seen: BTreeSet<_> = load.seen.lock().unwrap().keys().cloned().collect();
    assert_eq!(seen, BTreeSet::from([new_hash.clone(), old_hash.clone()]), "and of nothing else");
    assert_eq!(long.call("request_sandbox", &json!({})).evidence(), &before, "what lives keeps what it was made by");
    let loaded: Vec<_> = host.log().into_iter().filter(|l| l["fields"]["message"] == "engine loaded").collect();
    let hashes: Vec<_> = loaded.iter().map(|line| line["fields"]["engine"].as_str().unwrap()).collect();
    assert!(hashes.iter().all(|hash| *hash == old_hash || *hash == new_hash), "{hashes:?}");
    for agent in agents.iter().map(|(agent, _)| agent).chain([&long]) {
        agent.call("release_sandbox", &json!({})).evidence();
    }
    host.wait_until_empty();
}
