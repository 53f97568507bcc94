//! The shape of `sandbar.toml`, as it is written. What the values mean is decided in [`crate::settings`]; a key that is
//! not here is an error that shows its line. What is said of each key here is what its JSON Schema says.

mod read;
mod value;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use sandbar_core::name::{AgentName, EngineSlug, Installation, Namespace, ProjectName, ServiceName};
use sandbar_core::project::{Declared, GateValue};
use sandbar_core::secret::SecretSource;
use sandbar_docker::PullLimits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use read::{Read, Refused, place, read};
pub(crate) use value::{Bytes, Cpus, Listen, Token};

/// The configuration of a host. Every key has a default but those that name a thing. Relative paths are meant from the
/// directory of the file.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Sandbar")]
pub(crate) struct Config {
    pub(crate) host: Host,
    /// Programs that start agents, by name.
    pub(crate) orchestrators: BTreeMap<String, Orchestrator>,
    pub(crate) docker: Docker,
    pub(crate) sandbox: Sandbox,
    pub(crate) plugins: Plugins,
    /// Engines by the name of their service. A table is needed only for what differs from the defaults, and for a component that
    /// no lock file admits.
    pub(crate) engines: BTreeMap<ServiceName, Engine>,
    /// What an engine asks for, and what is run: a mirror, or a local tag.
    pub(crate) images: BTreeMap<String, String>,
    /// How many containers are kept ready before anybody asks, by service and features, such as `postgres` or
    /// `"postgres+vector"`. Only who wants exactly that gets one. No boxes, and nothing retained.
    pub(crate) pool: BTreeMap<String, usize>,
    /// Projects by name. They may also be declared while the host runs.
    pub(crate) projects: BTreeMap<ProjectName, Declared>,
    /// Agents by name. They may also be registered while the host runs.
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    pub(crate) janitor: Janitor,
    pub(crate) retention: Retention,
    pub(crate) boxes: Boxes,
    pub(crate) privacy: Privacy,
}

/// The host itself.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Host {
    /// Where to listen: IP addresses with a port, and `unix:<path>` for a socket of the host's own user.
    pub(crate) listen: Vec<Listen>,
    /// Names in the `Host` header that are allowed beside loopback and the addresses in `listen`.
    pub(crate) allowed_hosts: Vec<String>,
    /// The prefix of every name that is made in Docker, and of the variables that agents get.
    pub(crate) namespace: Namespace,
    /// Tells hosts that share one Docker apart. Left out: a random one, in the state directory. Write it to keep it when the
    /// state directory is lost.
    pub(crate) installation: Option<Installation>,
    /// Agents, work, passwords of what is retained, compiled engines, artifacts. It is made, with mode 0700.
    pub(crate) state_dir: PathBuf,
    /// The token of the operator. Left out: there is no operator who calls.
    pub(crate) operator_token: Option<Token>,
    /// Whether sandboxes stay when the host ends, for its next start to adopt. What is retained stays in either case.
    pub(crate) keep_on_shutdown: bool,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            listen: vec![Listen::Address(([127, 0, 0, 1], 7070).into())],
            allowed_hosts: Vec::new(),
            #[expect(clippy::expect_used, reason = "a constant that a test checks")]
            namespace: Namespace::new("sandbar").expect("the default is a namespace"),
            installation: None,
            state_dir: "state".into(),
            operator_token: None,
            keep_on_shutdown: true,
        }
    }
}

/// A program that starts agents.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Orchestrator {
    pub(crate) token: Token,
    /// The projects that it may act for.
    #[serde(default)]
    pub(crate) projects: Vec<ProjectName>,
}

/// The container runtime.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Docker {
    /// Its address, as `unix:///var/run/docker.sock` or `tcp://…`. Left out: `DOCKER_HOST`, then the usual sockets, rootless and
    /// Podman too.
    pub(crate) host: Option<String>,
    /// The network of the sandboxes, which is made where it is missing. Left out: `<namespace>_default`.
    pub(crate) network: Option<String>,
    /// How agents reach sandboxes.
    pub(crate) publish: Publish,
    /// How long a pull may take in all, in seconds.
    pub(crate) pull_timeout_secs: NonZeroU32,
    /// For how long a pull may say nothing, in seconds.
    pub(crate) pull_stall_secs: NonZeroU32,
}

impl Default for Docker {
    fn default() -> Self {
        let PullLimits { total, silence } = PullLimits::default();
        let secs =
            |time: Duration| u32::try_from(time.as_secs()).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
        Self {
            host: None,
            network: None,
            publish: Publish::None,
            pull_timeout_secs: secs(total),
            pull_stall_secs: secs(silence),
        }
    }
}

impl Docker {
    /// The limits of pulls.
    pub(crate) fn pull_limits(&self) -> PullLimits {
        let secs = |secs: NonZeroU32| Duration::from_secs(secs.get().into());
        PullLimits { total: secs(self.pull_timeout_secs), silence: secs(self.pull_stall_secs) }
    }
}

/// How agents reach sandboxes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Publish {
    /// By name, in the sandbox network: agents are containers in it.
    #[default]
    None,
    /// At a random port of 127.0.0.1: agents are processes on the same machine.
    Loopback,
}

/// What holds for every sandbox.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandbox {
    /// The master switch. `set_switch` counts more, and `<NAMESPACE>_SANDBOX_DB_ENABLED` in the environment counts most.
    pub(crate) enabled: bool,
    /// The memory of a container, at least 64m.
    pub(crate) memory: Bytes,
    /// The CPUs of a container.
    pub(crate) cpus: Cpus,
    /// How many processes a container may have, at least 16.
    pub(crate) pids: u32,
    /// How many agents may have a sandbox at once.
    pub(crate) max_live: usize,
    /// The roles of agents that may ask.
    pub(crate) roles: Vec<String>,
    /// Whether the images of projects are pulled when the host starts and when projects or engines change, before anybody asks.
    pub(crate) pull_ahead: bool,
    /// What nobody asked for in this time is kept ready once only, in seconds.
    pub(crate) pool_idle_secs: u64,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            enabled: false,
            memory: Bytes(512 << 20),
            cpus: Cpus { milli: 1000 },
            pids: 256,
            max_live: 200,
            roles: ["developer", "qa"].map(str::to_owned).into(),
            pull_ahead: true,
            pool_idle_secs: 3600,
        }
    }
}

/// Where engines come from. Read again while the host runs.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Plugins {
    /// Every component in this directory is an engine.
    pub(crate) dir: PathBuf,
    /// Whether components without a pin are loaded: for development.
    pub(crate) allow_unpinned: bool,
}

impl Default for Plugins {
    fn default() -> Self {
        Self { dir: "engines.d".into(), allow_unpinned: false }
    }
}

/// An engine. Read again while the host runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Engine {
    /// The component. Left out: `<name>.wasm` in `[plugins] dir`.
    pub(crate) component: Option<PathBuf>,
    /// The hash that its bytes must have, in hex. Left out: that of the lock file beside it.
    pub(crate) sha256: Option<String>,
    /// The short name in container names. Left out: the one that the engine proposes.
    pub(crate) slug: Option<EngineSlug>,
    /// The memory of a container. Left out: that of `[sandbox]`.
    pub(crate) memory: Option<Bytes>,
    /// The CPUs of a container. Left out: those of `[sandbox]`.
    pub(crate) cpus: Option<Cpus>,
    /// How many processes a container may have. Left out: as `[sandbox]` says.
    pub(crate) pids: Option<u32>,
    pub(crate) grant: Grant,
    /// The engine's own settings: `sandbar engine inspect` says which there are.
    pub(crate) settings: BTreeMap<String, String>,
}

/// What an engine may use. What is left out comes from the lock file beside the component; without one it is nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Grant {
    /// Images, before `[images]` maps them; `*` stands for any tag.
    pub(crate) images: Option<Vec<String>>,
    /// Linux capabilities.
    pub(crate) capabilities: Option<Vec<String>>,
    /// Directories that hold data.
    pub(crate) data_dirs: Option<Vec<String>>,
    /// Variables that agents get beside those with the namespace's prefix.
    pub(crate) variables: Option<Vec<String>>,
}

/// An agent that is always there.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agent {
    /// Its job: one of `[sandbox] roles` if it may ask for sandboxes.
    pub(crate) role: String,
    pub(crate) token: Token,
}

/// What looks after what belongs to nobody any more.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Janitor {
    /// How often it looks, in seconds, at least 1.
    pub(crate) every_secs: u64,
    /// What was made or asked for within so many seconds is left alone.
    pub(crate) grace_secs: u64,
    /// For how many seconds a call keeps a sandbox of an agent that has no container.
    pub(crate) lease_secs: u64,
    /// How many seconds an agent whose container ended has to come back.
    pub(crate) respawn_secs: u64,
}

impl Default for Janitor {
    fn default() -> Self {
        Self { every_secs: 60, grace_secs: 180, lease_secs: 1800, respawn_secs: 10 }
    }
}

/// How long boxes, and services that a project retains, are kept.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retention {
    /// After so many seconds without a call what is retained is stopped, until the next call. 300 to 86400 are taken.
    pub(crate) idle_sleep_secs: u64,
    /// After so many seconds without a call a throwaway box is removed.
    pub(crate) idle_close_secs: u64,
    /// After so many seconds asleep what is retained is deleted with its data. At least 1 is taken.
    pub(crate) delete_after_secs: u64,
    /// How many retained things are awake at once. At least 1 is taken.
    pub(crate) max_live: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { idle_sleep_secs: 900, idle_close_secs: 1800, delete_after_secs: 30 * 24 * 3600, max_live: 50 }
    }
}

/// The work folders of boxes.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Boxes {
    /// Where they are. Docker has to see this directory at the same path.
    pub(crate) dir: PathBuf,
    /// What the work folder of one box may hold.
    pub(crate) max_bytes: Bytes,
    /// What all of them together may hold.
    pub(crate) max_total_bytes: Bytes,
}

impl Default for Boxes {
    fn default() -> Self {
        Self { dir: "boxes".into(), max_bytes: Bytes(2 << 30), max_total_bytes: Bytes(20 << 30) }
    }
}

/// Where things may run.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Privacy {
    pub(crate) mode: PrivacyMode,
}

/// Where things may run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrivacyMode {
    /// On any Docker.
    #[default]
    Any,
    /// On a Docker of this machine only.
    LocalOnly,
}

/// Why there is nothing to run with: what is wrong is in the configuration, and stays so until somebody changes it.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) String);

impl std::error::Error for Unusable {}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The text of a file.
///
/// # Errors
/// With the file.
pub(crate) fn text(path: &Path) -> Result<String, Unusable> {
    std::fs::read_to_string(path).map_err(|e| {
        let path = path.display();
        Unusable(match e.kind() {
            std::io::ErrorKind::NotFound => format!("there is no {path}: name the configuration with --config"),
            _ => format!("{path} cannot be read: {e}"),
        })
    })
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// With the file, line and column of all that cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        Self::parse(&text(path)?, path)
    }

    /// Reads the text of a file. Relative paths in it are meant from its own directory.
    ///
    /// # Errors
    /// With the file, line and column of all that cannot be read, a line each.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self> {
        let Read { config, refused } = read(text, path)?;
        let lines: Vec<_> = refused.iter().map(|refused| refused.line(text, path)).collect();
        if lines.is_empty() { Ok(config) } else { Err(Unusable(lines.join("\n")).into()) }
    }

    fn resolve(&mut self, base: &Path) {
        let at = |path: &mut PathBuf| *path = base.join(&path);
        let source = |source: &mut SecretSource| {
            if let SecretSource::File(path) = source {
                *path = base.join(&path);
            }
        };
        at(&mut self.host.state_dir);
        for listen in &mut self.host.listen {
            if let Listen::Socket(path) = listen {
                at(path);
            }
        }
        at(&mut self.boxes.dir);
        at(&mut self.plugins.dir);
        self.engines.values_mut().filter_map(|e| e.component.as_mut()).for_each(at);
        let tokens = self.host.operator_token.iter_mut().chain(self.orchestrators.values_mut().map(|o| &mut o.token));
        for token in tokens.chain(self.agents.values_mut().map(|a| &mut a.token)) {
            if let Token::Source(s) = token {
                source(s);
            }
        }
        for gate in self.projects.values_mut().flat_map(|p| p.gate_env.values_mut()) {
            if let GateValue::Secret(s) = gate {
                source(s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("x.toml")).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let config: Config = toml::from_str("").unwrap();
        assert_eq!(config.host.namespace.as_str(), "sandbar");
        assert!(!config.sandbox.enabled);
        assert_eq!(config.sandbox.memory, Bytes(512 << 20));
        assert!(config.host.keep_on_shutdown);
        assert_eq!(config.docker.pull_limits(), PullLimits::default());
    }

    #[test]
    fn wrong_values_say_what_is_right() {
        assert!(error("[sandbox]\nmemory = \"5x\"").contains("512m"));
        assert!(error("[host]\nnamespace = \"Thirteen Chars\"").contains("namespace"));
        assert!(error("[orchestrators.a]\ntoken = { file = \"a\", env = \"b\" }").contains("exactly one"));
        assert!(error("[host]\noperator_token = \"abc\"").contains("{ file = … }, { env = … } or { sha256 = … }"));
        assert!(
            error("[host]\nlisten = [\"localhost:7171\"]")
                .contains("`localhost:7171` is neither an IP address and a port")
        );
        assert!(error("[projects.p]\nservices = [\"-x\"]").contains("service"));
        assert!(error("[docker]\npublish = \"all\"").contains("loopback"));
        assert!(error("[docker]\npull_stall_secs = 0").contains("nonzero"));
    }
}
