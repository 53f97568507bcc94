//! Descriptions that the contract does not allow.

use sandbar_core::engine::{Descriptor, Feature, Setting};

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let described = |change: fn(&mut Descriptor)| -> Source { Text::described(change).into() };
    let feature = |name: &str| Feature { name: name.to_owned(), summary: String::new() };
    let twice = Text::described(|d| d.features = vec![feature("one"), feature("one")]);
    let many = Text::described(|d| d.features = (0..33).map(|i| feature(&format!("f{i}"))).collect());
    let setting = |i| Setting { name: format!("s{i}"), default: String::new(), summary: String::new() };
    let settings = Text::described(|d| d.settings = (0..33).map(setting).collect());
    named([
        ("describe-hyphen", described(|d| d.slug = "a-b".to_owned())),
        ("describe-long-slug", described(|d| d.slug = "a".repeat(100_000))),
        ("describe-name", described(|d| d.name = "../Evil".to_owned())),
        ("describe-twice", twice.into()),
        ("describe-many", many.into()),
        ("describe-settings", settings.into()),
        ("describe-summary", described(|d| d.summary = "x".repeat(100_000))),
        ("describe-terminal", described(|d| d.summary = "\u{1b}[31mred".to_owned())),
        ("describe-backwards", described(|d| d.version = "1.0\u{202e}".to_owned())),
    ])
}
