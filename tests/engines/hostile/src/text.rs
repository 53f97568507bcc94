//! Engines as core WebAssembly text around the contract's functions, made into a component by `wit-component` with the
//! contract's own WIT file.

use sandbar_core::engine::{
    Account, Command, Container, DataDir, Descriptor, Expectation, File, Recipe, Step, Variable,
};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::memory::Memory;

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
pub const EMPTY_RECIPE: usize = 1024;

/// Where a guest may write whatever it likes, 1,024 bytes.
pub const SCRATCH: usize = 2048;

/// Where prepared values begin.
const VALUES: usize = 4096;

/// How memory grows.
const PAGE: usize = 65536;

/// An engine to be made.
#[derive(Clone)]
pub struct Text {
    /// The contract version that it is made for.
    pub version: String,
    /// A change to the contract's text before it is used, of which the engine's author says nothing.
    pub forged: Option<(&'static str, &'static str)>,
    /// What `describe` answers.
    pub descriptor: Descriptor,
    /// What `describe` does before it answers.
    pub describe: String,
    /// The body of `plan`: leaves the address of an answer. Its parameters are `$features $feature_count $retained
    /// $superuser $memory $settings $setting_count`.
    pub plan: String,
    /// What is done before a host gets memory for a question.
    pub realloc: String,
    /// Definitions beside it; imports come first.
    pub beside: String,
    /// What the world imports, one line of WIT each.
    pub imports: String,
    /// Definitions after the memory of the ABI, which is the first one.
    pub after_memory: String,
    /// The number that it answers in an interface of a later version beside the contract's.
    pub extra: Option<u32>,
    /// The answer at the address `{answer}` of `plan`.
    pub recipe: Option<Recipe>,
    /// The answer at the address `{later}` of `plan`.
    pub later: Option<Recipe>,
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
            describe: String::new(),
            plan: format!("(i32.const {EMPTY_RECIPE})"),
            realloc: String::new(),
            beside: String::new(),
            imports: String::new(),
            after_memory: String::new(),
            extra: None,
            recipe: None,
            later: None,
        }
    }
}

impl Text {
    /// An engine that always answers the same recipe.
    pub fn answering(recipe: Recipe) -> Self {
        Self { plan: "(i32.const {answer})".to_owned(), recipe: Some(recipe), ..Self::default() }
    }

    /// An engine whose recipe is good, but for one change.
    pub fn with(change: impl FnOnce(&mut Recipe)) -> Self {
        let mut recipe = good();
        change(&mut recipe);
        Self::answering(recipe)
    }

    /// An engine whose description is good, but for one change.
    pub fn described(change: impl FnOnce(&mut Descriptor)) -> Self {
        let mut text = Self::answering(good());
        change(&mut text.descriptor);
        text
    }

    /// An engine that behaves, unless it is asked for an account without restrictions: then it does `deed`.
    pub fn later(deed: &str, beside: &str) -> Self {
        Self {
            plan: format!("(if (local.get $superuser) (then {deed})) (i32.const {{answer}})"),
            beside: beside.to_owned(),
            ..Self::answering(good())
        }
    }

    /// An engine that imports functions of WASI: interface, function and its type. `describe` and `plan` call them by the
    /// last part of their names.
    pub fn importing(functions: &[(&str, &str, &str)], plan: &str) -> Self {
        let mut interfaces: Vec<_> = functions.iter().map(|(interface, ..)| *interface).collect();
        interfaces.dedup();
        let import = |(interface, function, ty): &(&str, &str, &str)| {
            let name = function.rsplit(['.', ']']).next().unwrap_or(function);
            format!(r#"(import "wasi:{interface}@0.2.0" "{function}" (func ${name} {ty}))"#)
        };
        Self {
            imports: interfaces.iter().map(|interface| format!("import wasi:{interface}@0.2.0;")).collect(),
            beside: functions.iter().map(import).collect(),
            plan: plan.to_owned(),
            ..Self::answering(good())
        }
    }

    /// The core module.
    pub fn module(&self) -> Vec<u8> {
        let Self { version, describe, plan, realloc, beside, after_memory, .. } = self;
        let mut memory = Memory { base: VALUES, bytes: Vec::new() };
        let descriptor = memory.descriptor(&self.descriptor);
        let mut answer = |recipe: &Option<Recipe>| recipe.as_ref().map_or(EMPTY_RECIPE, |recipe| memory.recipe(recipe));
        let (answer, later) = (answer(&self.recipe), answer(&self.later));
        let plan = plan.replace("{answer}", &answer.to_string()).replace("{later}", &later.to_string());
        let values: String = memory.bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
        // The second page of small engines is theirs to write to.
        let pages = (VALUES + memory.bytes.len()).div_ceil(PAGE);
        let (heap, pages) = (pages * PAGE, pages + 1);
        let extra = self.extra.map_or_else(String::new, |rank| {
            format!(r#"(func (export "sandbar:engine/extra@1.1.0#rank") (result i32) (i32.const {rank}))"#)
        });
        let text = format!(
            r#"(module
              {beside}
              (memory (export "memory") {pages})
              {after_memory}
              (data (i32.const {VALUES}) "{values}")
              (global $next (mut i32) (i32.const {heap}))
              (func (export "cabi_realloc") (param i32 i32 i32) (param $size i32) (result i32) (local $at i32)
                {realloc}
                (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
                (global.set $next (i32.add (local.get $at) (local.get $size)))
                (local.get $at))
              (func (export "sandbar:engine/engine@{version}#describe") (result i32) {describe} (i32.const {descriptor}))
              (func (export "sandbar:engine/engine@{version}#plan")
                (param $features i32) (param $feature_count i32) (param $retained i32) (param $superuser i32)
                (param $memory i64) (param $settings i32) (param $setting_count i32) (result i32)
                {plan})
              {extra})"#
        );
        wat::parse_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// The component.
    pub fn build(&self) -> Vec<u8> {
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

/// A recipe in which everything is as it should be, and something is everywhere.
pub fn good() -> Recipe {
    let command = |argv: &[&str]| Command {
        argv: argv.iter().map(ToString::to_string).collect(),
        env: vec![("AUTH".to_owned(), "{password}".to_owned())],
        user: Some("nobody".to_owned()),
        expect: Expectation::StdoutIs("PONG".to_owned()),
        timeout_ms: 1_000,
    };
    let step = |name: &str, run| Step { name: name.to_owned(), feature: None, run };
    Recipe {
        container: Container {
            image: "redis:8-alpine".to_owned(),
            entrypoint: Some(vec!["sh".to_owned(), "-c".to_owned(), "exec sleep 60".to_owned()]),
            command: vec!["sleep".to_owned(), "60".to_owned()],
            user: "nobody".to_owned(),
            env: vec![("ACCOUNT_PASSWORD".to_owned(), "{password}".to_owned())],
            files: vec![File { path: "/etc/cache.conf".to_owned(), mode: 0o644, content: "user {user}".to_owned() }],
            data: vec![DataDir { path: "/data".to_owned(), tmpfs_bytes: 1 << 20 }],
            work_folder: None,
            shm_bytes: 0,
            capabilities: Vec::new(),
            port: Some(6379),
            account: Some(Account { user: Some("user".to_owned()), database: Some("base".to_owned()), admin: false }),
            more: Vec::new(),
        },
        ready: command(&["probe", "{address}"]),
        deadline_ms: 15_000,
        setup: vec![step("set up", command(&["setup"]))],
        verify: vec![step("verify", command(&["verify"]))],
        variables: vec![
            Variable { name: "HOST".to_owned(), value: "{host}".to_owned(), prefixed: true },
            Variable {
                name: "CACHE_URL".to_owned(),
                value: "cache://{user}:{password}@{host}".to_owned(),
                prefixed: false,
            },
        ],
    }
}

/// Puts a list into the answer at [`SCRATCH`], in which everything else is empty, and answers it. `offset` is that of the field.
pub fn list(offset: usize, address: usize, count: usize) -> String {
    format!(
        "(i32.store offset={offset} (i32.const {SCRATCH}) (i32.const {address}))
         (i32.store offset={} (i32.const {SCRATCH}) (i32.const {count}))
         (return (i32.const {SCRATCH}))",
        offset + 4
    )
}
