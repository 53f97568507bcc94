//! How a provision reports its steps, to logs, to MCP clients and to progress bars. Reporting never waits and never
//! fails: nobody may be listening.

use std::sync::Arc;

use serde::Serialize;

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

/// Where a service's reports go.
#[derive(Clone)]
pub struct ProgressSink {
    service: String,
    to: Arc<dyn Fn(Progress) + Send + Sync>,
}

impl ProgressSink {
    /// A sink for one service.
    pub fn new(service: impl Into<String>, to: Arc<dyn Fn(Progress) + Send + Sync>) -> Self {
        Self { service: service.into(), to }
    }

    /// A sink that nobody reads.
    pub fn silent() -> Self {
        Self::new("", Arc::new(|_| {}))
    }

    /// Reports a step.
    pub fn step(&self, step: &'static str, detail: impl Into<String>) {
        (self.to)(Progress { service: self.service.clone(), step, detail: detail.into(), bytes: None });
    }

    /// Reports how far a step is.
    pub fn bytes(&self, step: &'static str, detail: impl Into<String>, done: u64, total: u64) {
        (self.to)(Progress { service: self.service.clone(), step, detail: detail.into(), bytes: Some((done, total)) });
    }
}
