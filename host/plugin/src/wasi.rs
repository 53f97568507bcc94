//! The only thing that a component may import, and what stands behind it: nothing.
//!
//! Interpreters that were compiled to WebAssembly cannot do without the interfaces of WASI, so these are there, by an
//! explicit list. But there is no environment, no argument, no directory, no socket and no name lookup behind them;
//! standard input is closed, and of what a guest writes only the end of standard error is kept, for the error of a call
//! that fails. Time stands still and random numbers are always the same ones, since an engine is a pure function.
//! Waiting is real, and ended by the deadline of the call.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use semver::Version;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::random::Deterministic;
use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxView};

use crate::last_words::LastWords;
use crate::limits::{MAX_RANDOM_BYTES, MAX_RESOURCES};

/// The interfaces that a component may import, at any release 0.2.x. They are what componentize-py and wasi-libc need,
/// and no more: no HTTP, no key-value store, no configuration.
const ALLOWED: [&str; 27] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:clocks/wall-clock",
    "wasi:filesystem/preopens",
    "wasi:filesystem/types",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure",
    "wasi:random/insecure-seed",
    "wasi:random/random",
    "wasi:sockets/instance-network",
    "wasi:sockets/ip-name-lookup",
    "wasi:sockets/network",
    "wasi:sockets/tcp",
    "wasi:sockets/tcp-create-socket",
    "wasi:sockets/udp",
    "wasi:sockets/udp-create-socket",
];

/// Whether a component may import something of this name.
pub(crate) fn is_allowed(import: &str) -> bool {
    let Some((interface, version)) = import.split_once('@') else { return false };
    let Ok(version) = Version::parse(version) else { return false };
    ALLOWED.contains(&interface) && version.major == 0 && version.minor == 2 && version.pre.is_empty()
}

/// Which of two worlds stands behind the interfaces. In both there is nothing; they differ in what an answer must not depend
/// on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum World {
    /// The one in which engines serve: the beginning of Unix time, for ever.
    #[default]
    Usual,
    /// Some later day, on clocks that go on, and with other random numbers.
    Other,
}

/// The world of one call: empty.
pub(crate) struct Nothing {
    ctx: WasiCtx,
    table: ResourceTable,
    /// The end of standard error.
    pub(crate) last_words: LastWords,
}

impl Nothing {
    /// An empty world.
    pub(crate) fn new(world: World) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        let last_words = LastWords::default();
        // Said in full although most of it is the default: a default that changes must not open a door.
        let ctx = WasiCtx::builder()
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .socket_addr_check(|_, _| Box::pin(std::future::ready(false)))
            .wall_clock(Clock(world))
            .monotonic_clock(Clock(world))
            .secure_random(same_numbers(world))
            .insecure_random(same_numbers(world))
            .insecure_random_seed(u128::from(world == World::Other))
            .max_random_size(MAX_RANDOM_BYTES)
            .stderr(last_words.clone())
            .build();
        Self { ctx, table, last_words }
    }

    /// What wasmtime-wasi works on.
    pub(crate) fn view(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.ctx, table: &mut self.table }
    }
}

/// Numbers that look random and are the same in every call. They repeat after 251 bytes; a prime, so that reads of any
/// usual size do not fall into step with it.
fn same_numbers(world: World) -> Deterministic {
    let first = if world == World::Usual { 89 } else { 90 };
    Deterministic::new((0..251_u32).map(|i| u8::try_from((i * i * 7 + i * 131 + first) % 251).unwrap_or(0)).collect())
}

/// A clock that shows the same moment in every call of the usual world: the beginning of Unix time.
struct Clock(World);

/// Some day in 2033, as nanoseconds.
const ANOTHER_DAY: u64 = 2_000_000_000_000_000_000;

impl HostWallClock for Clock {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        match self.0 {
            World::Usual => Duration::ZERO,
            World::Other => Duration::from_nanos(ANOTHER_DAY) + started().elapsed(),
        }
    }
}

impl HostMonotonicClock for Clock {
    fn resolution(&self) -> u64 {
        1_000_000_000
    }

    fn now(&self) -> u64 {
        match self.0 {
            World::Usual => 0,
            World::Other => ANOTHER_DAY + u64::try_from(started().elapsed().as_nanos()).unwrap_or_default(),
        }
    }
}

/// When this process first asked: a clock that goes on has to begin somewhere.
fn started() -> Instant {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    *STARTED.get_or_init(Instant::now)
}

#[cfg(test)]
mod tests {
    use wasmtime::component::{Component, Linker};
    use wasmtime::{Config, Engine};

    use super::*;
    use crate::store::State;

    #[test]
    fn only_the_list_at_0_2_is_allowed() {
        assert!(is_allowed("wasi:io/poll@0.2.0"));
        assert!(is_allowed("wasi:io/poll@0.2.12"));
        for stranger in [
            "wasi:io/poll",
            "wasi:io/poll@0.3.0",
            "wasi:io/poll@0.2.0-rc-2023",
            "wasi:http/outgoing-handler@0.2.0",
            "wasi:keyvalue/store@0.2.0",
            "evil:io/poll@0.2.0",
            "poll",
            "",
        ] {
            assert!(!is_allowed(stranger), "{stranger}");
        }
    }

    #[test]
    fn everything_that_is_allowed_is_there() {
        let engine = Engine::new(&Config::new()).expect("the default configuration works");
        let mut linker = Linker::<State>::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).expect("nothing is defined twice");
        for interface in ALLOWED {
            let text = format!(r#"(component (import "{interface}@0.2.0" (instance)))"#);
            let component = Component::new(&engine, wat::parse_str(text).expect("valid text")).expect("compiles");
            linker.instantiate_pre(&component).expect(interface);
        }
    }
}
