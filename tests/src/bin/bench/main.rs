//! `make bench`: the figures that the project promises, each beside a control measured in the same run. Absolute times are
//! this machine's; what counts are the ratios.

mod api;
mod boxes;
mod clear;
mod compare;
mod contenders;
mod growth;
mod start;
mod svg;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use sandbar_core::engine::{Engine as _, Request};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::json;

/// Rounds of what takes seconds.
const ROUNDS: usize = 7;
/// Rounds of what takes milliseconds.
const QUICK_ROUNDS: usize = 200;
/// How many agents ask at once.
const CROWD: u32 = 100;
/// Rounds of what takes microseconds.
const CALLS: usize = 5_000;

const SERVICES: [&str; 3] = ["postgres", "redis", "mongo"];

/// The orchestrator's.
const TOKEN: &str = "bench-orchestrator-token";

/// What measures one thing.
type Part = fn() -> Result<()>;

/// Where pictures go, when they are asked for.
static PICTURES: OnceLock<PathBuf> = OnceLock::new();

/// `bench [--draw FOLDER] [PART…]`: all parts, or those that are named.
fn main() -> Result<()> {
    let parts = [
        ("cold", cold as Part),
        ("hit", hit),
        ("engine", engine_call),
        ("start", start::start),
        ("crowd", crowd),
        ("boxes", boxes::boxes),
        ("compare", compare::compare),
        ("growth", growth::growth),
    ];
    let mut only = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--draw" {
            let folder = args.next().context("--draw takes the folder that pictures go to")?;
            PICTURES.get_or_init(|| folder.into());
        } else if parts.iter().any(|(name, _)| *name == arg) {
            only.push(arg);
        } else {
            bail!("there is no part {arg:?}: it is one of {}", parts.map(|(name, _)| name).join(", "));
        }
    }
    clear::on_signals()?;
    println!("Rounds: {ROUNDS} cold, {QUICK_ROUNDS} hits, {CALLS} engine calls. Medians, unless said otherwise.\n");
    for (_, part) in parts.iter().filter(|(name, _)| only.is_empty() || only.iter().any(|only| only == name)) {
        part()?;
    }
    Ok(())
}

/// Writes a picture, if pictures are asked for.
fn drawn(name: &str, picture: impl FnOnce() -> String) -> Result<()> {
    let Some(folder) = PICTURES.get() else { return Ok(()) };
    let file = folder.join(name);
    fs::write(&file, picture()).with_context(|| format!("{} cannot be written", file.display()))?;
    println!("drawn: {}", file.display());
    Ok(())
}

fn row(what: &str, value: &str, beside: &str, ratio: f64, asked: &str) {
    println!("{what:44} {value:>12}   {beside:44} ratio {ratio:6.3}   asked {asked}");
}

fn millis(d: Duration) -> String {
    format!("{:.2} ms", d.as_secs_f64() * 1000.0)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn percentile(all: &mut [Duration], p: f64) -> Duration {
    all.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small numbers"
    )]
    let at = ((all.len() - 1) as f64 * p).round() as usize;
    all[at]
}

fn timed<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let began = Instant::now();
    let value = work();
    (began.elapsed(), value)
}

/// A host with a project for each service alone and one for all three.
fn host() -> TestHost {
    let host = TestHost::start_with(options());
    clear::watch(&host);
    host
}

fn options() -> Options {
    let one = |s: &str| format!("[projects.only-{s}]\nservices = [\"{s}\"]\n");
    let projects = SERVICES.map(one).concat();
    Options {
        services: SERVICES.to_vec(),
        more: format!(
            "{projects}[orchestrators.bench]\ntoken = {{ env = \"TEST_BENCH\" }}\n\
             projects = [\"shop\", \"only-postgres\", \"only-redis\", \"only-mongo\"]\n"
        ),
        env: vec![("TEST_BENCH".to_owned(), TOKEN.to_owned())],
        ..Options::default()
    }
}

fn orchestrator(host: &TestHost) -> Client {
    host.nobody().with_token(TOKEN)
}

fn register(host: &TestHost) -> Client {
    let answer = orchestrator(host).call("register_agent", &json!({ "agent": "bench", "role": "developer" }));
    host.nobody().with_token(answer.evidence()["token"].as_str().expect("a token"))
}

/// An agent that works on a project.
fn register_for(host: &TestHost, project: &str) -> Client {
    let client = register(host);
    begin(host, project);
    client
}

fn begin(host: &TestHost, project: &str) {
    orchestrator(host).call("begin_work", &json!({ "agent": "bench", "project": project })).evidence();
}

/// One cold request, given back afterwards.
fn cold_round(host: &TestHost, client: &Client, project: &str) -> Duration {
    begin(host, project);
    let (took, answer) = timed(|| client.call("request_sandbox", &json!({})));
    answer.evidence();
    client.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    took
}

fn cold() -> Result<()> {
    let host = host();
    let client = register(&host);
    let projects = ["shop", "only-postgres", "only-redis", "only-mongo"];
    let mut times = projects.map(|_| Vec::new());
    let mut naive = Vec::new();
    let label = clear::Label::new();
    // In turns, so that a change of the machine's load meets all of them.
    for _ in 0..ROUNDS {
        for (project, times) in projects.iter().zip(&mut times) {
            times.push(cold_round(&host, &client, project));
        }
        let (took, started) = timed(|| contenders::by_hand(&label.0));
        naive.push(took);
        api::remove(&started?.0)?;
    }
    let [all, singles @ ..] = times.map(median);
    let slowest = singles.into_iter().max().context("three services")?;
    for (service, time) in SERVICES.iter().zip(singles) {
        println!("cold, {service} alone: {}", millis(time));
    }
    let ratio = all.as_secs_f64() / slowest.as_secs_f64();
    row("cold, all three", &millis(all), &format!("the slowest alone: {}", millis(slowest)), ratio, "<= 1.25");
    let naive = median(naive);
    let ratio = all.as_secs_f64() / naive.as_secs_f64();
    row(
        "cold, all three",
        &millis(all),
        &format!("one after another, probed each second: {}", millis(naive)),
        ratio,
        "-",
    );
    Ok(())
}

fn hit() -> Result<()> {
    let host = host();
    let client = register(&host);
    begin(&host, "shop");
    client.call("request_sandbox", &json!({})).evidence();
    let (mut hits, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..QUICK_ROUNDS {
        let (took, listed) = timed(|| api::call("GET", "/containers/json", ""));
        listed?;
        bare.push(took);
        hits.push(timed(|| client.call("request_sandbox", &json!({}))).0);
    }
    let p99 = percentile(&mut hits, 0.99);
    let (hit, bare) = (median(hits), median(bare));
    let ratio = hit.as_secs_f64() / bare.as_secs_f64();
    row("a hit, all three", &millis(hit), &format!("GET /containers/json: {}", millis(bare)), ratio, "<= 3");
    println!("a hit, 99th percentile: {}", millis(p99));
    Ok(())
}

fn engine_call() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let plugins = sandbar_plugin::Host::new(None, sandbar_plugin::Limits::default())?;
    let path = Options::default().engines.join("postgres.wasm");
    let engine = runtime.block_on(plugins.load(&path, None))?;
    let settings = engine.descriptor().settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
    let request = Request { features: vec![], retained: false, superuser: false, memory_bytes: 512 << 20, settings };
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let (took, answer) = timed(|| runtime.block_on(engine.plan(&request)));
        answer?;
        times.push(took);
    }
    println!(
        "an engine call (fresh store, postgres): median {}, 99th percentile {} (asked: about 1 ms)",
        millis(percentile(&mut times, 0.5)),
        millis(percentile(&mut times, 0.99))
    );
    Ok(())
}

/// Agents that work on the project of a Redis alone.
fn crowd_of(host: &TestHost, count: usize) -> Vec<Client> {
    let agent = |n| {
        let name = format!("crowd-{n}");
        let answer = orchestrator(host).call("register_agent", &json!({ "agent": name, "role": "developer" }));
        orchestrator(host).call("begin_work", &json!({ "agent": name, "project": "only-redis" })).evidence();
        host.nobody().with_token(answer.evidence()["token"].as_str().expect("a token"))
    };
    (0..count).map(agent).collect()
}

/// Many agents at once with a Redis each, beside one alone; and what is left when all have given theirs back.
fn crowd() -> Result<()> {
    let host = host();
    let agents = crowd_of(&host, CROWD as usize);
    let ask = |client: &Client| timed(|| client.call("request_sandbox", &json!({})).evidence().clone()).0;
    let alone = ask(&agents[0]);
    agents[0].call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    let at_once = |work: &(dyn Fn(&Client) -> Duration + Sync)| {
        thread::scope(|scope| {
            let threads: Vec<_> = agents.iter().map(|agent| scope.spawn(move || work(agent))).collect();
            threads.into_iter().map(|t| t.join().expect("no call fails")).collect::<Vec<_>>()
        })
    };
    let (all, mut each) = timed(|| at_once(&ask));
    ensure!(host.containers().len() == CROWD as usize, "each has one");
    let release = |client: &Client| timed(|| client.call("release_sandbox", &json!({})).evidence().clone()).0;
    let (gone, _) = timed(|| {
        at_once(&release);
        host.wait_until_empty();
    });
    let beside = format!("one alone: {}", millis(alone));
    let ratio = all.as_secs_f64() / f64::from(CROWD) / alone.as_secs_f64();
    row(&format!("{CROWD} Redis at once, for each"), &millis(all / CROWD), &beside, ratio, "-");
    println!(
        "{CROWD} Redis at once: all {}, 99th percentile of a call {}; released and gone after {}, nothing left",
        millis(all),
        millis(percentile(&mut each, 0.99)),
        millis(gone)
    );
    Ok(())
}
