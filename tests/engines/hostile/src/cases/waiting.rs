//! Waiting in a host function, where no instruction of the guest is run: for an hour, and for as long as there are numbers.

use crate::text::Text;
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    let wait = |nanoseconds: u64| {
        let functions = [
            ("io/poll", "[method]pollable.block", "(param i32)"),
            ("clocks/monotonic-clock", "subscribe-duration", "(param i64) (result i32)"),
        ];
        let wait = format!("(call $block (call $subscribe-duration (i64.const {nanoseconds})))");
        (
            Text::importing(&functions, &format!("(if (local.get $superuser) (then {wait})) (i32.const {{answer}})")),
            wait,
        )
    };
    let (mut describing, deed) = wait(u64::MAX);
    describing.describe = deed;
    named([("wait-later", wait(3_600_000_000_000).0.into()), ("wait-in-describe", describing.into())])
}
