//! The operator's path: engines are added to a configuration, listed and taken out of it, and do no more than was granted.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use sandbar_core::secret::sha256_hex;
use sandbar_tests::host::{fixture, sandbar};
use sandbar_tests::{Options, TestHost};
use serde_json::json;
use tempfile::TempDir;

use crate::authors::{engine, text};
use crate::reload::{engines, replace, wait_for};

/// `sandbar engine …` on a configuration, which must succeed; answers what it printed.
fn done(config: &Path, args: &[&str]) -> String {
    let output = run(config, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn run(config: &Path, args: &[&str]) -> Output {
    engine(&[args, &["--config", &config.display().to_string()]].concat())
}

/// What it says in one line, having failed and changed nothing.
fn refused(config: &Path, args: &[&str]) -> String {
    let before = fs::read(config).ok();
    let output = run(config, args);
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{args:?}: {}", text(&output.stdout));
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    assert_eq!(fs::read(config).ok(), before, "{args:?}");
    said
}

fn shipped(name: &str) -> PathBuf {
    Options::default().engines.join(format!("{name}.wasm"))
}

/// Names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn what_waits_is_added_by_the_command_that_is_told_and_taken_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("redis.wasm");
    fs::copy(shipped("redis"), &component).unwrap();
    let host =
        TestHost::start_with(Options { services: vec!["redis"], engines: dir.path().to_owned(), ..Options::default() });
    let before = fs::read_to_string(host.config()).unwrap();
    let shown = engines(&host)["redis"].clone();
    assert_eq!(shown["state"], "pending", "{shown}");
    let command = shown["why"].as_str().unwrap().split('`').nth(1).unwrap().to_owned();
    let args: Vec<_> = command.strip_prefix("sandbar engine ").unwrap().split(' ').collect();

    let said = done(&host.config(), &[&args[..], &["--dry-run"]].concat());
    assert!(said.contains("--dry-run"), "{said}");
    assert_eq!(fs::read_to_string(host.config()).unwrap(), before);
    let said = done(&host.config(), &args);
    let hash = sha256_hex(fs::read(&component).unwrap());
    for may in ["redis:8-alpine, redis/redis-stack-server:latest", "/data", "REDIS_URL", &hash, "[engines.redis]"] {
        assert!(said.contains(may), "no {may} in {said}");
    }
    let after = fs::read_to_string(host.config()).unwrap();
    assert!(after.starts_with(&before) && after.contains(&hash), "{after}");
    wait_for(&host, "redis", "it to serve", |e| e["state"] == "serving");
    let listed = done(&host.config(), &["list"]);
    let row = listed.lines().find(|line| line.starts_with("redis ")).unwrap();
    assert!(row.contains("serving") && row.contains(&hash[..12]) && row.ends_with("redis.wasm"), "{listed}");
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({})).evidence();

    done(&host.config(), &["remove", "redis"]);
    assert_eq!(fs::read_to_string(host.config()).unwrap(), before);
    wait_for(&host, "redis", "it to wait again", |e| e["state"] == "pending");
    assert!(done(&host.config(), &["list"]).contains("pending"));
    // What it made lives on until it is given back.
    assert_eq!(agent.call("release_sandbox", &json!({})).evidence()["released"], json!(["redis"]));
}

/// A directory with a configuration: the engine `cache` in a table, `postgres` by its lock file.
fn workplace() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("engines.d")).unwrap();
    fs::copy(shipped("redis"), at("cache.wasm")).unwrap();
    fs::copy(shipped("postgres"), at("engines.d/postgres.wasm")).unwrap();
    fs::copy(shipped("postgres").with_file_name("engines.lock"), at("engines.d/engines.lock")).unwrap();
    let config = at("sandbar.toml");
    let hash = sha256_hex(fs::read(at("cache.wasm")).unwrap());
    let table = format!(
        "# Ours.\n\n[engines.cache] # the old one\ncomponent = \"cache.wasm\"\nsha256 = \"{hash}\"\nslug = \"cache\"\n\
         grant.images = [\"redis:*\", \"redis/redis-stack-server:*\"]\ngrant.variables = [\"REDIS_URL\"]\n\n\
         [projects.shop]\nservices = [\"cache\"]\nextensions = {{ cache = [\"search\"] }}\n"
    );
    fs::write(&config, table).unwrap();
    (dir, config)
}

#[test]
fn what_cannot_be_added_or_removed_changes_nothing_and_says_what_to_do() {
    let (dir, config) = workplace();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (cache, postgres, mongo) = (at("cache.wasm"), at("pg.wasm"), shipped("mongo").display().to_string());
    fs::copy(shipped("postgres"), &postgres).unwrap();
    fs::write(at("text.wasm"), "#!/bin/sh\n").unwrap();
    fs::write(at("half.wasm"), &fs::read(shipped("mongo")).unwrap()[..20_000]).unwrap();
    let before = names(dir.path());
    let (text_file, half, none) = (at("text.wasm"), at("half.wasm"), at("none.wasm"));
    let cases: [(&[&str], &[&str]); 14] = [
        (&["add", &cache, "--name", "cache"], &["[engines.cache]", "already", "`--update`", "`--name`"]),
        (&["add", &postgres], &["`postgres` is there already", "engines.d/postgres.wasm", "`--name`"]),
        (&["add", &postgres, "--name", "other"], &["stays as it is", "same slug `pg`", "set `slug`"]),
        (&["add", &mongo, "--update"], &["no [engines.mongo]", "leave `--update` out"]),
        (&["add", &mongo, "--setting", "imgae=x"], &["stays as it is", "no setting `imgae`", "`image`"]),
        (&["add", &mongo, "--setting", "image=a b"], &["`a b` is not an image reference"]),
        // A project has a feature that this one does not.
        (&["add", &mongo, "--name", "cache", "--update"], &["[projects.shop] extensions", "`search`"]),
        (&["add", &text_file], &["is text", "sandbar engine build"]),
        (&["add", &half], &["truncated", "again"]),
        (&["add", &none], &["none.wasm", "sandbar engine build"]),
        (&["add", &dir.path().display().to_string()], &["is not a regular file", "name the `.wasm` file"]),
        (&["remove", "nothing"], &["no [engines.nothing]", "sandbar engine list"]),
        (&["remove", "postgres"], &["has no table", "engines.d/postgres.wasm", "remove that file"]),
        (&["remove", "cache"], &["`cache` stays", "take it out of [projects.shop] services first"]),
    ];
    for (args, says) in cases {
        let said = refused(&config, args);
        assert!(says.iter().all(|word| said.contains(word)), "{args:?}: {said}");
    }
    for (config, says) in [(at("nowhere.toml"), "there is no"), (at("engines.d"), "is no file")] {
        let said = refused(Path::new(&config), &["add", &mongo]);
        assert!(said.contains(says) && said.contains("name the configuration with --config"), "{said}");
    }
    assert_eq!(names(dir.path()), before, "nothing is left");

    fs::write(&config, "[engines\n").unwrap();
    let output = run(&config, &["add", &mongo]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("sandbar.toml:1:9: ") && said.lines().count() == 1, "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "[engines\n");
}

#[test]
fn an_update_changes_the_pin_and_the_grants_and_nothing_else() {
    let (dir, config) = workplace();
    let mut other = fs::read(shipped("redis")).unwrap();
    // A section that says nothing: its kind, its length, the length of its name, and the name.
    other.extend(b"\0\x05\x04test");
    fs::write(dir.path().join("new.wasm"), &other).unwrap();
    let before = fs::read_to_string(&config).unwrap();
    let new = dir.path().join("new.wasm").display().to_string();
    // What is there now is another file, and how it is admitted is told.
    fs::copy(&new, dir.path().join("cache.wasm")).unwrap();
    let listed = done(&config, &["list"]);
    assert!(listed.contains("is pinned") && listed.contains("cache.wasm --name cache --update`"), "{listed}");
    fs::copy(shipped("redis"), dir.path().join("cache.wasm")).unwrap();
    let text = before.replace("\"redis:*\"", "\"redis:*\", \"mine:*\"");
    fs::write(&config, &text).unwrap();
    let said = done(&config, &["add", &new, "--name", "cache", "--update"]);
    assert!(said.contains("grant.images keeps `mine:*`"), "{said}");
    let after = fs::read_to_string(&config).unwrap();
    let hash = sha256_hex(&other);
    for line in before.lines().filter(|line| !["component", "sha256", "grant."].iter().any(|key| line.starts_with(key)))
    {
        assert!(after.contains(line), "no {line:?} in {after}");
    }
    for line in
        ["\"mine:*\"", "component = \"new.wasm\"", &format!("sha256 = \"{hash}\""), "grant.data_dirs = [\"/data\"]"]
    {
        assert!(after.contains(line), "no {line:?} in {after}");
    }
    assert!(done(&config, &["list"]).contains(&hash[..12]));
}

#[test]
fn the_file_is_replaced_in_one_step_and_stays_what_it_was() {
    let (dir, target) = workplace();
    let config = dir.path().join("link.toml");
    symlink("sandbar.toml", &config).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
    chown(&target, Some(1234), Some(4321)).unwrap();
    let mongo = shipped("mongo").display().to_string();
    let old = fs::read_to_string(&config).unwrap();
    done(&config, &["add", &mongo]);
    let new = fs::read_to_string(&config).unwrap();
    assert_ne!(new, old);
    let is = fs::metadata(&target).unwrap();
    assert_eq!((is.mode() & 0o7777, is.uid(), is.gid()), (0o640, 1234, 4321));
    assert!(config.is_symlink() && names(dir.path()).iter().all(|name| !name.starts_with('.')));

    // Whoever reads meanwhile sees all of one or all of the other.
    let ended = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0_u32; 2];
            while !ended.load(Ordering::Relaxed) {
                match fs::read_to_string(&config).unwrap() {
                    text if text == old => seen[0] += 1,
                    text if text == new => seen[1] += 1,
                    other => panic!("{other}"),
                }
            }
            seen
        });
        for _ in 0..3 {
            done(&config, &["remove", "mongo"]);
            done(&config, &["add", &mongo]);
        }
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(seen.iter().all(|n| *n > 0), "{seen:?}");

    fs::set_permissions(&target, Permissions::from_mode(0o440)).unwrap();
    let said = refused(&config, &["remove", "mongo"]);
    assert!(said.contains("is read-only") && said.contains("chmod u+w"), "{said}");
    fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();

    // Even root is refused where it may not pass over permissions.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o555)).unwrap();
    let output = Command::new("setpriv")
        .args(["--bounding-set=-dac_override", "--inh-caps=-dac_override"])
        .arg(sandbar())
        .args(["engine", "remove", "mongo", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.lines().count() == 1, "{said}");
    assert!(said.contains("stays as it is") && said.contains("run this as who may write there"), "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), new);
}

#[test]
fn an_update_that_asks_for_more_waits_until_each_line_that_is_told_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let component = dir.path().join("fixture.wasm");
    fs::copy(fixture("").engines.join("fixture.wasm"), &component).unwrap();
    let options = Options { services: vec!["fixture"], engines: dir.path().to_owned(), ..Options::default() };
    let mut host = TestHost::start_with(options);
    done(&host.config(), &["add", &component.display().to_string()]);
    let old = wait_for(&host, "fixture", "it to serve", |e| e["state"] == "serving")["sha256"].clone();
    let request = |host: &TestHost, agent: &str| {
        host.developer(agent).call("request_sandbox", &json!({})).evidence()["fixture"].clone()
    };
    let variables =
        |service: &serde_json::Value| service["env"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let before = variables(&request(&host, "dev-1"));

    // What comes as an update is another engine, which asks for other images and variables.
    let update = fs::read(shipped("redis")).unwrap();
    let new = sha256_hex(&update);
    let config = host.config();
    let edit = |from: &str, to: &str| {
        let text = fs::read_to_string(&config).unwrap();
        assert!(text.contains(from), "no {from} in {text}");
        replace(&config, text.replacen(from, to, 1).as_bytes());
    };
    replace(&component, &update);
    edit(old.as_str().unwrap(), &new);
    let told = "this line would allow it: ";
    let mut lines = Vec::new();
    loop {
        let shown = wait_for(&host, "fixture", "what is missing, or nothing", |e| {
            e["sha256"] == new
                || e["why"].as_str().is_some_and(|why| why.contains(told) && !lines.contains(&why.to_owned()))
        });
        if shown["sha256"] == new {
            break;
        }
        assert_eq!((&shown["state"], &shown["sha256"]), (&json!("serving"), &old), "the old one goes on");
        assert_eq!(variables(&request(&host, &format!("late-{}", lines.len()))), before);
        let why = shown["why"].as_str().unwrap().to_owned();
        assert!(host.log().iter().any(|line| line["level"] == "WARN" && line["fields"]["why"] == why), "{why}");
        let (line, table) = why.split_once(told).unwrap().1.rsplit_once(" under ").unwrap();
        assert_eq!(table, "[engines.fixture]");
        let (key, _) = line.split_once(" = ").unwrap();
        let text = fs::read_to_string(host.config()).unwrap();
        let granted = text.lines().find(|l| l.starts_with(key)).unwrap().to_owned();
        edit(&granted, line);
        lines.push(why);
    }
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("REDIS_URL") && lines[1].contains("redis/redis-stack-server:latest"), "{lines:#?}");
    assert_ne!(variables(&request(&host, "dev-2")), before);

    // Only what is kept needs its data's directory, so that is refused before the container and not at load.
    host.down().unwrap();
    edit("[projects.shop]\n", "[projects.shop]\nretained = [\"fixture\"]\n");
    host.up().unwrap();
    let answer = host.developer("dev-3").call("request_sandbox", &json!({}));
    let line = "this line would allow it: grant.data_dirs = [\"/data\"] under [engines.fixture]";
    assert!(answer.error("message").contains(line), "{:#}", answer.body);
}
