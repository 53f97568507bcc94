//! Scenes: what schedules found, and what they find too seldom, each played out on purpose.

mod boxes;
mod kept;
mod leaving;
mod making;
mod start;

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::error::Error;
use sandbar_core::health::State;
use sandbar_core::host::Host;
use serde_json::{Value, json};

use crate::faults::{Kind, Knobs, Trouble};
use crate::schedule::Schedule;
use crate::stage::{Extensions, Stage};

/// Long enough for everything that nothing holds up.
const SOON: Duration = Duration::from_secs(2);
const ZERO: Duration = Duration::ZERO;
/// No extensions beyond the project's.
static PLAIN: Extensions = Extensions::new();

/// A little latency, and nothing goes wrong by itself.
fn knobs() -> Knobs {
    Knobs { latency: 10, boot: 100, ..Knobs::default() }
}

fn stage(seed: u64, agents: usize) -> Arc<Stage> {
    crate::quiet_panics();
    Stage::new(seed, Schedule { knobs: knobs(), agents, ..Schedule::plain() }, true)
}

/// The same with boxes and with what is retained.
fn keeping(seed: u64, agents: usize, change: impl FnOnce(&mut Schedule)) -> Arc<Stage> {
    crate::quiet_panics();
    let knobs = Knobs { disk: 1, ..knobs() };
    let mut schedule = Schedule { knobs, agents, ..Schedule::plain() };
    change(&mut schedule);
    Stage::new(seed, schedule, true)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

impl Stage {
    fn script(&self, kind: Kind, key: &str, trouble: Trouble) {
        self.world.with(|inner| inner.script.push((kind, key.to_owned(), trouble)));
    }

    /// Waits until so much of the script is left.
    async fn scripted(&self, left: usize) {
        while self.world.with(|inner| inner.script.len()) > left {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn up(&self, host: &Host) {
        let up = async { host.health().subscribe().wait_for(|s| *s == State::Up).await.is_ok() };
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), up).await, Ok(true), "the host comes up");
    }

    async fn ask(&self, host: &Host, agent: usize) -> Result<Value, Error> {
        self.request(host, agent, None, &PLAIN, None).await.unwrap()
    }

    /// The first agent's request, whose answer the scene judges.
    async fn try_to_ask(&self, host: &Host) -> Result<Value, Error> {
        host.request_sandbox(&self.agents[0], None, &PLAIN, None).await.map(|given| json!(given))
    }

    /// A host that comes up, and an agent that works on a project and has its sandbox.
    async fn served(&self, host: &Host, project: &str) -> Value {
        self.up(host).await;
        self.begin(host, 0, project).await;
        self.ask(host, 0).await.unwrap()
    }

    /// Runs a command that has time enough. Answers the id of its box and the number of the run that this was in.
    async fn runs(&self, host: &Host, agent: usize, takes: Duration) -> String {
        let ran = self.run(host, agent, takes, takes * 2, false, None).await.unwrap().unwrap();
        assert_eq!((ran.exit_code, ran.timed_out), (0, false));
        ran.stdout
    }

    /// Whether a container of this key runs.
    fn is_up(&self, key: &str) -> bool {
        self.world.with(|inner| inner.ours().any(|c| c.key == key && c.is_up()))
    }

    fn created(&self) -> u64 {
        self.world.with(|inner| inner.created)
    }

    fn ours(&self) -> Vec<String> {
        self.world.with(|inner| inner.ours().map(|c| c.name.clone()).collect())
    }

    fn serving(&self, key: &str) -> String {
        self.world.with(|inner| inner.ours().find(|c| c.key == key).map(|c| c.id.clone())).unwrap()
    }

    /// The container in which an agent runs ends.
    fn end_own(&self, agent: &str) {
        self.world.with(|inner| {
            let id = inner.own(agent).unwrap().id.clone();
            inner.end(&id, 0);
        });
    }

    /// Nothing was seen that must not be.
    fn close(&self) {
        let verdict = self.world.verdict();
        assert!(verdict.violations.is_empty(), "{:#?}\n{}", verdict.violations, verdict.log.join("\n"));
    }
}
