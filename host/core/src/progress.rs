//! How a provision reports its steps, to logs, to MCP clients and to progress bars. Reporting never waits and never
//! fails: nobody may be listening.

use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
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

/// How long one step took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Took {
    /// `plan` (the engine's answer, and whether the image is there), `pull`, `create`, `start`, `ready`, `setup` or `verify`.
    pub step: &'static str,
    /// The image, or the name of a step of `setup` or `verify`. May be empty.
    pub what: String,
    /// Milliseconds.
    pub ms: u64,
}

/// Where a service's reports go. It also measures how long each step takes, from when it is made.
#[derive(Clone)]
pub struct ProgressSink {
    service: String,
    to: Arc<dyn Fn(Progress) + Send + Sync>,
    clock: Arc<Mutex<Clock>>,
}

/// What is measured.
struct Clock {
    step: &'static str,
    what: String,
    /// When `what` began.
    since: Instant,
    /// When the first of this step began.
    step_since: Instant,
    took: Vec<Took>,
}

impl ProgressSink {
    /// A sink for one service.
    pub fn new(service: impl Into<String>, to: Arc<dyn Fn(Progress) + Send + Sync>) -> Self {
        let now = Instant::now();
        let clock = Clock { step: "plan", what: String::new(), since: now, step_since: now, took: Vec::new() };
        Self { service: service.into(), to, clock: Arc::new(Mutex::new(clock)) }
    }

    /// A sink that nobody reads.
    pub fn silent() -> Self {
        Self::new("", Arc::new(|_| {}))
    }

    /// Reports a step, with which the one before it is over.
    pub fn step(&self, step: &'static str, detail: impl Into<String>) {
        let detail = detail.into();
        self.measure(step, &detail);
        (self.to)(Progress { service: self.service.clone(), step, detail, bytes: None });
    }

    /// Everything is done. Answers how long each step took, in order.
    pub fn done(&self) -> Vec<Took> {
        self.measure("", "");
        std::mem::take(&mut self.clock.lock().unwrap_or_else(PoisonError::into_inner).took)
    }

    fn measure(&self, step: &'static str, what: &str) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        // More about the same, such as the layer that an image's pull is at.
        let more = |rest: &str| rest.is_empty() || rest.starts_with(": ");
        if clock.step == step && what.strip_prefix(clock.what.as_str()).is_some_and(more) {
            return;
        }
        let now = Instant::now();
        let ms = u64::try_from((now - clock.since).as_millis()).unwrap_or(u64::MAX);
        let before = Took { step: clock.step, what: std::mem::replace(&mut clock.what, what.to_owned()), ms };
        clock.took.push(before);
        clock.since = now;
        // To who watches, several of one kind are one step.
        if clock.step != step {
            if !self.service.is_empty() {
                metric::step(&self.service, clock.step, now - clock.step_since);
            }
            (clock.step, clock.step_since) = (step, now);
        }
    }

    /// Reports how far a step is.
    pub fn bytes(&self, step: &'static str, detail: impl Into<String>, done: u64, total: u64) {
        (self.to)(Progress { service: self.service.clone(), step, detail: detail.into(), bytes: Some((done, total)) });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_step_has_its_time_and_details_of_a_pull_are_one_step() {
        let sink = ProgressSink::new("db", Arc::new(|_| {}));
        let pass = async |ms| tokio::time::advance(Duration::from_millis(ms)).await;
        pass(3).await;
        for (step, detail, ms) in [
            ("pull", "image", 100),
            ("pull", "image: Verifying", 20),
            ("create", "image", 5),
            ("ready", "", 40),
            ("setup", "vector", 7),
            ("setup", "vector index", 8),
            ("verify", "vector", 1),
        ] {
            sink.step(step, detail);
            sink.bytes(step, "more", 1, 2);
            pass(ms).await;
        }
        let took: Vec<_> =
            sink.done().into_iter().map(|Took { step, what, ms }| format!("{step} {what} {ms}")).collect();
        let all =
            ["plan  3", "pull image 120", "create image 5", "ready  40", "setup vector 7", "setup vector index 8"];
        assert_eq!(took[..6], all);
        assert_eq!(took[6..], ["verify vector 1"]);
    }
}
