//! What can be asked for: the services that the operator configured, each with a loaded engine, and the ones that
//! could not be loaded with the reason. Immutable once built; a reload builds a new one.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;

use crate::check::{self, Checked, Grants, Refusal, check};
use crate::engine::{Command, EngineError, Pairs, Request, SharedEngine};
use crate::error::listed;
use crate::metric;
use crate::name::{EngineSlug, Names, ServiceName};
use crate::secret::sha256_hex;

/// How many recipes are tried when an engine is loaded: none of the features, all of them, and each one alone as far
/// as this bound reaches.
const RECIPES_TRIED: usize = 16;

/// Resources of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// CPU in thousandths.
    pub milli_cpus: u64,
    /// Processes.
    pub pids: u32,
}

/// One service: an engine with the operator's settings, limits and grants.
pub struct Service {
    /// The name agents use.
    pub name: ServiceName,
    /// The short name in container names.
    pub slug: EngineSlug,
    /// The engine.
    pub engine: SharedEngine,
    /// What it may use.
    pub grants: Grants,
    /// Every setting of its descriptor with a value.
    pub settings: Pairs,
    /// Resources of its containers.
    pub limits: Limits,
    /// The slowest readiness deadline of the recipes that were tried.
    pub deadline: Duration,
    /// The work folder, for a box.
    pub work_folder: Option<String>,
    names: Arc<Names>,
}

/// Why there is no recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    /// The engine gave none.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The host refuses what the engine answered.
    #[error("the host refuses its recipe: {refusal}{}", under(.refusal, .service))]
    Refused {
        /// The service's name.
        service: ServiceName,
        /// Why.
        refusal: Refusal,
    },
}

/// The table in which a refusal's line belongs.
fn under(refusal: &Refusal, service: &ServiceName) -> String {
    refusal.line.as_ref().map(|_| format!(" under [engines.{service}]")).unwrap_or_default()
}

impl Service {
    /// Joins an engine with what the operator configured, and tries its recipes.
    ///
    /// # Errors
    /// One line: a setting that the engine does not have, or the first recipe that cannot be carried out.
    pub async fn new(
        name: ServiceName,
        slug: EngineSlug,
        engine: SharedEngine,
        grants: Grants,
        chosen: &BTreeMap<String, String>,
        limits: Limits,
        names: Arc<Names>,
    ) -> Result<Self, String> {
        let known = &engine.descriptor().settings;
        if let Some(unknown) = chosen.keys().find(|k| !known.iter().any(|s| s.name == **k)) {
            let all: Vec<_> = known.iter().map(|s| s.name.as_str()).collect();
            return Err(format!("it has no setting `{unknown}`; it has {}", listed(&all)));
        }
        let settings =
            known.iter().map(|s| (s.name.clone(), chosen.get(&s.name).unwrap_or(&s.default).clone())).collect();
        let mut service =
            Self { name, slug, engine, grants, settings, limits, deadline: Duration::ZERO, work_folder: None, names };
        (service.deadline, service.work_folder) = service.try_recipes().await?;
        Ok(service)
    }

    async fn try_recipes(&self) -> Result<(Duration, Option<String>), String> {
        let all = self.features();
        let (mut slowest, mut work_folder) = (0, None);
        let mut sets = vec![vec![]];
        if !all.is_empty() {
            sets.push(all.clone());
            sets.extend(all.iter().map(|f| vec![f.clone()]));
        }
        sets.truncate(RECIPES_TRIED);
        for features in sets {
            let what =
                if features.is_empty() { "with no feature".to_owned() } else { format!("with {}", listed(&features)) };
            let checked = self.recipe(&features, false, false).await.map_err(|e| format!("{what}: {e}"))?;
            slowest = slowest.max(checked.recipe().deadline_ms);
            self.client(&checked).map_err(|e| format!("{what}: {e}"))?;
            work_folder = work_folder.or_else(|| checked.recipe().container.work_folder.clone());
        }
        Ok((Duration::from_millis(slowest.into()), work_folder))
    }

    /// The same for who works on behalf of many: an engine that panics has no answer, and takes nobody along.
    pub(crate) async fn recipe_or_error(
        &self,
        features: &[String],
        retained: bool,
        superuser: bool,
    ) -> Result<Checked, RecipeError> {
        let recipe = AssertUnwindSafe(self.recipe(features, retained, superuser)).catch_unwind().await;
        recipe.unwrap_or_else(|_| Err(RecipeError::Engine(EngineError::Broken("it panicked".to_owned()))))
    }

    /// The allowlist.
    pub fn features(&self) -> Vec<String> {
        let mut features: Vec<_> = self.engine.descriptor().features.iter().map(|f| f.name.clone()).collect();
        features.sort();
        features
    }

    /// Asks the engine for a recipe and checks it. `features` is sorted and without duplicates.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub async fn recipe(&self, features: &[String], retained: bool, superuser: bool) -> Result<Checked, RecipeError> {
        let request = Request {
            features: features.to_vec(),
            retained,
            superuser,
            memory_bytes: self.limits.memory_bytes,
            settings: self.settings.clone(),
        };
        let planned = self.engine.plan(&request).await;
        metric::engine_call(self.name.as_str(), &planned);
        let recipe = planned?;
        check(recipe, &request, &self.grants, &self.names)
            .map_err(|refusal| RecipeError::Refused { service: self.name.clone(), refusal })
    }

    /// The service's own client for a person, for a container of this recipe, where the engine names one.
    ///
    /// # Errors
    /// See [`RecipeError`].
    pub fn client(&self, checked: &Checked) -> Result<Option<Command>, RecipeError> {
        check::client(&self.engine.descriptor().more, checked, &self.names)
            .map_err(|refusal| RecipeError::Refused { service: self.name.clone(), refusal })
    }

    /// Tells apart containers that were made with other settings.
    pub fn settings_hash(&self) -> String {
        let Limits { memory_bytes, milli_cpus, pids } = self.limits;
        sha256_hex(format!("{:?} {memory_bytes} {milli_cpus} {pids}", self.settings))[..16].to_owned()
    }
}

/// An engine that is configured or present and does not serve. Where a service of its name serves nevertheless, that is
/// an earlier one, which goes on because this could not take its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The service's name, or the file's where it has none.
    pub name: String,
    /// Why, and what to do.
    pub why: String,
    /// Whether it only waits for the operator to admit it.
    pub pending: bool,
}

/// Every service, good and bad.
#[derive(Default)]
pub struct Catalog {
    /// Those that serve.
    pub services: BTreeMap<ServiceName, Arc<Service>>,
    /// Those that do not, or not as they are now.
    pub broken: Vec<Broken>,
}

impl Catalog {
    /// Why a service does not serve.
    pub fn why_not(&self, service: &ServiceName) -> String {
        match self.broken.iter().find(|b| b.name == service.as_str()) {
            Some(broken) => broken.why.clone(),
            None => "no engine of that name is configured".to_owned(),
        }
    }
}

/// Where the current catalog is found; a reload puts another in.
#[derive(Clone, Default)]
pub struct CatalogHandle(watch::Sender<Arc<Catalog>>);

impl CatalogHandle {
    /// A handle on a catalog.
    pub fn new(catalog: Catalog) -> Self {
        Self(watch::Sender::new(Arc::new(catalog)))
    }

    /// The catalog as it is now.
    pub fn current(&self) -> Arc<Catalog> {
        self.0.borrow().clone()
    }

    /// Sees every change.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Catalog>> {
        self.0.subscribe()
    }

    /// Puts another one in. Calls under way go on with the one they began with.
    pub fn replace(&self, catalog: Catalog) {
        self.0.send_replace(Arc::new(catalog));
    }
}
