//! Who is not heard: nothing in a box may talk to the host, whatever network it is in. A box is known by its addresses, from
//! before anything can be asked of it until its container was told to have ended.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::name::Names;
use crate::plan::label;
use crate::runtime::Unit;

/// The addresses of boxes.
#[derive(Debug, Default)]
pub(crate) struct Unheard {
    /// Whether those that were there when the host started are known.
    complete: AtomicBool,
    boxes: Mutex<BTreeMap<String, Vec<IpAddr>>>,
}

impl Unheard {
    /// Whether a caller from this address is not heard.
    pub(crate) fn is(&self, caller: IpAddr) -> bool {
        if caller.is_loopback() {
            return false;
        }
        // One of these a container gives itself, and nobody is told.
        let nameless = matches!(caller, IpAddr::V6(address) if address.is_unicast_link_local());
        nameless || !self.complete.load(Ordering::Acquire) || self.boxes().values().flatten().any(|a| *a == caller)
    }

    /// Takes note of a unit, if it is a box.
    pub(crate) fn note(&self, unit: &Unit, names: &Names) {
        if unit.labels.contains_key(&names.label(label::FOLDER)) {
            self.boxes().insert(unit.id.clone(), unit.addresses.clone());
        }
    }

    /// A unit has ended, and its addresses may be another's.
    pub(crate) fn forget(&self, id: &str) {
        self.boxes().remove(id);
    }

    /// All that were there are noted, or the runtime is not there to be asked.
    pub(crate) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    fn boxes(&self) -> MutexGuard<'_, BTreeMap<String, Vec<IpAddr>>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::runtime::UnitState;
    use crate::testing;

    #[test]
    fn a_box_is_unheard_from_all_its_addresses_until_it_has_ended() {
        let names = testing::names();
        let unit = |id: &str, folder: bool, addresses: &[&str]| Unit {
            id: id.to_owned(),
            name: id.to_owned(),
            address: None,
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            published_port: None,
            labels: folder.then(|| (names.label(label::FOLDER), "f".to_owned())).into_iter().collect(),
            state: UnitState::Running,
            image: None,
            created: SystemTime::now(),
            run: None,
        };
        let unheard = Unheard::default();
        let is = |address: &str| unheard.is(address.parse().unwrap());
        // Before it is known who is there, only this machine is heard.
        assert!(is("172.18.0.2") && !is("127.0.0.1") && !is("::1"));
        unheard.note(&unit("box", true, &["172.18.0.2", "fd00::2"]), &names);
        unheard.note(&unit("redis", false, &["172.18.0.3"]), &names);
        unheard.complete();
        assert!(is("172.18.0.2") && is("fd00::2") && is("fe80::1"));
        assert!(!is("172.18.0.3") && !is("127.0.0.1"));
        unheard.forget("box");
        assert!(!is("172.18.0.2") && !is("fd00::2"));
    }
}
