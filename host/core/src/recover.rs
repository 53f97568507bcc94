//! What a host does when it starts: containers are the record, so it looks at what carries its labels. What was being
//! made or let go is removed; what serves an agent is adopted, with its credentials read back, once it was seen to
//! answer; what is retained and sleeps is left asleep. Nothing is concluded from a listing that failed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::catalog::{Catalog, Service};
use crate::crash;
use crate::ensure::Ensure;
use crate::kept::{Not, TakeIn, made_with};
use crate::name::{AgentName, Kind, Names, ProjectName, ServiceName};
use crate::owner::{Owner, folder_that_goes};
use crate::people::People;
use crate::plan::label;
use crate::pool::{self, Ready};
use crate::registry::Registry;
use crate::runtime::{Result, RuntimeError, Unit, UnitState};
use crate::sandbox::{Live, Serving};
use crate::store::{HandOut, StoreError};

/// How long a container that was found running may take to answer its probe. It has been up before, but a machine that
/// starts a host has other things to do.
const STILL_GOOD: Duration = Duration::from_secs(30);
/// How many containers are looked at side by side: more would only wait for each other.
const AT_ONCE: usize = 8;

/// Recovers once; see the module.
///
/// # Errors
/// When the runtime could not say what exists; nothing was changed then.
pub async fn recover(registry: &Registry, people: &People) -> Result<()> {
    let ensure = registry.ensure_rules();
    let names = ensure.names.clone();
    let base = names.base_labels();
    let labels: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut units = ensure.runtime.list(&labels).await?;
    // Looked at again here: nothing without our labels is ever touched, whatever a listing answers.
    units.retain(|unit| names.are_ours(&unit.labels));
    units.iter().for_each(|unit| registry.unheard().note(unit, &names));
    registry.unheard().complete();
    let catalog = ensure.catalog.current();
    let keyed = keyed(ensure, &catalog, people)?;
    let handed_out = handed_out(ensure, &units)?;
    let known = Known { catalog: &catalog, keyed: &keyed, handed_out: &handed_out };
    // The runtime went away half way: nothing is decided on half of the answers.
    let looks: Vec<_> = units.iter().map(|unit| look(unit, ensure, &known)).collect();
    let found: Vec<_> = stream::iter(looks).buffered(AT_ONCE).try_collect().await?;
    crash::here("looked at what is there");
    let mut sandboxes: BTreeMap<Owner, Live> = BTreeMap::new();
    for (unit, found) in units.iter().zip(found) {
        let verdict = match found {
            Verdict::Keep(found) => {
                let live = sandboxes.entry(found.owner.clone()).or_insert_with(|| Live::new(found.project.clone()));
                if live.project == found.project {
                    live.services.insert(found.service, Arc::new(found.serving));
                    tracing::info!(container = unit.name, "adopted");
                    continue;
                }
                Verdict::Remove("its agent has a sandbox of another project".to_owned())
            }
            other => other,
        };
        match verdict {
            Verdict::Keep(_) | Verdict::Leave => {}
            Verdict::Ready(ready) => {
                tracing::info!(container = unit.name, "adopted, ready for whoever asks next");
                ensure.pool.adopt(*ready);
            }
            Verdict::Sleep(owner, why) => {
                tracing::info!(container = unit.name, why, "put to sleep");
                ensure.sleep(&owner, &unit.id).await;
            }
            Verdict::Remove(why) => {
                tracing::info!(container = unit.name, why, "removed");
                registry.leaving().let_go(&unit.id, folder_that_goes(&unit.labels, &names)).await;
            }
        }
    }
    for (owner, live) in sandboxes {
        // Whose work has ended, or whose slug somebody else has now, has no sandbox.
        let project = live.project.clone();
        let still = || {
            people.work(&owner.agent).is_some_and(|work| match &owner.keyed {
                None => work.project == project,
                Some(keyed) => work.tenant(&owner.agent) == keyed.tenant,
            })
        };
        if let Some(keyed) = owner.keyed.as_ref().filter(|k| k.retained) {
            // It has its name and was seen to serve, so it is whole, whether or not that was noted before the host ended.
            if let Err(e) = ensure.store.set_made(keyed.key.as_str(), &keyed.service) {
                tracing::warn!(owner = owner.key(), error = %e, "that something is whole cannot be noted");
            }
        }
        if let Err(live) = registry.adopt(&owner, live, still) {
            tracing::info!(
                agent = owner.slug(),
                owner = owner.key(),
                "released, or it does not work on that project any more: let go"
            );
            if owner.retains() {
                join_all(live.services.values().map(|s| ensure.sleep(&owner, &s.id))).await;
            } else {
                ensure.let_go(live.services.values()).await;
            }
        }
    }
    remove_orphans(ensure, &units, &keyed).await;
    registry.recovered();
    Ok(())
}

/// Work folders that no container has and that nobody retains: a host that was killed left them.
async fn remove_orphans(ensure: &Ensure, units: &[Unit], keyed: &BTreeMap<String, (Owner, ProjectName)>) {
    let Some(folders) = &ensure.folders else { return };
    let retained = keyed.values().filter(|(owner, _)| owner.retains()).map(|(owner, _)| owner.folder());
    let used = units.iter().filter_map(|unit| unit.labels.get(&ensure.names.label(label::FOLDER))).cloned();
    let wanted: BTreeSet<_> = retained.chain(used).collect();
    let names = match folders.names().await {
        Ok(names) => names,
        Err(e) => return tracing::warn!(error = %e, "work folders that nobody has stay until the next start"),
    };
    for name in names.into_iter().filter(|name| !wanted.contains(name)) {
        tracing::info!(folder = name, "no container has it: removed");
        ensure.leaving.remove_folder(Some(name)).await;
    }
}

/// Everybody who is known by a key alone, by the name of the container: what is retained, and the boxes that the agents
/// could have with the work they have.
fn keyed(ensure: &Ensure, catalog: &Catalog, people: &People) -> Result<BTreeMap<String, (Owner, ProjectName)>> {
    let mut all = BTreeMap::new();
    let mut add = |owner: Owner, service: &ServiceName, project: ProjectName| {
        if let Some(service) = catalog.services.get(service) {
            all.insert(owner.container(&ensure.names, &service.slug), (owner, project));
        }
    };
    for (agent, work) in people.all_work() {
        for service in catalog.services.values().filter(|s| s.work_folder.is_some()) {
            let owner = Owner::keyed(&ensure.names, &work.tenant(&agent), &service.name, false);
            add(owner, &service.name, work.project.clone());
        }
    }
    for row in ensure.store.kept().map_err(|e| RuntimeError::Failed(e.to_string()))? {
        add(Owner::keyed(&ensure.names, &row.tenant, &row.service, true), &row.service, row.tenant.project.clone());
    }
    Ok(all)
}

/// Who got what was ready, by container. What still has the name of what is ready was never somebody's.
fn handed_out(ensure: &Ensure, units: &[Unit]) -> Result<BTreeMap<String, HandOut>> {
    let failed = |e: StoreError| RuntimeError::Failed(e.to_string());
    let had = |row: &HandOut| {
        let unit = units.iter().find(|unit| unit.id == row.container);
        unit.is_some_and(|unit| ensure.names.read(&unit.name) != Kind::Pooled)
    };
    let (had, stale): (Vec<_>, Vec<_>) = ensure.store.handed_out().map_err(failed)?.into_iter().partition(had);
    let stale: Vec<_> = stale.into_iter().map(|row| row.container).collect();
    if !stale.is_empty() {
        ensure.store.forget_handed_out(&stale).map_err(failed)?;
    }
    Ok(had.into_iter().map(|row| (row.container.clone(), row)).collect())
}

/// What is known before any container was looked at.
struct Known<'a> {
    catalog: &'a Catalog,
    keyed: &'a BTreeMap<String, (Owner, ProjectName)>,
    handed_out: &'a BTreeMap<String, HandOut>,
}

/// What is to be done about a container.
enum Verdict {
    Keep(Box<Found>),
    /// It is ready for whoever asks next.
    Ready(Box<Ready>),
    /// It is asleep, or nobody knows whose it is.
    Leave,
    Sleep(Owner, String),
    Remove(String),
}

struct Found {
    owner: Owner,
    project: ProjectName,
    service: ServiceName,
    serving: Serving,
}

async fn look(unit: &Unit, ensure: &Ensure, all: &Known<'_>) -> Result<Verdict> {
    let names = &ensure.names;
    let known = all.keyed.get(&unit.name);
    let retained = matches!(names.read(&unit.name), Kind::Keyed { retained: true, .. });
    if retained && (known.is_none() || unit.state != UnitState::Running) {
        return Ok(Verdict::Leave);
    }
    // A panic over one container must not keep the host from starting.
    let read = async {
        match names.read(&unit.name) {
            Kind::Pooled => Ok(Verdict::Ready(Box::new(read_ready(unit, ensure, all.catalog).await?))),
            _ => Ok(Verdict::Keep(Box::new(read(unit, ensure, all, known).await?))),
        }
    };
    let why = match AssertUnwindSafe(read).catch_unwind().await {
        Ok(Ok(verdict)) => return Ok(verdict),
        Ok(Err(Not::Known(error))) => return Err(error),
        Ok(Err(Not::Fit(why))) => why,
        Err(_) => "looking at it panicked".to_owned(),
    };
    Ok(match known {
        Some((owner, _)) if retained => Verdict::Sleep(owner.clone(), why),
        _ => Verdict::Remove(why),
    })
}

/// What a container is.
async fn read(
    unit: &Unit,
    ensure: &Ensure,
    all: &Known<'_>,
    keyed: Option<&(Owner, ProjectName)>,
) -> Result<Found, Not> {
    let names = &ensure.names;
    if !matches!(names.read(&unit.name), Kind::Sandbox { .. } | Kind::Keyed { .. }) {
        return Err("it was being made or let go".into());
    }
    if unit.state != UnitState::Running {
        return Err("it does not run".into());
    }
    let text = |key: &str| unit.labels.get(&names.label(key)).cloned().ok_or_else(|| format!("it has no label {key}"));
    let (owner, project) = match (names.read(&unit.name), keyed) {
        (Kind::Sandbox { agent, .. }, _) => {
            let agent = AgentName::new(agent).map_err(|e| e.to_string())?;
            // What was handed out has the labels of what nobody has.
            if text(label::OWNER)? == names.pool() {
                let row = all.handed_out.get(&unit.id).filter(|row| row.agent == agent);
                let row = row.ok_or("nobody knows who got it")?;
                return found(unit, ensure, all.catalog, Owner::agent(&agent), row.project.clone()).await;
            }
            (Owner::agent(&agent), ProjectName::new(text(label::PROJECT)?).map_err(|e| e.to_string())?)
        }
        (_, Some((owner, project))) => (owner.clone(), project.clone()),
        (_, None) => return Err("nobody has it any more".into()),
    };
    if text(label::OWNER)? != owner.label(names) {
        return Err("its name and its owner differ".into());
    }
    found(unit, ensure, all.catalog, owner, project).await
}

/// Takes in a container of which it is known whose it is.
async fn found(
    unit: &Unit,
    ensure: &Ensure,
    catalog: &Catalog,
    owner: Owner,
    project: ProjectName,
) -> Result<Found, Not> {
    let names = &ensure.names;
    let (name, service) = service_of(unit, names, catalog)?;
    let (features, superuser) = made_with(unit, names).ok_or("its labels do not say what it was made with")?;
    if owner.container(names, &service.slug) != unit.name {
        return Err("its service has another slug now".into());
    }
    let how = TakeIn::Serving(STILL_GOOD);
    let serving = ensure.take_in(unit, owner.retains(), service, features, superuser, how).await?;
    if !ensure.is_published_as_wanted(&serving) {
        return Err("ports are published differently now".into());
    }
    Ok(Found { owner, project, service: name, serving })
}

/// The service that a container is of, as its label says.
fn service_of<'a>(unit: &Unit, names: &Names, catalog: &'a Catalog) -> Result<(ServiceName, &'a Arc<Service>), Not> {
    let name = unit.labels.get(&names.label(label::SERVICE)).ok_or("it has no label of its service")?;
    let name = ServiceName::new(name).map_err(|e| e.to_string())?;
    let service = catalog.services.get(&name).ok_or_else(|| format!("`{name}` is not available any more"))?;
    Ok((name, service))
}

/// What a container is that nobody has: whatever was made differently from how it would be made now is of no use.
async fn read_ready(unit: &Unit, ensure: &Ensure, catalog: &Catalog) -> Result<Ready, Not> {
    let names = &ensure.names;
    let (_, service) = service_of(unit, names, catalog)?;
    let (features, superuser) = made_with(unit, names).ok_or("its labels do not say what it was made with")?;
    let list: Vec<_> = features.iter().cloned().collect();
    let pool::Kind { shape, image } = ensure.kind(service, &list, superuser).await.map_err(|e| e.to_string())?;
    if unit.labels.get(&names.label(label::SHAPE)) != Some(&shape.0) {
        return Err("it would be made differently now".into());
    }
    let how = TakeIn::Serving(STILL_GOOD);
    let serving = ensure.take_in(unit, false, service, features, superuser, how).await?;
    Ok(Ready { shape, image, serving })
}
