//! Containers that are ready before anybody asks. One is handed out by a note in the state file and a rename, to who wants
//! exactly its kind; otherwise nothing is taken from here, and the service is made as ever. What was handed out once never
//! comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::catalog::{RecipeError, Service};
use crate::ensure::Ensure;
use crate::error::Error;
use crate::image::Image;
use crate::name::ServiceName;
use crate::owner::Owner;
use crate::plan::{self, Note};
use crate::provision::Made;
use crate::runtime::{Unit, UnitState};
use crate::sandbox::Serving;
use crate::secret::sha256_hex;

/// Pause after the first failure to make something ahead; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);
/// An image or an engine that keeps failing is tried this often.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How many containers of a kind are kept ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The service. It is no box.
    pub service: ServiceName,
    /// The features it is made with: no more and no less is handed out.
    pub features: BTreeSet<String>,
    /// How many.
    pub size: usize,
}

/// Everything that two containers must have in common to be of use to the same call: one digest of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape(pub(crate) String);

/// A kind of container as it would be made now.
pub(crate) struct Kind {
    pub(crate) shape: Shape,
    /// The image that is run.
    pub(crate) image: String,
}

/// A container that nobody has.
#[derive(Debug, Clone)]
pub(crate) struct Ready {
    pub(crate) shape: Shape,
    pub(crate) image: String,
    pub(crate) serving: Serving,
}

/// How making one kind ahead went last.
#[derive(Debug, Clone, Copy, Default)]
struct Luck {
    failures: u32,
    not_before: Option<Instant>,
}

#[derive(Default)]
struct Books {
    ready: Vec<Ready>,
    /// What somebody has a claim on and does not have yet.
    taken: BTreeSet<String>,
    making: BTreeMap<Shape, usize>,
    luck: BTreeMap<Shape, Luck>,
    /// When a kind was asked for last, by service and features.
    asked: BTreeMap<(ServiceName, BTreeSet<String>), Instant>,
    /// Whether what is ready has to be looked at.
    doubted: bool,
}

/// See the module.
pub(crate) struct Pool {
    targets: Vec<Target>,
    idle: Duration,
    books: Mutex<Books>,
    /// Whether anybody may ask.
    open: AtomicBool,
    /// Something changed that its keeper has to see to.
    pub(crate) changed: Notify,
    /// Something that was being made ahead is ready, or will not be.
    ended: Notify,
    /// How many calls make something while their callers wait.
    calls: AtomicUsize,
    /// There is none any more.
    calm: Notify,
    /// Ends what is being made ahead.
    pub(crate) stop: CancellationToken,
}

/// What a pool holds, for whoever watches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// How many containers are ready.
    pub ready: usize,
    /// How many are being made.
    pub making: usize,
}

impl Pool {
    pub(crate) fn new(targets: Vec<Target>, idle: Duration) -> Self {
        Self {
            targets,
            idle,
            books: Mutex::default(),
            open: AtomicBool::new(false),
            changed: Notify::new(),
            ended: Notify::new(),
            calls: AtomicUsize::new(0),
            calm: Notify::new(),
            stop: CancellationToken::new(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens it, or closes it: then nothing is kept ready.
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
        self.changed.notify_one();
    }

    pub(crate) fn holds(&self) -> Holds {
        let books = self.books();
        Holds { ready: books.ready.len() + books.taken.len(), making: books.making.values().sum() }
    }

    /// The ids of everything that is ready or is about to be somebody's.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        let books = self.books();
        books.ready.iter().map(|ready| ready.serving.id.clone()).chain(books.taken.iter().cloned()).collect()
    }

    /// How many of each kind there should be now; nothing is said any more once the host goes down. One that was not asked
    /// for in a while keeps one container.
    pub(crate) fn wanted(&self) -> Option<Vec<Target>> {
        if self.stop.is_cancelled() {
            return None;
        }
        if !self.open.load(Ordering::Relaxed) {
            return Some(Vec::new());
        }
        let mut books = self.books();
        let size = |target: &Target, books: &mut Books| {
            let kind = (target.service.clone(), target.features.clone());
            let asked = *books.asked.entry(kind).or_insert_with(Instant::now);
            if asked.elapsed() >= self.idle { target.size.min(1) } else { target.size }
        };
        Some(self.targets.iter().map(|t| Target { size: size(t, &mut books), ..t.clone() }).collect())
    }

    /// When the next kind will not have been asked for in a while.
    pub(crate) fn idles_at(&self) -> Option<Instant> {
        let books = self.books();
        let all = books.asked.values().map(|asked| *asked + self.idle);
        all.filter(|at| *at > Instant::now()).min()
    }

    fn asked(&self, services: &[(Arc<Service>, Note)]) {
        let mut books = self.books();
        for (service, note) in services {
            let features = note.features.iter().cloned().collect();
            if let Some(at) = books.asked.get_mut(&(service.name.clone(), features)) {
                *at = Instant::now();
            }
        }
    }

    fn claim(self: &Arc<Self>, shape: &Shape) -> Option<Taken> {
        self.claim_where(|ready| ready.shape == *shape)
    }

    /// Claims this very container, if nobody has a claim on it.
    pub(crate) fn claim_one(self: &Arc<Self>, id: &str) -> Option<Taken> {
        self.claim_where(|ready| ready.serving.id == id)
    }

    fn claim_where(self: &Arc<Self>, which: impl Fn(&Ready) -> bool) -> Option<Taken> {
        let mut books = self.books();
        let at = books.ready.iter().position(which)?;
        let ready = books.ready.remove(at);
        books.taken.insert(ready.serving.id.clone());
        Some(Taken { pool: self.clone(), ready: Some(ready) })
    }

    /// Claims what is more than there should be.
    pub(crate) fn claim_surplus(self: &Arc<Self>, wanted: &BTreeMap<Shape, usize>) -> Vec<Taken> {
        let mut books = self.books();
        let mut left = wanted.clone();
        let (keep, surplus): (Vec<_>, Vec<_>) =
            std::mem::take(&mut books.ready).into_iter().partition(|ready| match left.get_mut(&ready.shape) {
                Some(n) if *n > 0 => {
                    *n -= 1;
                    true
                }
                _ => false,
            });
        books.ready = keep;
        books.taken.extend(surplus.iter().map(|ready| ready.serving.id.clone()));
        surplus.into_iter().map(|ready| Taken { pool: self.clone(), ready: Some(ready) }).collect()
    }

    /// How many of a kind are missing; none while it has to wait after a failure, whose end is answered then.
    pub(crate) fn missing(&self, shape: &Shape, size: usize) -> (usize, Option<Instant>) {
        let books = self.books();
        let wait = books.luck.get(shape).and_then(|luck| luck.not_before).filter(|at| *at > Instant::now());
        let there = books.ready.iter().filter(|ready| ready.shape == *shape).count();
        let making = books.making.get(shape).copied().unwrap_or_default();
        (if wait.is_some() { 0 } else { size.saturating_sub(there + making) }, wait)
    }

    pub(crate) fn begin(&self, shape: &Shape) {
        *self.books().making.entry(shape.clone()).or_default() += 1;
    }

    /// One that was being made is ready, or is not. Answers after how long it is tried again.
    pub(crate) fn end(&self, shape: &Shape, made: Option<Ready>) -> Duration {
        let mut books = self.books();
        if let Some(n) = books.making.get_mut(shape) {
            *n -= 1;
        }
        books.making.retain(|_, n| *n > 0);
        let pause = match made {
            Some(ready) => {
                books.ready.push(ready);
                books.luck.remove(shape);
                Duration::ZERO
            }
            None => {
                let luck = books.luck.entry(shape.clone()).or_default();
                let pause = FIRST_PAUSE.saturating_mul(1 << luck.failures.min(16)).min(LONGEST_PAUSE);
                *luck = Luck { failures: luck.failures + 1, not_before: Some(Instant::now() + pause) };
                pause
            }
        };
        drop(books);
        self.changed.notify_one();
        self.ended.notify_waiters();
        pause
    }

    /// Takes in one that an earlier host made ready.
    pub(crate) fn adopt(&self, ready: Ready) {
        self.books().ready.push(ready);
    }

    /// Forgets how making kinds went that are not wanted any more.
    pub(crate) fn forget_luck(&self, but: &BTreeMap<Shape, usize>) {
        self.books().luck.retain(|shape, _| but.contains_key(shape));
    }

    /// Has its keeper look at what is ready.
    pub(crate) fn doubt(&self, id: Option<&str>) {
        let mut books = self.books();
        if id.is_none_or(|id| books.ready.iter().any(|ready| ready.serving.id == id)) {
            books.doubted = true;
            self.changed.notify_one();
        }
    }

    pub(crate) fn take_doubt(&self) -> bool {
        std::mem::take(&mut self.books().doubted)
    }

    /// Whether nothing is being made.
    pub(crate) fn is_still(&self) -> bool {
        self.books().making.is_empty()
    }

    /// Waits until nothing is being made.
    pub(crate) async fn still(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_still() {
                return;
            }
            ended.await;
        }
    }

    /// Counts a call that makes something, as long as that is held.
    pub(crate) fn call(&self) -> Calling<'_> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        Calling(self)
    }

    /// Waits until no call makes anything.
    pub(crate) async fn quiet(&self) {
        loop {
            let calm = self.calm.notified();
            if self.calls.load(Ordering::SeqCst) == 0 {
                return;
            }
            calm.await;
        }
    }
}

/// See [`Pool::call`].
pub(crate) struct Calling<'a>(&'a Pool);

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        if self.0.calls.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.calm.notify_waiters();
        }
    }
}

/// A claim on a container that is ready. Dropped, it is ready again.
pub(crate) struct Taken {
    pool: Arc<Pool>,
    ready: Option<Ready>,
}

impl Taken {
    pub(crate) fn id(&self) -> &str {
        self.ready.as_ref().map(|ready| ready.serving.id.as_str()).unwrap_or_default()
    }

    pub(crate) fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// It is somebody's, or goes: it never becomes ready again.
    pub(crate) fn spend(mut self) {
        if let Some(ready) = self.ready.take() {
            self.pool.books().taken.remove(&ready.serving.id);
            self.pool.changed.notify_one();
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(ready) = self.ready.take() {
            let mut books = self.pool.books();
            books.taken.remove(&ready.serving.id);
            books.ready.push(ready);
        }
    }
}

impl Ensure {
    /// What a service would be made as now, with these features. The engine is asked and its answer checked, so what its
    /// grants do not allow any more has no kind.
    pub(crate) async fn kind(
        &self,
        service: &Service,
        features: &[String],
        superuser: bool,
    ) -> Result<Kind, RecipeError> {
        let checked = service.recipe_or_error(features, false, superuser).await?;
        let limits = self.limits();
        let image = plan::image(&checked, &limits.images).to_owned();
        // The recipe has the capabilities, the data and the steps; the settings' hash has the limits.
        let all = format!(
            "{:?}",
            (
                &service.name,
                &service.slug,
                service.engine.hash(),
                service.settings_hash(),
                features,
                superuser,
                &image,
                limits.publish,
                checked.recipe(),
            )
        );
        Ok(Kind { shape: Shape(sha256_hex(all)), image })
    }

    /// What of these services is ready, as made for `owner` under its making name. One listing, and nothing where nothing is
    /// ready; what turns out not to be sound goes. Whatever cannot be found out here is left to who makes the rest.
    pub(crate) async fn take(&self, owner: &Owner, services: &[(Arc<Service>, Note)]) -> BTreeMap<ServiceName, Made> {
        let mut taken = BTreeMap::new();
        // Boxes and what is retained are made for somebody from the start.
        if owner.keyed.is_some() || self.pool.targets.is_empty() {
            return taken;
        }
        self.pool.asked(services);
        let mut open = Vec::new();
        for (service, note) in services {
            if self.pool.books().ready.is_empty() {
                return taken;
            }
            if let Ok(kind) = self.kind(service, &note.features, note.superuser).await {
                open.push((service, kind));
            }
        }
        loop {
            let claims: Vec<_> =
                open.drain(..).filter_map(|(s, kind)| self.pool.claim(&kind.shape).map(|t| (s, kind, t))).collect();
            if claims.is_empty() {
                return taken;
            }
            let ids: Vec<_> = claims.iter().map(|(_, _, claim)| claim.id()).collect();
            let units = match self.runtime.find(&ids).await {
                Ok(units) => units,
                Err(e) => {
                    self.health.note(&e);
                    return taken;
                }
            };
            for (service, kind, claim) in claims {
                match self.is_sound(&claim, &units).await {
                    Ok(true) => {
                        let Some(ready) = claim.ready() else { continue };
                        let name = owner.container(&self.names, &service.slug);
                        let (id, serving) = (ready.serving.id.clone(), Serving { name, ..ready.serving.clone() });
                        taken.insert(service.name.clone(), Made { id, serving, taken: Some(claim) });
                    }
                    Ok(false) => {
                        self.let_ready_go(claim, "it is not as it was left").await;
                        open.push((service, kind));
                    }
                    Err(_) => {}
                }
            }
        }
    }

    /// Whether a container that is ready is as it was left, and of the image that its reference means now.
    pub(crate) async fn is_sound(&self, claim: &Taken, units: &[Unit]) -> Result<bool, Error> {
        let Some(Ready { serving, image, .. }) = claim.ready() else { return Ok(false) };
        let same_image = |told: &String| told == image || Image::parse(told).ok() == Image::parse(image).ok();
        let sound = units.iter().find(|unit| unit.id == serving.id && unit.name == serving.name).is_some_and(|unit| {
            unit.state == UnitState::Running
                && unit.address.is_some() == serving.port.is_some()
                && unit.published_port == serving.published_port
                && unit.image.as_ref().is_some_and(same_image)
        });
        Ok(sound && self.runs_since_it_was_made(serving).await?)
    }

    /// Lets something go that nobody had.
    pub(crate) async fn let_ready_go(&self, claim: Taken, why: &str) {
        let id = claim.id().to_owned();
        if let Some(ready) = claim.ready() {
            tracing::info!(container = ready.serving.name, why, "what was ready is let go");
        }
        // On the books of what goes before it leaves those of what is ready.
        self.leaving.let_go(&id, None).await;
        claim.spend();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        Shape(text.to_owned())
    }

    fn ready(id: &str, of: &str) -> Ready {
        let serving = Serving {
            id: id.to_owned(),
            name: format!("sandbar-pool-{id}"),
            port: Some(1),
            published_port: None,
            account: None,
            secrets: None,
            features: BTreeSet::new(),
            superuser: false,
            variables: Vec::new(),
            created: std::time::SystemTime::UNIX_EPOCH,
            run: None,
            work: None,
            timeline: Vec::new(),
        };
        Ready { shape: shape(of), image: "image".to_owned(), serving }
    }

    fn pool(size: usize) -> Arc<Pool> {
        let service = ServiceName::new("redis").unwrap();
        let pool = Pool::new(vec![Target { service, features: BTreeSet::new(), size }], Duration::from_secs(60));
        pool.set_open(true);
        Arc::new(pool)
    }

    #[tokio::test]
    async fn a_claim_is_on_one_container_and_comes_back_only_unspent() {
        let pool = pool(2);
        pool.adopt(ready("1", "a"));
        pool.adopt(ready("2", "b"));
        assert!(pool.claim(&shape("c")).is_none());
        let claim = pool.claim(&shape("a")).unwrap();
        assert!(pool.claim(&shape("a")).is_none(), "nobody else has a claim on it");
        assert!(pool.ids().contains("1"), "the janitor leaves alone what is about to be somebody's");
        drop(claim);
        let claim = pool.claim(&shape("a")).unwrap();
        claim.spend();
        assert!(pool.claim(&shape("a")).is_none());
        assert_eq!(pool.ids().into_iter().collect::<Vec<_>>(), ["2"]);
    }

    #[tokio::test]
    async fn what_is_more_than_wanted_goes() {
        let pool = pool(2);
        ["1", "2", "3"].iter().for_each(|id| pool.adopt(ready(id, "a")));
        pool.adopt(ready("4", "old"));
        let surplus = pool.claim_surplus(&[(shape("a"), 2)].into());
        assert_eq!(surplus.iter().map(Taken::id).collect::<Vec<_>>(), ["3", "4"]);
        assert_eq!(pool.missing(&shape("a"), 2).0, 0);
        assert_eq!(pool.missing(&shape("a"), 5).0, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_keeps_failing_is_tried_less_and_less() {
        let pool = pool(1);
        let a = shape("a");
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pool.begin(&a);
            assert_eq!(pool.missing(&a, 1).0, 0, "it is being made");
            let pause = pool.end(&a, None);
            assert_eq!(pool.missing(&a, 1).0, 0, "it waits");
            tokio::time::advance(pause).await;
            assert_eq!(pool.missing(&a, 1).0, 1);
            pauses.push(pause.as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        pool.begin(&a);
        pool.end(&a, Some(ready("1", "a")));
        pool.begin(&a);
        assert_eq!(pool.end(&a, None).as_secs(), 2, "luck begins anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_nobody_asks_for_keeps_one_and_a_closed_pool_none() {
        let pool = pool(3);
        let sizes = |pool: &Pool| pool.wanted().unwrap().iter().map(|t| t.size).collect::<Vec<_>>();
        assert_eq!(sizes(&pool), [3]);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(sizes(&pool), [1]);
        pool.set_open(false);
        assert!(sizes(&pool).is_empty());
    }
}
