//! An engine that has been loaded, and how it is called: on a blocking thread, in a fresh store, under two clocks.
//!
//! The epoch ends a guest that runs, and the timer beside it, on the same thread, one that waits in a host function: both
//! let go of the thread. The third clock, around the thread, only matters where that thread gets no time; what it gives
//! up on is counted, so that no engine can hold more than [`MAX_IN_FLIGHT`] threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::engine::{Descriptor, Engine, EngineError, Recipe, Request};
use semver::Version;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use wasmtime::Store;
use wasmtime::component::InstancePre;

use crate::artifact::Artifact;
use crate::bindings::{SandboxEngine, SandboxEngineIndices};
use crate::error::LoadReason;
use crate::explain::{failure, one_line, too_slow};
use crate::host::Shared;
use crate::limits::{GRACE, MAX_IN_FLIGHT};
use crate::store::{State, fresh};
use crate::{convert, descriptor};

/// A component that answers as the core's [`Engine`].
pub struct LoadedEngine {
    guest: Arc<Guest>,
    descriptor: Descriptor,
    hash: String,
    contract: Version,
    imports: Vec<String>,
    size: usize,
}

impl fmt::Debug for LoadedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedEngine")
            .field("name", &self.descriptor.name)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

impl LoadedEngine {
    /// Asks a linked component what it is, and keeps the answer if it is a proper one.
    pub(crate) async fn introduce(
        shared: Arc<Shared>,
        instance: InstancePre<State>,
        artifact: &Artifact,
        contract: Version,
    ) -> Result<Self, LoadReason> {
        let shape = |why| LoadReason::Shape { version: contract.to_string(), why };
        let indices = SandboxEngineIndices::new(&instance).map_err(|error| shape(one_line(&format!("{error:#}"))))?;
        let guest = Arc::new(Guest { shared, instance, indices, in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)) });
        let descriptor = guest.describe().await.map_err(|failed| match failed {
            Failed::Shape(why) => shape(why),
            Failed::Broken(why) => LoadReason::Silent(why),
        })?;
        descriptor::check(&descriptor).map_err(LoadReason::Descriptor)?;
        Ok(Self {
            guest,
            descriptor,
            hash: artifact.hash().to_owned(),
            imports: artifact.imports().to_vec(),
            size: artifact.bytes().len(),
            contract,
        })
    }

    /// The version of the contract that it was built for.
    #[must_use]
    pub fn contract_version(&self) -> &Version {
        &self.contract
    }

    /// The names of everything it imports; all of them lead nowhere.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// The size of the component in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Asks it once more what it is, in a fresh instance, and does not judge the answer: a host remembers the first one, and
    /// only who doubts that the second is the same needs it.
    ///
    /// # Errors
    ///
    /// It did not answer.
    pub async fn describe_again(&self) -> Result<Descriptor, EngineError> {
        match self.guest.describe().await {
            Ok(descriptor) => Ok(descriptor),
            Err(Failed::Shape(why) | Failed::Broken(why)) => Err(EngineError::Broken(why)),
        }
    }
}

#[async_trait]
impl Engine for LoadedEngine {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    async fn plan(&self, request: &Request) -> Result<Recipe, EngineError> {
        let request = convert::request(request);
        let limit = self.guest.shared.limits.plan;
        let answer = self
            .guest
            .call(limit, async move |guest, store| guest.sandbar_engine_engine().call_plan(store, &request).await)
            .await;
        match answer {
            Ok(Ok(recipe)) => Ok(convert::recipe(recipe)),
            Ok(Err(refusal)) => Err(convert::error(refusal)),
            Err(Failed::Shape(why) | Failed::Broken(why)) => {
                tracing::debug!(engine = %self.descriptor.name, hash = %self.hash, why, "a plan failed");
                Err(EngineError::Broken(why))
            }
        }
    }
}

/// Why a call has no answer, in one line.
enum Failed {
    /// The functions of the component are not those of the contract.
    Shape(String),
    /// Everything else.
    Broken(String),
}

/// A linked component.
struct Guest {
    shared: Arc<Shared>,
    instance: InstancePre<State>,
    indices: SandboxEngineIndices,
    /// One permit for each thread that runs it.
    in_flight: Arc<Semaphore>,
}

impl Guest {
    /// Asks what it is.
    async fn describe(self: &Arc<Self>) -> Result<Descriptor, Failed> {
        let limit = self.shared.limits.describe;
        let ask = self.call(limit, async |guest, store| guest.sandbar_engine_engine().call_describe(store).await);
        ask.await.map(convert::descriptor)
    }

    /// Runs `ask` against a fresh instance, for no longer than `limit`.
    async fn call<R, A>(self: &Arc<Self>, limit: Duration, ask: A) -> Result<R, Failed>
    where
        R: Send + 'static,
        A: AsyncFnOnce(&SandboxEngine, &mut Store<State>) -> wasmtime::Result<R> + Send + 'static,
    {
        // As long as one turn of those that are ahead can take.
        let turn = limit.saturating_add(GRACE);
        let permit = match timeout(turn, Arc::clone(&self.in_flight).acquire_owned()).await {
            Ok(Ok(permit)) => permit,
            // The semaphore is never closed, so this is the clock.
            Ok(Err(_)) | Err(_) => {
                return Err(Failed::Broken(format!("it is busy with {MAX_IN_FLIGHT} other calls that do not end")));
            }
        };
        let guest = Arc::clone(self);
        let thread = spawn_blocking(move || {
            let answer = guest.run(limit, ask);
            // Not before the thread is done with the guest, whoever still waits for it.
            drop(permit);
            answer
        });
        let abort = thread.abort_handle();
        match timeout(turn, thread).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(Failed::Broken("the host failed while it ran the engine".to_owned())),
            Err(_) => {
                // Where it has not begun it need not.
                abort.abort();
                Err(Failed::Broken(too_slow(limit)))
            }
        }
    }

    /// The part of [`Guest::call`] that occupies a thread.
    fn run<R>(
        &self,
        limit: Duration,
        ask: impl AsyncFnOnce(&SandboxEngine, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> Result<R, Failed> {
        let Shared { engine, limits, world, .. } = &*self.shared;
        let mut store = fresh(engine, limits, *world, limit);
        let answer = Handle::current().block_on(timeout(limit, async {
            let instance = self.instance.instantiate_async(&mut store).await.map_err(Stopped::Guest)?;
            let guest = self.indices.load(&mut store, &instance).map_err(Stopped::Shape)?;
            ask(&guest, &mut store).await.map_err(Stopped::Guest)
        }));
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Stopped::Guest(error))) => Err(Failed::Broken(failure(&error, store.data(), limit, limits))),
            Ok(Err(Stopped::Shape(error))) => Err(Failed::Shape(one_line(&format!("{error:#}")))),
            Err(_) => Err(Failed::Broken(too_slow(limit))),
        }
    }
}

/// Where a call stopped.
enum Stopped {
    Shape(wasmtime::Error),
    Guest(wasmtime::Error),
}
