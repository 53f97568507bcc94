//! `sandbar up`, `down` and `ps`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use super::progress::Shown;
use super::{As, EXEC_PROJECT, Home, LOOK_AGAIN, Link, PROJECT, Place, private};

/// How many `up --exec` can be at work at once.
pub(super) const EXEC_SLOTS: usize = 16;

/// Start services and print the variables to reach them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  eval \"$(sandbar up postgres redis)\"\n  sandbar up postgres --with vector --json\n  \
    sandbar up postgres --exec 'pytest tests/db'"
)]
pub(crate) struct Up {
    /// The services.
    services: Vec<String>,
    /// A feature of one of them, as `vector` or `postgres=vector`.
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    with: Vec<String>,
    /// Print everything about them as JSON.
    #[arg(long, conflicts_with = "exec")]
    json: bool,
    /// Run this line in a shell with the variables set, in services of its own that go when it ends.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// Remove what `up` started.
#[derive(Debug, Args)]
pub(crate) struct Down {
    #[command(flatten)]
    place: Place,
}

/// Say what is there.
#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// As JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// The services that the local project opted in to. Two at once must not lose what the other one added.
struct Chosen {
    path: PathBuf,
    services: BTreeSet<String>,
    _lock: fs::File,
}

impl Chosen {
    async fn open(home: &Home) -> Result<Self> {
        let path = home.dir.join("services.json");
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(home.dir.join("services.lock"))?;
        let lock = tokio::task::spawn_blocking(move || flock(&lock, FlockOperation::LockExclusive).map(|()| lock));
        let lock = lock.await??;
        let services = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok(Self { path, services, _lock: lock })
    }

    async fn save(&self, link: &Link) -> Result<()> {
        link.call(As::Operator, "set_project", &json!({ "project": PROJECT, "services": self.services })).await?;
        private(&self.path, serde_json::to_string(&self.services)?.as_bytes())
    }
}

/// Has the local project opt in to services, besides those it has. Answers what it had not.
pub(super) async fn opt_in(home: &Home, link: &Link, services: &[String]) -> Result<BTreeSet<String>> {
    let mut chosen = Chosen::open(home).await?;
    let had = chosen.services.clone();
    let known = known(link).await?;
    // What nobody knows is refused by the host, in its own words.
    chosen.services.extend(services.iter().filter(|name| known.contains(*name)).cloned());
    chosen.services.retain(|name| known.contains(name));
    if chosen.services.is_empty() && services.is_empty() {
        chosen.services = known;
    }
    chosen.save(link).await?;
    link.call(As::Orchestrator, "begin_work", &json!({ "agent": home.agent()?, "project": PROJECT })).await?;
    Ok(&chosen.services - &had)
}

/// Takes back what was added and did not come, so that it stands in nobody's way.
pub(super) async fn opt_out(home: &Home, link: &Link, added: &BTreeSet<String>) -> Result<()> {
    if added.is_empty() {
        return Ok(());
    }
    let mut chosen = Chosen::open(home).await?;
    chosen.services.retain(|name| !added.contains(name));
    chosen.save(link).await
}

/// Leaves nothing of what was only being made.
async fn give_up(home: &Home, link: &Link, added: &BTreeSet<String>, was_absent: bool) -> Result<()> {
    opt_out(home, link, added).await?;
    if was_absent {
        link.call(As::Agent, "release_sandbox", &json!({})).await?;
    } else if !added.is_empty() {
        // A call removes what is not opted in any more. Once the host has heard it, it need not be waited for.
        let heard = Notify::new();
        let ask = json!({});
        tokio::select! {
            done = link.call_with_progress("request_sandbox", &ask, |_| heard.notify_one()) => drop(done?),
            () = heard.notified() => {}
        }
    }
    Ok(())
}

/// The services that the host has.
async fn known(link: &Link) -> Result<BTreeSet<String>> {
    let ready = link.get("/readyz").await?;
    let engines = ready["engines"].as_object().into_iter().flatten();
    Ok(engines.filter(|(_, engine)| engine["state"] == "serving").map(|(name, _)| name.clone()).collect())
}

/// The one of `names` that is most like what was written, if any is.
fn nearest<'a>(written: &str, names: &'a BTreeSet<String>) -> Option<&'a String> {
    let distance = |name: &String| {
        let mut row: Vec<usize> = (0..=name.len()).collect();
        for (i, a) in written.bytes().enumerate() {
            let mut before = std::mem::replace(&mut row[0], i + 1);
            for (j, b) in name.bytes().enumerate() {
                let changed = before + usize::from(a != b);
                before = row[j + 1];
                row[j + 1] = changed.min(before + 1).min(row[j] + 1);
            }
        }
        row[name.len()]
    };
    let near = |name: &&String| name.starts_with(written) || distance(name) <= 1 + written.len() / 4;
    names.iter().filter(near).min_by_key(|name| distance(name))
}

fn check_known(services: &[String], known: &BTreeSet<String>) -> Result<()> {
    let names = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    for service in services {
        if !known.contains(service) {
            let hint = nearest(service, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            bail!("there is no service `{service}`{hint}\nThe services are {names}");
        }
    }
    if services.is_empty() {
        bail!("name the services to start: {names}");
    }
    Ok(())
}

/// Which service each feature is of.
async fn extensions(who: &Link, up: &Up) -> Result<BTreeMap<String, Vec<String>>> {
    let mut of: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for written in &up.with {
        let (named, feature) = match written.split_once('=') {
            Some((service, feature)) => (Some(service), feature),
            None => (None, written.as_str()),
        };
        let (mut takers, mut why) = (Vec::new(), String::new());
        for service in up.services.iter().filter(|service| named.is_none_or(|named| named == *service)) {
            let ask = json!({ "services": [service], "extensions": { service: [feature] }, "explain": true });
            match who.call(As::Agent, "request_sandbox", &ask).await {
                Ok(_) => takers.push(service.clone()),
                Err(e) => why = e.to_string().replace('\n', "; "),
            }
        }
        match takers.as_slice() {
            [service] => of.entry(service.clone()).or_default().push(feature.to_owned()),
            [] if why.is_empty() => {
                bail!("`--with {written}`: `{}` is not one of the services", named.unwrap_or_default())
            }
            [] => bail!("`--with {written}`: {why}"),
            [one, ..] => bail!("`--with {written}`: several services have it, so say `--with {one}={feature}`"),
        }
    }
    Ok(of)
}

/// `sandbar up`. Answers the exit code.
pub(crate) async fn up(up: Up) -> Result<u8> {
    let home = Home::open(&up.place)?;
    let link = home.host().await?;
    check_known(&up.services, &known(&link).await?)?;
    if let Some(line) = &up.exec {
        return exec(&home, &link, &up, line).await;
    }
    let before = link.call(As::Agent, "sandbox_status", &json!({})).await?;
    let added = opt_in(&home, &link, &up.services).await?;
    let evidence = tokio::select! {
        evidence = provision(&link, &up) => evidence,
        interrupted = interrupted() => {
            // What was there before may be somebody's in another window.
            give_up(&home, &link, &added, before["state"] == "absent").await?;
            return interrupted;
        }
    };
    if evidence.is_err() {
        opt_out(&home, &link, &added).await?;
    }
    let evidence = evidence?;
    let mut out = std::io::stdout().lock();
    if up.json {
        writeln!(out, "{evidence:#}")?;
    } else {
        for (name, value) in variables(&evidence) {
            writeln!(out, "export {name}={}", quoted(&value))?;
        }
    }
    Ok(0)
}

/// Asks for the services, and tells how it goes.
async fn provision(who: &Link, up: &Up) -> Result<Value> {
    let ask = json!({ "services": up.services, "extensions": extensions(who, up).await? });
    let mut shown = Shown::new();
    who.call_with_progress("request_sandbox", &ask, |report| shown.tell(report)).await
}

fn variables(evidence: &Value) -> BTreeMap<String, String> {
    let services = evidence.as_object().into_iter().flat_map(|services| services.values());
    let env = services.filter_map(|service| service["env"].as_object()).flatten();
    env.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// A word for the shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

/// Waits for Ctrl-C or a request to end, and answers the exit code for it.
async fn interrupted() -> Result<u8> {
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        _ = int.recv() => Ok(130),
        _ = term.recv() => Ok(143),
    }
}

/// Runs a line in services of its own.
async fn exec(home: &Home, link: &Link, up: &Up, line: &str) -> Result<u8> {
    let (slot, _lock) = slot(home)?;
    let (agent, project) = (format!("exec-{slot}"), format!("{EXEC_PROJECT}-{slot}"));
    let gone = async || link.call(As::Operator, "remove_agent", &json!({ "agent": agent })).await;
    // What an earlier one left that was killed, in this place or in another.
    let _ = gone().await;
    clear_slots(home, link).await;
    let token = link.call(As::Operator, "register_agent", &json!({ "agent": agent, "role": "developer" })).await?;
    let who = link.with_agent(token["token"].as_str().context("the host answers no token")?);
    let begun = async {
        link.call(As::Operator, "set_project", &json!({ "project": project, "services": up.services })).await?;
        link.call(As::Orchestrator, "begin_work", &json!({ "agent": agent, "project": project })).await?;
        provision(&who, up).await
    };
    let begun = tokio::select! {
        begun = begun => begun.map(Ok),
        code = interrupted() => code.map(Err),
    };
    // From here on a signal is for the command, which ends before its services do.
    let ended = match begun {
        Ok(Ok(evidence)) => run(line, &variables(&evidence)).await,
        Ok(Err(code)) => Ok(code),
        Err(e) => Err(e),
    };
    gone().await.context("what was started could not be removed: `sandbar down` does it")?;
    ended
}

/// A number that no other `up --exec` has, until the lock is dropped.
fn slot(home: &Home) -> Result<(usize, fs::File)> {
    for slot in 0..EXEC_SLOTS {
        let lock = home.dir.join(format!("exec-{slot}.lock"));
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(lock)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok((slot, lock));
        }
    }
    bail!("{EXEC_SLOTS} of `up --exec` are at work already: wait for one to end")
}

/// Removes what every `up --exec` left that was killed. Answers whether others are at work, which do that themselves.
async fn clear_slots(home: &Home, link: &Link) -> bool {
    let mut busy = false;
    for slot in 0..EXEC_SLOTS {
        let lock = home.dir.join(format!("exec-{slot}.lock"));
        let Ok(lock) = fs::OpenOptions::new().append(true).open(lock) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            busy = true;
        } else {
            // Mostly there is none.
            let _ = link.call(As::Operator, "remove_agent", &json!({ "agent": format!("exec-{slot}") })).await;
        }
    }
    busy
}

/// Runs a line in a shell, and answers its exit code.
async fn run(line: &str, env: &BTreeMap<String, String>) -> Result<u8> {
    let mut child = Command::new("sh").arg("-c").arg(line).envs(env).spawn().context("sh cannot be started")?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            // From a terminal it has it as well, and decides itself.
            _ = int.recv() => {}
            _ = term.recv() => {
                if let Some(pid) = pid {
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
        }
    };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

/// `sandbar down`.
pub(crate) async fn down(down: Down) -> Result<u8> {
    let home = Home::open(&down.place)?;
    let Some(link) = home.find().await? else { return Ok(0) };
    let link = home.awaited(link, None).await?;
    link.call(As::Agent, "release_sandbox", &json!({})).await?;
    let _ = fs::remove_file(home.dir.join("services.json"));
    let busy = clear_slots(&home, &link).await;
    // Whoever needs it next starts it again.
    if !busy
        && rows(&link).await?.iter().all(|row| row["state"] == "asleep")
        && let Some(pid) = link.pid().await?.and_then(Pid::from_raw)
    {
        kill_process(pid, Signal::TERM)?;
        // The process, and not its socket alone: until then it holds its directory.
        while test_kill_process(pid).is_ok() {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
    Ok(0)
}

pub(super) async fn rows(link: &Link) -> Result<Vec<Value>> {
    let mut listed = link.call(As::Operator, "list_sandboxes", &json!({})).await?;
    match listed["sandboxes"].take() {
        Value::Array(rows) => Ok(rows),
        _ => bail!("the host answers no list"),
    }
}

/// `sandbar ps`.
pub(crate) async fn ps(ps: Ps) -> Result<u8> {
    let home = Home::open(&ps.place)?;
    let rows = match home.find().await? {
        Some(link) => rows(&home.awaited(link, None).await?).await?,
        None => Vec::new(),
    };
    let mut out = std::io::stdout().lock();
    if ps.json {
        writeln!(out, "{:#}", Value::Array(rows))?;
        return Ok(0);
    }
    writeln!(out, "{:<20} {:<12} {:<10} {:>8} {:>10}  CONTAINER", "WHO", "SERVICE", "STATE", "AGE", "MEMORY")?;
    for row in rows {
        let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
        let age = row["age_secs"].as_u64().map_or_else(|| "-".to_owned(), age);
        let memory = row["memory_bytes"].as_u64();
        let memory = memory.map_or_else(|| "-".to_owned(), |m| format!("{:.1} MiB", m as f64 / f64::from(1 << 20)));
        let (who, service, state) = (text("agent"), text("service"), text("state"));
        writeln!(out, "{who:<20} {service:<12} {state:<10} {age:>8} {memory:>10}  {}", text("container"))?;
    }
    Ok(0)
}

fn age(secs: u64) -> String {
    match secs {
        0..=119 => format!("{secs} s"),
        120..=7199 => format!("{} min", secs / 60),
        7200..=172_799 => format!("{} h", secs / 3600),
        _ => format!("{} d", secs / 86_400),
    }
}
