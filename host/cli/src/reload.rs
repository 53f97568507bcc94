//! Engines change while the host runs: looks at the files they come from, and when one of them is another and has come to
//! rest, or on SIGHUP, loads what changed and puts the new catalog in. What is bad changes nothing but the reason that
//! `/readyz` shows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use sandbar_core::catalog::{Broken, Catalog, CatalogHandle};
use sandbar_core::name::Names;
use tokio::signal::unix::Signal;

use crate::config::{self, Config, Plugins};
use crate::engines::{self, Engines, Print, Tables};

/// How often the files are looked at. Looking twice is what a change takes to be seen.
const EVERY: Duration = Duration::from_secs(2);

/// The tables that are read again.
const RELOADED: [&str; 2] = ["engines", "plugins"];

type Prints = BTreeMap<PathBuf, Option<Print>>;

/// What is loaded, and from what.
pub(crate) struct Reloader {
    path: PathBuf,
    tables: Tables,
    plugins: Plugins,
    engines: Engines,
    /// The other tables, as the host runs with them.
    others: toml::Table,
    /// What was logged of the configuration as it is now.
    told: Option<String>,
    /// The files as they were before they were loaded.
    taken: Prints,
}

impl Reloader {
    /// Loads everything for the first time. `text` is what `config` was read from.
    ///
    /// # Errors
    /// When the text is no TOML.
    pub(crate) async fn start(
        path: PathBuf,
        text: &str,
        config: &Config,
        names: Arc<Names>,
        plugins: sandbar_plugin::Host,
    ) -> Result<(Self, Catalog)> {
        let mut reloader = Self {
            path,
            tables: config.engines.clone(),
            plugins: config.plugins.clone(),
            engines: Engines::new(config, names, plugins),
            others: others(text)?,
            told: None,
            taken: Prints::new(),
        };
        reloader.taken = reloader.prints();
        let catalog = reloader.engines.load(&reloader.tables, &reloader.plugins).await;
        Ok((reloader, catalog))
    }

    fn prints(&self) -> Prints {
        let mut prints = engines::prints(&self.tables, &self.plugins);
        prints.insert(self.path.clone(), Print::of(&self.path));
        prints
    }

    /// Keeps the catalog up to date, for as long as the host runs.
    pub(crate) async fn watch(mut self, catalog: CatalogHandle, mut hangup: Signal) {
        let mut seen = self.taken.clone();
        loop {
            let asked = tokio::select! {
                told = hangup.recv() => told.is_some(),
                () = tokio::time::sleep(EVERY) => false,
            };
            let now = self.prints();
            // A file that is being written is another at every look.
            let at_rest = now == seen;
            if asked || (at_rest && now != self.taken) {
                tracing::info!(asked, "loading the engines again");
                catalog.replace(self.load().await);
                self.taken.clone_from(&now);
            }
            seen = now;
        }
    }

    async fn load(&mut self) -> Catalog {
        let bad = self.read().err().map(|e| format!("{e:#}"));
        let mut catalog = self.engines.load(&self.tables, &self.plugins).await;
        if let Some(why) = bad {
            self.tell(format!(
                "the configuration cannot be read, and the engines go on with what it said before: {why}"
            ));
            let notes = catalog.services.keys().map(|service| Broken {
                name: service.to_string(),
                why: format!("the engine goes on as it was, for the configuration cannot be read: {why}"),
                pending: false,
            });
            catalog.broken.extend(notes);
        }
        catalog
    }

    fn read(&mut self) -> Result<()> {
        let text = config::text(&self.path)?;
        let Config { engines, plugins, .. } = Config::parse(&text, &self.path)?;
        let others = others(&text)?;
        let changed = others.iter().filter(|(key, table)| self.others.get(*key) != Some(*table)).map(|(key, _)| key);
        let removed = self.others.keys().filter(|key| !others.contains_key(*key));
        let mut changed: Vec<_> = changed.chain(removed).map(|key| format!("[{key}]")).collect();
        changed.sort();
        if changed.is_empty() {
            self.told = None;
        } else {
            self.tell(format!("{} changed in the configuration: that needs a restart", changed.join(", ")));
        }
        (self.tables, self.plugins) = (engines, plugins);
        Ok(())
    }

    /// Says something about the configuration, once.
    fn tell(&mut self, what: String) {
        if self.told.as_ref() != Some(&what) {
            tracing::warn!("{what}");
            self.told = Some(what);
        }
    }
}

/// The tables that are not read again.
fn others(text: &str) -> Result<toml::Table> {
    let mut tables: toml::Table = text.parse()?;
    for key in RELOADED {
        tables.remove(key);
    }
    Ok(tables)
}
