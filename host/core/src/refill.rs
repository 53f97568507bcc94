//! The keeper of the pool: makes what is missing, behind the calls that somebody waits for, and lets go what is too much,
//! was changed, or ended.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::catalog::Service;
use crate::crash;
use crate::health::State;
use crate::name::ServiceName;
use crate::owner::For;
use crate::plan::Note;
use crate::pool::{Kind, Ready, Shape, Target};
use crate::progress::ProgressSink;
use crate::provision::{Made, NotMade};
use crate::registry::Registry;
use crate::runtime::RuntimeError;

/// What is ready is looked at this often, since not everything that happens to it is told.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How many containers are made ahead at once: each costs the machine a start.
const AT_ONCE: usize = 2;
/// How long making ahead waits for calls that make something, so that it happens at all where there is always one.
const PATIENCE: Duration = Duration::from_secs(15);

impl Registry {
    /// Keeps the pool as it should be, for as long as it is polled. What it began to make goes on without it.
    pub(crate) async fn keep_pool(self: Arc<Self>) {
        let ensure = self.ensure_rules();
        let pool = &ensure.pool;
        let (mut catalog, mut health) = (ensure.catalog.subscribe(), ensure.health.subscribe());
        let mut look = Instant::now() + LOOK_EVERY;
        loop {
            if pool.take_doubt() || Instant::now() >= look {
                self.look_at_ready().await;
                look = Instant::now() + LOOK_EVERY;
            }
            let up = *health.borrow_and_update() == State::Up;
            let again = if up { self.refill().await } else { None };
            let until = again.into_iter().chain(pool.idles_at()).fold(look, Instant::min);
            tokio::select! {
                () = pool.changed.notified() => {}
                _ = catalog.changed() => {}
                _ = health.changed() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Looks at all that is ready, and lets go what is not sound.
    async fn look_at_ready(&self) {
        let ensure = self.ensure_rules();
        // One at a time: what is claimed cannot be handed out meanwhile.
        for id in ensure.pool.ids() {
            let Some(claim) = ensure.pool.claim_one(&id) else { continue };
            let sound = match ensure.runtime.find(&[&id]).await {
                Ok(units) => ensure.is_sound(&claim, &units).await,
                Err(e) => return ensure.health.note(&e),
            };
            if matches!(sound, Ok(false)) {
                ensure.let_ready_go(claim, "it is not as it was left").await;
            }
        }
    }

    /// Lets go what is too much and begins to make what is missing. Answers when something that failed may be tried again.
    async fn refill(self: &Arc<Self>) -> Option<Instant> {
        let ensure = self.ensure_rules();
        let catalog = ensure.catalog.current();
        let mut kinds = Vec::new();
        for Target { service: name, features, size } in ensure.pool.wanted()? {
            let Some(service) = catalog.services.get(&name) else { continue };
            let features: Vec<_> = features.into_iter().collect();
            match ensure.kind(service, &features, false).await {
                Ok(kind) => kinds.push((service.clone(), features, kind, size)),
                Err(e) => tracing::warn!(service = %name, error = %e, "nothing of it is kept ready"),
            }
        }
        let wanted: BTreeMap<_, _> = kinds.iter().map(|(_, _, kind, size)| (kind.shape.clone(), *size)).collect();
        let surplus = ensure.pool.claim_surplus(&wanted);
        join_all(surplus.into_iter().map(|claim| ensure.let_ready_go(claim, "it is not wanted any more"))).await;
        ensure.pool.forget_luck(&wanted);
        let mut again = None;
        for (service, features, Kind { shape, image }, size) in kinds {
            let (missing, wait) = ensure.pool.missing(&shape, size);
            again = again.into_iter().chain(wait).min();
            for _ in 0..missing {
                if ensure.pool.holds().making >= AT_ONCE {
                    return again;
                }
                ensure.pool.begin(&shape);
                let make = MakeReady {
                    registry: self.clone(),
                    service: service.clone(),
                    features: features.clone(),
                    shape: shape.clone(),
                    image: image.clone(),
                };
                tokio::spawn(make.run());
            }
        }
        again
    }
}

/// The task that makes one container ahead.
struct MakeReady {
    registry: Arc<Registry>,
    service: Arc<Service>,
    features: Vec<String>,
    shape: Shape,
    image: String,
}

impl MakeReady {
    async fn run(self) {
        let ensure = self.registry.ensure_rules();
        let result = AssertUnwindSafe(self.make()).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!(service = %self.service.name, "making it ahead panicked");
            Err("the host made a mistake".to_owned())
        });
        let (ready, error) = match result {
            Ok(ready) => (ready, None),
            Err(e) => (None, Some(e)),
        };
        let pause = ensure.pool.end(&self.shape, ready);
        if let Some(error) = error {
            let name: &ServiceName = &self.service.name;
            tracing::warn!(service = %name, error, again_in_secs = pause.as_secs(), "not made ahead");
        }
    }

    /// `None` where it is not wanted any more.
    async fn make(&self) -> Result<Option<Ready>, String> {
        let ensure = self.registry.ensure_rules();
        let pool = &ensure.pool;
        tokio::select! {
            () = pool.stop.cancelled() => return Ok(None),
            _ = tokio::time::timeout(PATIENCE, pool.quiet()) => {}
        }
        let note =
            Note { project: None, features: self.features.clone(), superuser: false, box_network: false, known: None };
        let whose = For::Pool(&self.shape.0);
        let (maker, silent) = (ensure.maker(), ProgressSink::silent());
        let made = maker.make(&self.service, whose, &note, ensure.generation(), &silent, &pool.stop).await;
        let Made { id, serving, .. } = match made {
            Ok(made) => made,
            Err(NotMade::Cancelled) => return Ok(None),
            Err(NotMade::Away(why)) => {
                ensure.health.note(&RuntimeError::Unreachable(why.clone()));
                return Err(why);
            }
            Err(NotMade::Failed(failure)) => return Err(failure.into_error().message),
        };
        // From then on it is whole, and the next start may take it in.
        let named = ensure.runtime.rename(&id, &serving.name).await.map_err(|e| e.to_string());
        crash::here("made ahead");
        // Also so that it is certain when it is handed out.
        let sound = match named {
            Ok(()) => ensure.runs_since_it_was_made(&serving).await.map_err(|e| e.message),
            Err(e) => Err(e),
        };
        let kept = match sound {
            Ok(true) if !pool.stop.is_cancelled() => {
                tracing::info!(service = %self.service.name, container = serving.name, "ready for whoever asks next");
                return Ok(Some(Ready { shape: self.shape.clone(), image: self.image.clone(), serving }));
            }
            Ok(true) => Ok(None),
            Ok(false) => Err("it was started again while it was made".to_owned()),
            Err(e) => Err(e),
        };
        ensure.leaving.discard(&id, false, None).await;
        kept
    }
}
