//! How long a host takes to start, and what it holds when it is idle.

use std::fs;

use anyhow::{Context, Result};
use sandbar_core::secret::sha256_hex;
use sandbar_tests::host::wait;
use sandbar_tests::{Options, TestHost};

use crate::{ROUNDS, host, median, millis, row, timed};

/// Both parts.
pub(crate) fn start() -> Result<()> {
    start_and_memory()?;
    ten_engines()
}

fn start_and_memory() -> Result<()> {
    let mut host = host();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        host.down()?;
        let (took, up) = timed(|| host.up());
        up?;
        times.push(took);
    }
    println!("host start with known components, until it serves: {} (asked: about 150 ms)", millis(median(times)));
    wait("an idle host", || host.nobody().get("/readyz").status == 200);
    println!("resident memory of an idle host with three engines: {:.1} MB (asked: at most 80 MB)", resident(&host)?);
    Ok(())
}

/// What a host holds, in MB.
pub(crate) fn resident(host: &TestHost) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", host.pid()))?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: f64 = resident.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// Ten components of which no two have the same bytes: the shipped ones, and each again with a section that says nothing.
/// In turns with the compiled code and without it.
fn ten_engines() -> Result<()> {
    const TEN: u8 = 10;
    let dir = tempfile::tempdir()?;
    let shipped = ["postgres", "redis", "mongo", "box"];
    let lock = fs::read_to_string(Options::default().engines.join("engines.lock"))?;
    let mut tables = String::new();
    for (n, name) in (0..TEN).zip(shipped.iter().cycle()) {
        let mut bytes = fs::read(Options::default().engines.join(format!("{name}.wasm")))?;
        // A custom section: its kind, its length, the length of its name, the name, and a byte.
        bytes.extend([0, 3, 1, b'n', n]);
        let file = dir.path().join(format!("e{n}.wasm"));
        fs::write(&file, &bytes)?;
        let entry = lock.split("\n\n").find(|entry| entry.contains(&format!("{name}.wasm"))).context("a lock entry")?;
        let grant = entry.lines().find(|line| line.starts_with("grant = ")).context("its grants")?;
        let hash = sha256_hex(&bytes);
        tables += &format!("[engines.e{n}]\ncomponent = {file:?}\nsha256 = {hash:?}\nslug = \"e{n}\"\n{grant}\n");
    }
    let empty = tempfile::tempdir()?;
    let options = Options { services: vec![], engines: empty.path().to_owned(), more: tables, ..Options::default() };
    let mut host = TestHost::start_with(options);
    let serving = host.nobody().get("/readyz").body["engines"]
        .as_object()
        .map_or(0, |engines| engines.values().filter(|engine| engine["state"] == "serving").count());
    anyhow::ensure!(serving == usize::from(TEN), "{serving} of them serve");
    let (mut warm, mut cold) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        host.down()?;
        let (took, up) = timed(|| host.up());
        up?;
        warm.push(took);
        host.down()?;
        fs::remove_dir_all(host.dir.path().join("state/compiled"))?;
        let (took, up) = timed(|| host.up());
        up?;
        cold.push(took);
    }
    let (warm, cold) = (median(warm), median(cold));
    let ratio = warm.as_secs_f64() / cold.as_secs_f64();
    let beside = format!("without what was compiled: {}", millis(cold));
    row("host start with ten engines", &millis(warm), &beside, ratio, "about 200 ms");
    println!("(medians of {ROUNDS}, in turns, from the start of the process until it serves)");
    Ok(())
}
