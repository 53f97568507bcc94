//! What whoever runs the host as a service relies on: exit codes, `/readyz`, and logs that hold no secret.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};

use sandbar_tests::docker::docker;
use sandbar_tests::host::{OPERATOR, ORCHESTRATOR, image, sandbar};
use sandbar_tests::mcp::{PythonClient, Speaks};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

fn offline() -> Options {
    Options { docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(), ..Options::default() }
}

#[test]
fn every_exit_code_has_one_meaning() {
    let code = |mut command: Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let binary = |args: &[&str]| {
        let mut command = Command::new(sandbar());
        command.args(args);
        command
    };
    let expect = |command: Command, expected: i32, words: &str| {
        let (found, said) = code(command);
        assert_eq!(found, Some(expected), "{words}: {said}");
        assert!(said.contains(words), "{words} is not in: {said}");
    };
    let mut host = TestHost::prepare(offline());
    let with_problems = TestHost::prepare(Options { sandbox: "max_live = 0\n".to_owned(), ..offline() });
    let unreadable = TestHost::prepare(Options { sandbox: "memroy = 1\n".to_owned(), ..offline() });
    let no_address = TestHost::prepare(Options { docker: "host = \"docker\"\n".to_owned(), ..Options::default() });
    let mut no_token = TestHost::prepare(offline());
    no_token.set_env("TEST_OPERATOR", "");
    // 0: it was done.
    expect(host.subcommand("check"), 0, "");
    expect(binary(&["schema", "config"]), 0, "");
    // 2: the command line.
    expect(binary(&["serv"]), 2, "unrecognized subcommand");
    expect(binary(&["serve", "--confg", "x"]), 2, "unexpected argument");
    // 3: the configuration.
    for command in ["serve", "check"] {
        expect(binary(&[command, "--config", "/nowhere/sandbar.toml"]), 3, "there is no /nowhere/sandbar.toml");
        expect(unreadable.subcommand(command), 3, "");
        expect(with_problems.subcommand(command), 3, "");
        expect(no_token.subcommand(command), 3, "");
    }
    expect(no_address.command(), 3, "[docker] `host`");
    expect(binary(&["engine", "list", "--config", "/nowhere/sandbar.toml"]), 3, "there is no");
    // 1: anything else.
    expect(binary(&["engine", "test", "/nowhere/x.wasm"]), 1, "");
    host.up().unwrap();
    expect(host.command(), 1, "held by another host");
    // A host that is told to end ends well.
    host.down().unwrap();
}

#[test]
fn ready_takes_docker_and_the_state_file() {
    let away = TestHost::start_with(offline());
    let page = away.nobody().get("/readyz");
    assert_eq!((page.status, &page.body["ready"], &page.body["state_file"]), (503, &json!(false), &json!("ok")));
    assert!(page.body["state"].as_str().unwrap().contains("/nowhere/docker.sock"), "{:#}", page.body);
    assert_eq!(away.nobody().get("/healthz").status, 200);

    let host = TestHost::start();
    let page = host.nobody().get("/readyz");
    assert_eq!((page.status, &page.body["state"], &page.body["state_file"]), (200, &json!("up"), &json!("ok")));
    assert_eq!(page.body["engines"]["redis"]["state"], "serving");
    let file = host.dir.path().join("state/state.sqlite");
    fs::rename(&file, file.with_extension("away")).unwrap();
    let page = host.nobody().get("/readyz");
    assert_eq!((page.status, &page.body["ready"], &page.body["state"]), (503, &json!(false), &json!("up")));
    assert!(page.body["state_file"].as_str().unwrap().contains("put it back"), "{:#}", page.body);
    fs::rename(file.with_extension("away"), &file).unwrap();
    assert_eq!(host.nobody().get("/readyz").status, 200);
}

#[test]
fn no_log_has_a_secret_whatever_is_asked_to_be_logged() {
    let image = image("redis:8-alpine").unwrap();
    let mut host = TestHost::prepare(Options {
        services: vec!["postgres", "redis", "mongo", "box"],
        shop: "retained = [\"redis\"]\n".to_owned(),
        more: format!("[engines.box]\nsettings = {{ image = {image:?} }}\ngrant.images = [{image:?}]\n"),
        env: vec![("RUST_LOG".to_owned(), "trace,rmcp::service=trace,rmcp=trace".to_owned())],
        ..Options::default()
    });
    host.up().unwrap();
    let agent = host.developer("dev-1");
    let mut secrets = vec![OPERATOR.to_owned(), ORCHESTRATOR.to_owned(), "gate-secret".to_owned()];
    secrets.push(agent.token().unwrap().to_owned());
    let evidence = agent.call("request_sandbox", &json!({})).evidence().clone();
    let passwords = |evidence: &Value| -> Vec<_> {
        let entries = evidence.as_object().unwrap().values();
        entries.filter_map(|entry| entry["password"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(passwords(&evidence).len(), 3, "{evidence}");
    secrets.extend(passwords(&evidence));
    // Those that only the host knows.
    for container in host.containers() {
        let env = docker(["inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", &container]).unwrap();
        let hidden = env.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| name.contains("PASSWORD"));
        secrets.extend(hidden.map(|(_, value)| value.to_owned()));
    }
    // As an agent, in both ways, with what goes wrong too.
    let command = json!({ "command": "echo $KEY", "env": { "KEY": "env-secret-of-a-command" }, "stdin": "stdin-secret", "service": "box" });
    let answer = agent.call("run_command", &command);
    assert!(answer.evidence()["stdout"].as_str().unwrap().contains("env-secret"), "{:#}", answer.body);
    agent.call("write_file", &json!({ "path": "a", "content": "content-secret", "service": "box" })).evidence();
    agent.call("read_file", &json!({ "path": "a", "service": "box" })).evidence();
    secrets.extend(["env-secret-of-a-command", "stdin-secret", "content-secret"].map(str::to_owned));
    host.nobody().with_token("token-of-nobody-at-all").call("request_sandbox", &json!({}));
    secrets.push("token-of-nobody-at-all".to_owned());
    let mut client = PythonClient::connect(&agent, Speaks::Current);
    let result = client.call("request_sandbox", &json!({}));
    assert!(result.to_string().contains(&secrets[4]), "{result}");
    // As the others.
    let spawn = host.orchestrator().call("spawn_env", &json!({ "agent": "dev-1", "project": "shop-none" }));
    assert_eq!(spawn.evidence()["env"]["SECRET"], "gate-secret");
    let rotated = host.operator().call("rotate_token", &json!({ "agent": "dev-1" })).evidence().clone();
    secrets.push(rotated["token"].as_str().unwrap().to_owned());
    host.orchestrator().call("end_work", &json!({ "agent": "dev-1", "outcome": "done" })).evidence();
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    host.wait_until_empty();
    host.down().unwrap();

    secrets.sort();
    secrets.dedup();
    assert!(secrets.len() >= 12, "{secrets:?}");
    let log: Vec<_> = host.log().iter().map(Value::to_string).collect();
    assert!(log.iter().any(|line| line.contains("\"TRACE\"")), "it was asked for everything");
    for secret in &secrets {
        let line = log.iter().find(|line| line.contains(secret.as_str()));
        assert!(line.is_none(), "{secret} is in {line:?}");
    }
}

#[test]
fn logs_are_for_people_on_a_terminal_and_json_otherwise() {
    let host = TestHost::prepare(offline());
    let piped = host.command();
    let arguments =
        |command: &Command| command.get_args().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>();
    let line = format!("echo pid $$; exec {} {}", piped.get_program().display(), arguments(&piped).join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--flush", "--command", &line, "/dev/null"]);
    terminal.envs(piped.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Until it listens, and then it is ended.
    let first_lines = |mut child: Child, out: Box<dyn Read>, pid: Option<u32>| {
        let (mut pid, mut said) = (pid, Vec::new());
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            pid = line.strip_prefix("pid ").and_then(|pid| pid.trim().parse().ok()).or(pid);
            let listens = line.contains("listening");
            said.push(line);
            if listens {
                Command::new("kill").arg(pid.unwrap().to_string()).status().unwrap();
            }
        }
        child.wait().unwrap();
        said.retain(|line| !line.starts_with("pid "));
        said
    };
    let mut child = terminal.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let people = first_lines(child, Box::new(out), None);
    assert!(people.iter().any(|line| line.contains("INFO") && line.contains("listening")), "{people:?}");
    assert!(people.iter().all(|line| serde_json::from_str::<Value>(line).is_err()), "{people:?}");
    let mut child = host.command().stderr(Stdio::piped()).spawn().unwrap();
    let (out, pid) = (child.stderr.take().unwrap(), child.id());
    let programs = first_lines(child, Box::new(out), Some(pid));
    assert!(programs.iter().any(|line| line.contains("listening")), "{programs:?}");
    assert!(programs.iter().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{programs:?}");
}

#[test]
fn a_shell_completes_the_commands() {
    let output = Command::new(sandbar()).args(["completions", "bash"]).output().unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    // As bash asks when somebody types `sandbar engine in` and a tab.
    let ask = "COMP_WORDS=(sandbar engine in); COMP_CWORD=2; _sandbar sandbar in engine; echo \"${COMPREPLY[@]}\"";
    let answer = Command::new("bash").args(["-c", &format!("{script}\n{ask}")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "inspect", "{answer:?}");
}
