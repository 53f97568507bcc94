//! What a host does when it starts: containers are the record, so it looks at what carries its labels. What was being
//! made or let go is removed; what serves an agent is adopted, with its credentials read back, once it was seen to
//! answer. Nothing is concluded from a listing that failed.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::catalog::{CatalogHandle, Service};
use crate::crash;
use crate::ensure::Ensure;
use crate::name::{AgentName, Kind, Names, ProjectName, ServiceName};
use crate::people::People;
use crate::plan::{Secrets, label};
use crate::progress::ProgressSink;
use crate::provision::{Confirm, NotMade};
use crate::registry::Registry;
use crate::runtime::{Result, Runtime, RuntimeError, Unit, UnitState};
use crate::sandbox::{Live, Serving};
use crate::secret::Secret;

/// How long a container that was found running may take to answer its probe. It has been up before, but a machine that
/// starts a host has other things to do.
const STILL_GOOD: Duration = Duration::from_secs(30);
/// How many containers are looked at side by side: more would only wait for each other.
const AT_ONCE: usize = 8;

/// Recovers once; see the module.
///
/// # Errors
/// When the runtime could not say what exists; nothing was changed then.
pub async fn recover(
    registry: &Registry,
    runtime: &dyn Runtime,
    catalog: &CatalogHandle,
    names: &Names,
    people: &People,
) -> Result<()> {
    let base = names.base_labels();
    let labels: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut units = runtime.list(&labels).await?;
    // Looked at again here: nothing without our labels is ever touched, whatever a listing answers.
    units.retain(|unit| names.are_ours(&unit.labels));
    // The runtime went away half way: nothing is decided on half of the answers.
    let looks: Vec<_> = units.iter().map(|unit| look(unit, registry.ensure_rules(), runtime, catalog, names)).collect();
    let found: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
    crash::here("looked at what is there");
    let mut sandboxes: BTreeMap<AgentName, Live> = BTreeMap::new();
    for (unit, found) in units.iter().zip(found) {
        let adopted = match found {
            Verdict::Keep(found) => {
                let live = sandboxes.entry(found.agent.clone()).or_insert_with(|| Live::new(found.project.clone()));
                let fits = live.project == found.project;
                if fits {
                    live.services.insert(found.service, Arc::new(found.serving));
                }
                if fits { Ok(()) } else { Err("its agent has a sandbox of another project".to_owned()) }
            }
            Verdict::Remove(why) => Err(why),
        };
        match adopted {
            Ok(()) => tracing::info!(container = unit.name, "adopted"),
            Err(why) => {
                tracing::info!(container = unit.name, why, "removed");
                registry.leaving().let_go(&unit.id).await;
            }
        }
    }
    for (agent, live) in sandboxes {
        // Whose work has ended, or whose slug somebody else has now, has no sandbox.
        let project = live.project.clone();
        let still = || people.work(&agent).is_some_and(|work| work.project == project);
        if let Err(live) = registry.adopt(&agent, live, still) {
            tracing::info!(%agent, "released, or it does not work on that project any more: removed");
            join_all(live.services.values().map(|s| registry.leaving().let_go(&s.id))).await;
        }
    }
    registry.recovered();
    // What was started again while the others were looked at was told to nobody.
    registry.doubt(None);
    Ok(())
}

/// What is to be done about a container.
enum Verdict {
    Keep(Box<Found>),
    Remove(String),
}

struct Found {
    agent: AgentName,
    project: ProjectName,
    service: ServiceName,
    serving: Serving,
}

/// Why a container is not kept, or why that cannot be told.
enum No {
    Remove(String),
    Unknown(RuntimeError),
}

impl From<String> for No {
    fn from(why: String) -> Self {
        Self::Remove(why)
    }
}

impl From<&str> for No {
    fn from(why: &str) -> Self {
        Self::Remove(why.to_owned())
    }
}

async fn look(
    unit: &Unit,
    ensure: &Ensure,
    runtime: &dyn Runtime,
    catalog: &CatalogHandle,
    names: &Names,
) -> Result<Verdict> {
    // A panic over one container must not keep the host from starting.
    match AssertUnwindSafe(read(unit, ensure, runtime, catalog, names)).catch_unwind().await {
        Ok(Ok(found)) => Ok(Verdict::Keep(Box::new(found))),
        Ok(Err(No::Remove(why))) => Ok(Verdict::Remove(why)),
        Ok(Err(No::Unknown(error))) => Err(error),
        Err(_) => Ok(Verdict::Remove("looking at it panicked".to_owned())),
    }
}

/// What a container is.
async fn read(
    unit: &Unit,
    ensure: &Ensure,
    runtime: &dyn Runtime,
    catalog: &CatalogHandle,
    names: &Names,
) -> Result<Found, No> {
    let Kind::Sandbox { slug, agent } = names.read(&unit.name) else {
        return Err("it was being made or let go".into());
    };
    if unit.state != UnitState::Running {
        return Err("it does not run".into());
    }
    let text = |key: &str| unit.labels.get(&names.label(key)).cloned().ok_or_else(|| format!("it has no label {key}"));
    let agent = AgentName::new(agent).map_err(|e| e.to_string())?;
    if text(label::OWNER)? != names.owner(&agent) {
        return Err("its name and its owner differ".into());
    }
    let project = ProjectName::new(text(label::PROJECT)?).map_err(|e| e.to_string())?;
    let name = ServiceName::new(text(label::SERVICE)?).map_err(|e| e.to_string())?;
    let features: Vec<String> =
        text(label::FEATURES)?.split(',').filter(|f| !f.is_empty()).map(str::to_owned).collect();
    let superuser = text(label::SUPERUSER)? == "1";
    let services = catalog.current();
    let service = services.services.get(&name).ok_or_else(|| format!("`{name}` is not available any more"))?;
    if service.slug.as_str() != slug {
        return Err("its service has another slug now".into());
    }
    let environment = match runtime.environment(&unit.id).await {
        Ok(environment) => environment,
        Err(e @ (RuntimeError::Unreachable(_) | RuntimeError::Deadline(_))) => return Err(No::Unknown(e)),
        Err(e) => return Err(No::Remove(format!("its environment cannot be read: {e}"))),
    };
    let serving = adopt(unit, ensure, service, names, &environment, features, superuser).await?;
    Ok(Found { agent, project, service: name, serving })
}

async fn adopt(
    unit: &Unit,
    ensure: &Ensure,
    service: &Service,
    names: &Names,
    environment: &[(String, String)],
    features: Vec<String>,
    superuser: bool,
) -> Result<Serving, No> {
    let checked = service.recipe(&features, false, superuser).await.map_err(|e| e.to_string())?;
    let container = &checked.recipe().container;
    if container.port.is_some() && unit.published_port.is_some() != ensure.limits().publish {
        return Err("ports are published differently now".into());
    }
    let read = |key: String| environment.iter().find(|(k, _)| *k == key).map(|(_, v)| Secret::new(v));
    let secrets = match &container.account {
        None => None,
        Some(_) => Some(Secrets {
            password: read(names.password_variable()).ok_or("its password cannot be read back")?,
            admin: read(names.admin_password_variable()),
        }),
    };
    let confirm = Confirm {
        maker: &ensure.maker(),
        service,
        checked: &checked,
        secrets: secrets.as_ref(),
        unit,
        progress: &ProgressSink::silent(),
    };
    // Before it is tried: if it is started again meanwhile, that is found out later.
    let run = run_of(unit, ensure).await?;
    match confirm.still_good(STILL_GOOD).await {
        Ok(()) => {}
        Err(NotMade::Away(why)) => return Err(No::Unknown(RuntimeError::Unreachable(why))),
        Err(NotMade::Failed(failure)) => return Err(failure.into_error().message.into()),
        Err(NotMade::Cancelled) => return Err("its adoption was cancelled".into()),
    }
    Ok(Serving {
        id: unit.id.clone(),
        name: unit.name.clone(),
        port: container.port,
        published_port: unit.published_port,
        account: container.account.clone(),
        secrets,
        features: features.into_iter().collect(),
        superuser,
        variables: checked.recipe().variables.clone(),
        created: unit.created,
        run,
    })
}

/// Which run a container is in, which its listing did not tell.
async fn run_of(unit: &Unit, ensure: &Ensure) -> Result<Option<String>, No> {
    match ensure.maker().runtime.inspect(&unit.id).await {
        Ok(unit) => Ok(unit.run),
        Err(RuntimeError::NotFound(_)) => Err("it is gone".into()),
        Err(e) => Err(No::Unknown(e)),
    }
}
