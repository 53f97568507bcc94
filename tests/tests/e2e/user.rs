//! A user of `sandbar` on a machine of their own, for the tests of the commands for people.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use sandbar_tests::docker::with_label;
use sandbar_tests::host::{sandbar, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::Value;

/// A user who has never configured anything, but for where the images and the engines are.
pub(crate) struct User {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) namespace: String,
}

impl User {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    pub(crate) fn with(more: &str) -> Self {
        // For its namespace, and the images that go with it.
        let host = TestHost::prepare(Options { more: String::new(), ..Options::default() });
        let (_, images) =
            fs::read_to_string(host.config()).unwrap().split_once("[images]").map(|(_, i)| ((), i.to_owned())).unwrap();
        let dir = tempfile::Builder::new().prefix("sandbar-test-").tempdir().unwrap();
        let user = Self { dir, namespace: host.namespace.clone() };
        fs::create_dir_all(user.dir.path().join("config/sandbar")).unwrap();
        let engines = Options::default().engines;
        user.write(&format!(
            "[host]\nnamespace = {:?}\n[plugins]\ndir = {engines:?}\n{more}\n[images]{images}",
            user.namespace
        ));
        user
    }

    pub(crate) fn write(&self, config: &str) {
        fs::write(self.dir.path().join("config/sandbar/local.toml"), config).unwrap();
    }

    /// Has another image run in place of one.
    pub(crate) fn run_instead(&self, upstream: &str, image: &str) {
        let path = self.dir.path().join("config/sandbar/local.toml");
        let config = fs::read_to_string(path).unwrap();
        let line = format!("{upstream:?} = ");
        let lines = config.lines().filter(|l| !l.starts_with(&line)).collect::<Vec<_>>().join("\n");
        self.write(&format!("{lines}\n{line}{image:?}\n"));
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        [
            ("HOME", path("")),
            ("XDG_CONFIG_HOME", path("config")),
            ("SANDBAR_HOME", path("home")),
            ("USER", "tester".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(sandbar());
        command.args(args).envs(self.env()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// What it prints when it succeeds.
    pub(crate) fn good(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says when it fails.
    pub(crate) fn bad(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub(crate) fn rows(&self) -> Vec<Value> {
        serde_json::from_str(&self.good(&["ps", "--json"])).unwrap()
    }

    pub(crate) fn containers(&self) -> Vec<String> {
        let left = with_label(&format!("{}.sandbox=1", self.namespace)).unwrap();
        // Its network stays.
        left.into_iter().filter(|left| left.starts_with("container")).collect()
    }

    /// The process of its host.
    pub(crate) fn host(&self) -> Option<u32> {
        let config = self.home().join("sandbar.toml").display().to_string();
        let is_it = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split('\0').any(|arg| arg == "serve") && line.contains(&config)
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_it)
    }

    pub(crate) fn kill(&self) {
        let pid = self.host().unwrap();
        Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
        wait("it is gone", || self.host().is_none());
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
        if let Some(pid) = self.host() {
            let _ = Command::new("kill").args(["-TERM", &pid.to_string()]).status();
        }
        if !std::thread::panicking() {
            wait("nothing is left", || self.containers().is_empty() && self.host().is_none());
        }
        let network = format!("{}_default", self.namespace);
        let _ = Command::new("docker")
            .args(["network", "rm", &network])
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
    }
}

/// The variables that `up` has printed, as a shell reads them.
pub(crate) fn exported(printed: &str) -> BTreeMap<String, String> {
    let output = Command::new("env").arg("-i").args(["sh", "-c", &format!("{printed}env")]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Logs in to the Redis of these variables and asks it something.
pub(crate) fn redis(env: &BTreeMap<String, String>, line: &str) -> String {
    let (rest, address) = env["REDIS_URL"].rsplit_once('@').unwrap();
    let password = rest.rsplit_once(':').unwrap().1;
    let mut stream = TcpStream::connect(address.trim_end_matches("/0")).unwrap();
    write!(stream, "AUTH {password}\r\n{line}\r\nQUIT\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

/// A command on a terminal of its own, by `script`.
pub(crate) struct Terminal {
    child: Child,
    input: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub(crate) fn open(user: &User, line: &str) -> Self {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", line, "/dev/null"]).env("TERM", "xterm").envs(user.env());
        let path = std::env::var("PATH").unwrap_or_default();
        script.env("PATH", format!("{}:{path}", sandbar().parent().unwrap().display()));
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let shown = Arc::new(Mutex::new(Vec::new()));
        let to = shown.clone();
        std::thread::spawn(move || {
            let mut read = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut read) {
                to.lock().unwrap().extend_from_slice(&read[..n]);
            }
        });
        Self { child, input, shown }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn shows(&self, text: &str) -> bool {
        self.shown().contains(text)
    }

    /// Everything that it has shown.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Waits until the command has ended, and answers its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}
