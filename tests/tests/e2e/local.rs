//! The host of one user: `up`, `down`, `ps`, `logs`, and `mcp` over standard input and output.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use sandbar_tests::Options;
use sandbar_tests::docker::docker;
use sandbar_tests::host::{image, sandbar, wait};
use sandbar_tests::mcp::{PythonClient, Speaks};
use serde_json::{Value, json};

use crate::user::{User, exported, redis};

fn signal(child: &Child, signal: &str) {
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
}

#[test]
fn up_makes_what_is_asked_for_and_down_removes_it() {
    let user = User::new();
    assert_eq!(user.rows(), [] as [Value; 0]);
    assert!(user.host().is_none(), "looking starts nothing");
    let env = exported(&user.good(&["up", "redis"]));
    assert!(redis(&env, "SET a 1").contains("+OK"), "{env:?}");
    let [row] = user.rows().try_into().unwrap();
    assert_eq!(
        (&row["agent"], &row["service"], &row["state"]),
        (&json!("local-tester"), &json!("redis"), &json!("live"))
    );
    assert!(row["memory_bytes"].as_u64().unwrap() > 100_000 && row["age_secs"].is_u64(), "{row}");
    let table = user.good(&["ps"]);
    assert!(table.contains("local-tester") && table.contains("MiB"), "{table}");
    // More is added, and what is there stays.
    let both: Value =
        serde_json::from_str(&user.good(&["up", "postgres", "redis", "--with", "vector", "--json"])).unwrap();
    assert_eq!(both["postgres"]["available_extensions"], json!(["vector"]));
    assert_eq!(both["redis"]["env"]["REDIS_URL"], env["REDIS_URL"]);
    assert!(redis(&env, "GET a").contains("$1\r\n1\r\n"), "it is the same one");
    assert!(user.good(&["logs", "redis"]).contains("Ready to accept connections"));
    assert_eq!(fs::metadata(user.home()).unwrap().permissions().mode() & 0o777, 0o700);
    for file in fs::read_dir(user.home()).unwrap().flatten().filter(|file| file.file_type().unwrap().is_file()) {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{file:?}");
    }
    assert_eq!(fs::metadata(user.home().join("host.sock")).unwrap().permissions().mode() & 0o777, 0o600);
    // A host that was killed is started again, and has lost nothing.
    user.kill();
    assert_eq!(exported(&user.good(&["up", "redis"])), env);
    user.good(&["down"]);
    assert!(user.host().is_none() && user.rows().is_empty());
    wait("it is removed", || user.containers().is_empty());
    user.good(&["down"]);
}

#[test]
fn exec_runs_a_command_in_services_of_its_own() {
    let user = User::new();
    let shared = exported(&user.good(&["up", "redis"]));
    let output = user.run(&["up", "redis", "--exec", "printf %s \"$REDIS_URL\"; exit 7"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let url = String::from_utf8(output.stdout).unwrap();
    assert!(url.starts_with("redis://") && url != shared["REDIS_URL"], "{url}");
    let ours = |rows: &[Value]| rows.iter().filter(|row| row["agent"] != "local-tester").count();
    assert_eq!((user.rows().len(), ours(&user.rows())), (1, 0));
    // Two at once, each with its own; and a signal while they are at work.
    let mut children = [1, 2].map(|_| user.command(&["up", "redis", "--exec", "exec sleep 600"]).spawn().unwrap());
    wait("both are there", || ours(&user.rows()) == 2);
    wait("both run", || {
        let runs = |child: &Child| {
            let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap_or_default();
            !children.trim().is_empty()
        };
        children.iter().all(runs)
    });
    let command = fs::read_to_string(format!("/proc/{0}/task/{0}/children", children[0].id())).unwrap();
    signal(&children[0], "-TERM");
    assert_eq!(children[0].wait().unwrap().code(), Some(143));
    assert!(!fs::exists(format!("/proc/{}", command.trim())).unwrap(), "the command ends before its services do");
    assert_eq!(ours(&user.rows()), 1);
    // One that is killed leaves its own, until the next one comes, or `down`.
    children[1].kill().unwrap();
    children[1].wait().unwrap();
    user.good(&["up", "redis", "--exec", "true"]);
    wait("what it left is gone", || ours(&user.rows()) == 0);
    assert_eq!(user.rows().len(), 1);
}

#[test]
fn a_signal_while_it_is_made_leaves_nothing() {
    let user = User::new();
    user.good(&["up", "redis", "--exec", "true"]);
    for (args, code) in [(vec!["up", "mongo"], "-INT"), (vec!["up", "mongo", "--exec", "true"], "-TERM")] {
        let mut child = user.command(&args).spawn().unwrap();
        wait("it is being made", || !user.containers().is_empty());
        signal(&child, code);
        let ended = child.wait().unwrap().code();
        assert_eq!(ended, Some(if code == "-INT" { 130 } else { 143 }), "{args:?}");
        wait("nothing is left", || user.containers().is_empty());
        assert_eq!(user.rows(), [] as [Value; 0], "{args:?}");
    }
}

#[test]
fn many_at_once_find_one_host() {
    let user = User::new();
    let editors: Vec<_> = [Speaks::Current, Speaks::Before]
        .into_iter()
        .map(|speaks| {
            let env = user.env();
            std::thread::spawn(move || {
                let mut client = PythonClient::over_stdio(&sandbar(), &["mcp"], &env, speaks);
                let result = client.call("request_sandbox", &json!({ "services": ["redis"] }));
                result["structuredContent"]["evidence"]["redis"]["env"]["REDIS_URL"].as_str().unwrap().to_owned()
            })
        })
        .collect();
    let shells: Vec<_> = (0..2).map(|_| user.command(&["up", "redis"]).spawn().unwrap()).collect();
    let mut urls: Vec<_> = editors.into_iter().map(|editor| editor.join().unwrap()).collect();
    for shell in shells {
        let output = shell.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        urls.push(exported(&String::from_utf8(output.stdout).unwrap())["REDIS_URL"].clone());
    }
    assert!(urls.iter().all(|url| *url == urls[0]), "{urls:?}");
    assert_eq!(user.rows().len(), 1);
    let started = fs::read_to_string(user.home().join("host.log")).unwrap();
    assert_eq!(started.matches("\"message\":\"listening\"").count(), 1, "{started}");
}

#[test]
fn an_editor_speaks_over_standard_input_and_output() {
    let user = User::new();
    for speaks in [Speaks::Current, Speaks::Legacy, Speaks::Before] {
        let mut client = PythonClient::over_stdio(&sandbar(), &["mcp"], &user.env(), speaks);
        let names: Vec<_> = client.tools().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect();
        assert!(names.iter().any(|name| name == "request_sandbox") && !names.iter().any(|name| name == "set_switch"));
        let refused = client.call("request_sandbox", &json!({ "services": ["rediss"] }));
        assert_eq!(
            (&refused["isError"], &refused["structuredContent"]["ok"]),
            (&json!(true), &json!(false)),
            "{refused}"
        );
        // The host may go, and come back with what it had.
        let first = client.call("request_sandbox", &json!({ "services": ["redis"] }));
        user.kill();
        let again = client.call("request_sandbox", &json!({ "services": ["redis"] }));
        assert_eq!(first["structuredContent"]["evidence"], again["structuredContent"]["evidence"], "{speaks:?}");
    }
    // A client that gives up, and comes back.
    let mut client = PythonClient::over_stdio(&sandbar(), &["mcp"], &user.env(), Speaks::Current);
    let id = client.begin("request_sandbox", &json!({ "services": ["postgres"] }), true, None);
    client.cancel(id);
    let result = client.call("request_sandbox", &json!({ "services": ["postgres"] }));
    assert_eq!(result["structuredContent"]["ok"], true, "{result}");
    // Lines that no client sends.
    let mut child = user.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"no json\n\n[]\n{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"no/such\"}\n").unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut seen = Vec::new();
    while !seen.iter().any(|message: &Value| message["id"] == 7) {
        let mut line = String::new();
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut line).unwrap(), 0, "{seen:?}");
        seen.push(serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}")));
    }
    assert!(seen.iter().all(|message| message["error"]["code"].is_i64()), "{seen:?}");
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn over_stdio_a_cancelled_command_ends_and_long_messages_arrive_whole() {
    let image = image("redis:8-alpine").unwrap();
    let user = User::with(&format!("[engines.box]\nsettings = {{ image = {image:?} }}\ngrant.images = [{image:?}]\n"));
    // The client before these says nothing when it gives a call up.
    for speaks in [Speaks::Current, Speaks::Legacy] {
        let mut client = PythonClient::over_stdio(&sandbar(), &["mcp"], &user.env(), speaks);
        client.call("request_sandbox", &json!({ "services": ["box"] }));
        let container = user.rows()[0]["container"].as_str().unwrap().to_owned();
        let runs = || docker(["top", &container, "-eo", "pid,args"]).unwrap().contains("sleep 4001");
        let command = json!({ "command": "setsid sleep 4001 & sleep 4001" });
        let id = client.begin("run_command", &command, false, None);
        wait("the command", runs);
        client.cancel(id);
        wait("its end", || !runs());
        // While other calls end, so that reading is interrupted again and again.
        let content = "0123456789abcdef".repeat(40_000);
        for n in 0..5 {
            for _ in 0..5 {
                client.begin("sandbox_status", &json!({}), false, None);
            }
            let written = client.call("write_file", &json!({ "path": format!("{n}"), "content": content }));
            assert_eq!(written["structuredContent"]["evidence"]["bytes"], content.len(), "{written}");
        }
        let large = json!({ "command": "true", "stdin": content });
        let id = client.begin("run_command", &large, false, None);
        let refused = client.end(id);
        assert!(refused.to_string().contains("larger than"), "{refused}");
    }
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let user = User::new();
    let said = user.bad(&["up", "postgress"]);
    assert!(said.contains("`postgres`?") && said.contains("box, mongo, postgres, redis"), "{said}");
    let said = user.bad(&["up"]);
    assert!(said.contains("box, mongo, postgres, redis"), "{said}");
    let said = user.bad(&["up", "postgres", "--with", "vectr"]);
    assert!(said.contains("vectr") && said.contains("postgis"), "{said}");
    assert!(user.bad(&["logs", "redis"]).contains("not up"));
    assert_eq!(user.run(&["up", "redis", "--json", "--exec", "true"]).status.code(), Some(2));
    assert_eq!(user.containers(), [] as [String; 0], "nothing was made for any of it");

    let away = User::with("[docker]\nhost = \"unix:///nowhere/docker.sock\"\n");
    let said = away.bad(&["up", "redis"]);
    assert!(said.contains("not reachable") && said.contains("systemctl start docker"), "{said}");
    let wrong = User::new();
    wrong.write(&format!("[host]\nnamespac = \"x\"\n[plugins]\ndir = {:?}\n", Options::default().engines));
    let said = wrong.bad(&["up", "redis"]);
    assert!(said.contains("namespac"), "{said}");
    wrong.write("[host\n");
    let said = wrong.bad(&["up", "redis"]);
    assert!(said.contains("local.toml"), "{said}");
    let long = "x".repeat(100);
    let said = String::from_utf8(
        wrong.command(&["up", "redis"]).env("SANDBAR_HOME", wrong.dir.path().join(long)).output().unwrap().stderr,
    )
    .unwrap();
    assert!(said.contains("too long"), "{said}");
}
