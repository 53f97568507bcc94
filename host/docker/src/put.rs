//! Making a unit: image, network, container, files, start. Read [`Maker::put`] from top to bottom.

use bollard::Docker;
use bollard::models::{ContainerCreateBody, ImageInspect, MountPoint};
use bollard::query_parameters::{CreateContainerOptions, StartContainerOptions, UploadToContainerOptions};
use sandbar_core::crash;
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{PutError, PutStep, Result, RuntimeError, Unit, UnitPlan, UnitState};

use tokio::sync::Semaphore;

use crate::credentials::Credentials;
use crate::errors::{CallError, redacted, within};
use crate::network::{self, Network};
use crate::pull::{self, Pulls};
use crate::reference::{Reference, identifier};
use crate::{body, files, limits, units, volumes};

/// What it takes to make units.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(crate) network: Network,
    /// Joined by boxes beside that one.
    pub(crate) nowhere: Network,
    pub(crate) pulls: Pulls,
    pub(crate) credentials: Credentials,
    /// How many containers may be made and started at once.
    pub(crate) at_once: Semaphore,
    /// The label that says whose something is.
    pub(crate) installation: (String, String),
}

/// A container that is there, and whether it still has to be given its files and be started.
enum Made {
    New(String),
    Before(Unit),
}

impl Maker {
    /// Makes and starts a unit. Nothing is taken back when a step fails.
    pub(crate) async fn put(
        &self,
        docker: &Docker,
        plan: &UnitPlan,
        progress: &ProgressSink,
    ) -> Result<Unit, PutError> {
        let at = |step: PutStep| move |error: RuntimeError| PutError { step, error: redacted(error, &plan.env) };
        let image = self.image(docker, &plan.image, progress).await.map_err(at(PutStep::Pull))?;

        // Held until it runs. Waiting here is not waiting for Docker, so it counts against no limit.
        let _turn = self.at_once.acquire().await;
        progress.step("create", plan.image.as_str());
        let made = self.make(docker, plan, &image).await.map_err(at(PutStep::Create))?;
        let id = match made {
            // It has been started before, and what it became since is for the caller to judge.
            Made::Before(unit) if unit.state != UnitState::Starting => return Ok(unit),
            Made::Before(unit) => unit.id,
            Made::New(id) => id,
        };
        crash::here("created");
        if plan.network && plan.folder.is_some() {
            self.nowhere.ensure(docker).await.map_err(at(PutStep::Create))?;
            self.nowhere.join(docker, &id).await.map_err(at(PutStep::Create))?;
        }
        upload(docker, &id, plan).await.map_err(at(PutStep::Create))?;
        for (path, _) in body::volumes(plan).map_err(at(PutStep::Create))? {
            volumes::open(docker, &id, &path).await.map_err(at(PutStep::Create))?;
        }
        crash::here("filled");

        progress.step("start", plan.image.as_str());
        self.start(docker, &id, plan.network).await.map_err(at(PutStep::Start))?;
        crash::here("started");
        units::inspect(docker, &id, &self.network.name).await.map_err(at(PutStep::Start))
    }

    /// The image, pulled where it is not there.
    pub(crate) async fn image(&self, docker: &Docker, image: &str, progress: &ProgressSink) -> Result<ImageInspect> {
        let reference = Reference::parse(image)?;
        let look = || within(limits::LOOK, docker.inspect_image(image));
        match look().await {
            Err(error) if error.is_not_found() => {}
            other => return Ok(other?),
        }
        if reference.is_id() {
            return Err(RuntimeError::NotFound(format!("there is no image {image}, and none can be pulled by its id")));
        }
        let silence = self.pulls.limits.silence;
        let pull = |reporter| pull::pull(docker.clone(), self.credentials.clone(), reference, silence, reporter);
        self.pulls.join(image, progress, pull).await?;
        // A daemon that says in other words that it failed must not pass for one that did not.
        look().await.map_err(|error| match error {
            error if error.is_not_found() => RuntimeError::Failed(format!("{image} is not there after its pull")),
            error => error.into(),
        })
    }

    /// The container, in its network and not started.
    async fn make(&self, docker: &Docker, plan: &UnitPlan, image: &ImageInspect) -> Result<Made> {
        let name = identifier(&plan.name)?;
        let volumes = image.config.as_ref().and_then(|config| config.volumes.as_deref()).unwrap_or_default();
        let body = body::body(plan, volumes, &self.network.name)?;
        if plan.network {
            self.network.ensure(docker).await?;
            crash::here("network made");
        }
        for (_, name) in body::volumes(plan)? {
            volumes::ensure(docker, name, &plan.labels, &self.installation).await?;
        }
        match create(docker, name, body).await {
            Ok(id) => Ok(Made::New(id)),
            Err(error) if error.conflict().is_some() => {
                let holder = units::holder(docker, name, &self.network.name).await?;
                match holder {
                    Some(unit) if has_labels(&unit, plan) => Ok(Made::Before(unit)),
                    holder => Err(RuntimeError::Conflict { name: plan.name.clone(), holder: holder.map(Box::new) }),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Starts a unit that was stopped, in the networks of their names even where those are others by now.
    pub(crate) async fn resume(&self, docker: &Docker, id: &str) -> Result<Unit> {
        let found = units::ours(docker, id, &self.installation).await?;
        let id = found.id.as_deref().unwrap_or(id);
        let mode = found.host_config.as_ref().and_then(|config| config.network_mode.as_deref());
        let networked = mode == Some(self.network.name.as_str());
        let joined = found.network_settings.as_ref().and_then(|settings| settings.networks.as_ref());
        let bind = |mount: &MountPoint| mount.typ.as_deref() == Some("bind");
        let is_box = networked && found.mounts.as_ref().is_some_and(|mounts| mounts.iter().any(bind));
        if is_box && joined.is_none_or(|networks| networks.len() < 2) {
            self.nowhere.ensure(docker).await?;
            self.nowhere.join(docker, id).await?;
        }
        if found.state.as_ref().is_some_and(|state| state.paused == Some(true)) {
            within(limits::START, docker.unpause_container(id)).await?;
        }
        match self.start(docker, id, networked).await {
            // The container remembers the network by an id.
            Err(RuntimeError::NotFound(message)) if networked && network::is_lost(&message) => {
                self.network.ensure(docker).await?;
                self.network.join(docker, id).await?;
                if is_box {
                    self.nowhere.ensure(docker).await?;
                    self.nowhere.join(docker, id).await?;
                }
                self.start(docker, id, networked).await?;
            }
            other => other?,
        }
        units::inspect(docker, id, &self.network.name).await
    }

    /// Starts a container, again where other hosts were making the network at that moment.
    async fn start(&self, docker: &Docker, id: &str, networked: bool) -> Result<()> {
        for _ in 1..limits::NETWORK_TRIES {
            match within(limits::START, docker.start_container(id, None::<StartContainerOptions>)).await {
                Err(error) if networked && network::is_unsettled(&error) => self.network.ensure(docker).await?,
                other => return Ok(other?),
            }
        }
        Ok(within(limits::START, docker.start_container(id, None::<StartContainerOptions>)).await?)
    }
}

/// Whether a unit carries the plan's labels. It also has those of its image.
fn has_labels(unit: &Unit, plan: &UnitPlan) -> bool {
    plan.labels.iter().all(|(name, value)| unit.labels.get(name) == Some(value))
}

async fn create(docker: &Docker, name: &str, body: ContainerCreateBody) -> Result<String, CallError> {
    let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
    let made = within(limits::CREATE, docker.create_container(Some(options), body)).await?;
    for warning in &made.warnings {
        tracing::debug!(name, warning, "Docker warns");
    }
    Ok(made.id)
}

/// Puts the plan's files in. They are all there when this is done, also where some were there before.
async fn upload(docker: &Docker, id: &str, plan: &UnitPlan) -> Result<()> {
    if plan.files.is_empty() {
        return Ok(());
    }
    let options = UploadToContainerOptions {
        path: "/".to_owned(),
        // A file never takes the place of a folder.
        no_overwrite_dir_non_dir: Some("1".to_owned()),
        ..UploadToContainerOptions::default()
    };
    let archive = bollard::body_full(files::archive(&plan.files)?.into());
    Ok(within(limits::CREATE, docker.upload_to_container(id, Some(options), archive)).await?)
}
