//! `sandbar engine add`, `list` and `remove`: what an operator lets run, as tables of the configuration.
//!
//! A change is tried before it is written: the engines are loaded as a host that runs would load them again, and what would
//! take something away, or be refused, is not written at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use sandbar_core::catalog::{Broken, Catalog, Limits};
use sandbar_core::check::Grants;
use sandbar_core::engine::Engine as _;
use sandbar_core::image::{Image, ImagePattern};
use sandbar_core::name::{EngineSlug, Installation, Names, ServiceName};
use sandbar_kit::Subject;
use sandbar_plugin::{Artifact, LoadReason};

use super::{advice, pair, plugins, scratch};
use crate::check::allowed;
use crate::config::{Config, Grant};
use crate::edit::{Admitted, File};
use crate::engines::{self, Engines};
use crate::settings::{self, Problem};

/// What to admit, and as what.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// The component. It stays where it is.
    component: PathBuf,
    /// The name of the service [default: the one that the engine proposes].
    #[arg(long, value_parser = name)]
    name: Option<ServiceName>,
    /// The short name in container names [default: the one that the engine proposes].
    #[arg(long, value_parser = slug)]
    slug: Option<EngineSlug>,
    /// A setting of the engine, in place of its default.
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    /// Change the component, pin and grants of an engine that is there, and nothing else of it.
    #[arg(long)]
    update: bool,
    /// Only say what would be written.
    #[arg(long)]
    dry_run: bool,
    /// The configuration file.
    #[arg(long, default_value = "sandbar.toml")]
    config: PathBuf,
}

/// What to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The configuration file.
    #[arg(long, default_value = "sandbar.toml")]
    config: PathBuf,
}

/// What to take out.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The name of the service.
    #[arg(value_parser = name)]
    name: ServiceName,
    /// The configuration file.
    #[arg(long, default_value = "sandbar.toml")]
    config: PathBuf,
}

fn name(text: &str) -> Result<ServiceName, sandbar_core::name::BadName> {
    ServiceName::new(text)
}

fn slug(text: &str) -> Result<EngineSlug, sandbar_core::name::BadName> {
    EngineSlug::new(text)
}

/// Shows what an engine would be allowed to do, and writes its pin and its grants into the configuration.
///
/// # Errors
/// It cannot be admitted, and the configuration is as it was.
pub(crate) async fn add(args: &AddArgs) -> Result<()> {
    let mut file = File::read(&args.config)?;
    let shown = args.config.display();
    let cache = scratch()?;
    let mut trial = Trial::start(file.config()?, cache.path()).await?;

    let failed = |reason: LoadReason| anyhow!("{}", advice(&args.component, &reason));
    let artifact = Artifact::read(&args.component, None).map_err(|e| failed(e.reason))?;
    let sha256 = artifact.hash().to_owned();
    let engine = trial.plugins.load_artifact(artifact).await.map_err(failed)?;
    let proposed = || ServiceName::new(&engine.descriptor().name);
    let name = args.name.clone().map_or_else(proposed, Ok)?;
    let path = fs::canonicalize(&args.component).with_context(|| args.component.display().to_string())?;
    trial.free(&name, &path, args)?;

    let locked = engines::locked(&args.component)?.filter(|pin| pin.sha256.eq_ignore_ascii_case(&sha256));
    let table = trial.config.engines.get(&name).cloned().unwrap_or_default();
    let mut settings = table.settings;
    settings.extend(args.settings.iter().cloned());
    let subject = Subject {
        elsewhere: engine.clone(),
        engine,
        settings,
        limits: Limits { memory_bytes: table.memory.unwrap_or(trial.config.sandbox.memory).0, milli_cpus: 0, pids: 0 },
        names: trial.names.clone(),
    };
    let author = engines::grants(&Default::default(), locked.as_ref(), &trial.names).map_err(|e| anyhow!(e))?;
    let asked = Asked::of(granted(&author.images, subject.asks_for().await));
    let (grants, kept) = asked.beside(&table.grant, &trial.names);

    let base = file.base()?;
    let below = fs::canonicalize(&base).ok().and_then(|base| Some(path.strip_prefix(base).ok()?.to_owned()));
    let component = below.unwrap_or(path);
    let component = component.to_str().with_context(|| format!("{} is not UTF-8: rename it", component.display()))?;
    let slug = args.slug.as_ref().map(EngineSlug::as_str);
    let admitted = Admitted { component, sha256: &sha256, slug, grants: &grants, settings: &args.settings };
    file.admit(&name, &admitted)?;
    let catalog = trial.judge(file.config()?).await.with_context(|| format!("{shown} stays as it is"))?;
    let service = catalog.services.get(&name).with_context(|| format!("`{name}` would not serve"))?;

    println!("{}\n\n{}\n", allowed(service).trim(), file.shown(&name));
    for (key, values) in kept {
        println!(
            "grant.{key} keeps {values}, which this version does not ask for; take it out by hand if nothing needs it\n"
        );
    }
    if args.dry_run {
        println!("{shown} stays as it is: without --dry-run this table is written to it");
        return Ok(());
    }
    file.write()?;
    println!("written to {shown}; a host that runs takes it within seconds, and projects get it by their `services`");
    Ok(())
}

/// Prints every engine of a configuration, a line each.
///
/// # Errors
/// The configuration cannot be read.
pub(crate) async fn list(args: &ListArgs) -> Result<()> {
    let cache = scratch()?;
    let trial = Trial::start(File::read(&args.config)?.config()?, cache.path()).await?;
    let mut rows = vec![["NAME", "SLUG", "STATE", "ENGINE", "SHA-256", ""].map(str::to_owned)];
    let files = trial.engines.files();
    for (name, service) in &trial.catalog.services {
        let descriptor = service.engine.descriptor();
        rows.push([
            name.to_string(),
            service.slug.to_string(),
            "serving".to_owned(),
            format!("{} {}", descriptor.name, descriptor.version),
            service.engine.hash()[..12].to_owned(),
            files.get(name).map(|path| path.display().to_string()).unwrap_or_default(),
        ]);
    }
    for Broken { name, why, pending } in &trial.catalog.broken {
        let state = if *pending { "pending" } else { "failed" };
        rows.push([name, "-", state, "-", "-", why].map(str::to_owned));
    }
    let widths: Vec<_> = (0..5).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        println!("{}", format!("{}{}", cells.collect::<String>(), row[5]).trim_end());
    }
    Ok(())
}

/// Takes an engine's table out of the configuration.
///
/// # Errors
/// There is none, or something still needs it; the configuration is as it was.
pub(crate) async fn remove(args: &RemoveArgs) -> Result<()> {
    let RemoveArgs { name, config } = args;
    let shown = config.display();
    let mut file = File::read(config)?;
    let cache = scratch()?;
    let mut trial = Trial::start(file.config()?, cache.path()).await?;
    if !file.remove(name) {
        match trial.engines.files().get(name) {
            Some(path) => {
                bail!("`{name}` has no table in {shown}: it is there for {}; remove that file", path.display())
            }
            None => bail!("there is no [engines.{name}] in {shown}; `sandbar engine list` says what there is"),
        }
    }
    let uses = trial.config.projects.iter().filter(|(_, project)| project.services.contains(name));
    let uses: Vec<_> = uses.map(|(project, _)| format!("[projects.{project}] services")).collect();
    let catalog = match trial.judge(file.config()?).await {
        Ok(catalog) => catalog,
        Err(_) if !uses.is_empty() => {
            bail!("`{name}` stays in {shown}: take it out of {} first", uses.join(" and of "))
        }
        Err(e) => return Err(e.context(format!("`{name}` stays in {shown}"))),
    };
    file.write()?;
    println!("[engines.{name}] was taken out of {shown}");
    if catalog.services.contains_key(name) {
        let path = trial.engines.files().get(name).map(|path| path.display().to_string()).unwrap_or_default();
        println!("`{name}` goes on: the lock file beside {path} admits it too; remove that file to end it");
    }
    Ok(())
}

/// The engines of a configuration, loaded as a host loads them, to see what becomes of a change.
struct Trial {
    config: Config,
    names: Arc<Names>,
    plugins: sandbar_plugin::Host,
    engines: Engines,
    catalog: Catalog,
}

impl Trial {
    async fn start(config: Config, cache: &Path) -> Result<Self> {
        let names = Arc::new(Names::new(config.host.namespace.clone(), Installation::new("trial")?));
        let plugins = plugins(cache)?;
        let mut engines = Engines::new(&config, names.clone(), plugins.clone());
        let catalog = engines.load(&config.engines, &config.plugins).await;
        Ok(Self { config, names, plugins, engines, catalog })
    }

    /// Whether a name is the one that was meant.
    fn free(&self, name: &ServiceName, path: &Path, args: &AddArgs) -> Result<()> {
        let shown = args.config.display();
        let known = self.config.engines.contains_key(name);
        let file = self.engines.files().get(name).map(|path| path.to_path_buf());
        match (known, args.update) {
            (true, false) => bail!(
                "[engines.{name}] is in {shown} already: `--update` changes its component, pin and grants, `--name` adds another"
            ),
            (false, true) => bail!("there is no [engines.{name}] in {shown} to update: leave `--update` out"),
            (true, true) => Ok(()),
            (false, false) => match file.filter(|file| fs::canonicalize(file).ok().as_deref() != Some(path)) {
                Some(file) => {
                    bail!("`{name}` is there already, from {}: `--name` adds this one beside it", file.display())
                }
                None => Ok(()),
            },
        }
    }

    /// What a host would have after a change, if that takes nothing away and nothing of it is refused.
    async fn judge(&mut self, changed: Config) -> Result<Catalog> {
        let catalog = self.engines.load(&changed.engines, &changed.plugins).await;
        let spoilt = |b: &&Broken| !b.pending && !self.catalog.broken.contains(b);
        if let Some(Broken { name, why, .. }) = catalog.broken.iter().find(spoilt) {
            bail!("[engines.{name}]: {why}");
        }
        let problems = |config: &Config, catalog: &Catalog| {
            let found = settings::settings(config, self.names.clone(), catalog).err();
            found.map(|found| found.0).unwrap_or_default()
        };
        let before = problems(&self.config, &self.catalog);
        // What was wrong in the same place before is not this change's, though it may read otherwise now.
        let new = |problem: &Problem| before.iter().all(|earlier| earlier.at != problem.at);
        match problems(&changed, &catalog).into_iter().find(new) {
            Some(problem) => bail!("{problem}"),
            None => Ok(catalog),
        }
    }
}

/// What an engine is granted, as it is written.
pub(crate) struct Asked {
    pub(crate) images: Vec<String>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) data_dirs: Vec<String>,
    pub(crate) variables: Vec<String>,
}

impl Asked {
    fn of(grants: Grants) -> Self {
        let Grants { images, capabilities, data_dirs, variables } = grants;
        Self { images: images.iter().map(ToString::to_string).collect(), capabilities, data_dirs, variables }
    }

    /// The same beside what a table grants already, which is the operator's word; and what of that is asked for no more.
    fn beside(self, table: &Grant, names: &Names) -> (Self, Vec<(&'static str, String)>) {
        let mut kept = Vec::new();
        let mut join = |key, before: &Option<Vec<String>>, asked: Vec<String>, covers: &dyn Fn(&str, &str) -> bool| {
            let before = before.clone().unwrap_or_default();
            let (wanted, rest): (Vec<_>, Vec<_>) =
                before.iter().cloned().partition(|before| asked.iter().any(|asked| covers(before, asked)));
            if !rest.is_empty() {
                kept.push((key, sandbar_core::error::listed(&rest)));
            }
            let new = asked.into_iter().filter(|asked| !wanted.iter().any(|before| covers(before, asked)));
            let new: Vec<_> = new.collect();
            [before, new].concat()
        };
        let same = |before: &str, asked: &str| before == asked;
        let image = |before: &str, asked: &str| {
            let before = before.replace("{namespace}", names.namespace());
            let covers = |pattern: ImagePattern| Image::parse(asked).is_ok_and(|image| pattern.covers(&image));
            before == asked || ImagePattern::parse(&before).is_ok_and(covers)
        };
        let joined = Self {
            images: join("images", &table.images, self.images, &image),
            capabilities: join("capabilities", &table.capabilities, self.capabilities, &same),
            data_dirs: join("data_dirs", &table.data_dirs, self.data_dirs, &same),
            variables: join("variables", &table.variables, self.variables, &same),
        };
        (joined, kept)
    }
}

/// What is asked for; an image by its author's pattern, where one covers it.
fn granted(author: &[ImagePattern], asked: Grants) -> Grants {
    let mut images: Vec<ImagePattern> = Vec::new();
    for asked in asked.images {
        let image = Image::parse(&asked.to_string());
        let pattern = author.iter().find(|pattern| image.as_ref().is_ok_and(|image| pattern.covers(image)));
        let pattern = pattern.cloned().unwrap_or(asked);
        if !images.contains(&pattern) {
            images.push(pattern);
        }
    }
    Grants { images, ..asked }
}

#[cfg(test)]
mod tests {
    use sandbar_core::name::Namespace;

    use super::*;

    #[test]
    fn what_was_granted_by_hand_stays() {
        let list = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let names = Names::new(Namespace::new("ns").unwrap(), Installation::new("x").unwrap());
        let asked = || Asked {
            images: list(&["db:2", "ns-db:1", "other:1"]),
            capabilities: list(&[]),
            data_dirs: list(&["/data"]),
            variables: list(&["DB_URL"]),
        };
        let table = Grant {
            images: Some(list(&["db:*", "{namespace}-db:*", "mine:*"])),
            variables: Some(list(&["MORE"])),
            ..Grant::default()
        };
        let (joined, kept) = asked().beside(&table, &names);
        assert_eq!(joined.images, ["db:*", "{namespace}-db:*", "mine:*", "other:1"]);
        assert_eq!((joined.data_dirs, joined.variables), (list(&["/data"]), list(&["MORE", "DB_URL"])));
        assert_eq!(kept, [("images", "`mine:*`".to_owned()), ("variables", "`MORE`".to_owned())]);
        let (joined, kept) = asked().beside(&Grant::default(), &names);
        assert_eq!((joined.images, kept.len()), (asked().images, 0));
    }

    #[test]
    fn an_author_s_patterns_are_taken_for_what_is_asked_for_and_no_further() {
        let patterns = |all: &[&str]| all.iter().map(|p| ImagePattern::parse(p).unwrap()).collect::<Vec<_>>();
        let asked = Grants {
            images: patterns(&["db:1", "db:2", "other:1"]),
            variables: vec!["DB_URL".to_owned()],
            ..Grants::default()
        };
        let granted = granted(&patterns(&["db:*", "unused:*"]), asked);
        assert_eq!(granted.images, patterns(&["db:*", "other:1"]));
        assert_eq!(granted.variables, ["DB_URL"]);
    }
}
