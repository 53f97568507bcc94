//! The core in a simulated world.
//!
//! `SANDBAR_SCHEDULES=100000 cargo test -p sandbar-core --test simulation` plays that many schedules;
//! `SANDBAR_SEED=17 cargo test … -- --exact schedules --nocapture` plays one and tells what happened, and `keeping_schedules`
//! one of those with boxes and with what is retained. With `SANDBAR_FIRST` set it ends with the first that fails.
//!
//! What the core guards, and which seed or scene notices when it does not, is written down in `mutants.sh` beside this file,
//! which takes one guard after another out and shows it.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

mod container;
mod disk;
mod docker;
mod engine;
mod faults;
mod ledger;
mod play;
mod rest;
mod rng;
mod scenes;
mod schedule;
mod stage;
mod tenants;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use crate::schedule::Schedule;
use crate::world::Verdict;

/// How many schedules are played.
const SCHEDULES: u64 = 2_000;
/// How many of those with boxes and with what is retained.
const KEEPING: u64 = 400;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

/// Engines that panic on purpose say nothing.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload_as_str().is_some_and(|text| text.contains(engine::PANIC)) {
                hook(info);
            }
        }));
    });
}

/// What a seed plays depends on nothing else but for the order in which tokio wakes who waits for the same thing at the same
/// instant. What the core draws itself, names and passwords, is left out.
#[test]
fn the_same_seed_plays_the_same_schedule() {
    quiet_panics();
    let known = |line: &String| {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|w| w.len() < 6 || !w.bytes().all(|b| b.is_ascii_hexdigit())).collect::<Vec<_>>().join(" ")
    };
    let play = |seed, draw: fn(u64) -> Schedule| {
        let mut lines: Vec<_> = play::schedule(seed, draw(seed), true).log.iter().map(known).collect();
        lines.sort();
        lines
    };
    for seed in 0..50 {
        assert_eq!(play(seed, Schedule::draw), play(seed, Schedule::draw), "seed {seed}");
    }
    for seed in 0..25 {
        assert_eq!(play(seed, Schedule::draw_keeping), play(seed, Schedule::draw_keeping), "seed k{seed}");
    }
}

#[test]
fn schedules() {
    all(SCHEDULES, "schedules", Schedule::draw);
}

/// The same with boxes and with what is retained.
#[test]
fn keeping_schedules() {
    all(KEEPING, "keeping_schedules", Schedule::draw_keeping);
}

fn all(how_many: u64, test: &str, draw: fn(u64) -> Schedule) {
    quiet_panics();
    if let Some(seed) = number("SANDBAR_SEED") {
        let verdict = play::schedule(seed, draw(seed), true);
        println!("{}", verdict.log.join("\n"));
        assert!(verdict.violations.is_empty(), "seed {seed}: {:#?}", verdict.violations);
        return;
    }
    let (next, last) = (AtomicU64::new(0), number("SANDBAR_SCHEDULES").unwrap_or(how_many));
    let only_first = std::env::var_os("SANDBAR_FIRST").is_some();
    let failed = Mutex::new(Vec::new());
    let tally = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last || only_first && !failed.lock().unwrap().is_empty() {
                        return;
                    }
                    // One that ends by a panic has a number too.
                    let verdict =
                        std::panic::catch_unwind(|| play::schedule(seed, draw(seed), false)).unwrap_or_else(|_| {
                            Verdict {
                                violations: vec!["it panicked".to_owned()],
                                log: Vec::new(),
                                tally: BTreeMap::new(),
                            }
                        });
                    if !verdict.violations.is_empty() {
                        failed.lock().unwrap().push((seed, verdict.violations));
                    }
                    for (what, n) in verdict.tally {
                        *tally.lock().unwrap().entry(what).or_insert(0) += n;
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort();
    for (seed, violations) in &failed {
        println!(
            "SANDBAR_SEED={seed} cargo test -p sandbar-core --test simulation -- --exact {test} --nocapture\n  {}",
            violations.join("\n  ")
        );
    }
    println!("{:#?}", tally.into_inner().unwrap());
    assert!(failed.is_empty(), "{} of {last} schedules failed", failed.len());
}
