//! What is retained: one container of a tenant at a time around data that outlives it. It sleeps rather than goes, is found
//! by its name and woken, and is made anew around the same data and the same passwords. Only its expiry or an explicit
//! delete removes the data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::catalog::Service;
use crate::ensure::{Change, Ensure, unavailable};
use crate::error::{Code, Error};
use crate::failure::{self, Failure};
use crate::folders::Folder;
use crate::name::Names;
use crate::owner::{Keyed, Owner};
use crate::plan::{Secrets, label};
use crate::progress::{Progress, ProgressSink};
use crate::provision::{Confirm, NotMade, serving};
use crate::registry::Entry;
use crate::runtime::{Left, Result as RuntimeResult, RuntimeError, Unit, UnitState};
use crate::sandbox::{Live, Serving, Want};
use crate::secret::Secret;
use crate::store::KeptRow;

/// What a container that goes to sleep has to end by itself. A box has nothing to end.
pub(crate) fn sleep_grace(unit_has_folder: bool) -> Duration {
    if unit_has_folder { Duration::ZERO } else { Duration::from_secs(5) }
}

/// How a container that exists is taken in.
#[derive(Clone, Copy)]
pub(crate) enum TakeIn<'a> {
    /// It has been serving: it is probed and verified, for at most this long.
    Serving(Duration),
    /// It was asleep: it becomes ready and is set up as a new one.
    Woken(&'a ProgressSink),
}

/// Why an existing container was not taken in.
pub(crate) enum Not {
    /// It cannot serve: why.
    Fit(String),
    /// That cannot be told, since the runtime is away.
    Known(RuntimeError),
}

impl From<String> for Not {
    fn from(why: String) -> Self {
        Self::Fit(why)
    }
}

impl From<&str> for Not {
    fn from(why: &str) -> Self {
        Self::Fit(why.to_owned())
    }
}

impl From<RuntimeError> for Not {
    fn from(e: RuntimeError) -> Self {
        match e {
            RuntimeError::Unreachable(_) | RuntimeError::Deadline(_) => Self::Known(e),
            e => Self::Fit(e.to_string()),
        }
    }
}

/// What a container was made with, as its labels say.
pub(crate) fn made_with(unit: &Unit, names: &Names) -> Option<(BTreeSet<String>, bool)> {
    let features = unit.labels.get(&names.label(label::FEATURES))?;
    let features = features.split(',').filter(|f| !f.is_empty()).map(str::to_owned).collect();
    Some((features, unit.labels.get(&names.label(label::SUPERUSER))? == "1"))
}

impl Ensure {
    /// One look at something retained and one change; see [`Ensure::round`].
    #[expect(clippy::too_many_arguments, reason = "it is what a round has")]
    pub(crate) async fn pass_kept(
        &self,
        owner: &Owner,
        keyed: &Keyed,
        entry: &Entry,
        want: &Want,
        held: &mut Option<Live>,
        cancel: &CancellationToken,
        progress: &broadcast::Sender<Progress>,
    ) -> Result<bool, Error> {
        let Some((name, wanted)) = want.services.first_key_value() else { return Ok(false) };
        if let Some(live) = held.as_mut()
            && live.covers(want)
            && self.check(live).await?
        {
            return Ok(false);
        }
        let catalog = self.catalog.current();
        let service = catalog.services.get(name).cloned().ok_or_else(|| unavailable(name, &catalog.why_not(name)))?;
        let container = owner.container(&self.names, &service.slug);
        let found = match self.runtime.inspect(&container).await {
            Ok(unit) if !self.is_ours(&unit) => return Err(failure::name_conflict(name, &container)),
            Ok(unit) => Some(unit),
            Err(RuntimeError::NotFound(_)) => None,
            Err(e) => return Err(self.noted(&e)),
        };
        // From here on it is held by nobody until it is awake, whatever goes wrong.
        let lost = held.take().into_iter().flat_map(|live| live.services.into_values());
        for lost in lost.filter(|s| found.as_ref().is_none_or(|unit| unit.id != s.id)) {
            // It lost its name, and may run around the same data.
            let grace = sleep_grace(lost.work.is_some());
            match self.runtime.suspend(&lost.id, grace).await {
                Ok(()) => self.leaving.let_go(&lost.id, None).await,
                Err(RuntimeError::NotFound(_)) => {}
                Err(e) => return Err(self.noted(&e)),
            }
        }
        let mut features = wanted.clone();
        if let Some(unit) = &found {
            let (had, superuser) = made_with(unit, &self.names).unwrap_or_default();
            // Whether it has a network and a published port cannot be told while it sleeps: that is looked at once it is awake.
            if had.is_superset(wanted) && superuser == want.superuser {
                let serving = self.wake(owner, &service, unit, had.clone(), superuser, cancel).await?;
                if serving.lacks_nothing(wanted, want) && self.is_published_as_wanted(&serving) {
                    self.awake(keyed, want, serving, held)?;
                    return Ok(true);
                }
            }
            features.extend(had);
            if let Err(e) = self.count_remake(entry) {
                self.sleep(owner, &unit.id).await;
                return Err(e);
            }
            // Two containers must never have the same data at once.
            let grace = sleep_grace(service.work_folder.is_some());
            self.runtime.suspend(&unit.id, grace).await.map_err(|e| self.noted(&e))?;
            self.leaving.let_go(&unit.id, None).await;
        }
        let row = self.row(owner, keyed, &service, &features, want.superuser).await?;
        let change = Change { make: [(name.clone(), features)].into(), drop: BTreeSet::new() };
        let result = async {
            let mut made = self.make_all(owner, want, &change, row.secrets.as_ref(), cancel, progress).await?;
            let (_, made) = made.pop().ok_or_else(Error::internal)?;
            self.commit(owner, name, made, None).await
        };
        match result.await {
            Ok(serving) => {
                let live = held.insert(Live::new(want.project.clone()));
                live.services.insert(name.clone(), Arc::new(serving));
                self.store.set_made(&row.key, name).map_err(|e| fault(&e))?;
                Ok(true)
            }
            Err(e) => {
                // Its row stays: what may still be made of it is found by that.
                if !row.made
                    && let Err(left) = self.delete_data(&row).await
                {
                    tracing::warn!(agent = owner.slug(), owner = owner.key(), error = %left, "what was half made is still there; the next attempt removes it");
                }
                Err(e)
            }
        }
    }

    fn awake(&self, keyed: &Keyed, want: &Want, serving: Serving, held: &mut Option<Live>) -> Result<(), Error> {
        self.store.set_made(keyed.key.as_str(), &keyed.service).map_err(|e| fault(&e))?;
        let live = held.insert(Live::new(want.project.clone()));
        live.services.insert(keyed.service.clone(), Arc::new(serving));
        Ok(())
    }

    fn noted(&self, e: &RuntimeError) -> Error {
        self.health.note(e);
        failure::runtime(e)
    }

    /// Wakes a container; one that does not get well is put to sleep again.
    async fn wake(
        &self,
        owner: &Owner,
        service: &Service,
        unit: &Unit,
        features: BTreeSet<String>,
        superuser: bool,
        cancel: &CancellationToken,
    ) -> Result<Serving, Error> {
        // Nobody hears of it, but it is told later how long it took.
        let progress = ProgressSink::silent();
        progress.step("start", "");
        let unit = match self.runtime.resume(&unit.id).await {
            Ok(unit) => unit,
            Err(e) => {
                // It may run all the same.
                self.sleep(owner, &unit.id).await;
                return Err(match e {
                    RuntimeError::Unreachable(_) | RuntimeError::Deadline(_) => self.noted(&e),
                    e => Failure::new(&service.name, "wake", e.to_string()).into_error(),
                });
            }
        };
        self.unheard.note(&unit, &self.names);
        let woken = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(failure::released()),
            woken = self.take_in(&unit, true, service, features, superuser, TakeIn::Woken(&progress)) => match woken {
                Ok(serving) => return Ok(Serving { timeline: progress.done(), ..serving }),
                Err(Not::Known(e)) => Err(self.noted(&e)),
                Err(Not::Fit(why)) => Err(Failure::new(&service.name, "wake", why).into_error()),
            },
        };
        self.sleep(owner, &unit.id).await;
        woken
    }

    /// Puts a container to sleep. One that cannot be now is seen to by the sweep.
    pub(crate) async fn sleep(&self, owner: &Owner, id: &str) {
        let services = self.catalog.current();
        let service = owner.keyed.as_ref().and_then(|k| services.services.get(&k.service));
        let grace = sleep_grace(service.is_some_and(|s| s.work_folder.is_some()));
        match self.runtime.suspend(id, grace).await {
            Ok(()) | Err(RuntimeError::NotFound(_)) => {}
            Err(e) => {
                tracing::warn!(agent = owner.slug(), owner = owner.key(), error = %e, "it does not go to sleep; the sweep will see to it")
            }
        }
    }

    /// Puts a container to sleep of which nobody knows whose it is.
    pub(crate) async fn suspend(&self, unit: &Unit) {
        let grace = sleep_grace(unit.labels.contains_key(&self.names.label(label::FOLDER)));
        if let Err(e) = self.runtime.suspend(&unit.id, grace).await {
            tracing::warn!(container = unit.name, error = %e, "it does not go to sleep");
        }
    }

    /// Who retains what a container with a final name holds, if the state file knows that.
    pub(crate) fn keeper(&self, unit: &Unit) -> Option<Owner> {
        let catalog = self.catalog.current();
        let rows = self.store.kept().ok()?;
        let mut owners = rows.iter().map(|row| Owner::keyed(&self.names, &row.tenant, &row.service, true));
        owners.find(|owner| {
            let service = owner.keyed.as_ref().and_then(|k| catalog.services.get(&k.service));
            service.is_some_and(|s| owner.container(&self.names, &s.slug) == unit.name)
        })
    }

    /// Whether its port is published, where it has one, just as ports are now.
    pub(crate) fn is_published_as_wanted(&self, serving: &Serving) -> bool {
        serving.port.is_none() || serving.published_port.is_some() == self.limits().publish
    }

    /// Takes a container in that exists and runs: reads its passwords back and sees whether it serves.
    pub(crate) async fn take_in(
        &self,
        unit: &Unit,
        retained: bool,
        service: &Service,
        features: BTreeSet<String>,
        superuser: bool,
        how: TakeIn<'_>,
    ) -> Result<Serving, Not> {
        let list: Vec<_> = features.iter().cloned().collect();
        let checked = service.recipe(&list, retained, superuser).await.map_err(|e| e.to_string())?;
        let container = &checked.recipe().container;
        let environment = self.runtime.environment(&unit.id).await?;
        let read = |key: String| environment.iter().find(|(k, _)| *k == key).map(|(_, v)| Secret::new(v));
        let secrets = match &container.account {
            None => None,
            Some(_) => Some(Secrets {
                password: read(self.names.password_variable()).ok_or("its password cannot be read back")?,
                admin: read(self.names.admin_password_variable()),
            }),
        };
        let folder = match &container.work_folder {
            None => None,
            Some(inside) => {
                let name =
                    unit.labels.get(&self.names.label(label::FOLDER)).ok_or("it has no label of its work folder")?;
                Some(Folder { name: name.clone(), inside: inside.clone() })
            }
        };
        // Before it is tried: if it is started again meanwhile, that is found out later.
        // Under the name by which it was found: if it has another one by now, that is found out later too.
        let unit = Unit { name: unit.name.clone(), ..self.runtime.inspect(&unit.id).await? };
        if unit.state != UnitState::Running {
            return Err("it does not run".into());
        }
        let confirm = Confirm {
            maker: &self.maker(),
            service,
            checked: &checked,
            secrets: secrets.as_ref(),
            folder: folder.as_ref(),
            unit: &unit,
            progress: match how {
                TakeIn::Serving(_) => &ProgressSink::silent(),
                TakeIn::Woken(progress) => progress,
            },
        };
        let good = match how {
            TakeIn::Serving(patience) => confirm.still_good(patience).await,
            TakeIn::Woken(_) => confirm.confirm().await,
        };
        // What an earlier host ran has nobody to end it any more.
        if let (Ok(_), TakeIn::Serving(_), Some(_)) = (&good, how, &folder)
            && !self.runtime.end_left(&unit.id, &self.names.command_mark(), Left::AtWork).await?
        {
            return Err("a command that an earlier host left in it cannot be ended".into());
        }
        match good {
            Ok(user) => Ok(serving(&unit, &checked, secrets, features, superuser, folder.zip(user))),
            Err(NotMade::Away(why)) => Err(Not::Known(RuntimeError::Unreachable(why))),
            Err(NotMade::Failed(failure)) => Err(failure.into_error().message.into()),
            Err(NotMade::Cancelled) => Err("that was cancelled".into()),
        }
    }

    /// The row of what is about to be made: the one that is there, or a new one with fresh passwords.
    async fn row(
        &self,
        owner: &Owner,
        keyed: &Keyed,
        service: &Service,
        features: &BTreeSet<String>,
        superuser: bool,
    ) -> Result<KeptRow, Error> {
        let rows = self.store.kept().map_err(|e| fault(&e))?;
        let found = rows.into_iter().find(|row| row.key == keyed.key.as_str() && row.service == keyed.service);
        match found {
            Some(row) if row.made => return Ok(row),
            // It was never whole, so nobody has used it.
            Some(row) => self.delete_kept(&row).await.map_err(|e| self.noted(&e))?,
            None => {
                let labels = owner.labels(&self.names);
                let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
                let volumes = self.runtime.volumes(&labels).await.map_err(|e| self.noted(&e))?;
                if let Some(volume) = volumes.first() {
                    let message = format!(
                        "`{}` has data in the volume `{volume}`, and its passwords are not known any more",
                        keyed.service
                    );
                    let remediate = "the operator restores the state file that knows them, or removes the volume";
                    return Err(Error::new(Code::InvalidState, message, remediate));
                }
            }
        }
        let list: Vec<_> = features.iter().cloned().collect();
        let checked = service.recipe(&list, true, superuser).await;
        let checked = checked.map_err(|e| Failure::new(&service.name, "plan", e.to_string()).into_error())?;
        let row = KeptRow {
            key: keyed.key.as_str().to_owned(),
            service: keyed.service.clone(),
            tenant: keyed.tenant.clone(),
            secrets: checked.recipe().container.account.as_ref().map(Secrets::fresh),
            made: false,
            asleep_secs: 0,
        };
        self.store.add_kept(&row).map_err(|e| fault(&e))?;
        Ok(row)
    }

    /// Deletes something retained with its data: container, volumes, work folder, and last its row, so that a delete which
    /// was cut off is repeated.
    pub(crate) async fn delete_kept(&self, row: &KeptRow) -> RuntimeResult<()> {
        self.delete_data(row).await?;
        self.store.remove_kept(&row.key, &row.service).map_err(|e| RuntimeError::Failed(e.to_string()))
    }

    /// Deletes the same without its row.
    async fn delete_data(&self, row: &KeptRow) -> RuntimeResult<()> {
        let owner = Owner::keyed(&self.names, &row.tenant, &row.service, true);
        let all = owner.labels(&self.names);
        let labels: Vec<_> = all.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        // Looked at again here, whatever a listing answers. A throwaway box of the same tenant has the same labels, but another
        // folder.
        let (key, folder) = (self.names.label(label::FOLDER), owner.folder());
        let is_its = |unit: &Unit| {
            all.iter().all(|(k, v)| unit.labels.get(k) == Some(v)) && unit.labels.get(&key).is_none_or(|f| *f == folder)
        };
        for unit in self.runtime.list(&labels).await?.into_iter().filter(is_its) {
            self.runtime.remove(&unit.id, Duration::ZERO).await?;
        }
        for volume in self.runtime.volumes(&labels).await? {
            self.runtime.remove_volume(&volume).await?;
        }
        if let Some(folders) = &self.folders {
            folders.remove(&owner.folder()).await.map_err(|e| RuntimeError::Failed(e.to_string()))?;
        }
        Ok(())
    }
}

fn fault(e: &crate::store::StoreError) -> Error {
    tracing::error!(error = %e, "the state file failed");
    Error::internal()
}
