//! Engines that would answer differently each time: by the clock, by chance, and by what they remember. None of them can, and
//! the conformance kit finds out all but the last, which nothing can be told of.

use crate::text::{Text, good};
use crate::{Engines, named};

/// Puts a digit into the tag of the image in the answer: whether a number is zero.
fn digit(number: &str) -> String {
    // The reference is `redis:8-alpine`, and the digit is its seventh character.
    format!(
        "(i32.store8 offset=6 (i32.load offset=8 (i32.const {{answer}})) (i32.add (i32.const 48) (i64.ne (i64.const 0) {number})))
         (i32.const {{answer}})"
    )
}

pub(super) fn engines() -> Engines {
    let monotonic = [("clocks/monotonic-clock", "now", "(result i64)")];
    let wall = [("clocks/wall-clock", "now", "(param i32)")];
    let random = [("random/random", "get-random-u64", "(result i64)")];
    let remembering = Text {
        beside: "(global $called (mut i64) (i64.const 0))".to_owned(),
        plan: format!("{} (global.set $called (i64.const 1))", digit("(global.get $called)")),
        ..Text::answering(good())
    };
    let read = crate::text::SCRATCH;
    let wall_plan = format!("(call $now (i32.const {read})) {}", digit(&format!("(i64.load (i32.const {read}))")));
    // The lowest bit of the first number of one world, and of another.
    let bit = "(i64.and (i64.const 1) (call $get-random-u64))";
    named([
        ("chance-clock", Text::importing(&monotonic, &digit("(call $now)")).into()),
        ("chance-date", Text::importing(&wall, &wall_plan).into()),
        ("chance-random", Text::importing(&random, &digit(bit)).into()),
        ("chance-memory", remembering.into()),
    ])
}
