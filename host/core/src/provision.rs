//! Makes one container, from a recipe to a confirmed service, still under its making name. It cleans up after itself
//! whatever happens: when it answers an error, nothing of it is left, or what is left is on the books.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::catalog::{RecipeError, Service};
use crate::check::Checked;
use crate::crash;
use crate::engine::{EngineError, Step};
use crate::error::listed;
use crate::failure::{self, Failure};
use crate::folders::{Folder, FolderError, Folders, Ids};
use crate::leaving::Leaving;
use crate::name::Names;
use crate::owner::For;
use crate::plan::{self, Make, Note, Secrets};
use crate::pool::Taken;
use crate::progress::ProgressSink;
use crate::runtime::{ExecOutput, ExecPlan, Exit, PutError, PutStep, Runtime, RuntimeError, Unit, UnitPlan, UnitState};
use crate::sandbox::{Serving, WorkFolder};
use crate::secret::{random_hex, shown_lines};
use crate::unheard::Unheard;

/// First pause between two probes: most services take a few hundred milliseconds, and a probe costs the daemon little.
const FIRST_PROBE_PAUSE: Duration = Duration::from_millis(20);
/// Longest pause between two probes, so that nobody waits much longer than the service took.
const LONGEST_PROBE_PAUSE: Duration = Duration::from_millis(400);
/// How long all steps of activation may take together, on top of the readiness deadline.
const STEPS_DEADLINE: Duration = Duration::from_secs(60);
/// How many lines are asked of a container that failed; [`shown_lines`] cuts further.
const LOG_LINES: usize = 40;
/// Where the kernel says who a process is.
const STATUS: &str = "/proc/self/status";

/// Why nothing was made.
#[derive(Debug, Clone)]
pub enum NotMade {
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed(Failure),
    /// The runtime is away.
    Away(String),
}

/// A confirmed container under its making name.
pub struct Made {
    /// Its id.
    pub id: String,
    /// What it will be once it has its final name, which `name` is already.
    pub serving: Serving,
    /// The claim on it, where it was ready before.
    pub(crate) taken: Option<Taken>,
}

/// What making needs.
pub struct Maker<'a> {
    /// What runs containers.
    pub runtime: &'a dyn Runtime,
    /// The books.
    pub leaving: &'a Leaving,
    /// Names.
    pub names: &'a Names,
    /// The operator's image mapping.
    pub images: &'a std::collections::BTreeMap<crate::image::Image, String>,
    /// Whether ports are published on the loopback.
    pub publish: bool,
    /// What keeps work folders, where that is possible.
    pub folders: Option<&'a dyn Folders>,
    /// Who is not heard.
    pub(crate) unheard: &'a Unheard,
}

impl Maker<'_> {
    /// Makes a container of `service`.
    ///
    /// # Errors
    /// See [`NotMade`]. Nothing is left then.
    pub async fn make(
        &self,
        service: &Arc<Service>,
        whose: For<'_>,
        note: &Note,
        generation: u64,
        progress: &ProgressSink,
        cancel: &CancellationToken,
    ) -> Result<Made, NotMade> {
        let fail = |step: &str, why: String| NotMade::Failed(Failure::new(&service.name, step, why));
        let checked = service.recipe(&note.features, whose.retains(), note.superuser).await.map_err(|e| {
            let retryable = matches!(e, RecipeError::Engine(EngineError::Broken(_)));
            NotMade::Failed(Failure { retryable, ..Failure::new(&service.name, "plan", e.to_string()) })
        })?;
        let account = checked.recipe().container.account.as_ref();
        let secrets = account.map(|account| note.known.clone().unwrap_or_else(|| Secrets::fresh(account)));
        let folder = checked.recipe().container.work_folder.clone();
        let folder = match (folder, whose) {
            (Some(inside), For::Owner(owner)) => Some(Folder { name: owner.folder(), inside }),
            (Some(_), For::Pool(_)) => return Err(fail("plan", "a box is made for somebody".to_owned())),
            (None, _) => None,
        };
        let from = match &folder {
            Some(folder) => self.folder(folder).await.map_err(|why| fail("create", why))?,
            None => String::new(),
        };
        // What is retained keeps its folder whatever becomes of the container.
        let goes = folder.as_ref().filter(|_| !whose.retains()).map(|f| f.name.as_str());
        let plan = plan::unit(&Make {
            names: self.names,
            service,
            checked: &checked,
            secrets: secrets.as_ref(),
            whose,
            note,
            generation,
            images: self.images,
            publish: self.publish,
            folder: folder.as_ref().map(|f| (f, from.as_str())),
        })
        .map_err(|e| fail("plan", e.to_string()))?;

        // Pulling may take minutes and leaves nothing behind but an image, so it alone is abandoned at once.
        let prepared = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                self.leaving.remove_folder(goes.map(str::to_owned)).await;
                return Err(NotMade::Cancelled);
            }
            prepared = self.runtime.prepare(&plan.image, progress) => prepared,
        };
        if let Err(error) = prepared {
            self.leaving.remove_folder(goes.map(str::to_owned)).await;
            return Err(self.put_failed(service, &plan, PutError { step: PutStep::Pull, error }));
        }
        // From here on every call is waited for, cancelled or not: an abandoned create could still be carried out.
        let unit = match self.runtime.put(&plan, progress).await {
            Ok(unit) => unit,
            Err(e) => {
                let suspect = matches!(e.error, RuntimeError::Deadline(_) | RuntimeError::Unreachable(_));
                if e.step == PutStep::Pull {
                    self.leaving.remove_folder(goes.map(str::to_owned)).await;
                } else {
                    self.leaving.discard(&plan.name, suspect, goes).await;
                }
                return Err(self.put_failed(service, &plan, e));
            }
        };
        self.unheard.note(&unit, self.names);
        let work = Confirm {
            maker: self,
            service,
            checked: &checked,
            secrets: secrets.as_ref(),
            folder: folder.as_ref(),
            unit: &unit,
            progress,
        };
        // A panic must not leak the container either.
        let limit = Duration::from_millis(checked.recipe().deadline_ms.into()) + STEPS_DEADLINE;
        let confirmed = tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(Err(NotMade::Cancelled)),
            () = tokio::time::sleep(limit) => {
                Ok(Err(fail("setup", format!("activation did not end within {} s", limit.as_secs()))))
            }
            result = std::panic::AssertUnwindSafe(work.confirm()).catch_unwind() => result,
        };
        let user = match confirmed {
            Ok(Ok(user)) => user,
            Ok(Err(not_made)) => {
                self.leaving.discard(&unit.id, false, goes).await;
                return Err(not_made);
            }
            Err(panic) => {
                self.leaving.discard(&unit.id, false, goes).await;
                std::panic::resume_unwind(panic);
            }
        };
        crash::here("confirmed");
        let features = note.features.iter().cloned().collect();
        let name = whose.container(self.names, &service.slug);
        let serving = Serving {
            name,
            created: SystemTime::now(),
            timeline: progress.done(),
            ..serving(&unit, &checked, secrets, features, note.superuser, folder.zip(user))
        };
        Ok(Made { id: unit.id, serving, taken: None })
    }

    async fn folder(&self, folder: &Folder) -> Result<String, String> {
        let folders = self.folders.ok_or("this host has no boxes: its runtime is not on this machine")?;
        folders.make(folder).await.map_err(|e| format!("the work folder: {e}"))
    }

    fn put_failed(&self, service: &Service, plan: &UnitPlan, e: PutError) -> NotMade {
        if let RuntimeError::Unreachable(why) = e.error {
            return NotMade::Away(why);
        }
        let why = match e.step {
            PutStep::Pull => format!("the image `{}`: {}", plan.image, e.error),
            _ => e.error.to_string(),
        };
        NotMade::Failed(Failure::new(&service.name, failure::put_step(e.step), why))
    }
}

/// A confirmed container as what serves.
pub fn serving(
    unit: &Unit,
    checked: &Checked,
    secrets: Option<Secrets>,
    features: BTreeSet<String>,
    superuser: bool,
    work: Option<(Folder, Ids)>,
) -> Serving {
    let recipe = checked.recipe();
    Serving {
        id: unit.id.clone(),
        name: unit.name.clone(),
        port: recipe.container.port,
        published_port: unit.published_port,
        account: recipe.container.account.clone(),
        secrets,
        features,
        superuser,
        variables: recipe.variables.clone(),
        created: unit.created,
        run: unit.run.clone(),
        timeline: Vec::new(),
        work: work.map(|(folder, user)| WorkFolder { folder, user, networked: unit.address.is_some() }),
    }
}

/// The part of making that runs commands in the container; also what adoption does to be sure of one.
pub struct Confirm<'a> {
    /// What making needs.
    pub maker: &'a Maker<'a>,
    /// The service.
    pub service: &'a Service,
    /// Its recipe.
    pub checked: &'a Checked,
    /// Its passwords.
    pub secrets: Option<&'a Secrets>,
    /// Its work folder, for a box.
    pub folder: Option<&'a Folder>,
    /// The container.
    pub unit: &'a Unit,
    /// Where steps are reported.
    pub progress: &'a ProgressSink,
}

impl Confirm<'_> {
    /// Waits until it is ready, activates and verifies, and answers whom the files of a box belong to; a container that
    /// ends meanwhile fails at once.
    ///
    /// # Errors
    /// See [`NotMade`]. The container is left as it is.
    pub async fn confirm(&self) -> Result<Option<Ids>, NotMade> {
        self.guarded(async {
            if self.checked.recipe().container.port.is_some() && self.unit.address.is_none() {
                return Err(self.failed("start", "it has no address in the sandbox network".to_owned()).await);
            }
            let deadline = Duration::from_millis(self.checked.recipe().deadline_ms.into());
            let user = self.shared_and_ready(deadline).await?;
            self.steps("setup", &self.checked.recipe().setup).await?;
            self.steps("verify", &self.checked.recipe().verify).await?;
            Ok(user)
        })
        .await
    }

    /// Probes and verifies a container that was found running.
    ///
    /// # Errors
    /// When it does not answer within `deadline`, or a feature cannot be confirmed.
    pub async fn still_good(&self, deadline: Duration) -> Result<Option<Ids>, NotMade> {
        self.guarded(async {
            let user = self.shared_and_ready(deadline).await?;
            self.steps("verify", &self.checked.recipe().verify).await?;
            Ok(user)
        })
        .await
    }

    /// Waits until it is ready, and answers whom the files of a box belong to. Where its folder was given to somebody before,
    /// that and the readiness are found out at once: each is a command, and waking is little else.
    async fn shared_and_ready(&self, deadline: Duration) -> Result<Option<Ids>, NotMade> {
        if let Some((folder, folders)) = self.work()
            && let Ok(Some(known)) = folders.given(folder).await
            // What its user did to its permissions would keep the probes out.
            && folders.give(folder, known).await.is_ok()
        {
            let (seen, ready) = (pin!(self.sees(folder, folders, known)), pin!(self.ready(deadline)));
            let (seen, ready) = match select(seen, ready).await {
                Either::Left((Ok(true), ready)) => (Ok(true), ready.await),
                Either::Left((other, _)) => (other, Ok(())),
                Either::Right((ready, seen)) => (seen.await, ready),
            };
            if seen? {
                return ready.map(|()| Some(known));
            }
        }
        let user = self.share().await?;
        self.ready(deadline).await?;
        Ok(user)
    }

    /// Finds out who runs in a box, gives the work folder to them, and sees that the box has this very folder.
    async fn share(&self) -> Result<Option<Ids>, NotMade> {
        let Some((folder, folders)) = self.work() else { return Ok(None) };
        let failed = async |why: String| Err(self.failed("share", why).await);
        let user = match self.inside(&["cat", STATUS]).await {
            Ok(output) => ids(&output.stdout),
            Err(NotMade::Failed(_)) => None,
            Err(e) => return Err(e),
        };
        let Some(user) = user else { return failed("its user cannot be found out".to_owned()).await };
        if let Err(e) = folders.give(folder, user).await {
            return failed(cannot_be_given(&e)).await;
        }
        if self.sees(folder, folders, user).await? {
            return Ok(Some(user));
        }
        failed("the box does not see its work folder, so this host has no boxes on that runtime".to_owned()).await
    }

    /// Sees with a nonce whether the box runs as `user` and has this very folder: a runtime on another machine, or one that
    /// sees this one's files elsewhere, mounts another.
    async fn sees(&self, folder: &Folder, folders: &dyn Folders, user: Ids) -> Result<bool, NotMade> {
        let (name, nonce) = (format!(".{}-{}", self.maker.names.namespace(), random_hex(8)), random_hex(16));
        if let Err(e) = folders.write(folder, &name, nonce.clone().into_bytes().into(), None, user).await {
            return Err(self.failed("share", cannot_be_given(&e)).await);
        }
        let seen = self.inside(&["cat", STATUS, &format!("{}/{name}", folder.inside)]).await;
        let removed = folders.unlink(folder, &name).await;
        match seen {
            Ok(output) => {
                Ok(removed.is_ok() && ids(&output.stdout) == Some(user) && output.stdout.ends_with(nonce.as_str()))
            }
            Err(NotMade::Failed(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn work(&self) -> Option<(&Folder, &dyn Folders)> {
        self.folder.zip(self.maker.folders)
    }

    async fn inside(&self, argv: &[&str]) -> Result<ExecOutput, NotMade> {
        let argv = argv.iter().map(|a| (*a).to_owned()).collect();
        let plan = ExecPlan { argv, env: vec![], user: None, timeout: Duration::from_secs(10) };
        match self.maker.runtime.exec(&self.unit.id, &plan).await {
            Ok(output) if output.code == 0 => Ok(output),
            Ok(output) => Err(self.failed("share", self.tell(&Ok(output))).await),
            Err(RuntimeError::Unreachable(why)) => Err(NotMade::Away(why)),
            Err(e) => Err(self.failed("share", e.to_string()).await),
        }
    }

    async fn guarded<T>(&self, work: impl Future<Output = Result<T, NotMade>>) -> Result<T, NotMade> {
        if self.unit.state == UnitState::Ended {
            return Err(match self.maker.runtime.ended(&self.unit.id).await {
                Ok(exit) => self.exited("start", exit).await,
                Err(e) => self.failed("start", e.to_string()).await,
            });
        }
        let result = tokio::select! {
            // One that has ended is not good, whatever it answered at that moment.
            biased;
            ended = self.maker.runtime.ended(&self.unit.id) => match ended {
                Ok(exit) => Err(self.exited("ready", exit).await),
                Err(RuntimeError::Unreachable(why)) => Err(NotMade::Away(why)),
                Err(e) => Err(self.failed("ready", e.to_string()).await),
            },
            result = work => result,
        };
        // A command that failed because its container ended is told as what it is, with the exit code.
        match result {
            Err(NotMade::Failed(failure)) if failure.exit.is_none() && self.has_ended().await => {
                match self.maker.runtime.ended(&self.unit.id).await {
                    Ok(exit) => Err(self.exited(&failure.step, exit).await),
                    Err(_) => Err(NotMade::Failed(failure)),
                }
            }
            result => result,
        }
    }

    async fn has_ended(&self) -> bool {
        self.maker.runtime.inspect(&self.unit.id).await.is_ok_and(|unit| unit.state == UnitState::Ended)
    }

    async fn ready(&self, deadline: Duration) -> Result<(), NotMade> {
        self.progress.step("ready", "");
        let probe = &self.checked.recipe().ready;
        let until = Instant::now() + deadline;
        let mut pause = FIRST_PROBE_PAUSE;
        loop {
            let answer = self.run(probe).await;
            match &answer {
                Ok(output) if plan::meets(output, &probe.expect) => return Ok(()),
                Err(RuntimeError::Unreachable(why)) => return Err(NotMade::Away(why.clone())),
                Err(RuntimeError::NotFound(_)) => {
                    return Err(self.failed("ready", "its container vanished".into()).await);
                }
                // One that ended is noticed by `guarded`, with its exit code.
                _ => {}
            }
            if Instant::now() + pause > until {
                let (secs, told) = (deadline.as_secs(), self.tell(&answer));
                let why = format!("the probe did not succeed within {secs} s: {told}{}", self.made_with());
                return Err(self.failed("ready", why).await);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LONGEST_PROBE_PAUSE);
        }
    }

    async fn steps(&self, kind: &'static str, steps: &[Step]) -> Result<(), NotMade> {
        for step in steps {
            self.progress.step(kind, step.name.clone());
            let answer = self.run(&step.run).await;
            match &answer {
                Ok(output) if plan::meets(output, &step.run.expect) => {}
                Err(RuntimeError::Unreachable(why)) => return Err(NotMade::Away(why.clone())),
                _ => {
                    let feature = step.feature.as_ref().map(|f| format!("the feature `{f}` could not be confirmed: "));
                    let image = self.checked.image();
                    let why = format!("{}{} (image `{image}`)", feature.unwrap_or_default(), self.tell(&answer));
                    return Err(self.failed(&format!("{kind} `{}`", step.name), why).await);
                }
            }
        }
        Ok(())
    }

    async fn run(&self, command: &crate::engine::Command) -> Result<ExecOutput, RuntimeError> {
        // Never the loopback in its place, where many services answer anybody; only what has no port has no address.
        let address = self.unit.address.as_deref().unwrap_or("none");
        let plan = plan::exec(command, self.checked, self.secrets, address, self.maker.names.namespace())
            .map_err(|e| RuntimeError::Failed(e.to_string()))?;
        self.maker.runtime.exec(&self.unit.id, &plan).await
    }

    /// What a command answered, in one line without secrets.
    fn tell(&self, answer: &Result<ExecOutput, RuntimeError>) -> String {
        match answer {
            Err(e) => e.to_string(),
            Ok(output) => {
                let text = if output.stderr.trim().is_empty() { &output.stdout } else { &output.stderr };
                let secrets = self.secrets.map(Secrets::all).unwrap_or_default();
                let last = shown_lines(text, &secrets).pop().unwrap_or_else(|| "no output".to_owned());
                format!("exit code {}, {last}", output.code)
            }
        }
    }

    /// The features it was to have, and the image that should hold them: where one is missing there, the server may not
    /// even start.
    fn made_with(&self) -> String {
        let recipe = self.checked.recipe();
        let features = recipe.setup.iter().chain(&recipe.verify).filter_map(|step| step.feature.as_deref());
        let features: Vec<_> = features.collect::<BTreeSet<_>>().into_iter().collect();
        let image = self.checked.image();
        if features.is_empty() { String::new() } else { format!(" (image `{image}`, for {})", listed(&features)) }
    }

    async fn exited(&self, step: &str, exit: Exit) -> NotMade {
        match self.failed(step, failure::ended(exit) + &self.made_with()).await {
            NotMade::Failed(failure) => NotMade::Failed(Failure { exit: Some(exit), ..failure }),
            other => other,
        }
    }

    async fn failed(&self, step: &str, why: String) -> NotMade {
        let secrets = self.secrets.map(Secrets::all).unwrap_or_default();
        let log = self.maker.runtime.logs(&self.unit.id, LOG_LINES).await.unwrap_or_default();
        let log = shown_lines(&log, &secrets);
        NotMade::Failed(Failure { log, ..Failure::new(&self.service.name, step, why) })
    }
}

fn cannot_be_given(e: &FolderError) -> String {
    format!("files cannot be given to its user: {e}")
}

/// The effective user and group in the text of [`STATUS`].
fn ids(status: &str) -> Option<Ids> {
    let of = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().nth(1)?.parse().ok());
    Some(Ids { uid: of("Uid:")?, gid: of("Gid:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_is_read_from_the_kernel_s_words() {
        let status = "Name:\tcat\nUid:\t0\t1000\t0\t0\nGid:\t0\t100\t0\t0\nGroups:\t\n";
        assert_eq!(ids(status), Some(Ids { uid: 1000, gid: 100 }));
        assert_eq!(ids("Uid:\tx"), None);
    }
}
