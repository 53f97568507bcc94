//! How long it takes until three services answer: Sandbar beside what people do by hand, Testcontainers, and bare containers.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use sandbar_tests::docker::docker;
use sandbar_tests::host::{target, wait};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

use crate::clear::{self, Label};
use crate::contenders::{Program, bare_postgres, by_hand, images, urls};
use crate::{api, begin, crowd_of, drawn, median, millis, options, percentile, register, row, svg, timed};

/// How many, unless `SANDBAR_BENCH_ROUNDS` says otherwise; the figures of the README come from no less.
const ROUNDS: usize = 10;
/// Rounds of what takes milliseconds, in each round.
const QUICK: usize = 10;
/// How many ask at once, and for how many of them a container is ready.
const CROWD: usize = 50;
const READY: usize = 10;

const COLD: &str = "Sandbar, cold";
const WARM: &str = "Sandbar, warm";
const BY_HAND: &str = "docker run, probed each second";
const TESTCONTAINERS: [&str; 4] = [
    "Testcontainers for Rust, in turn",
    "Testcontainers for Rust, at once",
    "Testcontainers for Python, in turn",
    "Testcontainers for Python, at once",
];
const BARE: &str = "three bare containers, at once";
const POSTGRES: &str = "Sandbar, cold, Postgres alone";
const BARE_POSTGRES: &str = "Postgres bare, its image's own start";

/// What is measured beside, in no bar of the picture.
const HIT: &str = "a hit, all three";
const INSPECT: &str = "one `docker inspect`";
const RELEASE: &str = "a release of three, answered";
const RENAME: &str = "a bare rename of three";
const LIST: &str = "one bare listing";

/// Times by what took them, in the order of their first.
#[derive(Default)]
struct Times(RefCell<Vec<(&'static str, Vec<Duration>)>>);

impl Times {
    fn add(&self, what: &'static str, took: Duration) {
        let mut all = self.0.borrow_mut();
        match all.iter_mut().find(|(name, _)| *name == what) {
            Some((_, times)) => times.push(took),
            None => all.push((what, vec![took])),
        }
    }

    fn of(&self, what: &str) -> Option<Vec<Duration>> {
        self.0.borrow().iter().find(|(name, _)| *name == what).map(|(_, times)| times.clone())
    }

    fn median(&self, what: &str) -> Option<Duration> {
        self.of(what).map(median)
    }
}

pub(crate) fn compare() -> Result<()> {
    let rounds = std::env::var("SANDBAR_BENCH_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let mut asker = match Program::asker() {
        Ok(asker) => asker,
        Err(e) => {
            println!("the comparison is skipped: {e:#}");
            return Ok(());
        }
    };
    let label = Label::new();
    let cold = TestHost::start_with(Options { publish: "loopback", ..options() });
    clear::watch(&cold);
    let warm = warm_host()?;
    let agent = register(&cold);
    let warm_agent = warm.as_ref().map(register);
    let skipped = |e: &anyhow::Error| println!("Testcontainers: skipped: {e:#}");
    let mut rust = Program::rust(&label.0).inspect_err(skipped).ok();
    let mut python = Program::python(&label.0).inspect_err(skipped).ok();
    println!(
        "{rounds} rounds in turns; each time ends when every service has answered a query of its account, asked by the same program.\n\
         Testcontainers without Ryuk, whose image comes from a registry; `at once` starts the three beside each other.\n"
    );
    let times = Times::default();
    for _ in 0..rounds {
        begin(&cold, "shop");
        sandbar_round(&cold, &agent, &mut asker, &times, COLD)?;
        if let (Some(host), Some(agent)) = (&warm, &warm_agent) {
            begin(host, "shop");
            is_full(host);
            sandbar_round(host, agent, &mut asker, &times, WARM)?;
            is_full(host);
        }
        begin(&cold, "only-postgres");
        sandbar_round(&cold, &agent, &mut asker, &times, POSTGRES)?;

        let (took, started) = timed(|| {
            let started = by_hand(&label.0)?;
            asker.ask(&started.1).map(|()| started)
        });
        times.add(BY_HAND, took);
        api::remove(&started?.0)?;
        for (program, names) in [&mut rust, &mut python].into_iter().zip(TESTCONTAINERS.chunks(2)) {
            let Some(program) = program else { continue };
            for (name, how) in names.iter().zip(["in turn", "at once"]) {
                let (took, started) = timed(|| {
                    let urls = program.order(&json!({ "start": how }))?;
                    asker.ask(&urls)
                });
                times.add(name, took);
                started?;
                program.order(&json!({ "stop": true }))?;
            }
        }
        bare_round(&label, &mut asker, &times)?;
    }
    let mut targets = Targets::default();
    targets.of_rounds(&times);
    if let Some(host) = &warm {
        targets.crowd(host)?;
    }
    report(rounds, &times, &targets)
}

/// A host with a pool, if this one knows what that is.
fn warm_host() -> Result<Option<TestHost>> {
    let options = options();
    let more = format!("{}[pool]\npostgres = 1\nredis = {READY}\nmongo = 1\n", options.more);
    let mut host = TestHost::prepare(Options { publish: "loopback", more, ..options });
    let check = host.subcommand("check").output()?;
    let said = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
    if !check.status.success() && said.contains("unknown field `pool`") {
        println!("{WARM}: skipped: this host knows no [pool]");
        return Ok(None);
    }
    host.up()?;
    clear::watch(&host);
    is_full(&host);
    Ok(Some(host))
}

/// Waits until nothing is made any more and all are ready that shall be.
fn is_full(host: &TestHost) {
    wait("a full pool", || {
        let containers = host.containers();
        containers.len() == READY + 2 && !containers.iter().any(|name| name.contains("-making-"))
    });
}

/// One request until all has answered; then, on what is there, hits beside `docker inspect`; then the release.
fn sandbar_round(
    host: &TestHost,
    agent: &Client,
    asker: &mut Program,
    times: &Times,
    what: &'static str,
) -> Result<()> {
    let request = || agent.call("request_sandbox", &json!({}));
    let (took, asked) = timed(|| {
        let answer = request();
        asker.ask(&urls(answer.evidence()))
    });
    asked?;
    times.add(what, took);
    if what == COLD {
        let container = host.containers().pop().unwrap_or_default();
        for _ in 0..QUICK {
            times.add(HIT, timed(|| request().evidence().clone()).0);
            times.add(INSPECT, timed(|| docker(["inspect", &container])).0);
            times.add(LIST, timed(|| api::call("GET", "/containers/json", "")).0);
        }
    }
    let (took, answer) = timed(|| agent.call("release_sandbox", &json!({})));
    answer.evidence();
    if what == COLD {
        times.add(RELEASE, took);
    }
    if what != WARM {
        host.wait_until_empty();
    }
    Ok(())
}

fn bare_round(label: &Label, asker: &mut Program, times: &Times) -> Result<()> {
    let (took, ids) = timed(|| api::at_once(&images()?, |image| api::idle(image, &label.0)));
    let ids = ids?;
    times.add(BARE, took);
    let (took, renamed) = timed(|| api::at_once(&ids, |id| api::rename(id, &format!("bench-{}", &id[..12]))));
    renamed?;
    times.add(RENAME, took);
    api::remove(&ids)?;
    let (took, started) = timed(|| {
        let (id, url) = bare_postgres(&label.0)?;
        asker.ask(&url).map(|()| id)
    });
    times.add(BARE_POSTGRES, took);
    api::remove(&[started?])
}

/// What issue and README ask for, with what was measured.
#[derive(Default)]
struct Targets(Vec<Value>);

impl Targets {
    fn add(&mut self, what: &str, ours: Duration, beside: &str, theirs: Duration, asked: f64) {
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        let is_met = if ratio <= asked { "" } else { ", missed" };
        row(what, &millis(ours), &format!("{beside}: {}", millis(theirs)), ratio, &format!("<= {asked}{is_met}"));
        self.0.push(json!({
            "what": what, "ms": in_millis(ours), "beside": beside, "beside_ms": in_millis(theirs), "ratio": ratio, "asked": asked,
        }));
    }

    fn of_rounds(&mut self, times: &Times) {
        let testcontainers = TESTCONTAINERS.iter().filter_map(|name| Some((times.median(name)?, *name)));
        let fastest = testcontainers.min();
        if let Some((theirs, name)) = fastest {
            for (what, asked) in [(WARM, 0.05), (COLD, 0.6)] {
                if let Some(ours) = times.median(what) {
                    self.add(what, ours, name, theirs, asked);
                }
            }
        }
        for (what, beside, asked) in [(HIT, INSPECT, 0.1), (POSTGRES, BARE_POSTGRES, 1.15), (RELEASE, RENAME, 2.0)] {
            if let (Some(ours), Some(theirs)) = (times.median(what), times.median(beside)) {
                self.add(what, ours, beside, theirs, asked);
            }
        }
    }

    /// Many ask at once for a Redis while some are ready: those who got one that was ready beside one who asks alone.
    fn crowd(&mut self, host: &TestHost) -> Result<()> {
        let agents = crowd_of(host, CROWD);
        let ask = |agent: &Client| timed(|| agent.call("request_sandbox", &json!({})).evidence().clone()).0;
        let give_back = |agent: &Client| agent.call("release_sandbox", &json!({})).evidence().clone();
        let mut alone = Vec::new();
        for _ in 0..QUICK {
            is_full(host);
            alone.push(ask(&agents[0]));
            give_back(&agents[0]);
        }
        is_full(host);
        let ready: BTreeSet<_> = ids(host)?.into_iter().map(|(id, _)| id).collect();
        let took = api::at_once(&agents, |agent| Ok(ask(agent)))?;
        let containers = ids(host)?;
        let was_ready = |n: usize| {
            let name = host.container("rd", &format!("crowd-{n}"));
            containers.iter().any(|(id, of)| *of == name && ready.contains(id))
        };
        let (warm, mut rest): (Vec<_>, Vec<_>) = took.iter().enumerate().partition(|(n, _)| was_ready(*n));
        let mut warm: Vec<_> = warm.into_iter().map(|(_, took)| *took).collect();
        ensure!(!warm.is_empty(), "nobody got one that was ready");
        rest.sort_by_key(|(_, took)| **took);
        println!(
            "{CROWD} at once, {READY} ready: {} got one of those; the median of the others: {}",
            warm.len(),
            rest.get(rest.len() / 2).map_or_else(|| "-".to_owned(), |(_, took)| millis(**took))
        );
        self.add(
            &format!("{CROWD} at once, p95 of the warm"),
            percentile(&mut warm, 0.95),
            "a single warm one",
            median(alone),
            3.0,
        );
        agents.iter().for_each(|agent| drop(give_back(agent)));
        is_full(host);
        Ok(())
    }
}

/// The containers of a host, by id and name.
fn ids(host: &TestHost) -> Result<Vec<(String, String)>> {
    let filter = format!("label={}.installation={}", host.namespace, host.installation);
    let out = docker(["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}", "--filter", &filter])?;
    Ok(out.lines().filter_map(|line| line.split_once(' ')).map(|(id, name)| (id.to_owned(), name.to_owned())).collect())
}

fn in_millis(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e6).round() / 1e3
}

/// The table, the file beside the build, and the picture where one is asked for.
fn report(rounds: usize, times: &Times, targets: &Targets) -> Result<()> {
    println!("\n{:44} {:>12} {:>12}", "what", "median", "p95");
    let mut rows = Vec::new();
    let mut bars = Vec::new();
    for (what, times) in times.0.borrow().iter() {
        let (middle, high) = (median(times.clone()), percentile(&mut times.clone(), 0.95));
        println!("{what:44} {:>12} {:>12}", millis(middle), millis(high));
        let all: Vec<_> = times.iter().copied().map(in_millis).collect();
        rows.push(json!({ "what": what, "median_ms": in_millis(middle), "p95_ms": in_millis(high), "ms": all }));
        if ![HIT, INSPECT, RELEASE, RENAME, LIST].contains(what) {
            let ours = what.starts_with("Sandbar");
            bars.push(svg::Bar { what: (*what).to_owned(), value: in_millis(middle), mark: in_millis(high), ours });
        }
    }
    let folder = target().with_file_name("bench");
    fs::create_dir_all(&folder)?;
    let file = folder.join("compare.json");
    let docker = Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]).output()?;
    let about = json!({
        "rounds": rounds, "docker": String::from_utf8_lossy(&docker.stdout).trim(), "release": !cfg!(debug_assertions),
        "times": rows, "targets": targets.0,
    });
    fs::write(&file, format!("{about:#}\n"))?;
    println!("\nwritten: {}", file.display());
    drawn("bench-compare.svg", || {
        svg::bars("Until Postgres, Redis and Mongo answer: medians (marks: 95th percentile)", &bars)
    })
}
