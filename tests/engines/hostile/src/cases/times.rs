//! Deadlines of no time, and of a year.

use crate::text::Text;
use crate::{Engines, Source, named};

const YEAR_MS: u32 = u32::MAX;

pub(super) fn engines() -> Engines {
    let ready = |deadline_ms: u32| -> Source { Text::with(|r| r.deadline_ms = deadline_ms).into() };
    named([
        ("time-ready-none", ready(0)),
        ("time-ready-year", ready(YEAR_MS)),
        ("time-probe-none", Text::with(|r| r.ready.timeout_ms = 0).into()),
        ("time-step-none", Text::with(|r| r.setup[0].run.timeout_ms = 0).into()),
        ("time-step-year", Text::with(|r| r.verify[0].run.timeout_ms = YEAR_MS).into()),
    ])
}
