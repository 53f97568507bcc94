//! What the core needs of whatever keeps the work folders of boxes on this machine. A folder is reached by its name and
//! never by a path, and what a caller names inside of it is contained there while it is opened.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use schemars::JsonSchema;
use serde::Serialize;

/// A work folder: its name here, and where it is mounted in its box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    /// Its name, `[A-Za-z0-9_-]{1,128}`.
    pub name: String,
    /// Its absolute path in the box.
    pub inside: String,
}

/// A user and a group, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// What was read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes from the offset on.
    pub bytes: Vec<u8>,
    /// The size of the whole file, in bytes.
    pub size: u64,
}

/// The content of a file on its way, in pieces. It is never in memory as a whole.
pub struct Pieces {
    /// How many bytes come.
    pub size: u64,
    /// The bytes. After an error there are no more.
    pub stream: BoxStream<'static, Result<Bytes>>,
}

impl Pieces {
    /// All of it, for where it is known to be small.
    ///
    /// # Errors
    /// What went wrong on the way.
    pub async fn collect(self) -> Result<Vec<u8>> {
        self.stream
            .try_fold(Vec::new(), async |mut all, piece| {
                all.extend_from_slice(&piece);
                Ok(all)
            })
            .await
    }
}

impl From<Vec<u8>> for Pieces {
    fn from(bytes: Vec<u8>) -> Self {
        Self { size: bytes.len() as u64, stream: stream::once(async { Ok(Bytes::from(bytes)) }).boxed() }
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.size)
    }
}

/// Something in a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Item {
    /// Its path, relative to the work folder.
    pub path: String,
    /// `file`, `directory`, `link` or `other`.
    pub kind: &'static str,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When it was changed, in seconds since 1970.
    pub modified_unix: i64,
    /// Where it leads, for a link.
    pub target: Option<String>,
}

/// What a folder holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// By path.
    pub items: Vec<Item>,
    /// Whether there are more than were asked for.
    pub truncated: bool,
}

/// A file that was copied out of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Hex SHA-256 of its content.
    pub sha256: String,
    /// Its size in bytes.
    pub size: u64,
}

/// Why a folder did not do what it was asked. No message names a path of this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// There is no such thing.
    #[error("there is no `{0}`")]
    NotFound(String),
    /// It would lead out of the work folder, or is no path.
    #[error("`{0}` is not in the work folder")]
    Outside(String),
    /// No path at all: why.
    #[error("{0}")]
    BadPath(String),
    /// It is of another kind than it must be.
    #[error("`{path}` is not {wanted}")]
    Kind {
        /// What was named.
        path: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// It changed again and again while it was opened.
    #[error("`{0}` kept changing while it was opened")]
    Busy(String),
    /// It is larger than it may be.
    #[error("`{path}` has more than {limit} bytes")]
    TooLarge {
        /// What was named.
        path: String,
        /// How large it may be.
        limit: u64,
    },
    /// Its content did not come as a whole: why.
    #[error("{0}")]
    Incomplete(String),
    /// No space is left for it.
    #[error("there is no space left")]
    Full,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, FolderError>;

/// What keeps work folders.
#[async_trait]
pub trait Folders: Send + Sync + 'static {
    /// Makes a folder, if there is none of that name, and answers its path on this machine.
    async fn make(&self, folder: &Folder) -> Result<String>;

    /// Every folder's name.
    async fn names(&self) -> Result<Vec<String>>;

    /// Removes a folder with all that is in it. Removing one that is not there is fine.
    async fn remove(&self, name: &str) -> Result<()>;

    /// Gives the folder itself to a user, who can use it then, and removes what was left of writes that were never whole.
    /// Nothing is written in it meanwhile.
    async fn give(&self, folder: &Folder, to: Ids) -> Result<()>;

    /// Whom the folder itself was given to, if to anybody.
    async fn given(&self, folder: &Folder) -> Result<Option<Ids>>;

    /// Reads of a regular file at most `limit` bytes from `offset` on.
    async fn read(&self, folder: &Folder, path: &str, offset: u64, limit: u64) -> Result<Content>;

    /// The same in pieces, of a regular file as large as it is when this answers. One that gets shorter meanwhile ends early.
    async fn open(&self, folder: &Folder, path: &str, offset: u64, limit: u64) -> Result<Pieces>;

    /// Writes a file, whole or not at all, that belongs to `to`; missing directories before it are made. Content of another
    /// size than it says is [`FolderError::Incomplete`].
    async fn write(&self, folder: &Folder, path: &str, content: Pieces, mode: Option<u32>, to: Ids) -> Result<()>;

    /// Removes a file.
    async fn unlink(&self, folder: &Folder, path: &str) -> Result<()>;

    /// Lists a directory, all below it where `recursive`.
    async fn list(&self, folder: &Folder, path: &str, recursive: bool, limit: usize) -> Result<Listing>;

    /// Copies a regular file of at most `limit` bytes out of a folder, to where it is found by its content.
    async fn keep(&self, folder: &Folder, path: &str, limit: u64) -> Result<Kept>;

    /// Reads at most `limit` bytes, from `offset` on, of what was kept under this hash.
    async fn kept(&self, sha256: &str, offset: u64, limit: u64) -> Result<Content>;

    /// Removes what was kept under this hash.
    async fn forget(&self, sha256: &str) -> Result<()>;

    /// How many bytes a folder holds. It may stop counting beyond `limit`.
    async fn usage(&self, folder: &Folder, limit: u64) -> Result<u64>;

    /// How many bytes all folders hold, each as it was when it was last counted; one that was not, or that [`Folders::changed`]
    /// since, is counted now, and need not be beyond `limit`.
    async fn usage_of_all(&self, limit: u64) -> Result<u64>;

    /// Something in its box may have changed a folder.
    fn changed(&self, folder: &Folder);
}
