//! Components that cannot be admitted, each with the reason on `/readyz`, while the others serve.

use std::fs;

use sandbar_tests::{Options, TestHost};
use serde_json::json;

/// Starts a host with one more engine, whose table and file the test makes, and answers what `/readyz` says about it.
fn state_of(table: &str, component: Option<&[u8]>) -> (String, String) {
    let mut host = TestHost::prepare(Options {
        services: vec!["redis", "odd"],
        more: format!("[engines.odd]\ncomponent = \"odd.wasm\"\n{table}\n[projects.shop-odd]\nservices = [\"odd\"]\n"),
        ..Options::default()
    });
    if let Some(bytes) = component {
        fs::write(host.dir.path().join("odd.wasm"), bytes).unwrap();
    }
    host.up().unwrap();
    let page = host.nobody().get("/readyz");
    assert_eq!(page.status, 200, "one bad engine is not the host's end");
    assert_eq!(page.body["engines"]["redis"]["state"], "serving");
    // The others serve, and what needs this one says why.
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({ "services": ["redis"] })).evidence();
    let answer = agent.call("request_sandbox", &json!({}));
    let odd = &page.body["engines"]["odd"];
    let why = odd["why"].as_str().unwrap_or_default().to_owned();
    assert!(answer.error("message").contains("`odd`") && answer.error("message").contains(&why), "{:#}", answer.body);
    (odd["state"].as_str().unwrap_or_default().to_owned(), why)
}

fn refused(table: &str, component: Option<&[u8]>, why: &[&str]) {
    let (state, said) = state_of(table, component);
    assert_eq!(state, "failed");
    for word in why {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

/// A pin for these bytes.
fn pinned(bytes: &[u8]) -> String {
    format!("sha256 = \"{}\"", sandbar_core::secret::sha256_hex(bytes))
}

fn redis() -> Vec<u8> {
    fs::read(Options::default().engines.join("redis.wasm")).unwrap()
}

#[test]
fn a_missing_file() {
    refused(&pinned(b""), None, &["there is no file", "odd.wasm"]);
    refused("", None, &["there is no file", "odd.wasm"]);
}

#[test]
fn another_hash() {
    let other = "0".repeat(64);
    refused(&format!("sha256 = \"{other}\""), Some(&redis()), &[&other, "SHA-256"]);
}

#[test]
fn a_truncated_file() {
    let half = &redis()[..20_000];
    refused(&pinned(half), Some(half), &["truncated"]);
}

#[test]
fn a_core_module() {
    let module = b"\0asm\x01\0\0\0";
    refused(&pinned(module), Some(module), &["core module", "component"]);
}

#[test]
fn no_webassembly() {
    refused(&pinned(b"#!/bin/sh\n"), Some(b"#!/bin/sh\n"), &["WebAssembly"]);
}

#[test]
fn an_import_that_is_not_allowed() {
    let text = "(component (import \"evil:host/run\" (instance)) (instance $i)
        (export \"sandbar:engine/engine@1.0.0\" (instance $i)))";
    let component = wat::parse_str(text).unwrap();
    refused(&pinned(&component), Some(&component), &["evil:host/run"]);
}

#[test]
fn another_version_of_the_contract() {
    for theirs in ["0.9.0", "2.0.0"] {
        let text = format!("(component (instance $i) (export \"sandbar:engine/engine@{theirs}\" (instance $i)))");
        let component = wat::parse_str(text).unwrap();
        refused(&pinned(&component), Some(&component), &[&format!("version {theirs} of"), "speaks version 1.0"]);
    }
}

#[test]
fn no_grants() {
    // Its pin is right, and nothing was granted.
    let bytes = redis();
    let line = "this line would allow it: grant.images = [\"redis:8-alpine\"] under [engines.odd]";
    refused(&pinned(&bytes), Some(&bytes), &[line]);
}

#[test]
fn a_setting_it_does_not_have() {
    let bytes = redis();
    let table = format!("{}\nsettings = {{ imgae = \"x\" }}\ngrant.images = [\"redis:*\"]", pinned(&bytes));
    refused(&table, Some(&bytes), &["`imgae`", "`image`"]);
}

#[test]
fn one_without_a_pin_waits_to_be_admitted() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("dropped.wasm"), redis()).unwrap();
    let host = TestHost::start_with(Options { services: vec![], engines: dir.path().to_owned(), ..Options::default() });
    let page = host.nobody().get("/readyz");
    let dropped = &page.body["engines"]["dropped"];
    assert_eq!(dropped["state"], "pending", "{:#}", page.body);
    let todo = format!("`sandbar engine add {}`", dir.path().join("dropped.wasm").display());
    assert!(dropped["why"].as_str().unwrap().contains(&todo), "{dropped}");
}

#[test]
fn a_table_without_a_pin_says_how_to_get_one() {
    refused("", Some(&redis()), &["has no pin", "odd.wasm --name odd --update`"]);
}

#[test]
fn development_loads_one_without_a_pin() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("dropped.wasm"), redis()).unwrap();
    let mut host =
        TestHost::prepare(Options { services: vec![], engines: dir.path().to_owned(), ..Options::default() });
    let text = fs::read_to_string(host.config()).unwrap();
    let grants = "[engines.redis]\ncomponent = \"dropped.wasm\"\ngrant.images = [\"redis:*\", \"redis/redis-stack-server:*\"]\n\
                  grant.variables = [\"REDIS_URL\"]\ngrant.data_dirs = [\"/data\"]\n";
    let text = text.replacen("[plugins]\n", "[plugins]\nallow_unpinned = true\n", 1).replacen(
        "[images]",
        &format!("{grants}[images]"),
        1,
    );
    fs::write(host.config(), text).unwrap();
    fs::copy(dir.path().join("dropped.wasm"), host.dir.path().join("dropped.wasm")).unwrap();
    fs::remove_file(dir.path().join("dropped.wasm")).unwrap();
    host.up().unwrap();
    assert_eq!(host.nobody().get("/readyz").body["engines"]["redis"]["state"], "serving");
}

#[test]
fn two_of_one_slug_are_told_with_both_names() {
    let bytes = redis();
    let grants = "grant.images = [\"redis:*\", \"redis/redis-stack-server:*\"]\ngrant.variables = [\"REDIS_URL\"]\n";
    let mut host = TestHost::prepare(Options {
        services: vec![],
        more: format!("[engines.odd]\ncomponent = \"odd.wasm\"\n{}\n{grants}", pinned(&bytes)),
        ..Options::default()
    });
    fs::write(host.dir.path().join("odd.wasm"), bytes).unwrap();
    host.up().unwrap();
    let page = host.nobody().get("/readyz");
    assert_eq!(page.body["engines"]["odd"]["state"], "serving", "{:#}", page.body);
    let both = |text: &str| ["`odd`", "`redis`", "slug"].iter().all(|word| text.contains(word));
    assert!(both(page.body["engines"]["redis"]["why"].as_str().unwrap()), "{:#}", page.body);
    let warned =
        |line: &serde_json::Value| line["level"] == "WARN" && both(line["fields"]["why"].as_str().unwrap_or(""));
    assert_eq!(host.log().iter().filter(|line| warned(line)).count(), 1);
}

#[test]
fn what_is_no_file_is_no_component_and_dot_files_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("folder.wasm")).unwrap();
    fs::write(dir.path().join(".half.wasm"), "half").unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe.wasm")).status().unwrap().success());
    let host = TestHost::start_with(Options { services: vec![], engines: dir.path().to_owned(), ..Options::default() });
    let page = host.nobody().get("/readyz");
    let engines = page.body["engines"].as_object().unwrap();
    assert_eq!(engines.keys().collect::<Vec<_>>(), ["folder", "pipe"]);
    assert!(engines["folder"]["why"].as_str().unwrap().contains("is a directory"), "{:#}", page.body);
    assert!(engines["pipe"]["why"].as_str().unwrap().contains("is a pipe"), "{:#}", page.body);
}
