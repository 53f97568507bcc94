//! Engines that mean harm, or are merely broken: each costs one clear error for one call, and the next call works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::engine::{Engine as _, EngineError};
use sandbar_plugin::{Artifact, Host, Limits, LoadReason};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{
    EMPTY_RECIPE, HASTE, SCRATCH, Text, answers, broken, harmless, limits, load_hasty, provoking, soon,
};

/// Provokes an engine, checks what is said, and that it still answers.
async fn survives(text: &Text, expected: &str) {
    survives_with(text, limits(), expected).await;
}

async fn survives_with(text: &Text, limits: Limits, expected: &str) {
    let host = Host::new(None, limits).unwrap();
    let engine = host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap();
    answers(&engine).await;
    let why = broken(&engine, &provoking()).await;
    assert!(why.contains(expected), "expected `{expected}` in `{why}`");
    assert!(!why.contains('\n') && why.chars().count() < 400, "not one short line: {why}");
    answers(&engine).await;
}

/// Writes a list into the field of the answer at `offset`, and answers.
fn answer_list(offset: usize, address: &str, count: &str) -> String {
    format!(
        "(i32.store offset={offset} (i32.const {SCRATCH}) {address})
         (i32.store offset={} (i32.const {SCRATCH}) {count})
         (return (i32.const {SCRATCH}))",
        offset + 4
    )
}

/// Where in an answer the image reference is, and the command.
const IMAGE: usize = 8;
const COMMAND: usize = 28;

#[tokio::test]
async fn a_loop() {
    let hasty = Limits { plan: HASTE, ..limits() };
    survives_with(&Text::hostile("(loop $forever (br $forever))", ""), hasty, "it took longer than 300ms").await;
}

#[tokio::test]
async fn a_loop_after_the_answer() {
    let text = Text::hostile(
        "(global.set $stuck (i32.const 1))",
        r#"(global $stuck (mut i32) (i32.const 0))
           (func (export "cabi_post_sandbar:engine/engine@1.0.0#plan") (param i32)
             (if (global.get $stuck) (then (loop $forever (br $forever)))))"#,
    );
    let hasty = Limits { plan: HASTE, ..limits() };
    survives_with(&text, hasty, "it took longer than 300ms").await;
}

#[tokio::test]
async fn a_crash() {
    survives(&Text::hostile("unreachable", ""), "it crashed, as a panic does").await;
    survives(&Text::hostile("(drop (i32.div_u (i32.const 1) (i32.const 0)))", ""), "integer divide by zero").await;
    survives(&Text::hostile("(drop (i32.load (i32.const -4)))", ""), "out of bounds memory access").await;
}

#[tokio::test]
async fn a_deep_recursion() {
    let text = Text::hostile(
        "(drop (call $deeper (i32.const 1)))",
        "(func $deeper (param i32) (result i32) (i32.add (local.get 0) (call $deeper (i32.add (local.get 0) (i32.const 1)))))",
    );
    survives(&text, "recursed too deeply").await;
}

#[tokio::test]
async fn a_memory_bomb() {
    let grow = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable";
    survives(&Text::hostile(grow, ""), "it wanted more than 65536 KiB of memory").await;
}

#[tokio::test]
async fn many_memories_count_together() {
    // Twice 40 MiB, each of which would be allowed alone.
    let grow = "(if (i32.eq (memory.grow $a (i32.const 640)) (i32.const -1)) (then unreachable))
                (if (i32.eq (memory.grow $b (i32.const 640)) (i32.const -1)) (then unreachable))";
    let mut text = Text::hostile(grow, "");
    text.after_memory = "(memory $a 0) (memory $b 0)".to_owned();
    survives(&text, "of memory").await;
}

#[tokio::test]
async fn a_growing_table() {
    let text = Text::hostile(
        "(if (i32.eq (table.grow $t (ref.null func) (i32.const 10000000)) (i32.const -1)) (then unreachable))",
        "(table $t 1 funcref)",
    );
    survives(&text, "table elements").await;
}

#[tokio::test]
async fn an_answer_of_100_mb() {
    let roomy = Limits { memory_bytes: 256 << 20, ..limits() };
    let deed = format!(
        "(drop (memory.grow (i32.const 1600))) {}",
        answer_list(IMAGE, "(i32.const 65536)", "(i32.const 100000000)")
    );
    survives_with(&Text::hostile(&deed, ""), roomy, "its answer is larger than 1024 KiB").await;
}

#[tokio::test]
async fn a_list_of_a_million() {
    let deed = format!(
        "(drop (memory.grow (i32.const 200))) {}",
        answer_list(COMMAND, "(i32.const 131072)", "(i32.const 1000000)")
    );
    survives(&Text::hostile(&deed, ""), "its answer is larger than 1024 KiB").await;
}

#[tokio::test]
async fn a_list_whose_entries_share_one_string() {
    // 200 entries of 60,000 bytes each: 62 KB in the guest, 12 MB on the host.
    let deed = format!(
        "(local.set $features (i32.const 131072))
         (drop (memory.grow (i32.const 2)))
         (loop $entries
           (i32.store (local.get $features) (i32.const 4096))
           (i32.store offset=4 (local.get $features) (i32.const 60000))
           (local.set $features (i32.add (local.get $features) (i32.const 8)))
           (br_if $entries (i32.lt_u (local.get $features) (i32.const 132672))))
         {}",
        answer_list(COMMAND, "(i32.const 131072)", "(i32.const 200)")
    );
    let mut text = Text::hostile(&deed, "");
    // Zeros are valid text; what the descriptor left there is too.
    text.descriptor.summary = "shared".to_owned();
    survives(&text, "its answer is larger than 1024 KiB").await;
}

#[tokio::test]
async fn answers_that_break_the_rules() {
    let outside = answer_list(IMAGE, "(i32.const 130000)", "(i32.const 100000)");
    survives(&Text::hostile(&outside, ""), "out of bounds").await;
    let no_text = format!(
        "(i32.store16 (i32.const 131000) (i32.const 0xfffe)) {}",
        answer_list(IMAGE, "(i32.const 131000)", "(i32.const 2)")
    );
    survives(&Text::hostile(&no_text, ""), "utf-8").await;
    let no_case = format!("(i32.store8 (i32.const {SCRATCH}) (i32.const 7)) (return (i32.const {SCRATCH}))");
    survives(&Text::hostile(&no_case, ""), "it").await;
    survives(&Text::hostile(&format!("(return (i32.const {}))", EMPTY_RECIPE + 1), ""), "align").await;
    survives(&Text::hostile("(return (i32.const -8))", ""), "it").await;
}

#[tokio::test]
async fn harm_while_it_is_loaded() {
    let looping = Text { beside: "(func $f (loop $l (br $l))) (start $f)".to_owned(), ..Text::default() };
    let crashing = Text { beside: "(func $f unreachable) (start $f)".to_owned(), ..Text::default() };
    let greedy = Text { after_memory: "(memory $big 2000)".to_owned(), ..Text::default() };
    for (text, expected) in [(looping, "longer than 2s"), (crashing, "crashed"), (greedy, "KiB of memory")] {
        let hasty = Limits { describe: Duration::from_secs(2), ..limits() };
        let host = Host::new(None, hasty).unwrap();
        match soon(host.load_artifact(Artifact::from_bytes(text.build()).unwrap())).await {
            Err(LoadReason::Silent(why)) => assert!(why.contains(expected), "expected `{expected}` in `{why}`"),
            other => panic!("expected `{expected}`, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn one_that_hangs_does_not_stop_another() {
    let host = Host::new(None, Limits { plan: HASTE, ..limits() }).unwrap();
    let load = async |text: Text| host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap();
    let bad = load(Text::hostile("(loop $forever (br $forever))", "")).await;
    let good = load(Text::default()).await;
    let begun = Instant::now();
    let hanging: Vec<_> = (0..32)
        .map(|_| {
            let bad = Arc::clone(&bad);
            tokio::spawn(async move { bad.plan(&provoking()).await })
        })
        .collect();
    // All that may run do run by now, or soon; either way the other one answers.
    for _ in 0..50 {
        answers(&good).await;
    }
    for call in hanging {
        match soon(call).await.unwrap() {
            Err(EngineError::Broken(why)) => assert!(why.contains("longer than") || why.contains("busy"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    // Eight at a time, or else they would hold 32 threads: four turns.
    assert!(begun.elapsed() >= 4 * HASTE, "{:?}", begun.elapsed());
    answers(&bad).await;
}

/// A runtime with so few threads for blocking work that it shows who holds them.
fn runtime_with(threads: usize) -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(threads).build().unwrap()
}

#[test]
fn a_thread_that_never_comes_does_not_hold_the_caller() {
    runtime_with(1).block_on(async {
        let engine = load_hasty(&Text::hostile("(loop $forever (br $forever))", ""), Duration::from_secs(1)).await;
        let (release, released) = std::sync::mpsc::channel::<()>();
        let hog = tokio::task::spawn_blocking(move || released.recv());
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let engine = Arc::clone(&engine);
                tokio::spawn(async move { broken(&engine, &provoking()).await })
            })
            .collect();
        for call in calls {
            let why = soon(call).await.unwrap();
            assert!(why.contains("longer than") || why.contains("busy"), "{why}");
        }
        drop(release);
        assert!(soon(hog).await.unwrap().is_err());
        // What nobody waits for any more is not begun: else there would be loops on the one thread, one after another.
        assert!(soon(engine.plan(&harmless())).await.is_ok());
    });
}

#[test]
fn callers_that_go_away_leave_no_more_than_the_permitted_calls_running() {
    runtime_with(8).block_on(async {
        let engine = load_hasty(&Text::hostile("(loop $forever (br $forever))", ""), Duration::from_secs(1)).await;
        for _ in 0..80 {
            let request = provoking();
            let call = engine.plan(&request);
            // Polled once, so that it has begun if it may, and then dropped.
            tokio::select! { biased; _ = call => unreachable!("it loops"), () = std::future::ready(()) => {} }
        }
        // Had all 80 begun, they would hold the eight threads for ten turns.
        assert!(soon(engine.plan(&harmless())).await.is_ok());
    });
}
