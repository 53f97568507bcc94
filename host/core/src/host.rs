//! The host as a whole: the parts joined, what every verb does, and how it starts and goes down.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt as _};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::Notify;

use crate::budget::Coming;
use crate::catalog::{CatalogHandle, RecipeError};
use crate::departed::Departed;
use crate::ensure::{Change, Ensure, Limits, unavailable};
use crate::error::{Code, Error, listed};
use crate::failure;
use crate::folders::Folders;
use crate::guard::{self, Admitted, Ask};
use crate::health::Health;
use crate::janitor::{Janitor, Pace};
use crate::name::{AgentName, Names, ProjectName, ServiceName};
use crate::owner::{Owner, Tenant};
use crate::people::{People, Work, may_name};
use crate::plan;
use crate::progress::Took;
use crate::project::{Declared, GateValue, Project};
use crate::recover::recover;
use crate::registry::{Listener, Registry, Snapshot};
use crate::runtime::{Event, ExecPlan, Runtime, RuntimeError, UnitState};
use crate::sandbox::{Evidence, Live, Want, evidence};
use crate::store::{Store, StoreError};

/// A call may take the pull's deadline, the slowest readiness deadline of its services, and this much more.
const CALL_EXTRA: Duration = Duration::from_secs(60);
/// How often one call begins again because the project was changed meanwhile.
const CHANGES_A_CALL: usize = 8;
/// How many units are asked at once how much memory they use.
const MEASURED_AT_ONCE: usize = 8;
/// Pause between two attempts to look at what exists when the host starts and the runtime is away.
const RECOVER_EVERY: Duration = Duration::from_secs(1);
/// How long flights may go on when the host goes down.
const DRAIN_WAIT: Duration = Duration::from_secs(20);

/// What the operator decides, beside engines and people.
pub struct Settings {
    /// Names.
    pub names: Arc<Names>,
    /// How the master switch is in the configuration. What was set while a host ran counts more.
    pub enabled: bool,
    /// How the environment sets it at start, which counts most.
    pub enabled_by_environment: Option<bool>,
    /// The roles that may ask for sandboxes.
    pub roles: BTreeSet<String>,
    /// Every project of the configuration.
    pub projects: Vec<Project>,
    /// Bounds.
    pub limits: Limits,
    /// When and how patiently the janitor sweeps.
    pub pace: Pace,
    /// Whether sandboxes outlive the host, for the next one to adopt.
    pub keep_on_shutdown: bool,
    /// What work folders may hold.
    pub box_budget: BoxBudget,
    /// Whether a runtime that is not on this machine is refused.
    pub local_only: bool,
}

/// What work folders may hold, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoxBudget {
    /// That of one box.
    pub one: u64,
    /// Those of all boxes together.
    pub all: u64,
}

/// The host.
pub struct Host {
    runtime: Arc<dyn Runtime>,
    catalog: CatalogHandle,
    store: Arc<Store>,
    people: People,
    registry: Arc<Registry>,
    health: Health,
    names: Arc<Names>,
    enabled: AtomicBool,
    roles: BTreeSet<String>,
    configured: BTreeSet<ProjectName>,
    projects: RwLock<BTreeMap<ProjectName, Arc<Project>>>,
    declared: Notify,
    pace: Pace,
    keep_on_shutdown: bool,
    folders: Option<Arc<dyn Folders>>,
    box_budget: BoxBudget,
    coming: Coming,
    at_work: Coming,
    transfers: Coming,
    local_only: bool,
}

/// What let an agent in: what it asks for, and what that rests on.
pub(crate) struct Admission {
    pub(crate) admitted: Admitted,
    work: Work,
    project: Arc<Project>,
}

/// What a sandbox is, for its agent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// `absent`, `making`, `live` or `letting_go`.
    pub state: &'static str,
    /// The project it was made for.
    pub project: Option<ProjectName>,
    /// Its services.
    pub services: BTreeMap<ServiceName, ServiceStatus>,
}

/// What one service is, for its agent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServiceStatus {
    /// Confirmed features.
    pub available_extensions: Vec<String>,
    /// Since when, in seconds.
    pub age_secs: u64,
    /// The name of its container.
    pub container: String,
}

/// A service that an agent has, for the operator.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Had {
    /// Whose it is.
    pub agent: AgentName,
    /// The project it was made for.
    pub project: ProjectName,
    /// The service.
    pub service: ServiceName,
    /// `live`, `making`, or `asleep` for what is retained.
    pub state: &'static str,
    /// The name of its container, null where there is none yet, or while it is asleep.
    pub container: Option<String>,
    /// Since when, in seconds; null with it.
    pub age_secs: Option<u64>,
    /// How much memory it uses, in bytes; null where that is not known.
    pub memory_bytes: Option<u64>,
    /// Confirmed features.
    pub available_extensions: Vec<String>,
}

/// What `request_sandbox` would do to a service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explained {
    /// `keep`, `make` or `remake`.
    pub action: &'static str,
    /// The image it runs, before the operator's mapping.
    pub image: String,
    /// The features it would have.
    pub available_extensions: Vec<String>,
    /// How long each step of making or waking what is there took, in order. Empty where nothing is, and where the host found
    /// it when it started.
    pub timeline: Vec<Took>,
}

/// The service's own client, for a person.
#[derive(Serialize, JsonSchema)]
pub struct Client {
    /// The container in which it is run, by whoever may use its Docker.
    pub container: String,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables for it, with which it is logged in as the caller's account.
    pub env: BTreeMap<String, String>,
}

/// What an orchestrator starts an agent with.
#[derive(Debug, Serialize, PartialEq, Eq, JsonSchema)]
pub struct Spawn {
    /// Variables to set.
    pub env: BTreeMap<String, String>,
    /// One line for the agent's briefing.
    pub briefing: Option<String>,
}

impl Host {
    /// Joins the parts. Nothing in the runtime is looked at or changed yet.
    ///
    /// # Errors
    /// When the state file cannot be read.
    pub fn new(
        settings: Settings,
        runtime: Arc<dyn Runtime>,
        catalog: CatalogHandle,
        store: Arc<Store>,
        people: People,
        folders: Option<Arc<dyn Folders>>,
    ) -> Result<Arc<Self>, StoreError> {
        let Settings {
            names,
            enabled,
            enabled_by_environment,
            roles,
            projects,
            limits,
            pace,
            keep_on_shutdown,
            box_budget,
            local_only,
        } = settings;
        let health = Health::new(runtime.clone());
        let (names_too, health_too) = (names.clone(), health.clone());
        let ensure = Ensure::new(
            runtime.clone(),
            catalog.clone(),
            names_too,
            limits,
            health_too,
            store.clone(),
            folders.clone(),
        );
        let configured: BTreeSet<_> = projects.iter().map(|p| p.name.clone()).collect();
        let mut projects: BTreeMap<_, _> = projects.into_iter().map(|p| (p.name.clone(), Arc::new(p))).collect();
        for (name, declared) in store.projects()? {
            if configured.contains(&name) {
                tracing::warn!(project = %name, "declared while running, and configured: the configuration counts");
                continue;
            }
            match Project::declare(name.clone(), declared, &catalog.current()) {
                Ok(project) => drop(projects.insert(name, Arc::new(project))),
                Err(problems) => tracing::warn!(project = %name, ?problems, "the declared project cannot be used"),
            }
        }
        for project in projects.values().filter(|p| p.superuser) {
            tracing::warn!(target: "audit", project = %project.name, "its accounts are superusers: nothing contains them");
        }
        let enabled = enabled_by_environment.or(store.switch()?).unwrap_or(enabled);
        tracing::info!(enabled, "the master switch");
        let registry = Arc::new(Registry::new(ensure));
        registry.set_pool_open(enabled);
        Ok(Arc::new(Self {
            registry,
            runtime,
            catalog,
            store,
            people,
            health,
            names,
            enabled: AtomicBool::new(enabled),
            roles,
            configured,
            projects: RwLock::new(projects),
            declared: Notify::new(),
            pace,
            keep_on_shutdown,
            folders,
            box_budget,
            coming: Coming::default(),
            at_work: Coming::default(),
            transfers: Coming::default(),
            local_only,
        }))
    }

    /// Looks at what exists, again until the runtime says so, and opens the doors; then watches the runtime. Ends when
    /// the host goes down.
    pub async fn run(self: Arc<Self>) {
        let mut told = false;
        while let Err(e) = recover(&self.registry, &self.people).await {
            self.registry.unheard().complete();
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(error = %e, "the container runtime cannot be asked what exists; trying again");
            }
            if self.health.state() == crate::health::State::Draining {
                return;
            }
            tokio::time::sleep(RECOVER_EVERY).await;
        }
        self.health.recovered();
        tracing::info!(sandboxes = self.registry.occupied().0, awake = self.registry.occupied().1, "serving");
        let (registry, runtime) = (self.registry.clone(), self.runtime.clone());
        let janitor = Janitor::new(registry, runtime, self.names.clone(), self.pace.clone());
        tokio::select! {
            // In this order, so that a simulation is the same each time.
            biased;
            () = janitor.run() => {}
            () = self.watch_ends() => {}
            () = self.watch_growth() => {}
            () = self.registry.clone().keep_pool() => {}
            () = self.clone().have_images() => {}
            () = self.health.clone().watch() => {}
        }
    }

    /// Listens for containers that end: those of agents, see [`crate::departed`], and our own. One of ours that was started
    /// again since is not the one that was made: its data is gone. A listing cannot tell, so whatever ended, or may have
    /// ended unseen, is looked at more closely by the next call.
    async fn watch_ends(&self) {
        let mut events = self.runtime.watch();
        let mut departed =
            Departed::new(self.registry.clone(), self.runtime.clone(), self.names.clone(), self.pace.respawn);
        loop {
            let event = tokio::select! {
                event = events.recv() => event,
                () = departed.next() => continue,
            };
            match event {
                Some(Event::Ended { id, labels, .. }) if self.names.are_ours(&labels) => {
                    self.registry.doubt(&id);
                    self.registry.unheard().forget(&id);
                }
                Some(Event::Ended { id, name, labels }) => departed.ended(&id, &name, &labels),
                Some(Event::Interrupted) => self.registry.doubt_all(true),
                Some(Event::Resumed) => self.registry.doubt_all(false),
                None => break,
            }
        }
        tracing::error!("the runtime tells no more what ends");
        std::future::pending().await
    }

    /// Takes no more requests, lets the running ones finish within a bound, and leaves what is live to the next start
    /// unless the operator wants it removed.
    pub async fn shut_down(&self) {
        self.health.drain();
        self.registry.close();
        self.registry.settle(DRAIN_WAIT).await;
        if !self.keep_on_shutdown {
            let owners = self.registry.owners();
            let why = "the host goes down";
            join_all(owners.iter().map(|o| self.registry.release_owner(o, why))).await;
            self.registry.empty_pool().await;
        }
        // What is not gone by then carries a name that the next start removes.
        let until = tokio::time::Instant::now() + DRAIN_WAIT;
        let mut told = false;
        while self.registry.leaving().certain() > 0 && tokio::time::Instant::now() < until {
            if !std::mem::replace(&mut told, true) {
                tracing::info!(containers = self.registry.leaving().certain(), "waiting until they are removed");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if !self.keep_on_shutdown
            && let Err(e) = self.runtime.retire().await
        {
            tracing::warn!(error = %e, "the network of the sandboxes stays");
        }
    }

    /// Everybody.
    pub fn people(&self) -> &People {
        &self.people
    }

    /// Whether a caller from this address is not heard: nothing in a box may talk to the host, and as long as it is not known
    /// which boxes there are nobody is heard but from this machine.
    pub fn is_unheard(&self, address: IpAddr) -> bool {
        self.registry.unheard().is(address)
    }

    /// Whether the host takes requests.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// What can be asked for.
    pub fn catalog(&self) -> &CatalogHandle {
        &self.catalog
    }

    /// Names.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Every agent's sandbox.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether agents of this role may ask for sandboxes.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn role_may_ask(&self, role: &str) -> Result<(), Error> {
        if self.roles.contains(role) {
            return Ok(());
        }
        let roles: Vec<_> = self.roles.iter().collect();
        let message = format!("an agent with the role `{}` may not ask for sandboxes", role.escape_debug());
        Err(Error::new(Code::Forbidden, message, format!("the roles that may are {}", listed(&roles))).allowing(roles))
    }

    /// Sets the master switch, from now on and over restarts. Off refuses new requests only.
    ///
    /// # Errors
    /// `internal` when the state file cannot be written.
    pub fn set_switch(&self, enabled: bool) -> Result<(), Error> {
        self.store.set_switch(enabled).map_err(internal)?;
        self.enabled.store(enabled, Ordering::Relaxed);
        self.registry.set_pool_open(enabled);
        self.declared.notify_one();
        tracing::info!(target: "audit", enabled, "set_switch");
        Ok(())
    }

    /// Declares a project, in place of what was declared of it before. What exists is changed by its agents' next calls.
    ///
    /// # Errors
    /// `invalid_state` for a project of the configuration, `bad_request` for what names something there is not.
    pub fn set_project(&self, name: ProjectName, declared: Declared) -> Result<Arc<Project>, Error> {
        if self.configured.contains(&name) {
            let message = format!("the project `{name}` is written in the configuration");
            return Err(Error::new(Code::InvalidState, message, format!("change the table [projects.{name}] there")));
        }
        let project =
            Project::declare(name.clone(), declared.clone(), &self.catalog.current()).map_err(|problems| {
                let lines: Vec<_> = problems.iter().map(|(key, why)| format!("`{key}`: {why}")).collect();
                Error::bad_request(lines.join("; "))
            })?;
        let project = Arc::new(project);
        {
            // Written under the lock, so that the file and the books agree about which declaration was the last.
            let mut projects = self.projects.write().unwrap_or_else(PoisonError::into_inner);
            self.store.set_project(&name, &declared).map_err(internal)?;
            projects.insert(name.clone(), project.clone());
        }
        self.declared.notify_one();
        tracing::info!(target: "audit", project = %name, services = ?project.services, superuser = project.superuser, "set_project");
        Ok(project)
    }

    /// Removes a registered agent: its token, its work and its sandbox.
    ///
    /// # Errors
    /// `not_found`, or `invalid_state` for an agent of the configuration.
    pub async fn remove_agent(&self, agent: &AgentName) -> Result<(), Error> {
        self.people.remove(agent)?;
        tracing::info!(target: "audit", %agent, "remove_agent");
        self.release(agent, "the agent was removed").await;
        self.registry.delete_retained(agent).await;
        self.remove_artifacts(agent).await;
        Ok(())
    }

    fn project(&self, name: &ProjectName) -> Option<Arc<Project>> {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Every project.
    pub(crate) fn all_projects(&self) -> Vec<Arc<Project>> {
        self.projects.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Told when a project was declared or the master switch was set.
    pub(crate) fn declared(&self) -> &Notify {
        &self.declared
    }

    /// Whether agents may ask.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// What runs containers.
    pub(crate) fn runtime(&self) -> &dyn Runtime {
        self.runtime.as_ref()
    }

    /// What keeps work folders, where that is possible.
    pub(crate) fn folders_if_any(&self) -> Option<&dyn Folders> {
        self.folders.as_deref()
    }

    /// Whether the state file can be used.
    ///
    /// # Errors
    /// When not, with what to do.
    pub fn check_state_file(&self) -> Result<(), StoreError> {
        self.store.check()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn at_work(&self) -> &Coming {
        &self.at_work
    }

    pub(crate) fn transfers(&self) -> &Coming {
        &self.transfers
    }

    pub(crate) fn coming(&self) -> &Coming {
        &self.coming
    }

    pub(crate) fn box_budget(&self) -> BoxBudget {
        self.box_budget
    }

    pub(crate) fn is_box(&self, service: &ServiceName) -> bool {
        self.catalog.current().services.get(service).is_some_and(|s| s.work_folder.is_some())
    }

    pub(crate) async fn admit(
        &self,
        agent: &AgentName,
        services: Option<&BTreeSet<String>>,
        extensions: &BTreeMap<String, BTreeSet<String>>,
    ) -> Result<Admission, Error> {
        let enabled = self.enabled.load(Ordering::Relaxed);
        // With the switch off nothing is looked up.
        let work = if enabled { self.people.work(agent) } else { None };
        let project = work.as_ref().and_then(|w| self.project(&w.project));
        let admitted = guard::admit(
            &Ask {
                enabled,
                switch: &self.names.switch_variable(),
                work: work.as_ref(),
                project: project.as_deref(),
                services,
                extensions,
                catalog: &self.catalog.current(),
                too_far: self.local_only && !self.runtime.caps().local,
            },
            &self.health,
        )
        .await?;
        match (work, project) {
            (Some(work), Some(project)) => Ok(Admission { admitted, work, project }),
            _ => Err(guard::no_work()),
        }
    }

    /// Gives an agent what its project opted in to, and answers the evidence for what it asked for.
    ///
    /// # Errors
    /// A guard's refusal, or why it could not be made.
    pub async fn request_sandbox(
        &self,
        agent: &AgentName,
        services: Option<&BTreeSet<String>>,
        extensions: &BTreeMap<String, BTreeSet<String>>,
        listener: Option<&Listener>,
    ) -> Result<BTreeMap<String, Evidence>, Error> {
        for _ in 1..CHANGES_A_CALL {
            match self.request_once(agent, services, extensions, listener).await {
                // What is asked for is judged by what the project is now.
                Err(e) if e == guard::project_changed() => {}
                answer => return answer,
            }
        }
        self.request_once(agent, services, extensions, listener).await
    }

    async fn request_once(
        &self,
        agent: &AgentName,
        services: Option<&BTreeSet<String>>,
        extensions: &BTreeMap<String, BTreeSet<String>>,
        listener: Option<&Listener>,
    ) -> Result<BTreeMap<String, Evidence>, Error> {
        let admission = self.admit(agent, services, extensions).await?;
        let Admitted { want, asked } = &admission.admitted;
        let parts = self.parts(agent, &admission);
        self.let_go_what_is_not_wanted(agent, &parts).await;
        // What is retained stays awake until all of it can be answered.
        let retained = parts.iter().map(|(owner, _)| owner).filter(|owner| owner.retains());
        let _in_flight: Vec<_> = retained.map(|owner| self.registry.in_flight(owner)).collect();
        let all = parts.iter().map(|(owner, want)| self.ensure_part(agent, &admission, owner, want, listener));
        let mut live = Live::new(want.project.clone());
        // Waited for together: one that fails must not leave the others without anybody who waits.
        for part in join_all(all).await {
            live.services.extend(part?.services);
        }
        tracing::info!(target: "audit", %agent, project = %want.project, services = ?names_of(&live), "request_sandbox");
        evidence(&live, &admission.project.services, asked, &self.names).map_err(internal)
    }

    /// Makes sure of a part of what an agent was let in for.
    pub(crate) async fn ensure_part(
        &self,
        agent: &AgentName,
        admission: &Admission,
        owner: &Owner,
        want: &Want,
        listener: Option<&Listener>,
    ) -> Result<Live, Error> {
        let Admission { work, project, .. } = admission;
        let still = || {
            // Under the entry's lock: work that ended since has released, or will find this flight and release it.
            if self.people.work(agent).as_ref() != Some(work) {
                return Err(guard::work_changed());
            }
            match self.project(&work.project) {
                Some(now) if Arc::ptr_eq(&now, project) => Ok(()),
                _ => Err(guard::project_changed()),
            }
        };
        let deadline = self.registry.ensure_rules().limits().pull + self.slowest(want) + CALL_EXTRA;
        self.registry.ensure(owner, want, deadline, &still, listener).await
    }

    /// Who will own what is wanted: boxes and what is retained stand alone, the rest belongs together.
    pub(crate) fn parts(&self, agent: &AgentName, admission: &Admission) -> Vec<(Owner, Want)> {
        let Admission { admitted: Admitted { want, .. }, work, project } = admission;
        let tenant = work.tenant(agent);
        let mut together = Want { services: BTreeMap::new(), ..want.clone() };
        let mut parts = Vec::new();
        for (service, features) in &want.services {
            let retained = project.retained.contains(service);
            if retained || self.is_box(service) {
                let services = [(service.clone(), features.clone())].into();
                let owner = Owner::keyed(&self.names, &tenant, service, retained);
                parts.push((owner, Want { services, ..want.clone() }));
            } else {
                together.services.insert(service.clone(), features.clone());
            }
        }
        if !together.services.is_empty() {
            parts.push((Owner::agent(agent), together));
        }
        parts
    }

    /// What an agent has that belongs to none of the parts: of a service that is no longer opted in, or is kept otherwise.
    async fn let_go_what_is_not_wanted(&self, agent: &AgentName, parts: &[(Owner, Want)]) {
        let owners = self.registry.owners_of(agent);
        let unwanted = owners.iter().filter(|owner| !parts.iter().any(|(wanted, _)| wanted == *owner));
        join_all(unwanted.map(|owner| self.registry.release_owner(owner, "it is not wanted any more"))).await;
    }

    fn slowest(&self, want: &Want) -> Duration {
        let catalog = self.catalog.current();
        let deadlines = want.services.keys().filter_map(|s| catalog.services.get(s)).map(|s| s.deadline);
        deadlines.max().unwrap_or_default()
    }

    /// What [`Host::request_sandbox`] would do now, from the books: nothing is made, and nothing is checked live.
    ///
    /// # Errors
    /// A guard's refusal.
    pub async fn explain(
        &self,
        agent: &AgentName,
        services: Option<&BTreeSet<String>>,
        extensions: &BTreeMap<String, BTreeSet<String>>,
    ) -> Result<BTreeMap<ServiceName, Explained>, Error> {
        let admission = self.admit(agent, services, extensions).await?;
        let Admitted { want, asked } = &admission.admitted;
        let mut live = Live::new(want.project.clone());
        for (owner, _) in self.parts(agent, &admission) {
            let part = self.registry.snapshot(&owner).live.filter(|l| l.project == want.project);
            live.services.extend(part.map(|l| l.services).unwrap_or_default());
        }
        let change = Change::between(Some(&live), true, want);
        let held = live.services;
        let catalog = self.catalog.current();
        let mut explained = BTreeMap::new();
        for name in asked {
            let (action, features) = match (change.make.get(name), held.get(name)) {
                (Some(features), Some(_)) => ("remake", features.clone()),
                (Some(features), None) => ("make", features.clone()),
                (None, held) => ("keep", held.map(|s| s.features.clone()).unwrap_or_default()),
            };
            let features: Vec<String> = features.into_iter().collect();
            let service = catalog.services.get(name).ok_or_else(Error::internal)?;
            let image = match service.recipe(&features, admission.project.retained.contains(name), want.superuser).await
            {
                Ok(checked) => checked.image().to_owned(),
                Err(e) => return Err(Error::new(Code::InvalidState, format!("`{name}`: {e}"), "tell the operator")),
            };
            let timeline = held.get(name).map(|s| s.timeline.clone()).unwrap_or_default();
            explained.insert(name.clone(), Explained { action, image, available_extensions: features, timeline });
        }
        Ok(explained)
    }

    /// How a person opens the own client of a service that the agent has.
    ///
    /// # Errors
    /// The agent does not have it, or its engine names none.
    pub async fn client(&self, agent: &AgentName, name: &ServiceName) -> Result<Client, Error> {
        self.health.knows_what_exists()?;
        let found = self.registry.owners_of(agent).into_iter().find_map(|owner| {
            let live = self.registry.snapshot(&owner).live?;
            Some((owner, live.services.get(name)?.clone()))
        });
        let absent = || {
            let message = format!("you have no service `{name}` now");
            Error::new(Code::InvalidState, message, "ask for it with `request_sandbox`, then call again")
        };
        let (owner, serving) = found.ok_or_else(absent)?;
        let catalog = self.catalog.current();
        let service = catalog.services.get(name).ok_or_else(|| unavailable(name, &catalog.why_not(name)))?;
        let features: Vec<_> = serving.features.iter().cloned().collect();
        let refused = |e: RecipeError| Error::new(Code::InvalidState, format!("`{name}`: {e}"), "tell the operator");
        let checked = service.recipe(&features, owner.retains(), serving.superuser).await.map_err(refused)?;
        let Some(client) = service.client(&checked).map_err(refused)? else {
            let message = format!("the engine of `{name}` names no client");
            return Err(Error::new(Code::InvalidState, message, "connect with a client of your own, by its variables"));
        };
        let unit = match self.runtime.inspect(&serving.id).await {
            Ok(unit) if unit.state == UnitState::Running => unit,
            Ok(_) | Err(RuntimeError::NotFound(_)) => return Err(absent()),
            Err(e) => {
                self.health.note(&e);
                return Err(failure::runtime(&e));
            }
        };
        let address = unit.address.as_deref().unwrap_or("none");
        let plan = plan::exec(&client, &checked, serving.secrets.as_ref(), address, self.names.namespace());
        let ExecPlan { argv, env, .. } = plan.map_err(internal)?;
        tracing::info!(target: "audit", %agent, service = %name, "sandbox_client");
        Ok(Client { container: serving.name.clone(), argv, env: env.into_iter().collect() })
    }

    /// Lets the agent's sandbox go. Having none is fine.
    pub async fn release(&self, agent: &AgentName, why: &str) -> Vec<ServiceName> {
        self.registry.release(agent, why).await
    }

    /// What everybody has, with what is asleep.
    ///
    /// # Errors
    /// While the host starts, and when the state file cannot be read.
    pub async fn list_sandboxes(&self) -> Result<Vec<Had>, Error> {
        self.health.knows_what_exists()?;
        let now = SystemTime::now();
        let (mut had, mut awake) = (Vec::new(), BTreeSet::new());
        for owner in self.registry.owners() {
            let Snapshot { state, live, making, .. } = self.registry.snapshot(&owner);
            let has = |name: &ServiceName| live.as_ref().is_some_and(|live| live.services.contains_key(name));
            if let Some(making) = &making {
                for service in making.services.keys().filter(|name| !has(name)) {
                    let unit = Had {
                        agent: owner.agent.clone(),
                        project: making.project.clone(),
                        service: service.clone(),
                        state,
                        container: None,
                        age_secs: None,
                        memory_bytes: None,
                        available_extensions: Vec::new(),
                    };
                    had.push((None, unit));
                }
            }
            for (project, name, serving) in live
                .into_iter()
                .flat_map(|live| live.services.into_iter().map(move |(n, s)| (live.project.clone(), n, s)))
            {
                awake.extend(owner.keyed.as_ref().map(|keyed| keyed.key.as_str().to_owned()));
                let unit = Had {
                    agent: owner.agent.clone(),
                    project,
                    service: name,
                    state,
                    container: Some(serving.name.clone()),
                    age_secs: Some(now.duration_since(serving.created).unwrap_or_default().as_secs()),
                    memory_bytes: None,
                    available_extensions: serving.features.iter().cloned().collect(),
                };
                had.push((Some(serving.id.clone()), unit));
            }
        }
        for row in self.store.kept().map_err(|_| Error::internal())? {
            if !awake.contains(&row.key) && row.made {
                let Tenant { agent, project, .. } = row.tenant;
                let (state, service) = ("asleep", row.service);
                let unit = Had {
                    agent,
                    project,
                    service,
                    state,
                    container: None,
                    age_secs: None,
                    memory_bytes: None,
                    available_extensions: Vec::new(),
                };
                had.push((None, unit));
            }
        }
        // One question each, since Docker has no other; a few at a time, since each costs it a look at the container.
        let measured = stream::iter(had).map(async |(id, unit)| {
            let memory_bytes = match id {
                Some(id) => self.runtime.memory(&id).await.ok(),
                None => None,
            };
            Had { memory_bytes, ..unit }
        });
        let mut had: Vec<_> = measured.buffered(MEASURED_AT_ONCE).collect().await;
        had.sort_by(|a, b| (&a.agent, &a.project, &a.service).cmp(&(&b.agent, &b.project, &b.service)));
        Ok(had)
    }

    /// What the agent has, from the books.
    pub fn status(&self, agent: &AgentName) -> Status {
        let snapshots: Vec<_> = self.registry.owners_of(agent).iter().map(|o| self.registry.snapshot(o)).collect();
        let now = SystemTime::now();
        let lives = || snapshots.iter().filter_map(|s| s.live.as_ref());
        let services = lives().flat_map(|live| &live.services).map(|(name, serving)| {
            let status = ServiceStatus {
                available_extensions: serving.features.iter().cloned().collect(),
                age_secs: now.duration_since(serving.created).unwrap_or_default().as_secs(),
                container: serving.name.clone(),
            };
            (name.clone(), status)
        });
        Status {
            // The one of all states that says most.
            state: ["making", "live", "letting_go"]
                .into_iter()
                .find(|state| snapshots.iter().any(|s| s.state == *state))
                .unwrap_or("absent"),
            services: services.collect(),
            project: lives().next().map(|l| l.project.clone()),
        }
    }

    /// When the agent's lease ends, as text, if it has a sandbox.
    pub fn lease_expires_at(&self, agent: &AgentName) -> Option<String> {
        let left = self.registry.owners_of(agent).iter().filter_map(|o| self.registry.snapshot(o).lease).max()?;
        Some(humantime::format_rfc3339_seconds(SystemTime::now() + left).to_string())
    }

    /// Binds an agent to a project. What it had for another project goes.
    ///
    /// # Errors
    /// `forbidden` for somebody else's project, `not_found` for an unknown agent or project.
    pub async fn begin_work(
        &self,
        by: &str,
        projects: &[ProjectName],
        agent: &AgentName,
        project: &ProjectName,
    ) -> Result<(), Error> {
        may_name(projects, project)?;
        if self.project(project).is_none() {
            let remediate = format!("the operator adds a table [projects.{project}], or uses `set_project`");
            return Err(Error::new(Code::NotFound, format!("there is no project `{project}`"), remediate));
        }
        let new = self.people.begin_work(agent, project, by, |earlier| may_name(projects, earlier))?;
        tracing::info!(target: "audit", %agent, %project, "begin_work");
        // Also where nothing is known of earlier work: while the host starts, what that left may not have been found yet.
        if new {
            self.release(agent, "new work began").await;
        }
        Ok(())
    }

    /// Ends an agent's work, if it has any, and lets its sandbox go. Never fails for the letting go.
    ///
    /// # Errors
    /// `forbidden` when the work is on somebody else's project.
    pub async fn end_work(&self, projects: &[ProjectName], agent: &AgentName, why: &str) -> Result<bool, Error> {
        let ended = self.people.end_work(agent, |project| may_name(projects, project))?;
        tracing::info!(target: "audit", %agent, why, "end_work");
        // Without work there is no sandbox either, but for one that a release has overtaken.
        let has = |owner: &Owner| self.registry.snapshot(owner).live.is_some_and(|l| projects.contains(&l.project));
        if ended.is_some() || self.registry.owners_of(agent).iter().any(has) {
            self.release(agent, why).await;
        }
        Ok(ended.is_some())
    }

    /// What an orchestrator starts an agent with; see the spec: the marker or `gate_env`, never both, and neither when a
    /// look-up fails.
    ///
    /// # Errors
    /// `forbidden` for somebody else's project.
    pub fn spawn_env(
        &self,
        projects: &[ProjectName],
        agent: &AgentName,
        project: &ProjectName,
    ) -> Result<Spawn, Error> {
        may_name(projects, project)?;
        let nothing = Spawn { env: BTreeMap::new(), briefing: None };
        let Some(found) = self.project(project) else {
            tracing::warn!(%agent, %project, "spawn_env: no such project");
            return Ok(nothing);
        };
        if self.enabled.load(Ordering::Relaxed) && !found.services.is_empty() {
            let services: Vec<_> = found.services.iter().map(ServiceName::as_str).collect();
            let briefing = format!(
                "Throwaway services are available for your tests: {}. Call `request_sandbox` to get them with their \
                 connection variables, and `release_sandbox` when you are done.",
                services.join(", ")
            );
            let env = [(self.names.marker_variable(), services.join(","))].into();
            return Ok(Spawn { env, briefing: Some(briefing) });
        }
        let mut env = BTreeMap::new();
        for (name, value) in &found.gate_env {
            let value = match value {
                GateValue::Plain(value) => value.clone(),
                GateValue::Secret(source) => match source.read() {
                    Ok(secret) => secret.reveal().to_owned(),
                    Err(why) => {
                        tracing::warn!(%agent, %project, variable = name, why, "spawn_env: answering nothing");
                        return Ok(nothing);
                    }
                },
            };
            env.insert(name.clone(), value);
        }
        Ok(Spawn { env, briefing: None })
    }
}

fn names_of(live: &Live) -> Vec<&str> {
    live.services.keys().map(ServiceName::as_str).collect()
}

fn internal(e: impl std::fmt::Display) -> Error {
    tracing::error!(error = %e, "a fault of the host");
    Error::internal()
}
