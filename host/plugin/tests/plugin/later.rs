//! How the contract grows: a later host asks for an interface beside this one that an engine may have. Components that were
//! built before have none and go on; those that have one are engines for a host that does not ask.
//!
//! The later host is made here, on the same contract, with `extra` as an interface that a later package would bring.

use std::fs;
use std::path::Path;

use sandbar_core::engine::Engine as _;
use sandbar_plugin::Artifact;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine, Store};

use crate::fixture::{Text, harmless, host, soon};

wasmtime::component::bindgen!({ path: "../../wit", world: "sandbox-engine" });

/// What a later host would look for.
const EXTRA: &str = "sandbar:engine/extra@1.1.0";

/// As it would be loaded later: by the contract, with what it answers beside it, if it does.
fn later(bytes: &[u8]) -> (String, Option<u32>) {
    let engine = Engine::new(Config::new().wasm_component_model(true)).unwrap();
    let component = Component::new(&engine, bytes).unwrap();
    let mut store = Store::new(&engine, ());
    let pre: InstancePre<()> = Linker::new(&engine).instantiate_pre(&component).unwrap();
    let guest = SandboxEnginePre::new(pre.clone()).unwrap().instantiate(&mut store).unwrap();
    let name = guest.sandbar_engine_engine().call_describe(&mut store).unwrap().name;
    let extra = component.get_export_index(None, EXTRA).map(|extra| {
        let instance = pre.instantiate(&mut store).unwrap();
        let function = component.get_export_index(Some(&extra), "rank").unwrap();
        let rank = instance.get_typed_func::<(), (u32,)>(&mut store, function).unwrap();
        rank.call(&mut store, ()).unwrap().0
    });
    (name, extra)
}

/// An engine that has the later interface too.
fn with_extra() -> Text {
    Text { extra: Some(42), ..Text::default() }
}

#[test]
fn components_of_today_go_on_without_what_is_optional() {
    assert_eq!(later(&Text::default().build()), ("test".to_owned(), None));
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/engines/kept/1.0");
    let mut names = Vec::new();
    for entry in fs::read_dir(kept).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|e| e == "wasm") {
            let (name, extra) = later(&fs::read(&entry).unwrap());
            assert_eq!(extra, None, "{name}");
            names.push(name);
        }
    }
    names.sort();
    assert_eq!(names, ["box", "fixture", "mongo", "postgres", "redis"]);
    assert_eq!(later(&with_extra().build()), ("test".to_owned(), Some(42)), "and one that has it is heard");
}

#[tokio::test]
async fn what_has_more_than_this_host_asks_for_is_an_engine() {
    let artifact = Artifact::from_bytes(with_extra().build()).unwrap();
    assert_eq!(artifact.contract_versions(), ["1.0.0"], "the other one is not the contract");
    let engine = soon(host().load_artifact(artifact)).await.unwrap();
    assert_eq!(engine.contract_version().to_string(), "1.0.0");
    assert!(soon(engine.plan(&harmless())).await.is_ok());
}
