//! What an operator says about a project.

use std::collections::BTreeMap;

use crate::name::{ProjectName, ServiceName};
use crate::secret::SecretSource;

/// A value of `gate_env`: written out, or read when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateValue {
    /// As it stands in the configuration.
    Plain(String),
    /// Kept elsewhere.
    Secret(SecretSource),
}

/// One project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its name.
    pub name: ProjectName,
    /// The services it opted in to, in the operator's order. Where two would set the same variable, the first does.
    pub services: Vec<ServiceName>,
    /// Standing features by service: sorted, without duplicates, none empty.
    pub extensions: BTreeMap<ServiceName, Vec<String>>,
    /// Whether the accounts it gets are without restrictions.
    pub superuser: bool,
    /// What an agent is started with when the project has no sandboxes.
    pub gate_env: BTreeMap<String, GateValue>,
}
