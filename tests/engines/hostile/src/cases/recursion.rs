//! A recursion without an end.

use crate::text::Text;
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    let function = "(func $deeper (param i32) (result i32)
        (i32.add (local.get 0) (call $deeper (i32.add (local.get 0) (i32.const 1)))))";
    named([("recursion", Text::later("(drop (call $deeper (i32.const 1)))", function).into())])
}
