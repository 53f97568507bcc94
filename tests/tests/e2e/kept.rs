//! Components stay good: what was built for a version of the contract is kept, in `engines/kept` by that version, and every
//! later host loads it and gets the answers that it gave then. What is kept is never built again, nor are its answers
//! written anew.

use std::fmt::Write as _;
use std::fs;

use sandbar_core::secret::sha256_hex;
use sandbar_tests::host::sources;
use serde_json::{Value, json};

use crate::authors::{engine, text};
use crate::recipes::answers;

#[test]
fn what_was_built_for_1_0_loads_and_answers_as_it_did() {
    let dir = sources().join("engines/kept/1.0");
    for name in ["box", "fixture", "mongo", "postgres", "redis"] {
        let component = dir.join(format!("{name}.wasm"));
        let inspected = engine(&["inspect", &component.display().to_string(), "--json"]);
        let said: Value = serde_json::from_slice(&inspected.stdout).unwrap();
        assert!(inspected.status.success(), "{name}: {}", text(&inspected.stderr));
        assert_eq!((&said["name"], &said["contract"], &said["imports"]), (&json!(name), &json!(["1.0.0"]), &json!([])));
        assert_eq!(said["sha256"], sha256_hex(fs::read(&component).unwrap()));

        let (descriptor, answers) = answers(&component);
        let mut table = format!("{descriptor:?}\n");
        for (request, answer) in answers {
            write!(table, "\n{request:?}\n{answer:?}\n").unwrap();
        }
        expect_test::expect_file![dir.join(format!("{name}.txt"))].assert_eq(&table);
    }
}
