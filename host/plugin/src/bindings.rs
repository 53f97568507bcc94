//! The contract as wasmtime's generated types, made from `wit/sandbox-engine.wit`. Nothing but the macro: what it makes
//! is turned into the core's types in [`crate::convert`].

#![allow(missing_docs, unreachable_pub, reason = "generated code")]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "sandbox-engine",
    // Asynchronous, so that a guest which waits in a host function can be given up at its deadline.
    exports: { default: async },
});
