//! Tables that grow, which cost the host memory too.

use crate::text::{Text, good};
use crate::{Engines, named};

pub(super) fn engines() -> Engines {
    let grow = "(if (i32.eq (table.grow $t (ref.null func) (i32.const 10000000)) (i32.const -1)) (then unreachable))";
    let start = Text { beside: "(table 10000000 funcref)".to_owned(), ..Text::answering(good()) };
    named([("table-bomb", Text::later(grow, "(table $t 1 funcref)").into()), ("table-at-start", start.into())])
}
