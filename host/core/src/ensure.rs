//! What provisioning promises, as one function to read from top to bottom: [`Ensure::round`]. It runs inside an agent's
//! flight, so nothing else touches that agent's containers meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::catalog::{CatalogHandle, Service};
use crate::crash;
use crate::error::{Code, Error};
use crate::failure::{self, Failure};
use crate::folders::Folders;
use crate::health::Health;
use crate::image::Image;
use crate::leaving::Leaving;
use crate::metric;
use crate::name::{Names, ServiceName};
use crate::owner::{For, Owner, folder_that_goes};
use crate::plan::{Note, Secrets};
use crate::pool::{Pool, Target};
use crate::progress::{Progress, ProgressSink};
use crate::provision::{Made, Maker, NotMade};
use crate::registry::Entry;
use crate::runtime::{Runtime, RuntimeError, Unit, UnitState};
use crate::sandbox::{Live, Serving, Want};
use crate::store::{HandOut, Store};
use crate::unheard::Unheard;

/// How often a name is tried that is taken by what is going.
const NAME_TRIES: usize = 5;
/// The pause before trying it again.
const NAME_PAUSE: Duration = Duration::from_millis(100);

/// Bounds and settings that hold for every sandbox.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many agents may have a sandbox at once. A throwaway box counts as one too.
    pub max_live: usize,
    /// How many retained things may be awake at once.
    pub max_awake: usize,
    /// How long a retained thing may be idle before it sleeps.
    pub idle_sleep: Duration,
    /// How long a throwaway box may be idle before it is closed.
    pub idle_close: Duration,
    /// How long a retained thing may sleep before it is deleted.
    pub delete_after: Duration,
    /// For how long an owner lives on after its last call.
    pub lease: Duration,
    /// How often an agent's containers may be remade within [`Limits::remake_window`].
    pub remakes: usize,
    /// See [`Limits::remakes`].
    pub remake_window: Duration,
    /// How long a pull may take in all. The runtime ends it; a call has to outlast it.
    pub pull: Duration,
    /// Whether ports are published on the loopback.
    pub publish: bool,
    /// The operator's mapping: normalised image to what is run.
    pub images: BTreeMap<Image, String>,
    /// Whether the images of projects are pulled before anybody asks.
    pub pull_ahead: bool,
    /// What is kept ready before anybody asks.
    pub pool: Vec<Target>,
    /// A kind that was not asked for in this time is kept ready once only.
    pub pool_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_live: 200,
            max_awake: 50,
            idle_sleep: Duration::from_secs(15 * 60),
            idle_close: Duration::from_secs(30 * 60),
            delete_after: Duration::from_secs(30 * 24 * 3600),
            lease: Duration::from_secs(30 * 60),
            remakes: 6,
            remake_window: Duration::from_secs(10 * 60),
            pull: Duration::from_secs(300),
            publish: false,
            images: BTreeMap::new(),
            pull_ahead: true,
            pool: Vec::new(),
            pool_idle: Duration::from_secs(60 * 60),
        }
    }
}

/// What a round needs.
pub struct Ensure {
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) catalog: CatalogHandle,
    pub(crate) names: Arc<Names>,
    limits: Limits,
    pub(crate) leaving: Leaving,
    pub(crate) health: Health,
    pub(crate) store: Arc<Store>,
    pub(crate) folders: Option<Arc<dyn Folders>>,
    generation: AtomicU64,
    certain: Mutex<Certain>,
    pub(crate) unheard: Unheard,
    pub(crate) pool: Arc<Pool>,
}

/// Containers of which it is known that they run since they were made: they were looked at, and none of them was told to
/// have ended since.
#[derive(Default)]
struct Certain {
    ids: BTreeSet<String>,
    /// Whether nobody tells what ends, so that nothing is certain.
    unseen: bool,
}

/// What has to happen to one sandbox. Worked out without changing anything, so that it can also be explained.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// What has to be made, with every feature it needs.
    pub make: BTreeMap<ServiceName, BTreeSet<String>>,
    /// What has to go and is not replaced.
    pub drop: BTreeSet<ServiceName>,
}

impl Change {
    /// From what is held, all of it sound or none of it, to what is wanted. A service that is made anew keeps the
    /// features it had.
    pub fn between(held: Option<&Live>, sound: bool, want: &Want) -> Self {
        let held = held.filter(|live| live.project == want.project);
        let mut change = Self::default();
        for (service, features) in &want.services {
            let serving = held.and_then(|live| live.services.get(service));
            if !(sound && serving.is_some_and(|s| s.lacks_nothing(features, want))) {
                let had = serving.map(|s| s.features.clone()).unwrap_or_default();
                change.make.insert(service.clone(), &had | features);
            }
        }
        if let Some(held) = held {
            change.drop = held.services.keys().filter(|s| !want.services.contains_key(*s)).cloned().collect();
        }
        change
    }
}

impl Ensure {
    /// Joins the parts.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        catalog: CatalogHandle,
        names: Arc<Names>,
        limits: Limits,
        health: Health,
        store: Arc<Store>,
        folders: Option<Arc<dyn Folders>>,
    ) -> Self {
        let leaving = Leaving::new(runtime.clone(), names.clone(), folders.clone());
        // Generations only have to differ from those of earlier runs; the clock makes that likely, and names decide.
        let start = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let pool = Arc::new(Pool::new(limits.pool.clone(), limits.pool_idle));
        Self {
            runtime,
            catalog,
            names,
            limits,
            leaving,
            health,
            store,
            folders,
            generation: AtomicU64::new(start << 20),
            certain: Mutex::default(),
            unheard: Unheard::default(),
            pool,
        }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn leaving(&self) -> &Leaving {
        &self.leaving
    }

    /// What making needs.
    pub(crate) fn maker(&self) -> Maker<'_> {
        Maker {
            runtime: self.runtime.as_ref(),
            leaving: &self.leaving,
            names: &self.names,
            images: &self.limits.images,
            publish: self.limits.publish,
            folders: self.folders.as_deref(),
            unheard: &self.unheard,
        }
    }

    /// Makes `held` what is wanted. Whatever it answers, `held` is what exists.
    pub(crate) async fn round(
        &self,
        owner: &Owner,
        entry: &Entry,
        want: &Want,
        held: &mut Option<Live>,
        cancel: &CancellationToken,
        progress: &broadcast::Sender<Progress>,
    ) -> Result<(), Error> {
        // What is there is looked at again once something was made, which may have taken minutes: a container may have
        // ended since it was kept, or confirmed.
        while self.pass(owner, entry, want, held, cancel, progress).await? {}
        Ok(())
    }

    /// One look and one change. Answers whether something was made.
    async fn pass(
        &self,
        owner: &Owner,
        entry: &Entry,
        want: &Want,
        held: &mut Option<Live>,
        cancel: &CancellationToken,
        progress: &broadcast::Sender<Progress>,
    ) -> Result<bool, Error> {
        if let Some(keyed) = owner.keyed.as_ref().filter(|k| k.retained) {
            return self.pass_kept(owner, keyed, entry, want, held, cancel, progress).await;
        }
        // Another project's sandbox goes first.
        if let Some(old) = held.take_if(|live| live.project != want.project) {
            self.let_go(old.services.values()).await;
        }
        // Hit? Nothing to do, if all of it is live.
        let sound = match held {
            Some(live) => self.check(live).await?,
            None => true,
        };
        let change = Change::between(held.as_ref(), sound, want);
        if change.make.is_empty() && change.drop.is_empty() {
            return Ok(false);
        }
        if !sound {
            tracing::warn!(
                agent = owner.slug(),
                owner = owner.key(),
                "a container is not as it was left: the sandbox is made anew"
            );
        }
        self.may_remake(entry, held.as_ref(), &change)?;

        // All services at once; what was made is kept whole or removed whole.
        let made = self.make_all(owner, want, &change, None, cancel, progress).await?;
        let took_long = made.iter().any(|(_, one)| one.taken.is_none());
        if let Err(error) = self.note_hand_outs(owner, want, &made) {
            self.undo(owner, &made).await;
            return Err(error);
        }
        let commits = made.into_iter().map(|(service, one)| {
            let old = held.as_mut().and_then(|live| live.services.remove(&service));
            async move { self.commit(owner, &service, one, old).await.map(|serving| (service, serving)) }
        });
        let commits: Vec<_> = commits.collect();
        let (committed, mut errors): (Vec<_>, Vec<_>) = join_all(commits).await.into_iter().partition(Result::is_ok);
        let committed = committed.into_iter().flatten();
        if let Some(Err(error)) = errors.pop() {
            self.let_go(committed.map(|(_, serving)| Arc::new(serving))).await;
            return Err(error);
        }
        let live = held.get_or_insert_with(|| Live::new(want.project.clone()));
        live.services.extend(committed.map(|(service, serving)| (service, Arc::new(serving))));
        let dropped: Vec<_> = change.drop.iter().filter_map(|s| live.services.remove(s)).collect();
        self.let_go(&dropped).await;
        Ok(took_long)
    }

    /// Notes who gets what was ready, before it has its name: whoever finds it under that knows whose it is.
    fn note_hand_outs(&self, owner: &Owner, want: &Want, made: &[(ServiceName, Made)]) -> Result<(), Error> {
        let taken = made.iter().filter(|(_, one)| one.taken.is_some());
        let rows: Vec<_> = taken
            .map(|(_, one)| HandOut {
                container: one.id.clone(),
                agent: owner.agent.clone(),
                project: want.project.clone(),
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        self.store.hand_out(&rows).map_err(|e| {
            tracing::error!(error = %e, "the state file failed");
            Error::internal()
        })?;
        crash::here("hand-out noted");
        Ok(())
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn certain(&self) -> MutexGuard<'_, Certain> {
        self.certain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A container may have been started again.
    pub(crate) fn doubt(&self, id: &str) {
        self.certain().ids.remove(id);
    }

    /// Every container may have been started again, and as long as it is `unseen` what ends, any may be at any time.
    pub(crate) fn doubt_all(&self, unseen: bool) {
        *self.certain() = Certain { ids: BTreeSet::new(), unseen };
    }

    /// Forgets all but these.
    pub(crate) fn forget_all(&self, but: &BTreeSet<String>) {
        self.certain().ids.retain(|id| but.contains(id));
    }

    /// Whether a container that is running runs since it was made. Costs nothing where that is certain.
    pub(crate) async fn runs_since_it_was_made(&self, serving: &Serving) -> Result<bool, Error> {
        {
            let mut certain = self.certain();
            // Noted before the look, so that what is told during it counts.
            if !certain.unseen && !certain.ids.insert(serving.id.clone()) {
                return Ok(true);
            }
        }
        let found = self.runtime.inspect(&serving.id).await;
        // A listing may still say that it runs when its end was told already.
        if found.as_ref().is_ok_and(|unit| unit.run == serving.run && unit.state == UnitState::Running) {
            return Ok(true);
        }
        self.doubt(&serving.id);
        match found {
            Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(false),
            Err(e) => {
                self.health.note(&e);
                Err(failure::runtime(&e))
            }
        }
    }

    /// Whether every container of a sandbox is running, not paused, and the one that was made: one list call. Takes
    /// over published ports, which change when a container was started again.
    pub(crate) async fn check(&self, live: &mut Live) -> Result<bool, Error> {
        let ids: Vec<_> = live.services.values().map(|serving| serving.id.as_str()).collect();
        let units = self.runtime.find(&ids).await.map_err(|e| {
            self.health.note(&e);
            failure::runtime(&e)
        })?;
        let mut sound = true;
        for serving in live.services.values_mut() {
            let unit = units.iter().find(|u| u.id == serving.id && u.name == serving.name);
            // One that was taken out of the network runs, and nobody reaches it.
            let networked = serving.work.as_ref().is_none_or(|work| work.networked);
            let reached = |u: &&Unit| u.state == UnitState::Running && u.address.is_some() == networked;
            match unit.filter(reached) {
                Some(unit) => {
                    if unit.published_port != serving.published_port {
                        Arc::make_mut(serving).published_port = unit.published_port;
                    }
                    sound &= self.runs_since_it_was_made(serving).await?;
                }
                None => sound = false,
            }
        }
        Ok(sound)
    }

    /// Bounds how often containers are replaced, since each time costs the machine a start.
    fn may_remake(&self, entry: &Entry, held: Option<&Live>, change: &Change) -> Result<(), Error> {
        if !held.is_some_and(|live| change.make.keys().any(|s| live.services.contains_key(s))) {
            return Ok(());
        }
        self.count_remake(entry)
    }

    pub(crate) fn count_remake(&self, entry: &Entry) -> Result<(), Error> {
        let now = Instant::now();
        let window = self.limits.remake_window;
        let mut remakes = entry.remakes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while remakes.front().is_some_and(|at| now.duration_since(*at) >= window) {
            remakes.pop_front();
        }
        match remakes.front() {
            Some(first) if remakes.len() >= self.limits.remakes => {
                let wait = (window - now.duration_since(*first)).as_secs() + 1;
                let message =
                    format!("this sandbox was made anew {} times within {} s", self.limits.remakes, window.as_secs());
                let remediate = "find out what ends its containers, or ask for all features at once; then call again";
                Err(Error::retry(Code::Capacity, wait.try_into().unwrap_or(u32::MAX), message, remediate))
            }
            _ => {
                remakes.push_back(now);
                Ok(())
            }
        }
    }

    /// Lets throwaway containers go.
    pub(crate) async fn let_go(&self, all: impl IntoIterator<Item = impl AsRef<Serving>>) {
        join_all(all.into_iter().map(|s| async move {
            let s = s.as_ref();
            self.leaving.let_go(&s.id, s.folder()).await;
        }))
        .await;
    }

    pub(crate) async fn make_all(
        &self,
        owner: &Owner,
        want: &Want,
        change: &Change,
        known: Option<&Secrets>,
        cancel: &CancellationToken,
        progress: &broadcast::Sender<Progress>,
    ) -> Result<Vec<(ServiceName, Made)>, Error> {
        let catalog = self.catalog.current();
        let mut services: Vec<(Arc<Service>, Note)> = Vec::new();
        for (name, features) in &change.make {
            let service =
                catalog.services.get(name).cloned().ok_or_else(|| unavailable(name, &catalog.why_not(name)))?;
            let features = features.iter().cloned().collect();
            let note = Note {
                project: Some(want.project.clone()),
                features,
                superuser: want.superuser,
                box_network: want.box_network,
                known: known.cloned(),
            };
            services.push((service, note));
        }
        let all = services.len();
        let mut made: Vec<_> = self.take(owner, &services).await.into_iter().collect();
        services.retain(|(service, _)| !made.iter().any(|(name, _)| *name == service.name));
        metric::handed_out(made.iter().map(|(name, _)| name), "pool");
        if services.is_empty() {
            return Ok(made);
        }
        let _calling = self.pool.call();
        for (service, _) in &services {
            self.name_is_free(owner, service).await?;
            crash::here("name looked up");
        }
        metric::handed_out(services.iter().map(|(service, _)| &service.name), "made");
        let maker = self.maker();
        // The first failure stops the others: they would be removed anyway.
        let stop = cancel.child_token();
        let work = services.iter().map(|(service, note)| {
            let (maker, stop) = (&maker, &stop);
            async move {
                let sink = sink(owner, &service.name, progress.clone());
                let work = maker.make(service, For::Owner(owner), note, self.generation(), &sink, stop);
                // One service's panic must not drop the others half way.
                let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                    tracing::error!(agent = owner.slug(), owner = owner.key(), service = %service.name, "making it panicked");
                    Err(NotMade::Failed(Failure::new(&service.name, "make", "the host made a mistake")))
                });
                if result.is_err() {
                    stop.cancel();
                }
                (service.name.clone(), result)
            }
        });
        let mut error = None;
        for (service, result) in join_all(work).await {
            match result {
                Ok(one) => made.push((service, one)),
                Err(NotMade::Cancelled) => {}
                Err(NotMade::Away(why)) => {
                    self.health.note(&RuntimeError::Unreachable(why.clone()));
                    error = Some(failure::away(&why));
                }
                Err(NotMade::Failed(failure)) => {
                    let failed = failure.into_error();
                    tracing::warn!(agent = owner.slug(), owner = owner.key(), %service, error = %failed.message, "not made");
                    error.get_or_insert(failed);
                }
            }
        }
        let error = match error {
            None if made.len() == all => return Ok(made),
            None => failure::released(),
            Some(error) => error,
        };
        self.undo(owner, &made).await;
        Err(error)
    }

    /// Removes what was made and is not committed. What was ready is so again once its claim is dropped.
    async fn undo(&self, owner: &Owner, made: &[(ServiceName, Made)]) {
        let fresh = made.iter().filter(|(_, m)| m.taken.is_none());
        join_all(fresh.map(|(_, m)| {
            let folder = m.serving.folder().filter(|_| !owner.retains());
            self.leaving.discard(&m.id, false, folder)
        }))
        .await;
    }

    /// Finds out before anything is made whether the final name is somebody else's.
    async fn name_is_free(&self, owner: &Owner, service: &Service) -> Result<(), Error> {
        let name = owner.container(&self.names, &service.slug);
        match self.runtime.inspect(&name).await {
            Ok(unit) if !self.is_ours(&unit) => Err(failure::name_conflict(&service.name, &name)),
            Ok(_) | Err(RuntimeError::NotFound(_)) => Ok(()),
            Err(e) => {
                self.health.note(&e);
                Err(failure::runtime(&e))
            }
        }
    }

    pub(crate) fn is_ours(&self, unit: &Unit) -> bool {
        self.names.are_ours(&unit.labels)
    }

    /// Gives a container its final name: from then on it is the agent's. Its predecessor goes, and so does a stale
    /// container of this installation that has the name. On failure it is removed.
    pub(crate) async fn commit(
        &self,
        owner: &Owner,
        service: &ServiceName,
        made: Made,
        old: Option<Arc<Serving>>,
    ) -> Result<Serving, Error> {
        let Made { id, serving, taken } = made;
        if let Some(old) = &old {
            self.leaving.let_go(&old.id, old.folder()).await;
            crash::here("predecessor let go");
        }
        let mut result = self.runtime.rename(&id, &serving.name).await;
        for _ in 0..NAME_TRIES {
            match &result {
                Err(RuntimeError::Conflict { holder: Some(holder), .. }) if self.is_ours(holder) => {
                    tracing::warn!(agent = owner.slug(), owner = owner.key(), %service, "a stale container had the name");
                    let folder = folder_that_goes(&holder.labels, &self.names);
                    self.leaving.let_go(&holder.id, folder).await;
                }
                // Whoever had it is just going.
                Err(RuntimeError::Conflict { holder: None, .. }) => tokio::time::sleep(NAME_PAUSE).await,
                _ => break,
            }
            result = self.runtime.rename(&id, &serving.name).await;
        }
        if let Err(e) = result {
            match (taken, &e) {
                // It has the name it had, and somebody else may get it.
                (Some(claim), RuntimeError::Conflict { .. }) => drop(claim),
                (taken, _) => {
                    self.leaving.discard(&id, false, serving.folder().filter(|_| !owner.retains())).await;
                    if let Some(claim) = taken {
                        claim.spend();
                    }
                }
            }
            self.health.note(&e);
            return Err(match e {
                RuntimeError::Conflict { holder: Some(holder), .. } if !self.is_ours(&holder) => {
                    failure::name_conflict(service, &serving.name)
                }
                RuntimeError::Unreachable(_) => failure::runtime(&e),
                e => Failure::new(service, "commit", e.to_string()).into_error(),
            });
        }
        crash::here("committed");
        if let Some(claim) = taken {
            claim.spend();
        }
        let Serving { name: container, features, superuser, .. } = &serving;
        match old {
            None => {
                tracing::info!(target: "audit", agent = owner.slug(), owner = owner.key(), %service, container, ?features, superuser, "made")
            }
            Some(_) => {
                tracing::info!(target: "audit", agent = owner.slug(), owner = owner.key(), %service, container, ?features, superuser, "remade")
            }
        }
        Ok(serving)
    }
}

/// An opted-in service that has no working engine.
pub fn unavailable(service: &ServiceName, why: &str) -> Error {
    let message = format!("the service `{service}` is not available: {why}");
    Error::retry(Code::InvalidState, 30, message, "tell the operator; the other services can be asked for by name")
}

/// Reports go to whoever listens, and to the log.
fn sink(owner: &Owner, service: &ServiceName, progress: broadcast::Sender<Progress>) -> ProgressSink {
    let owner = owner.clone();
    let to = move |report: Progress| {
        if report.bytes.is_none() {
            tracing::debug!(
                agent = owner.slug(),
                owner = owner.key(),
                service = report.service,
                step = report.step,
                detail = report.detail,
                "progress"
            );
        }
        // Nobody listening is fine.
        let _ = progress.send(report);
    };
    ProgressSink::new(service.as_str(), Arc::new(to))
}
