//! The work folders of boxes, as the host reaches them while the boxes run.
//!
//! A work folder is a directory that is mounted into a box, so whatever runs there can change it at any moment: swap a
//! folder for a link between two steps of a transfer, put a device where a file was, nest folders ten thousand deep.
//! Nothing here checks a path and then uses it. A path becomes a handle in one step of the kernel, the handle is judged,
//! and only the handle is used.
//!
//! # Where things lie
//!
//! ```text
//! <dir>/<key>/inside               a link that says where in the box the folder is; read, never followed
//! <dir>/<key>/root/home/node       the work folder; this is mounted at /home/node
//! <dir>/.trash                     what is being removed
//! ```
//!
//! The work folder lies below `root` at the path that it has in the box. For the kernel `root` is then a whole file
//! system in which an absolute link means what it means in the box; see the comments in `view.rs`.
//!
//! # What is in a work folder is the box's
//!
//! Its root may put devices, pipes and set-uid files there. The host opens regular files and directories only, and finds
//! out what something is through a handle that does not open it; it never runs anything and never gives a file set-uid,
//! set-gid or sticky bits. The directory should all the same lie on a file system mounted `nosuid,nodev`, so that other
//! users of the machine are protected as well; it is private (0700) where this crate makes it.
//!
//! The host must be able to give files to the user of a box, which in practice means that it runs as root.
//!
//! Every call blocks.

mod error;
mod folder;
mod folders;
mod list;
mod local;
mod path;
mod remove;
mod usage;
mod view;

pub use error::FilesError;
pub use folder::{Content, Owner, Staged, WorkFolder};
pub use folders::WorkFolders;
pub use list::{Entry, Kind, Listing};
pub use local::LocalFolders;
