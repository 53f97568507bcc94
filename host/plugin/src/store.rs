//! What one call may use: a store made for it alone, with a meter on everything the guest can grow.

use std::fmt;
use std::time::{Duration, Instant};

use wasmtime::{Engine, ResourceLimiter, Store, Trap, UpdateDeadline};
use wasmtime_wasi::{WasiCtxView, WasiView};

use crate::limits::{Limits, MAX_INSTANCES, MAX_MEMORIES, MAX_RESOURCES, MAX_TABLE_ELEMENTS, MAX_TABLES};
use crate::wasi::{Nothing, World};

/// What a store carries: the meter, and the empty world behind WASI once the guest has looked at it.
#[derive(Default)]
pub(crate) struct State {
    /// Counts what the guest grows.
    pub(crate) meter: Meter,
    world: World,
    wasi: Option<Nothing>,
}

impl State {
    /// The end of what the guest wrote to standard error, in one line.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.wasi.as_ref().and_then(|wasi| wasi.last_words.line())
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.wasi.get_or_insert_with(|| Nothing::new(self.world)).view()
    }
}

/// A store for one call that may take `limit`.
pub(crate) fn fresh(engine: &Engine, limits: &Limits, world: World, limit: Duration) -> Store<State> {
    let meter = Meter { memory_limit: limits.memory_bytes, ..Meter::default() };
    let mut store = Store::new(engine, State { meter, world, wasi: None });
    store.limiter(|state| &mut state.meter);
    store.set_hostcall_fuel(limits.answer_bytes);
    store.set_max_component_handles(MAX_RESOURCES);
    // At every tick a look at the time, instead of a number of ticks: those come late on a busy machine, and never alike.
    let deadline = Instant::now().checked_add(limit);
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| match deadline {
        Some(deadline) if Instant::now() >= deadline => Err(Trap::Interrupt.into()),
        _ => Ok(UpdateDeadline::Continue(1)),
    });
    store
}

/// What a guest asked for and did not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// More linear memory than this many bytes.
    Memory(usize),
    /// More table elements than [`MAX_TABLE_ELEMENTS`].
    Table,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => write!(f, "it wanted more than {} KiB of memory", bytes / 1024),
            Self::Table => write!(f, "it wanted more than {MAX_TABLE_ELEMENTS} table elements"),
        }
    }
}

/// Counts the memory and the tables of a store. wasmtime's own `StoreLimits` bounds each memory for itself, so a
/// component with many of them would get a multiple.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    memory_limit: usize,
    memory: usize,
    elements: usize,
    /// The last thing that was refused.
    pub(crate) refused: Option<Refused>,
}

impl ResourceLimiter for Meter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let Some(total) = grown(self.memory, current, desired, self.memory_limit) else {
            self.refused = Some(Refused::Memory(self.memory_limit));
            return Ok(false);
        };
        // Beyond the memory's own maximum it will not grow, so nothing is counted.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let Some(total) = grown(self.elements, current, desired, MAX_TABLE_ELEMENTS) else {
            self.refused = Some(Refused::Table);
            return Ok(false);
        };
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        self.elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        MAX_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

/// The new total when one part grows from `current` to `desired`, if it stays within `limit`.
fn grown(total: usize, current: usize, desired: usize, limit: usize) -> Option<usize> {
    total.checked_add(desired.saturating_sub(current)).filter(|total| *total <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_counted_together() {
        let mut meter = Meter { memory_limit: 100, ..Meter::default() };
        assert!(meter.memory_growing(0, 60, None).expect("never an error"));
        assert!(!meter.memory_growing(0, 60, None).expect("never an error"), "two memories, 120 together");
        assert_eq!(meter.refused, Some(Refused::Memory(100)));
        assert!(meter.memory_growing(60, 100, None).expect("never an error"), "what was refused is not counted");
        assert!(!meter.memory_growing(100, 101, None).expect("never an error"));
    }

    #[test]
    fn a_growth_that_the_memory_itself_forbids_is_not_counted() {
        let mut meter = Meter { memory_limit: 100, ..Meter::default() };
        assert!(!meter.memory_growing(0, 50, Some(40)).expect("never an error"));
        assert_eq!(meter.refused, None);
        assert!(meter.memory_growing(0, 100, Some(100)).expect("never an error"));
    }

    #[test]
    fn tables_are_counted_together() {
        let mut meter = Meter::default();
        assert!(meter.table_growing(0, MAX_TABLE_ELEMENTS, None).expect("never an error"));
        assert!(!meter.table_growing(0, 1, None).expect("never an error"));
        assert_eq!(meter.refused, Some(Refused::Table));
    }
}
