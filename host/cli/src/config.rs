//! The shape of `sandbar.toml`, as it is written. What the values mean is decided in [`crate::settings`]; a key that is
//! not here is an error that shows its line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use sandbar_core::error::shown;
use sandbar_core::name::{AgentName, EngineSlug, Installation, Namespace, ProjectName, ServiceName};
use sandbar_core::project::{Declared, GateValue};
use sandbar_core::secret::SecretSource;
use sandbar_docker::PullLimits;
use serde::{Deserialize, Deserializer, de};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) host: Host,
    pub(crate) orchestrators: BTreeMap<String, Orchestrator>,
    pub(crate) docker: Docker,
    pub(crate) sandbox: Sandbox,
    pub(crate) plugins: Plugins,
    pub(crate) engines: BTreeMap<ServiceName, Engine>,
    pub(crate) images: BTreeMap<String, String>,
    pub(crate) projects: BTreeMap<ProjectName, Declared>,
    pub(crate) agents: BTreeMap<AgentName, Agent>,
    pub(crate) janitor: Janitor,
    pub(crate) retention: Retention,
    pub(crate) boxes: Boxes,
    pub(crate) privacy: Privacy,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Host {
    pub(crate) listen: Vec<Listen>,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) namespace: Namespace,
    /// Written only by who wants to keep it when the state directory is lost.
    pub(crate) installation: Option<Installation>,
    pub(crate) state_dir: PathBuf,
    pub(crate) operator_token: Option<Token>,
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

/// Where to listen. Names are not looked up: what they lead to can change, and is often more than one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    /// An address.
    Address(SocketAddr),
    /// A socket in the file system, written `unix:<path>`, for this host's own user alone.
    Socket(PathBuf),
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Socket(path.into()));
        }
        text.parse().map(Self::Address).map_err(|_| {
            let text = shown(&text);
            de::Error::custom(format!(
                "`{text}` is neither an IP address and a port, such as \"127.0.0.1:7070\", nor `unix:` and a path"
            ))
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Orchestrator {
    pub(crate) token: Token,
    #[serde(default)]
    pub(crate) projects: Vec<ProjectName>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Docker {
    pub(crate) host: Option<String>,
    pub(crate) network: Option<String>,
    pub(crate) publish: Publish,
    /// How long a pull may take in all.
    pub(crate) pull_timeout_secs: Option<NonZeroU32>,
    /// For how long a pull may say nothing.
    pub(crate) pull_stall_secs: Option<NonZeroU32>,
}

impl Docker {
    /// The limits of pulls, the usual ones where nothing is written.
    pub(crate) fn pull_limits(&self) -> PullLimits {
        let usual = PullLimits::default();
        let or = |secs: Option<NonZeroU32>, usual| secs.map_or(usual, |n| Duration::from_secs(n.get().into()));
        PullLimits { total: or(self.pull_timeout_secs, usual.total), silence: or(self.pull_stall_secs, usual.silence) }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Publish {
    #[default]
    None,
    Loopback,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sandbox {
    pub(crate) enabled: bool,
    pub(crate) memory: Bytes,
    pub(crate) cpus: Cpus,
    pub(crate) pids: u32,
    pub(crate) max_live: usize,
    pub(crate) roles: Vec<String>,
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
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Plugins {
    pub(crate) dir: PathBuf,
    pub(crate) allow_unpinned: bool,
}

impl Default for Plugins {
    fn default() -> Self {
        Self { dir: "engines.d".into(), allow_unpinned: false }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Engine {
    pub(crate) component: Option<PathBuf>,
    pub(crate) sha256: Option<String>,
    pub(crate) slug: Option<EngineSlug>,
    pub(crate) memory: Option<Bytes>,
    pub(crate) cpus: Option<Cpus>,
    pub(crate) pids: Option<u32>,
    pub(crate) grant: Grant,
    pub(crate) settings: BTreeMap<String, String>,
}

/// What is left out comes from the lock file beside the component.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Grant {
    pub(crate) images: Option<Vec<String>>,
    pub(crate) capabilities: Option<Vec<String>>,
    pub(crate) data_dirs: Option<Vec<String>>,
    pub(crate) variables: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agent {
    pub(crate) role: String,
    pub(crate) token: Token,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Janitor {
    pub(crate) every_secs: u64,
    pub(crate) grace_secs: u64,
    pub(crate) lease_secs: u64,
    pub(crate) respawn_secs: u64,
}

impl Default for Janitor {
    fn default() -> Self {
        Self { every_secs: 60, grace_secs: 180, lease_secs: 1800, respawn_secs: 10 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retention {
    pub(crate) idle_sleep_secs: u64,
    pub(crate) idle_close_secs: u64,
    pub(crate) delete_after_secs: u64,
    pub(crate) max_live: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self { idle_sleep_secs: 900, idle_close_secs: 1800, delete_after_secs: 30 * 24 * 3600, max_live: 50 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Boxes {
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Privacy {
    pub(crate) mode: PrivacyMode,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PrivacyMode {
    #[default]
    Any,
    LocalOnly,
}

/// Where a secret is: exactly one of the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ file = \u{2026} }, { env = \u{2026} } or { sha256 = \u{2026} }")]
struct Keys {
    file: Option<PathBuf>,
    env: Option<String>,
    sha256: Option<String>,
}

/// A bearer token: kept elsewhere, or known by its hash only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Source(SecretSource),
    Sha256(String),
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Keys::deserialize(deserializer)? {
            Keys { file: Some(file), env: None, sha256: None } => Ok(Self::Source(SecretSource::File(file))),
            Keys { file: None, env: Some(env), sha256: None } => Ok(Self::Source(SecretSource::Env(env))),
            Keys { file: None, env: None, sha256: Some(hash) } => {
                if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) {
                    Ok(Self::Sha256(hash.to_ascii_lowercase()))
                } else {
                    Err(de::Error::custom("`sha256` must be 64 hex digits"))
                }
            }
            _ => Err(de::Error::custom("a token is exactly one of { file = … }, { env = … } and { sha256 = … }")),
        }
    }
}

/// A size: a number of bytes, or text such as `512m` in powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    /// Reads one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Shape {
            Number(u64),
            Text(String),
        }
        let size = match Shape::deserialize(deserializer) {
            Ok(Shape::Number(n)) => Some(Self(n)),
            Ok(Shape::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        size.ok_or_else(|| de::Error::custom("a size is a number of bytes or a text such as \"512m\""))
    }
}

/// A share of the CPUs, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub(crate) milli: u64,
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let cpus = f64::deserialize(deserializer)?;
        if !(0.01..=1024.0).contains(&cpus) {
            return Err(de::Error::custom("cpus must be between 0.01 and 1024"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
        let milli = (cpus * 1000.0).round() as u64;
        Ok(Self { milli })
    }
}

/// The text of a file.
///
/// # Errors
/// With the file.
pub(crate) fn text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// With the file, line and column of what cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        Self::parse(&text(path)?, path)
    }

    /// Reads the text of a file. Relative paths in it are meant from its own directory.
    ///
    /// # Errors
    /// With the file, line and column of what cannot be read.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Self> {
        let mut config: Self = toml::from_str(text).with_context(|| format!("in {}", path.display()))?;
        let base = std::path::absolute(path)?;
        config.resolve(base.parent().unwrap_or(Path::new("/")));
        Ok(config)
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
        toml::from_str::<Config>(text).unwrap_err().to_string()
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
    fn an_unknown_key_shows_its_line() {
        let error = error("[sandbox]\nenabled = true\nmemroy = \"1g\"\n");
        assert!(error.contains("line 3") && error.contains("memroy"), "{error}");
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

    #[test]
    fn sizes() {
        assert_eq!(Bytes::parse("512m"), Some(Bytes(512 << 20)));
        assert_eq!(Bytes::parse("2 GiB"), Some(Bytes(2 << 30)));
        assert_eq!(Bytes::parse("7"), Some(Bytes(7)));
        for bad in ["", "m", "-1", "1.5g", "99999999999g"] {
            assert_eq!(Bytes::parse(bad), None, "{bad}");
        }
    }
}
