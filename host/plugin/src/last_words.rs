//! The end of what a guest writes to standard error, kept for the error of a call that fails: an interpreter explains
//! itself there and then crashes, and without it the author of an engine would learn nothing. It goes nowhere else.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::explain::line_end;

/// Bytes of the end that are kept: more than an error shows, so that what is cut off is cut at a character.
const KEPT: usize = 2 * 1024;

/// Bytes a guest may write at once, as for the other streams of WASI.
const AT_ONCE: usize = 64 * 1024;

/// A stream of which only the end is remembered. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastWords(Arc<Mutex<Vec<u8>>>);

impl LastWords {
    /// The end of what was written, as one short line, if anything was.
    pub(crate) fn line(&self) -> Option<String> {
        let end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(line_end(&String::from_utf8_lossy(&end))).filter(|line| !line.is_empty())
    }

    fn push(&self, bytes: &[u8]) {
        let mut end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        end.extend_from_slice(bytes);
        let surplus = end.len().saturating_sub(KEPT);
        end.drain(..surplus);
    }
}

impl IsTerminal for LastWords {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LastWords {
    /// Only used by WASI 0.3, which is not linked.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Pollable for LastWords {
    async fn ready(&mut self) {}
}

impl OutputStream for LastWords {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(AT_ONCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let words = LastWords::default();
        assert_eq!(words.line(), None);
        words.push(b" \n");
        assert_eq!(words.line(), None);
        words.push("ä".repeat(AT_ONCE).as_bytes());
        words.push(b"\nTraceback:\n  ValueError: no\n");
        let line = words.line().expect("something was written");
        assert!(line.ends_with("ä Traceback: ValueError: no"), "{line}");
        assert!(line.starts_with("…ä"), "{line}");
        assert!(words.0.lock().expect("no panic").len() <= KEPT);
    }
}
