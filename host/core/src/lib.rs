//! The domain of Sandbar: who may have which sandbox, and how one comes to be, is found again and goes. Knows no
//! Docker, HTTP or WebAssembly; it sees the traits [`runtime::Runtime`] and [`engine::Engine`].

mod ahead;
mod body;
pub mod boxes;
mod budget;
pub mod catalog;
pub mod check;
pub mod crash;
mod departed;
pub mod engine;
pub mod ensure;
pub mod error;
pub mod failure;
pub mod folders;
pub mod guard;
pub mod health;
pub mod host;
pub mod image;
pub mod janitor;
mod kept;
pub mod leaving;
pub mod metric;
pub mod name;
pub mod owner;
pub mod people;
pub mod plan;
pub mod pool;
pub mod progress;
pub mod project;
pub mod provision;
pub mod recover;
mod refill;
pub mod registry;
pub mod runtime;
pub mod sandbox;
pub mod secret;
pub mod store;
pub mod template;
mod unheard;
pub mod verb;

#[cfg(test)]
mod testing;
