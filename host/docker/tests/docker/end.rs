//! The end of units: waiting for it, hearing of it, and bringing it about.

use std::time::{Duration, Instant};

use sandbar_core::runtime::{Event, Exit, Runtime as _, RuntimeError};

use crate::bench::{Bench, INSTALLATION, listed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_told_with_its_exit_code_now_or_later() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.plan("a", "while ! [ -e /tmp/go ]; do sleep 0.05; done; exit 5")).await;
    let (exit, _) = tokio::join!(bench.ended(&unit), async {
        assert!(bench.exec(&unit, "touch /tmp/go").await.is_ok_and(|answer| answer.code == 0));
    });
    assert_eq!(exit, Ok(Exit { code: 5, out_of_memory: false }));
    assert_eq!(bench.ended(&unit).await, exit);
    assert!(matches!(bench.runtime.ended(&"0".repeat(64)).await, Err(RuntimeError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn want_of_memory_is_told() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.plan("a", "exec dd if=/dev/zero of=/dev/null bs=256M count=1")).await;
    assert_eq!(bench.ended(&unit).await, Ok(Exit { code: 137, out_of_memory: true }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_ends_the_wait() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let (exit, removed) = tokio::join!(bench.ended(&unit), bench.runtime.remove(&unit.id, Duration::ZERO));
    assert_eq!(removed, Ok(()));
    assert!(
        matches!(exit, Ok(Exit { code: 137, .. }) | Err(RuntimeError::NotFound(_))),
        "the removal may be through before the wait begins: {exit:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_can_be_repeated_and_takes_ids_and_names() {
    let bench = Bench::new().await;
    let (a, b) = (bench.sleeper("a").await, bench.sleeper("b").await);
    for _ in 0..2 {
        assert_eq!(bench.runtime.remove(&a.id, Duration::ZERO).await, Ok(()));
        assert_eq!(bench.runtime.remove(&b.name, Duration::ZERO).await, Ok(()));
    }
    assert_eq!(bench.mine().await, []);
    assert!(matches!(bench.runtime.inspect(&a.id).await, Err(RuntimeError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_removals_at_once_all_succeed() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let removals = futures_util::future::join_all((0..6).map(|_| bench.runtime.remove(&unit.id, Duration::ZERO)));
    assert!(removals.await.iter().all(Result::is_ok));
    assert_eq!(bench.mine().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grace_is_given_and_then_it_is_over() {
    let bench = Bench::new().await;
    // Obeys the signal; what it leaves is seen through the events' exit code.
    let polite = bench.put(&bench.plan("polite", "trap 'exit 9' TERM; while true; do sleep 0.05; done")).await;
    let (exit, removed) = tokio::join!(bench.ended(&polite), bench.runtime.remove(&polite.id, Duration::from_secs(10)));
    assert_eq!((exit.map(|exit| exit.code), removed), (Ok(9), Ok(())));
    // Does not.
    let deaf = bench.put(&bench.plan("deaf", "trap '' TERM; while true; do sleep 0.05; done")).await;
    let start = Instant::now();
    assert_eq!(bench.runtime.remove(&deaf.id, Duration::from_millis(500)).await, Ok(()));
    assert!(start.elapsed() > Duration::from_millis(500) && start.elapsed() < Duration::from_secs(8));
    assert_eq!(bench.mine().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_paused_can_be_removed() {
    let bench = Bench::new().await;
    for grace in [Duration::ZERO, Duration::from_secs(1)] {
        let unit = bench.sleeper("a").await;
        bench.docker.pause_container(&unit.id).await.expect("Docker pauses it");
        assert_eq!(bench.runtime.remove(&unit.id, grace).await, Ok(()));
        assert_eq!(bench.mine().await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_installation_s_unit_is_left_alone() {
    let (bench, other) = (Bench::new().await, Bench::new().await);
    let unit = other.sleeper("a").await;
    for grace in [Duration::ZERO, Duration::from_secs(1)] {
        let removed = bench.runtime.remove(&unit.name, grace).await;
        assert!(matches!(removed, Err(RuntimeError::Refused(_))), "{removed:?}");
    }
    assert_eq!(other.mine().await, [listed(&unit)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_heard_of() {
    let (bench, other) = (Bench::new().await, Bench::new().await);
    let (unit, foreign) = (bench.sleeper("a").await, other.sleeper("a").await);
    let mut events = bench.runtime.watch();
    assert_eq!(other.runtime.remove(&foreign.id, Duration::ZERO).await, Ok(()));
    // However early this is: what happens from the call on is told.
    assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    let (name, labels) = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            // Everybody's ends are told.
            match events.recv().await {
                Some(Event::Ended { id, name, labels }) if id == unit.id => break (name, labels),
                Some(Event::Ended { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    })
    .await
    .expect("it is told");
    assert_eq!((&name, labels.get(INSTALLATION)), (&unit.name, Some(&bench.id)));
    assert_eq!(labels.get("image"), None);
    let next = bench.sleeper("b").await;
    assert_eq!(bench.runtime.remove(&next.id, Duration::ZERO).await, Ok(()));
    let events = tokio::sync::Mutex::new(events);
    let second = || async {
        let event = events.lock().await.recv().await;
        matches!(&event, Some(Event::Ended { id, .. }) if *id == next.id).then_some(())
    };
    until("the second end is told", second).await;
}
