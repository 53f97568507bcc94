//! Every end-to-end test, in one binary: the real host, its real HTTP interface, real engines and real containers.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod account;
mod admit;
mod authors;
mod boxes;
mod clients;
mod components;
mod connect;
mod connections;
mod crash;
mod documents;
mod ensure;
mod features;
mod guards;
mod harness;
mod hostile;
mod install;
mod interface;
mod janitor;
mod kept;
mod local;
mod mcp;
mod metrics;
mod neighbours;
mod operator;
mod pool;
mod recipes;
mod refusals;
mod reload;
mod restart;
mod service;
mod shell;
mod sweep;
mod third_party;
mod transfers;
mod trouble;
mod user;
