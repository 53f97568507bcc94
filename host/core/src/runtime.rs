//! What the core needs from whatever runs containers. Small and neutral: no type of Docker crosses it, and a second
//! implementation must be possible where pulling is no step of its own, and where a name is a note in the books.
//!
//! Every method has a deadline of its own inside the implementation and ends; none of them retries.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::progress::ProgressSink;

/// What a runtime can do, known when it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Whether it runs on this machine, so that folders can be shared with a container.
    pub local: bool,
}

/// Labels of a unit.
pub type Labels = BTreeMap<String, String>;

/// Everything about a unit to be made, complete and checked: nothing in it needs interpretation.
#[derive(Clone, PartialEq, Eq)]
pub struct UnitPlan {
    /// The name under which it is made, and which says that it is being made.
    pub name: String,
    /// Labels, complete: they cannot change later.
    pub labels: Labels,
    /// The image to run, after the operator's mapping.
    pub image: String,
    /// Replaces the image's entrypoint.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command where it is not empty.
    pub command: Vec<String>,
    /// User, empty for the image's own.
    pub user: String,
    /// Environment, with the secrets filled in.
    pub env: Vec<(String, String)>,
    /// Files put in before the start.
    pub files: Vec<FilePlan>,
    /// Mounts for data.
    pub data: Vec<DataPlan>,
    /// A folder of this machine that is mounted.
    pub folder: Option<FolderPlan>,
    /// Whether it joins the sandbox network, or has no network at all.
    pub network: bool,
    /// Size of a tmpfs over each volume that the image declares and that `data` does not cover, in bytes.
    pub spare_tmpfs_bytes: u64,
    /// Size of `/dev/shm` in bytes.
    pub shm_bytes: u64,
    /// Memory limit in bytes; swap is not added to it.
    pub memory_bytes: u64,
    /// CPU limit in thousandths of a CPU.
    pub milli_cpus: u64,
    /// How many processes it may have.
    pub pids: u32,
    /// Capabilities kept; all others are dropped.
    pub capabilities: Vec<String>,
    /// The TCP port on which it serves.
    pub port: Option<u16>,
    /// Whether that port is also reachable on the loopback of this machine.
    pub publish: bool,
}

// A plan holds passwords, so nothing derives `Debug` for it.
impl std::fmt::Debug for UnitPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnitPlan").field("name", &self.name).field("image", &self.image).finish_non_exhaustive()
    }
}

/// A file of a [`UnitPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePlan {
    /// Absolute path in the container.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Content.
    pub content: String,
}

/// A mount for data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataPlan {
    /// Absolute path in the container.
    pub path: String,
    /// What is mounted there.
    pub kind: DataKind,
}

/// What holds the data of a [`DataPlan`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataKind {
    /// Memory, of this many bytes. Gone when the unit stops.
    Tmpfs(u64),
    /// A volume of this name, with the unit's labels where it is made now. It outlives the unit. Nothing of the image is
    /// copied into it, and everybody may write to it.
    Volume(String),
}

/// A folder of this machine, mounted into a unit. Only where [`Caps::local`] is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderPlan {
    /// Absolute path on this machine. It exists.
    pub from: String,
    /// Absolute path in the container; also the folder in which it starts.
    pub path: String,
}

/// A unit that exists: on Docker, a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The runtime's own id.
    pub id: String,
    /// Its name now.
    pub name: String,
    /// The address under which the service answers inside the sandbox network; an IPv6 address without brackets. `None`
    /// while it does not run.
    pub address: Option<String>,
    /// Every address that it has while it runs, in whatever network.
    pub addresses: Vec<IpAddr>,
    /// The port on this machine's loopback, where it is published.
    pub published_port: Option<u16>,
    /// Labels.
    pub labels: Labels,
    /// What it is doing.
    pub state: UnitState,
    /// The image by the reference it was made from, as long as that still means the same one, else another text. Known
    /// where it was listed.
    pub image: Option<String>,
    /// When it was created.
    pub created: SystemTime,
    /// Names the run that it is in, and is another text after each start. Known where the runtime was asked about this unit
    /// alone: listings do not tell.
    pub run: Option<String>,
}

/// What a unit is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitState {
    /// Made and not started yet, or being restarted.
    Starting,
    /// Running, and not paused.
    Running,
    /// Paused: it counts as running for Docker and answers nobody.
    Paused,
    /// Ended, or being removed.
    Ended,
}

/// How a unit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code of its main process.
    pub code: i64,
    /// Whether the kernel ended it for want of memory.
    pub out_of_memory: bool,
}

/// A command to run in a unit, with everything filled in.
#[derive(Clone, PartialEq, Eq)]
pub struct ExecPlan {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables for this command alone.
    pub env: Vec<(String, String)>,
    /// User; the unit's with none.
    pub user: Option<String>,
    /// How long it may take.
    pub timeout: Duration,
}

// Its environment holds passwords.
impl std::fmt::Debug for ExecPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecPlan").field("argv", &self.argv).finish_non_exhaustive()
    }
}

/// What a command answered. Output is bounded by the runtime (64 KiB each).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Exit code.
    pub code: i64,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A command of a tenant, to run in a unit until it ends, its time is over, or nobody wants it any more.
#[derive(Clone, PartialEq, Eq)]
pub struct RunPlan {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables for this command.
    pub env: Vec<(String, String)>,
    /// What it reads; its standard input ends after that.
    pub stdin: Vec<u8>,
    /// The folder in which it runs.
    pub folder: String,
    /// User; the unit's with none.
    pub user: Option<String>,
    /// After this long it is ended, with all that it started.
    pub timeout: Duration,
    /// How many bytes are kept of each stream: the first and the last half.
    pub keep: usize,
    /// A variable and its value, added to `env`, which no other command has. What a command started is recognised by it.
    /// All commands of a unit have the same variable, and values of 32 hexadecimal digits.
    pub mark: (String, String),
}

// Its environment and input are the tenant's.
impl std::fmt::Debug for RunPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunPlan").field("folder", &self.folder).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// One stream of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes, where there were more than are kept.
    pub tail: Vec<u8>,
    /// How many bytes between them were dropped.
    pub dropped: u64,
}

/// How a command of a tenant went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutput {
    /// Exit code; 124 where its time was over.
    pub code: i64,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// Whether its time was over.
    pub timed_out: bool,
    /// Whether everything that it started is gone, where it was ended. Always true where it ended by itself.
    pub gone: bool,
}

/// Something that happened to a unit, whoever made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A unit ended. May be told twice.
    Ended {
        /// Its id.
        id: String,
        /// Its name, empty where the runtime does not tell.
        name: String,
        /// Its labels, where the runtime tells them.
        labels: Labels,
    },
    /// From here on events are missed.
    Interrupted,
    /// Events are told again. What happened since the interruption was not and is not.
    Resumed,
}

/// Where in [`Runtime::put`] something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutStep {
    /// Getting the image.
    Pull,
    /// Making the container, its network and its files.
    Create,
    /// Starting it.
    Start,
}

/// Why a runtime did not do what it was asked. Each kind says what the caller may do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    /// There is no such unit or image. For an unit asked to be removed, that is success.
    #[error("not found: {0}")]
    NotFound(String),
    /// The name is taken, by a unit with these labels. The caller decides whose it is.
    #[error("the name `{name}` is taken")]
    Conflict {
        /// The name.
        name: String,
        /// The id of the unit that holds it, where it could be found out.
        holder: Option<Box<Unit>>,
    },
    /// The unit exists and does not run, so the command could not be given to it.
    #[error("it is not running: {0}")]
    Gone(String),
    /// The runtime understood and refused; the same request will be refused again.
    #[error("refused: {0}")]
    Refused(String),
    /// Nobody answered: the runtime is away. Nothing can be concluded about what exists.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// It did not end in time. What was asked for may have been done, or may still be.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// Anything else; trying again may help.
    #[error("{0}")]
    Failed(String),
}

/// A failed [`Runtime::put`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct PutError {
    /// Where.
    pub step: PutStep,
    /// Why.
    pub error: RuntimeError,
}

/// Result of a runtime call.
pub type Result<T, E = RuntimeError> = std::result::Result<T, E>;

/// What is left in a unit in which no command of this host runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The commands that an earlier host had not ended yet, with all that they started.
    AtWork,
    /// Those, and what commands left that were over by themselves.
    Everything,
}

/// What runs containers.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// What it can do.
    fn caps(&self) -> Caps;

    /// Whether it answers at all.
    async fn ping(&self) -> Result<()>;

    /// Gets an image ready: looks for it and pulls it if it is absent, once for all who wait. Dropping the future only
    /// detaches. Where pulling is no step of its own this does nothing, since [`Runtime::put`] does what is needed.
    async fn prepare(&self, image: &str, progress: &ProgressSink) -> Result<()>;

    /// Makes and starts a unit: image (as [`Runtime::prepare`]), network, container, files, start. Answers once it
    /// runs or has ended, with its address. Idempotent: where a unit with this name and the same labels exists it is
    /// continued. A failure leaves the half-made unit for [`Runtime::remove`].
    async fn put(&self, plan: &UnitPlan, progress: &ProgressSink) -> Result<Unit, PutError>;

    /// Gives a unit another name. `Conflict` when the name is taken; success when the unit has that name already.
    async fn rename(&self, id: &str, name: &str) -> Result<()>;

    /// Runs a command in a running unit and collects its output. `Gone` when it does not run, `Deadline` when the
    /// command did not end in `plan.timeout`.
    async fn exec(&self, id: &str, plan: &ExecPlan) -> Result<ExecOutput>;

    /// Runs a tenant's command in a running unit. When its time is over, `cancel` is cancelled, or this future is dropped,
    /// everything that it started is ended (recognised by the mark; `alone` says that no other command, nor an
    /// [`Runtime::exec`], runs in the unit now, so that processes without any mark are its own too), and the answer says
    /// whether that succeeded within 10 s. A cancelled one is answered like one whose time was over. `Gone` or `NotFound`
    /// when it was not started, `Failed` where the unit ended while it ran.
    async fn run(
        &self,
        id: &str,
        plan: &RunPlan,
        cancel: &CancellationToken,
        alone: Arc<dyn Fn() -> bool + Send + Sync>,
    ) -> Result<RunOutput>;

    /// Ends what [`Runtime::run`] left in a unit in which no command runs, recognised by the name of the mark of commands,
    /// and answers whether that succeeded within 10 s.
    async fn end_left(&self, id: &str, mark: &str, left: Left) -> Result<bool>;

    /// Stops a unit and keeps it: its processes end, its volumes and its folder stay. Stopping one that is stopped is fine.
    async fn suspend(&self, id: &str, grace: Duration) -> Result<()>;

    /// Starts a unit that was stopped, and answers it as [`Runtime::put`] does. Starting one that runs is fine.
    async fn resume(&self, id: &str) -> Result<Unit>;

    /// How much memory a unit uses now, in bytes.
    async fn memory(&self, id: &str) -> Result<u64>;

    /// The names of the volumes that have all of these labels.
    async fn volumes(&self, labels: &[(&str, &str)]) -> Result<Vec<String>>;

    /// Removes a volume of this installation. `Ok` means that it is gone.
    async fn remove_volume(&self, name: &str) -> Result<()>;

    /// Waits until a unit has ended, however long it takes. Dropping the future costs nothing.
    async fn ended(&self, id: &str) -> Result<Exit>;

    /// Every unit, running or not, that has all of these labels with these values. One call to the runtime.
    async fn list(&self, labels: &[(&str, &str)]) -> Result<Vec<Unit>>;

    /// Those of these units that exist, running or not. One call to the runtime, however many there are besides.
    async fn find(&self, ids: &[&str]) -> Result<Vec<Unit>>;

    /// One unit, looked up by id or by its exact name.
    async fn inspect(&self, id_or_name: &str) -> Result<Unit>;

    /// The environment that a unit was made with.
    async fn environment(&self, id: &str) -> Result<Vec<(String, String)>>;

    /// The last `lines` lines that a unit printed, both streams together, bounded to 16 KiB.
    async fn logs(&self, id: &str, lines: usize) -> Result<String>;

    /// Stops a unit and removes it with its anonymous volumes: at once when `grace` is zero, else after a stop that may
    /// take that long. Each step is best effort and repeatable; `Ok` means that it is gone.
    async fn remove(&self, id_or_name: &str, grace: Duration) -> Result<()>;

    /// Removes what was made for all units together, such as their network, if this installation made it and nothing
    /// uses it. It is made again when it is needed.
    async fn retire(&self) -> Result<()>;

    /// Tells what happens to units from now on, anybody's, until the receiver is dropped.
    fn watch(&self) -> mpsc::Receiver<Event>;
}
