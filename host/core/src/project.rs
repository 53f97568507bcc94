//! What an operator says about a project, in the configuration or while the host runs.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::Catalog;
use crate::error::{listed, shown};
use crate::name::{ProjectName, ServiceName};
use crate::secret::SecretSource;

/// A value of `gate_env`: written out, or read when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a value is a text, { file = \u{2026} } or { env = \u{2026} }")]
pub enum GateValue {
    /// As it stands.
    Plain(String),
    /// Kept elsewhere.
    Secret(SecretSource),
}

/// What is declared of a project, before it is compared with what there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Project")]
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
                        shown(other),
                        listed(&allowed)
                    );
                    problems.push((at.clone(), why));
                }
            }
            if !features.is_empty() {
                extensions.insert(service, features);
            }
        }
        for (variable, value) in &gate_env {
            if !is_variable(variable) {
                let why =
                    format!("`{}` is no name of a variable: it must match [A-Za-z_][A-Za-z0-9_]*", shown(variable));
                problems.push(("gate_env".to_owned(), why));
            } else if matches!(value, GateValue::Plain(text) if text.contains('\0')) {
                problems.push((format!("gate_env.{variable}"), "a value has no NUL in it".to_owned()));
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

/// Whether an environment can have a variable of this name that a shell can read.
fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_names_and_values_that_an_environment_takes() {
        let declare = |name: &str, value: &str| {
            let gate_env = [(name.to_owned(), GateValue::Plain(value.to_owned()))].into();
            let declared = Declared { gate_env, ..Declared::default() };
            Project::declare(ProjectName::new("shop").unwrap(), declared, &Catalog::default())
        };
        for good in ["A", "_", "DATABASE_URL", "a1"] {
            assert!(declare(good, "any text = fine\n").is_ok(), "{good}");
        }
        for bad in ["", "1A", "A=B", "A B", "A-B", "É", "A\0"] {
            assert_eq!(declare(bad, "x").unwrap_err()[0].0, "gate_env", "{bad}");
        }
        assert_eq!(declare("A", "x\0y").unwrap_err()[0].0, "gate_env.A");
    }
}
