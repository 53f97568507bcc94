//! What an engine says: the contract of `wit/sandbox-engine.wit` as plain data, and the trait through which the core
//! asks. Field for field the same as the WIT file, which explains them; nothing here is trusted before
//! [`crate::check`] has looked at it.

use std::sync::Arc;

use async_trait::async_trait;

/// Names with values, in order.
pub type Pairs = Vec<(String, String)>;

/// What a sandbox is wanted for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Request {
    /// Features to activate: sorted, without duplicates, each one known to the engine.
    pub features: Vec<String>,
    /// Whether the data outlives the container.
    pub retained: bool,
    /// Whether the project asks for an account without restrictions.
    pub superuser: bool,
    /// Memory limit of the container, in bytes.
    pub memory_bytes: u64,
    /// Every setting of the descriptor, in its order, with the operator's value or the default.
    pub settings: Pairs,
}

/// An extension or module that an engine can activate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// The name agents and operators use.
    pub name: String,
    /// One line for a person.
    pub summary: String,
}

/// Something that an operator may set for an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key in the operator's `settings` table.
    pub name: String,
    /// The value when the operator sets none.
    pub default: String,
    /// One line for a person.
    pub summary: String,
}

/// What an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// The service name it proposes.
    pub name: String,
    /// The slug it proposes.
    pub slug: String,
    /// The engine's own version.
    pub version: String,
    /// One line for a person.
    pub summary: String,
    /// The allowlist.
    pub features: Vec<Feature>,
    /// Everything an operator may set.
    pub settings: Vec<Setting>,
    /// Keys that came after the contract was frozen. This host knows those of [`crate::check::client`].
    pub more: Pairs,
}

/// A directory whose content is data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDir {
    /// An absolute path in the container.
    pub path: String,
    /// Size of the tmpfs in bytes.
    pub tmpfs_bytes: u64,
}

/// A file put into the container before it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// An absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// A template.
    pub content: String,
}

/// The account that an agent gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The user's name, if the service has users.
    pub user: Option<String>,
    /// The database, if the service has databases.
    pub database: Option<String>,
    /// Whether an administrator's password is needed too.
    pub admin: bool,
}

/// The container of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// The image reference; a template.
    pub image: String,
    /// Replaces the image's entrypoint.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's command where it is not empty.
    pub command: Vec<String>,
    /// The user it runs as; empty for the image's own.
    pub user: String,
    /// Environment; values are templates.
    pub env: Pairs,
    /// Files put in before the start.
    pub files: Vec<File>,
    /// Data directories.
    pub data: Vec<DataDir>,
    /// The folder in which commands run, for a box.
    pub work_folder: Option<String>,
    /// Size of `/dev/shm` in bytes; 0 leaves it to the host.
    pub shm_bytes: u64,
    /// Linux capabilities it cannot do without.
    pub capabilities: Vec<String>,
    /// The TCP port on which it serves.
    pub port: Option<u16>,
    /// The agent's account.
    pub account: Option<Account>,
    /// Keys that later hosts may know; none is known now.
    pub more: Pairs,
}

/// What a command must do to count as a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expectation {
    /// Exit code 0.
    ExitZero,
    /// Exit code 0, and standard output is this.
    StdoutIs(String),
    /// Exit code 0, and each of these is a line of standard output.
    StdoutHasLines(Vec<String>),
}

/// A command that runs inside a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments; templates without secrets.
    pub argv: Vec<String>,
    /// Variables for this command alone; values are templates.
    pub env: Pairs,
    /// The user to run as; the container's with none.
    pub user: Option<String>,
    /// What counts as a success.
    pub expect: Expectation,
    /// How long one run may take, in milliseconds.
    pub timeout_ms: u32,
}

/// One step of activation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// One line for a person.
    pub name: String,
    /// The feature it is about.
    pub feature: Option<String>,
    /// What to run.
    pub run: Command,
}

/// A variable that the agent gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// The name, without the host's prefix.
    pub name: String,
    /// A template.
    pub value: String,
    /// Whether the host writes its prefix before the name.
    pub prefixed: bool,
}

/// How to make a sandbox of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What to start.
    pub container: Container,
    /// The probe.
    pub ready: Command,
    /// How long the probe may take to succeed for the first time, in milliseconds.
    pub deadline_ms: u32,
    /// Activation.
    pub setup: Vec<Step>,
    /// Confirmation; changes nothing.
    pub verify: Vec<Step>,
    /// What the agent gets.
    pub variables: Vec<Variable>,
}

/// Why an engine gave no recipe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// This feature cannot be had.
    #[error("the feature `{0}` cannot be had")]
    UnsupportedFeature(String),
    /// This setting has a value that cannot be used.
    #[error("the setting `{0}` cannot be used: {1}")]
    BadSetting(String, String),
    /// The engine refused for another reason.
    #[error("{0}")]
    Other(String),
    /// The engine did not answer: a trap, a limit, a deadline. One call failed; the next one starts afresh.
    #[error("the engine did not answer: {0}")]
    Broken(String),
}

/// A loaded engine. Implementations are pure: the same request gets the same answer.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What it said it is, remembered from when it was loaded.
    fn descriptor(&self) -> &Descriptor;

    /// Hex SHA-256 of the component's bytes.
    fn hash(&self) -> &str;

    /// Asks for a recipe.
    async fn plan(&self, request: &Request) -> Result<Recipe, EngineError>;
}

/// A shared engine.
pub type SharedEngine = Arc<dyn Engine>;
