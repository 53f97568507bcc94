//! Commands in units.

use std::time::{Duration, Instant};

use sandbar_core::runtime::{Runtime as _, RuntimeError, UnitState};

use crate::bench::{Bench, command};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_streams_and_exit_code_come_back() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let answer = bench.exec(&unit, "echo out; echo err >&2; exit 7").await.expect("it runs");
    assert_eq!((answer.code, answer.stdout.as_str(), answer.stderr.as_str()), (7, "out\n", "err\n"));
    let answer = bench.exec(&unit, "true").await.expect("it runs");
    assert_eq!((answer.code, answer.stdout.as_str()), (0, ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_and_user_are_the_command_s_own() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let mut plan = command("echo $EXTRA $FROM_IMAGE $PASSWORD; id -u");
    plan.env = vec![("EXTRA".to_owned(), "a=b".to_owned())];
    plan.user = Some("1234".to_owned());
    let answer = bench.runtime.exec(&unit.id, &plan).await.expect("it runs");
    assert_eq!(answer.stdout, "a=b yes 0123456789abcdef0123456789abcdef\n1234\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_takes_too_long_is_left() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let mut plan = command("sleep 300");
    plan.timeout = Duration::from_millis(700);
    let start = Instant::now();
    assert_eq!(bench.runtime.exec(&unit.id, &plan).await, Err(RuntimeError::Deadline(plan.timeout)));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(bench.exec(&unit, "true").await.is_ok_and(|answer| answer.code == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_keeps_the_output_open_holds_nothing_up() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let start = Instant::now();
    let answer = bench.exec(&unit, "sleep 300 & echo done").await.expect("it runs");
    assert_eq!((answer.code, answer.stdout.as_str()), (0, "done\n"));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_bounded_and_read_to_its_end() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let answer = bench.exec(&unit, "yes é | head -n 400000; echo end >&2; exit 4").await.expect("it runs");
    assert_eq!((answer.code, answer.stderr.as_str()), (4, "end\n"));
    assert!(answer.stdout.len() <= 64 * 1024 && answer.stdout.len() > 64 * 1024 - 4);
    assert!(!answer.stdout.contains('\u{fffd}'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_there_fails_as_in_a_shell() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let mut plan = command("");
    plan.argv = vec!["/no/such/program".to_owned()];
    let answer = bench.runtime.exec(&unit.id, &plan).await.expect("that is an answer too");
    assert!(matches!(answer.code, 126 | 127), "{answer:?}");
    // Docker's own words come as if the command had printed them, in one stream or the other.
    assert!(format!("{}{}", answer.stdout, answer.stderr).contains("/no/such/program"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_run_is_gone() {
    let bench = Bench::new().await;
    let paused = bench.sleeper("paused").await;
    bench.docker.pause_container(&paused.id).await.expect("Docker pauses it");
    assert!(matches!(bench.exec(&paused, "true").await, Err(RuntimeError::Gone(_))));
    assert!(bench.runtime.inspect(&paused.id).await.is_ok_and(|unit| unit.state == UnitState::Paused));
    assert_eq!(bench.mine().await.first().map(|unit| unit.state), Some(UnitState::Paused));

    let ended = bench.put(&bench.plan("ended", "true")).await;
    assert!(bench.ended(&ended).await.is_ok());
    assert!(matches!(bench.exec(&ended, "true").await, Err(RuntimeError::Gone(_))));

    assert_eq!(bench.runtime.remove(&ended.id, Duration::ZERO).await, Ok(()));
    assert!(matches!(bench.exec(&ended, "true").await, Err(RuntimeError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_is_removed_ends_its_commands() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let plan = command("echo started > /tmp/started; sleep 300");
    let running = bench.runtime.exec(&unit.id, &plan);
    let removing = async {
        let started = || async { bench.exec(&unit, "cat /tmp/started").await.ok().filter(|answer| answer.code == 0) };
        crate::bench::until("the command started", started).await;
        bench.runtime.remove(&unit.id, Duration::ZERO).await
    };
    let start = Instant::now();
    let (answer, removed) = tokio::join!(running, removing);
    assert_eq!(removed, Ok(()));
    assert!(
        matches!(&answer, Err(RuntimeError::Gone(_))) || answer.as_ref().is_ok_and(|a| a.code == 137),
        "{answer:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(8));
}
