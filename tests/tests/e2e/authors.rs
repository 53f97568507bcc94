//! The author's path: making, inspecting, testing and benching engines with the binary alone, and the guide for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use sandbar_tests::docker::{run_beside, with_label};
use sandbar_tests::host::{fixture, image, python_engine, sandbar, sources, third_party};
use sandbar_tests::{Options, TestHost};
use serde_json::Value;

use crate::documents;

/// Runs `sandbar engine …`.
pub(crate) fn engine(args: &[&str]) -> Output {
    Command::new(sandbar()).arg("engine").args(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A namespace that no other test has.
fn namespace() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let id = format!("a{:x}x{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    id[..id.len().min(12)].to_owned()
}

/// The mapping to the images of this machine, in a directory, for a namespace.
fn images(dir: &Path, namespace: &str) -> String {
    let path = dir.join("images.toml");
    fs::write(&path, documents::images(namespace)).unwrap();
    path.display().to_string()
}

/// Tests a component on real containers, and answers what was found out: name and verdict, with the detail.
fn kit(component: &Path, more: &[&str]) -> (bool, Vec<(String, String, String)>) {
    let (dir, namespace) = (tempfile::tempdir().unwrap(), namespace());
    let (component, images) = (component.display().to_string(), images(dir.path(), &namespace));
    let mut args = vec!["test", &component, "--docker", "--images", &images, "--namespace", &namespace, "--json"];
    args.extend(more);
    let output = engine(&args);
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)));
    assert_eq!(said["passed"], output.status.success());
    assert_eq!(with_label(&format!("{namespace}.sandbox=1")).unwrap(), Vec::<String>::new());
    let field = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    let checks = said["checks"].as_array().unwrap().iter();
    let checks = checks.map(|c| (field(c, "name"), field(c, "verdict"), field(c, "detail"))).collect();
    (output.status.success(), checks)
}

/// Expects that a shipped engine passes, with these checks among what is good.
fn passes(name: &str, more: &[&str], good: &[&str]) {
    passes_as(&Options::default().engines.join(format!("{name}.wasm")), more, good);
}

fn passes_as(component: &Path, more: &[&str], good: &[&str]) {
    let (passed, checks) = kit(component, more);
    assert!(passed, "{checks:#?}");
    for name in ["load", "feature: unknown", "memory", "sandbox: no feature", "teardown"].iter().chain(good) {
        assert!(checks.iter().any(|(n, v, _)| n == name && v == "ok"), "no {name} in {checks:#?}");
    }
}

/// What a service with an account is asked.
const ACCOUNT: [&str; 6] =
    ["password: right", "password: wrong", "password: empty", "address", "neighbour", "retained: anew"];

#[test]
fn postgres_passes() {
    let more = ["verify: `vector`", "sandbox: 5 features together", "sandbox: no feature, superuser"];
    passes("postgres", &[], &[&ACCOUNT[..], &more].concat());
}

#[test]
fn redis_passes() {
    // The stand-in for the image with modules has this one.
    passes("redis", &["--features", "search"], &[&ACCOUNT[..], &["verify: `search`"]].concat());
}

#[test]
fn mongo_passes() {
    passes("mongo", &[], &ACCOUNT);
}

#[test]
fn box_passes() {
    passes("box", &[], &["retained: asleep", "retained: anew"]);
}

#[test]
fn mariadb_of_somebody_else_passes() {
    let more = ["verify: `archive`", "verify: `events`", "grants", "sandbox: no feature, superuser"];
    passes_as(&third_party("mariadb"), &[], &[&ACCOUNT[..], &more].concat());
}

#[test]
fn nats_of_somebody_else_passes() {
    passes_as(&third_party("nats"), &[], &[&ACCOUNT[..], &["verify: `jetstream`", "grants"]].concat());
}

#[test]
fn an_engine_in_python_passes() {
    let good = ["password: right", "password: wrong", "password: empty", "address", "neighbour", "verify: `counters`"];
    passes_as(&python_engine(), &[], &good);
}

#[test]
fn an_engine_in_python_is_compiled_once_and_serves() {
    let component = python_engine();
    let hash = sandbar_core::secret::sha256_hex(fs::read(&component).unwrap());
    let engine = format!(
        "[engines.pycache]\ncomponent = {component:?}\nsha256 = \"{hash}\"\n\
         grant = {{ images = [\"redis:*\"], variables = [\"PYCACHE_URL\"] }}\n"
    );
    let shop = "extensions = { pycache = [\"counters\"] }".to_owned();
    let mut host = TestHost::prepare(Options { services: vec!["pycache"], shop, more: engine, ..Options::default() });
    let start = |host: &mut TestHost| {
        let begun = Instant::now();
        host.up().unwrap();
        begun.elapsed()
    };
    let first = start(&mut host);
    let evidence =
        host.developer("dev-1").call("request_sandbox", &serde_json::json!({})).evidence()["pycache"].clone();
    assert_eq!(evidence["available_extensions"], serde_json::json!(["counters"]));
    let env = serde_json::from_value(evidence["env"].clone()).unwrap();
    let count = ["sh", "-c", "redis-cli -u \"$PYCACHE_URL\" --no-auth-warning fcall count 1 visits"];
    assert_eq!(run_beside(&host.network(), &image("redis:8-alpine").unwrap(), &env, &count).unwrap(), "1");
    host.down().unwrap();
    // Nothing was compiled the second time, which is nearly all of the first.
    let second = start(&mut host);
    assert!(2 * second < first, "{first:?}, and again {second:?}");
}

/// A component of which the test decides what it runs.
fn odd() -> PathBuf {
    fixture("").engines.join("fixture.wasm")
}

#[test]
fn a_service_that_lets_anybody_in_is_found_out() {
    let probe = "--setting=probe=redis-cli -h {address} -p 4321 ping | grep -q PONG";
    let run = "--setting=run=exec redis-server --port 4321 --protected-mode no --save ''";
    let (passed, checks) = kit(&odd(), &[run, probe]);
    assert!(!passed);
    let verdict = |name: &str| &checks.iter().find(|(n, ..)| n == name).unwrap_or_else(|| panic!("{checks:#?}")).1;
    for (name, expected) in [
        ("sandbox: no feature", "ok"),
        ("password: right", "ok"),
        ("password: wrong", "failed"),
        ("password: empty", "failed"),
        ("address", "ok"),
        ("neighbour", "failed"),
        // It is confirmed anywhere, and the other one nowhere.
        ("verify: `good`", "failed"),
        ("sandbox: `bad`", "failed"),
        ("feature: unknown", "failed"),
        ("variables", "failed"),
        ("teardown", "ok"),
    ] {
        assert_eq!(verdict(name), expected, "{name}: {checks:#?}");
    }
}

#[test]
fn a_probe_that_asks_the_loopback_is_found_out() {
    let probe = "--setting=probe=redis-cli -p 4321 -a \"$ACCOUNT_PASSWORD\" ping 2>/dev/null | grep -q PONG";
    let server = "exec redis-server --port 4321 --protected-mode no --save '' --requirepass $ACCOUNT_PASSWORD";
    let run = format!("--setting=run={server}");
    let (_, checks) = kit(&odd(), &[&run, probe]);
    let found = checks.iter().find(|(name, ..)| name == "address").unwrap_or_else(|| panic!("{checks:#?}"));
    assert_eq!(found.1, "failed", "{checks:#?}");
    let wrong = checks.iter().find(|(name, ..)| name == "password: wrong").unwrap();
    assert_eq!(wrong.1, "ok", "{checks:#?}");
}

#[test]
fn an_engine_that_cannot_be_loaded_fails_the_test_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let output = engine(&["test", &dir.path().display().to_string()]);
    assert!(!output.status.success());
    let said = text(&output.stdout);
    assert!(said.contains("FAILED") && said.contains("is not a regular file; name the `.wasm` file"), "{said}");
    assert!(said.contains("0 ok, 1 failed, 0 skipped"), "{said}");
}

#[test]
fn options_that_name_nothing_say_what_there_is() {
    let redis = Options::default().engines.join("redis.wasm").display().to_string();
    for (args, says) in [
        (&["--setting", "imgae=x"][..], &["--setting", "`imgae`", "`full-image`"][..]),
        (&["--setting", "image"], &["name=value"]),
        (&["--docker", "--features", "graph"], &["--features", "`graph`", "`search`"]),
        (&["--docker", "--images", "/nowhere.toml"], &["--images", "/nowhere.toml"]),
        (&["--docker", "--docker-host", "nonsense"], &["--docker"]),
        (&["--docker", "--docker-host", "unix:///nowhere.sock"], &["Docker is needed"]),
    ] {
        let output = engine(&[&["test", &redis], args].concat());
        assert!(!output.status.success(), "{args:?}");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(says.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
}

#[test]
fn inspect_says_what_an_engine_is() {
    let path = Options::default().engines.join("postgres.wasm").display().to_string();
    let output = engine(&["inspect", &path, "--json"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(said["name"], "postgres");
    assert_eq!(said["contract"], serde_json::json!(["1.0.0"]));
    assert_eq!(said["imports"], serde_json::json!([]));
    assert_eq!(said["images"], serde_json::json!(["postgres:16-alpine", "{namespace}-sandbox-pg:latest"]));
    assert_eq!(said["features"].as_array().unwrap().len(), 5);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(said["sha256"], sandbar_core::secret::sha256_hex(&bytes));
    assert_eq!(said["size"]["bytes"], bytes.len());
    let lines = text(&engine(&["inspect", &path]).stdout);
    for line in ["contract   1.0.0", "imports    none", "features   vector: Vectors"] {
        assert!(lines.contains(line), "no {line} in {lines}");
    }
}

#[test]
fn inspect_says_what_can_be_said_of_anything() {
    let dir = tempfile::tempdir().unwrap();
    let component = |text: &str| wat::parse_str(text).unwrap();
    let cases: [(&str, Vec<u8>, &[&str]); 6] = [
        ("empty", vec![], &["is empty", "engine build"]),
        ("text", b"#!/bin/sh\n".to_vec(), &["is text", "engine build"]),
        ("module", b"\0asm\x01\0\0\0".to_vec(), &["core module", "engine build"]),
        (
            "half",
            fs::read(Options::default().engines.join("redis.wasm")).unwrap()[..9000].into(),
            &["truncated", "again"],
        ),
        (
            "future",
            component(
                "(component (import \"wasi:io/poll@0.2.0\" (instance)) (instance $i) (export \"sandbar:engine/engine@2.0.0\" (instance $i)))",
            ),
            &["2.0.0", "speaks version 1.0", "SDK of this host"],
        ),
        (
            "greedy",
            component(
                "(component (import \"evil:host/run\" (instance)) (instance $i) (export \"sandbar:engine/engine@1.0.0\" (instance $i)))",
            ),
            &["evil:host/run", "no authority"],
        ),
    ];
    for (name, bytes, says) in cases {
        let path = dir.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let output = engine(&["inspect", &path.display().to_string()]);
        assert!(!output.status.success(), "{name}");
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(err.lines().count(), 1, "{name}: {err}");
        assert!(says.iter().all(|word| err.contains(word)), "{name}: {err}");
        assert!(out.contains(&sandbar_core::secret::sha256_hex(&bytes)), "{name}: {out}");
        if name == "future" {
            assert!(out.contains("contract   2.0.0") && out.contains("imports    wasi:io/poll@0.2.0"), "{out}");
        }
        let json = engine(&["inspect", &path.display().to_string(), "--json"]);
        let said: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert!(!json.status.success() && said["problem"].as_str().unwrap().contains(says[0]), "{said}");
    }
    for (path, says) in [(dir.path().to_owned(), "is not a regular file"), (dir.path().join("none"), "engine build")] {
        let output = engine(&["inspect", &path.display().to_string()]);
        assert!(!output.status.success() && text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
}

#[test]
fn bench_measures_beside_a_control() {
    let path = Options::default().engines.join("redis.wasm").display().to_string();
    let output = engine(&["bench", &path, "--rounds", "20", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let whats: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["compile", "load from the cache", "describe", "plan, no feature", "plan, 3 features"]);
    for row in rows.as_array().unwrap() {
        for who in ["engine", "control"] {
            assert!(
                row[who]["p50"].as_u64().unwrap() > 0 && row[who]["p99"].as_u64() >= row[who]["p50"].as_u64(),
                "{row}"
            );
        }
    }
}

#[test]
fn a_new_engine_takes_nothing_s_place_and_needs_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("there").display().to_string();
    assert!(engine(&["new", "cache", "--dir", &at]).status.success());
    let again = engine(&["new", "cache", "--dir", &at]);
    assert!(!again.status.success() && text(&again.stderr).contains("exists already"), "{}", text(&again.stderr));
    for (args, says) in [
        (&["new", "Cache"][..], "such as `my-cache`"),
        (&["new", "cache", "--sdk", &at], "the SDK is not there; name the directory `sdk`"),
        (&["new", "cache", "--sdk", "/nowhere"], "name the directory `sdk`"),
    ] {
        let refused = engine(args);
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && said.contains(says) && said.lines().count() == 1, "{args:?}: {said}");
    }
}

#[test]
fn the_guide_works() {
    let page = fs::read_to_string(sources().join("../docs/engines.md")).unwrap();
    let namespace = namespace();
    let out = documents::run("docs/engines.md", &page, &namespace, &[("guide", &namespace)]);
    assert_eq!(out.matches(" ok, 0 failed, ").count(), 2, "{out}");
    for said in [
        "taken out of elsewhere/sandbar.toml",
        "verify: `counters`",
        "neighbour",
        "CACHE_URL",
        "databases = \"16\"",
        "control p99",
        "\n1\n",
    ] {
        assert!(out.contains(said), "no {said:?} in {out}");
    }
}
