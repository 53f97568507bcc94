//! Activation that never ends, is about nothing that was asked for, or confirms nothing.

use sandbar_core::engine::{Descriptor, Feature};

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let step = |name: &str| -> Source { Text::with(|r| r.setup[0].name = name.to_owned()).into() };
    let feature = |d: &mut Descriptor| d.features.push(Feature { name: "one".to_owned(), summary: String::new() });
    named([
        ("steps-many", Text::with(|r| r.setup = vec![r.setup[0].clone(); 1000]).into()),
        ("steps-many-verify", Text::with(|r| r.verify = vec![r.verify[0].clone(); 33]).into()),
        ("steps-name", step("Robert'); drop")),
        ("steps-name-long", step(&"a".repeat(100_000))),
        ("steps-program", Text::with(|r| r.setup[0].run.argv.clear()).into()),
        ("steps-arguments", Text::with(|r| r.setup[0].run.argv = vec!["x".to_owned(); 129]).into()),
        ("steps-other-feature", Text::with(|r| r.setup[0].feature = Some("other".to_owned())).into()),
        ("steps-unconfirmed", Text::described(feature).into()),
    ])
}
