//! The sweep: at start and again and again it looks at what exists and removes what nobody owns any more. It concludes
//! nothing from a listing that failed, removes one by one and by id, and keeps its hands off everything that was made,
//! seen first, or asked for a short while ago. Ages are measured by this process's own clock, from when it first saw a
//! thing, so a wall clock that jumps reaps nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::crash;
use crate::departed;
use crate::name::{AgentName, Names};
use crate::plan::label;
use crate::registry::Registry;
use crate::runtime::{Result, Runtime, Unit};

/// When and how patiently it sweeps.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Time between two sweeps.
    pub every: Duration,
    /// What was made, seen first or asked for within this time is left alone.
    pub grace: Duration,
    /// An agent whose container ended has this long to come back, in another container or with a call.
    pub respawn: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { every: Duration::from_secs(60), grace: Duration::from_secs(180), respawn: Duration::from_secs(10) }
    }
}

/// The janitor of one host.
pub struct Janitor {
    registry: Arc<Registry>,
    runtime: Arc<dyn Runtime>,
    names: Arc<Names>,
    pace: Pace,
    /// Things with our labels that the registry does not know, and when they were seen first.
    unknown: BTreeMap<String, Instant>,
}

impl Janitor {
    /// A janitor that has seen nothing yet.
    pub fn new(registry: Arc<Registry>, runtime: Arc<dyn Runtime>, names: Arc<Names>, pace: Pace) -> Self {
        Self { registry, runtime, names, pace, unknown: BTreeMap::new() }
    }

    /// Sweeps again and again.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(self.pace.every).await;
            if let Err(e) = self.sweep().await {
                tracing::warn!(error = %e, "this sweep does nothing: what exists could not be listed");
            }
        }
    }

    /// One sweep, with two listings however much there is.
    ///
    /// # Errors
    /// When a listing failed; nothing was removed then.
    pub async fn sweep(&mut self) -> Result<()> {
        let base = self.names.base_labels();
        let labels: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let everything = self.runtime.list(&[]).await?;
        let ours = self.runtime.list(&labels).await?;
        let agents = departed::that_run(&everything, &self.names);

        for agent in self.registry.owners() {
            if !agents.contains(agent.as_str()) {
                self.registry.release_idle(&agent, self.pace.grace).await;
            }
        }
        self.registry.prune();

        let now = Instant::now();
        // In this order: what stops being made between the two looks is known by the second.
        let ours: Vec<_> = ours.into_iter().filter(|unit| !self.is_being_made(unit)).collect();
        let known = self.registry.known_ids();
        // One listing may be older than a change of the registry; what is unknown must stay so for the grace.
        let strangers: BTreeMap<_, _> = ours
            .iter()
            .filter(|unit| !known.contains(&unit.id))
            .map(|unit| (unit.id.clone(), self.unknown.get(&unit.id).copied().unwrap_or(now)))
            .collect();
        self.unknown = strangers;
        for unit in &ours {
            let stale = self.unknown.get(&unit.id).is_some_and(|seen| now.duration_since(*seen) >= self.pace.grace);
            // Looked at again here: nothing without our labels is ever removed.
            if stale && self.names.are_ours(&unit.labels) {
                tracing::warn!(container = unit.name, "nobody owns it: removed");
                crash::here("sweep decided");
                self.registry.leaving().let_go(&unit.id).await;
            }
        }
        Ok(())
    }

    /// Whether its owner has a flight under way, which alone knows what it is making.
    fn is_being_made(&self, unit: &Unit) -> bool {
        let owner = unit.labels.get(&self.names.label(label::OWNER));
        let agent = owner.and_then(|o| o.strip_prefix(&format!("{}-agent-", self.names.namespace())));
        let agent = agent.and_then(|a| AgentName::new(a).ok());
        agent.is_some_and(|agent| matches!(self.registry.snapshot(&agent).state, "making" | "letting_go"))
    }
}
