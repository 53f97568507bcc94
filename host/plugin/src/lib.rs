//! WebAssembly: turns a component file into the core's [`Engine`](sandbar_core::engine::Engine).
//!
//! It reads a file once, compares its hash with the pin, looks at what it exports and imports, compiles it, asks it who
//! it is, and from then on answers `plan` by calling it: each call in a store of its own, bounded in time, memory,
//! stack, tables and size of the answer, so that a hostile or broken engine costs one clear error for one call.
//!
//! What it does not do: judge a recipe (that is `sandbar_core::check`), know grants, decide which files are admitted,
//! or remember recipes. No type of wasmtime leaves this crate.

mod artifact;
mod bindings;
mod cache;
mod contract;
mod convert;
mod descriptor;
mod error;
mod explain;
mod host;
mod last_words;
mod limits;
mod loaded;
mod store;
mod ticker;
mod wasi;

pub use artifact::{Artifact, Sizes};
pub use contract::{CONTRACT_INTERFACE, CONTRACT_VERSION};
pub use error::{HostError, LoadError, LoadReason};
pub use host::Host;
pub use limits::{Limits, MAX_COMPONENT_BYTES};
pub use loaded::LoadedEngine;
