//! Tenants' commands. What is left of one is looked for from outside of its container.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bollard::exec::StartExecOptions;
use bollard::models::ExecConfig;
use sandbar_core::runtime::{Captured, Left, Result, RunOutput, RunPlan, Runtime as _, RuntimeError, Unit, UnitPlan};
use tokio_util::sync::CancellationToken;

use crate::bench::{Bench, DEBIAN, IMAGE, until};

/// A shell line as a tenant's command, with a mark of its own.
fn line(line: &str) -> RunPlan {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    RunPlan {
        argv: ["sh", "-c", line].map(str::to_owned).to_vec(),
        env: Vec::new(),
        stdin: Vec::new(),
        folder: "/tmp".to_owned(),
        user: None,
        timeout: Duration::from_secs(60),
        keep: 4096,
        mark: ("SANDBAR_MARK".to_owned(), format!("{:032x}", COUNT.fetch_add(1, Ordering::Relaxed))),
    }
}

/// Runs to its end.
async fn run(bench: &Bench, unit: &Unit, plan: &RunPlan) -> Result<RunOutput> {
    bench.runtime.run(&unit.id, plan, &CancellationToken::new(), Arc::new(|| true)).await
}

/// Runs until the daemon sees all these processes, and is then cancelled. Answers how long that took, too.
async fn cancelled(bench: &Bench, unit: &Unit, plan: &RunPlan, seen: &[&str], alone: bool) -> (RunOutput, Duration) {
    let cancel = CancellationToken::new();
    let cancelling = async {
        until("the processes run", || async { has(bench, unit, seen).await.then_some(()) }).await;
        cancel.cancel();
        Instant::now()
    };
    let (output, since) = tokio::join!(bench.runtime.run(&unit.id, plan, &cancel, Arc::new(move || alone)), cancelling);
    let took = since.elapsed();
    println!("ended within {took:?}: {}", plan.argv[2]);
    (output.expect("it was started"), took)
}

async fn has(bench: &Bench, unit: &Unit, wanted: &[&str]) -> bool {
    let processes = bench.processes(unit).await;
    wanted.iter().all(|wanted| processes.iter().any(|process| process == wanted))
}

fn text(captured: &Captured) -> String {
    assert_eq!((captured.dropped, captured.tail.len()), (0, 0));
    String::from_utf8_lossy(&captured.head).into_owned()
}

async fn everything_goes(image: &str) {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", image)).await;
    // Busybox as Debian builds it has no `nohup`.
    let nohup =
        if image == DEBIAN { "nohup sleep 301 >/dev/null 2>&1 & wait" } else { "trap '' HUP; sleep 301 & wait" };
    let lines: [(&str, &[&str]); 9] = [
        ("sleep 301", &["sleep 301"]),
        ("exec sleep 301", &["sleep 301"]),
        ("sleep 301 & sleep 302 | sleep 303", &["sleep 301", "sleep 302", "sleep 303"]),
        ("$BB setsid sleep 301 & sleep 302", &["sleep 301", "sleep 302"]),
        (nohup, &["sleep 301"]),
        ("( ( sleep 301 & ) & ); sleep 302", &["sleep 301", "sleep 302"]),
        ("trap '' TERM HUP INT; sleep 301; sleep 302; sleep 303", &["sleep 301"]),
        ("( env -i $BB setsid sh -c 'sleep 301 & sleep 302' & ) & sleep 303", &["sleep 301", "sleep 302", "sleep 303"]),
        ("exec env -i sleep 301", &["sleep 301"]),
    ];
    for (what, seen) in lines {
        let (output, _) = cancelled(&bench, &unit, &line(what), seen, true).await;
        assert_eq!((output.code, output.timed_out, output.gone), (124, true, true), "{what}");
        assert_eq!(bench.processes(&unit).await, [] as [&str; 0], "{what}");
        let next = run(&bench, &unit, &line("echo next")).await.expect("it runs");
        assert_eq!((next.code, text(&next.stdout).as_str()), (0, "next\n"), "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_a_command_started_goes_with_it() {
    everything_goes(IMAGE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_with_debian_s_shell_too() {
    everything_goes(DEBIAN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_starts_itself_again_goes_too() {
    let bench = Bench::new().await;
    let respawning = "f() { while :; do sleep 0.02; $BB setsid sh -c \"$0\" \"$0\" & sleep 301 & wait $!; done; }; f";
    for (image, what, seen) in [
        (IMAGE, "while :; do (sleep 0.3 &) ; sleep 0.01; done", "sleep 0.3"),
        (DEBIAN, "while :; do (sleep 0.3 &) ; sleep 0.01; done", "sleep 0.3"),
        (DEBIAN, respawning, "sleep 301"),
    ] {
        let unit = bench.put(&bench.room("a", image)).await;
        let mut plan = line(what);
        plan.argv.push(what.to_owned());
        let (output, _) = cancelled(&bench, &unit, &plan, &[seen], true).await;
        assert_eq!((output.code, output.gone), (124, true), "{what}");
        assert_eq!(bench.processes(&unit).await, [] as [&str; 0], "{what}");
        bench.runtime.remove(&unit.id, Duration::ZERO).await.expect("it can be removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_forks_without_end_goes_too() {
    let bench = Bench::new().await;
    // Memory for all of them: what the kernel ends for want of it makes room for others, and may be who is to end them.
    let plan = UnitPlan { memory_bytes: 256 << 20, ..bench.room("a", DEBIAN) };
    let unit = bench.put(&plan).await;
    // Each says once that it could not make another: the container is full.
    let bomb = r#"exec perl -e 'while (1) { defined(fork) or $said++ or syswrite(STDOUT, "full\n") }'"#;
    let plan = RunPlan { timeout: Duration::from_secs(3), ..line(bomb) };
    let start = Instant::now();
    let output = run(&bench, &unit, &plan).await.expect("it was started");
    println!("ended within {:?}: {bomb}", start.elapsed().saturating_sub(plan.timeout));
    assert!(output.stdout.head.starts_with(b"full\n"), "{output:?}");
    assert_eq!((output.code, output.gone), (124, true), "{output:?}");
    assert_eq!(bench.processes(&unit).await, [] as [&str; 0]);
    // The dead are buried too: as long as they are not they are in the way of others.
    let next = || async { run(&bench, &unit, &line("ls / | cat")).await.ok().filter(|next| next.code == 0) };
    until("the next command starts others", next).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_container_itself_starts_is_nobody_s() {
    let bench = Bench::new().await;
    let mut plan = bench.room("a", IMAGE);
    // Starts another one whenever one goes.
    plan.command = vec!["while :; do sleep 340; done".to_owned()];
    let unit = bench.put(&plan).await;
    let (output, _) = cancelled(&bench, &unit, &line("sleep 301"), &["sleep 301", "sleep 340"], true).await;
    assert!(output.gone);
    assert!(has(&bench, &unit, &["sleep 340"]).await && !has(&bench, &unit, &["sleep 301"]).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_commands_and_what_earlier_ones_left_stay() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let daemon = run(&bench, &unit, &line("sleep 320 & echo up")).await.expect("it runs");
    assert_eq!((daemon.code, text(&daemon.stdout).as_str()), (0, "up\n"));

    let cancel = CancellationToken::new();
    let other = line("(env -i $BB setsid sleep 311 &) ; sleep 312");
    let running = bench.runtime.run(&unit.id, &other, &cancel, Arc::new(|| true));
    let meanwhile = async {
        until("the other runs", || async { has(&bench, &unit, &["sleep 311", "sleep 312"]).await.then_some(()) }).await;
        // Its child without a mark is known by its parent.
        let first = line("env -i sleep 301 & sleep 302");
        let (output, _) = cancelled(&bench, &unit, &first, &["sleep 301", "sleep 302"], false).await;
        assert!(output.gone);
        let left = bench.processes(&unit).await;
        assert_eq!(
            left.iter().filter(|process| process.starts_with("sleep")).collect::<Vec<_>>(),
            ["sleep 311", "sleep 312", "sleep 320"]
        );
        cancel.cancel();
    };
    let (output, ()) = tokio::join!(running, meanwhile);
    assert!(output.is_ok_and(|output| output.gone));
    // The earlier command's keeps its mark, and so its life.
    assert_eq!(bench.processes(&unit).await, ["sleep 320"]);
}

/// Starts a command and forgets it, as a host does that is killed: nobody reads what it prints, and nobody will end it.
async fn orphan(bench: &Bench, unit: &Unit, what: &str, seen: &[&str]) {
    let plan = line(what);
    let env = vec![format!("{}={}", plan.mark.0, plan.mark.1)];
    let config = ExecConfig { cmd: Some(plan.argv), env: Some(env), ..ExecConfig::default() };
    let exec = bench.docker.create_exec(&unit.id, config).await.expect("it is made");
    let detached = StartExecOptions { detach: true, ..StartExecOptions::default() };
    bench.docker.start_exec(&exec.id, Some(detached)).await.expect("it is started");
    until("the processes run", || async { has(bench, unit, seen).await.then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_earlier_host_left_at_work_goes_and_what_was_over_stays() {
    let bench = Bench::new().await;
    let mark = line("").mark.0;
    for image in [IMAGE, DEBIAN] {
        let unit = bench.put(&bench.room("a", image)).await;
        assert!(bench.runtime.end_left(&unit.id, &mark, Left::AtWork).await.expect("nothing is there"));
        let server = run(&bench, &unit, &line("sleep 305 >/dev/null 2>&1 &")).await.expect("it runs");
        assert_eq!(server.code, 0);
        assert!(bench.runtime.end_left(&unit.id, &mark, Left::AtWork).await.expect("only what is over is there"));
        assert_eq!(bench.processes(&unit).await, ["sleep 305"]);
        for (what, seen) in [
            ("$BB setsid sleep 301 & sleep 302", vec!["sleep 301", "sleep 302"]),
            ("$BB setsid sleep 301 & exec env -i sleep 302", vec!["sleep 301", "sleep 302"]),
            ("trap '' TERM; ( ( sleep 301 & ) & ); exec sleep 302", vec!["sleep 301", "sleep 302"]),
        ] {
            orphan(&bench, &unit, what, &seen).await;
            orphan(&bench, &unit, "sleep 303 & sleep 304", &["sleep 303", "sleep 304"]).await;
            assert!(bench.runtime.end_left(&unit.id, &mark, Left::AtWork).await.expect("it can be done"), "{what}");
            assert_eq!(bench.processes(&unit).await, ["sleep 305"], "{what}");
        }
        run(&bench, &unit, &line("$BB setsid env -i sleep 306 >/dev/null 2>&1 &")).await.expect("it runs");
        assert!(bench.runtime.end_left(&unit.id, &mark, Left::Everything).await.expect("it can be done"));
        assert_eq!(bench.processes(&unit).await, [] as [&str; 0]);
        bench.runtime.remove(&unit.id, Duration::ZERO).await.expect("it can be removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_too_long_is_over_and_leaves_what_it_said() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    // Before and after it has a guard.
    for timeout in [Duration::from_millis(400), Duration::from_millis(2500)] {
        let plan = RunPlan { timeout, ..line("echo before; echo and >&2; sleep 301") };
        let start = Instant::now();
        let output = run(&bench, &unit, &plan).await.expect("it runs");
        assert!(start.elapsed() >= timeout);
        assert_eq!((output.code, output.timed_out, output.gone), (124, true, true));
        assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("before\n", "and\n"));
        assert_eq!(bench.processes(&unit).await, [] as [&str; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_goes_takes_the_command_along() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let plan = line("sleep 301");
    let running = run(&bench, &unit, &plan);
    tokio::select! {
        output = running => panic!("{output:?}"),
        () = until("it runs", || async { has(&bench, &unit, &["sleep 301"]).await.then_some(()) }) => {}
    }
    until("it is gone", || async { bench.processes(&unit).await.is_empty().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_cancelled_at_once_does_not_run_on() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    for _ in 0..3 {
        let output = bench.runtime.run(&unit.id, &line("sleep 301"), &cancel, Arc::new(|| true)).await;
        assert!(output.is_ok_and(|output| output.code == 124 && output.gone));
        assert_eq!(bench.processes(&unit).await, [] as [&str; 0]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_ends_by_itself_leaves_its_children() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    // Long enough to have got a guard, which goes with it.
    for what in ["sleep 330 & echo done", "sleep 2; sleep 330 & echo done"] {
        let output = run(&bench, &unit, &line(what)).await.expect("it runs");
        assert_eq!((output.code, text(&output.stdout).as_str()), (0, "done\n"));
        assert!(!output.timed_out && output.gone);
    }
    let children = || async { (bench.processes(&unit).await == ["sleep 330", "sleep 330"]).then_some(()) };
    until("only the children are left", children).await;
    // One that prints without end holds nothing up either.
    let output = run(&bench, &unit, &line("yes & exit 3")).await.expect("it runs");
    assert!(output.code == 3 && !output.timed_out);
    assert!(has(&bench, &unit, &["yes"]).await || output.stdout.dropped > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_is_read_to_its_end_while_output_is_printed() {
    let bench = Bench::new().await;
    for image in [IMAGE, DEBIAN] {
        let unit = bench.put(&bench.room(if image == IMAGE { "a" } else { "b" }, image)).await;
        let mut plan = line("cat");
        plan.stdin = b"one\n\0two".to_vec();
        let output = run(&bench, &unit, &plan).await.expect("it runs");
        assert_eq!((output.code, output.stdout.head.as_slice()), (0, plan.stdin.as_slice()));
        // Prints all before it reads any.
        let mut plan = line("yes 0123456 | head -c 10485760; cat | $BB wc -c");
        plan.stdin = vec![b'x'; 1 << 20];
        let output = run(&bench, &unit, &plan).await.expect("it runs");
        let (head, tail) = (&output.stdout.head, &output.stdout.tail);
        assert_eq!((output.code, head.len(), tail.len()), (0, 2048, 2048));
        assert!(head.starts_with(b"0123456\n0123456\n") && tail.ends_with(b"0123456\n1048576\n"));
        assert_eq!(output.stdout.dropped, (10 << 20) + 8 - 4096);
        // Reads none of it, or nothing is there to be read.
        plan.argv[2] = "exit 5".to_owned();
        assert_eq!(run(&bench, &unit, &plan).await.map(|output| output.code), Ok(5));
        let output = run(&bench, &unit, &line("cat; echo end")).await.expect("it runs");
        assert_eq!((output.code, text(&output.stdout).as_str()), (0, "end\n"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_folder_user_and_exit_code_are_the_command_s_own() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let mut plan = line("echo \"$EXTRA|$FROM_IMAGE|$SANDBAR_MARK\"; echo $PWD; id -u; exit 7");
    plan.env = vec![("EXTRA".to_owned(), "a=b\nc".to_owned())];
    plan.user = Some("1234".to_owned());
    let output = run(&bench, &unit, &plan).await.expect("it runs");
    assert_eq!(text(&output.stdout), format!("a=b\nc|yes|{}\n/tmp\n1234\n", plan.mark.1));
    assert_eq!((output.code, output.timed_out, output.gone), (7, false, true));
    plan.env[0].1.push('\0');
    assert!(matches!(run(&bench, &unit, &plan).await, Err(RuntimeError::Refused(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_cannot_be_started_says_so_as_in_a_shell() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    for (program, folder) in
        [("/no/such/program", "/tmp"), ("no-such-program", "/tmp"), ("/etc", "/tmp"), ("true", "/no/folder")]
    {
        let plan = RunPlan { argv: vec![program.to_owned()], folder: folder.to_owned(), ..line("") };
        let output = run(&bench, &unit, &plan).await.expect("that is an answer too");
        assert!(matches!(output.code, 126 | 127), "{output:?}");
        let said = text(&output.stderr);
        assert!(said.contains(if folder == "/tmp" { program } else { folder }), "{said}");
        assert_eq!(output.stdout, Captured::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_ends_ends_its_commands() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let plan = line("sleep 301");
    let stopping = async {
        until("it runs", || async { has(&bench, &unit, &["sleep 301"]).await.then_some(()) }).await;
        bench.runtime.suspend(&unit.id, Duration::ZERO).await
    };
    let (output, stopped) = tokio::join!(run(&bench, &unit, &plan), stopping);
    assert_eq!(stopped, Ok(()));
    // It had begun, so it must not look as if it could simply be started again.
    assert!(matches!(output, Err(RuntimeError::Failed(_))), "{output:?}");
    let output = run(&bench, &unit, &plan).await;
    assert!(matches!(output, Err(RuntimeError::Gone(_))), "{output:?}");
    // A command that is killed is another matter.
    bench.runtime.resume(&unit.id).await.expect("it starts");
    assert_eq!(run(&bench, &unit, &line("kill -9 $$")).await.map(|output| output.code), Ok(137));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_kills_its_guard_is_ended_by_another() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    // Whoever sends a signal to all does not get it.
    let plan = RunPlan { timeout: Duration::from_secs(3), ..line("sleep 2; kill -9 -1; exec sleep 301") };
    let output = run(&bench, &unit, &plan).await.expect("it runs");
    assert_eq!((output.code, output.gone), (124, true));
    assert_eq!(bench.processes(&unit).await, [] as [&str; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_stops_its_guard_is_ended_by_another() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.room("a", IMAGE)).await;
    let stop = "for p in /proc/[0-9]*; do $BB grep -q '[w]aits for its order' $p/cmdline && kill -s STOP ${p#/proc/} && echo stopped; done
                exec sleep 301";
    let plan = RunPlan { timeout: Duration::from_secs(2), ..line(stop) };
    let output = run(&bench, &unit, &plan).await.expect("it runs");
    assert_eq!((output.code, output.gone, text(&output.stdout).as_str()), (124, true, "stopped\n"));
    assert!(!has(&bench, &unit, &["sleep 301"]).await);
}
