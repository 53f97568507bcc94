//! A host of this user's own, without a configuration: `sandbar mcp`, `up`, `down` and `ps` find it at its socket, or start
//! it. It is the same host as any; what is special is who writes its configuration.

mod containers;
mod link;
mod mcp;
mod progress;
mod services;

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use sandbar_core::secret::random_hex;
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::time::Instant;

use crate::state;
pub(crate) use containers::{Connect, Logs, connect, logs};
use link::Link;
pub(crate) use mcp::mcp;
pub(crate) use services::{Down, Ps, Up, down, ps, up};

/// The project of what `up` makes.
const PROJECT: &str = "local";
/// What the projects of `up --exec` begin with, whose sandboxes are nobody else's.
const EXEC_PROJECT: &str = "local-exec";
/// How long a host may take until it answers. The first time it compiles the engines.
const START_DEADLINE: Duration = Duration::from_secs(120);
/// The host's own directory, in that of the user's host.
const STATE: &str = "state";
/// Pause between two tries to reach a host that starts.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What is made stays until it is asked to go: the longest lease there is, a year.
const LEASE_SECS: i64 = 365 * 86_400;
/// How long the log may be when a host starts, in bytes; then the one before it is dropped.
const LONGEST_LOG: u64 = 16 << 20;
/// The longest path of a socket that the kernel takes, in bytes.
const LONGEST_SOCKET: usize = 107;

/// Where the host of this user is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// The directory of the host; by default `$XDG_STATE_HOME/sandbar` or `~/.local/state/sandbar`.
    #[arg(long, env = "SANDBAR_HOME")]
    home: Option<PathBuf>,
}

/// The directory of a host of one user.
pub(crate) struct Home {
    dir: PathBuf,
}

/// Whom a call comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum As {
    Operator,
    Orchestrator,
    Agent,
}

impl As {
    fn file(self) -> &'static str {
        match self {
            Self::Operator => "operator.token",
            Self::Orchestrator => "orchestrator.token",
            Self::Agent => "agent.token",
        }
    }
}

impl Home {
    /// Finds the directory, and makes it where it is absent.
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let below = |variable: &str, rest: &str| {
            std::env::var_os(variable).filter(|dir| !dir.is_empty()).map(|dir| PathBuf::from(dir).join(rest))
        };
        let dir = place.home.clone().or_else(|| below("XDG_STATE_HOME", "sandbar"));
        let dir = dir.or_else(|| below("HOME", ".local/state/sandbar"));
        let dir = dir.context("neither $HOME nor $XDG_STATE_HOME is set: say where with --home")?;
        let dir = std::path::absolute(dir)?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .with_context(|| format!("{}: cannot be made", dir.display()))?;
        let home = Self { dir };
        if home.socket().as_os_str().len() > LONGEST_SOCKET {
            bail!("{}: the path is too long for a socket: choose another with --home", home.dir.display());
        }
        Ok(home)
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("host.sock")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("host.log")
    }

    /// The name of this user as an agent's. It is that of the first time: editors start programs without a user's name.
    pub(crate) fn agent(&self) -> Result<String> {
        let path = self.dir.join("agent.name");
        match fs::read_to_string(&path) {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(_) => {
                let name = Self::name();
                private(&path, name.as_bytes())?;
                Ok(name)
            }
        }
    }

    fn name() -> String {
        let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
        let name: String =
            user.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(24).collect();
        let name = name.trim_matches('-');
        if name.is_empty() { "local".to_owned() } else { format!("local-{name}") }
    }

    /// A way to the host if it runs.
    pub(crate) async fn find(&self) -> Result<Option<Link>> {
        if tokio::net::UnixStream::connect(self.socket()).await.is_err() {
            return Ok(None);
        }
        self.link().map(Some)
    }

    fn link(&self) -> Result<Link> {
        let token = |who: As| {
            let path = self.dir.join(who.file());
            let token = fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))?;
            Ok::<_, anyhow::Error>(token.trim().to_owned())
        };
        let tokens = [token(As::Operator)?, token(As::Orchestrator)?, token(As::Agent)?];
        Ok(Link::new(self.socket(), tokens))
    }

    /// A way to the host, which is started where it does not run.
    pub(crate) async fn host(&self) -> Result<Link> {
        // One that is just ending is there and gone again.
        if let Some(link) = self.find().await?
            && let Ok(link) = self.awaited(link, None).await
        {
            return Ok(link);
        }
        // Two that come at once must not start two.
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.dir.join("start.lock"))?;
        let lock = tokio::task::spawn_blocking(move || flock(&lock, FlockOperation::LockExclusive).map(|()| lock));
        let _lock = lock.await??;
        if let Some(link) = self.find().await? {
            return self.awaited(link, None).await;
        }
        let started = self.start()?;
        self.awaited(self.link()?, Some(started)).await
    }

    /// Waits until the host takes requests.
    async fn awaited(&self, link: Link, mut started: Option<(Child, u64)>) -> Result<Link> {
        let until = Instant::now() + START_DEADLINE;
        loop {
            let says = match link.get("/readyz").await {
                Ok(ready) if ready["ready"] == Value::Bool(true) => return Ok(link),
                Ok(ready) => ready["state"].as_str().unwrap_or_default().to_owned(),
                Err(_) => String::new(),
            };
            if let Some((child, from)) = &mut started
                && let Some(status) = child.try_wait()?
            {
                // One that was started just before, by somebody who did not wait for it, is on its way.
                if !state::is_held(&self.dir.join(STATE)) {
                    bail!("the host did not start ({status}): {}", self.last_words(*from));
                }
                started = None;
            }
            if says.contains("not reachable") {
                bail!("{says}\nStart Docker, for example with `systemctl start docker`, and try again");
            }
            let absent = started.is_none() && says.is_empty() && self.find().await?.is_none();
            if absent && !state::is_held(&self.dir.join(STATE)) {
                bail!("the host has just ended");
            }
            if Instant::now() >= until {
                bail!("the host does not answer: see {}", self.log().display());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// The last line that a host which ended has said.
    fn last_words(&self, from: u64) -> String {
        let mut said = String::new();
        if let Ok(mut log) = fs::File::open(self.log()) {
            let _ = log.seek(SeekFrom::Start(from)).and_then(|_| log.read_to_string(&mut said));
        }
        said.lines().rfind(|line| !line.is_empty()).unwrap_or("it said nothing").to_owned()
    }

    /// Starts the host, which goes on when this process ends. Answers where in the log it begins, too.
    fn start(&self) -> Result<(Child, u64)> {
        for who in [As::Operator, As::Orchestrator, As::Agent] {
            let path = self.dir.join(who.file());
            if !path.exists() {
                private(&path, random_hex(32).as_bytes())?;
            }
        }
        let config = self.dir.join("sandbar.toml");
        private(&config, toml::to_string(&self.config()?)?.as_bytes())?;
        if fs::metadata(self.log()).is_ok_and(|log| log.len() > LONGEST_LOG) {
            fs::rename(self.log(), self.dir.join("host.log.1"))?;
        }
        let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(self.log())?;
        let begins = log.metadata()?.len();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg("--config").arg(&config).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // A Ctrl-C in the terminal is not meant for it.
        command.process_group(0);
        Ok((command.spawn().context("the host cannot be started")?, begins))
    }

    /// The configuration: what this user wrote, and over it what the host of one user needs.
    fn config(&self) -> Result<toml::Table> {
        let base = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
        let mut config = toml::Table::new();
        if let Some(path) = base.map(|base| base.join("sandbar/local.toml"))
            && let Ok(text) = fs::read_to_string(&path)
        {
            config = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
        }
        let has_engines = config.get("plugins").is_some_and(|plugins| plugins.get("dir").is_some());
        let mut set = |table: &str, key: &str, value: toml::Value| -> Result<()> {
            let entry = config.entry(table).or_insert_with(|| toml::Table::new().into());
            let entry = entry.as_table_mut().ok_or_else(|| anyhow!("`{table}` is not a table"))?;
            entry.insert(key.to_owned(), value);
            Ok(())
        };
        let token = |who: As| toml::Value::Table([("file".to_owned(), who.file().into())].into_iter().collect());
        let listen = format!("unix:{}", self.socket().display());
        set("host", "listen", vec![toml::Value::from(listen)].into())?;
        set("host", "state_dir", STATE.into())?;
        set("host", "operator_token", token(As::Operator))?;
        set("sandbox", "enabled", true.into())?;
        set("docker", "publish", "loopback".into())?;
        set("janitor", "lease_secs", LEASE_SECS.into())?;
        if !has_engines {
            set("plugins", "dir", shipped_engines()?.display().to_string().into())?;
        }
        let exec = (0..services::EXEC_SLOTS).map(|slot| format!("{EXEC_PROJECT}-{slot}"));
        let projects: Vec<_> = exec.chain([PROJECT.to_owned()]).map(toml::Value::from).collect();
        let orchestrator = [("token".to_owned(), token(As::Orchestrator)), ("projects".to_owned(), projects.into())];
        set("orchestrators", "local", toml::Value::Table(orchestrator.into_iter().collect()))?;
        let agent = [("role".to_owned(), "developer".into()), ("token".to_owned(), token(As::Agent))];
        set("agents", &self.agent()?, toml::Value::Table(agent.into_iter().collect()))?;
        Ok(config)
    }
}

/// Where the engines are that came with this binary.
fn shipped_engines() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let places =
        ["engines.d", "../lib/sandbar/engines.d", "../share/sandbar/engines.d"].map(|place| beside.join(place));
    places.iter().find(|dir| dir.join("engines.lock").is_file()).cloned().with_context(|| {
        format!("there are no engines at {}: build them there, or say where in `[plugins] dir`", places[0].display())
    })
}

/// Writes a file for this user alone, whole.
fn private(path: &Path, content: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(content)?;
    fs::rename(&new, path).with_context(|| format!("{}: cannot be written", path.display()))
}
