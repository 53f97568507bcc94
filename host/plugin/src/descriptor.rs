//! Whether what an engine says about itself keeps to the contract: the shape of names, how many there are, how long the
//! texts are, and that nothing in them is invisible. Whether name and slug are free is not known here.

use std::collections::HashSet;

use sandbar_core::engine::Descriptor;

use crate::explain::{is_hidden, one_line};
use crate::limits::{MAX_DEFAULT_CHARS, MAX_NAMED, MAX_SUMMARY_CHARS, MAX_VERSION_CHARS};

/// Checks a descriptor; the error says in one line what is wrong with it.
pub(crate) fn check(descriptor: &Descriptor) -> Result<(), String> {
    let Descriptor { name, slug, version, summary, features, settings, more } = descriptor;
    named("the name", name, 32, |c| c == '-')?;
    named("the slug", slug, 8, |_| false)?;
    text("the version", version, MAX_VERSION_CHARS)?;
    text("the summary", summary, MAX_SUMMARY_CHARS)?;

    count("features", features.len())?;
    for feature in features {
        named("the feature", &feature.name, 32, |c| c == '_' || c == '-')?;
        text(&format!("the summary of feature `{}`", feature.name), &feature.summary, MAX_SUMMARY_CHARS)?;
    }
    unique("the feature", features.iter().map(|feature| &feature.name))?;

    count("settings", settings.len())?;
    for setting in settings {
        named("the setting", &setting.name, 32, |c| c == '_' || c == '-')?;
        text(&format!("the default of setting `{}`", setting.name), &setting.default, MAX_DEFAULT_CHARS)?;
        text(&format!("the summary of setting `{}`", setting.name), &setting.summary, MAX_SUMMARY_CHARS)?;
    }
    unique("the setting", settings.iter().map(|setting| &setting.name))?;

    // Their meaning is a later host's; that no name appears twice is a rule of this version.
    unique("the key in `more`", more.iter().map(|(key, _)| key))
}

/// A name of lower-case letters, digits and what `also` lets pass.
fn named(what: &str, name: &str, max: usize, also: fn(char) -> bool) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || also(c);
    if (1..=max).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    let others: String = ['_', '-'].into_iter().filter(|c| also(*c)).collect();
    Err(format!("{what} `{}` is not of the form [a-z0-9{others}]{{1,{max}}}", one_line(name)))
}

/// A text of one line.
fn text(what: &str, text: &str, max: usize) -> Result<(), String> {
    let length = text.chars().count();
    if length > max {
        return Err(format!("{what} has {length} characters; {max} are allowed"));
    }
    match text.chars().find(|c| is_hidden(*c)) {
        Some(c) => Err(format!("{what} holds the invisible character U+{:04X}", u32::from(c))),
        None => Ok(()),
    }
}

fn count(what: &str, count: usize) -> Result<(), String> {
    if count > MAX_NAMED {
        return Err(format!("it has {count} {what}; {MAX_NAMED} are allowed"));
    }
    Ok(())
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(format!("{what} `{}` appears twice", one_line(name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sandbar_core::engine::{Feature, Setting};

    use super::*;

    fn good() -> Descriptor {
        Descriptor {
            name: "my-engine".to_owned(),
            slug: "me1".to_owned(),
            version: "1.2.3".to_owned(),
            summary: "An engine — for tests.".to_owned(),
            features: vec![feature("post_gis"), feature("vector-2")],
            settings: vec![setting("image", "registry/x:1")],
            more: vec![("later".to_owned(), "anything\n".to_owned())],
        }
    }

    fn feature(name: &str) -> Feature {
        Feature { name: name.to_owned(), summary: String::new() }
    }

    fn setting(name: &str, default: &str) -> Setting {
        Setting { name: name.to_owned(), default: default.to_owned(), summary: String::new() }
    }

    /// The complaint about a good descriptor after one change.
    fn complaint(change: impl FnOnce(&mut Descriptor)) -> String {
        let mut descriptor = good();
        change(&mut descriptor);
        check(&descriptor).expect_err("the change must be noticed")
    }

    #[test]
    fn a_good_one_passes() {
        assert_eq!(check(&good()), Ok(()));
    }

    #[test]
    fn names_have_their_shape() {
        for bad in ["", "My-engine", "my_engine", "my engine", "mÿ", &"a".repeat(33)] {
            let complaint = complaint(|d| d.name = bad.to_owned());
            assert_eq!(complaint, format!("the name `{bad}` is not of the form [a-z0-9-]{{1,32}}"));
        }
        for bad in ["", "pg-1", "pg_1", "PG", "ninechars"] {
            let complaint = complaint(|d| d.slug = bad.to_owned());
            assert_eq!(complaint, format!("the slug `{bad}` is not of the form [a-z0-9]{{1,8}}"));
        }
        assert!(complaint(|d| d.features[1].name = "a.b".to_owned()).contains("[a-z0-9_-]{1,32}"));
        assert!(complaint(|d| d.settings[0].name = String::new()).contains("the setting ``"));
    }

    #[test]
    fn nothing_appears_twice() {
        assert_eq!(complaint(|d| d.features.push(feature("post_gis"))), "the feature `post_gis` appears twice");
        assert_eq!(complaint(|d| d.settings.push(setting("image", ""))), "the setting `image` appears twice");
        assert!(complaint(|d| d.more.push(("later".to_owned(), String::new()))).contains("`more` `later`"));
    }

    #[test]
    fn counts_and_lengths_are_bounded() {
        let many = |n: usize| (0..n).map(|i| format!("n{i}"));
        let mut full = good();
        full.features = many(MAX_NAMED).map(|name| feature(&name)).collect();
        full.settings = many(MAX_NAMED).map(|name| setting(&name, "")).collect();
        assert_eq!(check(&full), Ok(()));
        assert!(complaint(|d| d.features = many(33).map(|name| feature(&name)).collect()).contains("33 features"));
        assert!(complaint(|d| d.settings = many(33).map(|name| setting(&name, "")).collect()).contains("33 settings"));
        assert!(complaint(|d| d.summary = "x".repeat(201)).contains("201 characters"));
        assert!(complaint(|d| d.version = "x".repeat(65)).contains("the version"));
        assert!(complaint(|d| d.settings[0].default = "x".repeat(1025)).contains("the default of setting `image`"));
    }

    #[test]
    fn texts_hold_nothing_invisible() {
        assert!(complaint(|d| d.summary.push('\n')).contains("U+000A"));
        assert!(complaint(|d| d.version.push('\u{1b}')).contains("U+001B"));
        assert!(complaint(|d| d.features[0].summary.push('\u{202e}')).contains("U+202E"));
        assert!(complaint(|d| d.settings[0].summary.push('\0')).contains("U+0000"));
        assert!(complaint(|d| d.settings[0].default.push('\r')).contains("U+000D"));
    }
}
