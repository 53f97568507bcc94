//! What an attack costs everybody else: time, memory, and nothing more. Times are compared with others of the same run.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sandbar_core::engine::{Engine as _, EngineError, Request};
use sandbar_plugin::{Artifact, Host, Limits};
use sandbar_tests::host::wait;
use sandbar_tests::{Client, TestHost};
use serde_json::json;

use super::table::{Case, DEEDS, End, cases};
use super::{ask, engines, host, late, says, told, victim, write};

const MIB: u64 = 1 << 20;
/// How many calls of one engine the host runs at the same time, and the memory that each may have.
const IN_FLIGHT: u64 = 8;
const OF_A_CALL: u64 = 64 * MIB;
/// What a host may need beside: for answers that it reads, and for what its allocator keeps.
const BESIDE: u64 = 96 * MIB;

/// How much slower a hit may be than at a host that nobody attacks, on the same machine at the same time. A host that waited
/// for an engine would be slower by its deadline, some hundred hits.
const SLOWER: f64 = 8.0;

/// Some of the deeds.
fn some(names: &[&str]) -> Vec<Case> {
    let some: Vec<_> = cases(&DEEDS).into_iter().filter(|case| names.contains(&case.name.as_str())).collect();
    assert_eq!(some.len(), names.len());
    some
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (work(), begun.elapsed())
}

/// Somebody with a sandbox.
fn good(host: &TestHost) -> Client {
    let good = host.developer("good");
    good.call("request_sandbox", &json!({})).evidence();
    good
}

/// How much longer a hit takes than the control's, by their medians, of at least 40 each and until a condition holds. The
/// processor's time both share with whatever an attack uses of it.
fn slower(attacked: &Client, control: &Client, mut until: impl FnMut() -> bool) -> f64 {
    let mut times = [Vec::new(), Vec::new()];
    while times[0].len() < 40 || !until() {
        for (client, times) in [attacked, control].into_iter().zip(&mut times) {
            let (answer, time) = timed(|| client.call("request_sandbox", &json!({})));
            answer.evidence();
            times.push(time);
        }
    }
    let [attacked, control] = times.map(|mut times| {
        times.sort();
        times[times.len() / 2].as_secs_f64()
    });
    attacked / control
}

/// A value of `/proc/<pid>/status`, in bytes.
fn status(host: &TestHost, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Asks an engine in this process for what provokes it: how long until its deadline is over, with no host around it.
fn deadline(name: &str) -> Duration {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let artifact = Artifact::from_bytes(sandbar_hostile::engine(name).build()).unwrap();
        let engine = Host::new(None, Limits::default()).unwrap().load_artifact(artifact).await.unwrap();
        let request = Request {
            features: Vec::new(),
            retained: false,
            superuser: true,
            memory_bytes: 512 << 20,
            settings: Vec::new(),
        };
        let begun = Instant::now();
        let answer = engine.plan(&request).await;
        assert!(matches!(answer, Err(EngineError::Broken(_))), "{answer:?}");
        begun.elapsed()
    })
}

#[test]
fn an_error_comes_about_as_soon_as_the_deadline_or_sooner() {
    let deeds = cases(&DEEDS).into_iter().filter(|case| case.end == End::Request).collect::<Vec<_>>();
    let host = host(&deeds);
    let control = deadline("loop-later");
    for case in &deeds {
        let victim = victim(&host, &case.name);
        // The quickest of a few, since the machine may be busy with something else.
        let times = (0..3).map(|_| timed(|| ask(&victim, case, &json!({}))));
        let (answer, time) = times.min_by_key(|(_, time)| *time).unwrap();
        told(&answer, &case.name, &case.words);
        // Whoever computes is ended, and whoever waits; all others have been told before.
        let most = if case.is_slow() { 3 * control } else { control };
        assert!(time < most, "{}: {time:?}, and a deadline takes {control:?}", case.name);
    }
}

#[test]
fn the_others_are_served_while_engines_are_attacking() {
    let deeds = some(&["loop-later", "wait-later", "memory-bomb", "table-bomb", "large-aliased", "recursion"]);
    let host = host(&deeds);
    let other = super::host(&[]);
    let (attacked, control) = (good(&host), good(&other));

    // Of those that take long more than may be asked at once, so that some wait for their turn.
    let attackers = deeds.iter().flat_map(|case| (0..if case.is_slow() { 10 } else { 2 }).map(move |_| case));
    let attackers: Vec<_> = attackers.map(|case| (case, attacker(&host, case))).collect();
    let (stop, refused, wrong) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let times = std::thread::scope(|scope| {
        for (case, attacker) in &attackers {
            let (stop, refused, wrong) = (&stop, &refused, &wrong);
            scope.spawn(move || {
                let mut refused = Some(refused);
                while !stop.load(Ordering::Relaxed) {
                    let answer = attacker.call("request_sandbox", &json!({ "explain": true }));
                    let said = answer.error("message");
                    // Who comes too late for a turn is told so.
                    let in_vain = said.contains("it is busy with 8 other calls") || late(&answer, case);
                    if !in_vain && !case.words.iter().all(|word| said.contains(word)) {
                        wrong.lock().unwrap().push(format!("{}: {:#}", case.name, answer.body));
                    }
                    refused.take().map(|refused| refused.fetch_add(1, Ordering::Relaxed));
                }
            });
        }
        let all = || refused.load(Ordering::Relaxed) == attackers.len() || !wrong.lock().unwrap().is_empty();
        // Whatever goes wrong here, the others must end.
        let times = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| slower(&attacked, &control, all)));
        stop.store(true, Ordering::Relaxed);
        times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    assert_eq!(wrong.into_inner().unwrap(), Vec::<String>::new());
    assert!(times < SLOWER, "a hit takes {times} times as long as elsewhere");
    let times = slower(&attacked, &control, || true);
    assert!(times < SLOWER, "afterwards a hit takes {times} times as long as elsewhere");
}

/// Somebody who works on the project of an engine, and nobody else is.
fn attacker(host: &TestHost, case: &Case) -> Client {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    super::worker(host, &format!("attacker-{}", COUNT.fetch_add(1, Ordering::Relaxed)), &case.name)
}

#[test]
fn memory_is_bounded_and_given_back() {
    let deeds = some(&["memory-bomb", "memory-in-two", "table-bomb", "large-text", "large-aliased", "large-steps"]);
    let host = host(&deeds);
    let before = status(&host, "VmRSS");
    for case in &deeds {
        let victims: Vec<_> = (0..IN_FLIGHT + 4).map(|_| attacker(&host, case)).collect();
        // From here on the peak counts.
        fs::write(format!("/proc/{}/clear_refs", host.pid()), "5").unwrap();
        std::thread::scope(|scope| {
            for victim in &victims {
                scope.spawn(move || {
                    for _ in 0..3 {
                        told(&ask(victim, case, &json!({ "explain": true })), &case.name, &case.words);
                    }
                });
            }
        });
        let peak = status(&host, "VmHWM");
        let most = before + IN_FLIGHT * OF_A_CALL + BESIDE;
        assert!(peak <= most, "{}: {} MiB, from {} MiB", case.name, peak / MIB, before / MIB);
    }
    wait("the memory is given back", || status(&host, "VmRSS") <= before + BESIDE);
}

#[test]
fn the_others_are_served_while_they_are_loaded() {
    let mut deeds = cases(&DEEDS);
    deeds.retain(|case| case.end == End::Load);
    let host = host(&[]);
    let other = super::host(&[]);
    let (attacked, control) = (good(&host), good(&other));
    write(&host, &deeds);
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text + &engines(&deeds)).unwrap();
    host.hang_up();
    let failed = |name: &str| host.nobody().get("/readyz").body["engines"][name]["state"] == "failed";
    let times = slower(&attacked, &control, || failed(&deeds[0].name));
    assert!(times < SLOWER, "a hit takes {times} times as long as elsewhere");
    let page = host.nobody().get("/readyz");
    for Case { name, words, .. } in &deeds {
        says(page.body["engines"][name]["why"].as_str().unwrap(), name, words);
    }
    assert_eq!(page.body["engines"]["redis"]["state"], "serving");
}
