//! A Docker that exists in memory: its containers, what is still to be carried out, and what it noticed that must never
//! happen. It outlives the hosts that use it, as Docker does, and has a clock of its own, since each host runs on a clock
//! that starts at nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sandbar_core::name::{Kind as NameKind, Names};
use sandbar_core::plan::label;
use sandbar_core::runtime::{DataKind, DataPlan, Event, Labels, Unit, UnitPlan, UnitState};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::container::{Container, OWN, POOL, agent_of};
use crate::disk::Disk;
use crate::faults::{Kind, Knobs, Trouble};
use crate::rng::Rng;

/// What Docker's wall clock says at the beginning, in seconds since 1970. Nobody may conclude anything from it.
const WALL: i64 = 1_700_000_000;

type Effect = Box<dyn FnOnce(&mut Inner) + Send>;

/// The state behind [`World`].
pub(crate) struct Inner {
    pub(crate) names: Arc<Names>,
    pub(crate) seed: u64,
    pub(crate) knobs: Knobs,
    /// Trouble for the next calls of a kind whose key begins like this.
    pub(crate) script: Vec<(Kind, String, Trouble)>,
    /// Every call of this agent hangs.
    pub(crate) hanging: Option<String>,
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) violations: Vec<String>,
    /// When somebody other than the host last did something to an agent's containers.
    pub(crate) disturbed: BTreeMap<String, Duration>,
    /// How many containers were created for somebody, or handed out.
    pub(crate) created: u64,
    numbered: u64,
    pub(crate) away: bool,
    /// Since when the host has known what there is.
    pub(crate) up_since: Duration,
    /// How many hosts there were.
    pub(crate) hosts: u64,
    /// The one whose call is carried out.
    pub(crate) acting: u64,
    /// How far Docker's wall clock is off, in seconds.
    pub(crate) wall: i64,
    /// How often something was listed.
    pub(crate) listings: u64,
    /// What is labelled with an owner, by the owner.
    by_owner: BTreeMap<String, Vec<String>>,
    /// Who got a name last.
    by_name: BTreeMap<String, String>,
    watchers: Vec<mpsc::Sender<Event>>,
    /// Whether ends are told; not while nobody follows, and not yet when Docker is just back.
    tells: bool,
    outages: u64,
    log: Option<Vec<String>>,
    /// How often what happened.
    pub(crate) tally: BTreeMap<&'static str, u64>,
    base: Duration,
    pub(crate) epoch: Option<Instant>,
    pending: BTreeMap<(Duration, u64), Effect>,
    scheduled: u64,
    counters: BTreeMap<(Kind, String), u64>,
    boots: u64,
    pub(crate) keys: BTreeMap<String, String>,
    changed: bool,
    pub(crate) disk: Disk,
    /// Agent and project by owner key.
    pub(crate) tenants: BTreeMap<String, (String, String)>,
    /// Keys by the final names of what tenants own.
    pub(crate) finals: BTreeMap<String, String>,
    /// Commands and transfers for which the host waits.
    pub(crate) uses: BTreeMap<u64, Use>,
    /// How many counts of what a work folder holds are under way; a command's own is the last thing that it does.
    pub(crate) counts: usize,
    /// How often each command was started.
    runs: BTreeMap<u64, u64>,
    used: u64,
    /// Per agent, how many calls are under way that let its things go, and when the last one began or ended.
    excused: BTreeMap<String, (u32, Duration)>,
}

/// A command or a transfer of a tenant.
pub(crate) struct Use {
    agent: String,
    /// The container or the work folder.
    of: String,
    from: Duration,
}

impl Use {
    pub(crate) fn is_of(&self, of: &str) -> bool {
        self.of == of
    }
}

impl Inner {
    pub(crate) fn now(&self) -> Duration {
        self.base + self.epoch.map_or(Duration::ZERO, |epoch| epoch.elapsed())
    }

    pub(crate) fn log(&mut self, text: impl FnOnce() -> String) {
        let now = self.now();
        if let Some(log) = &mut self.log {
            log.push(format!("{:>9.3} {}", now.as_secs_f64(), text()));
        }
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.log(|| format!("VIOLATION {text}"));
        self.violations.push(text);
    }

    pub(crate) fn disturb(&mut self, agent: &str) {
        let now = self.now();
        self.disturbed.insert(agent.to_owned(), now);
    }

    /// Whether something outside the host happened to an agent's containers since then.
    pub(crate) fn was_disturbed(&self, agent: &str, since: Duration) -> bool {
        self.disturbed.get(agent).is_some_and(|at| *at >= since)
    }

    /// Tells who waits for a container's end that something changed.
    pub(crate) fn touch(&mut self) {
        self.changed = true;
    }

    pub(crate) fn is_ours(&self, labels: &Labels) -> bool {
        self.names.base_labels().iter().all(|(k, v)| labels.get(k) == Some(v))
    }

    pub(crate) fn ours(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|c| self.is_ours(&c.labels))
    }

    /// What is ready and nobody has.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Container> {
        self.ours().filter(|c| self.names.read(&c.name) == NameKind::Pooled)
    }

    pub(crate) fn find(&self, id_or_name: &str) -> Option<&Container> {
        let named = || self.containers.get(self.by_name.get(id_or_name)?).filter(|c| c.name == id_or_name);
        self.containers.get(id_or_name).or_else(named)
    }

    /// Whose call a call about this container is.
    pub(crate) fn key(&self, id_or_name: &str) -> String {
        let key = self.find(id_or_name).map(|c| &c.key).or_else(|| self.keys.get(id_or_name));
        key.cloned().unwrap_or_else(|| "nobody/nothing".to_owned())
    }

    /// Numbers for the next call of a kind about somebody's container.
    pub(crate) fn rng(&mut self, kind: Kind, key: &str) -> Rng {
        let n = self.counters.entry((kind, key.to_owned())).or_default();
        *n += 1;
        Rng::keyed(self.seed ^ ((kind as u64) << 56), key, *n)
    }

    /// What a scene wants to happen to this call.
    pub(crate) fn scripted(&mut self, kind: Kind, key: &str) -> Option<Trouble> {
        let i = self.script.iter().position(|(k, prefix, _)| *k == kind && key.starts_with(prefix.as_str()))?;
        Some(self.script.remove(i).2)
    }

    pub(crate) fn trouble(&mut self, rng: &mut Rng, kind: Kind, key: &str) -> Option<Trouble> {
        if let Some(trouble) = self.scripted(kind, key) {
            return Some(trouble);
        }
        if self.hanging.as_ref().is_some_and(|agent| key.split('/').next() == Some(agent)) {
            return Some(Trouble::Hangs { done: false });
        }
        self.knobs.trouble(rng, kind)
    }

    pub(crate) fn create(&mut self, plan: &UnitPlan, key: &str, host: u64) -> String {
        self.count("made");
        self.keys.insert(plan.name.clone(), key.to_owned());
        let mut container = self.new_container(&plan.name, plan.labels.clone(), key);
        container.env.clone_from(&plan.env);
        container.image.clone_from(&plan.image);
        (container.publish, container.host) = (plan.publish && plan.port.is_some(), host);
        container.networked = plan.network;
        container.folder = plan.folder.as_ref().map(|f| Disk::name(&f.from));
        let volume = |d: &DataPlan| if let DataKind::Volume(name) = &d.kind { Some(name.clone()) } else { None };
        container.volumes = plan.data.iter().filter_map(volume).collect();
        self.mount(&container);
        self.add(container)
    }

    pub(crate) fn new_container(&mut self, name: &str, labels: Labels, key: &str) -> Container {
        self.numbered += 1;
        // What is made ahead counts when somebody gets it.
        self.created += u64::from(agent_of(key) != POOL);
        let mut container = Container::new(&format!("{:064x}", self.numbered), name, labels, key);
        container.born = self.now();
        let wall = container.born.as_secs().saturating_add_signed(WALL + self.wall);
        container.created = SystemTime::UNIX_EPOCH + Duration::from_secs(wall);
        container
    }

    pub(crate) fn add(&mut self, container: Container) -> String {
        let id = container.id.clone();
        if let Some(owner) = container.labels.get(&self.names.label(label::OWNER)) {
            let all = self.by_owner.entry(owner.clone()).or_default();
            all.retain(|id| self.containers.contains_key(id));
            all.push(id.clone());
        }
        self.by_name.insert(container.name.clone(), id.clone());
        self.containers.insert(id.clone(), container);
        self.touch();
        id
    }

    /// Gives a container another name, which nobody has.
    pub(crate) fn rename(&mut self, id: &str, name: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        self.by_name.remove(&std::mem::replace(&mut container.name, name.to_owned()));
        self.by_name.insert(name.to_owned(), id.to_owned());
    }

    /// What was ready is somebody's from now on, with what happened to it.
    pub(crate) fn hand_out(&mut self, id: &str, name: &str) {
        let Some((agent, slug)) = self.serves(name) else { return };
        let key = format!("{agent}/{slug}");
        self.created += 1;
        self.count("handed out");
        if let Some(at) = self.disturbed.get(POOL).copied() {
            let known = self.disturbed.entry(agent).or_default();
            *known = at.max(*known);
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.key = key;
        }
    }

    /// Whose things with this owner label are, as `agent` and `project`.
    pub(crate) fn tenant(&self, owner: &str) -> Option<&(String, String)> {
        self.tenants.get(owner)
    }

    /// What carries all of these labels.
    pub(crate) fn labelled(&self, labels: &[(String, String)]) -> Vec<Unit> {
        let fits = |c: &&Container| labels.iter().all(|(k, v)| c.labels.get(k) == Some(v));
        let key = self.names.label(label::OWNER);
        match labels.iter().find(|(k, _)| *k == key) {
            None => self.containers.values().filter(fits).map(Container::unit).collect(),
            Some((_, owner)) => {
                let ids = self.by_owner.get(owner).into_iter().flatten();
                ids.filter_map(|id| self.containers.get(id)).filter(fits).map(Container::unit).collect()
            }
        }
    }

    /// Makes a running container that is somebody else's.
    pub(crate) fn add_foreign(&mut self, name: &str, labels: Labels) {
        self.add_running(name, labels, "nobody/foreign");
    }

    fn add_running(&mut self, name: &str, labels: Labels, key: &str) {
        let mut container = self.new_container(name, labels, key);
        container.state = UnitState::Running;
        self.add(container);
    }

    /// Containers that are neither this installation's nor agents.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = &Container> {
        self.containers.values().filter(|c| !self.is_ours(&c.labels) && !c.is_agents_own())
    }

    /// The container in which an agent runs.
    pub(crate) fn own(&self, agent: &str) -> Option<&Container> {
        let mut all = self.containers.values();
        all.find(|c| c.state == UnitState::Running && c.key.strip_prefix(OWN) == Some(agent))
    }

    /// An agent runs in a container from now on: in one that ended, started again, or in another, that is named as the
    /// agent or labelled with it.
    pub(crate) fn start_own(&mut self, agent: &str, again: bool, named: bool) {
        let key = format!("{OWN}{agent}");
        let ended: Vec<_> = self.containers.values().filter(|c| c.key == key).map(|c| c.id.clone()).collect();
        self.log(|| format!("{agent} runs in a container"));
        if let Some(container) = ended.first().filter(|_| again).and_then(|id| self.containers.get_mut(id)) {
            container.state = UnitState::Running;
            return;
        }
        ended.iter().for_each(|id| drop(self.containers.remove(id)));
        let namespace = self.names.namespace().to_owned();
        if named {
            self.add_running(&format!("{namespace}-agent-{agent}"), Labels::new(), &key);
        } else {
            let labels = [(self.names.label(label::AGENT), agent.to_owned())].into();
            self.add_running(&format!("worker-{}", self.numbered), labels, &key);
        }
    }

    /// Starts a container, for the first time or again.
    pub(crate) fn boot(&mut self, id: &str) {
        let Some(key) = self.containers.get(id).map(|c| c.key.clone()) else { return };
        self.look_at_data(id);
        let mut rng = self.rng(Kind::Start, &format!("boot {key}"));
        let (now, knobs) = (self.now(), self.knobs.clone());
        self.boots += 1;
        let n = self.boots;
        let Some(container) = self.containers.get_mut(id) else { return };
        container.restarted = (container.run > 0).then_some(now);
        container.run = n;
        container.state = UnitState::Running;
        container.at_work.clear();
        container.address = container.networked.then(|| format!("10.0.{}.{}", n / 250 % 250, n % 250));
        container.published_port = container.publish.then(|| 20_000 + u16::try_from(n % 20_000).unwrap_or(0));
        let boots = if knobs.instant { Duration::ZERO } else { rng.ms(1, knobs.boot + 1) };
        container.ready_at = (!rng.chance(knobs.deaf)).then(|| now + boots);
        container.confirms = !rng.chance(knobs.unconfirmed);
        container.activated = self.disk.activated(&container.volumes);
        container.confirmed.clear();
        if rng.chance(knobs.dies) {
            let (at, id) = (now + rng.ms(1, 2 * knobs.boot + 2), id.to_owned());
            self.schedule(at, Box::new(move |inner| inner.end(&id, 137)));
        }
        self.touch();
    }

    pub(crate) fn unpause(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id).filter(|c| c.state == UnitState::Paused) {
            container.state = UnitState::Running;
            self.touch();
        }
    }

    /// A container's main process ends.
    pub(crate) fn end(&mut self, id: &str, code: i64) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if !container.is_up() {
            return;
        }
        container.state = UnitState::Ended;
        container.exit_code = code;
        let (name, agent, labels) = (container.name.clone(), container.agent().to_owned(), container.labels.clone());
        self.log(|| format!("{name} ended with {code}"));
        self.disturb(&agent);
        self.touch();
        if self.tells {
            self.tell(Event::Ended { id: id.to_owned(), name, labels });
        }
    }

    /// Tells who follows what happens, a moment later.
    fn tell(&mut self, event: Event) {
        let at = self.now() + Duration::from_millis(3);
        let tell = move |inner: &mut Self| inner.watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
        self.schedule(at, Box::new(tell));
    }

    /// Tells ends from now on.
    pub(crate) fn follow(&mut self) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(1000);
        if !self.tells {
            let _ = sender.try_send(Event::Interrupted);
        }
        self.watchers.push(sender);
        receiver
    }

    /// What a command answers: an exit code.
    pub(crate) fn run(&mut self, id: &str, argv: &[&str], password: Option<&str>) -> i64 {
        let (now, variable) = (self.now(), self.names.password_variable());
        let Some(container) = self.containers.get_mut(id) else { return 126 };
        let knows = container.variable(&variable).is_none_or(|p| Some(p) == password);
        let ready = knows && container.ready_at.is_some_and(|at| now >= at);
        let done = match argv {
            ["probe", address] => ready && container.address.as_deref().unwrap_or("none") == *address,
            ["setup", feature] if ready => {
                self.disk.activate(&container.volumes, feature);
                container.activated.insert((*feature).to_owned()) || !container.volumes.is_empty()
            }
            ["verify", "base"] => ready,
            ["verify", feature] => ready && container.confirms && container.activated.contains(*feature),
            _ => false,
        };
        i64::from(!done)
    }

    /// A command or a transfer begins. Answers its number.
    pub(crate) fn begin_use(&mut self, key: &str, of: &str) -> u64 {
        self.used += 1;
        let (agent, from) = (agent_of(key).to_owned(), self.now());
        self.uses.insert(self.used, Use { agent, of: of.to_owned(), from });
        self.used
    }

    /// A command was started, for the first time or anew.
    pub(crate) fn started(&mut self, number: u64) {
        let times = self.runs.entry(number).or_default();
        *times += 1;
        if *times > 1 {
            let times = *times;
            self.violation(format!("command {number} is started {times} times"));
        }
    }

    /// A call begins or ends that may let go what an agent uses.
    pub(crate) fn excuse(&mut self, agent: &str, begins: bool, ends: bool) {
        let now = self.now();
        let excused = self.excused.entry(agent.to_owned()).or_default();
        excused.0 = excused.0 + u32::from(begins) - u32::from(ends);
        excused.1 = excused.1.max(now);
    }

    /// The same may happen for so long.
    pub(crate) fn excuse_for(&mut self, agent: &str, time: Duration) {
        let until = self.now() + time;
        self.excused.entry(agent.to_owned()).or_default().1 = until;
    }

    /// Notes that the host touches what somebody uses, without a call that would let it.
    pub(crate) fn look_at_use(&mut self, id_or_name: &str, what: &str) {
        let Some(container) = self.find(id_or_name) else { return };
        let (id, folder, name) = (&container.id, &container.folder, container.name.clone());
        let used = self.uses.values().find(|u| {
            let excused = self.excused.get(&u.agent).is_some_and(|(open, last)| *open > 0 || *last >= u.from);
            (u.of == *id || Some(&u.of) == folder.as_ref()) && !excused && !self.was_disturbed(&u.agent, u.from)
        });
        if let Some(from) = used.map(|u| u.from) {
            self.violation(format!("{name} is {what}, and has been in use since {from:?}"));
        }
    }

    pub(crate) fn schedule(&mut self, at: Duration, effect: Effect) {
        self.scheduled += 1;
        self.pending.insert((at, self.scheduled), effect);
    }

    fn apply_due(&mut self) {
        let now = self.now();
        while let Some(entry) = self.pending.first_entry().filter(|e| e.key().0 <= now) {
            entry.remove()(self);
        }
    }

    /// The daemon goes, and comes back after a while.
    pub(crate) fn go_away(&mut self, lasts: Duration, kills: bool) {
        self.away = true;
        self.tells = false;
        self.outages += 1;
        self.log(|| format!("docker is away for {lasts:?}"));
        self.touch();
        if kills {
            // What it had not done yet is never done, and every container has ended.
            self.pending.clear();
            for id in self.containers.keys().cloned().collect::<Vec<_>>() {
                self.end(&id, 255);
            }
        }
        self.tell(Event::Interrupted);
        let outage = self.outages;
        let back = move |inner: &mut Self| {
            if inner.outages == outage {
                inner.come_back();
            }
        };
        self.schedule(self.now() + lasts, Box::new(back));
    }

    pub(crate) fn come_back(&mut self) {
        if !std::mem::replace(&mut self.away, false) {
            return;
        }
        self.log(|| "docker is back".to_owned());
        self.touch();
        // Whoever follows comes back after a pause, and knows that something may have been missed.
        let (outage, at) = (self.outages, self.now() + Duration::from_secs(3));
        let follows = move |inner: &mut Self| {
            if inner.outages == outage {
                inner.tells = true;
                inner.tell(Event::Resumed);
            }
        };
        self.schedule(at, Box::new(follows));
    }

    pub(crate) fn outages(&self) -> u64 {
        self.outages
    }

    /// The agent and the service of a final name.
    pub(crate) fn serves(&self, name: &str) -> Option<(String, String)> {
        match self.names.read(name) {
            NameKind::Sandbox { slug, agent } => Some((agent.to_owned(), slug.to_owned())),
            NameKind::Keyed { .. } => {
                let (agent, service) = self.finals.get(name)?.split_once('/')?;
                Some((agent.to_owned(), service.to_owned()))
            }
            _ => None,
        }
    }
}

/// What is told of a schedule in the end.
pub(crate) struct Verdict {
    /// What must not have happened.
    pub(crate) violations: Vec<String>,
    /// What happened, where that was wanted.
    pub(crate) log: Vec<String>,
    /// How often what happened.
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

/// The simulated Docker, shared.
#[derive(Clone)]
pub(crate) struct World(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    changed: Notify,
    scheduled: Notify,
}

impl World {
    pub(crate) fn new(seed: u64, names: Arc<Names>, knobs: Knobs, log: bool) -> Self {
        let inner = Inner {
            names,
            seed,
            knobs,
            script: Vec::new(),
            hanging: None,
            containers: BTreeMap::new(),
            violations: Vec::new(),
            disturbed: BTreeMap::new(),
            created: 0,
            numbered: 0,
            away: false,
            up_since: Duration::ZERO,
            hosts: 0,
            acting: 0,
            wall: 0,
            listings: 0,
            by_owner: BTreeMap::new(),
            by_name: BTreeMap::new(),
            watchers: Vec::new(),
            tells: true,
            outages: 0,
            log: log.then(Vec::new),
            tally: BTreeMap::new(),
            base: Duration::ZERO,
            epoch: None,
            pending: BTreeMap::new(),
            scheduled: 0,
            counters: BTreeMap::new(),
            boots: 0,
            keys: BTreeMap::new(),
            changed: false,
            disk: Disk::default(),
            tenants: BTreeMap::new(),
            finals: BTreeMap::new(),
            uses: BTreeMap::new(),
            counts: 0,
            runs: BTreeMap::new(),
            used: 0,
            excused: BTreeMap::new(),
        };
        Self(Arc::new(Shared { inner: Mutex::new(inner), changed: Notify::new(), scheduled: Notify::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to it, after what was due.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        inner.apply_due();
        let before = inner.scheduled;
        let result = f(&mut inner);
        let (changed, scheduled) = (std::mem::take(&mut inner.changed), inner.scheduled != before);
        drop(inner);
        if changed {
            self.0.changed.notify_waiters();
        }
        if scheduled {
            self.0.scheduled.notify_one();
        }
        result
    }

    /// Waits until `look` finds something.
    pub(crate) async fn wait<T>(&self, mut look: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = self.with(&mut look) {
                return found;
            }
            changed.await;
        }
    }

    /// Lets what was asked for happen at its time, whether or not somebody still waits for it.
    pub(crate) async fn pump(self) {
        loop {
            let next = self.with(|inner| inner.pending.keys().next().map(|(at, _)| at.saturating_sub(inner.now())));
            tokio::select! {
                biased;
                () = self.0.scheduled.notified() => {}
                () = async {
                    match next {
                        Some(after) => tokio::time::sleep(after).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    /// Takes over the clock of the tokio runtime in which this is called.
    pub(crate) fn enter(&self) {
        let mut inner = self.lock();
        inner.epoch = Some(Instant::now());
        inner.hosts += 1;
        inner.up_since = Duration::MAX;
    }

    /// Keeps the time, before that runtime goes; `later` is how long nobody runs.
    pub(crate) fn leave(&self, later: Duration) {
        let mut inner = self.lock();
        inner.base = inner.now();
        inner.epoch = None;
        inner.base += later;
    }

    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        self.lock().log(text);
    }

    pub(crate) fn violation(&self, text: String) {
        self.lock().violation(text);
    }

    pub(crate) fn now(&self) -> Duration {
        self.lock().now()
    }

    /// What was noticed in all this.
    pub(crate) fn verdict(&self) -> Verdict {
        let mut inner = self.lock();
        Verdict {
            violations: std::mem::take(&mut inner.violations),
            log: inner.log.take().unwrap_or_default(),
            tally: std::mem::take(&mut inner.tally),
        }
    }
}
