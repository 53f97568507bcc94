//! The simulated Docker as the core's [`Runtime`]. Every call takes its course (see [`Course`]): when it is carried out and
//! when it is answered are two things, and what was asked for happens also when nobody waits for the answer any more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::janitor::Pace;
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{
    Caps, Captured, Event, ExecOutput, ExecPlan, Exit, Left, PutError, PutStep, Result, RunOutput, RunPlan, Runtime,
    RuntimeError, Unit, UnitPlan, UnitState,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::container::{POOL, agent_of};
use crate::disk::{Disk, InUse};
use crate::engine::PANIC;
use crate::faults::{Course, Kind, Trouble};
use crate::world::{Inner, World};

/// See the module.
pub(crate) struct Docker(pub(crate) World);

fn not_found(what: &str) -> RuntimeError {
    RuntimeError::NotFound(format!("no such container: {what}"))
}

fn away() -> RuntimeError {
    RuntimeError::Unreachable("connection refused".to_owned())
}

impl Docker {
    /// One call: `done` is what it does.
    async fn call<T: Send + 'static>(
        &self,
        kind: Kind,
        key: &str,
        deadline: Duration,
        done: impl FnOnce(&mut Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.0.with(|inner| inner.knobs.instant) {
            return self.0.with(done);
        }
        let slot = Arc::new(Mutex::new(None));
        let filled = slot.clone();
        let begun = self.0.with(|inner| {
            let mut rng = inner.rng(kind, key);
            let latency = rng.ms(1, inner.knobs.latency + 2);
            if inner.away {
                return Err(latency);
            }
            let trouble = inner.trouble(&mut rng, kind, key);
            assert!(trouble != Some(Trouble::Panics), "{PANIC}");
            if let Some(trouble) = trouble {
                inner.count("trouble with a call");
                inner.log(|| format!("  {kind:?} of {key}: {trouble:?}"));
            }
            let Course { done: at, answered, error } = Course::new(trouble, latency, deadline);
            let now = inner.now();
            if let Some(at) = at {
                let (key, late, host) = (key.to_owned(), at > answered, inner.hosts);
                let effect = move |inner: &mut Inner| {
                    inner.acting = host;
                    let result = done(inner);
                    if late {
                        inner.log(|| format!("  {kind:?} of {key} is carried out late: {}", result.is_ok()));
                        inner.disturb(agent_of(&key));
                        inner.count("done after the answer");
                    }
                    *filled.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                };
                inner.schedule(now + at, Box::new(effect));
            }
            Ok((answered, error, inner.outages()))
        });
        let (answered, error, outages) = match begun {
            Ok(begun) => begun,
            Err(latency) => {
                tokio::time::sleep(latency).await;
                return Err(away());
            }
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(answered) => {}
            () = self.0.wait(|inner| (inner.outages() != outages).then_some(())) => return Err(away()),
        }
        if let Some(error) = error {
            return Err(error);
        }
        self.0.with(|_| ());
        let result = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err(RuntimeError::Failed("it was never done".to_owned())))
    }

    async fn about<T: Send + 'static>(
        &self,
        kind: Kind,
        id: &str,
        done: impl FnOnce(&mut Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let key = self.0.with(|inner| inner.key(id));
        self.call(kind, &key, kind.deadline(), done).await
    }
}

/// How long it is tried to end a command.
const ENDS: Duration = Duration::from_secs(10);

/// What a tenant's command does, as its arguments say: whose it is, which one, how long it takes, and whether it can be
/// ended.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    /// The key of the box it is for.
    pub(crate) tenant: String,
    pub(crate) number: u64,
    pub(crate) takes: Duration,
    pub(crate) stubborn: bool,
}

impl Order {
    pub(crate) fn argv(&self) -> Vec<String> {
        let takes = self.takes.as_millis().to_string();
        vec!["work".to_owned(), self.tenant.clone(), self.number.to_string(), takes, self.stubborn.to_string()]
    }

    fn of(plan: &RunPlan) -> Result<Self> {
        let wrong = || RuntimeError::Refused("no such command".to_owned());
        let [_, tenant, number, takes, stubborn] = plan.argv.as_slice() else { return Err(wrong()) };
        Ok(Self {
            tenant: tenant.clone(),
            number: number.parse().map_err(|_| wrong())?,
            takes: Duration::from_millis(takes.parse().map_err(|_| wrong())?),
            stubborn: stubborn == "true",
        })
    }
}

/// Notes plans that break what must hold for everything that is made.
fn look_at_plan(inner: &mut Inner, plan: &UnitPlan) {
    let names = inner.names.clone();
    if !inner.is_ours(&plan.labels) {
        inner.violation(format!("{} is made without this installation's labels", plan.name));
    }
    if names.read(&plan.name) != sandbar_core::name::Kind::Making {
        inner.violation(format!("{} is made under a name that does not say so", plan.name));
    }
    let password = plan.env.iter().find(|(k, _)| *k == names.password_variable()).map(|(_, v)| v.as_str());
    let shown = plan.labels.values().chain(&plan.command).chain(plan.entrypoint.iter().flatten());
    if password.is_some_and(|p| shown.into_iter().any(|text| text.contains(p))) {
        inner.violation(format!("the password of {} can be seen from outside", plan.name));
    }
}

fn key_of(inner: &Inner, plan: &UnitPlan) -> String {
    let label = |key: &str| plan.labels.get(&inner.names.label(key)).map(String::as_str).unwrap_or_default();
    let owner = label("sandbox.owner");
    if let Some((agent, project)) = inner.tenant(owner) {
        return format!("{agent}/{}@{project}", label("service"));
    }
    let agent = owner.strip_prefix(&format!("{}-agent-", inner.names.namespace())).unwrap_or(owner);
    format!("{agent}/{}", label("service"))
}

/// Notes a rename that must not be: of what is not ours, or to a final name of what nobody has seen to work.
fn look_at_rename(inner: &mut Inner, id: &str, name: &str) {
    let Some(container) = inner.containers.get(id).cloned() else { return };
    if !inner.is_ours(&container.labels) {
        inner.violation(format!("{} is somebody else's and was to be renamed to {name}", container.name));
    }
    let is_ready = inner.names.read(&container.name) == sandbar_core::name::Kind::Pooled;
    if inner.names.read(name) == sandbar_core::name::Kind::Pooled
        && inner.names.read(&container.name) != sandbar_core::name::Kind::Making
    {
        inner.violation(format!("{} was somebody's and becomes {name}", container.name));
    }
    let Some((agent, _)) = inner.serves(name) else { return };
    if is_ready && container.agent() != POOL {
        inner.violation(format!("{} was handed out before", container.name));
    }
    if agent != container.agent() && !is_ready {
        inner.violation(format!("{} of {} becomes {name}", container.name, container.agent()));
    }
    let mut due = container.features(&inner.names);
    due.extend(["base".to_owned(), "probe".to_owned()]);
    let missing: Vec<_> = due.difference(&container.confirmed).collect();
    if !missing.is_empty() {
        inner.violation(format!("{name} is committed and nobody has seen {missing:?} succeed"));
    }
}

/// Notes the removal of what the janitor has to leave alone: what a host that is gone asked for, and what was created only
/// after this one knew what there is.
fn look_at_age(inner: &mut Inner, id: &str) {
    let Some(container) = inner.containers.get(id) else { return };
    let age = inner.now().saturating_sub(container.born);
    // What is retained and never was whole is removed before it is made once more.
    let half_made =
        container.key.contains('@') && inner.names.read(&container.name) == sandbar_core::name::Kind::Making;
    if inner.acting == inner.hosts
        && !half_made
        && container.host < inner.hosts
        && container.born > inner.up_since
        && age < Pace::default().grace
    {
        let text = format!("{} is {age:?} old and was reaped", container.name);
        inner.violation(text);
    }
}

fn rename(inner: &mut Inner, id: &str, name: &str, tells: bool) -> Result<()> {
    look_at_rename(inner, id, name);
    let Some(container) = inner.containers.get(id) else { return Err(not_found(id)) };
    let old = container.name.clone();
    if old == name {
        return Ok(());
    }
    if let Some(holder) = inner.find(name) {
        let holder = Some(Box::new(holder.unit())).filter(|_| tells);
        inner.count(match &holder {
            Some(holder) if inner.is_ours(&holder.labels) => "a name that a stale container has",
            Some(_) => "a name that somebody else has",
            None => "a name that has an unknown holder",
        });
        return Err(RuntimeError::Conflict { name: name.to_owned(), holder });
    }
    inner.rename(id, name);
    inner.log(|| format!("  {old} -> {name}"));
    if inner.names.read(&old) == sandbar_core::name::Kind::Pooled {
        inner.hand_out(id, name);
    }
    if inner.names.read(name) == sandbar_core::name::Kind::Leaving {
        look_at_age(inner, id);
    }
    inner.touch();
    Ok(())
}

fn remove(inner: &mut Inner, id_or_name: &str) -> Result<()> {
    let Some(container) = inner.find(id_or_name).cloned() else { return Ok(()) };
    if !inner.is_ours(&container.labels) {
        inner.violation(format!("{} is somebody else's and was to be removed", container.name));
        return Err(RuntimeError::Refused(format!("{} is not of this installation", container.name)));
    }
    look_at_age(inner, &container.id);
    inner.containers.remove(&container.id);
    inner.log(|| format!("  {} is removed", container.name));
    inner.touch();
    Ok(())
}

#[async_trait]
impl Runtime for Docker {
    fn caps(&self) -> Caps {
        Caps { local: true }
    }

    async fn ping(&self) -> Result<()> {
        if self.0.with(|inner| inner.knobs.instant) {
            return Ok(());
        }
        // There are many of these, and they change nothing.
        let (answered, error) = self.0.with(|inner| {
            let mut rng = inner.rng(Kind::Ping, "");
            let latency = rng.ms(1, inner.knobs.latency + 2);
            let trouble = inner.trouble(&mut rng, Kind::Ping, "");
            let course = Course::new(trouble, latency, Kind::Ping.deadline());
            (course.answered, course.error)
        });
        tokio::time::sleep(answered).await;
        match error {
            _ if self.0.with(|inner| inner.away) => Err(away()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    async fn prepare(&self, image: &str, _: &ProgressSink) -> Result<()> {
        self.call(Kind::Prepare, image, Kind::Prepare.deadline(), |_| Ok(())).await
    }

    async fn put(&self, plan: &UnitPlan, _: &ProgressSink) -> Result<Unit, PutError> {
        let at = |step: PutStep| move |error: RuntimeError| PutError { step, error };
        let (key, host) = self.0.with(|inner| {
            look_at_plan(inner, plan);
            (key_of(inner, plan), inner.hosts)
        });
        let (wanted, whose) = (plan.clone(), key.clone());
        let create = move |inner: &mut Inner| {
            if let Some(holder) = inner.find(&wanted.name) {
                let unit = Box::new(holder.unit());
                return Err(RuntimeError::Conflict { name: wanted.name.clone(), holder: Some(unit) });
            }
            if wanted.folder.as_ref().is_some_and(|f| !inner.disk.folders.contains_key(&Disk::name(&f.from))) {
                return Err(RuntimeError::Failed("there is nothing to mount".to_owned()));
            }
            inner.log(|| format!("  {} is created for {whose}", wanted.name));
            Ok(inner.create(&wanted, &whose, host))
        };
        let id = self.call(Kind::Create, &key, Kind::Create.deadline(), create).await.map_err(at(PutStep::Create))?;
        let started = id.clone();
        let start = move |inner: &mut Inner| match inner.containers.get(&started).map(|c| c.state) {
            None => Err(not_found(&started)),
            Some(UnitState::Starting) => {
                inner.boot(&started);
                Ok(())
            }
            Some(_) => Ok(()),
        };
        self.call(Kind::Start, &key, Kind::Start.deadline(), start).await.map_err(at(PutStep::Start))?;
        self.inspect(&id).await.map_err(at(PutStep::Start))
    }

    async fn rename(&self, id: &str, name: &str) -> Result<()> {
        let (asked, to) = (id.to_owned(), name.to_owned());
        let tells = self.0.with(|inner| {
            if inner.names.read(name) == sandbar_core::name::Kind::Leaving {
                inner.look_at_use(id, "let go");
            }
            let key = inner.key(id);
            let nameless = inner.knobs.nameless;
            nameless == 0 || !inner.rng(Kind::Rename, &format!("holder {key}")).chance(nameless)
        });
        self.about(Kind::Rename, id, move |inner| rename(inner, &asked, &to, tells)).await
    }

    async fn exec(&self, id: &str, plan: &ExecPlan) -> Result<ExecOutput> {
        let (asked, argv, env) = (id.to_owned(), plan.argv.clone(), plan.env.clone());
        let key = self.0.with(|inner| inner.key(id));
        let run = move |inner: &mut Inner| {
            let container = inner.containers.get(&asked).ok_or_else(|| not_found(&asked))?;
            if container.state != UnitState::Running {
                return Err(RuntimeError::Gone(container.name.clone()));
            }
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            let password = env.iter().find(|(k, _)| k == "PW").map(|(_, v)| v.as_str());
            match inner.cat(&asked, &argv) {
                Some(printed) => Ok((0, printed)),
                None => Ok((inner.run(&asked, &argv, password), String::new())),
            }
        };
        let (code, stdout) = self.call(Kind::Exec, &key, plan.timeout, run).await?;
        if code == 0 {
            let what = match plan.argv.first().map(String::as_str) {
                Some("verify") => plan.argv.get(1).cloned(),
                Some("probe") => Some("probe".to_owned()),
                _ => None,
            };
            self.0.with(|inner| {
                if let Some(container) = inner.containers.get_mut(id) {
                    container.confirmed.extend(what);
                }
            });
        }
        Ok(ExecOutput { code, stdout, stderr: String::new() })
    }

    async fn ended(&self, id: &str) -> Result<Exit> {
        let outages = self.0.with(|inner| if inner.away { None } else { Some(inner.outages()) });
        let known = self.0.with(|inner| inner.containers.get(id).map(|c| c.run));
        let look = |inner: &mut Inner| {
            if outages != Some(inner.outages()) {
                return Some(Err(away()));
            }
            let exit = |code: i64| Some(Ok(Exit { code, out_of_memory: false }));
            match (inner.containers.get(id), known) {
                (None, None) => Some(Err(not_found(id))),
                (None, Some(_)) => exit(137),
                (Some(container), _) if container.state == UnitState::Ended => exit(container.exit_code),
                // It was started again meanwhile.
                (Some(container), Some(run)) if container.run != run => exit(container.exit_code),
                _ => None,
            }
        };
        let result = self.0.wait(look).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        result
    }

    async fn list(&self, labels: &[(&str, &str)]) -> Result<Vec<Unit>> {
        let wanted: Vec<(String, String)> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (owner, loose) = self.0.with(|inner| {
            inner.listings += 1;
            let prefix = format!("{}-agent-", inner.names.namespace());
            let agent = |v: &String| match inner.tenant(v) {
                Some((agent, _)) => Some(agent.clone()),
                None => v.strip_prefix(&prefix).map(str::to_owned),
            };
            let owner = wanted.iter().find_map(|(_, v)| agent(v)).unwrap_or_default();
            let loose = inner.knobs.loose;
            let loose = loose > 0 && inner.rng(Kind::List, &format!("loose {owner}")).chance(loose);
            (owner, loose)
        });
        let list = move |inner: &mut Inner| Ok(inner.labelled(if loose { &[] } else { &wanted }));
        self.call(Kind::List, &owner, Kind::List.deadline(), list).await
    }

    async fn find(&self, ids: &[&str]) -> Result<Vec<Unit>> {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let key = self.0.with(|inner| {
            inner.listings += 1;
            ids.first().map(|id| inner.key(id)).unwrap_or_default()
        });
        let owner = agent_of(&key).to_owned();
        let find = move |inner: &mut Inner| {
            Ok(ids.iter().filter_map(|id| inner.containers.get(id)).map(crate::container::Container::unit).collect())
        };
        self.call(Kind::List, &owner, Kind::List.deadline(), find).await
    }

    async fn inspect(&self, id_or_name: &str) -> Result<Unit> {
        // A final name says whose business this is, whoever holds it.
        let key = self.0.with(|inner| match inner.serves(id_or_name) {
            Some((agent, slug)) => format!("{agent}/{slug}"),
            None => inner.key(id_or_name),
        });
        let asked = id_or_name.to_owned();
        let look = move |inner: &mut Inner| inner.find(&asked).map(|c| c.inspected()).ok_or_else(|| not_found(&asked));
        self.call(Kind::Inspect, &key, Kind::Inspect.deadline(), look).await
    }

    async fn environment(&self, id: &str) -> Result<Vec<(String, String)>> {
        let asked = id.to_owned();
        let look = move |inner: &mut Inner| {
            inner.containers.get(&asked).map(|c| c.env.clone()).ok_or_else(|| not_found(&asked))
        };
        self.about(Kind::Environment, id, look).await
    }

    async fn logs(&self, id: &str, _: usize) -> Result<String> {
        self.about(Kind::Logs, id, |_| Ok("a line\n".to_owned())).await
    }

    async fn remove(&self, id_or_name: &str, _: Duration) -> Result<()> {
        let asked = id_or_name.to_owned();
        self.0.with(|inner| inner.look_at_use(id_or_name, "removed"));
        self.about(Kind::Remove, id_or_name, move |inner| remove(inner, &asked)).await
    }

    async fn run(
        &self,
        id: &str,
        plan: &RunPlan,
        cancel: &CancellationToken,
        alone: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<RunOutput> {
        let key = self.0.with(|inner| inner.key(id));
        let _use = InUse::begin(&self.0, &key, id);
        let order = Order::of(plan)?;
        let (asked, ordered, host) = (id.to_owned(), order.clone(), self.0.with(|inner| inner.hosts));
        let start = move |inner: &mut Inner| {
            let container = inner.containers.get(&asked).ok_or_else(|| not_found(&asked))?;
            if container.state != UnitState::Running {
                return Err(RuntimeError::Gone(container.name.clone()));
            }
            let (run, key, orphaned) = (container.run, container.key.clone(), container.has_orphans(host));
            inner.count("commands");
            if ordered.tenant != key {
                inner.violation(format!("a command of {} is run in the box of {key}", ordered.tenant));
            }
            if orphaned {
                inner.violation(format!("what an earlier host ran is still at work in the box of {key}"));
            }
            inner.started(ordered.number);
            if let Some(container) = inner.containers.get_mut(&asked) {
                container.at_work.insert((ordered.number, host));
            }
            Ok(run)
        };
        let _at_work = AtWork(self.0.clone(), id.to_owned(), (order.number, host));
        // Named by its number too: who wait for one box are woken in any order.
        let run = self.call(Kind::Run, &format!("{key}#{}", order.number), Kind::Run.deadline(), start).await?;
        let outages = self.0.with(|inner| inner.outages());
        let broken = self.0.wait(|inner| match inner.containers.get(id) {
            _ if inner.outages() != outages => Some(away()),
            Some(container) if container.run == run && container.is_up() => None,
            _ => Some(RuntimeError::Failed("its box ended while it ran".to_owned())),
        });
        let over = async {
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = tokio::time::sleep(plan.timeout) => {}
            }
        };
        // A paused box does nothing until its time is over.
        let done = async {
            tokio::time::sleep(order.takes).await;
            let goes_on = |inner: &mut Inner| {
                inner.containers.get(id).is_none_or(|c| c.state == UnitState::Running).then_some(())
            };
            self.0.wait(goes_on).await;
        };
        let timed_out = tokio::select! {
            biased;
            broken = broken => return Err(broken),
            () = over => true,
            () = done => false,
        };
        let mut gone = true;
        if timed_out {
            if alone() && !InUse::is_alone(&self.0, id) {
                self.0.violation(format!("a command of {key} is ended as if it were alone"));
            }
            let ends = |inner: &mut Inner| inner.containers.get(id).is_none_or(|c| c.state != UnitState::Paused);
            gone = !order.stubborn && self.0.with(ends);
            tokio::time::sleep(if gone { Duration::from_millis(5) } else { ENDS }).await;
            self.0.with(|inner| {
                inner.count(if gone { "commands that were ended" } else { "commands that could not be ended" });
                // Its box goes, with whatever else runs there.
                if !gone {
                    inner.disturb(agent_of(&key));
                }
            });
        }
        let (code, stdout) = (if timed_out { 124 } else { 0 }, format!("{id} {run}"));
        let stdout = Captured { head: stdout.into_bytes(), tail: Vec::new(), dropped: 0 };
        Ok(RunOutput { code, stdout, stderr: Captured::default(), timed_out, gone })
    }

    async fn end_left(&self, id: &str, _: &str, _: Left) -> Result<bool> {
        let (asked, host) = (id.to_owned(), self.0.with(|inner| inner.hosts));
        let end = move |inner: &mut Inner| {
            let container = inner.containers.get_mut(&asked).ok_or_else(|| not_found(&asked))?;
            let (orphans, has_more) =
                (container.has_orphans(host), container.at_work.iter().any(|(_, by)| *by == host));
            container.at_work.retain(|(_, by)| *by == host);
            if has_more {
                inner.violation(format!("a command that is at work in {asked} is ended as if nobody had it"));
            }
            if orphans {
                inner.count("boxes in which an earlier host left a command");
            }
            Ok(true)
        };
        self.about(Kind::Exec, id, end).await
    }

    async fn memory(&self, id: &str) -> Result<u64> {
        let asked = id.to_owned();
        let look =
            move |inner: &mut Inner| inner.containers.get(&asked).map(|_| 1 << 20).ok_or_else(|| not_found(&asked));
        self.about(Kind::Inspect, id, look).await
    }

    async fn suspend(&self, id: &str, _: Duration) -> Result<()> {
        let asked = id.to_owned();
        self.0.with(|inner| inner.look_at_use(id, "put to sleep"));
        let stop = move |inner: &mut Inner| {
            let container = inner.containers.get(&asked).ok_or_else(|| not_found(&asked))?;
            if !inner.is_ours(&container.labels) {
                let text = format!("{} is somebody else's and was to be stopped", container.name);
                inner.violation(text.clone());
                return Err(RuntimeError::Refused(text));
            }
            if container.is_up() {
                inner.count("put to sleep");
            }
            inner.end(&asked, 143);
            Ok(())
        };
        self.about(Kind::Suspend, id, stop).await
    }

    async fn resume(&self, id: &str) -> Result<Unit> {
        let asked = id.to_owned();
        let start = move |inner: &mut Inner| match inner.containers.get(&asked).map(|c| c.state) {
            None => Err(not_found(&asked)),
            Some(UnitState::Ended | UnitState::Starting) => {
                inner.count("woken");
                inner.boot(&asked);
                Ok(())
            }
            Some(_) => {
                inner.unpause(&asked);
                Ok(())
            }
        };
        self.about(Kind::Start, id, start).await?;
        self.inspect(id).await
    }

    async fn volumes(&self, labels: &[(&str, &str)]) -> Result<Vec<String>> {
        let wanted: Vec<(String, String)> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let owner =
            self.0.with(|inner| wanted.iter().find_map(|(_, v)| inner.tenant(v).map(|(agent, _)| agent.clone())));
        let look = move |inner: &mut Inner| Ok(inner.volumes(&wanted));
        self.call(Kind::Volumes, &owner.unwrap_or_default(), Kind::Volumes.deadline(), look).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        let asked = name.to_owned();
        let key = self.0.with(|inner| inner.disk.volumes.get(&asked).map(|v| v.key.clone()).unwrap_or_default());
        let remove = move |inner: &mut Inner| inner.remove_volume(&asked);
        self.call(Kind::RemoveVolume, &key, Kind::RemoveVolume.deadline(), remove).await
    }

    async fn retire(&self) -> Result<()> {
        self.call(Kind::Retire, "", Kind::Retire.deadline(), |_| Ok(())).await
    }

    fn watch(&self) -> mpsc::Receiver<Event> {
        self.0.with(|inner| inner.follow())
    }
}

/// A command that is at work in a container until this is dropped.
struct AtWork(World, String, (u64, u64));

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.with(|inner| {
            // Where its host is gone nobody ends it.
            if inner.epoch.is_some()
                && let Some(container) = inner.containers.get_mut(&self.1)
            {
                container.at_work.remove(&self.2);
            }
        });
    }
}
