//! Boxes: commands and files in a work folder, throwaway and retained.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;

use sandbar_tests::docker::docker;
use sandbar_tests::host::{image, wait};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

/// The services `box`, which is throwaway, and `home`, which is retained, from one component.
pub(crate) fn boxes(more: &str) -> Options {
    let debian = image("redis:8-alpine").unwrap();
    let busybox = "sandbar-standin/busybox:test";
    Options {
        services: vec!["box", "home"],
        more: format!(
            "[engines.box]\nsettings = {{ image = {debian:?} }}\ngrant.images = [{debian:?}]\n\
             [engines.home]\ncomponent = {component:?}\nslug = \"home\"\ngrant.images = [{busybox:?}]\n\
             settings = {{ image = {busybox:?}, work-folder = \"/home/node\", user = \"1234:1234\" }}\n\
             [projects.kept]\nservices = [\"box\", \"home\"]\nretained = [\"home\"]\n\
             [orchestrators.boxes]\ntoken = {{ env = \"TEST_BOXES\" }}\nprojects = [\"kept\", \"shop\"]\n{more}",
            component = Options::default().engines.join("box.wasm"),
        ),
        env: vec![("TEST_BOXES".to_owned(), "orchestrator-of-boxes-in-a-test".to_owned())],
        ..Options::default()
    }
}

fn orchestrator(host: &TestHost) -> Client {
    host.nobody().with_token("orchestrator-of-boxes-in-a-test")
}

/// An agent that works on `kept`.
pub(crate) fn tenant(host: &TestHost, name: &str) -> Client {
    let answer = orchestrator(host).call("register_agent", &json!({ "agent": name, "role": "developer" }));
    let client = host.nobody().with_token(answer.evidence()["token"].as_str().unwrap());
    orchestrator(host).call("begin_work", &json!({ "agent": name, "project": "kept" })).evidence();
    client
}

fn sh(client: &Client, service: &str, line: &str) -> Value {
    client.call("run_command", &json!({ "service": service, "command": line })).evidence().clone()
}

fn out(client: &Client, service: &str, line: &str) -> String {
    let ran = sh(client, service, line);
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim().to_owned()
}

/// The containers of a kind, with their states.
fn states(host: &TestHost, kind: &str) -> Vec<String> {
    let filter = format!("label={}.installation={}", host.namespace, host.installation);
    let all = docker(["ps", "--all", "--filter", &filter, "--format", "{{.Names}} {{.State}}"]).unwrap();
    let prefix = format!("{}-{kind}-", host.namespace);
    all.lines().filter(|l| l.starts_with(&prefix)).filter_map(|l| l.split(' ').nth(1)).map(str::to_owned).collect()
}

fn folders(host: &TestHost) -> usize {
    std::fs::read_dir(host.dir.path().join("boxes"))
        .map_or(0, |dir| dir.flatten().filter(|e| !e.file_name().to_string_lossy().starts_with('.')).count())
}

#[test]
fn commands_run_in_the_work_folder_and_find_what_earlier_ones_wrote() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    for (service, folder, user) in [("box", "/sandbox", "1000"), ("home", "/home/node", "1234")] {
        assert_eq!(out(&agent, service, "pwd; id -u; echo $HOME; touch here"), format!("{folder}\n{user}\n{folder}"));
        assert_eq!(out(&agent, service, "ls"), "here");
        let ran = agent
            .call(
                "run_command",
                &json!({ "service": service, "argv": ["sh", "-c", "cat; echo \"$A\" >&2; pwd; exit 7"],
                    "env": { "A": "b c" }, "stdin": "read me\n", "folder": "." }),
            )
            .evidence()
            .clone();
        assert_eq!((&ran["exit_code"], &ran["timed_out"]), (&json!(7), &json!(false)));
        assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!(format!("read me\n{folder}\n")), &json!("b c\n")));
        assert_eq!(sh(&agent, service, "no-such-program-anywhere")["exit_code"], 127);
        // Nothing of the host's environment, and no network.
        assert!(!out(&agent, service, "env").contains("TEST_"), "{service}");
        assert_eq!(out(&agent, service, "ls /sys/class/net"), "lo");
    }
    // Bounded, the head and the tail of it.
    let ran = sh(&agent, "box", "echo first; yes äöü | head -c 1000001; echo; echo last");
    let stdout = ran["stdout"].as_str().unwrap();
    assert_eq!((&ran["stdout_cut"], &ran["stderr_cut"]), (&json!(true), &json!(false)));
    assert!(stdout.starts_with("first\n") && stdout.ends_with("\nlast\n") && stdout.contains(" bytes left out]"));
    assert!(stdout.len() < 100_000 && !stdout.contains('\u{fffd}'), "{}", stdout.len());
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn what_is_asked_badly_is_told() {
    let host = TestHost::start_with(boxes("[projects.no-box]\nservices = []\n"));
    let agent = tenant(&host, "dev-1");
    let run = |body: Value| agent.call("run_command", &body);
    assert!(run(json!({ "command": "ls" })).error("message").contains("so name one"));
    assert_eq!(run(json!({ "service": "postgres", "command": "ls" })).status, 409);
    for (body, says) in [
        (json!({ "service": "box" }), "`argv` or `command`"),
        (json!({ "service": "box", "argv": [] }), "`argv`"),
        (json!({ "service": "box", "argv": ["a"], "command": "b" }), "`argv` or `command`"),
        (json!({ "service": "box", "command": "a", "deadline_secs": 0 }), "`deadline_secs`"),
        (json!({ "service": "box", "command": "a", "env": { "A=B": "" } }), "`env`"),
        (json!({ "service": "box", "command": "a\0b" }), "NUL"),
        (json!({ "service": "box", "command": "a", "shell": true }), "shell"),
    ] {
        let answer = run(body);
        assert_eq!(answer.status, 400, "{says}");
        assert!(answer.error("message").contains(says), "{says}: {}", answer.error("message"));
    }
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn files_are_written_and_read_and_stay_inside() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let call = |verb: &str, mut body: Value| {
        body["service"] = json!("home");
        agent.call(verb, &body)
    };
    call("write_file", json!({ "path": "src/a.txt", "content": "ä\n" })).evidence();
    call("write_file", json!({ "path": "/home/node/b.bin", "content_base64": "AP8=", "mode": 0o755 })).evidence();
    assert_eq!(
        out(&agent, "home", "cat src/a.txt; stat -c '%u %g %a' src src/a.txt b.bin"),
        "ä\n1234 1234 755\n1234 1234 644\n1234 1234 755"
    );
    out(
        &agent,
        "home",
        "echo from inside > c; ln -s /home/node/c absolute; ln -s c relative; ln -s /etc/passwd out; ln -s ../.. up; mkfifo pipe",
    );
    for path in ["c", "absolute", "relative", "/home/node/c"] {
        assert_eq!(call("read_file", json!({ "path": path })).evidence()["content"], "from inside\n", "{path}");
    }
    let read = call("read_file", json!({ "path": "b.bin" })).evidence().clone();
    assert_eq!((&read["content"], &read["content_base64"], &read["size"]), (&Value::Null, &json!("AP8="), &json!(2)));
    let part = call("read_file", json!({ "path": "c", "offset": 5, "limit": 3 })).evidence().clone();
    assert_eq!((&part["content"], &part["truncated"]), (&json!("ins"), &json!(true)));
    for path in ["out", "up/x", "../x", "/etc/passwd", "pipe", "src", "missing", ""] {
        let answer = call("read_file", json!({ "path": path }));
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.status);
    }
    for path in ["out", "up/x", "../x", "/etc/x", "src", "pipe"] {
        assert_eq!(call("write_file", json!({ "path": path, "content": "x" })).status, 400, "{path}");
    }
    assert_eq!(call("write_file", json!({ "path": "s", "content": "x", "mode": 0o4755 })).status, 400);
    let listed = call("list_files", json!({ "recursive": true })).evidence().clone();
    let paths: BTreeSet<_> = listed["files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["absolute", "b.bin", "c", "out", "pipe", "relative", "src", "src/a.txt", "up"].into());
    // A file may be larger than what other verbs take.
    let large = "x".repeat(200_000);
    call("write_file", json!({ "path": "large", "content": large })).evidence();
    assert_eq!(out(&agent, "home", "wc -c < large"), "200000");
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

/// A box that swaps what a path leads to as fast as it can, while thousands of reads and writes go through it.
#[test]
fn what_swaps_under_a_transfer_gains_nothing() {
    const TRANSFERS: usize = 2000;
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let state = host.dir.path().join("state");
    std::fs::write(state.join("canary"), "the host's own\n").unwrap();
    let before = std::fs::read_dir("/etc").unwrap().count();
    let up = "../".repeat(20);
    let swap = format!(
        "mkdir -p real; echo inside > real/canary; echo inside > real/passwd; touch begun
         while [ ! -e stop ]; do
           for to in /etc {state} {up}{state} .. {up}etc /home/node/real real; do
             rm -rf d; mkdir d; echo inside > d/canary; rm -rf d; ln -s $to d
             rm -rf e; ln -s $to e; rm -rf e; ln -s /home/node/real e
           done
         done
         rm -rf e; ln -s /home/node/real e",
        state = state.display()
    );
    let (mut inside, mut refused) = (0, 0);
    let agent = &agent;
    std::thread::scope(|scope| {
        let command = json!({ "service": "home", "command": swap, "deadline_secs": 300 });
        let swapper = scope.spawn(move || agent.call("run_command", &command).evidence().clone());
        let there = |path: &str| agent.call("read_file", &json!({ "service": "home", "path": path })).status == 200;
        wait("the box to begin", || there("begun"));
        for n in 0..TRANSFERS {
            let path = ["d/canary", "d/passwd", "e/canary", "e/passwd", "d/hostname"][n % 5];
            let read = agent.call("read_file", &json!({ "service": "home", "path": path }));
            match read.status {
                200 => {
                    let content = read.evidence()["content"].as_str().unwrap();
                    assert!(["inside\n", "written\n", ""].contains(&content), "{path}: {content}");
                    inside += 1;
                }
                400 | 404 | 409 | 503 => refused += 1,
                status => panic!("{path}: {status} {}", read.body),
            }
            let path = ["d/written-by-the-host", "e/written-by-the-host", "d/canary"][n % 3];
            let body = json!({ "service": "home", "path": path, "content": "written\n" });
            let written = agent.call("write_file", &body);
            assert!(
                matches!(written.status, 200 | 400 | 404 | 409 | 503),
                "{path}: {} {}",
                written.status,
                written.body
            );
        }
        agent.call("write_file", &json!({ "service": "home", "path": "stop", "content": "" })).evidence();
        assert_eq!(swapper.join().unwrap()["exit_code"], 0);
    });
    assert!(inside > TRANSFERS / 50 && refused > TRANSFERS / 50, "{inside} read, {refused} refused: nothing was raced");
    assert_eq!(std::fs::read_to_string(state.join("canary")).unwrap(), "the host's own\n");
    assert_eq!(std::fs::read_dir("/etc").unwrap().count(), before);
    let written = std::process::Command::new("find")
        .args([
            host.dir.path().to_str().unwrap(),
            "/etc",
            "-name",
            "written-by-the-host",
            "-not",
            "-path",
            "*/home/node/*",
        ])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&written.stdout), "");
    // Links that stay inside go on working.
    assert_eq!(
        agent.call("read_file", &json!({ "service": "home", "path": "e/passwd" })).evidence()["content"],
        "inside\n"
    );
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn what_a_box_s_root_makes_is_harmless_here() {
    let mut options = boxes("");
    options.more = options.more.replace("user = \"1234:1234\"", "user = \"0:0\"");
    let host = TestHost::start_with(options);
    let agent = tenant(&host, "dev-1");
    let made = "id -u; cp /bin/busybox shell && chmod 6755 shell && stat -c %a shell; mkfifo pipe
                mknod disk b 7 0 2>&1 || echo no device; mknod null c 1 3 2>&1 || echo no device";
    let said = out(&agent, "home", made);
    assert!(said.starts_with("0\n6755\n") && said.matches("no device").count() == 2, "{said}");
    // Nobody else on this machine gets as far as to its files, whatever bits they have.
    for dir in ["boxes", "state", "state/artifacts"] {
        let mode = std::fs::metadata(host.dir.path().join(dir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{dir}");
    }
    let service = |mut body: Value| {
        body["service"] = json!("home");
        body
    };
    // What leaves the box is bytes without rights.
    let body = service(json!({ "path": "shell", "name": "shell" }));
    agent.call("create_artifact", &body).evidence();
    for entry in std::fs::read_dir(host.dir.path().join("state/artifacts")).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7111, 0, "{mode:o}");
    }
    // What is written over it has none either.
    agent.call("write_file", &service(json!({ "path": "shell", "content": "x" }))).evidence();
    assert_eq!(out(&agent, "home", "stat -c %a shell"), "755");
    assert_eq!(agent.call("read_file", &service(json!({ "path": "pipe" }))).status, 400);
    assert_eq!(agent.call("create_artifact", &service(json!({ "path": "pipe", "name": "pipe" }))).status, 400);
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

/// Memory of the host in KiB: of now, or the most since that was last reset.
fn memory(host: &TestHost, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let value = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    value.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn output_of_gigabytes_takes_no_memory() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    out(&agent, "home", "true");
    std::fs::write(format!("/proc/{}/clear_refs", host.pid()), "5").unwrap();
    let before = memory(&host, "VmRSS:");
    let gigabytes =
        json!({ "service": "home", "command": "head -c 2147483648 /dev/zero; echo end >&2", "deadline_secs": 300 });
    let ran = agent.call("run_command", &gigabytes).evidence().clone();
    assert_eq!((&ran["exit_code"], &ran["stdout_cut"], &ran["stderr"]), (&json!(0), &json!(true), &json!("end\n")));
    assert!(ran["stdout"].as_str().unwrap().contains("2147418112 bytes left out"), "the middle is what is left out");
    let most = memory(&host, "VmHWM:");
    assert!(most < before + (32 << 10), "{before} KiB before, {most} KiB at most");
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn what_a_box_does_wrong_is_one_error_each_time() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    for service in ["box", "home"] {
        let call = |verb: &str, mut body: Value| {
            body["service"] = json!(service);
            agent.call(verb, &body)
        };
        // A file that takes no room and is larger than any disk.
        out(&agent, service, "truncate -s 1099511627776 sparse");
        let read = call("read_file", json!({ "path": "sparse", "limit": 4 })).evidence().clone();
        assert_eq!((&read["size"], &read["truncated"]), (&json!(1_u64 << 40), &json!(true)));
        assert_eq!(call("create_artifact", json!({ "path": "sparse", "name": "x" })).code(), "too_large");
        // One that grows while it is read.
        out(&agent, service, "(i=0; while [ ! -e stop ]; do echo more; done) > grows 2>/dev/null &");
        wait("it to grow", || call("read_file", json!({ "path": "grows" })).evidence()["size"].as_u64() > Some(1000));
        let listed = call("list_files", json!({})).evidence().clone();
        assert!(listed["files"].as_array().unwrap().iter().any(|f| f["path"] == "grows"));
        out(&agent, service, "touch stop");
        // Processes without end: the box has a limit, and the next command has room.
        let bomb = json!({ "command": "bomb() { bomb | bomb & }; bomb; sleep 600", "deadline_secs": 2 });
        let ran = call("run_command", bomb);
        assert_eq!((&ran.evidence()["exit_code"], &ran.evidence()["timed_out"]), (&json!(124), &json!(true)));
        assert_eq!(out(&agent, service, "ls sparse | cat"), "sparse");
        // More memory than it may have ends what takes it, and not the box.
        let hungry = sh(&agent, service, "head -c 1000000000 /dev/zero | tail -c 1000000000 > /dev/null; echo $?");
        assert!(hungry["stdout"] != "0\n", "{hungry}");
        assert_eq!(out(&agent, service, "ls sparse"), "sparse");
    }
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_box_may_not_hold_more_than_its_share() {
    let host = TestHost::start_with(boxes("[boxes]\nmax_bytes = \"1m\"\n"));
    let agent = tenant(&host, "dev-1");
    let write =
        |n: usize| agent.call("write_file", &json!({ "service": "box", "path": "f", "content": "x".repeat(n) }));
    write(500_000).evidence();
    assert!(write(1_100_000).error("message").contains("the work folder would hold more"));
    let answer = agent.call("run_command", &json!({ "service": "box", "command": "yes > g; sleep 600" }));
    assert!(answer.error("message").contains("the work folder would hold more"));
    out(&agent, "box", "rm g");
}

#[test]
fn all_boxes_together_may_not_hold_more_than_their_share() {
    let mut host = TestHost::start_with(boxes("[boxes]\nmax_bytes = \"2m\"\nmax_total_bytes = \"3m\"\n"));
    let (one, two) = (tenant(&host, "dev-1"), tenant(&host, "dev-2"));
    let write = |agent: &Client, n: usize| {
        agent.call("write_file", &json!({ "service": "home", "path": "f", "content": "x".repeat(n) }))
    };
    write(&one, 1_500_000).evidence();
    assert!(write(&two, 1_800_000).error("message").contains("all work folders together"));
    let fill = json!({ "service": "home", "command": "yes | head -c 1900000 > g; sleep 600" });
    assert!(two.call("run_command", &fill).error("remediate").contains("max_total_bytes"));
    // Who adds nothing goes on, also for as long as there is no room.
    assert_eq!(out(&one, "home", "sleep 3; echo done"), "done");
    out(&two, "home", "rm g");
    write(&two, 1_000_000).evidence();
    // Also what a box holds that nobody has used since the host started.
    host.down().unwrap();
    host.up().unwrap();
    let two = host.nobody().with_token(two.token().unwrap());
    assert!(write(&two, 1_000_000).error("message").contains("all work folders together"));
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    write(&two, 1_000_000).evidence();
    host.operator().call("remove_agent", &json!({ "agent": "dev-2" })).evidence();
}

#[test]
fn a_box_with_a_network_reaches_databases_and_neither_the_host_nor_metadata() {
    let mut options = boxes("[projects.open]\nservices = [\"home\", \"redis\"]\nbox_network = true\n");
    options.more = options.more.replace("[\"kept\", \"shop\"]", "[\"kept\", \"shop\", \"open\"]");
    let mut host = TestHost::prepare(options);
    // An address of this machine that every container has a way to.
    let gateway = docker(["network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]).unwrap();
    let config = std::fs::read_to_string(host.config()).unwrap();
    let listen = format!("listen = [\"127.0.0.1:0\", \"{}:0\"]", gateway.trim());
    std::fs::write(host.config(), config.replacen("listen = [\"127.0.0.1:0\"]", &listen, 1)).unwrap();
    host.up().unwrap();
    let token = {
        let agent = tenant(&host, "dev-1");
        orchestrator(&host).call("begin_work", &json!({ "agent": "dev-1", "project": "open" })).evidence();
        agent.token().unwrap().to_owned()
    };
    // Once more with a box that was adopted.
    for _ in 0..2 {
        let agent = host.nobody().with_token(&token);
        let log = host.log();
        let last = log.iter().rfind(|l| l["fields"]["message"] == "listening").unwrap();
        let port = last["fields"]["address"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
        let call = |host: &str, port: &str, line: &str| {
            // Held open until there was an answer, since a caller that is gone gets none.
            format!("(printf '{line}\\r\\n\\r\\n'; sleep 1) | nc -w 9 {host} {port}")
        };
        let healthz = call(gateway.trim(), &port, "GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close");
        let redis =
            agent.call("request_sandbox", &json!({ "services": ["redis"] })).evidence()["redis"]["host"].clone();
        // From where an agent may be, the host answers.
        let network = host.network();
        let beside = ["run", "--rm", "--network", &network, "sandbar-standin/busybox:test", "sh", "-c", &healthz];
        assert!(docker(beside).unwrap().contains("200 OK"));
        assert!(out(&agent, "home", &call(redis.as_str().unwrap(), "6379", "PING")).contains("NOAUTH"));
        assert_eq!(sh(&agent, "home", &healthz)["stdout"], "");
        assert!(out(&agent, "home", "ip route").contains("169.254.0.0/16"));
        host.kill();
        host.up().unwrap();
    }
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn what_a_command_started_ends_with_it() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    for service in ["box", "home"] {
        let name = |s: &str| host.containers().into_iter().find(|c| c.contains(&format!("-{s}-"))).unwrap();
        out(&agent, service, "true");
        let container = name(service);
        // Everything that the line starts has this in its arguments, its shells too.
        let runs = || docker(["top", &container, "-eo", "pid,args"]).unwrap().contains("sleep 400");
        let line =
            "setsid sleep 4001 & trap '' TERM; (setsid sh -c 'trap \"\" TERM; sleep 4002; sleep 4003' &) ; sleep 4004";
        let began = std::time::Instant::now();
        let ran = agent.call("run_command", &json!({ "service": service, "command": line, "deadline_secs": 1 }));
        assert_eq!((&ran.evidence()["exit_code"], &ran.evidence()["timed_out"]), (&json!(124), &json!(true)));
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "it was not waited for");
        assert!(!runs(), "something is left");
        // A caller that goes away.
        agent.hang_up("run_command", &json!({ "service": service, "command": line }), || {
            wait("the command", runs);
        });
        wait("its end", || !runs());
        assert_eq!(out(&agent, service, "echo next"), "next");
    }
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_command_that_a_killed_host_left_ends_when_the_next_one_finds_its_box() {
    let mut host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let line = "echo work > file; setsid sleep 4001 & (setsid env -i sleep 4002 &) ; sleep 4003";
    let services = ["box", "home"];
    for service in services {
        out(&agent, service, "sleep 5000 >/dev/null 2>&1 &");
    }
    let containers = host.containers();
    let runs = |what: &str| {
        containers.iter().filter(|c| docker(["top", c, "-eo", "pid,args"]).is_ok_and(|top| top.contains(what))).count()
    };
    std::thread::scope(|scope| {
        for service in services {
            let body = json!({ "service": service, "command": line }).to_string();
            let agent = &agent;
            scope.spawn(move || agent.try_send("run_command", &body));
        }
        wait("the commands", || runs("sleep 4002") == 2);
        host.kill();
    });
    assert_eq!((runs("sleep 4001"), runs("sleep 4003")), (2, 2), "nobody is there to end them");
    host.up().unwrap();
    wait("their end", || runs("sleep 400") == 0);
    assert_eq!(runs("sleep 5000"), 2, "what was over is left alone");
    let agent = host.nobody().with_token(agent.token().unwrap());
    for service in services {
        assert_eq!(out(&agent, service, "cat file"), "work");
    }
    assert_eq!(host.containers(), containers);
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_work_folder_that_its_user_closed_is_opened_by_the_next_start() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..boxes("") });
    let mut agent = tenant(&host, "dev-1");
    for mode in ["000", "111", "644"] {
        for service in ["box", "home"] {
            out(&agent, service, &format!("echo kept > file; chmod {mode} ."));
        }
        host.down().unwrap();
        host.up().unwrap();
        agent = host.nobody().with_token(agent.token().unwrap());
        assert_eq!(out(&agent, "box", "cat file"), "kept", "{mode}");
        agent.call("release_sandbox", &json!({})).evidence();
        assert_eq!(out(&agent, "home", "cat file"), "kept", "{mode}");
    }
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_quick_command_that_fills_its_box_is_told() {
    let host = TestHost::start_with(boxes("[boxes]\nmax_bytes = 5000000\n"));
    let agent = tenant(&host, "dev-1");
    let fill = json!({ "service": "box", "command": "head -c 6000000 /dev/zero > filled" });
    let answer = agent.call("run_command", &fill);
    assert_eq!(
        (answer.code(), answer.error("message").contains("5000000 bytes")),
        ("invalid_state", true),
        "{answer:?}"
    );
    assert_eq!(out(&agent, "box", "rm filled; echo room"), "room");
}

#[test]
fn what_a_command_left_may_not_fill_its_box() {
    let host = TestHost::start_with(boxes("[boxes]\nmax_bytes = 5000000\n"));
    let agent = tenant(&host, "dev-1");
    out(&agent, "box", "sleep 5000 >/dev/null 2>&1 &");
    let container = host.containers().pop().unwrap();
    let runs = |what: &str| docker(["top", &container, "-eo", "pid,args"]).unwrap().contains(what);
    let filling = "while :; do head -c 100000 /dev/zero >> filled; sleep 0.05; done";
    out(&agent, "box", &format!("setsid env -i sh -c '{filling}' >/dev/null 2>&1 &"));
    wait("it is ended", || !runs("filled"));
    assert!(!runs("sleep 5000"), "nobody knows which of them it was");
    let log = host.log();
    assert!(log.iter().any(|l| l.to_string().contains("fills it, and is ended")), "{log:?}");
    let bytes: u64 = out(&agent, "box", "stat -c %s filled").parse().unwrap();
    assert!(bytes > 5_000_000, "it was ended for that");
    assert_eq!(out(&agent, "box", "rm filled; echo room > file; cat file"), "room");
    assert_eq!(host.containers(), [container]);
}

#[test]
fn throwaway_is_closed_and_retained_sleeps() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..boxes("") });
    let agent = tenant(&host, "dev-1");
    for service in ["box", "home"] {
        out(&agent, service, "echo mine > file");
    }
    assert_eq!(
        (states(&host, "box"), states(&host, "kept"), folders(&host)),
        (vec!["running".into()], vec!["running".into()], 2)
    );
    let kept = host.containers().into_iter().find(|c| c.contains("-kept-")).unwrap();
    let id = || docker(["inspect", "--format", "{{.Id}}", &kept]).unwrap();
    let first = id();

    // Over a restart of the host both go on.
    host.down().unwrap();
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    for service in ["box", "home"] {
        assert_eq!(out(&agent, service, "cat file"), "mine", "{service}");
    }
    agent.call("release_sandbox", &json!({})).evidence();
    wait("the throwaway one to be closed", || states(&host, "box").is_empty() && folders(&host) == 1);
    assert_eq!(states(&host, "kept"), ["exited"]);

    // Asleep over another restart, with a kill this time.
    host.kill();
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    assert_eq!(states(&host, "kept"), ["exited"]);
    assert_eq!(out(&agent, "home", "cat file"), "mine");
    assert_eq!(id(), first, "it was woken, and not made anew");

    // Gone behind the host's back: made anew, and its files are still there.
    docker(["rm", "--force", &kept]).unwrap();
    assert_eq!(out(&agent, "home", "cat file"), "mine");
    assert_ne!(id(), first);

    orchestrator(&host).call("end_work", &json!({ "agent": "dev-1", "outcome": "done" })).evidence();
    assert_eq!((states(&host, "kept"), folders(&host)), (vec!["exited".to_owned()], 1));
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    assert_eq!((host.containers(), folders(&host)), (Vec::new(), 0));
}

#[test]
fn tenants_never_meet_and_nothing_names_them() {
    let host = TestHost::start_with(boxes(""));
    let (a, b) = (tenant(&host, "dev-one"), tenant(&host, "dev-two"));
    for (client, word) in [(&a, "one"), (&b, "two")] {
        for service in ["box", "home"] {
            out(client, service, &format!("echo {word} > file"));
        }
    }
    for (client, word) in [(&a, "one"), (&b, "two")] {
        for service in ["box", "home"] {
            assert_eq!(out(client, service, "cat file"), word);
        }
    }
    // The same agent on another project is another tenant.
    orchestrator(&host).call("begin_work", &json!({ "agent": "dev-one", "project": "shop" })).evidence();
    assert_eq!(out(&a, "home", "ls"), "");
    for container in host.containers() {
        let labels = docker(["inspect", "--format", "{{json .Config.Labels}} {{json .Mounts}}", &container]).unwrap();
        for word in ["dev-one", "dev-two", "shop"] {
            assert!(!container.contains(word) && !labels.contains(word), "{container} {labels}");
        }
    }
    for line in host
        .log()
        .iter()
        .map(ToString::to_string)
        .filter(|l| ["run_command", "\"made\"", "adopted", "released"].iter().any(|word| l.contains(word)))
    {
        assert!(!line.contains("dev-one") && !line.contains("dev-two"), "{line}");
    }
    host.operator().call("remove_agent", &json!({ "agent": "dev-one" })).evidence();
    host.operator().call("remove_agent", &json!({ "agent": "dev-two" })).evidence();
}

#[test]
fn the_least_recently_used_one_makes_room() {
    let host = TestHost::start_with(boxes("[retention]\nmax_live = 2\n"));
    let agents = ["a", "b", "c"].map(|name| tenant(&host, name));
    for agent in &agents[..2] {
        out(agent, "home", "echo x > file");
    }
    let waiting = || {
        let filter = format!("label={}.installation={}", host.namespace, host.installation);
        let running = docker(["ps", "--quiet", "--filter", &filter]).unwrap();
        let tops = running.lines().map(|id| docker(["top", id, "-eo", "pid,args"]).unwrap_or_default());
        tops.filter(|top| top.contains("until test")).count()
    };
    let wait_in = |agent: &Client| {
        let agent = agent.clone();
        std::thread::spawn(move || sh(&agent, "home", "until test -e go; do sleep 0.1; done; cat file"))
    };
    let first = wait_in(&agents[0]);
    wait("the command to run", || waiting() == 1);
    // Used more recently, but the other one is busy.
    out(&agents[2], "home", "echo z > file");
    assert_eq!(states(&host, "kept").iter().filter(|s| *s == "running").count(), 2);
    let second = wait_in(&agents[2]);
    wait("both to be busy", || waiting() == 2);
    let refused = agents[1].call("run_command", &json!({ "service": "home", "command": "true" }));
    assert_eq!((refused.status, refused.code()), (429, "capacity"));
    for agent in [&agents[0], &agents[2]] {
        agent.call("write_file", &json!({ "service": "home", "path": "go", "content": "" })).evidence();
    }
    assert_eq!(first.join().unwrap()["stdout"], "x\n");
    assert_eq!(second.join().unwrap()["stdout"], "z\n");
    assert_eq!(out(&agents[1], "home", "cat file"), "x");
    for name in ["a", "b", "c"] {
        host.operator().call("remove_agent", &json!({ "agent": name })).evidence();
    }
}

#[test]
fn what_slept_for_long_enough_is_deleted() {
    let host = TestHost::start_with(boxes("[retention]\ndelete_after_secs = 0\n[janitor]\nevery_secs = 1\n"));
    let agent = tenant(&host, "dev-1");
    out(&agent, "home", "echo mine > file");
    agent.call("release_sandbox", &json!({})).evidence();
    wait("it to be deleted", || host.containers().is_empty() && folders(&host) == 0);
    assert_eq!(out(&agent, "home", "ls"), "");
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
}

#[test]
fn a_retained_database_keeps_its_rows_and_its_password() {
    let mut host = TestHost::start_with(Options {
        keep_on_shutdown: true,
        publish: "loopback",
        services: vec!["postgres"],
        more: "[projects.kept]\nservices = [\"postgres\", \"redis\"]\nretained = [\"postgres\"]\n\
               [orchestrators.boxes]\ntoken = { env = \"TEST_BOXES\" }\nprojects = [\"kept\"]\n"
            .to_owned(),
        env: vec![("TEST_BOXES".to_owned(), "orchestrator-of-boxes-in-a-test".to_owned())],
        ..Options::default()
    });
    let agent = tenant(&host, "dev-1");
    let connect = |client: &Client| {
        let evidence = client.call("request_sandbox", &json!({})).evidence().clone();
        let url = evidence["postgres"]["env"]["DATABASE_URL"].as_str().unwrap().to_owned();
        (evidence, postgres::Client::connect(&url, postgres::NoTls).unwrap())
    };
    let rows = |db: &mut postgres::Client| db.query_one("select count(*) from t", &[]).unwrap().get::<_, i64>(0);
    let steps = |client: &Client| {
        let explained = client.call("request_sandbox", &json!({ "services": ["postgres"], "explain": true }));
        let timeline = explained.evidence()["postgres"]["timeline"].as_array().unwrap().clone();
        timeline.iter().map(|row| row["step"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (first, mut db) = connect(&agent);
    assert_eq!(steps(&agent), ["plan", "create", "start", "ready", "setup"]);
    db.batch_execute("create table t (a int); insert into t values (1), (2)").unwrap();
    drop(db);
    agent.call("release_sandbox", &json!({})).evidence();
    assert_eq!(states(&host, "kept"), ["exited"]);

    let (second, mut db) = connect(&agent);
    assert_eq!(steps(&agent), ["plan", "start", "ready", "setup"], "it was woken");
    assert_eq!(rows(&mut db), 2);
    assert_eq!(second["postgres"]["password"], first["postgres"]["password"]);
    assert_ne!(second["redis"]["password"], first["redis"]["password"]);
    drop(db);

    host.kill();
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    let (third, mut db) = connect(&agent);
    assert_eq!(steps(&agent), [] as [&str; 0], "it was found");
    assert_eq!((rows(&mut db), &third["postgres"]["password"]), (2, &first["postgres"]["password"]));
    drop(db);

    // Made anew with a feature, around the same data.
    let kept = host.containers().into_iter().find(|c| c.contains("-kept-")).unwrap();
    docker(["rm", "--force", &kept]).unwrap();
    let (fourth, mut db) = connect(&agent);
    assert_eq!((rows(&mut db), &fourth["postgres"]["password"]), (2, &first["postgres"]["password"]));
    drop(db);
    let volumes = || host.left().unwrap().iter().filter(|l| l.starts_with("volume ")).count();
    assert_eq!(volumes(), 1);
    host.operator().call("remove_agent", &json!({ "agent": "dev-1" })).evidence();
    assert_eq!(volumes(), 0);
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn artifacts_outlive_their_box_and_are_their_maker_s() {
    let host = TestHost::start_with(boxes(""));
    let (a, b) = (tenant(&host, "dev-one"), tenant(&host, "dev-two"));
    out(&a, "box", "echo report > r; head -c 70000000 /dev/zero > big; ln -s /etc/passwd out");
    let made = a.call("create_artifact", &json!({ "service": "box", "path": "r", "name": "the report" }));
    let made = made.evidence().clone();
    assert_eq!((&made["sha256"], &made["size"]), (&json!(sandbar_core::secret::sha256_hex("report\n")), &json!(7)));
    let id = json!({ "id": made["id"] });
    assert_eq!(b.call("read_artifact", &id).status, 404);
    assert_eq!(host.orchestrator().call("read_artifact", &id).status, 404, "it is of another project");
    assert_eq!(orchestrator(&host).call("read_artifact", &id).evidence()["content"], "report\n");
    let create = |path: &str| a.call("create_artifact", &json!({ "service": "box", "path": path, "name": "x" })).status;
    assert_eq!((create("big"), create("out"), create("missing")), (413, 400, 404));

    out(&a, "box", "echo another > r");
    let update =
        |client: &Client| client.call("update_artifact", &json!({ "service": "box", "id": made["id"], "path": "r" }));
    assert_eq!(update(&b).status, 404);
    assert_ne!(update(&a).evidence()["sha256"], made["sha256"]);
    a.call("release_sandbox", &json!({})).evidence();
    assert_eq!(a.call("read_artifact", &id).evidence()["content"], "another\n");
    let stored = || std::fs::read_dir(host.dir.path().join("state/artifacts")).unwrap().count();
    assert_eq!(stored(), 1, "what nobody has any more is gone");
    host.operator().call("remove_agent", &json!({ "agent": "dev-one" })).evidence();
    assert_eq!(stored(), 0);
    assert_eq!(orchestrator(&host).call("read_artifact", &id).status, 404);
    host.operator().call("remove_agent", &json!({ "agent": "dev-two" })).evidence();
}

#[test]
fn local_only_refuses_a_docker_elsewhere_for_every_verb() {
    let docker = "host = \"tcp://127.0.0.1:1\"".to_owned();
    let options = boxes("[privacy]\nmode = \"local_only\"\n");
    let host = TestHost::start_with(Options { docker, ..options });
    let agent = tenant(&host, "dev-1");
    for (verb, body) in [
        ("request_sandbox", json!({})),
        ("run_command", json!({ "service": "box", "command": "true" })),
        ("read_file", json!({ "service": "box", "path": "x" })),
        ("write_file", json!({ "service": "box", "path": "x", "content": "" })),
        ("list_files", json!({ "service": "box" })),
        ("create_artifact", json!({ "service": "box", "path": "x", "name": "x" })),
    ] {
        let answer = agent.call(verb, &body);
        assert_eq!(answer.status, 409, "{verb}");
        assert!(answer.error("message").contains("on another machine"), "{verb}: {}", answer.error("message"));
    }
}
