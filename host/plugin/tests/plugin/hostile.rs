//! Engines that mean harm, or are merely broken: each costs one clear error for one call, and the next call works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::engine::{Engine as _, EngineError};
use sandbar_hostile::engine;
use sandbar_hostile::text::list;
use sandbar_plugin::{Artifact, Host, Limits, LoadReason};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{HASTE, Text, answers, broken, harmless, limits, load_hasty, looping, provoking, soon};

/// Provokes an engine, checks what is said, and that it still answers.
async fn survives(name: &str, expected: &str) {
    survives_with(name, limits(), expected).await;
}

async fn survives_with(name: &str, limits: Limits, expected: &str) {
    let host = Host::new(None, limits).unwrap();
    let engine = host.load_artifact(Artifact::from_bytes(engine(name).build()).unwrap()).await.unwrap();
    answers(&engine).await;
    let why = broken(&engine, &provoking()).await;
    assert!(why.contains(expected), "{name}: expected `{expected}` in `{why}`");
    assert!(!why.contains('\n') && why.chars().count() < 400, "not one short line: {why}");
    answers(&engine).await;
}

#[tokio::test]
async fn loops() {
    for name in ["loop-later", "loop-in-cleanup"] {
        survives_with(name, Limits { plan: HASTE, ..limits() }, "it took longer than 300ms").await;
    }
}

#[tokio::test]
async fn crashes() {
    survives("trap", "it crashed, as a panic does").await;
    survives("trap-division", "integer divide by zero").await;
    survives("trap-load", "out of bounds memory access").await;
    survives("recursion", "recursed too deeply").await;
}

#[tokio::test]
async fn what_grows() {
    survives("memory-bomb", "it wanted more than 65536 KiB of memory").await;
    survives("memory-in-two", "it wanted more than 65536 KiB of memory").await;
    survives("table-bomb", "table elements").await;
}

#[tokio::test]
async fn answers_that_are_too_large() {
    for name in ["large-text", "large-aliased", "large-aliased-little", "large-list", "large-steps"] {
        survives(name, "its answer is larger than 1024 KiB").await;
    }
    // In one piece, where the guest has the memory for it.
    let text = Text::later(&format!("(drop (memory.grow (i32.const 1600))) {}", list(8, 65_536, 100_000_000)), "");
    let host = Host::new(None, Limits { memory_bytes: 256 << 20, ..limits() }).unwrap();
    let engine = host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap();
    let why = broken(&engine, &provoking()).await;
    assert!(why.contains("its answer is larger than 1024 KiB"), "{why}");
}

#[tokio::test]
async fn answers_that_break_the_rules() {
    survives("malformed-outside", "out of bounds").await;
    survives("malformed-text", "utf-8").await;
    survives("malformed-case", "it").await;
    survives("malformed-alignment", "align").await;
    survives("malformed-address", "it").await;
}

#[tokio::test]
async fn harm_while_it_is_loaded() {
    for (name, expected) in
        [("loop-at-start", "longer than 2s"), ("trap-at-start", "crashed"), ("memory-at-start", "KiB of memory")]
    {
        let hasty = Limits { describe: Duration::from_secs(2), ..limits() };
        let host = Host::new(None, hasty).unwrap();
        match soon(host.load_artifact(Artifact::from_bytes(engine(name).build()).unwrap())).await {
            Err(LoadReason::Silent(why)) => assert!(why.contains(expected), "expected `{expected}` in `{why}`"),
            other => panic!("expected `{expected}`, got {other:?}"),
        }
    }
}

#[tokio::test]
async fn one_that_hangs_does_not_stop_another() {
    let host = Host::new(None, Limits { plan: HASTE, ..limits() }).unwrap();
    let load = async |text: Text| host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap();
    let bad = load(looping()).await;
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
        let engine = load_hasty(&looping(), Duration::from_secs(1)).await;
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
        let engine = load_hasty(&looping(), Duration::from_secs(1)).await;
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
