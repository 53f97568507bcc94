//! How a provision reports its steps, to logs, to MCP clients and to progress bars. Reporting never waits and never
//! fails: nobody may be listening.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::time::Instant;

use crate::metric;

/// One report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub struct Progress {
    /// The service that is being made.
    pub service: String,
    /// What is being done: `pull`, `create`, `start`, `ready`, `setup`, `verify`, `commit` or `remove`.
    pub step: &'static str,
    /// More about it for a person, such as a layer or the name of an activation step. May be empty.
    pub detail: String,
    /// Bytes done and bytes in all, where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<(u64, u64)>,
}

/// Where a service's reports go. It also measures how long each step takes.
#[derive(Clone)]
pub struct ProgressSink {
    service: String,
    to: Arc<dyn Fn(Progress) + Send + Sync>,
    at: Arc<Mutex<Option<(&'static str, Instant)>>>,
}

impl ProgressSink {
    /// A sink for one service.
    pub fn new(service: impl Into<String>, to: Arc<dyn Fn(Progress) + Send + Sync>) -> Self {
        Self { service: service.into(), to, at: Arc::default() }
    }

    /// A sink that nobody reads.
    pub fn silent() -> Self {
        Self::new("", Arc::new(|_| {}))
    }

    /// Reports a step, with which the one before it is over.
    pub fn step(&self, step: &'static str, detail: impl Into<String>) {
        self.measure(Some(step));
        (self.to)(Progress { service: self.service.clone(), step, detail: detail.into(), bytes: None });
    }

    /// Everything is done.
    pub fn done(&self) {
        self.measure(None);
    }

    fn measure(&self, next: Option<&'static str>) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        // Several of one kind are one step.
        if at.is_some_and(|(step, _)| Some(step) == next) {
            return;
        }
        if let Some((step, since)) = std::mem::replace(&mut *at, next.map(|step| (step, Instant::now())))
            && !self.service.is_empty()
        {
            metric::step(&self.service, step, since.elapsed());
        }
    }

    /// Reports how far a step is.
    pub fn bytes(&self, step: &'static str, detail: impl Into<String>, done: u64, total: u64) {
        (self.to)(Progress { service: self.service.clone(), step, detail: detail.into(), bytes: Some((done, total)) });
    }
}
