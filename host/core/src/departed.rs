//! Agents that are containers: which of them run, and what happens when the runtime reports that one ended. Such an agent
//! has a moment to come back, in another container or with a call; then its sandbox is let go. The janitor is the backstop
//! for every report that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::name::{AgentName, Names};
use crate::plan::label;
use crate::registry::Registry;
use crate::runtime::{Labels, Runtime, Unit, UnitState};

/// The agents that a container stands for: named as the agent, or labelled with it.
fn agents_of<'a>(name: &'a str, labels: &'a Labels, names: &Names) -> impl Iterator<Item = &'a str> {
    let by_name = name.strip_prefix(&format!("{}-agent-", names.namespace()));
    by_name.into_iter().chain(labels.get(&names.label(label::AGENT)).map(String::as_str))
}

/// The agents whose own container runs.
pub(crate) fn that_run(everything: &[Unit], names: &Names) -> BTreeSet<String> {
    let running = everything.iter().filter(|unit| unit.state == UnitState::Running);
    running.flat_map(|unit| agents_of(&unit.name, &unit.labels, names)).map(str::to_owned).collect()
}

/// Agents whose container ended.
pub(crate) struct Departed {
    registry: Arc<Registry>,
    runtime: Arc<dyn Runtime>,
    names: Arc<Names>,
    respawn: Duration,
    /// By container, since its end is told more than once, and it may be started again and end again: when it was told first
    /// and last.
    since: BTreeMap<(String, AgentName), (Instant, Instant)>,
}

impl Departed {
    pub(crate) fn new(
        registry: Arc<Registry>,
        runtime: Arc<dyn Runtime>,
        names: Arc<Names>,
        respawn: Duration,
    ) -> Self {
        Self { registry, runtime, names, respawn, since: BTreeMap::new() }
    }

    /// Notes that a container ended.
    pub(crate) fn ended(&mut self, id: &str, name: &str, labels: &Labels) {
        let agents = agents_of(name, labels, &self.names).filter_map(|agent| AgentName::new(agent).ok());
        let now = Instant::now();
        for agent in agents {
            self.since.entry((id.to_owned(), agent)).or_insert((now, now)).1 = now;
        }
    }

    /// Waits until somebody's time to come back is over, and lets go what it had behind the caller's back.
    pub(crate) async fn next(&mut self) {
        let Some(at) = self.since.values().map(|(_, last)| *last).min() else { return std::future::pending().await };
        tokio::time::sleep_until(at + self.respawn).await;
        let now = Instant::now();
        let mut over: Vec<_> = self.since.extract_if(.., |_, (_, last)| now >= *last + self.respawn).collect();
        // Who came back and ended once more has time from then on.
        over.retain(|((_, agent), _)| !self.since.keys().any(|(_, other)| other == agent));
        let (registry, runtime, names) = (self.registry.clone(), self.runtime.clone(), self.names.clone());
        tokio::spawn(async move {
            let everything = match runtime.list(&[]).await {
                Ok(everything) => everything,
                Err(e) => return tracing::warn!(error = %e, "whether agents came back cannot be told; the sweep will"),
            };
            let running = that_run(&everything, &names);
            let gone = over.iter().filter(|((_, agent), _)| !running.contains(agent.as_str()));
            let release = gone.map(|((_, agent), (first, _))| registry.release_departed(agent, *first));
            futures_util::future::join_all(release).await;
        });
    }
}
