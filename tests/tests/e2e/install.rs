//! The two ways to install a host: as a unit of systemd, and as a container beside its sandboxes.

use std::fs;
use std::path::Path;
use std::process::Command;

use sandbar_tests::docker::docker;
use sandbar_tests::host::{OPERATOR, ORCHESTRATOR, image, sandbar, sources, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

fn unit() -> String {
    fs::read_to_string(sources().join("../docs/sandbar.service")).unwrap()
}

/// The values of a setting of the unit.
fn setting(name: &str) -> Vec<String> {
    let unit = unit();
    let value = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap();
    value.split(' ').map(str::to_owned).collect()
}

#[test]
fn systemd_takes_the_unit() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sandbar.service");
    // What it starts has to be there.
    let unit = unit().replace("/usr/local/bin/sandbar", &sandbar().display().to_string());
    let analyze = |verb: &[&str], unit: &str| {
        fs::write(&file, unit).unwrap();
        let output = Command::new("systemd-analyze").args(verb).arg(&file).output();
        output.map(|output| (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let Ok((good, said)) = analyze(&["verify"], &unit) else {
        println!("not checked: there is no systemd-analyze here");
        return;
    };
    assert!(good && said.is_empty(), "{said}");
    let (_, said) = analyze(&["verify"], &unit.replace("ProtectClock=yes", "ProtectClock=perhaps")).unwrap();
    assert!(said.contains("perhaps"), "it notices what is wrong: {said}");
    // Of 10.0; without what is locked it is 9.6.
    let (locked, said) = analyze(&["security", "--offline=yes", "--threshold=30"], &unit).unwrap();
    assert!(locked, "{said}");
}

#[test]
fn the_capabilities_of_the_unit_are_enough_for_boxes() {
    let capabilities = setting("CapabilityBoundingSet");
    let named = capabilities.iter().map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()));
    let set: Vec<_> = std::iter::once("-all".to_owned()).chain(named).collect();
    let redis = image("redis:8-alpine").unwrap();
    let options = Options {
        services: vec!["redis", "box"],
        more: format!("[engines.box]\nsettings = {{ image = {redis:?} }}\ngrant.images = [{redis:?}]\n"),
        under: ["setpriv", "--no-new-privs", "--bounding-set", &set.join(",")].map(str::to_owned).into(),
        ..Options::default()
    };
    let mut host = TestHost::start_with(options.clone());
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    assert_eq!(u64::from_str_radix(bits, 16).unwrap().count_ones() as usize, capabilities.len(), "it has no others");
    let agent = host.developer("dev-1");
    let run = |line: &str| {
        let answer = agent.call("run_command", &json!({ "command": line }));
        assert_eq!(answer.evidence()["exit_code"], 0, "{:#}", answer.body);
    };
    agent.call("write_file", &json!({ "path": "in/a", "content": "one" })).evidence();
    run(
        "test $(id -u) = 1000 && cat in/a && echo two > in/a && mkdir shut && echo three > shut/b && chmod 000 shut/b shut",
    );
    assert_eq!(agent.call("read_file", &json!({ "path": "in/a" })).evidence()["content"], "two\n");
    agent.call("create_artifact", &json!({ "path": "in/a", "name": "a" })).evidence();
    agent.call("request_sandbox", &json!({})).evidence();
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    let boxes = host.dir.path().join("boxes");
    let left = || fs::read_dir(&boxes).unwrap().flatten().filter(|e| e.path().join("root").exists()).count();
    wait("the work folder is removed", || left() == 0);
    host.down().unwrap();
}

/// What a try in containers leaves, whatever becomes of it.
struct Cleanup(String);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let ns = &self.0;
        let list = docker(["ps", "-aq", "--filter", &format!("name=^/?{ns}-")]).unwrap_or_default();
        for id in list.lines() {
            let _ = docker(["rm", "--force", "--volumes", id]);
        }
        let _ = docker(["network", "rm", &format!("{ns}_default")]);
        let _ = docker(["volume", "rm", &format!("{ns}-state")]);
        let _ = docker(["image", "rm", &format!("{ns}-host")]);
    }
}

/// Calls a verb from inside of a container, as `sandbar` at port 7070.
fn call(container: &str, token: &str, verb: &str, body: &Value) -> Value {
    let body = body.to_string();
    let request = format!(
        "POST /v1/do/{verb} HTTP/1.0\r\nHost: sandbar:7070\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let script = "exec 3<>/dev/tcp/sandbar/7070; printf %s \"$0\" >&3; cat <&3";
    let answer = docker(["exec", container, "bash", "-c", script, &request]).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    let mut answer: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(answer["ok"], true, "{verb}: {answer:#}");
    answer["evidence"].take()
}

#[test]
fn a_host_in_a_container_serves_its_siblings() {
    let ns = format!("c{:x}", std::process::id());
    let cleanup = Cleanup(ns.clone());
    let dir = tempfile::tempdir().unwrap();
    let (redis, debian) = (image("redis:8-alpine").unwrap(), image("debian:bookworm-slim").unwrap());
    let name = format!("{ns}-host");
    let built = Command::new(sources().join("../host/image/build.sh"))
        .arg(&name)
        .envs([("BASE", debian), ("SANDBAR", sandbar().display().to_string())])
        .env("SANDBAR_ENGINES", Options::default().engines)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));

    let boxes = dir.path().join("boxes");
    fs::create_dir(&boxes).unwrap();
    let config = dir.path().join("sandbar.toml");
    let text = format!(
        "[host]\nlisten = [\"0.0.0.0:7070\"]\nallowed_hosts = [\"sandbar\"]\nnamespace = {ns:?}\nstate_dir = \"/var/lib/sandbar/state\"\n\
         operator_token = {{ env = \"OPERATOR\" }}\n[orchestrators.main]\ntoken = {{ env = \"ORCHESTRATOR\" }}\nprojects = [\"shop\"]\n\
         [sandbox]\nenabled = true\n[plugins]\ndir = \"/usr/local/lib/sandbar/engines.d\"\n[projects.shop]\nservices = [\"redis\", \"box\"]\n\
         [engines.box]\nsettings = {{ image = {redis:?} }}\ngrant.images = [{redis:?}]\n[boxes]\ndir = {boxes:?}\n\
         [images]\n\"redis:8-alpine\" = {redis:?}\n"
    );
    fs::write(&config, text).unwrap();
    let network = format!("{ns}_default");
    docker(["network", "create", &network]).unwrap();
    let socket = std::env::var("DOCKER_HOST").ok().and_then(|host| host.strip_prefix("unix://").map(str::to_owned));
    let socket = format!("{}:/var/run/docker.sock", socket.as_deref().unwrap_or("/var/run/docker.sock"));
    let mount = |from: &Path, to: &str| format!("{}:{to}", from.display());
    let start = || {
        docker([
            "run",
            "--detach",
            "--name",
            &name,
            "--network",
            &network,
            "--network-alias",
            "sandbar",
            "--health-interval",
            "1s",
            "--env",
            &format!("OPERATOR={OPERATOR}"),
            "--env",
            &format!("ORCHESTRATOR={ORCHESTRATOR}"),
            "--volume",
            &socket,
            "--volume",
            &format!("{ns}-state:/var/lib/sandbar"),
            "--volume",
            &mount(&config, "/etc/sandbar/sandbar.toml:ro"),
            "--volume",
            &mount(&boxes, &boxes.display().to_string()),
            &name,
        ])
        .unwrap();
        wait("the container is healthy", || {
            let state = docker(["inspect", "--format", "{{.State.Health.Status}} {{.State.Status}}", &name]).unwrap();
            assert!(state.contains("running"), "{state}: {}", docker(["logs", &name]).unwrap_or_default());
            state.starts_with("healthy")
        });
    };
    start();
    let agent = format!("{ns}-agent-dev-1");
    docker(["run", "--detach", "--name", &agent, "--network", &network, "--entrypoint", "sleep", &redis, "600"])
        .unwrap();
    let registered = call(&agent, ORCHESTRATOR, "register_agent", &json!({ "agent": "dev-1", "role": "developer" }));
    let token = registered["token"].as_str().unwrap();
    call(&agent, ORCHESTRATOR, "begin_work", &json!({ "agent": "dev-1", "project": "shop" }));
    let evidence = call(&agent, token, "request_sandbox", &json!({ "services": ["redis"] }));
    let url = evidence["redis"]["env"]["REDIS_URL"].as_str().unwrap();
    let said = docker(["exec", &agent, "redis-cli", "-u", url, "set", "a", "kept"]).unwrap();
    assert_eq!(said.trim(), "OK", "{said}");
    call(&agent, token, "write_file", &json!({ "path": "a", "content": "seen by both" }));
    assert_eq!(call(&agent, token, "run_command", &json!({ "command": "cat a" }))["stdout"], "seen by both");

    // A new container of the host goes on with the state and the sandboxes of the one before.
    docker(["stop", &name]).unwrap();
    assert_eq!(docker(["inspect", "--format", "{{.State.ExitCode}}", &name]).unwrap().trim(), "0");
    docker(["rm", &name]).unwrap();
    start();
    let again = call(&agent, token, "request_sandbox", &json!({ "services": ["redis"] }));
    assert_eq!(again, evidence);
    let said = docker(["exec", &agent, "redis-cli", "-u", url, "get", "a"]).unwrap();
    assert_eq!(said.trim(), "kept", "{said}");
    call(&agent, token, "release_sandbox", &json!({}));
    let ours = || docker(["ps", "-aq", "--filter", &format!("label={ns}.sandbox=1")]).unwrap();
    wait("nothing is left", || ours().trim().is_empty());
    drop(cleanup);
}
