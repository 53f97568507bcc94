//! The bindings that `wit-bindgen` makes of `wit/sandbox-engine.wit`, and nothing else. The rest of the crate re-exports
//! the types under short names and gives them constructors; engines never name this module.

wit_bindgen::generate!({
    world: "sandbox-engine",
    path: "../wit",
    // Recipes are compared in tests.
    additional_derives: [Clone, PartialEq, Eq, Hash],
    // `export_engine!` calls it from the engine's crate, with the path it needs.
    pub_export_macro: true,
    default_bindings_module: "sandbar_sdk::bindings",
});
