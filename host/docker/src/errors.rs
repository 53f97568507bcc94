//! From what the daemon or the connection said to what a caller may do about it. Decides by status code, and by the
//! daemon's words only where one status has several meanings.

use std::future::Future;
use std::time::Duration;

use bollard::errors::Error;
use sandbar_core::runtime::RuntimeError;

use crate::limits;

/// Why a single call to the daemon failed, before anyone has decided what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The daemon answered with an error.
    Answered {
        /// HTTP status.
        status: u16,
        /// Its message, as one line.
        message: String,
    },
    /// Everything else, whose meaning does not depend on the call.
    Other(RuntimeError),
}

impl CallError {
    /// Whether the daemon said that there is no such thing.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Answered { status: 404, .. })
    }

    /// The daemon's message, where it said that what was asked conflicts with what there is.
    pub(crate) fn conflict(&self) -> Option<&str> {
        match self {
            Self::Answered { status: 409, message } => Some(message),
            _ => None,
        }
    }
}

impl From<CallError> for RuntimeError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Answered { status, message } => by_status(status, message),
            CallError::Other(error) => error,
        }
    }
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Other(match error {
            Error::DockerResponseServerError { status_code, message } => {
                return Self::Answered { status: status_code, message: one_line(&message) };
            }
            // bollard's own limit is above all of ours, so this is the daemon having sent no headers for very long.
            Error::RequestTimeoutError => RuntimeError::Deadline(limits::CLIENT),
            Error::SocketNotFoundError(path) => RuntimeError::Unreachable(format!("there is no socket {path}")),
            Error::HyperLegacyError { err } => RuntimeError::Unreachable(innermost(&err)),
            Error::HyperResponseError { err } => RuntimeError::Unreachable(innermost(&err)),
            // bollard turns a connection that breaks within a stream into this one.
            Error::IOError { err } => RuntimeError::Unreachable(innermost(&err)),
            Error::DockerStreamError { error } => RuntimeError::Failed(one_line(&error)),
            // serde quotes the value it stumbled over, which may be from an environment.
            Error::JsonDataError { column, .. } => not_understood(column),
            Error::JsonSerdeError { err } => not_understood(err.column()),
            other => RuntimeError::Failed(one_line(&other.to_string())),
        })
    }
}

fn not_understood(column: usize) -> RuntimeError {
    RuntimeError::Failed(format!("the daemon's answer was not understood, from column {column} on"))
}

/// Awaits a call for at most `limit`.
pub(crate) async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, CallError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(CallError::from),
        Err(_) => Err(CallError::Other(RuntimeError::Deadline(limit))),
    }
}

fn by_status(status: u16, message: String) -> RuntimeError {
    match status {
        404 => RuntimeError::NotFound(message),
        409 if is_not_running(&message) => RuntimeError::Gone(message),
        400..=499 if status != 408 && status != 409 && status != 429 => RuntimeError::Refused(message),
        // What stands between us and the daemon answers so (a proxy before the socket, Docker Desktop) while it is away.
        502..=504 => RuntimeError::Unreachable(message),
        _ => RuntimeError::Failed(message),
    }
}

/// Docker's ("is not running", "is paused", "is restarting") and Podman's words for it.
fn is_not_running(message: &str) -> bool {
    ["is not running", "is paused", "is restarting", "state improper"].iter().any(|words| message.contains(words))
}

/// The error at the end of a chain, which is the one that says something: "Connection refused", not "client error".
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(next) = last.source() {
        last = next;
    }
    one_line(&last.to_string())
}

/// A message as one line of bounded length, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if line.len() > limits::MESSAGE {
        line.truncate(line.floor_char_boundary(limits::MESSAGE));
        line.push_str(" ...");
    }
    line
}

/// An error without the values of this environment, which hold the secrets that were part of the request.
pub(crate) fn redacted(error: RuntimeError, env: &[(String, String)]) -> RuntimeError {
    let clean = |text: String| {
        let mut values: Vec<&str> = env.iter().map(|(_, v)| v.as_str()).filter(|v| v.len() >= limits::SECRET).collect();
        // The longest first: a URL that contains a password goes as a whole.
        values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        values.into_iter().fold(text, |text, value| text.replace(value, "***"))
    };
    match error {
        RuntimeError::NotFound(text) => RuntimeError::NotFound(clean(text)),
        RuntimeError::Gone(text) => RuntimeError::Gone(clean(text)),
        RuntimeError::Refused(text) => RuntimeError::Refused(clean(text)),
        RuntimeError::Unreachable(text) => RuntimeError::Unreachable(clean(text)),
        RuntimeError::Failed(text) => RuntimeError::Failed(clean(text)),
        same @ (RuntimeError::Conflict { .. } | RuntimeError::Deadline(_)) => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status_code: u16, message: &str) -> RuntimeError {
        CallError::from(Error::DockerResponseServerError { status_code, message: message.to_owned() }).into()
    }

    #[test]
    fn a_status_says_what_the_caller_may_do() {
        assert!(matches!(answered(404, "No such container: x"), RuntimeError::NotFound(_)));
        assert!(matches!(answered(400, "invalid"), RuntimeError::Refused(_)));
        assert!(matches!(answered(403, "no"), RuntimeError::Refused(_)));
        assert!(matches!(answered(429, "slow down"), RuntimeError::Failed(_)));
        assert!(matches!(answered(500, "oops"), RuntimeError::Failed(_)));
        assert!(matches!(answered(503, "backend is down"), RuntimeError::Unreachable(_)));
    }

    #[test]
    fn a_conflict_over_a_state_is_gone_and_any_other_one_is_not() {
        assert!(matches!(answered(409, "Container 1f is not running"), RuntimeError::Gone(_)));
        assert!(matches!(answered(409, "Container 1f is paused, unpause first"), RuntimeError::Gone(_)));
        assert!(matches!(answered(409, "removal of container 1f is already in progress"), RuntimeError::Failed(_)));
    }

    #[test]
    fn a_broken_connection_is_unreachable() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(CallError::from(Error::from(reset)), CallError::Other(RuntimeError::Unreachable(_))));
        let missing = Error::SocketNotFoundError("/nowhere.sock".to_owned());
        assert!(matches!(CallError::from(missing), CallError::Other(RuntimeError::Unreachable(_))));
    }

    #[test]
    fn an_answer_that_does_not_parse_is_not_quoted() {
        let Err(err) = serde_json::from_str::<u8>(r#""hunter2-hunter2-hunter2""#) else { panic!("that is no number") };
        let CallError::Other(RuntimeError::Failed(text)) = CallError::from(Error::from(err)) else { panic!("kind") };
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn messages_are_one_bounded_line() {
        assert_eq!(one_line("  a\r\n\tb\u{1b}[0m  c "), "a b [0m c");
        assert!(one_line(&"é".repeat(5000)).len() < limits::MESSAGE + 8);
    }

    #[test]
    fn secrets_are_taken_out_of_messages() {
        let env = [
            ("USER".to_owned(), "sandbox".to_owned()),
            ("PASSWORD".to_owned(), "0123456789abcdef0123456789abcdef".to_owned()),
            ("URL".to_owned(), "pg://sandbox:0123456789abcdef0123456789abcdef@h".to_owned()),
        ];
        let text =
            "bad pg://sandbox:0123456789abcdef0123456789abcdef@h and 0123456789abcdef0123456789abcdef of sandbox";
        let RuntimeError::Refused(text) = redacted(RuntimeError::Refused(text.to_owned()), &env) else {
            panic!("kind")
        };
        assert_eq!(text, "bad *** and *** of sandbox");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_ends() {
        let error = within(limits::LIST, std::future::pending::<Result<(), Error>>()).await;
        assert_eq!(error, Err(CallError::Other(RuntimeError::Deadline(limits::LIST))));
    }
}
