//! What the core itself costs with ten thousand owners, on the simulated runtime of the simulation, which answers at once: a
//! hit, a sweep, and the memory of an owner. Each beside a control of the same run, so that the simulated runtime's own part
//! is known. Absolute times are this machine's; what counts are the ratios.

#![expect(clippy::unwrap_used, reason = "a bench says what went wrong by failing")]
#![allow(dead_code, reason = "the simulation needs more of its world than a bench does")]

#[path = "../tests/simulation/container.rs"]
mod container;
#[path = "../tests/simulation/disk.rs"]
mod disk;
#[path = "../tests/simulation/docker.rs"]
mod docker;
#[path = "../tests/simulation/engine.rs"]
mod engine;
#[path = "../tests/simulation/faults.rs"]
mod faults;
#[path = "../tests/simulation/ledger.rs"]
mod ledger;
#[path = "../tests/simulation/rng.rs"]
mod rng;
#[path = "../tests/simulation/schedule.rs"]
mod schedule;
#[path = "../tests/simulation/stage.rs"]
mod stage;
#[path = "../tests/simulation/tenants.rs"]
mod tenants;
#[path = "../tests/simulation/world.rs"]
mod world;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandbar_core::health::State;
use sandbar_core::host::Host;
use sandbar_core::janitor::{Janitor, Pace};
use sandbar_core::name::AgentName;
use sandbar_core::plan::label;
use sandbar_core::runtime::Runtime as _;

use crate::container::Container;
use crate::docker::Docker;
use crate::faults::Knobs;
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::stage::{Extensions, Stage};
use crate::world::Inner;

/// Owners, each with one container.
const OWNERS: usize = 10_000;
/// What the same is measured with beside.
const FEW: usize = 100;
const HITS: usize = 20_000;
const SWEEPS: usize = 15;
/// Callers at once.
const CALLERS: usize = 8;

fn main() {
    // Memory is that of a process of its own.
    let arguments: Vec<_> = std::env::args().collect();
    if let [_, word, owners, what] = &arguments[..]
        && word == "memory"
    {
        return println!("{}", memory(owners.parse().unwrap(), what == "host"));
    }
    println!("The core on a runtime that answers at once; {HITS} hits, {SWEEPS} sweeps.\n");
    let few = measure(FEW);
    let many = measure(OWNERS);
    for (owners, m) in [(FEW, &few), (OWNERS, &many)] {
        println!("with {owners} owners");
        row("a hit, median", m.hit.0, "one bare listing of that owner's", m.list.0, "");
        row("a hit, 99th percentile", m.hit.1, "one bare listing of that owner's", m.list.1, "< 1 ms");
        row(&format!("{CALLERS} callers at once, 99th percentile"), m.together.1, "one caller", m.hit.1, "< 1 ms");
        row("hits during sweeps, 99th percentile", m.swept.1, "without", m.hit.1, "< 1 ms");
        row("a sweep, median", m.sweep, "two bare listings of everything", m.listings, "< 1 s");
        println!("{:42} {:>12}\n", "listings of a sweep", m.calls);
    }
    row(&format!("a hit with {OWNERS} owners, median"), many.hit.0, &format!("with {FEW}"), few.hit.0, "");
    let resident = |owners: usize, what: &str| {
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program).args(["memory", &owners.to_string(), what]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let (with, without) = (resident(OWNERS, "host"), resident(OWNERS, "world"));
    let (few_with, few_without) = (resident(FEW, "host"), resident(FEW, "world"));
    let kib = |a: u64, b: u64| i64::try_from(a).unwrap() - i64::try_from(b).unwrap();
    println!(
        "\nresident memory with {OWNERS} owners: {with} KiB, of which the simulated containers alone {without} KiB; with {FEW}: \
         {few_with} and {few_without} KiB"
    );
    let owners = i64::try_from(OWNERS - FEW).unwrap();
    println!("an owner: {} bytes", (kib(with, without) - kib(few_with, few_without)) * 1024 / owners);
}

fn row(what: &str, value: Duration, beside: &str, control: Duration, asked: &str) {
    let ratio = value.as_secs_f64() / control.as_secs_f64();
    println!("{what:42} {value:>12.1?}   {beside:34} {control:>12.1?}   ratio {ratio:7.2}   {asked}");
}

/// Median and 99th percentile.
type Times = (Duration, Duration);

fn times(mut all: Vec<Duration>) -> Times {
    all.sort_unstable();
    (all[all.len() / 2], all[all.len() * 99 / 100])
}

struct Measured {
    hit: Times,
    list: Times,
    together: Times,
    swept: Times,
    sweep: Duration,
    listings: Duration,
    calls: u64,
}

fn stage(owners: usize) -> Arc<Stage> {
    let knobs = Knobs { instant: true, ..Knobs::default() };
    Stage::new(1, Schedule { knobs, agents: owners, max_live: owners, ..Schedule::plain() }, false)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap()
}

/// A host whose agents all have their sandbox.
async fn serving(stage: &Arc<Stage>) -> Arc<Host> {
    stage.world.enter();
    let host = stage.host();
    tokio::spawn(stage.world.clone().pump());
    tokio::spawn(host.clone().run());
    host.health().subscribe().wait_for(|s| *s == State::Up).await.unwrap();
    for agent in &stage.agents {
        host.begin_work("main", &stage.projects, agent, &engine::project("wiki")).await.unwrap();
        host.request_sandbox(agent, None, &Extensions::new(), None).await.unwrap();
    }
    host
}

/// So many hits, of agents here and there.
async fn hits(stage: &Stage, host: &Host, key: &str, number: usize) -> Vec<Duration> {
    let mut rng = Rng::keyed(1, key, 0);
    let mut all = Vec::with_capacity(number);
    for _ in 0..number {
        let agent = rng.pick(&stage.agents);
        let began = Instant::now();
        // As the verb does it.
        host.registry().call_came(agent);
        host.request_sandbox(agent, None, &Extensions::new(), None).await.unwrap();
        host.registry().call_ended(agent);
        all.push(began.elapsed());
    }
    all
}

async fn lists(stage: &Stage, docker: &Docker) -> Vec<Duration> {
    let mut rng = Rng::keyed(1, "lists", 0);
    let mut all = Vec::with_capacity(HITS);
    for _ in 0..HITS {
        let agent = rng.pick(&stage.agents);
        let began = Instant::now();
        let mut labels = stage.names.base_labels();
        labels.insert(stage.names.label("sandbox.owner"), stage.names.owner(agent));
        let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let units = docker.list(&labels).await.unwrap();
        all.push(began.elapsed());
        assert_eq!(units.len(), 1);
    }
    all
}

fn measure(owners: usize) -> Measured {
    let stage = stage(owners);
    runtime().block_on(async {
        let host = serving(&stage).await;
        let docker = Arc::new(Docker(stage.world.clone()));
        let list = times(lists(&stage, &docker).await);
        let made = stage.world.with(|inner| inner.created);
        let hit = times(hits(&stage, &host, "alone", HITS).await);

        let callers = (0..CALLERS).map(|n| {
            let (stage, host) = (stage.clone(), host.clone());
            tokio::spawn(async move { hits(&stage, &host, &format!("caller {n}"), HITS / CALLERS).await })
        });
        let together = futures_util::future::join_all(callers).await;
        let together = times(together.into_iter().flat_map(Result::unwrap).collect());

        let base = stage.names.base_labels();
        let ours: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let mut listings = Vec::new();
        for _ in 0..SWEEPS {
            let began = Instant::now();
            let found = (docker.list(&[]).await.unwrap().len(), docker.list(&ours).await.unwrap().len());
            listings.push(began.elapsed());
            assert_eq!(found, (owners, owners));
        }
        let mut janitor = Janitor::new(host.registry().clone(), docker.clone(), stage.names.clone(), Pace::default());
        let before = stage.world.with(|inner| inner.listings);
        let mut sweeps = Vec::new();
        for _ in 0..SWEEPS {
            let began = Instant::now();
            janitor.sweep().await.unwrap();
            sweeps.push(began.elapsed());
        }
        let calls = (stage.world.with(|inner| inner.listings) - before) / SWEEPS as u64;

        let over = Arc::new(AtomicBool::new(false));
        let sweeping = tokio::spawn({
            let over = over.clone();
            async move {
                while !over.load(Ordering::Relaxed) {
                    janitor.sweep().await.unwrap();
                    tokio::task::yield_now().await;
                }
            }
        });
        let during = tokio::spawn({
            let (stage, host) = (stage.clone(), host.clone());
            async move { hits(&stage, &host, "during sweeps", HITS).await }
        });
        let swept = times(during.await.unwrap());
        over.store(true, Ordering::Relaxed);
        sweeping.await.unwrap();

        assert_eq!(stage.world.with(|inner| inner.created), made, "all of them were hits");
        assert_eq!(host.registry().occupied(), (owners, 0));
        Measured { hit, list, together, swept, sweep: times(sweeps).0, listings: times(listings).0, calls }
    })
}

/// Makes another agent's container like this one.
fn copy(inner: &mut Inner, like: &Container, agent: &AgentName) {
    let names = inner.names.clone();
    let key = like.key.replacen(like.agent(), agent.as_str(), 1);
    let mut labels = like.labels.clone();
    labels.insert(names.label(label::OWNER), names.owner(agent));
    inner.keys.insert(names.making(), key.clone());
    let made = inner.new_container(&like.name, labels, &key);
    let name = format!("{}-{agent}", like.name);
    let id = inner.add(Container { id: made.id, name, labels: made.labels, key, run: 0, ..like.clone() });
    inner.boot(&id);
}

/// The resident memory of this process in KiB, with that many containers and, if wanted, the host that made them.
fn memory(owners: usize, with_host: bool) -> u64 {
    let (stage, one) = (stage(owners), stage(1));
    let runtime = runtime();
    let host = runtime.block_on(async {
        if with_host {
            return Some(serving(&stage).await);
        }
        // What one container is like is known from one that was made.
        let host = serving(&one).await;
        let container = one.world.with(|inner| inner.ours().next().cloned()).unwrap();
        stage.world.enter();
        stage.world.with(|inner| stage.agents.iter().for_each(|agent| copy(inner, &container, agent)));
        Some(host)
    });
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    drop(host);
    resident.trim().trim_end_matches(" kB").parse().unwrap()
}
