//! Pulls: one for all who wait for an image, in a task of its own that outlives them, with progress for each. How a
//! stream of Docker's reports becomes progress and a result is apart from where the stream comes from, so that tests feed
//! it by hand.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptions;
use futures_util::{Stream, StreamExt as _};
use sandbar_core::metric;
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{Result, RuntimeError};
use tokio::sync::watch;

use crate::credentials::Credentials;
use crate::errors::{CallError, one_line};
use crate::limits::{self, PullLimits};
use crate::reference::Reference;

/// The step's name in reports.
const STEP: &str = "pull";

/// How far a pull is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What Docker says it does, such as `Downloading`.
    pub(crate) doing: String,
    /// Bytes done and bytes in all, over the layers whose size is known.
    pub(crate) bytes: Option<(u64, u64)>,
}

impl Report {
    /// What was last heard, as the end of a sentence. A pull that ran out of time has no other reason to tell: while
    /// Docker tries a layer again it keeps the registry's fault to itself.
    fn last_word(&self) -> String {
        let bytes = self.bytes.map(|(done, total)| format!(", {done} of {total} bytes")).unwrap_or_default();
        match self.doing.as_str() {
            "" => "; Docker had not said anything yet".to_owned(),
            doing => format!("; Docker's last word: {}{bytes}", one_line(doing)),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    report: Report,
    result: Option<Result<()>>,
}

/// Where a pull's task tells how it goes.
#[derive(Debug, Clone)]
pub(crate) struct Reporter(watch::Sender<State>);

impl Reporter {
    pub(crate) fn report(&self, report: Report) {
        self.0.send_modify(|state| state.report = report);
    }
}

/// The pulls under way, by image.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pulls {
    under_way: Arc<Mutex<HashMap<String, watch::Receiver<State>>>>,
    pub(crate) limits: PullLimits,
}

impl Pulls {
    pub(crate) fn new(limits: PullLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Waits for the pull of this image, and starts it with `pull` where none is under way. Dropping the future leaves the
    /// pull alone. Needs a Tokio runtime.
    pub(crate) async fn join<F, P>(&self, image: &str, progress: &ProgressSink, pull: P) -> Result<()>
    where
        P: FnOnce(Reporter) -> F,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut state = self.receiver(image, pull);
        let wait = async {
            loop {
                let (report, result) = {
                    let state = state.borrow_and_update();
                    (state.report.clone(), state.result.clone())
                };
                if let Some(result) = result {
                    return result;
                }
                tell(progress, image, &report);
                if state.changed().await.is_err() {
                    return Err(RuntimeError::Failed(format!("the pull of {image} broke off")));
                }
            }
        };
        let limit = self.limits.total + limits::PULL_MARGIN;
        tokio::time::timeout(limit, wait).await.unwrap_or(Err(RuntimeError::Deadline(limit)))
    }

    fn receiver<F, P>(&self, image: &str, pull: P) -> watch::Receiver<State>
    where
        P: FnOnce(Reporter) -> F,
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let mut under_way = self.under_way();
        if let Some(state) = under_way.get(image) {
            return state.clone();
        }
        let (sender, receiver) = watch::channel(State::default());
        under_way.insert(image.to_owned(), receiver.clone());
        drop(under_way);
        let pull = pull(Reporter(sender.clone()));
        // Takes the entry away however the task ends, but only after the result is there to be read.
        let entry = Entry { pulls: self.clone(), image: image.to_owned() };
        tokio::spawn(async move {
            let total = entry.pulls.limits.total;
            let result = tokio::time::timeout(total, pull).await.unwrap_or_else(|_| {
                let last = sender.borrow().report.last_word();
                Err(RuntimeError::Failed(format!("the pull was not done within {total:?}{last}")))
            });
            sender.send_modify(|state| state.result = Some(result));
            drop(entry);
        });
        receiver
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<State>>> {
        // Every change to the map is a single call, so it is whole whatever panicked.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Entry {
    pulls: Pulls,
    image: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.pulls.under_way().remove(&self.image);
    }
}

fn tell(progress: &ProgressSink, image: &str, report: &Report) {
    let detail = match report.doing.as_str() {
        "" => image.to_owned(),
        doing => format!("{image}: {doing}"),
    };
    match report.bytes {
        Some((done, total)) => progress.bytes(STEP, detail, done, total),
        None => progress.step(STEP, detail),
    }
}

/// Pulls an image with the operator's credentials.
pub(crate) async fn pull(
    docker: Docker,
    credentials: Credentials,
    reference: Reference,
    silence: Duration,
    reporter: Reporter,
) -> Result<()> {
    let (login, trouble) = match credentials.find(&reference.registry).await {
        Ok(login) => (login, None),
        // Most images are public, so a broken configuration is no reason not to try; it is the first thing to say if the
        // registry then refuses.
        Err(trouble) => {
            tracing::warn!(registry = reference.registry, trouble, "pulling without credentials");
            (None, Some(trouble))
        }
    };
    tracing::info!(image = reference.name, version = reference.version, "pulling");
    let options = CreateImageOptions {
        from_image: Some(reference.name.clone()),
        tag: Some(reference.version.clone()),
        ..CreateImageOptions::default()
    };
    let stream = docker.create_image(Some(options), None, login);
    let result = follow(stream, silence, |report| reporter.report(report)).await;
    metrics::counter!(metric::PULLS, "result" => if result.is_ok() { "ok" } else { "failed" }).increment(1);
    match (result, trouble) {
        (Err(RuntimeError::Refused(text)), Some(trouble)) => {
            Err(RuntimeError::Refused(format!("{text} (pulled without credentials: {trouble})")))
        }
        (result, _) => result,
    }
}

/// Follows a pull's reports to their end.
pub(crate) async fn follow<S>(stream: S, silence: Duration, mut report: impl FnMut(Report)) -> Result<()>
where
    S: Stream<Item = Result<CreateImageInfo, bollard::errors::Error>>,
{
    let mut stream = std::pin::pin!(stream);
    let mut layers = Layers::default();
    loop {
        match tokio::time::timeout(silence, stream.next()).await {
            Ok(Some(Ok(info))) => {
                if let Some(text) = info.error_detail.as_ref().and_then(|detail| detail.message.as_deref()) {
                    return Err(refusal(text));
                }
                if let Some(next) = layers.take(&info) {
                    report(next);
                }
            }
            Ok(Some(Err(bollard::errors::Error::DockerStreamError { error }))) => return Err(refusal(&error)),
            Ok(Some(Err(error))) => return Err(failure(CallError::from(error))),
            Ok(None) => return Ok(()),
            Err(_) => {
                let last = layers.last.unwrap_or_default().last_word();
                return Err(RuntimeError::Failed(format!("the pull stalled: nothing came for {silence:?}{last}")));
            }
        }
    }
}

/// An error that came before any report. Docker passes the registry's troubles on under statuses that would otherwise
/// mean that Docker itself is away.
fn failure(error: CallError) -> RuntimeError {
    match error {
        // Also what it says where a registry denies access.
        CallError::Answered { status: 404, message } => match refusal(&message) {
            RuntimeError::Failed(message) => RuntimeError::NotFound(message),
            other => other,
        },
        CallError::Answered { message, .. } => refusal(&message),
        CallError::Other(error) => error,
    }
}

/// What an error within the reports means; there is only its text to go by.
fn refusal(text: &str) -> RuntimeError {
    let says = |words: &[&str]| {
        let text = text.to_ascii_lowercase();
        words.iter().any(|word| text.contains(word))
    };
    let line = one_line(text);
    if says(&["unauthorized", "denied", "authentication required", "no basic auth", "forbidden"]) {
        RuntimeError::Refused(line)
    } else if says(&["manifest unknown", "not found", "no such image", "does not exist"]) {
        RuntimeError::NotFound(line)
    } else {
        RuntimeError::Failed(line)
    }
}

/// What is known of an image's layers.
#[derive(Debug, Default)]
struct Layers {
    /// Bytes done and in all, by layer.
    known: BTreeMap<String, (u64, u64)>,
    last: Option<Report>,
}

impl Layers {
    /// Takes in one of Docker's reports; the new state of things where it changed.
    fn take(&mut self, info: &CreateImageInfo) -> Option<Report> {
        let doing = info.status.clone().unwrap_or_default();
        let detail = info.progress_detail.as_ref();
        let number = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
        if let Some(layer) = info.id.as_ref() {
            match doing.as_str() {
                "Downloading" => {
                    let total = detail.and_then(|detail| number(detail.total)).filter(|total| *total > 0);
                    if let (Some(done), Some(total)) = (detail.and_then(|detail| number(detail.current)), total) {
                        self.known.insert(layer.clone(), (done.min(total), total));
                    }
                }
                // Everything that comes after a download says that it is complete. Unpacking counts its own bytes, which
                // are not added: the sum would go back to nothing.
                "Verifying Checksum" | "Download complete" | "Extracting" | "Pull complete" => {
                    if let Some((done, total)) = self.known.get_mut(layer) {
                        *done = *total;
                    }
                }
                _ => {}
            }
        }
        let sum = |part: fn(&(u64, u64)) -> u64| self.known.values().map(part).fold(0, u64::saturating_add);
        let bytes = (!self.known.is_empty()).then(|| (sum(|layer| layer.0), sum(|layer| layer.1)));
        let report = Report { doing, bytes };
        if self.last.as_ref() == Some(&report) {
            return None;
        }
        self.last = Some(report.clone());
        Some(report)
    }
}

#[cfg(test)]
#[path = "pull_tests.rs"]
mod tests;
