//! What was found out, a line each.

use std::fmt::Display;

use sandbar_core::error::bounded;
use serde::Serialize;

/// How much of a line is kept: parts of it are the engine's or a container's.
const MOST: usize = 600;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As the contract has it.
    Ok,
    /// Not as the contract has it.
    Failed,
    /// There was nothing to check, or it was not asked for.
    Skipped,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it ended.
    pub verdict: Verdict,
    /// In one line, what was found, what is wrong, or why nothing was checked.
    pub detail: String,
}

/// Everything that was looked at, in order.
pub struct Report<'a> {
    checks: Vec<Check>,
    tell: &'a mut dyn FnMut(&Check),
}

impl<'a> Report<'a> {
    /// An empty one, which tells each line as soon as it is known.
    pub fn new(tell: &'a mut dyn FnMut(&Check)) -> Self {
        Self { checks: Vec::new(), tell }
    }

    /// Adds a line.
    pub fn add(&mut self, name: impl Into<String>, verdict: Verdict, detail: impl Display) {
        let check = Check { name: name.into(), verdict, detail: bounded(&detail.to_string(), MOST) };
        (self.tell)(&check);
        self.checks.push(check);
    }

    /// Adds a line that is good, or says why not.
    pub fn settle<T: Display, E: Display>(&mut self, name: impl Into<String>, result: Result<T, E>) {
        match result {
            Ok(detail) => self.add(name, Verdict::Ok, detail),
            Err(why) => self.add(name, Verdict::Failed, why),
        }
    }

    /// Every line.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// How many ended so.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|c| c.verdict == verdict).count()
    }

    /// Whether nothing failed.
    pub fn passed(&self) -> bool {
        self.count(Verdict::Failed) == 0
    }
}
