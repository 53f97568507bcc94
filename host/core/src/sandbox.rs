//! What a sandbox is while it lives, what a call wants of one, and the evidence an agent gets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;

use crate::engine::{Account, Variable};
use crate::folders::{Folder, Ids};
use crate::name::{Names, ProjectName, ServiceName};
use crate::plan::{self, FillError, Secrets};
use crate::progress::Took;

/// What a call wants: the whole opted-in set of a project, with features.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// The project.
    pub project: ProjectName,
    /// Whether its accounts are without restrictions.
    pub superuser: bool,
    /// Whether its boxes are in the sandbox network.
    pub box_network: bool,
    /// Every service, with the features that it must have at least.
    pub services: BTreeMap<ServiceName, BTreeSet<String>>,
}

impl Want {
    /// Adds what another call wants. The later call knows the project's set best; features add up.
    pub fn merge(&mut self, later: &Self) {
        let earlier = std::mem::replace(self, later.clone());
        for (service, features) in earlier.services {
            if let Some(mine) = self.services.get_mut(&service) {
                mine.extend(features);
            }
        }
    }
}

/// A container that serves an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// The runtime's id.
    pub id: String,
    /// Its name, which is the host name that the agent connects to.
    pub name: String,
    /// Its port, inside the network.
    pub port: Option<u16>,
    /// The port on the loopback of this machine, where it is published.
    pub published_port: Option<u16>,
    /// The account.
    pub account: Option<Account>,
    /// Its passwords.
    pub secrets: Option<Secrets>,
    /// Features that were activated and confirmed.
    pub features: BTreeSet<String>,
    /// Whether its account is without restrictions.
    pub superuser: bool,
    /// What the agent gets, unfilled.
    pub variables: Vec<Variable>,
    /// When it was made.
    pub created: SystemTime,
    /// The run that it was made in: in another one, its data is gone.
    pub run: Option<String>,
    /// How long each step of making or waking it took. Empty where it was found when the host started.
    pub timeline: Vec<Took>,
    /// Its work folder, for a box.
    pub work: Option<WorkFolder>,
}

/// The work folder of a box that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkFolder {
    /// The folder.
    pub folder: Folder,
    /// Whom its files belong to: the box's user.
    pub user: Ids,
    /// Whether the box is in the sandbox network.
    pub networked: bool,
}

impl Serving {
    /// Whether it has the features, the kind of account and the network that are wanted.
    pub fn lacks_nothing(&self, features: &BTreeSet<String>, want: &Want) -> bool {
        self.superuser == want.superuser
            && self.features.is_superset(features)
            && self.work.as_ref().is_none_or(|work| work.networked == want.box_network)
    }

    /// The work folder that goes with it, where it is throwaway.
    pub fn folder(&self) -> Option<&str> {
        self.work.as_ref().map(|work| work.folder.name.as_str())
    }
}

/// The sandbox of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// The project it was made for.
    pub project: ProjectName,
    /// Its containers.
    pub services: BTreeMap<ServiceName, Arc<Serving>>,
}

impl Live {
    /// An empty one.
    pub fn new(project: ProjectName) -> Self {
        Self { project, services: BTreeMap::new() }
    }

    /// Whether it is exactly what is wanted: every service with at least the features, and no other service.
    pub fn covers(&self, want: &Want) -> bool {
        self.project == want.project
            && self.services.len() == want.services.len()
            && want
                .services
                .iter()
                .all(|(service, features)| self.services.get(service).is_some_and(|s| s.lacks_nothing(features, want)))
    }
}

/// What an agent is told about one service. Every key is always there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// What to connect to: the container's name, or `127.0.0.1` where its port is published.
    pub host: String,
    /// The port to connect to, null for a service without one.
    pub port: Option<u16>,
    /// The user, null where the service has none.
    pub user: Option<String>,
    /// The password, null for a service without an account.
    pub password: Option<String>,
    /// The database, null where the service has none.
    pub database: Option<String>,
    /// The variables to set.
    pub env: BTreeMap<String, String>,
    /// What was activated and confirmed.
    pub available_extensions: Vec<String>,
}

/// The evidence for `asked` services of a sandbox, in the order of the project's list, which decides who sets a
/// variable that two services would set.
///
/// # Errors
/// Only where variables were not checked: a fault of the host.
pub fn evidence(
    live: &Live,
    order: &[ServiceName],
    asked: &BTreeSet<ServiceName>,
    names: &Names,
) -> Result<BTreeMap<String, Evidence>, FillError> {
    let mut taken = BTreeSet::new();
    let mut all = BTreeMap::new();
    for service in order {
        let Some(serving) = live.services.get(service) else { continue };
        let (host, port) = match serving.published_port {
            Some(port) => ("127.0.0.1", Some(port)),
            None => (serving.name.as_str(), serving.port),
        };
        let account = serving.account.as_ref();
        let secrets = serving.secrets.as_ref();
        let mut env = BTreeMap::new();
        for (name, value) in plan::variables(&serving.variables, account, secrets, host, port, names)? {
            if taken.insert(name.clone()) {
                env.insert(name, value);
            }
        }
        if asked.contains(service) {
            let evidence = Evidence {
                host: host.to_owned(),
                port,
                user: account.and_then(|a| a.user.clone()),
                password: secrets.map(|s| s.password.reveal().to_owned()),
                database: account.and_then(|a| a.database.clone()),
                env,
                available_extensions: serving.features.iter().cloned().collect(),
            };
            all.insert(service.to_string(), evidence);
        }
    }
    Ok(all)
}
