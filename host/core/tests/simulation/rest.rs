//! What has to hold while nothing is under way: what exists is exactly what the registry says, and nobody has what they
//! gave back.

use std::collections::BTreeSet;

use sandbar_core::host::Host;
use sandbar_core::owner::Owner;
use sandbar_core::runtime::UnitState;

use crate::stage::Stage;

impl Stage {
    /// Whether nothing is under way.
    pub(crate) fn is_at_rest(&self, host: &Host) -> bool {
        let busy = |state: &str| state == "making" || state == "letting_go";
        host.registry().leaving().is_empty()
            && !self.agents.iter().any(|a| busy(host.registry().snapshot(&Owner::agent(a)).state))
    }

    /// What exists is what the registry says, and the registry says that nothing is under way.
    pub(crate) fn look_at_rest(&self, host: &Host, when: &str) {
        self.look_at_counts(host);
        let mut live = BTreeSet::new();
        for agent in &self.agents {
            let snapshot = host.registry().snapshot(&Owner::agent(agent));
            match (snapshot.state, &snapshot.live) {
                ("absent", None) => {}
                ("live", Some(sandbox)) => live.extend(sandbox.services.values().map(|s| s.id.clone())),
                (state, _) => self.world.violation(format!("{when}: {agent} is {state}")),
            }
        }
        let books = host.registry().leaving().len();
        if books > 0 {
            self.world.violation(format!("{when}: {books} things are still being removed"));
        }
        let stray: Vec<_> = self.world.with(|inner| {
            let ours = inner.ours().filter(|c| !live.contains(&c.id));
            ours.map(|c| format!("{} of {}, {:?}", c.name, c.key, c.state)).collect()
        });
        if !stray.is_empty() {
            self.world.violation(format!("{when}: the registry knows nothing of {stray:?}"));
        }
    }

    /// Nobody without work has anything, nobody has what they gave back, and what an agent has is for what it works on.
    pub(crate) fn look_at_rights(&self, host: &Host) {
        for (number, agent) in self.agents.iter().enumerate() {
            let has = self.world.with(|inner| inner.ours().filter(|c| c.agent() == agent.as_str()).count());
            let snapshot = host.registry().snapshot(&Owner::agent(agent));
            let Some(work) = host.people().work(agent) else {
                if has > 0 || snapshot.state != "absent" {
                    self.world.violation(format!("{agent} has no work and {has} containers, {}", snapshot.state));
                }
                continue;
            };
            if snapshot.live.is_some_and(|live| live.project != work.project) {
                self.world.violation(format!("{agent} has a sandbox of another project than {}", work.project));
            }
            if has > 0 && self.with(number, |a| a.has_nothing()) {
                self.world.violation(format!("{agent} gave back what it had, and has {has} containers"));
            }
        }
    }

    /// Whether every container that serves somebody is running.
    pub(crate) fn all_run(&self) -> bool {
        self.world.with(|inner| inner.ours().all(|c| c.state == UnitState::Running))
    }
}
