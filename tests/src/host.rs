//! A host of its own: a temporary directory, a namespace and installation that nobody else has, the real binary on a
//! free port. Dropping it ends it and fails the test if anything is left in Docker.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::client::Client;
use crate::docker::{docker, with_label};

/// How long the host may take to start or to end, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The operator's token of every test host.
pub const OPERATOR: &str = "operator-token-of-a-test";
/// The token of the orchestrator `main`, which may act for every project named `shop…`.
pub const ORCHESTRATOR: &str = "orchestrator-token-of-a-test";

/// How a test host differs from the ordinary one.
#[derive(Clone)]
pub struct Options {
    /// The namespace; with none one that nobody else has.
    pub namespace: Option<&'static str>,
    /// Text added to the end of the configuration.
    pub more: String,
    /// Services of the project `shop`.
    pub services: Vec<&'static str>,
    /// More lines of the table `[projects.shop]`.
    pub shop: String,
    /// Whether the master switch is on.
    pub enabled: bool,
    /// `none` or `loopback`.
    pub publish: &'static str,
    /// More lines of the table `[host]`.
    pub host: String,
    /// More lines of the table `[sandbox]`.
    pub sandbox: String,
    /// More lines of the table `[docker]`.
    pub docker: String,
    /// Which components are there: `engines` or `test-engines`.
    pub engines: PathBuf,
    /// Variables of the host's environment.
    pub env: Vec<(String, String)>,
    /// Arguments of `ulimit` that it is started under.
    pub ulimit: Option<&'static str>,
    /// A command that starts it, such as one that takes capabilities away.
    pub under: Vec<String>,
    /// What the host does with its sandboxes when it ends.
    pub keep_on_shutdown: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            namespace: None,
            more: String::new(),
            services: vec!["postgres", "redis"],
            shop: String::new(),
            enabled: true,
            publish: "none",
            host: String::new(),
            sandbox: String::new(),
            docker: String::new(),
            engines: folder("SANDBAR_ENGINES", "engines"),
            env: Vec::new(),
            ulimit: None,
            under: Vec::new(),
            keep_on_shutdown: false,
        }
    }
}

/// The engine whose every answer is set by the test, with these settings, as the service `fixture` of the project `shop`.
pub fn fixture(settings: &str) -> Options {
    Options {
        services: vec!["fixture"],
        engines: folder("SANDBAR_TEST_ENGINES", "test-engines"),
        more: format!("[engines.fixture]\nsettings = {{ {settings} }}\n"),
        ..Options::default()
    }
}

/// A component that somebody else made: no host of a test has it before it is added.
pub fn third_party(name: &str) -> PathBuf {
    folder("SANDBAR_TEST_ENGINES", "test-engines").join("third-party").join(format!("{name}.wasm"))
}

/// The engine in Python. It stands alone, since every host that found it would compile it.
pub fn python_engine() -> PathBuf {
    target().with_file_name("python").join("pycache.wasm")
}

/// The build directory: that of this program.
///
/// # Panics
/// When it was not built by cargo.
pub fn target() -> PathBuf {
    let exe = std::env::current_exe().expect("a program knows where it is");
    let built = exe.ancestors().find(|p| p.file_name().is_some_and(|n| n == "debug" || n == "release"));
    built.expect("it was built by cargo").to_owned()
}

fn folder(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| target().with_file_name(default), PathBuf::from)
}

/// The binary under test.
pub fn sandbar() -> PathBuf {
    target().join("sandbar")
}

/// The image with all extensions, as a host with the default namespace would call it.
pub const FULL_PG: &str = "sandbar-sandbox-pg:latest";

/// The `[images]` table for this machine: which images are stand-ins.
///
/// # Errors
/// When it was not written by `make setup`.
fn images() -> Result<String> {
    let path = folder("SANDBAR_IMAGES_TOML", "images.toml");
    fs::read_to_string(&path).with_context(|| format!("{} is missing: run `make setup`", path.display()))
}

/// What is run for an upstream image on this machine.
///
/// # Errors
/// When the table cannot be read.
pub fn image(upstream: &str) -> Result<String> {
    let images = images()?;
    let line = images.lines().find_map(|l| l.strip_prefix(&format!("\"{upstream}\" = \"")));
    Ok(line.map_or(upstream, |l| l.trim_end_matches('"')).to_owned())
}

/// The `[images]` table of a host. The image with all extensions is named after the namespace, and there is one for all
/// hosts.
fn images_of(namespace: &str) -> Result<String> {
    let table = images()?;
    let others = table.lines().filter(|l| !l.starts_with(&format!("\"{FULL_PG}\"")));
    let others: String = others.flat_map(|l| [l, "\n"]).collect();
    Ok(format!("{others}\"{namespace}-sandbox-pg:latest\" = {:?}\n", image(FULL_PG)?))
}

struct Running {
    child: Child,
    log: Arc<(Mutex<Vec<Value>>, Condvar)>,
}

/// A host, running or not.
pub struct TestHost {
    /// Its directory, with `sandbar.toml` and `state`.
    pub dir: tempfile::TempDir,
    /// Its namespace.
    pub namespace: String,
    /// Its installation.
    pub installation: String,
    options: Options,
    running: Option<Running>,
    base: String,
    log: Vec<Value>,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl TestHost {
    /// Starts the ordinary one.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    /// Starts one with options.
    ///
    /// # Panics
    /// When it does not start, with its log.
    pub fn start_with(options: Options) -> Self {
        let mut host = Self::prepare(options);
        host.up().expect("the host starts");
        host
    }

    /// Writes the configuration and starts nothing.
    ///
    /// # Panics
    /// When the directory cannot be written.
    pub fn prepare(options: Options) -> Self {
        let dir = tempfile::Builder::new().prefix("sandbar-test-").tempdir().expect("a temporary directory");
        let id = format!("{:x}x{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let host = Self {
            dir,
            // At most 12 characters.
            namespace: options.namespace.map_or_else(|| format!("t{}", &id[..id.len().min(11)]), str::to_owned),
            installation: format!("test-{id}"),
            options,
            running: None,
            base: String::new(),
            log: Vec::new(),
        };
        fs::write(host.config(), host.toml()).expect("the configuration is written");
        host
    }

    fn toml(&self) -> String {
        let Options {
            more, services, shop, enabled, publish, host, sandbox, docker, engines, keep_on_shutdown, ..
        } = &self.options;
        format!(
            "[host]\nlisten = [\"127.0.0.1:0\"]\nnamespace = {:?}\ninstallation = {:?}\nkeep_on_shutdown = {keep_on_shutdown}\n\
             operator_token = {{ env = \"TEST_OPERATOR\" }}\n{host}\n\
             [docker]\npublish = {publish:?}\n{docker}\n\
             [sandbox]\nenabled = {enabled}\n{sandbox}\n\
             [plugins]\ndir = {:?}\n\
             [orchestrators.main]\ntoken = {{ env = \"TEST_ORCHESTRATOR\" }}\nprojects = [\"shop\", \"shop-two\", \"shop-none\"]\n\
             [orchestrators.other]\ntoken = {{ env = \"TEST_OTHER\" }}\nprojects = [\"elsewhere\"]\n\
             [projects.shop]\nservices = {services:?}\ngate_env = {{ DATABASE_URL = \"postgresql://gate\" }}\n{shop}\n\
             [projects.shop-two]\nservices = {services:?}\n\
             [projects.shop-none]\ngate_env = {{ DATABASE_URL = \"postgresql://gate\", SECRET = {{ env = \"TEST_GATE\" }} }}\n\
             [projects.elsewhere]\nservices = {services:?}\n\
             {more}\n{}",
            self.namespace,
            self.installation,
            engines.display().to_string(),
            images_of(&self.namespace).expect("images were set up"),
        )
    }

    /// Sets a variable of its environment, from the next start on.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.options.env.push((name.to_owned(), value.to_owned()));
    }

    /// Unsets a variable of its environment again.
    pub fn unset_env(&mut self, name: &str) {
        self.options.env.retain(|(set, _)| set != name);
    }

    /// Its configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("sandbar.toml")
    }

    /// A command that runs `sandbar serve` on its configuration.
    pub fn command(&self) -> Command {
        self.subcommand("serve")
    }

    /// A command that runs another subcommand on its configuration.
    pub fn subcommand(&self, name: &str) -> Command {
        let mut command = match self.options.ulimit {
            Some(limit) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]).arg(sandbar());
                shell
            }
            None => match self.options.under.split_first() {
                Some((program, args)) => {
                    let mut command = Command::new(program);
                    command.args(args).arg(sandbar());
                    command
                }
                None => Command::new(sandbar()),
            },
        };
        command.arg(name).arg("--config").arg(self.config());
        command.env("TEST_OPERATOR", OPERATOR).env("TEST_ORCHESTRATOR", ORCHESTRATOR);
        command.env("TEST_OTHER", "other-orchestrator-of-a-test").env("TEST_GATE", "gate-secret");
        command.envs(self.options.env.iter().cloned());
        command
    }

    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// When it ends instead, with its log.
    pub fn up(&mut self) -> Result<()> {
        let mut child = self.command().stderr(Stdio::piped()).stdin(Stdio::null()).spawn()?;
        let stderr = child.stderr.take().context("its standard error is piped")?;
        let log = Arc::<(Mutex<Vec<Value>>, Condvar)>::default();
        let writer = log.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let entry = serde_json::from_str(&line).unwrap_or(json!({ "text": line }));
                writer.0.lock().expect("no reader panics while it holds this").push(entry);
                writer.1.notify_all();
            }
        });
        self.running = Some(Running { child, log });
        let address = self.wait_for_log("listening")?;
        self.base = format!("http://{}", address["fields"]["address"].as_str().context("it says where")?);
        // With a Docker that is not there it listens, and never gets further.
        if self.options.docker.contains("host") { Ok(()) } else { self.wait_for_log("serving").map(drop) }
    }

    /// Waits for a line of the log with this message.
    ///
    /// # Errors
    /// When the host ends, or it takes too long.
    pub fn wait_for_log(&mut self, message: &str) -> Result<Value> {
        self.wait_for(message, PATIENCE)
    }

    fn wait_for(&mut self, message: &str, patience: Duration) -> Result<Value> {
        let running = self.running.as_mut().context("it runs")?;
        let (log, changed) = &*running.log;
        let until = Instant::now() + patience;
        let mut lines = log.lock().expect("no writer panics while it holds this");
        loop {
            if let Some(line) = lines.iter().find(|l| l["fields"]["message"] == message) {
                return Ok(line.clone());
            }
            if let Some(status) = running.child.try_wait()? {
                bail!("the host ended with {status}:\n{}", tail(&lines));
            }
            if Instant::now() >= until {
                bail!("the host did not say `{message}`:\n{}", tail(&lines));
            }
            lines = changed.wait_timeout(lines, Duration::from_millis(200)).expect("no writer panics").0;
        }
    }

    /// Everything it has logged so far, in this run and earlier ones.
    ///
    /// # Panics
    /// Never, but for a panic of another thread.
    pub fn log(&self) -> Vec<Value> {
        let mut all = self.log.clone();
        if let Some(running) = &self.running {
            all.extend(running.log.0.lock().expect("no writer panics").iter().cloned());
        }
        all
    }

    /// Its process id.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("it runs").child.id()
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let _ = Command::new("kill").args([signal, &pid]).status();
    }

    /// Tells it to look at its engines again.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    /// Ends it as an operator would, and waits.
    ///
    /// # Errors
    /// When it does not end, or not well.
    pub fn down(&mut self) -> Result<()> {
        self.signal("-TERM");
        self.wait()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        let _ = self.wait();
    }

    /// Waits until it has ended by a kill.
    ///
    /// # Errors
    /// When it does not, or ends otherwise.
    pub fn wait_until_killed(&mut self) -> Result<()> {
        use std::os::unix::process::ExitStatusExt as _;
        self.log = self.log();
        let mut running = self.running.take().context("it runs")?;
        let until = Instant::now() + PATIENCE;
        loop {
            match running.child.try_wait()? {
                Some(status) if status.signal() == Some(9) => return Ok(()),
                Some(status) => bail!("the host ended with {status}"),
                None if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                None => {
                    running.child.kill()?;
                    running.child.wait()?;
                    bail!("the host did not end within {PATIENCE:?}")
                }
            }
        }
    }

    fn wait(&mut self) -> Result<()> {
        self.log = self.log();
        let Some(mut running) = self.running.take() else { return Ok(()) };
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if let Some(status) = running.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the host ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        running.child.kill()?;
        running.child.wait()?;
        bail!("the host did not end within {PATIENCE:?}")
    }

    /// The address that it serves on.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Nobody: a caller without a token.
    pub fn nobody(&self) -> Client {
        Client::new(&self.base, None)
    }

    /// The operator.
    pub fn operator(&self) -> Client {
        self.nobody().with_token(OPERATOR)
    }

    /// The orchestrator `main`.
    pub fn orchestrator(&self) -> Client {
        self.nobody().with_token(ORCHESTRATOR)
    }

    /// A freshly registered developer without work.
    ///
    /// # Panics
    /// When it cannot be registered.
    pub fn register(&self, name: &str) -> Client {
        let answer = self.orchestrator().call("register_agent", &json!({ "agent": name, "role": "developer" }));
        self.nobody().with_token(answer.evidence()["token"].as_str().expect("a token"))
    }

    /// A freshly registered developer that works on `shop`.
    ///
    /// # Panics
    /// When it cannot be registered.
    pub fn developer(&self, name: &str) -> Client {
        let client = self.register(name);
        self.orchestrator().call("begin_work", &json!({ "agent": name, "project": "shop" })).evidence();
        client
    }

    /// The network of its sandboxes.
    pub fn network(&self) -> String {
        format!("{}_default", self.namespace)
    }

    /// The name of a container that serves an agent.
    pub fn container(&self, slug: &str, agent: &str) -> String {
        format!("{}-sandbox-{slug}-{agent}", self.namespace)
    }

    /// Everything that it has in Docker.
    ///
    /// # Errors
    /// When Docker cannot be asked.
    pub fn left(&self) -> Result<Vec<String>> {
        with_label(&format!("{}.installation={}", self.namespace, self.installation))
    }

    /// The containers it has, by name.
    ///
    /// # Panics
    /// When Docker cannot be asked.
    pub fn containers(&self) -> Vec<String> {
        let left = self.left().expect("Docker answers");
        let names = left.iter().filter_map(|l| l.strip_prefix("container ")).filter_map(|l| l.split(' ').next());
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Waits until it has no containers.
    ///
    /// # Panics
    /// When that takes too long.
    pub fn wait_until_empty(&self) {
        wait("no container", || self.containers().is_empty());
    }

    /// Ends the host if it runs, and answers what it left in Docker. What is left is removed then.
    ///
    /// # Errors
    /// When it does not end well, or Docker cannot be asked.
    pub fn finish(&mut self) -> Result<Vec<String>> {
        let ended = if self.running.is_some() { self.down() } else { Ok(()) };
        let mut left = self.left()?;
        // Docker 20.10 miscounts when containers of a network are renamed and removed at once, and keeps the network then
        // for endpoints that nobody has. Whoever tries has the same answer, so the host cannot be blamed for it.
        let miscounted = |name: &str, e: &anyhow::Error| {
            let nobody = docker(["network", "inspect", "--format", "{{len .Containers}}", name]);
            format!("{e:#}").contains("has active endpoints") && nobody.is_ok_and(|n| n.trim() == "0")
        };
        left.retain(|line| {
            let (kind, name) = line.split_once(' ').unwrap_or((line, ""));
            let name = name.split(' ').next().unwrap_or(name);
            let removed = match kind {
                "container" => docker(["rm", "--force", "--volumes", name]),
                kind => docker([kind, "rm", name]),
            };
            let Err(e) = removed else { return true };
            eprintln!("{line} could not be removed: {e:#}");
            !(kind == "network" && miscounted(name, &e))
        });
        ended?;
        Ok(left)
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        let left = self.finish();
        if std::thread::panicking() {
            eprintln!("log of the host:\n{}", tail(&self.log));
            return;
        }
        match left {
            Ok(left) => assert!(left.is_empty(), "the host left behind: {left:#?}"),
            Err(e) => panic!("{e:#}\n{}", tail(&self.log)),
        }
    }
}

fn tail(log: &[Value]) -> String {
    let from = log.len().saturating_sub(40);
    log[from..].iter().map(|line| format!("{line}\n")).collect()
}

/// Waits until something is true.
///
/// # Panics
/// When it does not become true.
pub fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "waited in vain for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where the sources of the tests are.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where what tests need from elsewhere is kept.
pub fn cache() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    cache.join("sandbar")
}
