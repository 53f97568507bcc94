//! Engines for tests: core WebAssembly text around the contract's functions, made into a component by `wit-component`
//! with the contract's own WIT file.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::engine::{Descriptor, Engine as _, EngineError, Recipe, Request};
use sandbar_plugin::{Artifact, Host, Limits, LoadReason, LoadedEngine};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::image::Image;

/// The contract.
const CONTRACT: &str = include_str!("../../../../wit/sandbox-engine.wit");

/// As much of WASI as the engines here use, in the order in which the packages need each other.
const WASI: [&str; 6] = [
    "package wasi:io@0.2.0;
     interface error { resource error; }
     interface poll { resource pollable { block: func(); } }
     interface streams {
       use error.{error};
       variant stream-error { last-operation-failed(error), closed }
       resource output-stream {
         blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>;
       }
     }",
    "package wasi:clocks@0.2.0;
     interface monotonic-clock {
       use wasi:io/poll@0.2.0.{pollable};
       now: func() -> u64;
       subscribe-duration: func(when: u64) -> pollable;
     }
     interface wall-clock { record datetime { seconds: u64, nanoseconds: u32 } now: func() -> datetime; }",
    "package wasi:random@0.2.0; interface random { get-random-u64: func() -> u64; }",
    "package wasi:cli@0.2.0;
     interface environment { get-environment: func() -> list<tuple<string, string>>; get-arguments: func() -> list<string>; }
     interface exit { exit: func(status: result); }
     interface stdout { use wasi:io/streams@0.2.0.{output-stream}; get-stdout: func() -> output-stream; }
     interface stderr { use wasi:io/streams@0.2.0.{output-stream}; get-stderr: func() -> output-stream; }",
    "package wasi:filesystem@0.2.0;
     interface types { resource descriptor; }
     interface preopens { use types.{descriptor}; get-directories: func() -> list<tuple<descriptor, string>>; }",
    "package wasi:sockets@0.2.0;
     interface network {
       enum error-code {
         unknown, access-denied, not-supported, invalid-argument, out-of-memory, timeout, concurrency-conflict,
         not-in-progress, would-block, invalid-state, new-socket-limit, address-not-bindable, address-in-use,
         remote-unreachable, connection-refused, connection-reset, connection-aborted, datagram-too-large,
         name-unresolvable, temporary-resolver-failure, permanent-resolver-failure,
       }
       enum ip-address-family { ipv4, ipv6 }
     }
     interface tcp { resource tcp-socket; }
     interface udp { resource udp-socket; }
     interface tcp-create-socket {
       use network.{error-code, ip-address-family};
       use tcp.{tcp-socket};
       create-tcp-socket: func(address-family: ip-address-family) -> result<tcp-socket, error-code>;
     }
     interface udp-create-socket {
       use network.{error-code, ip-address-family};
       use udp.{udp-socket};
       create-udp-socket: func(address-family: ip-address-family) -> result<udp-socket, error-code>;
     }",
];

/// Where a guest finds 1,024 bytes that are zero: the answer `ok` with a recipe in which everything is empty.
pub(crate) const EMPTY_RECIPE: usize = 1024;

/// Where a guest may write whatever it likes, 1,024 bytes.
pub(crate) const SCRATCH: usize = 2048;

/// Where prepared values begin.
const VALUES: usize = 4096;

/// An engine to be made.
#[derive(Clone)]
pub(crate) struct Text {
    /// The contract version that it is made for.
    pub(crate) version: String,
    /// A change to the contract's text before it is used, of which the engine's author says nothing.
    pub(crate) forged: Option<(&'static str, &'static str)>,
    /// What `describe` answers.
    pub(crate) descriptor: Descriptor,
    /// The body of `plan`: leaves the address of an answer. Its parameters are `$features $feature_count $retained
    /// $superuser $memory $settings $setting_count`.
    pub(crate) plan: String,
    /// Definitions beside it; imports come first.
    pub(crate) beside: String,
    /// What the world imports, one line of WIT each.
    pub(crate) imports: String,
    /// Definitions after the memory of the ABI, which is the first one.
    pub(crate) after_memory: String,
    /// The number that it answers in an interface of a later version beside the contract's.
    pub(crate) extra: Option<u32>,
    /// The answer at the address `{answer}` of `plan`.
    pub(crate) recipe: Option<Recipe>,
}

impl Default for Text {
    fn default() -> Self {
        Self {
            version: "1.0.0".to_owned(),
            forged: None,
            descriptor: Descriptor {
                name: "test".to_owned(),
                slug: "tst".to_owned(),
                version: "0.1.0".to_owned(),
                summary: "For tests.".to_owned(),
                features: Vec::new(),
                settings: Vec::new(),
                more: Vec::new(),
            },
            plan: format!("(i32.const {EMPTY_RECIPE})"),
            beside: String::new(),
            imports: String::new(),
            after_memory: String::new(),
            extra: None,
            recipe: None,
        }
    }
}

impl Text {
    /// An engine that behaves, unless it is asked for something retained: then it does `deed`.
    pub(crate) fn hostile(deed: &str, beside: &str) -> Self {
        Self {
            plan: format!("(if (local.get $retained) (then {deed})) (i32.const {EMPTY_RECIPE})"),
            beside: beside.to_owned(),
            ..Self::default()
        }
    }

    /// The core module.
    pub(crate) fn module(&self) -> Vec<u8> {
        let Self { version, plan, beside, after_memory, .. } = self;
        let mut image = Image { base: VALUES, bytes: Vec::new() };
        let descriptor = image.descriptor(&self.descriptor);
        let answer = self.recipe.as_ref().map_or(EMPTY_RECIPE, |recipe| image.recipe(recipe));
        let plan = plan.replace("{answer}", &answer.to_string());
        assert!(VALUES + image.bytes.len() <= 65536, "the values must fit in the first page");
        let extra = self.extra.map_or_else(String::new, |rank| {
            format!(r#"(func (export "sandbar:engine/extra@1.1.0#rank") (result i32) (i32.const {rank}))"#)
        });
        let values: String = image.bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let text = format!(
            r#"(module
              {beside}
              (memory (export "memory") 2)
              {after_memory}
              (data (i32.const {VALUES}) "{values}")
              (global $next (mut i32) (i32.const 65536))
              (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32) (local $at i32)
                (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
                (global.set $next (i32.add (local.get $at) (local.get $size)))
                (local.get $at))
              (func (export "sandbar:engine/engine@{version}#describe") (result i32) (i32.const {descriptor}))
              (func (export "sandbar:engine/engine@{version}#plan")
                (param $features i32) (param $feature_count i32) (param $retained i32) (param $superuser i32)
                (param $memory i64) (param $settings i32) (param $setting_count i32) (result i32)
                {plan})
              {extra})"#
        );
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The component.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut contract = CONTRACT.replace("@1.0.0", &format!("@{}", self.version));
        if let Some((from, to)) = self.forged {
            assert!(contract.contains(from), "the contract says `{from}`");
            contract = contract.replace(from, to);
        }
        let extra = self.extra.map_or("", |_| "export sandbar:engine/extra@1.1.0;");
        let world = format!(
            "package test:guest; world guest {{ {} export sandbar:engine/engine@{}; {extra} }}",
            self.imports, self.version
        );
        let mut resolve = Resolve::default();
        for package in WASI {
            resolve.push_str("wasi.wit", package).unwrap();
        }
        resolve.push_str("sandbox-engine.wit", &contract).unwrap();
        if self.extra.is_some() {
            let later = "package sandbar:engine@1.1.0; interface extra { rank: func() -> u32; }";
            resolve.push_str("extra.wit", later).unwrap();
        }
        let package = resolve.push_str("guest.wit", &world).unwrap();
        let world = resolve.select_world(&[package], None).unwrap();
        let mut module = self.module();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap()
    }
}

/// A host without a cache, whose deadlines are beyond everything that is measured here.
pub(crate) fn host() -> Host {
    Host::new(None, limits()).unwrap()
}

/// The limits of [`host`].
pub(crate) fn limits() -> Limits {
    Limits { plan: Duration::from_secs(30), describe: Duration::from_secs(30), ..Limits::default() }
}

/// A deadline that is worth waiting for.
pub(crate) const HASTE: Duration = Duration::from_millis(300);

/// Makes and loads an engine.
pub(crate) async fn load(text: &Text) -> Result<Arc<LoadedEngine>, LoadReason> {
    host().load_artifact(Artifact::from_bytes(text.build())?).await
}

/// Makes and loads an engine whose plans may take `limit`.
pub(crate) async fn load_hasty(text: &Text, limit: Duration) -> Arc<LoadedEngine> {
    let host = Host::new(None, Limits { plan: limit, ..limits() }).unwrap();
    host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap()
}

/// A temporary file with this content. It goes with the directory.
pub(crate) fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine.wasm");
    std::fs::write(&path, content).unwrap();
    (directory, path)
}

/// A question that hostile engines answer.
pub(crate) fn harmless() -> Request {
    Request { features: Vec::new(), retained: false, superuser: false, memory_bytes: 1 << 28, settings: Vec::new() }
}

/// The question to which hostile engines do their deed.
pub(crate) fn provoking() -> Request {
    Request { retained: true, ..harmless() }
}

/// Waits for something that must not hang. The bound is far beyond everything that is measured here.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

/// Asks something harmless until there is an answer: where the deadline is [`HASTE`] a busy machine may miss it.
pub(crate) async fn answers(engine: &LoadedEngine) {
    soon(async {
        while let Err(error) = engine.plan(&harmless()).await {
            assert!(error.to_string().contains("longer than"), "{error}");
        }
    })
    .await;
}

/// What a call says that got no answer.
pub(crate) async fn broken(engine: &LoadedEngine, request: &Request) -> String {
    match soon(engine.plan(request)).await {
        Err(EngineError::Broken(why)) => why,
        other => panic!("expected a broken call, got {other:?}"),
    }
}
