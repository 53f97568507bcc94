//! Answers that are larger than anybody needs, also where they are small in the guest's own memory.

use crate::text::{Text, list};
use crate::{Engines, named};

/// Where in an answer the image reference is, the command, and the steps of activation.
const IMAGE: usize = 8;
const COMMAND: usize = 28;
const SETUP: usize = 192;

/// What is at 131072 are `count` entries, each of which is the same `length` bytes from 65536 on.
fn aliases(count: usize, length: usize) -> String {
    let end = 131_072 + 8 * count;
    format!(
        "(drop (memory.grow (i32.const 64)))
         (local.set $features (i32.const 131072))
         (loop $entries
           (i32.store (local.get $features) (i32.const 65536))
           (i32.store offset=4 (local.get $features) (i32.const {length}))
           (local.set $features (i32.add (local.get $features) (i32.const 8)))
           (br_if $entries (i32.lt_u (local.get $features) (i32.const {end}))))
         {}",
        list(COMMAND, 131_072, count)
    )
}

pub(super) fn engines() -> Engines {
    let after = |pages: usize, answer: String| {
        Text::later(&format!("(drop (memory.grow (i32.const {pages}))) {answer}"), "").into()
    };
    named([
        // As much as a guest can have at once.
        ("large-text", after(900, list(IMAGE, 65_536, 50_000_000))),
        // 100 MB on the host, 4 MB in the guest.
        ("large-aliased", Text::later(&aliases(100, 1_000_000), "").into()),
        ("large-aliased-little", Text::later(&aliases(200, 60_000), "").into()),
        ("large-list", after(200, list(COMMAND, 131_072, 1_000_000))),
        // A million steps of 64 bytes each.
        ("large-steps", after(980, list(SETUP, 65_536, 1_000_000))),
    ])
}
