//! Docker in trouble: registries that fail, and daemons that go away. Long, and a command of its own: `make e2e-docker`.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod daemon;
mod images;
