//! Engines that mean harm, or are merely broken. Below `cases` is a file for each kind of harm, and each engine in it is a
//! small component, made here from WebAssembly text and from answers that no SDK would let through.

#![allow(clippy::unwrap_used, reason = "only tests use it, and a test may fail by panicking")]

mod cases;
mod memory;
pub mod text;

use std::collections::BTreeSet;

use text::Text;

/// The engines of one file, each with its name, which is one that a service can have.
type Engines = Vec<(String, Source)>;

/// What an engine is made from.
pub enum Source {
    /// A core module around the functions of the contract.
    Text(Box<Text>),
    /// A component, written out.
    Component(&'static str),
}

impl From<Text> for Source {
    fn from(text: Text) -> Self {
        Self::Text(Box::new(text))
    }
}

impl Source {
    /// The component.
    ///
    /// # Panics
    /// When the text is none.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.build(),
            Self::Component(text) => wat::parse_str(text).unwrap(),
        }
    }
}

fn named<const N: usize>(engines: [(&str, Source); N]) -> Engines {
    engines.into_iter().map(|(name, source)| (name.to_owned(), source)).collect()
}

/// All of them, by name.
///
/// # Panics
/// When two have the same name.
#[must_use]
pub fn all() -> Vec<(String, Source)> {
    let mut all: Engines = cases::ALL.iter().flat_map(|engines| engines()).collect();
    let names: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), all.len(), "every name is another");
    // Each can stand beside the others, unless slugs are what it is about.
    for (index, (_, source)) in all.iter_mut().enumerate() {
        if let Source::Text(text) = source
            && text.descriptor.slug == Text::default().descriptor.slug
        {
            text.descriptor.slug = format!("h{index}");
        }
    }
    all
}

/// One of them.
///
/// # Panics
/// When there is none of this name.
#[must_use]
pub fn engine(name: &str) -> Source {
    let found = all().into_iter().find(|(one, _)| one == name);
    found.unwrap_or_else(|| panic!("there is no hostile engine `{name}`")).1
}
