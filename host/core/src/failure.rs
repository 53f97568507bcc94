//! From what went wrong inside to what the caller is told.

use std::time::Duration;

use crate::error::{Code, Details, Error};
use crate::name::ServiceName;
use crate::runtime::{Exit, PutStep, RuntimeError};

/// After how many seconds a caller should try again when a provision failed.
const RETRY_PROVISION_SECS: u32 = 5;
/// After how many seconds a caller should try again when the runtime is away or the host is starting.
const RETRY_AWAY_SECS: u32 = 2;

/// How many characters of the last line stand in the message; the details have all of it.
const LAST_LINE: usize = 200;

/// A provision that failed, before it is put in words.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The service.
    pub service: ServiceName,
    /// The step.
    pub step: String,
    /// Why.
    pub why: String,
    /// How its container ended, if it did.
    pub exit: Option<Exit>,
    /// The last lines that are fit to be shown.
    pub log: Vec<String>,
    /// Whether trying again may help.
    pub retryable: bool,
}

impl Failure {
    /// A failure at a step.
    pub fn new(service: &ServiceName, step: impl Into<String>, why: impl Into<String>) -> Self {
        let (step, why) = (step.into(), why.into());
        Self { service: service.clone(), step, why, exit: None, log: Vec::new(), retryable: true }
    }

    /// In words.
    pub fn into_error(self) -> Error {
        let Self { service, step, why, exit, log, retryable } = self;
        let mut message = format!("`{service}` failed at {step}: {why}");
        if let Some(last) = log.last() {
            message.push_str("; its last line was: ");
            message.extend(last.chars().take(LAST_LINE));
        }
        let remediate = match step.as_str() {
            "pull" => {
                "nothing was left behind; call again when its registry can be reached, or have the operator name another \
                 image for it under `[images]`"
            }
            _ => "nothing was left behind; call again, and tell the operator when it keeps failing",
        };
        let details = Details {
            reason: None,
            service: Some(service.to_string()),
            step: Some(step),
            exit_code: exit.map(|e| e.code),
            log,
        };
        let error = if retryable {
            Error::retry(Code::InvalidState, RETRY_PROVISION_SECS, message, remediate)
        } else {
            Error::new(Code::InvalidState, message, "tell the operator; calling again will fail in the same way")
        };
        error.detailed(details)
    }
}

/// How a container that should serve ended.
pub fn ended(exit: Exit) -> String {
    match exit {
        Exit { out_of_memory: true, code } => format!("its container ran out of memory and exited with code {code}"),
        Exit { code, .. } => format!("its container exited with code {code}"),
    }
}

/// The name of a step of [`crate::runtime::Runtime::put`].
pub fn put_step(step: PutStep) -> &'static str {
    match step {
        PutStep::Pull => "pull",
        PutStep::Create => "create",
        PutStep::Start => "start",
    }
}

/// The container runtime is not reachable.
pub fn away(why: &str) -> Error {
    let message = format!("the container runtime is not reachable: {why}");
    Error::retry(Code::InvalidState, RETRY_AWAY_SECS, message, "call again in a moment; nothing was lost")
        .detailed(Details { reason: Some("runtime_away"), ..Details::default() })
}

/// The host does not take requests yet, or no longer.
pub fn not_serving(what: &str) -> Error {
    let message = format!("the host is {what}");
    Error::retry(Code::InvalidState, RETRY_AWAY_SECS, message, "call again in a moment")
        .detailed(Details { reason: Some("not_serving"), ..Details::default() })
}

/// A name is taken by somebody else's container.
pub fn name_conflict(service: &ServiceName, name: &str) -> Error {
    let message = format!(
        "name_conflict: `{service}` needs the container name `{name}`, and a container that is not of this installation has it"
    );
    let remediate = "that container is left alone; the operator removes it, or gives this host another namespace";
    let details = Details {
        reason: Some("name_conflict"),
        service: Some(service.to_string()),
        step: Some("create".to_owned()),
        ..Details::default()
    };
    Error::new(Code::InvalidState, message, remediate).detailed(details)
}

/// A release overtook the provision that somebody waited for.
pub fn released() -> Error {
    Error::new(
        Code::InvalidState,
        "the sandbox was released while it was being made",
        "call `request_sandbox` again if it is still wanted",
    )
    .detailed(Details { reason: Some("released"), ..Details::default() })
}

/// The box was let go while it was used, by its agent or for them.
pub fn let_go() -> Error {
    let error = Error::new(
        Code::InvalidState,
        "the box was let go while it was used",
        "call again: the next call makes or wakes it",
    );
    error.detailed(Details { reason: Some("released"), ..Details::default() })
}

/// A call took longer than it may. The work goes on.
pub fn deadline(after: Duration) -> Error {
    let message = format!("the sandbox was not ready within {} s", after.as_secs());
    Error::retry(Code::Deadline, RETRY_PROVISION_SECS, message, "call again: the work goes on and the call joins it")
}

/// A runtime error outside of a provision.
pub fn runtime(error: &RuntimeError) -> Error {
    match error {
        RuntimeError::Unreachable(why) => away(why),
        RuntimeError::Deadline(after) => away(&format!("no answer within {} s", after.as_secs())),
        other => {
            let message = format!("the container runtime failed: {other}");
            Error::retry(Code::InvalidState, RETRY_PROVISION_SECS, message, "call again")
        }
    }
}
