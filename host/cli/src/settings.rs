//! From what the operator wrote to what the core takes: reads secrets, compares what is named with what there is, and
//! says every problem at once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::catalog::Catalog;
use sandbar_core::ensure::Limits;
use sandbar_core::error::listed;
use sandbar_core::host::{BoxBudget, Settings};
use sandbar_core::image::Image;
use sandbar_core::janitor::Pace;
use sandbar_core::name::{Names, ProjectName, ServiceName};
use sandbar_core::people::{Caller, Configured};
use sandbar_core::pool::Target;
use sandbar_core::project::Project;
use sandbar_core::secret::sha256_hex;

use crate::config::{self, Bytes, Config, PrivacyMode, Publish, Retention, Token};
use crate::engines;

/// Something about one place of the configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The table and the key, as `[projects.shop] services`.
    pub(crate) at: String,
    pub(crate) why: String,
}

impl Problem {
    pub(crate) fn new(at: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self { at: at.into(), why: why.to_string() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.at, self.why)
    }
}

/// What could not be accepted.
#[derive(Debug, Default)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl std::error::Error for Problems {}

impl std::fmt::Display for Problems {
    /// A line each.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<_> = self.0.iter().map(Problem::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl Problems {
    fn note<T, E: std::fmt::Display>(&mut self, at: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|e| self.0.push(Problem::new(at, e))).ok()
    }

    fn end(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

/// Everybody that the configuration names.
///
/// # Errors
/// When a token cannot be read.
pub(crate) fn people(config: &Config) -> Result<Vec<Configured>, Problems> {
    let mut problems = Problems::default();
    let mut people = Vec::new();
    let mut add = |at: String, token: &Token, caller: Caller| {
        if let Some(token_sha256) = problems.note(&at, hash(token)) {
            people.push(Configured { caller, token_sha256 });
        }
    };
    if let Some(token) = &config.host.operator_token {
        add("[host] operator_token".to_owned(), token, Caller::Operator);
    }
    for (name, orchestrator) in &config.orchestrators {
        let caller = Caller::Orchestrator { name: name.clone(), projects: orchestrator.projects.clone() };
        add(format!("[orchestrators.{name}] token"), &orchestrator.token, caller);
    }
    for (name, agent) in &config.agents {
        let caller = Caller::Agent { name: name.clone(), role: agent.role.clone() };
        add(format!("[agents.{name}] token"), &agent.token, caller);
    }
    problems.end()?;
    Ok(people)
}

/// Shorter tokens can be guessed.
const SHORTEST_TOKEN: usize = 16;

fn hash(token: &Token) -> Result<String, String> {
    match token {
        Token::Sha256(hash) => Ok(hash.clone()),
        Token::Source(source) => {
            let secret = source.read_token()?;
            let length = secret.reveal().len();
            if length < SHORTEST_TOKEN {
                return Err(format!("the token in {source} has {length} characters, and needs {SHORTEST_TOKEN}"));
            }
            Ok(sha256_hex(secret.reveal()))
        }
    }
}

/// The core's settings.
///
/// # Errors
/// Every problem.
pub(crate) fn settings(config: &Config, names: Arc<Names>, catalog: &Catalog) -> Result<Settings, Problems> {
    let mut problems = Problems::default();
    let mut projects = Vec::new();
    for (name, declared) in &config.projects {
        match Project::declare(name.clone(), declared.clone(), catalog) {
            Ok(project) => projects.push(project),
            Err(found) => {
                let found = found.into_iter().map(|(key, why)| Problem::new(format!("[projects.{name}] {key}"), why));
                problems.0.extend(found);
            }
        }
    }
    let mut images = BTreeMap::new();
    for (from, to) in &config.images {
        let at = format!("[images] {from:?}");
        if let (Some(from), Some(_)) = (problems.note(&at, Image::parse(from)), problems.note(&at, Image::parse(to))) {
            images.insert(from, to.clone());
        }
    }
    let pool = pool(config, catalog, &mut problems);
    problems.0.extend(ranges(config).into_iter().map(|(at, why)| Problem::new(at, why)));
    let enabled_by_environment = std::env::var(names.switch_variable())
        .ok()
        .filter(|text| !text.is_empty())
        .and_then(|text| problems.note(&names.switch_variable(), switch(&text)));
    if catalog.services.is_empty() && catalog.broken.is_empty() && !problems.0.is_empty() {
        problems.0.extend(engines::none(&config.plugins.dir).map(|why| Problem::new("[plugins] dir", why)));
    }
    problems.end()?;
    let retention = retention(&config.retention);
    Ok(Settings {
        enabled: config.sandbox.enabled,
        enabled_by_environment,
        roles: config.sandbox.roles.iter().cloned().collect(),
        projects,
        limits: Limits {
            max_live: config.sandbox.max_live,
            lease: Duration::from_secs(config.janitor.lease_secs),
            publish: config.docker.publish == Publish::Loopback,
            images,
            pull_ahead: config.sandbox.pull_ahead,
            pool,
            pool_idle: Duration::from_secs(config.sandbox.pool_idle_secs),
            pull: config.docker.pull_limits().total,
            max_awake: retention.max_live,
            idle_sleep: Duration::from_secs(retention.idle_sleep_secs),
            idle_close: Duration::from_secs(retention.idle_close_secs),
            delete_after: Duration::from_secs(retention.delete_after_secs),
            ..Limits::default()
        },
        pace: Pace {
            every: Duration::from_secs(config.janitor.every_secs),
            grace: Duration::from_secs(config.janitor.grace_secs),
            respawn: Duration::from_secs(config.janitor.respawn_secs),
        },
        keep_on_shutdown: config.host.keep_on_shutdown,
        box_budget: BoxBudget { one: config.boxes.max_bytes.0, all: config.boxes.max_total_bytes.0 },
        local_only: config.privacy.mode == PrivacyMode::LocalOnly,
        names,
    })
}

/// What is kept ready.
fn pool(config: &Config, catalog: &Catalog, problems: &mut Problems) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    for (kind, size) in &config.pool {
        let at = format!("[pool] {kind:?}");
        let target = pool_target(kind, *size, catalog).and_then(|target| {
            let same = |t: &Target| (&t.service, &t.features) == (&target.service, &target.features);
            if targets.iter().any(same) { Err("it stands there twice".to_owned()) } else { Ok(target) }
        });
        targets.extend(problems.note(&at, target));
    }
    let (all, most) = (config.pool.values().fold(0_usize, |all, n| all.saturating_add(*n)), config.sandbox.max_live);
    if all > most {
        let why = format!("{all} containers would be kept ready, and `[sandbox] max_live` is {most}");
        problems.0.push(Problem::new("[pool]", why));
    }
    targets
}

/// One kind, as `postgres+vector+postgis`.
fn pool_target(kind: &str, size: usize, catalog: &Catalog) -> Result<Target, String> {
    let mut words = kind.split('+');
    let service = ServiceName::new(words.next().unwrap_or_default()).map_err(|e| e.to_string())?;
    let features: BTreeSet<_> = words.map(str::to_owned).collect();
    let Some(found) = catalog.services.get(&service) else {
        // One that is broken now may serve later.
        if catalog.broken.iter().any(|b| b.name == service.as_str()) {
            return Ok(Target { service, features, size });
        }
        let all: Vec<_> = catalog.services.keys().map(ServiceName::as_str).collect();
        return Err(format!("there is no service `{service}`; there is {}", listed(&all)));
    };
    if found.work_folder.is_some() {
        return Err(format!("`{service}` is a box, and boxes are made for somebody from the start"));
    }
    let known = found.features();
    match features.iter().find(|feature| !known.contains(feature)) {
        Some(unknown) => Err(format!("`{service}` has no feature `{unknown}`; it has {}", listed(&known))),
        None => Ok(Target { service, features, size }),
    }
}

/// Between these a retained thing falls asleep: sooner and it would do nothing else, later and it would never.
const IDLE_SLEEP_SECS: RangeInclusive<u64> = 300..=86_400;
/// A retained thing that is deleted as soon as it sleeps would be throwaway.
const DELETE_AFTER_SECS: RangeInclusive<u64> = 1..=u64::MAX;
/// With none awake there would be nothing.
const FEWEST_AWAKE: usize = 1;

/// What is taken: each number within its bounds.
pub(crate) fn retention(written: &Retention) -> Retention {
    let secs = |written: u64, bounds: RangeInclusive<u64>| written.clamp(*bounds.start(), *bounds.end());
    Retention {
        idle_sleep_secs: secs(written.idle_sleep_secs, IDLE_SLEEP_SECS),
        idle_close_secs: written.idle_close_secs,
        delete_after_secs: secs(written.delete_after_secs, DELETE_AFTER_SECS),
        max_live: written.max_live.max(FEWEST_AWAKE),
    }
}

/// What is accepted and means something else than what is written, or nothing.
pub(crate) fn notes(config: &Config, declared: &[ProjectName]) -> Vec<Problem> {
    let mut notes = Vec::new();
    let mut note = |key: &str, written: u64, taken: u64| {
        if written != taken {
            notes.push(Problem::new(
                format!("[retention] {key}"),
                format!("{written} is out of its bounds, and {taken} is taken"),
            ));
        }
    };
    let (written, taken) = (&config.retention, retention(&config.retention));
    note("idle_sleep_secs", written.idle_sleep_secs, taken.idle_sleep_secs);
    note("delete_after_secs", written.delete_after_secs, taken.delete_after_secs);
    note("max_live", written.max_live as u64, taken.max_live as u64);
    if config.engines.is_empty() {
        notes.extend(engines::none(&config.plugins.dir).map(|why| Problem::new("[plugins] dir", why)));
    }
    for (orchestrator, project) in undeclared(config, declared) {
        let why = format!("nobody has declared the project `{project}`; `set_project` can do so later");
        notes.push(Problem::new(format!("[orchestrators.{orchestrator}] projects"), why));
    }
    notes
}

/// A container needs this much memory to do anything.
const LEAST_MEMORY: u64 = 64 << 20;
/// A service needs a few processes; Docker takes 0 for no limit.
const FEWEST_PIDS: u32 = 16;
/// No time here makes sense beyond a year.
const LONGEST_SECS: u64 = 366 * 24 * 3600;

/// Numbers that cannot be meant.
fn ranges(config: &Config) -> Vec<(String, String)> {
    let mut found = resources("sandbox", Some(config.sandbox.memory), Some(config.sandbox.pids));
    for (name, engine) in &config.engines {
        found.extend(engine_ranges(name, engine));
    }
    let mut refuse = |key: &str, why: &str| found.push((key.to_owned(), why.to_owned()));
    if config.host.listen.is_empty() {
        refuse("[host] listen", "it is empty, and nobody could call; leave it out to listen on 127.0.0.1:7070");
    }
    if config.sandbox.max_live == 0 {
        refuse("[sandbox] max_live", "with 0 no sandbox could be made; to allow none, set `enabled = false`");
    }
    if config.sandbox.roles.is_empty() {
        refuse("[sandbox] roles", "it is empty, and no agent could ask; to allow none, set `enabled = false`");
    }
    if config.janitor.every_secs == 0 {
        refuse("[janitor] every_secs", "it is a number of seconds between two sweeps, at least 1");
    }
    for host in &config.host.allowed_hosts {
        if let Err(why) = sandbar_server::check_host(host) {
            refuse("[host] allowed_hosts", &why);
        }
    }
    let janitor = &config.janitor;
    for (key, secs) in [
        ("every_secs", janitor.every_secs),
        ("grace_secs", janitor.grace_secs),
        ("lease_secs", janitor.lease_secs),
        ("respawn_secs", janitor.respawn_secs),
    ] {
        if secs > LONGEST_SECS {
            found.push((format!("[janitor] {key}"), format!("{secs} is more than a year")));
        }
    }
    if let Some(network) = &config.docker.network
        && (["host", "none", "bridge", "default"].contains(&network.as_str()) || network.starts_with("container:"))
    {
        let why = format!("`{network}` is no network of its own, in which sandboxes would find each other by name");
        found.push(("[docker] network".to_owned(), why));
    }
    found
}

/// Numbers of an engine's table that cannot be meant.
pub(crate) fn engine_ranges(name: &ServiceName, engine: &config::Engine) -> Vec<(String, String)> {
    resources(&format!("engines.{name}"), engine.memory, engine.pids)
}

fn resources(table: &str, memory: Option<Bytes>, pids: Option<u32>) -> Vec<(String, String)> {
    let mut found = Vec::new();
    if let Some(Bytes(memory)) = memory.filter(|m| m.0 < LEAST_MEMORY) {
        let why =
            format!("it was read as {memory} bytes, and a sandbox needs at least 64m; write the unit, as in \"512m\"");
        found.push((format!("[{table}] memory"), why));
    }
    if pids.is_some_and(|p| p < FEWEST_PIDS) {
        found.push((format!("[{table}] pids"), format!("a sandbox needs at least {FEWEST_PIDS} processes")));
    }
    found
}

/// The projects that orchestrators may name and nobody declared, as (orchestrator, project). They may be declared later.
fn undeclared<'a>(config: &'a Config, declared: &[ProjectName]) -> Vec<(&'a str, &'a ProjectName)> {
    let all = config.orchestrators.iter().flat_map(|(name, o)| o.projects.iter().map(move |p| (name.as_str(), p)));
    all.filter(|(_, p)| !config.projects.contains_key(*p) && !declared.contains(p)).collect()
}

fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        other => Err(format!("`{}` is neither 1 nor 0", other.escape_debug())),
    }
}
