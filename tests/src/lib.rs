//! What tests and the demo share: a host of its own in a process of its own, callers of its verbs, and Docker through
//! its command line, so that nothing under test is used to check itself.

pub mod client;
pub mod docker;
pub mod host;
pub mod mcp;
pub mod registry;

pub use client::{Answer, Client};
pub use host::{Options, TestHost};
