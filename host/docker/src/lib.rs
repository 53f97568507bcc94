//! Containers on Docker: the core's [`Runtime`] over the Docker API, through bollard. The only crate that knows bollard.
//!
//! A call that changes something ends within a limit of its own (`limits.rs`) and is never repeated here; whether to try
//! again is the caller's decision. What Docker's words mean is decided in `errors.rs`.
//!
//! bollard writes request bodies, with the environment and so the passwords in it, to the `log` facade at its levels debug
//! and trace. Whoever bridges `log` into a log that is kept has to leave bollard out.

mod body;
mod command;
mod connect;
mod convert;
mod credentials;
mod ending;
mod errors;
mod exec;
mod files;
mod limits;
mod network;
mod pull;
mod put;
mod reference;
mod text;
mod units;
mod volumes;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{
    Caps, Event, ExecOutput, ExecPlan, Exit, Labels, Left, PutError, PutStep, Result, RunOutput, RunPlan, Runtime,
    RuntimeError, Unit, UnitPlan,
};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::connect::{Connection, Target};
use crate::credentials::Credentials;
use crate::ending::Guards;
use crate::network::Network;
use crate::put::Maker;

pub use crate::limits::PullLimits;

/// How to reach Docker and what to make there.
#[derive(Debug, Clone)]
pub struct DockerOptions {
    /// Where the daemon is: `unix://`, `tcp://` or `http://`. Left out, it is `DOCKER_HOST`, then the first of the usual
    /// sockets of Docker and Podman, rootless ones included.
    pub host: Option<String>,
    /// The network of the sandboxes; made when it is not there.
    pub network: String,
    /// Labels of that network where it is made here.
    pub network_labels: Labels,
    /// The label that says which installation something is of. Nothing is made or removed without it.
    pub installation: (String, String),
    /// How long pulls may take.
    pub pull: PullLimits,
}

/// [`Runtime`] on Docker, or on what speaks its API.
#[derive(Debug)]
pub struct DockerRuntime {
    connection: Arc<Connection>,
    maker: Maker,
    guards: Arc<Guards>,
}

impl DockerRuntime {
    /// Opens the runtime. The daemon need not be up: every call finds out anew, and answers [`RuntimeError::Unreachable`]
    /// while it is away. Fails only for options that can never work.
    pub fn connect(options: DockerOptions) -> Result<Self> {
        let DockerOptions { host, network, network_labels, installation, pull } = options;
        let target = Target::find(host.as_deref(), &connect::environment)?;
        reference::identifier(&network).map_err(|e| named("`network`", &e))?;
        let mut labels = network_labels;
        labels.insert(installation.0.clone(), installation.1.clone());
        let network = Network::new(network, labels);
        Ok(Self {
            connection: Arc::new(Connection::new(target)),
            maker: Maker {
                nowhere: network.nowhere(),
                network,
                pulls: pull::Pulls::new(pull),
                credentials: Credentials::new(&connect::environment),
                at_once: Semaphore::new(limits::AT_ONCE),
                installation,
            },
            guards: Arc::default(),
        })
    }

    fn installation(&self) -> &(String, String) {
        &self.maker.installation
    }

    /// The networks that are there and were made by this installation: what [`Runtime::retire`] removes.
    pub async fn own_networks(&self) -> Result<Vec<String>> {
        let docker = self.connection.client().await?;
        let mut ours = Vec::new();
        for network in [&self.maker.network, &self.maker.nowhere] {
            if network.is_ours(&docker).await? {
                ours.push(network.name.clone());
            }
        }
        Ok(ours)
    }

    fn network(&self) -> &str {
        &self.maker.network.name
    }
}

/// An error with the option that it is about.
pub(crate) fn named(option: &str, error: &RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Refused(why) => RuntimeError::Refused(format!("{option}: {why}")),
        other => RuntimeError::Refused(format!("{option}: {other}")),
    }
}

#[async_trait]
impl Runtime for DockerRuntime {
    fn caps(&self) -> Caps {
        Caps { local: self.connection.target().is_local() }
    }

    async fn ping(&self) -> Result<()> {
        self.connection.answering().await.map(drop)
    }

    async fn prepare(&self, image: &str, progress: &ProgressSink) -> Result<()> {
        let docker = self.connection.client().await?;
        self.maker.image(&docker, image, progress).await?;
        Ok(())
    }

    async fn put(&self, plan: &UnitPlan, progress: &ProgressSink) -> Result<Unit, PutError> {
        // Without its label nobody would ever remove it.
        if plan.labels.get(&self.installation().0) != Some(&self.installation().1) {
            let error = RuntimeError::Refused(format!("the plan of {} lacks the installation's label", plan.name));
            return Err(PutError { step: PutStep::Create, error });
        }
        let docker = self.connection.client().await.map_err(|error| PutError { step: PutStep::Pull, error })?;
        self.maker.put(&docker, plan, progress).await
    }

    async fn rename(&self, id: &str, name: &str) -> Result<()> {
        units::rename(&self.connection.client().await?, id, name, self.network()).await
    }

    async fn exec(&self, id: &str, plan: &ExecPlan) -> Result<ExecOutput> {
        exec::exec(&self.connection.client().await?, id, plan).await
    }

    async fn run(
        &self,
        id: &str,
        plan: &RunPlan,
        cancel: &CancellationToken,
        alone: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<RunOutput> {
        command::run(self.connection.client().await?, self.guards.clone(), id, plan, cancel, alone).await
    }

    async fn end_left(&self, id: &str, mark: &str, left: Left) -> Result<bool> {
        ending::end_left(&self.connection.client().await?, id, mark, left).await
    }

    async fn suspend(&self, id: &str, grace: Duration) -> Result<()> {
        self.guards.dismiss(id);
        units::suspend(&self.connection.client().await?, id, grace, self.installation()).await
    }

    async fn resume(&self, id: &str) -> Result<Unit> {
        self.maker.resume(&self.connection.client().await?, id).await
    }

    async fn memory(&self, id: &str) -> Result<u64> {
        units::memory(&self.connection.client().await?, id).await
    }

    async fn volumes(&self, labels: &[(&str, &str)]) -> Result<Vec<String>> {
        volumes::list(&self.connection.client().await?, labels).await
    }

    async fn remove_volume(&self, name: &str) -> Result<()> {
        volumes::remove(&self.connection.client().await?, name, self.installation()).await
    }

    async fn ended(&self, id: &str) -> Result<Exit> {
        units::ended(&self.connection.client().await?, id).await
    }

    async fn find(&self, ids: &[&str]) -> Result<Vec<Unit>> {
        units::find(&self.connection.client().await?, ids, self.network()).await
    }

    async fn list(&self, labels: &[(&str, &str)]) -> Result<Vec<Unit>> {
        units::list(&self.connection.client().await?, labels, self.network()).await
    }

    async fn inspect(&self, id_or_name: &str) -> Result<Unit> {
        units::inspect(&self.connection.client().await?, id_or_name, self.network()).await
    }

    async fn environment(&self, id: &str) -> Result<Vec<(String, String)>> {
        units::environment(&self.connection.client().await?, id).await
    }

    async fn logs(&self, id: &str, lines: usize) -> Result<String> {
        units::logs(&self.connection.client().await?, id, lines).await
    }

    async fn remove(&self, id_or_name: &str, grace: Duration) -> Result<()> {
        self.guards.dismiss(id_or_name);
        units::remove(&self.connection.client().await?, id_or_name, grace, self.installation()).await
    }

    async fn retire(&self) -> Result<()> {
        let docker = self.connection.client().await?;
        self.maker.network.retire(&docker).await?;
        self.maker.nowhere.retire(&docker).await
    }

    fn watch(&self) -> mpsc::Receiver<Event> {
        watch::watch(Arc::clone(&self.connection))
    }
}
