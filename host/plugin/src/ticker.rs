//! What interrupts guests: a thread that advances the epoch of wasmtime's engine every [`TICK`](crate::limits::TICK),
//! upon which every running guest stops and its store looks at the time. It lives as long as anything that may call a
//! guest, since without it a loop never ends.

use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};

use wasmtime::Engine;

use crate::limits::TICK;

/// A running thread. It stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    /// Closing it wakes the thread up and ends it. `Some` until the drop.
    stop: Option<SyncSender<()>>,
    /// `Some` until the drop.
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts one for an engine. Fails where no thread can be had.
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let thread = thread::Builder::new().name("engine-clock".to_owned()).spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Nothing in the thread can panic, and there would be nothing to do about it.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_ends_with_the_ticker() {
        let engine = Engine::default();
        let weak = engine.weak();
        let ticker = Ticker::start(engine).expect("a thread can be had");
        assert!(weak.upgrade().is_some(), "the thread holds the engine");
        drop(ticker);
        assert!(weak.upgrade().is_none(), "the thread has let go of it");
    }
}
