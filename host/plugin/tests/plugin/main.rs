//! What happens when this crate meets components: good ones, wrong ones and hostile ones. All of them are made here, from
//! WebAssembly text and the contract's own WIT file, so the tests need nothing that was built elsewhere.

#![allow(clippy::unwrap_used, reason = "a test that fails may say so by panicking")]

mod answers;
mod artifact;
mod fixture;
mod hostile;
mod later;
mod loading;
mod wasi;
