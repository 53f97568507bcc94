//! One container of the simulated Docker.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use sandbar_core::name::Names;
use sandbar_core::runtime::{Labels, Unit, UnitState};

/// How the keys of containers begin in which agents run.
pub(crate) const OWN: &str = "own/";

/// What stands for the agent in the key of what nobody has yet.
pub(crate) const POOL: &str = "sandbar-pool";

/// The agent of `agent/service` or `agent/service@project`.
pub(crate) fn agent_of(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

/// A container.
#[derive(Debug, Clone)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) labels: Labels,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) state: UnitState,
    pub(crate) exit_code: i64,
    pub(crate) address: Option<String>,
    pub(crate) publish: bool,
    pub(crate) published_port: Option<u16>,
    /// The host that asked for it.
    pub(crate) host: u64,
    /// When it was created, and what Docker's wall clock said then.
    pub(crate) born: Duration,
    pub(crate) created: SystemTime,
    /// Counts its starts among everybody's.
    pub(crate) run: u64,
    /// When it was started again.
    pub(crate) restarted: Option<Duration>,
    /// Whose it is and what it serves, as `agent/service`, or `agent/service@project` for what a tenant owns; something else
    /// for what is not of this installation.
    pub(crate) key: String,
    /// From when on it answers its probe.
    pub(crate) ready_at: Option<Duration>,
    /// Whether its features are ever confirmed.
    pub(crate) confirms: bool,
    pub(crate) activated: BTreeSet<String>,
    /// What a caller was told to have succeeded, since it was started last.
    pub(crate) confirmed: BTreeSet<String>,
    /// The volumes that hold its data.
    pub(crate) volumes: Vec<String>,
    /// Its work folder.
    pub(crate) folder: Option<String>,
    pub(crate) networked: bool,
    /// The commands that are at work in it, each with the host that started it.
    pub(crate) at_work: BTreeSet<(u64, u64)>,
    /// The image it runs, as its reference.
    pub(crate) image: String,
}

impl Container {
    /// Whether a host before this one left a command at work in it.
    pub(crate) fn has_orphans(&self, host: u64) -> bool {
        self.at_work.iter().any(|(_, by)| *by < host)
    }

    /// One that was created and not started.
    pub(crate) fn new(id: &str, name: &str, labels: Labels, key: &str) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            labels,
            env: Vec::new(),
            state: UnitState::Starting,
            exit_code: 0,
            address: None,
            publish: false,
            published_port: None,
            host: 0,
            born: Duration::ZERO,
            created: SystemTime::UNIX_EPOCH,
            run: 0,
            restarted: None,
            key: key.to_owned(),
            ready_at: None,
            confirms: true,
            activated: BTreeSet::new(),
            confirmed: BTreeSet::new(),
            volumes: Vec::new(),
            folder: None,
            networked: true,
            at_work: BTreeSet::new(),
            image: String::new(),
        }
    }

    pub(crate) fn unit(&self) -> Unit {
        let up = self.is_up();
        Unit {
            id: self.id.clone(),
            name: self.name.clone(),
            address: self.address.clone().filter(|_| up),
            addresses: Vec::new(),
            published_port: self.published_port.filter(|_| up),
            labels: self.labels.clone(),
            state: self.state,
            image: Some(self.image.clone()),
            created: self.created,
            run: None,
        }
    }

    /// As it is told to who asks about it alone.
    pub(crate) fn inspected(&self) -> Unit {
        Unit { run: Some(self.run.to_string()), ..self.unit() }
    }

    /// Whether an agent runs in it.
    pub(crate) fn is_agents_own(&self) -> bool {
        self.key.starts_with(OWN)
    }

    pub(crate) fn agent(&self) -> &str {
        agent_of(&self.key)
    }

    /// Whether it runs, paused or not.
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, UnitState::Running | UnitState::Paused)
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// What its label says it was made with.
    pub(crate) fn features(&self, names: &Names) -> BTreeSet<String> {
        let features = self.labels.get(&names.label("features")).map(String::as_str).unwrap_or_default();
        features.split(',').filter(|f| !f.is_empty()).map(str::to_owned).collect()
    }
}
