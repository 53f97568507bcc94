//! What a host's own part costs as the number of live sandboxes grows, each figure beside the same calls made bare.

use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use sandbar_tests::host::{image, target, wait};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

use crate::clear::{self, Label};
use crate::{api, begin, crowd_of, drawn, median, millis, options, register, start, svg, timed};

/// How many are live, unless `SANDBAR_GROWTH` says otherwise.
const NUMBERS: [usize; 4] = [1, 10, 100, 300];
/// What a Redis may use, the least that a host takes, and what it and Docker's part for it do use at most.
const MEMORY: &str = "64m";
const EACH: u64 = 40 << 20;
/// Rounds of what takes milliseconds, and of what makes a container.
const QUICK: usize = 50;
const ROUNDS: usize = 7;
/// How many agents ask at once while there come to be more.
const AT_ONCE: usize = 8;
/// How long all of it may take.
const BOUND: Duration = Duration::from_secs(20 * 60);

/// Medians with one number of live sandboxes.
struct Level {
    live: usize,
    hit: Duration,
    list: Duration,
    hand_out: Duration,
    bare: Duration,
    rename: Duration,
    inspect: Duration,
    sweep: Duration,
    lists: Duration,
    resident: f64,
}

pub(crate) fn growth() -> Result<()> {
    let numbers = match std::env::var("SANDBAR_GROWTH") {
        Ok(numbers) => numbers.split(',').map(|n| n.trim().parse()).collect::<Result<Vec<usize>, _>>()?,
        Err(_) => NUMBERS.to_vec(),
    };
    ensure!(numbers.is_sorted() && numbers.first().is_some_and(|least| *least > 0), "numbers grow, from 1 at least");
    let most = numbers.last().copied().unwrap_or(1);
    let label = Label::new();
    let base = options();
    let more = format!("{}[engines.redis]\nmemory = {MEMORY:?}\n[janitor]\nevery_secs = 1\n", base.more);
    let sandbox = format!("max_live = {}", most + 1);
    let host = TestHost::start_with(Options { more, sandbox, ..base });
    clear::watch(&host);
    let agents = crowd_of(&host, most);
    let one_more = register(&host);
    begin(&host, "only-redis");
    let began = Instant::now();
    let mut live = 0;
    let mut levels = Vec::new();
    for number in numbers {
        let free = available()?;
        if free < (number - live) as u64 * EACH {
            println!("{number} live: skipped: that takes more than the {} MiB that are free", free >> 20);
            break;
        }
        for agents in agents[live..number].chunks(AT_ONCE) {
            ensure!(began.elapsed() < BOUND, "there are not {number} after {BOUND:?}");
            api::at_once(agents, |agent| Ok(agent.call("request_sandbox", &json!({})).evidence().clone()))?;
        }
        live = number;
        levels.push(level(&host, &label, live, &agents[0], &one_more)?);
    }
    report(&levels)?;
    for agents in agents[..live].chunks(AT_ONCE) {
        api::at_once(agents, |agent| Ok(agent.call("release_sandbox", &json!({})).evidence().clone()))?;
    }
    // What is let go is removed behind the answers; with hundreds that takes longer than one wait.
    let mut left = host.containers().len();
    while left > 0 {
        wait("fewer containers", || host.containers().len() < left);
        left = host.containers().len();
    }
    Ok(())
}

fn level(host: &TestHost, label: &Label, live: usize, agent: &Client, one_more: &Client) -> Result<Level> {
    let installation = format!("{}.installation={}", host.namespace, host.installation);
    let ours = api::filter(&installation);
    let container = host.containers().pop().context("one is live")?;
    let request = |agent: &Client| timed(|| agent.call("request_sandbox", &json!({})).evidence().clone()).0;
    let bare = |method: &'static str, path: &str| -> Result<Duration> {
        let (took, answer) = timed(|| api::call(method, path, ""));
        answer.map(|_| took)
    };
    let (mut hits, mut list, mut lists, mut inspect) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // A listing of the agent's own is what a hit makes.
    let own = api::filter(&format!("{}.sandbox.owner={}-agent-crowd-0", host.namespace, host.namespace));
    for _ in 0..QUICK {
        hits.push(request(agent));
        list.push(bare("GET", &own)?);
        lists.push(bare("GET", "/containers/json?all=1")? + bare("GET", &ours)?);
        inspect.push(bare("GET", &format!("/containers/{container}/json"))?);
    }
    let (mut hand_outs, mut bares, mut renames) = (Vec::new(), Vec::new(), Vec::new());
    let image = image("redis:8-alpine")?;
    for _ in 0..ROUNDS {
        hand_outs.push(request(one_more));
        one_more.call("release_sandbox", &json!({})).evidence();
        wait("it is gone", || host.containers().len() == live);
        let (took, id) = timed(|| api::idle(&image, &label.0));
        let id = id?;
        bares.push(took);
        let (took, renamed) = timed(|| api::rename(&id, &format!("bench-{}", &id[..12])));
        renamed?;
        renames.push(took);
        api::remove(&[id])?;
    }
    let level = Level {
        live,
        hit: median(hits),
        list: median(list),
        hand_out: median(hand_outs),
        bare: median(bares),
        rename: median(renames),
        inspect: median(inspect),
        sweep: sweep(host)?,
        lists: median(lists),
        resident: start::resident(host)?,
    };
    // Nobody works for them, so only who asks keeps them.
    ensure!(host.containers().len() == live, "all are still there");
    Ok(level)
}

/// The mean of the next sweeps, which the host measures itself.
fn sweep(host: &TestHost) -> Result<Duration> {
    let read = || -> Result<(f64, f64)> {
        let Value::String(page) = host.nobody().get("/metrics").body else { anyhow::bail!("the metrics are text") };
        let sample = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map_or(Ok(0.0), str::parse::<f64>)
        };
        Ok((sample("sandbar_sweep_seconds_count")?, sample("sandbar_sweep_seconds_sum")?))
    };
    let (before, spent) = read()?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let (after, now) = read()?;
        if after >= before + 5.0 {
            return Ok(Duration::from_secs_f64((now - spent) / (after - before)));
        }
        ensure!(Instant::now() < until, "the host does not sweep");
        thread::sleep(Duration::from_millis(100));
    }
}

/// What the machine has left, in bytes.
fn available() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? << 10)
}

fn report(levels: &[Level]) -> Result<()> {
    println!("\nBy the number of live Redis; medians, and beside each the same calls made bare:");
    println!(
        "{:>5} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>11} {:>9}",
        "live", "hit", "its list", "hand-out", "create+start", "rename", "inspect", "sweep", "its lists", "memory"
    );
    let mut rows = Vec::new();
    for l in levels {
        println!(
            "{:>5} {:>11} {:>11} {:>11} {:>12} {:>11} {:>11} {:>11} {:>11} {:>6.1} MB",
            l.live,
            millis(l.hit),
            millis(l.list),
            millis(l.hand_out),
            millis(l.bare),
            millis(l.rename),
            millis(l.inspect),
            millis(l.sweep),
            millis(l.lists),
            l.resident
        );
        let ms = |took: Duration| (took.as_secs_f64() * 1e6).round() / 1e3;
        rows.push(json!({
            "live": l.live, "hit_ms": ms(l.hit), "list_ms": ms(l.list), "hand_out_ms": ms(l.hand_out), "create_start_ms": ms(l.bare),
            "rename_ms": ms(l.rename), "inspect_ms": ms(l.inspect), "sweep_ms": ms(l.sweep), "two_lists_ms": ms(l.lists),
            "resident_mb": l.resident,
        }));
    }
    let folder = target().with_file_name("bench");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("growth.json"), format!("{:#}\n", Value::Array(rows)))?;
    drawn("bench-growth.svg", || {
        let below: Vec<_> =
            levels.iter().map(|l| [format!("{} live", l.live), format!("host: {:.0} MB", l.resident)]).collect();
        let line = |of: fn(&Level) -> Duration| levels.iter().map(|l| of(l).as_secs_f64() * 1e3).collect::<Vec<_>>();
        svg::lines(
            "What grows with the number of live sandboxes (dashed: Docker's own part)",
            &below,
            &[
                ("hand-out of a new Redis", line(|l| l.hand_out), true),
                ("a bare container: create, start", line(|l| l.bare), false),
                ("sweep", line(|l| l.sweep), true),
                ("two listings of all", line(|l| l.lists), false),
                ("hit", line(|l| l.hit), true),
                ("one listing of one's own", line(|l| l.list), false),
            ],
        )
    })
}
