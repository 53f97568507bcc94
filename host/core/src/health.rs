//! Whether the host can take requests: it may be starting, the runtime may be away, or it may be draining. The hit path
//! asks this and no Docker; what a call finds out about the runtime is noted here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::error::Error;
use crate::failure;
use crate::runtime::{Runtime, RuntimeError};

/// How often the runtime is asked whether it is there: often enough that a request after an outage is not turned away
/// for long, rare enough to cost nothing.
const PING_EVERY: Duration = Duration::from_secs(2);

/// What the host can do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It has not looked at what exists yet.
    Starting,
    /// It takes requests.
    Up,
    /// The runtime does not answer, for this reason.
    Away(String),
    /// It is going down.
    Draining,
}

/// The current state, shared.
#[derive(Clone)]
pub struct Health {
    runtime: Arc<dyn Runtime>,
    state: Arc<watch::Sender<State>>,
}

impl Health {
    /// A host that is starting.
    pub fn new(runtime: Arc<dyn Runtime>) -> Self {
        Self { runtime, state: Arc::new(watch::Sender::new(State::Starting)) }
    }

    /// The state now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Sees every change.
    pub fn subscribe(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Notes that everything that exists is known.
    pub fn recovered(&self) {
        self.set_unless_draining(State::Up);
    }

    /// Notes that the host is going down; there is no way back.
    pub fn drain(&self) {
        self.state.send_replace(State::Draining);
    }

    /// Notes what a call found out.
    pub fn note(&self, error: &RuntimeError) {
        if let RuntimeError::Unreachable(why) = error
            && self.state() == State::Up
        {
            tracing::warn!(%why, "the container runtime is away");
            self.set_unless_draining(State::Away(why.clone()));
        }
    }

    fn set_unless_draining(&self, state: State) {
        self.state.send_if_modified(|now| {
            let change = *now != State::Draining && *now != state;
            if change {
                *now = state;
            }
            change
        });
    }

    /// Whether a request can be taken.
    ///
    /// # Errors
    /// The one retryable guard.
    pub async fn ready(&self) -> Result<(), Error> {
        match self.state() {
            State::Up => Ok(()),
            State::Draining => Err(failure::not_serving("shutting down")),
            State::Starting => match self.runtime.ping().await {
                Ok(()) => Err(failure::not_serving("starting")),
                Err(e) => Err(failure::runtime(&e)),
            },
            // It may have come back since it was asked last.
            State::Away(_) => match self.runtime.ping().await {
                Ok(()) => {
                    self.back();
                    Ok(())
                }
                Err(e) => Err(failure::runtime(&e)),
            },
        }
    }

    /// Why the runtime does not answer a host that is starting, if it does not.
    pub async fn unreachable(&self) -> Option<String> {
        match self.runtime.ping().await {
            Err(RuntimeError::Unreachable(why)) => Some(why),
            _ => None,
        }
    }

    /// Whether the books are complete: while the host starts they are not.
    ///
    /// # Errors
    /// As [`Health::ready`].
    pub fn knows_what_exists(&self) -> Result<(), Error> {
        if self.state() == State::Starting { Err(failure::not_serving("starting")) } else { Ok(()) }
    }

    fn back(&self) {
        if matches!(self.state(), State::Away(_)) {
            tracing::info!("the container runtime is back");
            self.set_unless_draining(State::Up);
        }
    }

    /// Asks the runtime again and again, until the host goes down.
    pub async fn watch(self) {
        let mut changes = self.state.subscribe();
        loop {
            match (self.runtime.ping().await, self.state()) {
                (_, State::Draining) => return,
                (Ok(()), State::Away(_)) => self.back(),
                (Err(e), State::Up) => self.note(&e),
                _ => {}
            }
            tokio::select! {
                biased;
                _ = changes.wait_for(|s| *s == State::Draining) => return,
                () = tokio::time::sleep(PING_EVERY) => {}
            }
        }
    }
}
