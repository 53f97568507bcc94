//! What is made here is removed at the end, however the end comes.

use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use sandbar_tests::TestHost;
use sandbar_tests::docker::{docker, with_label};

/// How long a host that was told to end may take, and the removal behind it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Labels of what is there, with the process that makes it where that is another one.
static HELD: Mutex<Vec<(String, Option<u32>)>> = Mutex::new(Vec::new());

/// A label of this run's own. What has it is removed when this is dropped.
pub(crate) struct Label(pub(crate) String);

impl Label {
    pub(crate) fn new() -> Self {
        let label = format!("sandbar-bench.run={}", std::process::id());
        hold(label.clone(), None);
        Self(label)
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn hold(label: String, pid: Option<u32>) {
    HELD.lock().expect("nobody panics while it holds this").push((label, pid));
}

/// A host that is dropped ends by itself and removes what it has; a signal drops nothing.
pub(crate) fn watch(host: &TestHost) {
    hold(format!("{}.installation={}", host.namespace, host.installation), Some(host.pid()));
}

/// From now on a signal that ends this process ends its hosts first and removes what they have.
pub(crate) fn on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok()?;
            tokio::select! {
                _ = tokio::signal::ctrl_c() => Some(()),
                _ = term.recv() => Some(()),
            }
        });
        let held = HELD.lock().map(|held| held.clone()).unwrap_or_default();
        for pid in held.iter().filter_map(|(_, pid)| *pid) {
            let _ = std::process::Command::new("kill").args(["-TERM", &pid.to_string()]).status();
        }
        let until = Instant::now() + PATIENCE;
        while held.iter().filter_map(|(_, pid)| *pid).any(runs) && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        held.iter().for_each(|(label, _)| remove(label));
        std::process::exit(130);
    });
    Ok(())
}

/// Whether a child of ours still runs. Nobody waits for it any more, so one that has ended stays on as a zombie.
fn runs(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')))
}

fn remove(label: &str) {
    let until = Instant::now() + PATIENCE;
    while let Ok(left) = with_label(label) {
        if left.is_empty() || Instant::now() > until {
            left.iter().for_each(|line| eprintln!("{line} could not be removed"));
            return;
        }
        for line in &left {
            let mut words = line.split(' ');
            let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let args = if kind == "container" { vec!["rm", "--force", "--volumes"] } else { vec![kind, "rm"] };
            // Somebody else may have been quicker; what is left is seen by the next look.
            let _ = docker(args.into_iter().chain([name]));
        }
    }
}
