//! Questions and answers pass through unharmed, and an engine's own refusals arrive as such.

use std::sync::Arc;

use sandbar_core::engine::{
    Account, Command, Container, DataDir, Descriptor, Engine as _, EngineError, Expectation, Feature, File, Recipe,
    Request, Setting, Step, Variable,
};
use sandbar_plugin::CONTRACT_VERSION;

use crate::fixture::{HASTE, SCRATCH, Text, broken, harmless, load, load_hasty, looping, provoking, soon};

fn text(text: &str) -> String {
    text.to_owned()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| (text(name), text(value))).collect()
}

/// A recipe in which every field has a value of its own.
fn full() -> Recipe {
    let command = |id: &str, expect| Command {
        argv: words(&[id, "argument"]),
        env: pairs(&[(id, "{password}")]),
        user: Some(format!("{id}-user")),
        expect,
        timeout_ms: 1234,
    };
    Recipe {
        container: Container {
            image: text("{namespace}/image:1"),
            entrypoint: Some(words(&["entry", "point"])),
            command: words(&["command"]),
            user: text("999"),
            env: pairs(&[("NAME", "value"), ("OTHER", "")]),
            files: vec![File { path: text("/etc/file"), mode: 0o640, content: text("ein Bär\n{{}}") }],
            data: vec![
                DataDir { path: text("/data"), tmpfs_bytes: 1 << 40 },
                DataDir { path: text("/more"), tmpfs_bytes: 7 },
            ],
            work_folder: Some(text("/work")),
            shm_bytes: 1 << 33,
            capabilities: words(&["CHOWN", "SETUID"]),
            port: Some(65535),
            account: Some(Account { user: Some(text("agent")), database: Some(text("db")), admin: true }),
            more: pairs(&[("more", "still")]),
        },
        ready: command("probe", Expectation::ExitZero),
        deadline_ms: 30_000,
        setup: vec![Step {
            name: text("set up"),
            feature: Some(text("feature")),
            run: command("setup", Expectation::StdoutIs(text("PONG"))),
        }],
        verify: vec![
            Step {
                name: text("verify"),
                feature: None,
                run: command("verify", Expectation::StdoutHasLines(words(&["one", "two"]))),
            },
            Step { name: text("again"), feature: None, run: command("again", Expectation::ExitZero) },
        ],
        variables: vec![
            Variable { name: text("URL"), value: text("x://{user}:{password}@{address}"), prefixed: true },
            Variable { name: text("PLAIN"), value: text("1"), prefixed: false },
        ],
    }
}

/// The same with everything left out that can be.
fn bare() -> Recipe {
    let mut recipe = full();
    let container = &mut recipe.container;
    container.entrypoint = None;
    container.work_folder = None;
    container.port = None;
    container.account = None;
    container.files.clear();
    recipe.ready.user = None;
    recipe.setup.clear();
    recipe
}

#[tokio::test]
async fn a_recipe_arrives_field_by_field() {
    for recipe in [full(), bare()] {
        let engine =
            load(&Text { plan: text("(i32.const {answer})"), recipe: Some(recipe.clone()), ..Text::default() }).await;
        assert_eq!(soon(engine.unwrap().plan(&harmless())).await, Ok(recipe));
    }
}

#[tokio::test]
async fn a_descriptor_arrives_field_by_field() {
    let descriptor = Descriptor {
        name: text("some-engine"),
        slug: text("se"),
        version: text("3.2.1"),
        summary: text("Does something."),
        features: vec![
            Feature { name: text("one"), summary: text("The first.") },
            Feature { name: text("two"), summary: text("The second.") },
        ],
        settings: vec![Setting { name: text("image"), default: text("a/b:c"), summary: text("The image.") }],
        more: pairs(&[("later", "x")]),
    };
    let described = Text { descriptor: descriptor.clone(), ..Text::default() };
    let engine = load(&described).await.unwrap();
    assert_eq!(engine.descriptor(), &descriptor);
    assert_eq!(engine.contract_version().to_string(), CONTRACT_VERSION);
    assert_eq!(engine.size(), described.build().len());
    assert_eq!(engine.hash().len(), 64);
    assert!(engine.imports().is_empty());
}

/// A guest that answers `other` with a text that lies in its memory: `{pointer}` is the expression of its address, and
/// the length stands behind it.
fn echo(pointer: &str) -> Text {
    Text {
        plan: format!(
            "(i32.store8 (i32.const {SCRATCH}) (i32.const 1))
             (i32.store8 offset=8 (i32.const {SCRATCH}) (i32.const 2))
             (i64.store offset=12 align=1 (i32.const {SCRATCH}) (i64.load align=1 {pointer}))
             (i32.const {SCRATCH})"
        ),
        ..Text::default()
    }
}

#[tokio::test]
async fn the_question_arrives() {
    let request = Request {
        features: words(&["a", "feature two"]),
        retained: false,
        superuser: true,
        memory_bytes: 0x1_2345_6789,
        settings: pairs(&[("first", "one"), ("second", "zwölf")]),
    };
    for (pointer, expected) in [
        ("(i32.add (local.get $features) (i32.const 8))", "feature two"),
        ("(i32.add (local.get $settings) (i32.const 24))", "zwölf"),
        ("(i32.add (local.get $settings) (i32.const 16))", "second"),
    ] {
        let engine = load(&echo(pointer)).await.unwrap();
        assert_eq!(soon(engine.plan(&request)).await, Err(EngineError::Other(text(expected))));
    }
    // The plain ones: the guest crashes unless they are what was sent.
    let plan = "(if (local.get $retained) (then unreachable))
                (if (i32.ne (local.get $superuser) (i32.const 1)) (then unreachable))
                (if (i64.ne (local.get $memory) (i64.const 0x123456789)) (then unreachable))
                (if (i32.ne (local.get $feature_count) (i32.const 2)) (then unreachable))
                (if (i32.ne (local.get $setting_count) (i32.const 2)) (then unreachable))
                (i32.const {answer})";
    let engine = load(&Text { plan: text(plan), recipe: Some(bare()), ..Text::default() }).await.unwrap();
    assert_eq!(soon(engine.plan(&request)).await, Ok(bare()));
}

#[tokio::test]
async fn a_refusal_is_one_clean_line() {
    let engine = load(&echo("(local.get $features)")).await.unwrap();
    let refuse = async |why: String| soon(engine.plan(&Request { features: vec![why], ..harmless() })).await;
    assert_eq!(refuse(text("no\r\n\u{1b}[31mway")).await, Err(EngineError::Other(text("no [31mway"))));
    match refuse("x".repeat(5000)).await {
        Err(EngineError::Other(why)) => assert!(why.len() < 400, "{} bytes", why.len()),
        other => panic!("{other:?}"),
    }
    match refuse(String::new()).await {
        Err(EngineError::Other(why)) => assert!(!why.is_empty()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_call_begins_afresh() {
    let remembering = Text {
        beside: text("(global $called (mut i32) (i32.const 0))"),
        plan: text(
            "(if (global.get $called) (then unreachable))
             (global.set $called (i32.const 1))
             (i32.const {answer})",
        ),
        recipe: Some(bare()),
        ..Text::default()
    };
    let engine = load(&remembering).await.unwrap();
    for _ in 0..3 {
        assert_eq!(soon(engine.plan(&harmless())).await, Ok(bare()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_are_all_answered() {
    let engine = load(&Text { plan: text("(i32.const {answer})"), recipe: Some(full()), ..Text::default() }).await;
    let engine = engine.unwrap();
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move { engine.plan(&harmless()).await })
        })
        .collect();
    for call in calls {
        assert_eq!(soon(call).await.unwrap(), Ok(full()));
    }
}

#[tokio::test]
async fn an_engine_outlives_its_host() {
    // The host is gone when this returns.
    let engine = load_hasty(&looping(), HASTE).await;
    let why = broken(&engine, &provoking()).await;
    assert!(why.contains("longer than 300ms"), "{why}");
}
