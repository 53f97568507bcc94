//! Docker goes away and comes back. Mostly it is a proxy before its socket that is cut and mended, so that the daemon
//! itself goes on for the other tests; the last test has a daemon of its own, which it stops and kills.

use std::path::{Path, PathBuf};
use std::process::Command;

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image, sources, wait};
use sandbar_tests::{Answer, Client, Options, TestHost};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};

/// Tells a call to Docker by the first line of its request.
type Call = fn(&str) -> bool;

/// A socket that leads to Docker's while it is up.
struct Proxy {
    dir: tempfile::TempDir,
    runtime: Runtime,
    task: Option<JoinHandle<()>>,
}

impl Proxy {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { dir: tempfile::tempdir().unwrap(), runtime, task: None }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    fn up(&mut self) {
        self.serve(None);
    }

    /// Up until Docker has begun to answer such a call: it has carried it out, the answer is lost, and everything is cut.
    fn up_until(&mut self, call: Call) {
        self.serve(Some(call));
    }

    fn serve(&mut self, until: Option<Call>) {
        self.down();
        self.unlink();
        let host = std::env::var("DOCKER_HOST").unwrap_or_default();
        let real = host.strip_prefix("unix://").unwrap_or("/var/run/docker.sock").to_owned();
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(self.path()).unwrap();
        self.task = Some(self.runtime.spawn(async move {
            // Dropped with this task, and every connection with it.
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    Ok((near, _)) = listener.accept() => drop(connections.spawn(carry(near, real.clone(), until))),
                    Some(end) = connections.join_next(), if !connections.is_empty() => {
                        if end.unwrap().is_ok_and(|lost| lost) { break }
                    }
                }
            }
        }));
    }

    /// Takes connections and says nothing, as a daemon that hangs.
    fn hang(&mut self) {
        self.down();
        self.unlink();
        let _inside = self.runtime.enter();
        let listener = UnixListener::bind(self.path()).unwrap();
        self.task = Some(self.runtime.spawn(async move {
            let _listener = listener;
            std::future::pending().await
        }));
    }

    /// Cuts every connection. The socket stays behind, as that of a daemon that was killed does.
    fn down(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // Until its connections are closed.
            let _ = self.runtime.block_on(task);
        }
    }

    fn unlink(&self) {
        let _ = std::fs::remove_file(self.path());
    }

    /// Whether the call that it was up for has come.
    fn was_cut(&self) -> bool {
        self.task.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

/// Carries a connection until one side ends it, or an answer is to be lost: that is `true`.
async fn carry(mut near: UnixStream, real: String, until: Option<Call>) -> std::io::Result<bool> {
    let mut far = UnixStream::connect(real).await?;
    let mut lost = false;
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            read = near.read(&mut asked) => {
                let asked = &asked[..read?];
                if asked.is_empty() { return Ok(false) }
                let line = asked.split(|b| *b == b'\r').next().unwrap_or_default();
                lost |= until.is_some_and(|call| call(&String::from_utf8_lossy(line)));
                far.write_all(asked).await?;
            }
            read = far.read(&mut answered) => {
                let answered = &answered[..read?];
                if answered.is_empty() || lost { return Ok(lost) }
                near.write_all(answered).await?;
            }
        }
    }
}

/// A host that reaches Docker at this socket.
fn host_at(socket: &Path, options: Options) -> TestHost {
    let mut host =
        TestHost::start_with(Options { docker: format!("host = \"unix://{}\"\n", socket.display()), ..options });
    host.wait_for_log("serving").unwrap();
    host
}

fn ask(agent: &Client) -> Answer {
    agent.call("request_sandbox", &json!({}))
}

fn refused(answer: &Answer) {
    assert_eq!((answer.status, answer.code()), (503, "invalid_state"), "{:#}", answer.body);
    assert!(answer.retry_after.is_some_and(|s| s > 0));
    assert!(answer.error("message").contains("the container runtime is not reachable"), "{:#}", answer.body);
    let error = &answer.body["error"];
    assert_eq!((&error["retryable"], &error["details"]["reason"]), (&json!(true), &json!("runtime_away")));
}

/// Waits until the host says of itself that it cannot take requests, and answers why.
fn noticed_away(host: &TestHost) -> String {
    wait("the host to notice", || host.nobody().get("/readyz").status == 503);
    let why = host.nobody().get("/readyz").body["state"].as_str().unwrap().to_owned();
    assert!(why.contains("the container runtime is not reachable"), "{why}");
    why
}

fn noticed_back(host: &TestHost) {
    wait("the host to notice", || host.nobody().get("/readyz").status == 200);
}

/// Which container it is, and whether it runs.
fn id(container: &str) -> String {
    docker(["inspect", "--format", "{{.Id}} {{.State.Running}}", container]).unwrap()
}

#[test]
fn an_outage_is_noticed_and_nothing_is_lost() {
    let mut proxy = Proxy::new();
    proxy.up();
    let host = host_at(&proxy.path(), fixture(""));
    let agent = host.developer("dev-1");
    let before = ask(&agent).evidence().clone();
    let container = id(&host.container("fix", "dev-1"));
    for socket_stays in [true, false] {
        proxy.down();
        if !socket_stays {
            proxy.unlink();
        }
        // Nobody has called.
        noticed_away(&host);
        assert_eq!(host.nobody().get("/healthz").status, 200);
        refused(&ask(&agent));
        refused(&ask(&host.developer(&format!("new-{socket_stays}"))));
        // Nothing is concluded from it.
        assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "live");
        assert_eq!(id(&host.container("fix", "dev-1")), container);

        proxy.up();
        noticed_back(&host);
        assert_eq!(ask(&agent).evidence(), &before);
        assert_eq!(id(&host.container("fix", "dev-1")), container);
    }
    assert_eq!(host.containers(), [host.container("fix", "dev-1")]);
}

#[test]
fn no_call_waits_for_the_host_to_notice() {
    let mut proxy = Proxy::new();
    proxy.up();
    let host = host_at(&proxy.path(), fixture(""));
    let agent = host.developer("dev-1");
    let before = ask(&agent).evidence().clone();
    for _ in 0..3 {
        proxy.down();
        refused(&ask(&agent));
        proxy.up();
        assert_eq!(ask(&agent).evidence(), &before);
    }
}

#[test]
fn a_docker_that_hangs_is_away() {
    let mut proxy = Proxy::new();
    proxy.up();
    let host = host_at(&proxy.path(), fixture(""));
    let agent = host.developer("dev-1");
    let before = ask(&agent).evidence().clone();
    proxy.hang();
    let why = noticed_away(&host);
    assert!(why.contains("does not answer"), "{why}");
    refused(&ask(&agent));
    proxy.up();
    assert_eq!(ask(&agent).evidence(), &before);
}

#[test]
fn what_was_started_again_meanwhile_is_made_anew() {
    let mut proxy = Proxy::new();
    proxy.up();
    let host = host_at(&proxy.path(), fixture(""));
    let agent = host.developer("dev-1");
    for _ in 0..3 {
        let before = ask(&agent).evidence().clone();
        proxy.down();
        docker(["restart", "--time", "0", &host.container("fix", "dev-1")]).unwrap();
        proxy.up();
        // At once, before Docker's events are followed again.
        let after = ask(&agent).evidence().clone();
        assert_ne!(after["fixture"]["password"], before["fixture"]["password"]);
    }
    wait("the old ones to go", || host.containers() == [host.container("fix", "dev-1")]);
}

#[test]
fn what_is_given_back_meanwhile_goes_afterwards() {
    let mut proxy = Proxy::new();
    proxy.up();
    let host = host_at(&proxy.path(), fixture(""));
    let (first, second) = (host.developer("dev-1"), host.developer("dev-2"));
    let before = ask(&first).evidence().clone();
    ask(&second).evidence();
    proxy.down();
    assert_eq!(first.call("release_sandbox", &json!({})).evidence()["released"], json!(["fixture"]));
    let gone = host.orchestrator().call("end_work", &json!({ "agent": "dev-2", "outcome": "done" }));
    assert_eq!(gone.evidence()["ended"], true);
    assert_eq!(first.call("sandbox_status", &json!({})).evidence()["state"], "absent");
    assert_eq!(host.containers(), [host.container("fix", "dev-1"), host.container("fix", "dev-2")]);

    proxy.up();
    // Its name is still taken, if nothing was faster.
    let after = ask(&first).evidence().clone();
    assert_ne!(after["fixture"]["password"], before["fixture"]["password"]);
    wait("the old ones to go", || host.containers() == [host.container("fix", "dev-1")]);
    assert_eq!(ask(&first).evidence(), &after);
}

#[test]
fn a_provision_that_is_cut_off_leaves_nothing() {
    let steps: [(&str, Call); 7] = [
        ("the network is made", |line| line.starts_with("POST /networks/create")),
        ("the container is made", |line| line.starts_with("POST /containers/create")),
        ("it is started", |line| line.starts_with("POST /containers/") && line.contains("/start")),
        ("its end is waited for", |line| line.starts_with("POST /containers/") && line.contains("/wait")),
        ("a probe is made", |line| line.starts_with("POST /containers/") && line.contains("/exec")),
        ("the probe is started", |line| line.starts_with("POST /exec/")),
        ("it gets its final name", |line| line.starts_with("POST /containers/") && line.contains("/rename")),
    ];
    let mut proxy = Proxy::new();
    proxy.up();
    let mut host = host_at(&proxy.path(), fixture(""));
    let agent = host.developer("dev-1");
    for (what, call) in steps {
        proxy.up_until(call);
        refused(&ask(&agent));
        wait(&format!("the cut once {what}"), || proxy.was_cut());
        noticed_away(&host);
        assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "absent", "{what}");
        // Docker did what was asked; what came of it is there and nobody can remove it now.
        let left = host.containers();
        assert_eq!(left.len(), usize::from(!what.contains("network")), "{what}: {left:?}");

        proxy.up();
        ask(&agent).evidence();
        wait("nothing else", || host.containers() == [host.container("fix", "dev-1")]);
        agent.call("release_sandbox", &json!({})).evidence();
        host.wait_until_empty();
    }
    // A host that goes down would wait for what the lost calls may still bring, and here they bring nothing.
    host.kill();
    assert_eq!(host.left().unwrap(), [format!("network {}", host.network())]);
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn a_start_without_docker_decides_nothing() {
    let mut proxy = Proxy::new();
    proxy.up();
    let mut host = host_at(&proxy.path(), Options { keep_on_shutdown: true, ..fixture("") });
    let agent = host.developer("dev-1");
    let before = ask(&agent).evidence().clone();
    let container = id(&host.container("fix", "dev-1"));
    host.down().unwrap();

    proxy.down();
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    refused(&ask(&agent));
    assert_eq!(agent.call("sandbox_status", &json!({})).status, 503, "the books are not complete");
    assert_eq!(host.nobody().get("/readyz").status, 503);
    // It comes, and goes again half way through the look at what exists.
    proxy.up_until(|line| line.starts_with("POST /exec/"));
    wait("the look to be cut off", || proxy.was_cut());
    refused(&ask(&agent));
    assert_eq!(id(&host.container("fix", "dev-1")), container);

    proxy.up();
    host.wait_for_log("serving").unwrap();
    assert_eq!(ask(&agent).evidence(), &before);
    assert_eq!(id(&host.container("fix", "dev-1")), container);
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

/// A daemon that a test may stop, with one image.
struct Daemon {
    dir: tempfile::TempDir,
}

impl Daemon {
    fn start() -> Self {
        let daemon = Self { dir: tempfile::tempdir().unwrap() };
        assert!(daemon.script("start"));
        let image = image("redis:8-alpine").unwrap();
        let archive = daemon.dir.path().join("image.tar").display().to_string();
        docker(["save", "--output", &archive, &image]).unwrap();
        daemon.docker(&["load", "--input", &archive]);
        daemon
    }

    fn script(&self, verb: &str) -> bool {
        let script = sources().join("docker/newer.sh");
        Command::new(script).arg(verb).arg(self.dir.path()).status().unwrap().success()
    }

    fn kill(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("pid")).unwrap();
        let status = Command::new("kill").args(["-KILL", pid.split(' ').next().unwrap()]).status().unwrap();
        assert!(status.success());
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    fn docker(&self, args: &[&str]) -> String {
        let host = format!("unix://{}", self.socket().display());
        docker(["--host", &host].iter().chain(args)).unwrap()
    }

    fn containers(&self) -> Vec<String> {
        self.docker(&["ps", "--all", "--format", "{{.Names}}"]).lines().map(str::to_owned).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.script("stop") {
            eprintln!("a daemon could not be stopped: {}", self.dir.path().display());
        }
    }
}

#[test]
#[ignore = "starts a daemon, which takes root: `make e2e-newer` runs it"]
fn what_a_restart_of_docker_ended_is_made_anew() {
    let daemon = Daemon::start();
    let mut host = host_at(&daemon.socket(), fixture("run = \"trap exit TERM; sleep 3600 & wait\""));
    let agents = [host.developer("dev-1"), host.developer("dev-2")];
    let names = ["dev-1", "dev-2"].map(|agent| host.container("fix", agent));
    let password = |agent: &Client| ask(agent).evidence()["fixture"]["password"].clone();
    for end in [Daemon::kill as fn(&Daemon), |daemon| assert!(daemon.script("stop"))] {
        let before = agents.each_ref().map(password);
        assert_eq!(agents.each_ref().map(password), before);
        end(&daemon);
        noticed_away(&host);
        refused(&ask(&agents[0]));
        assert!(daemon.script("start"));
        noticed_back(&host);
        let states = daemon.docker(&["ps", "--all", "--format", "{{.State}}"]);
        assert_eq!(states, "exited\nexited", "the restart ended them");
        let after = agents.each_ref().map(password);
        assert!(after.iter().zip(&before).all(|(a, b)| a != b), "the same credentials");
        wait("the old ones to go", || {
            let mut left = daemon.containers();
            left.sort();
            left == names
        });
        assert_eq!(daemon.docker(&["ps", "--format", "{{.State}}"]), "running\nrunning");
    }
    host.down().unwrap();
    assert_eq!(daemon.containers(), Vec::<String>::new());
    assert_eq!(daemon.docker(&["network", "ls", "--quiet", "--filter", &format!("name={}", host.network())]), "");
}
