//! The one wasmtime engine of the process, configured, with its clock and its cache of compiled code; and the way of a
//! file from bytes to an engine that has said who it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use semver::Version;
use tokio::task::spawn_blocking;
use wasmtime::component::{Component, InstancePre, Linker};
use wasmtime::{Config, Engine};

use crate::artifact::Artifact;
use crate::cache::CodeCache;
use crate::error::{HostError, LoadError, LoadReason};
use crate::explain::one_line;
use crate::limits::{FIBER_STACK_BYTES, GUEST_STACK_BYTES, Limits};
use crate::loaded::LoadedEngine;
use crate::store::State;
use crate::ticker::Ticker;
use crate::wasi::World;

/// What everything loaded shares. Engines keep it alive after the [`Host`] is gone, since their calls need the clock.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) limits: Limits,
    pub(crate) world: World,
    ticker: Arc<Ticker>,
    cache: Option<Arc<CodeCache>>,
}

/// Loads components. One for the process; cheap to clone.
#[derive(Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl Host {
    /// Makes a host. Compiled code is kept in `cache` if there is one, by content; the directory is made if it is missing
    /// and must be writable for nobody else, since what lies in it is run.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or WebAssembly cannot be run on this machine.
    pub fn new(cache: Option<PathBuf>, limits: Limits) -> Result<Self, HostError> {
        let mut config = Config::new();
        config.wasm_component_model(true);
        config.epoch_interruption(true);
        config.max_wasm_stack(GUEST_STACK_BYTES);
        config.async_stack_size(FIBER_STACK_BYTES);
        // Nobody reads a guest's backtrace here, and its names are the guest's.
        config.wasm_backtrace_max_frames(None);
        let cache = cache.map(|path| CodeCache::open(&path).map(Arc::new)).transpose()?;
        config.cache(cache.as_ref().map(|cache| cache.cache()));
        let engine = Engine::new(&config).map_err(|error| HostError::Engine(one_line(&format!("{error:#}"))))?;
        let ticker = Ticker::start(engine.clone()).map_err(|error| HostError::Engine(error.to_string()))?;
        Ok(Self { shared: Arc::new(Shared { engine, limits, world: World::Usual, ticker: Arc::new(ticker), cache }) })
    }

    /// This host with another moment on its clocks, which also go on, and other random numbers. What it loads answers the
    /// same as here, unless an answer depends on what an engine must not depend on.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        let Shared { engine, limits, ticker, cache, .. } = &*self.shared;
        let (engine, limits, ticker, cache) = (engine.clone(), limits.clone(), Arc::clone(ticker), cache.clone());
        Self { shared: Arc::new(Shared { engine, limits, world: World::Other, ticker, cache }) }
    }

    /// Loads a component: reads the file once, compares the pin (SHA-256, 64 hexadecimal digits), and on with
    /// [`Host::load_artifact`]. Must be called in a Tokio runtime with a clock.
    ///
    /// # Errors
    ///
    /// See [`LoadReason`]; the error names the file.
    pub async fn load(&self, path: &Path, pin: Option<&str>) -> Result<Arc<LoadedEngine>, LoadError> {
        let artifact = {
            let (path, pin) = (path.to_owned(), pin.map(str::to_owned));
            spawn_blocking(move || Artifact::read(&path, pin.as_deref())).await
        };
        let failed = |reason| LoadError { path: path.to_owned(), reason };
        let artifact = artifact.map_err(|error| failed(LoadReason::Read(error.into())))??;
        self.load_artifact(artifact).await.map_err(failed)
    }

    /// Loads what was read before: checks contract and imports, compiles it or takes it from the cache, links it, and
    /// asks it what it is. Must be called in a Tokio runtime with a clock.
    ///
    /// # Errors
    ///
    /// See [`LoadReason`].
    pub async fn load_artifact(&self, artifact: Artifact) -> Result<Arc<LoadedEngine>, LoadReason> {
        let shared = Arc::clone(&self.shared);
        let prepared = spawn_blocking(move || {
            let contract = artifact.admissible()?;
            let instance = prepare(&shared.engine, &artifact, &contract);
            if let Some(cache) = &shared.cache {
                cache.remember();
            }
            let instance = instance?;
            Ok::<_, LoadReason>((artifact, contract, instance))
        });
        let (artifact, contract, instance) = match prepared.await {
            Ok(prepared) => prepared?,
            // Compiling is the only part that is large enough to have a bug of that kind.
            Err(_) => return Err(LoadReason::Compile("the compiler failed".to_owned())),
        };
        LoadedEngine::introduce(Arc::clone(&self.shared), instance, &artifact, contract).await.map(Arc::new)
    }
}

/// Compiles and links. What the component imports has been checked; a pure one gets nothing to link against.
fn prepare(engine: &Engine, artifact: &Artifact, contract: &Version) -> Result<InstancePre<State>, LoadReason> {
    let component = Component::new(engine, artifact.bytes())
        .map_err(|error| LoadReason::Compile(one_line(&format!("{error:#}"))))?;
    let mut linker = Linker::new(engine);
    let linked =
        if artifact.imports().is_empty() { Ok(()) } else { wasmtime_wasi::p2::add_to_linker_async(&mut linker) };
    linked
        .and_then(|()| linker.instantiate_pre(&component))
        .map_err(|error| LoadReason::Shape { version: contract.to_string(), why: one_line(&format!("{error:#}")) })
}
