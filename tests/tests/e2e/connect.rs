//! `sandbar connect`: the own client of a service, on pipes and on a terminal.

use std::fs;
use std::io::Write as _;
use std::process::{Output, Stdio};

use sandbar_tests::docker::docker;
use sandbar_tests::host::{image, wait};
use serde_json::{Value, json};

use crate::user::{Terminal, User, exported, redis};

/// Says this to the client of a service.
fn say(user: &User, args: &[&str], lines: &str) -> Output {
    let mut client = user.command(args).stdin(Stdio::piped()).spawn().unwrap();
    client.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    client.wait_with_output().unwrap()
}

#[test]
fn on_pipes_a_client_is_logged_in_and_ends_as_it_does() {
    let user = User::new();
    assert!(user.bad(&["connect", "redis"]).contains("nothing is up"));
    let env = exported(&user.good(&["up", "postgres", "redis", "mongo"]));
    let said = |args: &[&str], lines: &str| {
        let output = say(&user, args, lines);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let who = "select current_user || ' of ' || current_database();\n";
    assert!(said(&["connect", "postgres"], who).contains("sandbox of sandbox"));
    assert_eq!(said(&["connect", "redis"], "SET a 1\nGET a\n"), "OK\n1\n");
    assert!(redis(&env, "GET a").contains("$1\r\n1\r\n"), "it is the one that `up` made");
    let who = "db.runCommand({ connectionStatus: 1 }).authInfo.authenticatedUsers[0].user\n";
    assert!(said(&["connect", "mongo"], who).contains("sandbox"));
    // What is given besides, a terminal that there is not, and the exit code.
    assert_eq!(said(&["connect", "postgres", "--", "-tAc", "select 40 + 2"], ""), "42\n");
    let failed = say(&user, &["connect", "postgres"], "\\set ON_ERROR_STOP 1\nselect nonsense;\n");
    assert_eq!(failed.status.code(), Some(3), "{failed:?}");
    assert!(String::from_utf8_lossy(&failed.stderr).contains("nonsense"), "{failed:?}");
    let said = user.bad(&["connect", "postgress"]);
    assert!(said.contains("`postgress` is not up: mongo, postgres, redis are"), "{said}");
}

#[test]
fn what_has_no_client_says_so() {
    let image = image("redis:8-alpine").unwrap();
    let user = User::with(&format!("[engines.box]\nsettings = {{ image = {image:?} }}\ngrant.images = [{image:?}]\n"));
    user.good(&["up", "box"]);
    let said = user.bad(&["connect", "box"]);
    assert!(said.contains("names no client"), "{said}");
}

#[test]
fn on_a_terminal_a_client_has_its_size_and_its_keys() {
    let user = User::new();
    let env = exported(&user.good(&["up", "postgres"]));
    let mut terminal = Terminal::open(&user, "stty rows 33 cols 77; sandbar connect postgres");
    wait("the prompt", || terminal.shows("sandbox=>"));
    terminal.type_in("\\! stty size\n");
    wait("the size", || terminal.shows("33 77"));
    // Ctrl-C is the client's: it ends a query, and not the client.
    terminal.type_in("select pg_sleep(600);\n");
    let container = user.rows()[0]["container"].as_str().unwrap().to_owned();
    wait("the query", || docker(["top", &container, "-eo", "pid,args"]).unwrap().contains("SELECT"));
    let password = &env["PGPASSWORD"];
    let everything = docker(["top", &container, "-eo", "pid,args"]).unwrap();
    assert!(everything.contains("psql") && !everything.contains(password), "{everything}");
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&line).contains(password), "{process:?}");
    }
    terminal.type_in("\x03");
    wait("its end", || terminal.shows("canceling statement"));
    terminal.type_in("\\q\n");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn an_agent_is_told_of_its_own_client_alone() {
    let host = sandbar_tests::TestHost::start();
    let agent = host.developer("dev-1");
    let refused = agent.call("sandbox_client", &json!({ "service": "postgres" }));
    assert_eq!((refused.status, refused.error("remediate").contains("request_sandbox")), (409, true));
    let evidence = agent.call("request_sandbox", &json!({})).evidence()["postgres"].clone();
    let told: Value = agent.call("sandbox_client", &json!({ "service": "postgres" })).evidence().clone();
    assert_eq!(told["container"], host.container("pg", "dev-1"));
    assert_eq!((&told["argv"][0], &told["env"]["PGPASSWORD"]), (&json!("psql"), &evidence["password"]), "{told}");
    let other = host.developer("dev-2");
    assert_eq!(other.call("sandbox_client", &json!({ "service": "postgres" })).status, 409);
    assert!(!format!("{:?}", host.log()).contains(evidence["password"].as_str().unwrap()));
}
