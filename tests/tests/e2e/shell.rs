//! `sandbar up` in a shell: what is seen while it starts, what Ctrl-C leaves, several at once, and what cannot be had.

use std::process::{Child, Stdio};

use sandbar_tests::host::{image, sandbar, wait};
use sandbar_tests::mcp::{PythonClient, Speaks};
use sandbar_tests::registry::{Act, Fake, Part};
use serde_json::{Value, json};

use crate::user::{Terminal, User, exported};

/// Where no registry is.
const NOWHERE: &str = "127.0.0.1:1/team/redis:8";

fn services(user: &User) -> Vec<String> {
    let rows = user.rows();
    rows.iter()
        .filter(|row| row["state"] != "letting_go")
        .map(|row| row["service"].to_string().replace('"', ""))
        .collect()
}

#[test]
fn steps_are_lines_where_there_is_no_terminal() {
    let user = User::new();
    let output = user.run(&["up", "redis"]);
    let image = image("redis:8-alpine").unwrap();
    let steps = format!("redis: create {image}\nredis: start {image}\nredis: ready\n");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), steps);
    user.good(&["down"]);
    // A terminal that cannot move its cursor is none.
    let mut dumb = Terminal::open(&user, "TERM=dumb sandbar up redis");
    assert_eq!(dumb.end(), Some(0));
    wait("what it printed", || dumb.shows("export REDIS_URL="));
    assert!(dumb.shows("redis: ready") && !dumb.shows("\x1b"), "{:?}", dumb.shown());
}

#[test]
fn a_terminal_shows_a_pull_and_ctrl_c_ends_it() {
    let user = User::new();
    user.good(&["up", "redis", "--exec", "true"]);
    user.good(&["down"]);
    let registry = Fake::start();
    registry.set(Part::Layer, Act::Stall);
    user.run_instead("redis:8-alpine", &registry.image());
    let mut terminal = Terminal::open(&user, "sandbar up redis");
    wait("bytes of the pull", || terminal.shows("] 0 B/") && terminal.shows("MiB pull"));
    // As much of its name as there is room for.
    let image = registry.image();
    let at = image.split('/').next().unwrap();
    assert!(terminal.shows(&format!("pull {at}/")), "{:?}", terminal.shown());
    terminal.type_in("\x03");
    assert_eq!(terminal.end(), Some(130), "{:?}", terminal.shown());
    assert!(!terminal.shows("export "), "{:?}", terminal.shown());
    // Nor is it waited for any more, which it would be for long.
    assert_eq!((services(&user), user.containers()), (vec![], vec![]));
}

#[test]
fn ctrl_c_leaves_nothing_at_any_stage() {
    let user = User::new();
    // While the host starts.
    let mut terminal = Terminal::open(&user, "sandbar up redis");
    wait("the host", || user.host().is_some());
    terminal.type_in("\x03");
    assert_eq!(terminal.end(), Some(130), "{:?}", terminal.shown());
    wait("nothing is there", || services(&user).is_empty() && user.containers().is_empty());

    // While something is added to what is there, which stays.
    let before = user.good(&["up", "redis"]);
    let mut terminal = Terminal::open(&user, "sandbar up mongo");
    wait("it is being made", || user.containers().len() == 2);
    terminal.type_in("\x03");
    assert_eq!(terminal.end(), Some(130), "{:?}", terminal.shown());
    wait("it is gone", || services(&user) == ["redis"] && user.containers().len() == 1);
    assert_eq!(user.good(&["up", "redis"]), before);

    // While a command runs, and while its services go.
    let mut terminal = Terminal::open(&user, "sandbar up redis --exec 'echo begun; exec sleep 600'");
    wait("the command", || terminal.shows("begun"));
    terminal.type_in("\x03");
    assert_eq!(terminal.end(), Some(130), "{:?}", terminal.shown());
    let mut terminal = Terminal::open(&user, "sandbar up redis --exec 'kill -INT $PPID'");
    assert_eq!(terminal.end(), Some(0), "{:?}", terminal.shown());
    wait("theirs are gone", || user.rows().len() == 1 && user.containers().len() == 1);
}

#[test]
fn several_at_once_each_get_what_they_name() {
    let user = User::new();
    user.good(&["up", "redis", "--exec", "true"]);
    for _ in 0..3 {
        let all: [Child; 3] = ["postgres", "redis", "mongo"]
            .map(|name| user.command(&["up", name]).stderr(Stdio::piped()).spawn().unwrap());
        let variables = ["DATABASE_URL", "REDIS_URL", "MONGODB_URI"];
        for (child, variable) in all.into_iter().zip(variables) {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let env = exported(&String::from_utf8(output.stdout).unwrap());
            assert_eq!(variables.iter().filter(|name| env.contains_key(**name)).collect::<Vec<_>>(), [&variable]);
        }
        assert_eq!(services(&user), ["mongo", "postgres", "redis"]);
        user.good(&["down"]);
    }
}

#[test]
fn an_image_that_cannot_be_had_is_said_and_stands_in_nobody_s_way() {
    let user = User::new();
    user.run_instead("redis:8-alpine", NOWHERE);
    let said = user.bad(&["up", "redis"]);
    assert!(said.contains(NOWHERE) && said.contains("connection refused") && said.contains("`[images]`"), "{said}");
    assert_eq!((services(&user), user.containers()), (vec![], vec![]));
    let before = user.good(&["up", "postgres"]);
    user.bad(&["up", "redis"]);
    // Nor for an editor's agent.
    let mut client = PythonClient::over_stdio(&sandbar(), &["mcp"], &user.env(), Speaks::Current);
    let mut ask = |service: &str| client.call("request_sandbox", &json!({ "services": [service] }));
    let refused: Value = ask("redis");
    assert!(refused["isError"] == true && refused.to_string().contains("connection refused"), "{refused}");
    assert_eq!(ask("postgres")["isError"], false);
    assert_eq!(user.good(&["up", "postgres"]), before, "what is there stays as it is");
    assert_eq!(services(&user), ["postgres"]);
}
