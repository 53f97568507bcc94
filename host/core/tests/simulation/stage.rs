//! What a schedule is played on: the simulated Docker, the state file, one host after another, and the callers, each of
//! whom judges the answers it gets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbar_core::catalog::CatalogHandle;
use sandbar_core::ensure::Limits;
use sandbar_core::error::{Code, Error};
use sandbar_core::health;
use sandbar_core::host::{BoxBudget, Host, Settings};
use sandbar_core::janitor::Pace;
use sandbar_core::name::{AgentName, EngineSlug, Installation, Kind, Names, Namespace, ProjectName, ServiceName};
use sandbar_core::owner::{Owner, Tenant};
use sandbar_core::people::{Caller, Configured, People};
use sandbar_core::pool::Target;
use sandbar_core::runtime::UnitState;
use sandbar_core::store::Store;
use serde_json::{Value, json};

use crate::disk::WorkFolders;
use crate::docker::Docker;
use crate::engine::{self, BOX, KEEPING, PROJECTS};
use crate::faults::{Kind as Call, Knobs};
use crate::ledger::Agent;
use crate::schedule::{Back, Schedule};
use crate::world::{Inner, World};

/// The whole deadline of a call: the pull, the slowest readiness, what the host adds, and its guard's look at Docker.
pub(crate) const CALL: Duration = Duration::from_secs(300 + 3 + 60 + 6);
/// A release answers after this long, whatever Docker does.
const RELEASE: Duration = Duration::from_secs(10);
/// That a container was started again is known after this long, also when Docker was away.
const RESTART: Duration = Duration::from_secs(10);
/// The same where nothing goes wrong: no call to Docker takes long.
const CALM_RELEASE: Duration = Duration::from_secs(1);
/// Where nothing goes wrong nothing takes longer.
pub(crate) const CALM: Duration = Duration::from_secs(20);

pub(crate) type Extensions = BTreeMap<String, BTreeSet<String>>;

/// See the module.
pub(crate) struct Stage {
    pub(crate) world: World,
    pub(crate) names: Arc<Names>,
    pub(crate) schedule: Schedule,
    pub(crate) agents: Vec<AgentName>,
    pub(crate) projects: Vec<ProjectName>,
    pub(crate) catalog: CatalogHandle,
    /// What the project `lab`, or `loft`, was declared to be last.
    pub(crate) lab: AtomicU64,
    /// Counts commands and files.
    pub(crate) numbers: AtomicU64,
    pub(crate) store: Arc<Store>,
    ledger: Mutex<Vec<Agent>>,
    /// Whether nothing goes wrong but what callers and crashes do, so that no call may fail over anything else.
    pub(crate) calm: bool,
}

impl Stage {
    /// Sets it up; nothing goes wrong yet.
    pub(crate) fn new(seed: u64, schedule: Schedule, log: bool) -> Arc<Self> {
        let names = Names::new(Namespace::new("sandbar").unwrap(), Installation::new("ours").unwrap());
        let names = Arc::new(names);
        let world = World::new(seed, names.clone(), Knobs::default(), log);
        let catalog = runtime().block_on(engine::catalog(&world, &names));
        let agents: Vec<_> = (1..=schedule.agents).map(|n| AgentName::new(format!("a{n}")).unwrap()).collect();
        world.with(|inner| {
            inner.knobs = schedule.knobs.clone();
            inner.disk.delete_after = schedule.delete_after;
            know_tenants(inner, &names, &agents);
            if schedule.contained {
                let all = agents.iter().enumerate();
                all.for_each(|(n, agent)| inner.start_own(agent.as_str(), false, n % 2 == 0));
            }
        });
        let ledger = Mutex::new(vec![Agent::default(); agents.len()]);
        Arc::new(Self {
            calm: schedule.knobs.is_calm(),
            projects: PROJECTS.into_iter().chain(KEEPING).map(engine::project).collect(),
            store: Arc::new(Store::memory().unwrap()),
            world,
            names,
            schedule,
            agents,
            catalog,
            lab: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            ledger,
        })
    }

    /// A host, as a start of the program makes it.
    pub(crate) fn host(&self) -> Arc<Host> {
        let caller = |name: &AgentName| Caller::Agent { name: name.clone(), role: "developer".to_owned() };
        let configured = |name: &AgentName| Configured { caller: caller(name), token_sha256: name.to_string() };
        let people = People::new(self.store.clone(), self.agents.iter().map(configured).collect()).unwrap();
        let settings = Settings {
            names: self.names.clone(),
            enabled: true,
            enabled_by_environment: None,
            roles: engine::set(&["developer"]),
            projects: engine::projects(&self.catalog.current()),
            limits: Limits {
                max_live: self.schedule.max_live,
                remakes: self.schedule.remakes,
                publish: self.schedule.publish,
                max_awake: self.schedule.max_awake,
                idle_sleep: self.schedule.idle_sleep,
                idle_close: self.schedule.idle_close,
                delete_after: self.schedule.delete_after,
                pool: self.schedule.pool.iter().map(target).collect(),
                pool_idle: Duration::from_secs(24 * 3600),
                ..Limits::default()
            },
            pace: Pace::default(),
            keep_on_shutdown: self.schedule.keep,
            box_budget: BoxBudget { one: 1 << 30, all: 1 << 40 },
            local_only: false,
        };
        let docker = Arc::new(Docker(self.world.clone()));
        let folders = Arc::new(WorkFolders(self.world.clone()));
        let (catalog, store) = (self.catalog.clone(), self.store.clone());
        let host = Host::new(settings, docker, catalog, store, people, Some(folders)).unwrap();
        if host.people().agents().len() == self.agents.len() && self.store.projects().unwrap().is_empty() {
            host.set_project(engine::project("lab"), engine::lab(0)).unwrap();
            host.set_project(engine::project("loft"), engine::loft(0)).unwrap();
        }
        host
    }

    /// One host's life: everything it started dies with it, at the end of `play`, as if it were killed then.
    pub(crate) fn life<F: Future>(self: &Arc<Self>, pause: Duration, play: impl FnOnce(Arc<Host>) -> F) -> F::Output {
        let runtime = runtime();
        let output = runtime.block_on(async {
            self.world.enter();
            self.world.log(|| "a host starts".to_owned());
            let host = self.host();
            tokio::spawn(self.world.clone().pump());
            tokio::spawn(host.clone().run());
            tokio::spawn(self.clone().notice_up(host.clone()));
            let output = play(host).await;
            self.world.log(|| "the host is gone".to_owned());
            self.world.leave(pause);
            output
        });
        drop(runtime);
        output
    }

    async fn notice_up(self: Arc<Self>, host: Arc<Host>) {
        if host.health().subscribe().wait_for(|state| *state == health::State::Up).await.is_ok() {
            self.world.with(|inner| {
                inner.up_since = inner.now();
                inner.log(|| "the host is up".to_owned());
            });
        }
    }

    /// Whose a service of an agent is, and what its container is called.
    pub(crate) fn owner(&self, agent: usize, project: &ProjectName, service: &str) -> (Owner, String) {
        let declared = engine::declaration(project.as_str(), self.lab.load(Ordering::Relaxed));
        let (agent, slug) = (&self.agents[agent], EngineSlug::new(service).unwrap());
        let service = ServiceName::new(service).unwrap();
        let retained = declared.retained.contains(&service);
        let owner = if retained || service.as_str() == BOX {
            let tenant = Tenant { project: project.clone(), agent: agent.clone(), incarnation: None };
            Owner::keyed(&self.names, &tenant, &service, retained)
        } else {
            Owner::agent(agent)
        };
        let name = owner.container(&self.names, &slug);
        (owner, name)
    }

    /// An agent was told of something that is retained.
    pub(crate) fn prize(&self, agent: usize, project: &ProjectName, service: &str) {
        let (owner, _) = self.owner(agent, project, service);
        let key = format!("{}/{service}@{project}", self.agents[agent]);
        self.world.with(|inner| {
            let now = inner.now();
            inner.disk.prize(&key, &owner.folder(), now);
        });
    }

    fn ledger(&self) -> MutexGuard<'_, Vec<Agent>> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn with<T>(&self, agent: usize, f: impl FnOnce(&mut Agent) -> T) -> T {
        f(&mut self.ledger()[agent])
    }

    pub(crate) fn forget(&self, which: impl Fn(&Agent) -> bool) {
        let now = self.world.now();
        self.ledger().iter_mut().filter(|a| which(a)).for_each(|a| a.forget(now));
    }

    /// A request, judged. `None` when its caller went away first.
    pub(crate) async fn request(
        &self,
        host: &Host,
        agent: usize,
        services: Option<&BTreeSet<String>>,
        extensions: &Extensions,
        cancel: Option<Duration>,
    ) -> Option<Result<Value, Error>> {
        let name = &self.agents[agent];
        let from = self.world.now();
        self.world.log(|| format!("{name} requests {services:?} with {extensions:?}, waits {cancel:?}"));
        let draining = host.health().state() == health::State::Draining;
        let project = host.people().work(name).map(|work| work.project);
        let _open = Open::request(self, agent, extensions);
        // As the verb does it: every call starts the lease anew, before and after.
        let call = async {
            host.registry().call_came(name);
            let result = host.request_sandbox(name, services, extensions, None).await.map(|given| json!(given));
            host.registry().call_ended(name);
            result
        };
        let result = match cancel {
            Some(after) => tokio::time::timeout(after, call).await.ok(),
            None => Some(call.await),
        };
        match &result {
            None => self.world.with(|inner| {
                inner.count("a caller left");
                inner.log(|| format!("{name} does not wait any longer"));
            }),
            Some(Ok(evidence)) => {
                self.world.log(|| format!("{name} has {}", passwords(evidence)));
                if draining {
                    self.world.violation(format!("{name} was served by a host that was going down"));
                }
                if let Some(project) = project {
                    self.judge_evidence(agent, &project, evidence, extensions, from);
                }
            }
            Some(Err(error)) => {
                self.world.log(|| format!("{name} is refused: {error}"));
                self.judge_error(host, agent, error, from);
            }
        }
        let took = self.world.now() - from;
        if took > CALL || self.calm && took > CALM {
            self.world.violation(format!("a request of {name} took {took:?}"));
        }
        self.look_at_counts(host);
        result
    }

    /// What an agent is given has to be there, be its own, and be what it had.
    fn judge_evidence(
        &self,
        agent: usize,
        project: &ProjectName,
        evidence: &Value,
        extensions: &Extensions,
        from: Duration,
    ) {
        let name = self.agents[agent].as_str();
        let now = self.world.now();
        let upset = self.with(agent, |a| a.was_upset(from, now));
        // The look at what is there may be older than the call that joined.
        let slow = self.schedule.knobs.slow > 0;
        let looked = from.saturating_sub(if slow { Call::List.deadline() } else { Duration::from_millis(200) });
        for (service, entry) in evidence.as_object().into_iter().flatten() {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let features: BTreeSet<String> = entry["available_extensions"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            if extensions.get(service).is_some_and(|asked| !features.is_superset(asked)) {
                self.world.violation(format!("{name} asked {service} for more than {features:?}"));
            }
            let (owner, final_name) = self.owner(agent, project, service);
            let (retained, is_box) = (owner.retains(), service == BOX);
            if retained {
                self.prize(agent, project, service);
            }
            let problem = self.world.with(|inner| {
                if upset || inner.was_disturbed(name, looked) {
                    return None;
                }
                let Some(container) = inner.find(&final_name).cloned() else { return Some("is not there".to_owned()) };
                inner.count(if container.host == inner.hosts { "served" } else { "served by what was adopted" });
                let (host, port) = match container.published_port {
                    Some(port) => ("127.0.0.1".to_owned(), Some(port)),
                    None => (final_name.clone(), (!is_box).then_some(1000)),
                };
                let url = &entry["env"][format!("{}{}_URL", self.names.variable_prefix(), service.to_uppercase())];
                if container.state != UnitState::Running {
                    Some(format!("is {:?}", container.state))
                } else if container.agent() != name || !inner.is_ours(&container.labels) {
                    Some(format!("is {}'s", container.key))
                } else if container.variable(&self.names.password_variable()) != entry["password"].as_str() {
                    Some("has another password".to_owned())
                } else if text("host") != host || entry["port"].as_u64() != port.map(u64::from) {
                    Some(format!("is at {host}:{port:?}"))
                } else if !is_box && *url != format!("{host}:{}:{}", entry["port"], text("password")) {
                    Some(format!("is not what {url} says"))
                } else if !retained && container.restarted.is_some_and(|at| at > inner.up_since && at + RESTART < from)
                {
                    Some("was started again, so that its data is gone".to_owned())
                } else if container.features(&self.names) != features {
                    Some("has other features".to_owned())
                } else {
                    None
                }
            });
            if let Some(problem) = problem {
                self.world.violation(format!("{name} was given {final_name}, which {problem}"));
            }
            let before = self.with(agent, |a| a.hand(service, &text("password"), features, from));
            if let (true, Some(before)) = (self.calm, before) {
                self.world.violation(format!("{name} had {service} with {before:?}, and nothing happened to it"));
            }
        }
    }

    /// An error has to have a cause.
    pub(crate) fn judge_error(&self, host: &Host, agent: usize, error: &Error, from: Duration) {
        let now = self.world.now();
        let knobs = &self.schedule.knobs;
        let (upset, squatted, on_lab) = self.with(agent, |a| (a.was_upset(from, now), a.squatted, a.on_lab));
        let reason = error.details.as_ref().and_then(|d| d.reason);
        let says = |words: &str| error.message.contains(words);
        self.world.with(|inner| {
            inner.count(match (error.code, reason) {
                (Code::Capacity, _) if says("was made anew") => "refused: made anew too often",
                (Code::Capacity, _) if says("all of them are busy") => "refused: all are busy",
                (Code::Capacity, _) => "refused: full",
                (Code::InvalidState, None) if error.retryable => "failed",
                (_, Some("name_conflict")) => "refused: somebody else has the name",
                (_, Some("released")) => "refused: released meanwhile",
                (_, Some("runtime_away")) => "refused: docker is away",
                (_, Some("not_serving")) => "refused: starting or going down",
                (Code::Deadline, _) => "refused: too late",
                _ => "refused: other",
            });
        });
        let disturbed = self.world.with(|inner| inner.was_disturbed(self.agents[agent].as_str(), from));
        let ended = disturbed || !self.schedule.keep && host.health().state() == health::State::Draining;
        let guards = [
            "works on no project",
            "did not opt in",
            "opted in to no service",
            "work ended or changed",
            "the project has no box",
        ];
        let guarded = guards.into_iter().any(says);
        let ok = match (error.code, reason) {
            (Code::InvalidState, Some("released")) => upset && !error.retryable,
            (Code::InvalidState, Some("name_conflict")) => squatted && !error.retryable,
            (Code::InvalidState, Some("not_serving")) => error.retryable && (!says("changing") || on_lab || upset),
            (Code::InvalidState, Some("runtime_away")) => error.retryable && !self.calm,
            (Code::InvalidState, None) if says("the project was changed") => error.retryable && on_lab,
            (Code::InvalidState, None) if guarded => !error.retryable,
            (Code::InvalidState, None) if says("passwords are not known") => false,
            // Somebody else's call ended what it needed.
            (Code::InvalidState, None) if says("and once more after it was made anew") => error.retryable && ended,
            (Code::InvalidState, None) if says("its box ended while it ran") => error.retryable && (upset || ended),
            (Code::InvalidState, None) => !self.calm && (error.retryable || knobs.engine_fails > 0),
            (Code::Capacity, None) => {
                let full = says("sandboxes are live") && self.schedule.max_live < self.may_have();
                let busy = says("are awake and all of them") && self.schedule.max_awake < 2 * self.agents.len();
                error.retryable && (full || busy || says("was made anew") && self.schedule.remakes < 100)
            }
            (Code::Internal, None) => knobs.engine_panics > 0 || knobs.disk_fails > 0,
            (Code::Deadline, None) => error.retryable && now - from >= CALL - Duration::from_secs(6),
            _ => false,
        };
        if !ok {
            self.world.violation(format!("{} was told without a cause: {error:?}", self.agents[agent]));
        }
        self.look_at_counts(host);
    }

    /// How many sandboxes there may be: a throwaway box counts as one.
    pub(crate) fn may_have(&self) -> usize {
        self.agents.len() * if self.schedule.keeps() { 2 } else { 1 }
    }

    /// What the registry counts has to be what it has.
    pub(crate) fn look_at_counts(&self, host: &Host) {
        let ((occupied, awake), owners) = (host.registry().occupied(), host.registry().owners());
        let retained = owners.iter().filter(|o| o.retains()).count();
        if (occupied, awake) != (owners.len() - retained, retained) {
            self.world.violation(format!("{occupied} and {awake} are counted, and there are {owners:?}"));
        }
        let up = self.world.with(|inner| {
            let ours = inner.ours().filter(|c| matches!(inner.names.read(&c.name), Kind::Keyed { retained: true, .. }));
            ours.filter(|c| c.is_up()).count()
        });
        if self.calm && up > self.schedule.max_awake {
            self.world.violation(format!("{up} are awake"));
        }
        // What was adopted counts too, and what could not be given back in time.
        if self.calm && occupied > self.schedule.max_live {
            self.world.violation(format!("{occupied} sandboxes are live"));
        }
    }

    async fn letting_go<T>(&self, agent: usize, what: &str, call: impl Future<Output = T>) -> T {
        let from = self.world.now();
        self.world.log(|| format!("{} {what}", self.agents[agent]));
        let mut open = Open::upset(self, agent);
        let result = call.await;
        open.answered = true;
        drop(open);
        let took = self.world.now() - from;
        self.world.log(|| format!("{} {what}: done", self.agents[agent]));
        if took > RELEASE || self.calm && took > CALM_RELEASE {
            self.world.violation(format!("{} {what}: took {took:?}", self.agents[agent]));
        }
        result
    }

    pub(crate) async fn release(&self, host: &Host, agent: usize) {
        self.letting_go(agent, "releases", host.release(&self.agents[agent], "simulation")).await;
        self.look_at_counts(host);
    }

    pub(crate) async fn begin(&self, host: &Host, agent: usize, project: &str) {
        let (name, to) = (&self.agents[agent], engine::project(project));
        if host.people().work(name).is_some_and(|w| w.project == to) {
            return;
        }
        self.with(agent, |a| {
            a.on_lab = project == "lab" || project == "loft";
            a.project = PROJECTS.into_iter().chain(KEEPING).find(|p| *p == project);
        });
        let begun = self
            .letting_go(agent, &format!("works on {project}"), host.begin_work("main", &self.projects, name, &to))
            .await;
        if let Err(error) = begun {
            self.world.violation(format!("work of {name} on {project} cannot begin: {error}"));
        }
        self.look_at_counts(host);
    }

    /// The container of an agent ends; whoever does not come back in time loses what they have.
    pub(crate) async fn depart(&self, host: &Host, agent: usize, back: Back) {
        let name = self.agents[agent].as_str();
        let Some(own) = self.world.with(|inner| inner.own(name).map(|c| c.id.clone())) else { return };
        let never = matches!(back, Back::Never);
        let _open = never.then(|| Open::upset(self, agent));
        let from = self.world.now();
        let told = self.calm && host.health().state() == health::State::Up;
        self.world.with(|inner| {
            inner.count("an agent's container ended");
            inner.end(&own, 137);
        });
        match back {
            Back::Runs { after, again, named } => {
                tokio::time::sleep(after).await;
                self.world.with(|inner| inner.start_own(name, again, named));
            }
            Back::Calls { after } => {
                tokio::time::sleep(after).await;
                self.request(host, agent, None, &Extensions::new(), None).await;
            }
            Back::Never => {
                tokio::time::sleep(Pace::default().respawn + CALM_RELEASE).await;
                let state = host.registry().snapshot(&Owner::agent(&self.agents[agent])).state;
                if told && !self.with(agent, |a| a.has_called_since(from)) && !matches!(state, "absent" | "letting_go")
                {
                    self.world.violation(format!("the container of {name} ended, and its sandbox is {state}"));
                }
            }
        }
    }

    pub(crate) async fn end(&self, host: &Host, agent: usize) {
        let name = &self.agents[agent];
        let ended = self.letting_go(agent, "works no more", host.end_work(&self.projects, name, "done")).await;
        if let Err(error) = ended {
            self.world.violation(format!("work of {name} cannot end: {error}"));
        }
        self.look_at_counts(host);
    }
}

/// Something under way, which also ends when its host is killed.
pub(crate) struct Open<'a> {
    stage: &'a Stage,
    agent: usize,
    what: What<'a>,
    answered: bool,
}

enum What<'a> {
    Request(&'a Extensions),
    Upset(usize),
}

impl<'a> Open<'a> {
    pub(crate) fn request(stage: &'a Stage, agent: usize, extensions: &'a Extensions) -> Self {
        let now = stage.world.now();
        stage.with(agent, |a| a.request(now, extensions));
        Self { stage, agent, what: What::Request(extensions), answered: false }
    }

    fn upset(stage: &'a Stage, agent: usize) -> Self {
        let now = stage.world.now();
        let number = stage.with(agent, |a| a.upset(now));
        stage.world.with(|inner| inner.excuse(stage.agents[agent].as_str(), true, false));
        Self { stage, agent, what: What::Upset(number), answered: false }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let now = self.stage.world.now();
        if let What::Upset(_) = self.what {
            self.stage.world.with(|inner| inner.excuse(self.stage.agents[self.agent].as_str(), false, true));
        }
        self.stage.with(self.agent, |a| match self.what {
            What::Request(extensions) => a.request_over(now, extensions),
            What::Upset(number) => a.upset_over(number, now, self.answered),
        });
    }
}

/// What was handed out, for a log: the beginnings of the passwords.
fn passwords(evidence: &Value) -> String {
    let entries = evidence.as_object().into_iter().flatten();
    let short = |entry: &Value| entry["password"].as_str().and_then(|p| p.get(..6)).unwrap_or("-").to_owned();
    entries.map(|(service, entry)| format!("{service}:{}", short(entry))).collect::<Vec<_>>().join(" ")
}

fn target((service, features, size): &(&str, &[&str], usize)) -> Target {
    Target { service: ServiceName::new(service).unwrap(), features: engine::set(features), size: *size }
}

/// Lets the simulated Docker know by which keys and names tenants go.
fn know_tenants(inner: &mut Inner, names: &Names, agents: &[AgentName]) {
    for (agent, project) in agents.iter().flat_map(|agent| KEEPING.map(|project| (agent, project))) {
        let tenant = Tenant { project: engine::project(project), agent: agent.clone(), incarnation: None };
        for (service, retained) in [(BOX, true), (BOX, false), ("pg", true), ("redis", true)] {
            let (slug, name) = (EngineSlug::new(service).unwrap(), ServiceName::new(service).unwrap());
            let owner = Owner::keyed(names, &tenant, &name, retained);
            inner.tenants.insert(owner.label(names), (agent.to_string(), project.to_owned()));
            inner.finals.insert(owner.container(names, &slug), format!("{agent}/{service}@{project}"));
        }
    }
}

/// A runtime on a clock that stands still while somebody works.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}
