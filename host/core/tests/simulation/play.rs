//! Plays a schedule to its end, and looks at what is left.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandbar_core::host::Host;
use sandbar_core::owner::Owner;
use sandbar_core::runtime::UnitState;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::container::{Container, POOL};
use crate::engine;
use crate::faults::Knobs;
use crate::ledger::Agent;
use crate::schedule::{End, Event, Meddle, Run, SHORT, Schedule};
use crate::stage::{CALL, Extensions, Stage};
use crate::world::{Inner, Verdict};

/// After the last trouble everything that was still to come has come, what may be suspect is not any more, and the janitor
/// has seen it twice and long enough.
const SETTLES: Duration = Duration::from_secs(400);
/// Where there was one host only and nobody meddled, there is nothing that it does not know of.
const SETTLES_SOON: Duration = Duration::from_secs(120);
/// Nothing is under way for longer than this, whatever happened.
const AT_LAST: Duration = Duration::from_secs(900);
/// Longer than a lease and two sweeps.
const IDLE: Duration = Duration::from_secs(30 * 60 + 180 + 120);
/// Where nothing goes wrong, what was let go is gone by then.
const REMOVAL: Duration = Duration::from_secs(2);
/// How long somebody waits for something to meddle with.
const PATIENCE: Duration = Duration::from_secs(5);
/// A host that goes down waits twice this long, and lets go each agent's sandbox for half of it where nothing is kept.
const DRAIN: Duration = Duration::from_secs(20);

/// Plays a schedule.
pub(crate) fn schedule(seed: u64, schedule: Schedule, log: bool) -> Verdict {
    let stage = Stage::new(seed, schedule.clone(), log);
    stage.world.log(|| format!("{:?}", Schedule { runs: vec![], ..schedule.clone() }));
    for run in &schedule.runs {
        let seen = stage.clone();
        stage.life(run.pause, |host| async move { seen.play(host, run).await });
    }
    let seen = stage.clone();
    stage.life(Duration::ZERO, |host| async move { seen.next_start(host).await });
    stage.world.verdict()
}

impl Stage {
    async fn play(self: Arc<Self>, host: Arc<Host>, run: &Run) {
        let mut calls = JoinSet::new();
        for (at, event) in run.events.clone() {
            let (stage, host) = (self.clone(), host.clone());
            calls.spawn(async move {
                tokio::time::sleep(at).await;
                stage.happen(&host, event).await;
            });
        }
        tokio::time::sleep(run.lasts).await;
        match run.end {
            End::Crash => self.killed(&host),
            End::ShutDown => self.go_down(&host).await,
            End::Settle => {
                let all = tokio::time::timeout(AT_LAST, async { while calls.join_next().await.is_some() {} });
                if all.await.is_err() {
                    self.world.violation("a call never ends".to_owned());
                }
                self.settle(&host).await;
            }
        }
    }

    /// The host is about to be killed.
    fn killed(&self, host: &Host) {
        let states: Vec<_> = self.agents.iter().map(|a| host.registry().snapshot(&Owner::agent(a)).state).collect();
        self.world.with(|inner| {
            for state in states {
                inner.count(match state {
                    "making" => "killed while making",
                    "letting_go" => "killed while letting go",
                    _ => "killed",
                });
            }
        });
        // What a release had not removed yet is found again, and its agent may still work.
        if !host.registry().leaving().is_empty() {
            (0..self.agents.len()).for_each(|agent| self.with(agent, Agent::unanswered));
        }
    }

    async fn happen(&self, host: &Host, event: Event) {
        match event {
            Event::Request { agent, services, extensions, cancel } => {
                // Mostly what the project has.
                let opted_in = self.opted_in(host, agent);
                let has = |service: &str| opted_in.is_empty() || opted_in.iter().any(|s| s == service);
                let services = services.filter(|s| s.iter().all(|s| has(s))).map(|s| engine::set(&s));
                let mut wanted = Extensions::new();
                for (service, feature) in extensions.into_iter().filter(|(s, _)| has(s)) {
                    wanted.insert(service.to_owned(), engine::set(&[feature]));
                }
                self.request(host, agent, services.as_ref(), &wanted, cancel).await;
            }
            Event::Release { agent } => self.release(host, agent).await,
            Event::Begin { agent, project } => self.begin(host, agent, project).await,
            Event::End { agent } => self.end(host, agent).await,
            Event::Declare(n) => {
                self.world.log(|| format!("lab is declared {n}"));
                self.lab.store(n, Ordering::Relaxed);
                host.set_project(engine::project("lab"), engine::lab(n)).unwrap();
            }
            Event::Meddle { agent, service, how, making, ready, after } => {
                let target = self.world.wait(|inner| {
                    let ready = ready.then(|| inner.ready().map(|c| c.id.clone()).next()).flatten();
                    ready.or_else(|| self.target(inner, agent, service, making))
                });
                // There may be nothing to meddle with for long.
                if let Ok(id) = tokio::time::timeout(PATIENCE, target).await {
                    tokio::time::sleep(after).await;
                    self.meddle(agent, &id, how);
                }
            }
            Event::DeclareLoft(n) => {
                self.world.log(|| format!("loft is declared {n}"));
                self.lab.store(n, Ordering::Relaxed);
                // Who works on it may lose what it has by somebody's next call.
                let now = self.world.now();
                for (agent, name) in self.agents.iter().enumerate().filter(|(n, _)| self.with(*n, |a| a.on_lab)) {
                    self.with(agent, |a| {
                        let number = a.upset(now);
                        a.upset_over(number, now, false);
                    });
                    self.world.with(|inner| inner.excuse_for(name.as_str(), CALL));
                }
                host.set_project(engine::project("loft"), engine::loft(n)).unwrap();
            }
            Event::Run { agent, takes, deadline, stubborn, cancel } => {
                drop(self.run(host, agent, takes, deadline, stubborn, cancel).await);
            }
            Event::Write { agent } => drop(self.write(host, agent).await),
            Event::Read { agent } => drop(self.read(host, agent).await),
            Event::Outage { lasts, kills } => self.world.with(|inner| inner.go_away(lasts, kills)),
            Event::Squat { agent, service } => self.squat(agent, service),
            Event::Depart { agent, back } => self.depart(host, agent, back).await,
            Event::Jump(by) => self.world.with(|inner| inner.wall += by),
        }
    }

    /// The services of the project that an agent works on.
    fn opted_in(&self, host: &Host, agent: usize) -> Vec<String> {
        let Some(work) = host.people().work(&self.agents[agent]) else { return Vec::new() };
        let declared = engine::declaration(work.project.as_str(), self.lab.load(Ordering::Relaxed));
        declared.services.iter().map(ToString::to_string).collect()
    }

    /// What somebody meddles with: an agent's container that serves, or one that is being made.
    fn target(&self, inner: &Inner, agent: usize, service: &str, making: bool) -> Option<String> {
        let name = self.agents[agent].as_str();
        let fits: Vec<_> =
            inner.ours().filter(|c| c.agent() == name && inner.serves(&c.name).is_some() != making).collect();
        let serves = |c: &Container| c.key.split(['/', '@']).nth(1) == Some(service);
        let one = fits.iter().find(|c| serves(c)).or(fits.first())?;
        Some(one.id.clone())
    }

    pub(crate) fn meddle(&self, agent: usize, id: &str, how: Meddle) {
        let replaced = self.world.with(|inner| {
            let container = inner.containers.get(id).cloned()?;
            inner.log(|| format!("somebody meddles with {}: {how:?}", container.name));
            inner.disturb(container.agent());
            inner.count("meddled with");
            match how {
                Meddle::Kill => inner.end(id, 137),
                Meddle::Pause => {
                    let container = inner.containers.get_mut(id)?;
                    if container.state == UnitState::Running {
                        container.state = UnitState::Paused;
                    }
                }
                Meddle::Restart => {
                    inner.end(id, 0);
                    inner.boot(id);
                }
                Meddle::Vanish | Meddle::Replace => drop(inner.containers.remove(id)),
                Meddle::Rename => {
                    let aside = format!("aside-{}", &id[56..]);
                    inner.rename(id, &aside);
                }
            }
            inner.touch();
            matches!(how, Meddle::Replace).then_some(container.key)
        });
        if let Some((_, service)) = replaced.as_deref().and_then(|key| key.split_once('/')).filter(|(a, _)| *a != POOL)
        {
            self.squat(agent, service);
        }
    }

    /// A container of another installation takes a final name, if it is free.
    pub(crate) fn squat(&self, agent: usize, service: &str) {
        let service = service.split('@').next().unwrap_or(service);
        let project = self.with(agent, |a| a.project).unwrap_or(engine::PROJECTS[0]);
        let name = self.owner(agent, &engine::project(project), service).1;
        let taken = self.world.with(|inner| {
            if inner.find(&name).is_some() {
                return false;
            }
            let mut labels = self.names.base_labels();
            labels.insert(self.names.label("installation"), "theirs".to_owned());
            labels.insert(self.names.label("sandbox.owner"), self.names.owner(&self.agents[agent]));
            inner.log(|| format!("{name} is somebody else's"));
            inner.add_foreign(&name, labels);
            true
        });
        if taken {
            self.with(agent, |a| a.squatted = true);
        }
    }

    /// Takes the host down in good order.
    async fn go_down(&self, host: &Host) {
        let (from, calm) = (self.world.now(), self.schedule.knobs.is_calm());
        let recovered = host.health().state() == sandbar_core::health::State::Up;
        if !self.schedule.keep {
            self.forget(|_| true);
            self.world.with(|inner| self.agents.iter().for_each(|a| inner.excuse(a.as_str(), true, false)));
        }
        self.world.log(|| "going down".to_owned());
        host.shut_down().await;
        if !self.schedule.keep {
            self.world.with(|inner| self.agents.iter().for_each(|a| inner.excuse(a.as_str(), false, true)));
        }
        self.world.with(|inner| inner.count("went down"));
        let took = self.world.now() - from;
        let each = if self.schedule.keep { 0 } else { u32::try_from(self.agents.len()).unwrap_or(0) };
        if took > DRAIN * 3 + DRAIN * each / 2 {
            self.world.violation(format!("going down took {took:?}"));
        }
        if calm && recovered {
            self.look_at_rest(host, "after going down");
            let left = self.world.with(|inner| inner.ours().filter(|c| c.is_up() || !self.is_kept(&c.name)).count());
            if !self.schedule.keep && left > 0 {
                self.world.violation(format!("{left} containers are left behind by a host that keeps none"));
            }
        }
        if !self.schedule.keep {
            self.forget(|_| true);
        }
        if !host.registry().leaving().is_empty() {
            (0..self.agents.len()).for_each(|agent| self.with(agent, Agent::unanswered));
        }
    }

    /// Trouble ends, time passes, and everything has to be as the registry says; then every agent that has work asks once
    /// more, twice.
    async fn settle(&self, host: &Host) {
        self.world.log(|| "trouble ends".to_owned());
        let agents = self.agents.iter().map(|a| a.to_string()).collect::<Vec<_>>();
        let foreign = self.world.with(|inner| {
            let Knobs { latency, boot, disk, .. } = inner.knobs;
            inner.knobs = Knobs { latency, boot, disk, ..Knobs::default() };
            inner.come_back();
            let foreign: Vec<_> = inner.foreign().cloned().collect();
            // Half of what is in the way goes.
            let (go, stay): (Vec<_>, Vec<_>) =
                foreign.into_iter().partition(|c| c.id.ends_with(['0', '2', '4', '6', '8']));
            for container in go {
                inner.containers.remove(&container.id);
            }
            stay
        });
        if foreign.is_empty() {
            (0..agents.len()).for_each(|agent| self.with(agent, |a| a.squatted = false));
        }
        let soon = self.schedule.runs.len() == 1 && self.schedule.knobs.meddling == 0 && !self.schedule.keeps();
        tokio::time::sleep(if soon { SETTLES_SOON } else { SETTLES }).await;
        self.rest(host, AT_LAST).await;
        self.look_at_rest(host, "at rest");
        self.look_at_rights(host);
        // What failed often is tried again after a while only.
        let due: usize = self.schedule.pool.iter().map(|(_, _, n)| n).sum();
        let until = self.world.now() + AT_LAST;
        while host.registry().pool().ready != due && self.world.now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let ready = host.registry().pool().ready;
        if ready != due {
            self.world.violation(format!("{ready} containers are ready, and {due} should be"));
        }
        if self.schedule.remakes < 100 {
            tokio::time::sleep(Duration::from_secs(601)).await;
        }

        let first = self.ask_all(host).await;
        self.rest(host, REMOVAL).await;
        self.look_at_rest(host, "after everybody asked");
        for (agent, answer) in first.iter().enumerate() {
            let Some(answer) = answer else { continue };
            let squatted = foreign.iter().any(|c| self.names_of(agent).contains(&c.name));
            let full = self.schedule.max_live < self.may_have() || self.is_crowded();
            if answer.is_none() && !squatted && !full {
                self.world.violation(format!("{} still gets nothing", agents[agent]));
            }
        }
        let created = self.world.with(|inner| inner.created);
        let second = self.ask_all(host).await;
        self.compare(&first, &second, created, "at once");
        if self.schedule.keeps() {
            for agent in 0..agents.len() {
                let takes = Duration::from_secs(1);
                let _ = self.run(host, agent, takes, takes * 2, false, None).await;
                let _ = self.write(host, agent).await;
                let _ = self.read(host, agent).await;
            }
            self.rest(host, REMOVAL).await;
            self.look_at_rest(host, "after everybody used their box");
        }
        if self.schedule.idles {
            self.idle(host, &second).await;
        }
        // Nothing is being made ahead, then, when this host ends.
        self.rest(host, AT_LAST).await;
        for container in foreign {
            let same =
                self.world.with(|inner| inner.containers.get(&container.id).is_some_and(|c| c.name == container.name));
            if !same {
                self.world.violation(format!("{} was somebody else's and is not there any more", container.name));
            }
        }
    }

    /// Nobody calls until all leases are over: who runs in a container keeps what they have, and nobody else does.
    async fn idle(&self, host: &Host, before: &[Option<Option<Value>>]) {
        self.world.log(|| "nobody calls".to_owned());
        tokio::time::sleep(IDLE).await;
        self.look_at_rest(host, "after all leases");
        for (number, agent) in self.agents.iter().enumerate() {
            let runs = self.world.with(|inner| inner.own(agent.as_str()).is_some());
            let state = host.registry().snapshot(&Owner::agent(agent)).state;
            if !runs && state != "absent" {
                self.world.violation(format!("{agent} is gone and its sandbox is {state}"));
            }
            if !runs {
                self.with(number, |a| a.forget(self.world.now()));
            }
        }
        let after = self.ask_all(host).await;
        for (agent, (before, after)) in before.iter().zip(&after).enumerate() {
            let runs = self.world.with(|inner| inner.own(self.agents[agent].as_str()).is_some());
            if runs && before.as_ref().is_some_and(Option::is_some) && before != after {
                self.world.violation(format!("{} ran all the time and has something else", self.agents[agent]));
            }
        }
    }

    async fn rest(&self, host: &Host, bound: Duration) {
        let until = self.world.now() + bound;
        while !self.is_at_rest(host) && self.world.now() < until {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The next host finds everything again; then everybody gives back what they have.
    async fn next_start(&self, host: Arc<Host>) {
        let up = host.health().subscribe().wait_for(|s| *s == sandbar_core::health::State::Up).await.is_ok();
        assert!(up, "a host is up at last");
        let before = self.world.with(|inner| {
            let ours = inner
                .ours()
                .filter_map(|c| Some((c.name.clone(), c.variable(&self.names.password_variable())?.to_owned())));
            ours.collect::<Vec<_>>()
        });
        let created = self.world.with(|inner| inner.created);
        let answers = self.ask_all(&host).await;
        for (agent, answer) in answers.iter().enumerate() {
            let Some(Some(evidence)) = answer else { continue };
            for (service, entry) in evidence.as_object().into_iter().flatten() {
                let Some(work) = host.people().work(&self.agents[agent]) else { continue };
                let (_, name) = self.owner(agent, &work.project, service);
                let known = before.iter().find(|(n, _)| *n == name);
                if known.is_some_and(|(_, p)| entry["password"] != p.as_str()) {
                    self.world.violation(format!("{name} has another password after a restart"));
                }
            }
        }
        let again = self.ask_all(&host).await;
        let made = self.world.with(|inner| inner.created);
        self.compare(&answers, &again, made, "after a restart");
        if made != created
            && self.schedule.max_live >= self.may_have()
            && !self.is_crowded()
            && self.world.with(|inner| inner.foreign().next().is_none())
        {
            self.world.violation(format!("{} containers were made after a restart", made - created));
        }
        for agent in 0..self.agents.len() {
            match agent % 2 {
                0 => self.end(&host, agent).await,
                _ => self.release(&host, agent).await,
            }
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.look_at_rest(&host, "at the end");
        let left = self.world.with(|inner| {
            let awake = inner.ours().filter(|c| c.agent() != POOL && (c.is_up() || !self.is_kept(&c.name)));
            awake.map(|c| c.name.clone()).collect::<Vec<_>>()
        });
        if !left.is_empty() || host.registry().occupied() != (0, 0) {
            self.world.violation(format!("at the end there is still {left:?}"));
        }
        if self.schedule.delete_after == SHORT {
            self.expire(&host).await;
        }
    }

    /// Nobody calls for longer than anything is retained.
    async fn expire(&self, host: &Host) {
        tokio::time::sleep(SHORT + Duration::from_secs(300)).await;
        self.look_at_rest(host, "after everything expired");
        let left = self.world.with(|inner| {
            let names = inner.ours().filter(|c| c.agent() != POOL).map(|c| c.name.clone());
            names
                .chain(inner.disk.volumes.keys().cloned())
                .chain(inner.disk.folders.keys().cloned())
                .collect::<Vec<_>>()
        });
        if !left.is_empty() || !self.store.kept().unwrap().is_empty() {
            self.world.violation(format!("after everything expired there is still {left:?}"));
        }
    }

    /// Whether there may be more that is retained than may be awake.
    fn is_crowded(&self) -> bool {
        self.schedule.keeps() && self.schedule.max_awake < 2 * self.agents.len()
    }

    /// The final names of everything that an agent could have.
    fn names_of(&self, agent: usize) -> Vec<String> {
        let all = engine::PROJECTS.into_iter().chain(engine::KEEPING);
        let all = all.flat_map(|project| ["pg", "redis", "mongo", "box"].map(|service| (project, service)));
        all.map(|(project, service)| self.owner(agent, &engine::project(project), service).1).collect()
    }

    /// Asks for everybody who has work, all at once: the evidence, `None` for an error.
    async fn ask_all(&self, host: &Host) -> Vec<Option<Option<Value>>> {
        let ask = |agent: usize| async move {
            host.people().work(&self.agents[agent])?;
            Some(self.request(host, agent, None, &Extensions::new(), None).await?.ok())
        };
        futures_util::future::join_all((0..self.agents.len()).map(ask)).await
    }

    fn compare(&self, first: &[Option<Option<Value>>], second: &[Option<Option<Value>>], created: u64, when: &str) {
        for (agent, (first, second)) in first.iter().zip(second).enumerate() {
            let refused = self.is_crowded() && second.as_ref().is_some_and(Option::is_none);
            // What was woken in between has another port on the loopback.
            let woken = self.is_crowded() && self.schedule.publish;
            if first.as_ref().is_some_and(Option::is_some) && first != second && !refused && !woken {
                self.world.violation(format!("{} asks again {when} and has something else", self.agents[agent]));
            }
        }
        let all = first.iter().flatten().all(Option::is_some);
        if all && self.world.with(|inner| inner.created) != created {
            self.world.violation(format!("asking again {when} made something"));
        }
    }
}
