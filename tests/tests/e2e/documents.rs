//! Every command in the documents is run, in the order of its page, in a directory of the sources, with the binary on the path.
//! A block of `sh` whose first line is `# not run by the tests: <why>` is left out, and counted.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use sandbar_tests::Options;
use sandbar_tests::docker::{docker, with_label};
use sandbar_tests::host::{FULL_PG, image, sandbar, sources};

/// What says that a block is not run.
const NOT_RUN: &str = "# not run by the tests: ";

/// Pages with commands, and how many of their blocks are not run.
const PAGES: [(&str, usize); 4] =
    [("README.md", 2), ("docs/agents.md", 0), ("docs/engines.md", 0), ("docs/operators.md", 3)];

/// A page, as a script whose lines are where they are in the page.
struct Script {
    text: String,
    run: usize,
    not_run: usize,
}

fn script(page: &str) -> Script {
    let (mut script, mut lines) = (Script { text: String::new(), run: 0, not_run: 0 }, page.lines().peekable());
    while let Some(line) = lines.next() {
        script.text.push('\n');
        if line != "```sh" {
            continue;
        }
        let runs = !lines.peek().is_some_and(|first| first.starts_with(NOT_RUN));
        *if runs { &mut script.run } else { &mut script.not_run } += 1;
        for line in lines.by_ref() {
            if line == "```" {
                break;
            }
            script.text.push_str(if runs { line } else { "" });
            script.text.push('\n');
        }
        script.text.push('\n');
    }
    script
}

/// The mapping to the images of this machine, for a namespace.
pub(crate) fn images(namespace: &str) -> String {
    let of = |upstream: &str, local: &str| format!("{upstream:?} = {:?}\n", image(local).unwrap());
    let full = of(&format!("{namespace}-sandbox-pg:latest"), FULL_PG);
    let shipped = ["postgres:16-alpine", "redis:8-alpine", "mongo:8", "redis/redis-stack-server:latest"];
    let upstream = shipped.into_iter().chain(["mariadb:11", "nats:2-alpine"]);
    let table: String = upstream.map(|name| of(name, name)).collect();
    // A box runs anything that has a shell.
    let boxes: String = ["debian:12-slim", "node:22"].map(|name| of(name, "redis:8-alpine")).concat();
    format!("[images]\n{table}{full}{boxes}")
}

/// Runs a page's commands; `rename` says what is called otherwise here, beside the port. Answers what they have printed.
///
/// Where no registry is in reach a host gets the images of this machine: in `local.toml`, and by a `sandbar` that adds
/// them to the configuration it serves.
pub(crate) fn run(name: &str, page: &str, namespace: &str, rename: &[(&str, &str)]) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let script = script(page);
    assert!(script.run > 0, "{name} has commands");
    let replace = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    let script = rename.iter().chain([&("7070", port.as_str())]).fold(script.text, replace);
    // Always the same directory: it is a part of how everything is compiled, which takes minutes for the first time.
    let target = sandbar().parent().unwrap().parent().unwrap().to_owned();
    let dir = target.join("documents").join(name.replace(['/', '.'], "-"));
    let _ = fs::remove_dir_all(&dir);
    for inner in ["bin", "home/.config/sandbar", "work"] {
        fs::create_dir_all(dir.join(inner)).unwrap();
    }
    let work = dir.join("work");
    for entry in fs::read_dir(sources().join("..")).unwrap().flatten() {
        // What somebody's own host has left there is no source.
        if ["Cargo.toml", "Cargo.lock", "docs", "engines", "host", "sdk", "tests", "wit"]
            .iter()
            .any(|n| entry.file_name() == *n)
        {
            symlink(fs::canonicalize(entry.path()).unwrap(), work.join(entry.file_name())).unwrap();
        }
    }
    fs::write(work.join("images.toml"), images(namespace)).unwrap();
    let engines = Options::default().engines;
    let local = format!("[host]\nnamespace = {namespace:?}\n[plugins]\ndir = {engines:?}\n{}", images(namespace));
    fs::write(dir.join("home/.config/sandbar/local.toml"), local).unwrap();
    let binary = dir.join("bin/sandbar");
    let adds = "[ \"${1-}\" != serve ] || grep -qs '^\\[images\\]' sandbar.toml || cat images.toml >> sandbar.toml";
    fs::write(&binary, format!("#!/bin/sh\n{adds}\nexec {} \"$@\"\n", sandbar().display())).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    // What it started ends with it, however it ends.
    let begin = "set -Eeuo pipefail; trap 'kill $(jobs -p) 2>/dev/null && wait || true' EXIT; \
                 trap 'echo \"FAILED at line $LINENO: $BASH_COMMAND\" >&2' ERR;";
    let output = Command::new("bash")
        .args(["-c", &format!("{begin}{script}")])
        .current_dir(&work)
        .stdin(Stdio::null())
        .env("PATH", format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap()))
        .env("HOME", dir.join("home"))
        .env("SANDBAR_HOME", dir.join("home/host"))
        .env("CARGO_HOME", std::env::var("CARGO_HOME").unwrap_or(format!("{}/.cargo", std::env::var("HOME").unwrap())))
        .env(
            "RUSTUP_HOME",
            std::env::var("RUSTUP_HOME").unwrap_or(format!("{}/.rustup", std::env::var("HOME").unwrap())),
        )
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("XDG_CONFIG_HOME")
        .output()
        .unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let failed = err.lines().find_map(|line| line.strip_prefix("FAILED at line ")).unwrap_or("?");
    let log = fs::read_to_string(dir.join("home/host/host.log")).unwrap_or_default();
    let left = with_label(&format!("{namespace}.sandbox=1")).unwrap();
    for line in &left {
        let (kind, name) = line.split_once(' ').unwrap();
        let name = name.split(' ').next().unwrap();
        let _ = docker(if kind == "container" { ["rm", "--force", name] } else { [kind, "rm", name] });
    }
    let _ = docker(["network", "rm", &format!("{namespace}_default")]);
    assert!(output.status.success(), "{name}:{failed}\n{out}\n{err}\n{log}");
    assert_eq!(
        left.iter().filter(|line| !line.starts_with("network")).count(),
        0,
        "{name} left {left:?}\n{out}\n{err}"
    );
    out
}

fn page(name: &str) -> String {
    fs::read_to_string(sources().join("..").join(name)).unwrap()
}

#[test]
fn pages_say_which_commands_are_not_run() {
    let mut counted = BTreeMap::new();
    let docs = fs::read_dir(sources().join("../docs")).unwrap().flatten();
    let names =
        docs.map(|entry| format!("docs/{}", entry.file_name().to_string_lossy())).chain(["README.md".to_owned()]);
    for name in names.filter(|name| Path::new(name).extension().is_some_and(|e| e == "md")) {
        let page = page(&name);
        for other in ["```console", "```bash", "```shell", "```sh "] {
            assert!(!page.contains(other), "{name}: commands are in blocks of `sh` alone");
        }
        counted.insert(name.clone(), script(&page).not_run);
    }
    assert_eq!(counted, PAGES.map(|(name, not_run)| (name.to_owned(), not_run)).into());
}

#[test]
fn a_command_that_fails_is_named() {
    let page = "# A page\n\n```sh\ntrue\n```\n\n```sh\n# not run by the tests: it fails\nfalse\n```\n\n```sh\ntrue\nls /nowhere\n```\n";
    let failed = std::panic::catch_unwind(|| run("page.md", page, "none", &[])).unwrap_err();
    let said = failed.downcast::<String>().unwrap();
    assert!(said.starts_with("page.md:14: ls /nowhere\n"), "{said}");
}

#[test]
fn the_commands_of_the_readme_work() {
    let ns = format!("d{:x}r", std::process::id());
    let (network, container) = (format!("{ns}_default"), format!("{ns}-sandbox-"));
    let quoted = format!("namespace = {ns:?}");
    let rename =
        [("namespace = \"sandbar\"", quoted.as_str()), ("sandbar_default", &network), ("sandbar-sandbox-", &container)];
    let out = run("README.md", &page("README.md"), &ns, &rename);
    for said in [
        "postgresql://",
        "PGPASSWORD=",
        "local",
        "Ready to accept connections",
        "\"ready\":true",
        "# What counts",
        ".0.1\n",
    ] {
        assert!(out.contains(said), "no {said:?} in {out}");
    }
}

#[test]
fn the_commands_for_operators_work() {
    let ns = format!("d{:x}o", std::process::id());
    let quoted = format!("namespace = {ns:?}");
    let rename = [("namespace = \"sandbar\"", quoted.as_str())];
    let out = run("docs/operators.md", &page("docs/operators.md"), &ns, &rename);
    for said in [
        "service postgres (pg): ",
        "[engines.node]",
        "was taken out of sandbar.toml",
        "sandbar_requests_total{verb=",
        "\"be-dev-1\"",
    ] {
        assert!(out.contains(said), "no {said:?} in {out}");
    }
}

#[test]
fn the_commands_for_agents_work() {
    let ns = format!("d{:x}a", std::process::id());
    let (quoted, prefix) = (format!("namespace = {ns:?}"), format!("{}_SANDBOX_", ns.to_uppercase()));
    let rename = [("namespace = \"sandbar\"", quoted.as_str()), ("SANDBAR_SANDBOX_", &prefix)];
    let out = run("docs/agents.md", &page("docs/agents.md"), &ns, &rename);
    for said in ["\"retryable\":false", "INSERT 0 1", "\"exit_code\":0", "\"content\":\"hello\\n\""] {
        assert!(out.contains(said), "no {said:?} in {out}");
    }
}

#[test]
fn every_key_of_the_configuration_is_in_the_page_for_operators() {
    let page = page("docs/operators.md");
    let table = page.split_once("## Configuration").unwrap().1.split_once("\n## ").unwrap().0;
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../../docs/config.schema.json")).unwrap();
    let of = |schema: &serde_json::Value| -> Vec<_> {
        schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
    };
    let tables = of(&schema);
    assert_eq!(tables.len(), 14);
    for name in &tables {
        assert!(table.contains(&format!("`[{name}")), "[{name}] is not in the table");
    }
    for (name, keys) in schema["$defs"].as_object().unwrap() {
        for key in of(keys) {
            let told = table.contains(&format!("`{key}`")) || table.contains(&format!("{{ {key} = "));
            assert!(told, "`{key}` of {name} is not in the table");
        }
    }
}

#[test]
fn every_metric_is_in_the_page_for_operators() {
    let constants = fs::read_to_string(sources().join("../host/core/src/metric.rs")).unwrap();
    let mut told: Vec<_> = page("docs/operators.md")
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `sandbar_")?.split('`').next()?.to_owned()))
        .collect();
    let mut counted: Vec<_> =
        constants.split("\"sandbar_").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    told.sort();
    counted.sort();
    assert!(told.len() > 3);
    assert_eq!(told, counted);
}
