//! What an operator wrote and cannot have meant: refused at the start, with the key and what to do.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use sandbar_tests::host::{OPERATOR, fixture, image, sandbar};
use sandbar_tests::{Options, TestHost};

/// What a host says that does not start.
fn said(host: &TestHost) -> String {
    let output = host.command().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "it ended well: {said}");
    said
}

fn refused(host: &TestHost, words: &[&str]) {
    let said = said(host);
    for word in words {
        assert!(said.contains(word), "{word} is not in: {said}");
    }
}

/// A host with a text of its configuration replaced.
fn with(from: &str, to: &str) -> TestHost {
    let host = TestHost::prepare(Options::default());
    let text = fs::read_to_string(host.config()).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(host.config(), text.replacen(from, to, 1)).unwrap();
    host
}

#[test]
fn the_binary_says_its_name() {
    let output = Command::new(sandbar()).arg("--version").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with("sandbar ") && output.status.success(), "{said}");
}

#[test]
fn addresses_and_tokens_say_what_they_are() {
    let listen = "listen = [\"127.0.0.1:0\"]";
    refused(&with(listen, "listen = []"), &["[host] listen"]);
    refused(&with(listen, "listen = [\"localhost:7171\"]"), &["`localhost:7171`", "IP address and a port"]);
    let token = "operator_token = { env = \"TEST_OPERATOR\" }";
    refused(&with(token, "operator_token = \"abc\""), &["{ file = … }, { env = … } or { sha256 = … }"]);
}

#[test]
fn numbers_and_lists_that_cannot_be_meant() {
    let host = TestHost::prepare(Options {
        host: "allowed_hosts = [\"http://x/\"]\n".to_owned(),
        sandbox: "memory = 512\nmax_live = 0\nroles = []\n".to_owned(),
        more: "[janitor]\nevery_secs = 0\n".to_owned(),
        ..Options::default()
    });
    refused(
        &host,
        &[
            "[host] allowed_hosts: `http://x/`",
            "[sandbox] memory: it was read as 512 bytes",
            "[sandbox] max_live",
            "[sandbox] roles",
            "[janitor] every_secs",
        ],
    );
}

#[test]
fn docker_s_settings_are_named() {
    for (setting, words) in [
        ("network = \"no network\"", ["[docker] `network`", "`no network`"]),
        ("host = \"docker.internal\"", ["[docker] `host`", "unix://"]),
    ] {
        refused(&TestHost::prepare(Options { docker: setting.to_owned(), ..Options::default() }), &words);
    }
}

#[test]
fn no_engines_are_told_with_how_to_get_some() {
    let dir = tempfile::tempdir().unwrap();
    let options = |engines| Options { engines, ..Options::default() };
    let build = "sandbar engine build";
    refused(&TestHost::prepare(options(dir.path().join("none"))), &["no service `postgres`", "is missing", build]);
    refused(&TestHost::prepare(options(dir.path().to_owned())), &["has no component", build]);
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&TestHost::prepare(options(file)), &["is no directory", build]);
}

#[test]
fn a_gate_s_variables_have_proper_names() {
    let host =
        TestHost::prepare(Options { more: "[projects.p]\ngate_env = { \"A B\" = \"x\" }\n".to_owned(), ..fixture("") });
    refused(&host, &["[projects.p] gate_env", "`A B`"]);
}

#[test]
fn a_token_file_holds_one_word() {
    let mut host = with("{ env = \"TEST_OPERATOR\" }", "{ file = \"operator.token\" }");
    let file = host.dir.path().join("operator.token");
    fs::write(&file, "two words of a token\n").unwrap();
    refused(&host, &["[host] operator_token", "operator.token", "white space"]);
    fs::write(&file, format!("\u{feff}{OPERATOR}\r\n")).unwrap();
    host.up().unwrap();
    assert_eq!(host.operator().call("list_agents", &serde_json::json!({})).status, 200);
}

#[test]
fn a_directory_that_holds_something_else_is_no_state_directory() {
    let host = with("[host]\n", "[host]\nstate_dir = \"home\"\n");
    let home = host.dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter.txt"), "").unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    refused(&host, &["[host] state_dir", "`letter.txt`"]);
    assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_damaged_state_file_is_told_once_with_what_to_do() {
    let host = TestHost::prepare(Options::default());
    fs::create_dir(host.dir.path().join("state")).unwrap();
    let file = host.dir.path().join("state/state.sqlite");
    fs::write(&file, "no database".repeat(1000)).unwrap();
    let said = said(&host);
    assert_eq!(said.matches("not a database").count(), 1, "{said}");
    assert!(said.contains("state.sqlite") && said.contains("damaged") && said.contains("away"), "{said}");
}

#[test]
fn projects_that_nobody_declared_are_warned_of() {
    let mut host = TestHost::prepare(Options {
        more: "[orchestrators.late]\ntoken = { env = \"TEST_LATE\" }\nprojects = [\"shop\", \"later\"]\n".to_owned(),
        ..fixture("")
    });
    host.set_env("TEST_LATE", "late-orchestrator-token");
    host.up().unwrap();
    let log = host.log();
    let says = |line: &&serde_json::Value| {
        line["fields"]["message"]
            .as_str()
            .is_some_and(|m| m.starts_with("[orchestrators.late] projects: ") && m.contains("`later`"))
    };
    let warned: Vec<_> = log.iter().filter(|l| l["level"] == "WARN").filter(says).collect();
    assert_eq!(warned.len(), 1, "{log:?}");
    assert!(!log.iter().any(|l| l["fields"]["message"].as_str().is_some_and(|m| m.contains("`shop`"))));
}

#[test]
fn check_says_everything_at_once_and_where() {
    let check = |host: &TestHost| {
        let output = host.subcommand("check").output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.success(), said)
    };
    let place = |host: &TestHost, text: &str| {
        let config = fs::read_to_string(host.config()).unwrap();
        let line = config.lines().position(|line| line.starts_with(text)).unwrap() + 1;
        format!("{}:{line}:1: ", host.config().display())
    };
    let image = image("redis:8-alpine").unwrap();
    let more = format!(
        "[retention]\nidle_sleep_secs = 5\ndelete_after_secs = 0\nmax_live = 0\n\
         [engines.box]\nsettings = {{ image = {image:?} }}\ngrant.images = [{image:?}]\n"
    );
    let host = TestHost::prepare(Options { more: more.clone(), ..Options::default() });
    let (content, said) = check(&host);
    assert!(content, "{said}");
    for (key, taken) in [("idle_sleep_secs", 300), ("delete_after_secs", 1), ("max_live", 1)] {
        let line = format!("{}note: [retention] {key}: ", place(&host, key));
        assert!(said.contains(&line) && said.contains(&format!("and {taken} is taken")), "{line}\n{said}");
    }
    // Nobody has declared what the other orchestrator may work on.
    assert!(said.contains("[orchestrators.main] projects") || !said.contains("error"), "{said}");
    // What each engine may do.
    for words in ["service postgres (pg): postgres ", "service box (box): ", "variables     DATABASE_URL, PGHOST"] {
        assert!(said.contains(words), "{words} is not in: {said}");
    }
    // Every key with what counts, and no secret.
    let counts = said.split_once("# What counts").unwrap().1.split_once("\nservice ").unwrap().0;
    let counts = counts.split_once('\n').unwrap().1;
    let effective: toml::Table = counts.parse().unwrap_or_else(|e| panic!("{e}\n{counts}"));
    let schema: serde_json::Value = serde_json::from_str(include_str!("../../../docs/config.schema.json")).unwrap();
    for (name, table) in schema["properties"].as_object().unwrap().iter().filter(|(name, _)| *name != "engines") {
        let table = &schema["$defs"][table["$ref"].as_str().unwrap_or_default().rsplit('/').next().unwrap()];
        for (key, about) in table["properties"].as_object().into_iter().flatten() {
            let shown = effective[name].get(key).is_some() || counts.contains(&format!("# {key} is left out: "));
            assert!(shown, "[{name}] {key} ({about}) is not in {counts}");
        }
    }
    assert_eq!(effective["docker"]["network"].as_str(), Some(host.network().as_str()));
    assert_eq!(effective["retention"]["idle_sleep_secs"].as_integer(), Some(300), "as it is taken");
    assert_eq!(effective["janitor"]["lease_secs"].as_integer(), Some(1800));
    assert_eq!(effective["projects"]["shop"]["gate_env"]["DATABASE_URL"].as_str(), Some("***"));
    assert!(!said.contains(OPERATOR) && !said.contains("postgresql://gate"), "{said}");

    let host = TestHost::prepare(Options {
        shop: "extensions = { postgres = [\"nonsense\"] }".to_owned(),
        sandbox: "max_live = 0\n".to_owned(),
        more: format!(
            "{more}[engines.absent]\ncomponent = \"nowhere.wasm\"\n[projects.also]\nservices = [\"rediss\"]\n"
        ),
        ..Options::default()
    });
    let (content, said) = check(&host);
    assert!(!content && said.contains("error: 4 problems"), "{said}");
    for line in [
        format!("{}error: [sandbox] max_live: ", place(&host, "max_live")),
        format!("{}error: [projects.shop] extensions.postgres", place(&host, "extensions").replace(":1: ", ":16: ")),
        "error: [projects.also] services".to_owned(),
        "error: [engines.absent]: there is no file".to_owned(),
    ] {
        assert!(said.contains(&line), "{line} is not in: {said}");
    }
    // What cannot be read does not hide the rest.
    let host = TestHost::prepare(Options {
        sandbox: "memroy = \"1g\"\nmax_live = 0\n".to_owned(),
        more: format!(
            "[janitor]\nevery_secs = \"often\"\n[engines.box]\nsettings = {{ image = {image:?} }}\ngrant.image = [{image:?}]\n\
             [engines.absent]\ncomponent = \"nowhere.wasm\"\n[projects.also]\nservices = [\"rediss\", \"box\"]\n"
        ),
        ..Options::default()
    });
    let (content, said) = check(&host);
    assert!(!content && said.contains("error: 6 problems"), "{said}");
    for line in [
        format!("{}error: [sandbox] memroy: unknown field", place(&host, "memroy")),
        format!("{}error: [sandbox] max_live: ", place(&host, "max_live")),
        format!("{}error: [janitor] every_secs: invalid type", place(&host, "every_secs").replace(":1: ", ":14: ")),
        format!(
            "{}error: [engines.box] grant.image: unknown field",
            place(&host, "grant.image").replace(":1: ", ":7: ")
        ),
        "error: [engines.absent]: there is no file".to_owned(),
        "error: [projects.also] services: there is no service `rediss`".to_owned(),
    ] {
        assert!(said.contains(&line), "{line} is not in: {said}");
    }
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text.replacen("[sandbox]", "[sandbox", 1)).unwrap();
    let (content, said) = check(&host);
    assert!(!content && said.contains("sandbar.toml:") && said.contains("error: 1 problem"), "{said}");
    // It serves nobody, and needs nobody's Docker.
    let host = TestHost::prepare(Options { docker: "host = \"unix:///nowhere\"".to_owned(), ..Options::default() });
    assert!(check(&host).0);
    assert!(!host.dir.path().join("state").exists());
}
