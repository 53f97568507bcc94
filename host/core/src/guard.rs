//! Who may have what: the guards of `request_sandbox`, in their order, each a small function with its own remedy. They
//! decide from the books alone; only the last one may ask the runtime whether it is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalog::Catalog;
use crate::ensure::unavailable;
use crate::error::{Code, Error, listed, shown};
use crate::health::Health;
use crate::name::ServiceName;
use crate::people::Work;
use crate::project::Project;
use crate::sandbox::Want;

/// What is asked, and what the guards look at.
pub struct Ask<'a> {
    /// Whether the master switch is on.
    pub enabled: bool,
    /// The environment variable that sets the switch at start.
    pub switch: &'a str,
    /// What the agent works on.
    pub work: Option<&'a Work>,
    /// That project, where it is configured.
    pub project: Option<&'a Project>,
    /// The services it named, if it named any.
    pub services: Option<&'a BTreeSet<String>>,
    /// Features it asks for beyond the standing ones.
    pub extensions: &'a BTreeMap<String, BTreeSet<String>>,
    /// What can be had.
    pub catalog: &'a Catalog,
    /// Whether the runtime is on another machine, and the operator allows none but this one.
    pub too_far: bool,
}

type Guard = fn(&Ask<'_>) -> Result<(), Error>;

/// The guards that need no runtime, in order. After them comes [`Health::ready`].
const GUARDS: [Guard; 6] =
    [switch_is_on, has_work, project_opted_in, services_are_opted_in, extensions_are_allowed, runtime_is_near];

/// What passed the guards.
#[derive(Debug, PartialEq, Eq)]
pub struct Admitted {
    /// What has to exist.
    pub want: Want,
    /// What the answer is about.
    pub asked: BTreeSet<ServiceName>,
}

/// Runs all guards.
///
/// # Errors
/// What the first one that refuses says.
pub async fn admit(ask: &Ask<'_>, health: &Health) -> Result<Admitted, Error> {
    GUARDS.iter().try_for_each(|guard| guard(ask))?;
    health.ready().await?;
    wanted(ask)
}

fn refuse(message: impl Into<String>, remediate: impl Into<String>) -> Error {
    Error::new(Code::InvalidState, message, remediate)
}

fn switch_is_on(ask: &Ask<'_>) -> Result<(), Error> {
    if ask.enabled {
        return Ok(());
    }
    let remediate = format!(
        "the operator turns them on with `[sandbox] enabled = true`, the verb `set_switch`, or {}=1 at start",
        ask.switch
    );
    Err(refuse("sandboxes are switched off", remediate))
}

fn has_work(ask: &Ask<'_>) -> Result<(), Error> {
    match ask.work {
        Some(_) => Ok(()),
        None => Err(no_work()),
    }
}

/// The agent has no work.
pub fn no_work() -> Error {
    refuse(
        "this agent works on no project",
        "work begins when the orchestrator that started the agent calls `begin_work` with the agent and a project",
    )
}

/// The agent's work changed while it waited.
pub fn work_changed() -> Error {
    refuse("this agent's work ended or changed while the sandbox was asked for", "call again if it is still wanted")
}

/// The operator changed the project while an agent waited.
pub fn project_changed() -> Error {
    let message = "the project was changed while the sandbox was asked for";
    Error::retry(Code::InvalidState, 1, message, "call again")
}

fn project_opted_in(ask: &Ask<'_>) -> Result<(), Error> {
    if ask.project.is_some_and(|p| !p.services.is_empty()) {
        return Ok(());
    }
    let name = ask.work.map(|w| w.project.as_str()).unwrap_or_default();
    let remediate = format!("the operator lists services under `[projects.{name}] services`, or with `set_project`");
    Err(refuse(format!("the project `{name}` opted in to no service"), remediate))
}

fn opted_in<'a>(ask: &'a Ask<'_>) -> &'a [ServiceName] {
    ask.project.map(|p| p.services.as_slice()).unwrap_or_default()
}

fn services_are_opted_in(ask: &Ask<'_>) -> Result<(), Error> {
    let set = opted_in(ask);
    let Some(other) = ask.services.into_iter().flatten().find(|s| !set.iter().any(|o| o.as_str() == s.as_str())) else {
        return Ok(());
    };
    let names: Vec<_> = set.iter().map(ServiceName::as_str).collect();
    let message = format!("the project did not opt in to the service `{}`", shown(other));
    Err(refuse(message, format!("ask for {}, or leave `services` out to get all of them", listed(&names)))
        .allowing(names))
}

fn extensions_are_allowed(ask: &Ask<'_>) -> Result<(), Error> {
    let set = opted_in(ask);
    for (name, features) in ask.extensions {
        let Some(service) = set.iter().find(|s| s.as_str() == name) else {
            let allowed = all_extensions(ask);
            let message = format!("extensions were asked of `{}`, which the project did not opt in to", shown(name));
            return Err(refuse(message, format!("the allowed extensions are {}", listed(&allowed))).allowing(allowed));
        };
        // Without an engine there is no allowlist; that is told further down.
        let Some(engine) = ask.catalog.services.get(service) else { continue };
        let allowed = engine.features();
        if let Some(other) = features.iter().find(|f| !allowed.contains(f)) {
            let message = format!("`{}` is not an extension that `{service}` may activate", shown(other));
            return Err(refuse(message, format!("the allowed ones are {}", listed(&allowed))).allowing(allowed));
        }
    }
    Ok(())
}

fn runtime_is_near(ask: &Ask<'_>) -> Result<(), Error> {
    if !ask.too_far {
        return Ok(());
    }
    let remediate = "the operator runs the host on that machine, or sets `[privacy] mode = \"any\"`";
    Err(refuse("the container runtime is on another machine, and this host is set to use none but its own", remediate))
}

/// Every extension of every service of the project, as `service.extension`.
fn all_extensions(ask: &Ask<'_>) -> Vec<String> {
    let engines = opted_in(ask).iter().filter_map(|s| ask.catalog.services.get(s));
    engines.flat_map(|e| e.features().into_iter().map(|f| format!("{}.{f}", e.name))).collect()
}

/// The whole opted-in set with its features. A service whose engine does not work is left out where the call can do
/// without it, and refused where it cannot.
fn wanted(ask: &Ask<'_>) -> Result<Admitted, Error> {
    let (Some(work), Some(project)) = (ask.work, ask.project) else { return Err(no_work()) };
    let mut asked = BTreeSet::new();
    let mut services = BTreeMap::new();
    for name in &project.services {
        let is_asked = ask.services.is_none_or(|s| s.contains(name.as_str()));
        if !ask.catalog.services.contains_key(name) {
            if is_asked {
                return Err(unavailable(name, &ask.catalog.why_not(name)));
            }
            continue;
        }
        let mut features: BTreeSet<String> = project.extensions.get(name).into_iter().flatten().cloned().collect();
        features.extend(ask.extensions.get(name.as_str()).into_iter().flatten().cloned());
        services.insert(name.clone(), features);
        if is_asked {
            asked.insert(name.clone());
        }
    }
    let want = Want {
        project: work.project.clone(),
        superuser: project.superuser,
        box_network: project.box_network,
        services,
    };
    Ok(Admitted { want, asked })
}
