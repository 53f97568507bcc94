//! `sandbar engine bench`: how long a component takes to load and to answer. Numbers of one machine and one moment say
//! little, so the smallest engine there can be is measured beside it, in turns.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use sandbar_core::engine::{Engine as _, Request};
use sandbar_kit::Wish;
use sandbar_plugin::{Artifact, Host, Limits, LoadReason, LoadedEngine};
use serde_json::json;

use super::control::control;
use super::{advice, plugins, scratch};

/// What to measure, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The component.
    component: PathBuf,
    /// How often it is asked.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,
    /// Answer as JSON, in microseconds.
    #[arg(long)]
    json: bool,
}

/// How often it is compiled at most: a large one takes seconds.
const COMPILED: u32 = 5;
/// No more compiling after this long.
const COMPILING: Duration = Duration::from_secs(15);
/// How often it is loaded from the cache.
const LOADED: u32 = 20;
/// What an operator gives it who says nothing.
const MEMORY_BYTES: u64 = 512 << 20;

/// Times of one thing, for the engine and for the control.
struct Row {
    what: String,
    engine: Vec<Duration>,
    control: Vec<Duration>,
}

/// Measures and prints.
///
/// # Errors
/// The component cannot be loaded, or does not answer.
pub(crate) async fn bench(args: &Args) -> Result<()> {
    let failed = |reason: LoadReason| anyhow!("{}", advice(&args.component, &reason));
    let artifact = Artifact::read(&args.component, None).map_err(|e| failed(e.reason))?;
    let control = control()?;

    let mut compile = Row::new("compile");
    let begun = Instant::now();
    for _ in 0..COMPILED {
        let host = Host::new(None, Limits::default())?;
        compile.engine.push(time(host.load_artifact(artifact.clone())).await.map_err(failed)?.0);
        compile.control.push(time(host.load_artifact(control.clone())).await?.0);
        if begun.elapsed() > COMPILING {
            break;
        }
    }

    let cache = scratch()?;
    let mut cached = Row::new("load from the cache");
    // Compiled into the cache before anything is measured.
    let host = plugins(cache.path())?;
    let engine = host.load_artifact(artifact.clone()).await.map_err(failed)?;
    let yardstick = host.load_artifact(control.clone()).await?;
    for _ in 0..LOADED {
        let host = plugins(cache.path())?;
        cached.engine.push(time(host.load_artifact(artifact.clone())).await.map_err(failed)?.0);
        cached.control.push(time(host.load_artifact(control.clone())).await?.0);
    }

    let mut rows = vec![compile, cached, Row::new("describe")];
    let describe = rows.last_mut().into_iter().next();
    if let Some(row) = describe {
        for _ in 0..args.rounds {
            row.engine.push(time(engine.describe_again()).await?.0);
            row.control.push(time(yardstick.describe_again()).await?.0);
        }
    }
    for request in questions(&engine) {
        let mut row = Row::new(&match request.features.len() {
            0 => "plan, no feature".to_owned(),
            n => format!("plan, {n} features"),
        });
        for _ in 0..args.rounds {
            row.engine.push(time(engine.plan(&request)).await?.0);
            row.control.push(time(yardstick.plan(&request)).await?.0);
        }
        rows.push(row);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows.iter().map(Row::json).collect::<Vec<_>>())?);
    } else {
        println!("{:<22} {:>10} {:>10}   {:>12} {:>12}", "", "p50", "p99", "control p50", "control p99");
        rows.iter().for_each(Row::print);
    }
    Ok(())
}

/// No feature, and all of them.
fn questions(engine: &Arc<LoadedEngine>) -> Vec<Request> {
    let descriptor = engine.descriptor();
    let settings: Vec<_> = descriptor.settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
    let features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    let mut wishes = Wish::each(&features);
    // Between the first and the last they are alike.
    wishes.drain(1..wishes.len().saturating_sub(1).max(1));
    let request = |wish: Wish| Request {
        features: wish.features,
        retained: false,
        superuser: false,
        memory_bytes: MEMORY_BYTES,
        settings: settings.clone(),
    };
    wishes.into_iter().map(request).collect()
}

async fn time<T, E>(work: impl Future<Output = Result<T, E>>) -> Result<(Duration, T), E> {
    let begun = Instant::now();
    let done = work.await?;
    Ok((begun.elapsed(), done))
}

/// The value that so many of a hundred do not exceed.
fn percentile(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// A time as a person reads it.
fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 1e4 { format!("{micros:.0} us") } else { format!("{:.0} ms", micros / 1e3) }
}

impl Row {
    fn new(what: &str) -> Self {
        Self { what: what.to_owned(), engine: Vec::new(), control: Vec::new() }
    }

    fn print(&self) {
        let at = |times: &[Duration], percent| shown(percentile(times, percent));
        let (engine, control) = (&self.engine, &self.control);
        println!(
            "{:<22} {:>10} {:>10}   {:>12} {:>12}",
            self.what,
            at(engine, 50),
            at(engine, 99),
            at(control, 50),
            at(control, 99)
        );
    }

    fn json(&self) -> serde_json::Value {
        let at = |times: &[Duration]| {
            let micros = |percent| u64::try_from(percentile(times, percent).as_micros()).unwrap_or(u64::MAX);
            json!({ "rounds": times.len(), "p50": micros(50), "p99": micros(99) })
        };
        json!({ "what": self.what, "engine": at(&self.engine), "control": at(&self.control) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(percentile(&times, 50), Duration::from_micros(100));
        assert_eq!(percentile(&times, 99), Duration::from_micros(198));
        assert_eq!(percentile(&times[..1], 99), Duration::from_micros(200));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
