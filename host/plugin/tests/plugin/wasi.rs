//! What an engine finds behind the interfaces of WASI: nothing. And that waiting ends the call.

use std::sync::Arc;

use sandbar_core::engine::Engine as _;
use sandbar_plugin::{Artifact, Host};

use crate::fixture::{
    EMPTY_RECIPE, HASTE, SCRATCH, Text, answers, broken, harmless, host, load, load_hasty, provoking, soon,
};

/// An engine that waits for `nanoseconds` when it is provoked.
fn waiting(nanoseconds: u64) -> Text {
    let plan = format!(
        "(if (local.get $superuser) (then (call $block (call $subscribe-duration (i64.const {nanoseconds})))))
         (i32.const {EMPTY_RECIPE})"
    );
    Text::importing(
        &[
            ("io/poll", "[method]pollable.block", "(param i32)"),
            ("clocks/monotonic-clock", "subscribe-duration", "(param i64) (result i32)"),
        ],
        &plan,
    )
}

#[tokio::test]
async fn waiting_ends_the_call_and_frees_the_thread() {
    for nanoseconds in [3_600_000_000_000, u64::MAX] {
        let engine = load_hasty(&waiting(nanoseconds), HASTE).await;
        // More than may be in flight at once: were the threads still held, the last ones would find it busy.
        let calls: Vec<_> = (0..8)
            .map(|_| {
                let engine = Arc::clone(&engine);
                tokio::spawn(async move { broken(&engine, &provoking()).await })
            })
            .collect();
        for call in calls {
            let why = soon(call).await.unwrap();
            assert!(why.contains("longer than 300ms"), "{why}");
        }
        answers(&engine).await;
    }
}

#[tokio::test]
async fn a_short_wait_is_no_error() {
    let engine = load(&waiting(1_000_000)).await.unwrap();
    assert!(soon(engine.plan(&provoking())).await.is_ok());
}

#[tokio::test]
async fn leaving_is_one_failed_call() {
    let leaving = Text::importing(
        &[("cli/exit", "exit", "(param i32)")],
        &format!("(if (local.get $superuser) (then (call $exit (i32.const 1)))) (i32.const {EMPTY_RECIPE})"),
    );
    let engine = load(&leaving).await.unwrap();
    let why = broken(&engine, &provoking()).await;
    assert!(why.contains("exit code 1"), "{why}");
    assert!(soon(engine.plan(&harmless())).await.is_ok());
}

/// An engine that says something on one of its outputs and crashes.
fn speaking(output: &str) -> Text {
    let interface = format!("cli/{output}");
    let get = format!("get-{output}");
    let mut text = Text::importing(
        &[
            ("io/streams", "[method]output-stream.blocking-write-and-flush", "(param i32 i32 i32 i32)"),
            (&interface, &get, "(result i32)"),
        ],
        &format!(
            "(if (local.get $superuser) (then
               (call $blocking-write-and-flush (call ${get}) (i32.const 70000) (i32.const 24) (i32.const {SCRATCH}))
               unreachable))
             (i32.const {EMPTY_RECIPE})"
        ),
    );
    text.after_memory = r#"(data (i32.const 70000) "Traceback:\n KeyError: no\n ")"#.to_owned();
    text
}

#[tokio::test]
async fn the_last_words_of_a_crash_are_told_and_other_output_is_not() {
    let engine = load(&speaking("stderr")).await.unwrap();
    let why = broken(&engine, &provoking()).await;
    assert_eq!(why, "it crashed, as a panic does; it said: Traceback: KeyError: no");
    assert!(soon(engine.plan(&harmless())).await.is_ok());

    let engine = load(&speaking("stdout")).await.unwrap();
    assert_eq!(broken(&engine, &provoking()).await, "it crashed, as a panic does");
}

#[tokio::test]
async fn every_door_is_closed() {
    // Each pushes a list into scratch memory, and its length is at 4.
    let lists = ["get-environment", "get-arguments", "get-directories"].map(|function| {
        format!(
            "(call ${function} (i32.const {SCRATCH}))
             (if (i32.load offset=4 (i32.const {SCRATCH})) (then unreachable))"
        )
    });
    // Each must be an error, and that one is `access-denied`.
    let sockets = ["create-tcp-socket", "create-udp-socket"].map(|function| {
        format!(
            "(call ${function} (i32.const 0) (i32.const {SCRATCH}))
             (if (i32.ne (i32.load8_u (i32.const {SCRATCH})) (i32.const 1)) (then unreachable))
             (if (i32.ne (i32.load8_u offset=4 (i32.const {SCRATCH})) (i32.const 1)) (then unreachable))"
        )
    });
    let clocks = [
        "(if (i64.ne (call $now) (i64.const 0)) (then unreachable))".to_owned(),
        format!(
            "(call $wall-now (i32.const {SCRATCH}))
             (if (i64.ne (i64.load (i32.const {SCRATCH})) (i64.const 0)) (then unreachable))"
        ),
    ];
    let checks: Vec<String> = lists.into_iter().chain(sockets).chain(clocks).collect();
    for check in &checks {
        let mut text = Text::importing(
            &[
                ("cli/environment", "get-environment", "(param i32)"),
                ("cli/environment", "get-arguments", "(param i32)"),
                ("filesystem/preopens", "get-directories", "(param i32)"),
                ("sockets/tcp-create-socket", "create-tcp-socket", "(param i32 i32)"),
                ("sockets/udp-create-socket", "create-udp-socket", "(param i32 i32)"),
                ("clocks/monotonic-clock", "now", "(result i64)"),
            ],
            &format!("{check} (i32.const {EMPTY_RECIPE})"),
        );
        text.imports.push_str("import wasi:clocks/wall-clock@0.2.0;");
        text.beside.push_str(r#"(import "wasi:clocks/wall-clock@0.2.0" "now" (func $wall-now (param i32)))"#);
        let engine = load(&text).await.unwrap();
        assert!(soon(engine.plan(&harmless())).await.is_ok(), "{check}");
    }
}

#[tokio::test]
async fn the_same_question_gets_the_same_answer() {
    // Random bytes go into the size of /dev/shm, which is at 80.
    let random = Text::importing(
        &[("random/random", "get-random-u64", "(result i64)")],
        &format!("(i64.store offset=80 (i32.const {SCRATCH}) (call $get-random-u64)) (i32.const {SCRATCH})"),
    );
    let engine = load(&random).await.unwrap();
    let first = soon(engine.plan(&harmless())).await.unwrap();
    assert_ne!(first.container.shm_bytes, 0);
    assert_eq!(soon(engine.plan(&harmless())).await.unwrap(), first);
}

#[tokio::test]
async fn elsewhere_time_and_chance_are_others() {
    let random = Text::importing(
        &[("random/random", "get-random-u64", "(result i64)")],
        &format!("(i64.store offset=80 (i32.const {SCRATCH}) (call $get-random-u64)) (i32.const {SCRATCH})"),
    );
    let clock = Text::importing(
        &[("clocks/monotonic-clock", "now", "(result i64)")],
        &format!("(i64.store offset=80 (i32.const {SCRATCH}) (call $now)) (i32.const {SCRATCH})"),
    );
    let wall = Text {
        // The seconds only: nanoseconds would lie where the list of capabilities is.
        plan: format!(
            "(call $now (i32.const {read})) (i64.store offset=80 (i32.const {SCRATCH}) (i64.load (i32.const {read})))
             (i32.const {SCRATCH})",
            read = SCRATCH + 2048
        ),
        ..Text::importing(&[("clocks/wall-clock", "now", "(param i32)")], "")
    };
    for text in [random, clock, wall] {
        let artifact = Artifact::from_bytes(text.build()).unwrap();
        let shm = async |host: Host| {
            let engine = host.load_artifact(artifact.clone()).await.unwrap();
            assert_eq!(engine.describe_again().await.unwrap(), *engine.descriptor());
            soon(engine.plan(&harmless())).await.unwrap().container.shm_bytes
        };
        assert_ne!(shm(host()).await, shm(host().elsewhere()).await);
    }
}

#[tokio::test]
async fn a_function_that_wasi_does_not_have_is_told_at_load() {
    let text = r#"(component
        (import "wasi:io/poll@0.2.0" (instance (export "no-such-thing" (func))))
        (instance $engine)
        (export "sandbar:engine/engine@1.0.0" (instance $engine)))"#;
    let artifact = sandbar_plugin::Artifact::from_bytes(wat::parse_str(text).unwrap()).unwrap();
    let reason = crate::fixture::host().load_artifact(artifact).await.expect_err("nothing to link");
    let said = reason.to_string();
    assert!(said.contains("wasi:io/poll") && !said.contains('\n'), "{said}");
}
