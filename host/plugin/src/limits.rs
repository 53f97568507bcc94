//! Every bound that this crate puts on a component, each with the reason for its value. What an operator or a test may
//! want otherwise is a field of [`Limits`]; the rest is constant.

use std::time::Duration;

/// Largest component file that is read, in bytes. An engine in a scripting language carries its interpreter and is
/// about 18 MB; compiling costs a multiple of the size in memory and time.
pub const MAX_COMPONENT_BYTES: u64 = 64 * 1024 * 1024;

/// How often the epoch advances: the precision with which running code is interrupted at its deadline. A hundred wake-ups a second
/// cannot be measured, and a hundredth of a second is nothing beside the deadline of a call.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// How much later than its deadline the clock around a call gives up on the thread that runs it. The thread ends by
/// itself at the deadline, so this is only reached where the machine is starved or the host's own code is slow.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// Calls of one engine that may run at the same time. A plan takes well under a millisecond, so healthy engines never
/// queue for long; of one that hangs no more than this many threads are held.
pub(crate) const MAX_IN_FLIGHT: usize = 8;

/// Stack of the guest in bytes; wasmtime's default. A recursion deeper than this is a mistake.
pub(crate) const GUEST_STACK_BYTES: usize = 512 * 1024;

/// Stack in bytes on which the guest and the host functions it calls run together; wasmtime's default. It is reserved,
/// not used.
pub(crate) const FIBER_STACK_BYTES: usize = 2 * 1024 * 1024;

/// Core instances in one store. An engine in Rust has 3, one made by componentize-py about 30.
pub(crate) const MAX_INSTANCES: usize = 256;

/// Linear memories in one store. Everything seen has one or two.
pub(crate) const MAX_MEMORIES: usize = 16;

/// Tables in one store. Everything seen has two or three.
pub(crate) const MAX_TABLES: usize = 64;

/// Elements of all tables in one store together. An interpreter has some ten thousand; each costs eight bytes here.
pub(crate) const MAX_TABLE_ELEMENTS: usize = 256 * 1024;

/// Resources (streams, pollables, …) that a guest may hold at once. Those of an interpreter are a dozen.
pub(crate) const MAX_RESOURCES: usize = 1024;

/// Random bytes a guest may ask for in one call. Seeds are what they are for.
pub(crate) const MAX_RANDOM_BYTES: u64 = 64 * 1024;

/// Characters of a text from a guest, or about one, that are kept in an error: a line that a person can read.
pub(crate) const MAX_ERROR_CHARS: usize = 300;

/// Features and settings that a descriptor may name; the contract says so.
pub(crate) const MAX_NAMED: usize = 32;

/// Characters of a summary: one line.
pub(crate) const MAX_SUMMARY_CHARS: usize = 200;

/// Characters of an engine's version: `git describe` fits.
pub(crate) const MAX_VERSION_CHARS: usize = 64;

/// Characters of the default of a setting: an image reference or a path fits several times.
pub(crate) const MAX_DEFAULT_CHARS: usize = 1024;

/// Bounds of one call that depend on the installation.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How long `plan` may take. The default is a second, ten thousand times what the shipped engines need.
    pub plan: Duration,
    /// How long `describe` may take while loading. The default is five seconds, since an interpreter that has never
    /// run is read from disk meanwhile.
    pub describe: Duration,
    /// Linear memory of one call, all memories together, in bytes. The default is 64 MiB, since an interpreter starts
    /// with about 30.
    pub memory_bytes: usize,
    /// What one call may hand to the host, in bytes of the host's memory. The default is 1 MiB, four times the files
    /// that a recipe may hold.
    pub answer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            plan: Duration::from_secs(1),
            describe: Duration::from_secs(5),
            memory_bytes: 64 * 1024 * 1024,
            answer_bytes: 1024 * 1024,
        }
    }
}
