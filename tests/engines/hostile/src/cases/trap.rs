//! Crashes.

use crate::text::{Text, good};
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    let exit = Text::importing(
        &[("cli/exit", "exit", "(param i32)")],
        "(if (local.get $superuser) (then (call $exit (i32.const 1)))) (i32.const {answer})",
    );
    let start = Text { beside: "(func $f unreachable) (start $f)".to_owned(), ..Text::answering(good()) };
    named([
        ("trap", Text::later("unreachable", "").into()),
        ("trap-division", Text::later("(drop (i32.div_u (i32.const 1) (i32.const 0)))", "").into()),
        ("trap-load", Text::later("(drop (i32.load (i32.const -4)))", "").into()),
        ("trap-exit", exit.into()),
        ("trap-at-start", start.into()),
        ("trap-in-describe", Text { describe: "unreachable".to_owned(), ..Text::answering(good()) }.into()),
    ])
}
