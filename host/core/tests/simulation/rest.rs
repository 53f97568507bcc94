//! What has to hold while nothing is under way: what exists is exactly what the registry says, and nobody has what they
//! gave back.

use std::collections::BTreeSet;

use sandbar_core::host::Host;
use sandbar_core::name::{EngineSlug, Kind};
use sandbar_core::owner::Owner;
use sandbar_core::runtime::UnitState;
use sandbar_core::store::KeptRow;

use crate::container::{Container, POOL};
use crate::stage::Stage;

impl Stage {
    /// Whether nothing is under way.
    pub(crate) fn is_at_rest(&self, host: &Host) -> bool {
        let busy = |state: &str| state == "making" || state == "letting_go";
        let registry = host.registry();
        registry.pool().making == 0
            && registry.leaving().is_empty()
            && !registry.owners().iter().any(|o| busy(registry.snapshot(o).state))
    }

    /// What exists is what the registry says, and the registry says that nothing is under way.
    pub(crate) fn look_at_rest(&self, host: &Host, when: &str) {
        self.look_at_counts(host);
        let mut live = BTreeSet::new();
        let mut folders = BTreeSet::new();
        for owner in host.registry().owners() {
            let snapshot = host.registry().snapshot(&owner);
            match (snapshot.state, &snapshot.live) {
                ("absent", None) => {}
                ("live", Some(sandbox)) => {
                    live.extend(sandbox.services.values().map(|s| s.id.clone()));
                    folders.extend(sandbox.services.values().filter_map(|s| s.folder().map(str::to_owned)));
                }
                (state, _) => self.world.violation(format!("{when}: {owner} is {state}")),
            }
        }
        let (in_use, under_way) = (host.registry().in_use(), self.world.with(|inner| inner.uses.len() + inner.counts));
        if in_use > under_way {
            self.world.violation(format!("{when}: {in_use} commands are said to be in flight"));
        }
        self.look_at_data(&mut folders, when);
        let books = host.registry().leaving().len();
        if books > 0 {
            self.world.violation(format!("{when}: {books} things are still being removed"));
        }
        let (known, making) = (host.registry().known_ids(), host.registry().pool().making > 0);
        let stray: Vec<_> = self.world.with(|inner| {
            let asleep = |c: &&Container| !c.is_up() && self.is_kept(&c.name);
            live.extend(inner.ready().filter(|c| known.contains(&c.id)).map(|c| c.id.clone()));
            // Whole, or nearly, and not on the books yet.
            let ahead = inner.ours().filter(|c| making && c.agent() == POOL);
            live.extend(ahead.map(|c| c.id.clone()));
            // What somebody else renamed and the host then put to sleep is a stranger to it, for a while.
            let renamed =
                |c: &&Container| !c.is_up() && c.key.contains('@') && inner.names.read(&c.name) == Kind::Other;
            let ours = inner.ours().filter(|c| !live.contains(&c.id) && !asleep(c) && !renamed(c));
            ours.map(|c| format!("{} of {}, {:?}", c.name, c.key, c.state)).collect()
        });
        if !stray.is_empty() {
            self.world.violation(format!("{when}: the registry knows nothing of {stray:?}"));
        }
    }

    /// Whether it is the name of something retained that the state file knows.
    pub(crate) fn is_kept(&self, name: &str) -> bool {
        let rows = self.store.kept().unwrap();
        rows.iter()
            .any(|row| self.kept(row).container(&self.names, &EngineSlug::new(row.service.as_str()).unwrap()) == name)
    }

    fn kept(&self, row: &KeptRow) -> Owner {
        Owner::keyed(&self.names, &row.tenant, &row.service, true)
    }

    /// Every volume is of something retained, and every work folder of that or of a box that serves.
    fn look_at_data(&self, folders: &mut BTreeSet<String>, when: &str) {
        let rows = self.store.kept().unwrap();
        folders.extend(rows.iter().map(|row| self.kept(row).folder()));
        let keys: BTreeSet<_> =
            rows.iter().map(|r| format!("{}/{}@{}", r.tenant.agent, r.service, r.tenant.project)).collect();
        let stray: Vec<_> = self.world.with(|inner| {
            let folders = inner.disk.folders.iter().filter(|(name, _)| !folders.contains(*name));
            let volumes = inner.disk.volumes.iter().filter(|(_, v)| !keys.contains(&v.key));
            folders.chain(volumes).map(|(name, of)| format!("{name} of {}", of.key)).collect()
        });
        if !stray.is_empty() {
            self.world.violation(format!("{when}: nobody has {stray:?}"));
        }
    }

    /// Nobody without work has anything, nobody has what they gave back, and what an agent has is for what it works on.
    pub(crate) fn look_at_rights(&self, host: &Host) {
        for (number, agent) in self.agents.iter().enumerate() {
            let asleep = |c: &&Container| !c.is_up() && self.is_kept(&c.name);
            let has = self.world.with(|inner| {
                let all = inner.ours().filter(|c| c.agent() == agent.as_str() && !asleep(c));
                all.count()
            });
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
