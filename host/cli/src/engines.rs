//! Finds the engines: every table `[engines.…]` and every component in `[plugins] dir`, each with its pin and grants
//! from the configuration or from the lock file beside it. One that cannot be loaded is listed with the reason; the
//! others serve.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbar_core::catalog::{Broken, Catalog, Limits, Service};
use sandbar_core::check::Grants;
use sandbar_core::engine::Engine as _;
use sandbar_core::image::ImagePattern;
use sandbar_core::name::{EngineSlug, Names, ServiceName};
use sandbar_sdk_build::lock::{self, Lock, Pin};

use crate::config::{self, Config};

/// A component that may become a service.
struct Candidate<'a> {
    /// The table's name, or that of the file where there is no table.
    name: String,
    path: PathBuf,
    table: Option<&'a config::Engine>,
}

/// Loads everything.
pub(crate) async fn load(config: &Config, names: &Arc<Names>, host: &sandbar_plugin::Host) -> Catalog {
    let plugins = &config.plugins;
    let defaults = Limits {
        memory_bytes: config.sandbox.memory.0,
        milli_cpus: config.sandbox.cpus.milli,
        pids: config.sandbox.pids,
    };
    let mut catalog = Catalog::default();
    let mut slugs = BTreeSet::new();
    for candidate in candidates(&config.engines, &plugins.dir) {
        let name = candidate.name.clone();
        match load_one(candidate, plugins.allow_unpinned, defaults, names, host).await {
            Ok(service) if catalog.services.contains_key(&service.name) => {
                catalog.broken.push(failed(name, format!("another engine serves `{}` already", service.name)));
            }
            Ok(service) if !slugs.insert(service.slug.clone()) => {
                let why = format!("another engine has the slug `{}`; set `slug` in its table", service.slug);
                catalog.broken.push(failed(name, why));
            }
            Ok(service) => {
                tracing::info!(service = %service.name, engine = service.engine.hash(), "engine loaded");
                catalog.services.insert(service.name.clone(), Arc::new(service));
            }
            Err(broken) => {
                tracing::warn!(engine = broken.name, why = broken.why, "engine not loaded");
                catalog.broken.push(broken);
            }
        }
    }
    catalog
}

fn failed(name: String, why: String) -> Broken {
    Broken { name, why, pending: false }
}

fn candidates<'a>(tables: &'a BTreeMap<ServiceName, config::Engine>, dir: &Path) -> Vec<Candidate<'a>> {
    let mut all = Vec::new();
    for (name, table) in tables {
        let path = table.component.clone().unwrap_or_else(|| dir.join(format!("{name}.wasm")));
        all.push(Candidate { name: name.to_string(), path, table: Some(table) });
    }
    // A directory that is not there holds no engines; one that cannot be read shows as no engines too, and the tables
    // that need it say so.
    let dropped = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut dropped: Vec<_> = dropped.filter(|path| path.extension().is_some_and(|e| e == "wasm")).collect();
    dropped.sort();
    for path in dropped {
        if !all.iter().any(|c| c.path == path) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            all.push(Candidate { name, path, table: None });
        }
    }
    all
}

async fn load_one(
    candidate: Candidate<'_>,
    allow_unpinned: bool,
    defaults: Limits,
    names: &Arc<Names>,
    host: &sandbar_plugin::Host,
) -> Result<Service, Broken> {
    let Candidate { name, path, table } = candidate;
    let fail = |why: String| failed(name.clone(), why);
    let has_table = table.is_some();
    let none = config::Engine::default();
    let table = table.unwrap_or(&none);
    let locked = locked(&path).map_err(|e| fail(format!("{e:#}")))?;
    let pin = table.sha256.as_deref().or(locked.as_ref().map(|p| p.sha256.as_str()));
    if pin.is_none() && !allow_unpinned {
        let why = format!(
            "{} has no pin: write its `sha256` and what it may use into [engines.{name}], or set `[plugins] allow_unpinned = true` for development",
            path.display()
        );
        return Err(Broken { name, why, pending: !has_table });
    }
    let engine = host.load(&path, pin).await.map_err(|e| fail(e.to_string()))?;
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
    let grants = grants(&table.grant, locked.as_ref(), names).map_err(&fail)?;
    let limits = Limits {
        memory_bytes: table.memory.map_or(defaults.memory_bytes, |m| m.0),
        milli_cpus: table.cpus.map_or(defaults.milli_cpus, |c| c.milli),
        pids: table.pids.unwrap_or(defaults.pids),
    };
    Service::new(service, slug, engine, grants, &table.settings, limits, names.clone()).await.map_err(fail)
}

/// What the lock file beside a component says about it.
fn locked(component: &Path) -> anyhow::Result<Option<Pin>> {
    let (Some(dir), Some(file)) = (component.parent(), component.file_name().and_then(|f| f.to_str())) else {
        return Ok(None);
    };
    Ok(Lock::read(&dir.join(lock::FILE))?.get(file).cloned())
}

/// What the table grants; where it says nothing about a kind, what the lock file grants.
fn grants(table: &config::Grant, locked: Option<&Pin>, names: &Names) -> Result<Grants, String> {
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
