//! Answers that are none.

use crate::text::{EMPTY_RECIPE, SCRATCH, Text, list};
use crate::{Engines, named};

const IMAGE: usize = 8;

pub(super) fn engines() -> Engines {
    let no_text = format!("(i32.store16 (i32.const 131000) (i32.const 0xfffe)) {}", list(IMAGE, 131_000, 2));
    let no_case = format!("(i32.store8 (i32.const {SCRATCH}) (i32.const 7)) (return (i32.const {SCRATCH}))");
    let crooked = format!("(return (i32.const {}))", EMPTY_RECIPE + 1);
    named([
        ("malformed-outside", Text::later(&list(IMAGE, 130_000, 100_000), "").into()),
        ("malformed-text", Text::later(&no_text, "").into()),
        ("malformed-case", Text::later(&no_case, "").into()),
        ("malformed-address", Text::later("(return (i32.const -8))", "").into()),
        ("malformed-alignment", Text::later(&crooked, "").into()),
    ])
}
