//! The contract is the only thing that an author in another language reads: everything in it must be explained.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::Path;

use wit_parser::{Docs, Resolve, TypeDefKind};

fn contract() -> Resolve {
    let path =
        Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it")).join("../../wit/sandbox-engine.wit");
    let mut resolve = Resolve::default();
    resolve.push_file(path).expect("the contract parses");
    resolve
}

/// Every item that can carry a comment, with its comment.
fn items(resolve: &Resolve) -> Vec<(String, &Docs)> {
    let mut items = Vec::new();
    for (_, package) in resolve.packages.iter() {
        items.push((format!("package {}", package.name), &package.docs));
    }
    for (_, world) in resolve.worlds.iter() {
        items.push((format!("world {}", world.name), &world.docs));
    }
    for (_, interface) in resolve.interfaces.iter() {
        items.push((format!("interface {}", interface.name.as_deref().unwrap_or("?")), &interface.docs));
        for (name, function) in &interface.functions {
            items.push((format!("function {name}"), &function.docs));
        }
    }
    for (_, def) in resolve.types.iter() {
        // Without a name it is a list or an option inside of another type.
        let Some(name) = &def.name else { continue };
        items.push((format!("type {name}"), &def.docs));
        match &def.kind {
            TypeDefKind::Record(record) => {
                items.extend(record.fields.iter().map(|field| (format!("field {name}.{}", field.name), &field.docs)));
            }
            TypeDefKind::Variant(variant) => {
                items.extend(variant.cases.iter().map(|case| (format!("case {name}.{}", case.name), &case.docs)));
            }
            TypeDefKind::Enum(cases) => {
                items.extend(cases.cases.iter().map(|case| (format!("case {name}.{}", case.name), &case.docs)));
            }
            TypeDefKind::Flags(flags) => {
                items.extend(flags.flags.iter().map(|flag| (format!("flag {name}.{}", flag.name), &flag.docs)));
            }
            _ => {}
        }
    }
    items
}

/// The placeholders that a comment names: `{name}` in code marks.
fn placeholders(docs: &Docs) -> BTreeSet<&str> {
    let text = docs.contents.as_deref().unwrap_or_default();
    let named = text.split("`{").skip(1).filter_map(|rest| rest.split_once("}`"));
    named.map(|(name, _)| name).filter(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')).collect()
}

#[test]
fn every_item_is_explained() {
    let resolve = contract();
    let items = items(&resolve);
    // A parser that finds nothing would find nothing unexplained.
    assert!(items.len() > 60, "only {} items", items.len());
    let bare: Vec<_> = items
        .iter()
        .filter(|(_, docs)| docs.contents.as_deref().is_none_or(|text| text.trim().is_empty()))
        .map(|(item, _)| item.as_str())
        .collect();
    assert!(bare.is_empty(), "without a comment: {}", bare.join(", "));
}

#[test]
fn every_placeholder_is_explained_and_used() {
    let resolve = contract();
    let items = items(&resolve);
    let explained = items.iter().find(|(item, _)| item == "type template").map(|(_, docs)| placeholders(docs));
    let explained = explained.expect("the contract has templates");
    let used: BTreeSet<_> =
        items.iter().filter(|(item, _)| item != "type template").flat_map(|(_, docs)| placeholders(docs)).collect();
    assert!(used.is_subset(&explained), "not explained: {:?}", used.difference(&explained));
    assert_eq!(explained.len(), 8, "{explained:?}");
    assert!(explained.difference(&used).next().is_none(), "nowhere allowed: {:?}", explained.difference(&used));
}
