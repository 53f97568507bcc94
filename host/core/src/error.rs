//! The one error that callers see. Codes are a contract and a closed list; a message says what happened, `remediate`
//! what to do about it, and `retryable` whether the same call may succeed later. Why something happened inside is for
//! the log, once, and stands in no envelope.

use schemars::JsonSchema;
use serde::Serialize;

/// What kind of error it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No token, or one that nobody has.
    Unauthorized,
    /// The caller is known, and this is not for it.
    Forbidden,
    /// No such verb or thing.
    NotFound,
    /// The request cannot be read.
    BadRequest,
    /// The request is larger than is read.
    TooLarge,
    /// The request is fine, and the state of things forbids it.
    InvalidState,
    /// There is no room now.
    Capacity,
    /// It took longer than it may.
    Deadline,
    /// A fault of the host.
    Internal,
}

/// More about a failed provision, for programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Details {
    /// A word for the reason where a program might branch on it, such as `name_conflict`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The service that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The step at which it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The exit code of its container, where that ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// The last lines it printed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// An error for a caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub remediate: String,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// What would have been allowed, where that is a set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// More for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<Details>>,
    /// After how many seconds to try again. Not a part of the envelope.
    #[serde(skip)]
    pub retry_after: Option<u32>,
}

impl Error {
    /// An error that trying again will not change.
    pub fn new(code: Code, message: impl Into<String>, remediate: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            remediate: remediate.into(),
            retryable: false,
            allowed: None,
            details: None,
            retry_after: None,
        }
    }

    /// An error that may be gone after some seconds.
    pub fn retry(code: Code, after_secs: u32, message: impl Into<String>, remediate: impl Into<String>) -> Self {
        Self { retryable: true, retry_after: Some(after_secs), ..Self::new(code, message, remediate) }
    }

    /// A request that cannot be read.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Code::BadRequest, message, "correct the request; the message names the field")
    }

    /// A fault of the host, told to the caller without its cause.
    pub fn internal() -> Self {
        Self::new(
            Code::Internal,
            "the host made a mistake",
            "tell the operator the request id; the host's log has the cause",
        )
    }

    /// Names what would have been allowed.
    #[must_use]
    pub fn allowing<S: ToString>(mut self, allowed: impl IntoIterator<Item = S>) -> Self {
        self.allowed = Some(allowed.into_iter().map(|s| s.to_string()).collect());
        self
    }

    /// Adds what programs may want to know.
    #[must_use]
    pub fn detailed(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }
}

/// How much of a name that somebody sent is said back.
const SHOWN_NAME: usize = 64;

/// Foreign text as it is said back: at most `most` characters, the middle left out where it is longer, and nothing in it
/// that a terminal would obey or nobody could see.
pub fn bounded(text: &str, most: usize) -> String {
    let long = text.chars().nth(most).is_some();
    // Of a long text the beginning tells most, and the end what was expected instead.
    let head: String = text.chars().take(if long { most - most / 3 } else { most }).collect();
    let mut tail: Vec<char> = text.chars().rev().take(if long { most / 3 } else { 0 }).collect();
    tail.reverse();
    let middle = if long { "\u{2026}" } else { "" };
    let whole = head.chars().chain(middle.chars()).chain(tail);
    let mut shown = String::new();
    for c in whole {
        // Quotation marks harm nobody, and escaped ones are hard to read.
        if "'\"\\".contains(c) { shown.push(c) } else { shown.extend(c.escape_debug()) }
    }
    shown
}

/// A name that somebody sent, as it is said back.
pub fn shown(name: &str) -> String {
    bounded(name, SHOWN_NAME)
}

/// A list of names for a sentence.
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    match names {
        [] => "none".to_owned(),
        names => names.iter().map(|n| format!("`{}`", n.as_ref())).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_back_is_bounded_and_plain() {
        assert_eq!(shown("redis"), "redis");
        assert_eq!(shown("a\u{1b}[31m\"b\"\u{202e}"), "a\\u{1b}[31m\"b\"\\u{202e}");
        let exact = "é".repeat(SHOWN_NAME);
        assert_eq!(shown(&exact), exact);
        let long = shown(&format!("begin{}end", "é".repeat(60_000)));
        assert_eq!(long.chars().count(), SHOWN_NAME + 1);
        assert!(long.starts_with("begin") && long.ends_with("end") && long.contains('…'), "{long}");
    }
}
