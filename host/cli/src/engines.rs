//! Finds the engines: every table `[engines.…]` and every component in `[plugins] dir`, each with its pin and grants
//! from the configuration or from the lock file beside it. One that cannot be loaded is listed with the reason; the
//! others serve.

use std::collections::BTreeMap;
use std::fs::{self, FileType};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sandbar_core::catalog::{Broken, Catalog, Limits, Service};
use sandbar_core::check::Grants;
use sandbar_core::engine::Engine as _;
use sandbar_core::image::ImagePattern;
use sandbar_core::name::{EngineSlug, Names, ServiceName};
use sandbar_plugin::LoadReason;
use sandbar_sdk_build::lock::{self, Lock, Pin};

use crate::config::{self, Config, Plugins};
use crate::settings::engine_ranges;

/// The tables `[engines.…]`.
pub(crate) type Tables = BTreeMap<ServiceName, config::Engine>;

/// What tells a file from what it was before, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Print {
    modified: Option<SystemTime>,
    length: u64,
    inode: u64,
    kind: FileType,
}

impl Print {
    /// Of what is at a path, if anything is.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self { modified: found.modified().ok(), length: found.len(), inode: found.ino(), kind: found.file_type() })
    }
}

/// A component that may become a service, and all that decides what becomes of it.
#[derive(Debug, Clone, PartialEq)]
struct Candidate {
    /// The table's name, or that of the file where there is no table.
    name: String,
    path: PathBuf,
    print: Option<Print>,
    table: Option<config::Engine>,
    /// What the lock file beside it says.
    pin: Result<Option<Pin>, String>,
    allow_unpinned: bool,
}

#[derive(Clone)]
struct Serving {
    /// As it was when it was loaded.
    from: Candidate,
    service: Arc<Service>,
}

/// The engines that serve. Loads what is new or has changed; where that is bad, an earlier one goes on.
pub(crate) struct Engines {
    names: Arc<Names>,
    host: sandbar_plugin::Host,
    defaults: Limits,
    serving: Vec<Serving>,
    /// Why others do not, as it was logged.
    told: BTreeMap<String, String>,
}

impl Engines {
    /// None yet. The limits of an engine whose table has none are those of the configuration's `[sandbox]`.
    pub(crate) fn new(config: &Config, names: Arc<Names>, host: sandbar_plugin::Host) -> Self {
        let defaults = Limits {
            memory_bytes: config.sandbox.memory.0,
            milli_cpus: config.sandbox.cpus.milli,
            pids: config.sandbox.pids,
        };
        Self { names, host, defaults, serving: Vec::new(), told: BTreeMap::new() }
    }

    /// Loads everything that is not loaded as it is now.
    pub(crate) async fn load(&mut self, tables: &Tables, plugins: &Plugins) -> Catalog {
        let mut candidates: Vec<_> = candidates(tables, plugins)
            .into_iter()
            .map(|candidate| (self.earlier(&candidate, tables).cloned(), candidate))
            .collect();
        // Whoever serves already comes first, so that nothing new takes its name or slug.
        candidates.sort_by_key(|(earlier, _)| earlier.is_none());
        let mut catalog = Catalog::default();
        let mut serving: Vec<Serving> = Vec::new();
        let mut waiting: Vec<_> = candidates.iter().map(|(earlier, _)| earlier.clone()).rev().collect();
        for (earlier, candidate) in candidates {
            waiting.pop();
            let others = || serving.iter().chain(waiting.iter().flatten());
            let name = candidate.name.clone();
            let gone = candidate.print.is_none();
            let loaded = match &earlier {
                Some(earlier) if earlier.from == candidate => Ok(earlier.clone()),
                _ => self.load_one(candidate).await.and_then(|new| match clash(&new, others()) {
                    None => Ok(new),
                    Some(why) => Err(Broken { name, why, pending: false }),
                }),
            };
            match (loaded, earlier) {
                (Ok(new), earlier) => {
                    if earlier.is_none_or(|e| !Arc::ptr_eq(&e.service, &new.service)) {
                        tracing::info!(service = %new.service.name, engine = new.service.engine.hash(), "engine loaded");
                    }
                    serving.push(new);
                }
                // What nobody admits any more does not go on.
                (Err(broken), Some(earlier)) if !gone && !broken.pending => {
                    let name = earlier.service.name.to_string();
                    let why =
                        format!("the engine goes on as it was, for what is there now cannot be used: {}", broken.why);
                    catalog.broken.push(Broken { name, why, pending: false });
                    serving.push(earlier);
                }
                (Err(broken), _) => catalog.broken.push(broken),
            }
        }
        for gone in self.serving.iter().filter(|s| !serving.iter().any(|now| now.service.name == s.service.name)) {
            tracing::info!(service = %gone.service.name, "engine removed: its service is not offered any more");
        }
        let told = catalog.broken.iter().map(|b| (b.name.clone(), b.why.clone())).collect();
        for Broken { name, why, .. } in catalog.broken.iter().filter(|b| self.told.get(&b.name) != Some(&b.why)) {
            tracing::warn!(engine = name, why, "engine not loaded");
        }
        self.told = told;
        self.serving = serving;
        catalog.services = self.serving.iter().map(|s| (s.service.name.clone(), s.service.clone())).collect();
        catalog
    }

    /// The file that each service is from.
    pub(crate) fn files(&self) -> BTreeMap<&ServiceName, &Path> {
        self.serving.iter().map(|s| (&s.service.name, s.from.path.as_path())).collect()
    }

    /// The service that a candidate would take the place of: that of its table, or that of its file.
    fn earlier(&self, candidate: &Candidate, tables: &Tables) -> Option<&Serving> {
        match candidate.table {
            Some(_) => self.serving.iter().find(|s| s.service.name.as_str() == candidate.name),
            None => {
                let of_file = |s: &&Serving| s.from.path == candidate.path && !tables.contains_key(&s.service.name);
                self.serving.iter().find(of_file)
            }
        }
    }

    async fn load_one(&self, candidate: Candidate) -> Result<Serving, Broken> {
        let Candidate { name, path, print, table, pin: locked, allow_unpinned } = candidate.clone();
        let fail = |why: String| Broken { name: name.clone(), why, pending: false };
        let has_table = table.is_some();
        let table = table.unwrap_or_default();
        match print.map(|p| p.kind) {
            Some(kind) if kind.is_file() => {}
            Some(kind) => {
                let what = if kind.is_dir() { "a directory" } else { "a pipe or a device" };
                return Err(fail(format!("{} is {what}, and a component is a file", path.display())));
            }
            None => {
                let why = format!("there is no file {}; `sandbar engine build` makes components", path.display());
                return Err(fail(why));
            }
        }
        if let Ok(service) = ServiceName::new(&name)
            && let Some((at, why)) = engine_ranges(&service, &table).into_iter().next()
        {
            return Err(fail(format!("{at}: {why}")));
        }
        let locked = locked.map_err(&fail)?;
        let pin = table.sha256.as_deref().or(locked.as_ref().map(|p| p.sha256.as_str()));
        if pin.is_none() && !allow_unpinned {
            let into = if has_table { format!(" --name {name} --update") } else { String::new() };
            let why = format!(
                "{0} has no pin: `sandbar engine add {0}{into}` shows what it would be allowed and admits it; for development set `[plugins] allow_unpinned = true`",
                path.display()
            );
            return Err(Broken { name, why, pending: !has_table });
        }
        let engine = self.host.load(&path, pin).await.map_err(|e| {
            let todo = match e.reason {
                LoadReason::PinMismatch { .. } if has_table => {
                    let path = path.display();
                    format!("; `sandbar engine add {path} --name {name} --update` shows what it would be allowed and admits it")
                }
                LoadReason::PinMismatch { .. } => {
                    format!("; build it again, or `sandbar engine add {}` admits it by a table", path.display())
                }
                _ => String::new(),
            };
            fail(format!("{e}{todo}"))
        })?;
        let descriptor = engine.descriptor();
        // Checked when it was loaded, but the table's word counts where there is a table.
        let service = if has_table { ServiceName::new(&name) } else { ServiceName::new(&descriptor.name) };
        let service = service.map_err(|e| fail(e.to_string()))?;
        let slug = match &table.slug {
            Some(slug) => slug.clone(),
            None => EngineSlug::new(&descriptor.slug).map_err(|e| fail(e.to_string()))?,
        };
        // What the lock file grants, it grants to these bytes.
        let locked = locked.filter(|pin| pin.sha256.eq_ignore_ascii_case(engine.hash()));
        let grants = grants(&table.grant, locked.as_ref(), &self.names).map_err(&fail)?;
        let limits = Limits {
            memory_bytes: table.memory.map_or(self.defaults.memory_bytes, |m| m.0),
            milli_cpus: table.cpus.map_or(self.defaults.milli_cpus, |c| c.milli),
            pids: table.pids.unwrap_or(self.defaults.pids),
        };
        let names = self.names.clone();
        let made = Service::new(service, slug, engine, grants, &table.settings, limits, names).await;
        Ok(Serving { from: candidate, service: Arc::new(made.map_err(fail)?) })
    }
}

/// Why a service cannot stand beside the others.
fn clash<'a>(new: &Serving, others: impl Iterator<Item = &'a Serving>) -> Option<String> {
    for other in others {
        let Serving { from, service } = other;
        if service.name == new.service.name {
            return Some(format!("{} serves `{}` already", from.path.display(), service.name));
        }
        if service.slug == new.service.slug {
            return Some(format!(
                "the engines `{}` and `{}` have the same slug `{}`: set `slug` in the table of one of them",
                new.service.name, service.name, service.slug
            ));
        }
    }
    None
}

fn candidates(tables: &Tables, plugins: &Plugins) -> Vec<Candidate> {
    let candidate = |name: String, path: PathBuf, table: Option<&config::Engine>| {
        let (print, pin) = (Print::of(&path), locked(&path).map_err(|e| format!("{e:#}")));
        Candidate { name, path, print, table: table.cloned(), pin, allow_unpinned: plugins.allow_unpinned }
    };
    let mut all: Vec<_> = tables
        .iter()
        .map(|(name, table)| candidate(name.to_string(), path(name, table, plugins), Some(table)))
        .collect();
    for path in dropped(&plugins.dir) {
        if !all.iter().any(|c| c.path == path) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push(candidate(name, path, None));
        }
    }
    all
}

/// Where the component of a table is.
fn path(name: &ServiceName, table: &config::Engine, plugins: &Plugins) -> PathBuf {
    table.component.clone().unwrap_or_else(|| plugins.dir.join(format!("{name}.wasm")))
}

/// The components in the directory. One that is not there holds none, and one that cannot be read shows as none too; what
/// needs them says so. Names that begin with a dot are what editors and copying leave for a moment.
fn dropped(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let visible = entries.filter(|e| !e.file_name().as_encoded_bytes().starts_with(b".")).map(|e| e.path());
    let mut found: Vec<_> = visible.filter(|path| path.extension().is_some_and(|e| e == "wasm")).collect();
    found.sort();
    found
}

/// Every file that decides which engines there are, as it is now.
pub(crate) fn prints(tables: &Tables, plugins: &Plugins) -> BTreeMap<PathBuf, Option<Print>> {
    let mut files: Vec<_> = tables.iter().map(|(name, table)| path(name, table, plugins)).collect();
    files.extend(dropped(&plugins.dir));
    let locks: Vec<_> = files.iter().filter_map(|f| f.parent()).map(|dir| dir.join(lock::FILE)).collect();
    files.into_iter().chain(locks).map(|file| (Print::of(&file), file)).map(|(print, file)| (file, print)).collect()
}

/// Why there are no engines at all, where the directory is the reason.
pub(crate) fn none(dir: &Path) -> Option<String> {
    let what = match fs::metadata(dir) {
        Err(_) => "is missing",
        Ok(found) if !found.is_dir() => "is no directory",
        Ok(_) if dropped(dir).is_empty() => "has no component in it",
        Ok(_) => return None,
    };
    let dir = dir.display();
    Some(format!(
        "there are no engines: {dir} {what} (`[plugins] dir`); `sandbar engine build <crate> --out {dir}` makes them"
    ))
}

/// What the lock file beside a component says about it.
pub(crate) fn locked(component: &Path) -> anyhow::Result<Option<Pin>> {
    let (Some(dir), Some(file)) = (component.parent(), component.file_name().and_then(|f| f.to_str())) else {
        return Ok(None);
    };
    Ok(Lock::read(&dir.join(lock::FILE))?.get(file).cloned())
}

/// What the table grants; where it says nothing about a kind, what the lock file grants.
pub(crate) fn grants(table: &config::Grant, locked: Option<&Pin>, names: &Names) -> Result<Grants, String> {
    let or = |own: &Option<Vec<String>>, of: fn(&lock::Grant) -> &Vec<String>| {
        own.clone().unwrap_or_else(|| locked.map(|p| of(&p.grant).clone()).unwrap_or_default())
    };
    let images = or(&table.images, |g| &g.images);
    let images = images.iter().map(|i| ImagePattern::parse(&i.replace("{namespace}", names.namespace())));
    Ok(Grants {
        images: images.collect::<Result<_, _>>().map_err(|e| format!("grant.images: {e}"))?,
        capabilities: or(&table.capabilities, |g| &g.capabilities),
        data_dirs: or(&table.data_dirs, |g| &g.data_dirs),
        variables: or(&table.variables, |g| &g.variables),
    })
}
