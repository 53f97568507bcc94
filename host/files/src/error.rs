//! What can go wrong. Messages name what the caller named, never where that lies on the host.

use rustix::io::Errno;

/// A failure of something that was done in work folders. Strings are paths as callers gave them, fit to be shown.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// Nothing is there.
    #[error("`{0}` does not exist")]
    NotFound(String),
    /// It is not in the work folder, or a link leads out of it, in circles or to nothing.
    #[error("`{0}` is not inside the work folder, or is reached through a link that leads out of it or to nothing")]
    Outside(String),
    /// A directory, or something special such as a pipe or a device.
    #[error("`{0}` is not a regular file")]
    NotAFile(String),
    /// A part of the path that must be a directory is none.
    #[error("`{0}` is not a directory, or is below something that is none")]
    NotADirectory(String),
    /// It is larger than the caller takes.
    #[error("`{path}` has {size} bytes; at most {most} are taken")]
    TooLarge {
        /// What is too large.
        path: String,
        /// How large it is.
        size: u64,
        /// How large it may be.
        most: u64,
    },
    /// What runs in the box changed the path, or holds the file, for as long as this was tried.
    #[error("`{0}` kept changing while it was used; try again")]
    Busy(String),
    /// The operating system refuses.
    #[error("the host is not allowed to use `{0}`")]
    Denied(String),
    /// No room is left on the file system, or in a quota on it.
    #[error("no room is left for `{0}`")]
    Full(String),
    /// A path that cannot be one.
    #[error("the path {0}")]
    BadPath(&'static str),
    /// A key that cannot be one.
    #[error("the key of a box must match [A-Za-z0-9_-]{{1,128}}")]
    BadKey,
    /// The key's work folder was made for another place in the box.
    #[error("this box's work folder was made to be at `{0}` in the box; remove it before it can be somewhere else")]
    Elsewhere(String),
    /// The machine lacks what containment needs.
    #[error("work folders cannot be used on this machine: {0}")]
    Unsupported(&'static str),
    /// Anything else, in the operating system's words.
    #[error("a file operation failed: {0}")]
    Io(std::io::Error),
}

impl FilesError {
    /// What an error of the kernel means for `path`.
    pub(crate) fn of(errno: Errno, path: &str) -> Self {
        let path = || path.to_owned();
        match errno {
            Errno::NOENT => Self::NotFound(path()),
            // Something is mounted there; or links that lead in circles.
            Errno::XDEV | Errno::LOOP => Self::Outside(path()),
            Errno::ISDIR => Self::NotAFile(path()),
            Errno::NOTDIR => Self::NotADirectory(path()),
            // The first is also what a process that holds a lease on a file makes others see.
            Errno::AGAIN | Errno::TXTBSY | Errno::BUSY => Self::Busy(path()),
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied(path()),
            Errno::NOSPC | Errno::DQUOT => Self::Full(path()),
            Errno::NAMETOOLONG => Self::BadPath(crate::path::TOO_LONG),
            other => Self::Io(other.into()),
        }
    }

    /// The same for an error that came through the standard library.
    pub(crate) fn of_io(error: std::io::Error, path: &str) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => Self::of(errno, path),
            None => Self::Io(error),
        }
    }
}
