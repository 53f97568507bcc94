//! What an operator says about a project, in the configuration or while the host runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::catalog::Catalog;
use crate::error::listed;
use crate::name::{ProjectName, ServiceName};
use crate::secret::SecretSource;

/// A value of `gate_env`: written out, or read when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a value is a text, { file = \u{2026} } or { env = \u{2026} }")]
pub enum GateValue {
    /// As it stands.
    Plain(String),
    /// Kept elsewhere.
    Secret(SecretSource),
}

/// What is declared of a project, before it is compared with what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Declared {
    /// The services it opts in to, in the operator's order.
    pub services: Vec<ServiceName>,
    /// Standing features by service.
    pub extensions: BTreeMap<ServiceName, Vec<String>>,
    /// Services kept by tenant; the others are throwaway.
    pub retained: Vec<ServiceName>,
    /// Whether the accounts it gets are without restrictions.
    pub superuser: bool,
    /// Whether its boxes are in the sandbox network, rather than without any.
    pub box_network: bool,
    /// What an agent is started with when the project has no sandboxes.
    pub gate_env: BTreeMap<String, GateValue>,
}

/// One project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its name.
    pub name: ProjectName,
    /// The services it opted in to. Where two would set the same variable, the first does.
    pub services: Vec<ServiceName>,
    /// Standing features by service: sorted, without duplicates, none empty.
    pub extensions: BTreeMap<ServiceName, Vec<String>>,
    /// Services kept by tenant; the others are throwaway.
    pub retained: BTreeSet<ServiceName>,
    /// Whether the accounts it gets are without restrictions.
    pub superuser: bool,
    /// Whether its boxes are in the sandbox network, rather than without any.
    pub box_network: bool,
    /// What an agent is started with when the project has no sandboxes.
    pub gate_env: BTreeMap<String, GateValue>,
}

impl Project {
    /// Takes what is declared, if there is everything it names.
    ///
    /// # Errors
    /// Every problem: the key, and what is wrong there.
    pub fn declare(name: ProjectName, declared: Declared, catalog: &Catalog) -> Result<Self, Vec<(String, String)>> {
        let Declared { services: wanted, extensions: features, retained, superuser, box_network, gate_env } = declared;
        let mut problems = Vec::new();
        let known = |service: &ServiceName| {
            catalog.services.contains_key(service) || catalog.broken.iter().any(|b| b.name == service.as_str())
        };
        let all: Vec<_> = catalog.services.keys().map(ServiceName::as_str).collect();
        let mut services: Vec<ServiceName> = Vec::new();
        for service in wanted {
            if !known(&service) {
                let why = format!("there is no service `{service}`; there is {}", listed(&all));
                problems.push(("services".to_owned(), why));
            }
            if !services.contains(&service) {
                services.push(service);
            }
        }
        let mut extensions = BTreeMap::new();
        for (service, mut features) in features {
            let at = format!("extensions.{service}");
            features.sort();
            features.dedup();
            if !known(&service) {
                problems.push((at.clone(), format!("there is no service `{service}`; there is {}", listed(&all))));
            }
            // An engine that could not be loaded has no allowlist; what is asked of it is refused later.
            if let Some(engine) = catalog.services.get(&service) {
                let allowed = engine.features();
                for other in features.iter().filter(|f| !allowed.contains(f)) {
                    let why = format!(
                        "`{}` is not an extension of `{service}`; the allowed ones are {}",
                        other.escape_debug(),
                        listed(&allowed)
                    );
                    problems.push((at.clone(), why));
                }
            }
            if !features.is_empty() {
                extensions.insert(service, features);
            }
        }
        for service in &retained {
            if !services.contains(service) {
                problems.push(("retained".to_owned(), format!("`{service}` is not one of the project's services")));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let retained = retained.into_iter().collect();
        Ok(Self { name, services, extensions, retained, superuser, box_network, gate_env })
    }
}
