//! Why a component is not loaded, and why there is no host at all. Every message is one line that names what was found,
//! what was expected, and where it helps, what to do.

use std::io;
use std::path::PathBuf;

use crate::limits::MAX_COMPONENT_BYTES;

/// Why no [`Host`](crate::Host) could be made.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The directory for compiled code cannot be used.
    #[error("compiled engines cannot be kept in {path}: {reason}", path = .path.display())]
    Cache {
        /// The directory.
        path: PathBuf,
        /// Why not, in one line.
        reason: String,
    },
    /// WebAssembly cannot be run on this machine.
    #[error("WebAssembly cannot be run here: {0}")]
    Engine(String),
}

/// A component that was not loaded.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}", path = .path.display())]
pub struct LoadError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub reason: LoadReason,
}

/// Why a component is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadReason {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The path leads to a directory, a device or the like.
    #[error("is not a regular file")]
    NotAFile,
    /// The file is larger than any component should be.
    #[error("is {bytes} bytes large; a component may have at most {MAX_COMPONENT_BYTES}")]
    TooLarge {
        /// Its size in bytes.
        bytes: u64,
    },
    /// The pin is not a hash.
    #[error("the pin `{0}` is not a SHA-256 in 64 hexadecimal digits")]
    BadPin(String),
    /// The file is not the one that was pinned.
    #[error("its SHA-256 is {actual}, but {expected} is pinned: this is not the file that was admitted")]
    PinMismatch {
        /// The pin, in lower case.
        expected: String,
        /// The hash of the bytes that were read.
        actual: String,
    },
    /// There is nothing in it.
    #[error("is empty")]
    Empty,
    /// It holds text.
    #[error("is text, not a WebAssembly component")]
    Text,
    /// It holds something else.
    #[error("is not a WebAssembly component: it does not begin like one")]
    NotWasm,
    /// It holds a core module.
    #[error("is a WebAssembly core module, not a component; `sandbar engine build` makes components")]
    CoreModule,
    /// It ends too early.
    #[error("is truncated: it ends within a section, after {bytes} bytes")]
    Truncated {
        /// How many bytes there are.
        bytes: usize,
    },
    /// It begins like a component and is none.
    #[error("is not a valid WebAssembly component: {0}")]
    Malformed(String),
    /// It is a component, but no engine.
    #[error("does not export `sandbar:engine/engine`, so it is not an engine; this host speaks version {spoken} of it")]
    NoContract {
        /// The versions that this host speaks.
        spoken: String,
    },
    /// It was built for another version of the contract.
    #[error("was built for version {exported} of `sandbar:engine/engine`; this host speaks version {spoken}")]
    WrongContract {
        /// The versions that the component exports.
        exported: String,
        /// The versions that this host speaks.
        spoken: String,
    },
    /// It wants something from the host that engines do not get.
    #[error("imports what engines do not get: {}", .0.join(", "))]
    Imports(Vec<String>),
    /// It cannot be compiled.
    #[error("cannot be compiled: {0}")]
    Compile(String),
    /// It is named like the contract but shaped otherwise.
    #[error("does not fit version {version} of `sandbar:engine/engine`, for which it says it was built: {why}")]
    Shape {
        /// The version of the contract that it exports.
        version: String,
        /// Where it differs, in one line.
        why: String,
    },
    /// It did not say what it is.
    #[error("did not say what it is: {0}")]
    Silent(String),
    /// What it says about itself breaks the contract.
    #[error("describes itself in a way that the contract does not allow: {0}")]
    Descriptor(String),
}
