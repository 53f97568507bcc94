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
use crate::metric;
use crate::name::{AgentName, Kind, Names};
use crate::owner::folder_that_goes;
use crate::plan::label;
use crate::registry::Registry;
use crate::runtime::{Result, Runtime, Unit, UnitState};

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
    /// When it was counted last for how long things sleep.
    counted: Option<Instant>,
}

impl Janitor {
    /// A janitor that has seen nothing yet.
    pub fn new(registry: Arc<Registry>, runtime: Arc<dyn Runtime>, names: Arc<Names>, pace: Pace) -> Self {
        Self { registry, runtime, names, pace, unknown: BTreeMap::new(), counted: None }
    }

    /// Sweeps again and again.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(self.pace.every).await;
            let began = Instant::now();
            if let Err(e) = self.sweep().await {
                tracing::warn!(error = %e, "this sweep does nothing: what exists could not be listed");
            }
            metric::sweep(began.elapsed());
        }
    }

    /// One sweep, with two listings however much there is.
    ///
    /// # Errors
    /// When a listing failed; nothing was removed then.
    pub async fn sweep(&mut self) -> Result<()> {
        let base = self.names.base_labels();
        let labels: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        // Before what exists is listed: a container is noted after it was made.
        let handed_out = self.registry.handed_out();
        let everything = self.runtime.list(&[]).await?;
        let ours = self.runtime.list(&labels).await?;
        let agents = departed::that_run(&everything, &self.names);

        for owner in self.registry.owners() {
            if owner.keyed.is_some() {
                self.registry.release_unused(&owner).await;
            } else if !agents.contains(owner.agent.as_str()) {
                self.registry.release_idle(&owner, self.pace.grace).await;
            }
        }
        self.registry.prune();
        let gone = handed_out.into_iter().filter(|id| !ours.iter().any(|unit| unit.id == *id)).collect();
        self.registry.forget_handed_out(gone);
        self.expire().await;

        let now = Instant::now();
        // In this order: what stops being made between the two looks is known by the second.
        let changing = self.registry.being_changed(&self.names);
        let owner = self.names.label(label::OWNER);
        // What was handed out is labelled as nobody's, and its name says whose it is.
        let whose = |unit: &Unit| match self.names.read(&unit.name) {
            Kind::Sandbox { agent, .. } => AgentName::new(agent).ok().map(|agent| self.names.owner(&agent)),
            _ => unit.labels.get(&owner).cloned(),
        };
        let is_changing = |unit: &Unit| whose(unit).is_some_and(|owner| changing.contains(&owner));
        let known = self.registry.known_ids();
        // One listing may be older than a change of the registry; what is unknown must stay so for the grace.
        let strangers: BTreeMap<_, _> = ours
            .iter()
            .filter(|unit| !known.contains(&unit.id))
            // What sleeps is as it should be.
            .filter(|unit| !(self.is_retained(unit) && unit.state == UnitState::Ended))
            .map(|unit| (unit.id.clone(), self.unknown.get(&unit.id).copied().unwrap_or(now)))
            .collect();
        self.unknown = strangers;
        for unit in &ours {
            let stale = self.unknown.get(&unit.id).is_some_and(|seen| now.duration_since(*seen) >= self.pace.grace);
            // Looked at again here: nothing without our labels is ever removed.
            if !stale || is_changing(unit) || !self.names.are_ours(&unit.labels) {
                continue;
            }
            if self.is_retained(unit) {
                // Nothing retained goes because nobody owns it; at most it sleeps.
                tracing::warn!(container = unit.name, "nobody uses it: put to sleep");
                self.registry.sleep_stray(unit).await;
            } else {
                let folder = folder_that_goes(&unit.labels, &self.names);
                tracing::warn!(container = unit.name, "nobody owns it: removed");
                crash::here("sweep decided");
                self.registry.leaving().let_go(&unit.id, folder).await;
            }
        }
        Ok(())
    }

    fn is_retained(&self, unit: &Unit) -> bool {
        matches!(self.names.read(&unit.name), Kind::Keyed { retained: true, .. })
    }

    /// Counts for how long what is retained has been asleep, by this process's own clock, and deletes what has been for
    /// long enough.
    async fn expire(&mut self) {
        let now = Instant::now();
        let passed = self.counted.replace(now).map(|then| now.duration_since(then)).unwrap_or_default();
        self.registry.expire(passed).await;
    }
}
