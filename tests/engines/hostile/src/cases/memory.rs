//! More memory than there is: grown and written to, in many memories, and from the start.

use crate::text::{Text, good};
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    // Every page is written to, so that it is the machine's memory and not only a number.
    let bomb = "(block $full
        (loop $more
          (br_if $full (i32.eq (local.tee $features (memory.grow (i32.const 16))) (i32.const -1)))
          (memory.fill (i32.shl (local.get $features) (i32.const 16)) (i32.const 1) (i32.const 1048576))
          (br $more)))
        unreachable";
    // Twice 40 MiB, each of which would be allowed alone.
    let two = "(if (i32.eq (memory.grow $a (i32.const 640)) (i32.const -1)) (then unreachable))
               (if (i32.eq (memory.grow $b (i32.const 640)) (i32.const -1)) (then unreachable))";
    let mut two = Text::later(two, "");
    two.after_memory = "(memory $a 0) (memory $b 0)".to_owned();
    let at_start = Text { after_memory: "(memory $big 2000)".to_owned(), ..Text::answering(good()) };
    let many = Text { after_memory: "(memory 0)".repeat(40), ..Text::answering(good()) };
    named([
        ("memory-bomb", Text::later(bomb, "").into()),
        ("memory-in-two", two.into()),
        ("memory-at-start", at_start.into()),
        ("memory-in-many", many.into()),
    ])
}
