//! Endless loops, in every function that a host calls.

use crate::text::{Text, good};
use crate::{Engines, named};

const FOREVER: &str = "(loop $forever (br $forever))";

pub(super) fn engines() -> Engines {
    let text = || Text::answering(good());
    let start = Text { beside: format!("(func $f {FOREVER}) (start $f)"), ..text() };
    let mut realloc = Text { realloc: FOREVER.to_owned(), ..text() };
    // Something that the host needs memory for.
    realloc.descriptor.settings = vec![sandbar_core::engine::Setting {
        name: "image".to_owned(),
        default: "redis".to_owned(),
        summary: String::new(),
    }];
    let cleanup = r#"(global $stuck (mut i32) (i32.const 0))
        (func (export "cabi_post_sandbar:engine/engine@1.0.0#plan") (param i32)
          (if (global.get $stuck) (then (loop $forever (br $forever)))))"#;
    named([
        ("loop-at-start", start.into()),
        ("loop-in-describe", Text { describe: FOREVER.to_owned(), ..text() }.into()),
        ("loop-in-plan", Text { plan: format!("{FOREVER} (i32.const {{answer}})"), ..text() }.into()),
        ("loop-in-realloc", realloc.into()),
        ("loop-later", Text::later(FOREVER, "").into()),
        ("loop-in-cleanup", Text::later("(global.set $stuck (i32.const 1))", cleanup).into()),
    ])
}
