//! What is in a work folder.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, OFlags, Stat, readlinkat, statat};
use rustix::io::Errno;

use crate::FilesError;
use crate::path::{Asked, text};
use crate::view::{kind, step};

/// How many names are looked at for one listing.
const MOST_NAMES: usize = 1_000_000;

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, which was not followed.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

impl Kind {
    /// As a word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "link",
            Self::Other => "other",
        }
    }
}

/// One thing in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path from the work folder, as another call takes it unless it is `escaped`.
    pub path: String,
    /// Whether the path, or the target, is not UTF-8. Then other bytes are written `\xff` in it and a backslash is
    /// doubled, and no call can name it.
    pub escaped: bool,
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes, as its directory has it.
    pub size: u64,
    /// Its permissions, with set-uid, set-gid and sticky bits.
    pub mode: u32,
    /// When it was last changed, in seconds since 1970; whatever the box says, so it may be any number.
    pub modified: i64,
    /// Where a link leads, as it says itself.
    pub target: Option<String>,
}

/// A listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Sorted by path, byte by byte.
    pub entries: Vec<Entry>,
    /// Whether there is more than was asked for, or than is looked at.
    pub truncated: bool,
}

/// The first `limit` entries below `top`. Memory is bounded by `limit` whatever the folder holds: only the entries that
/// will be answered are kept, and since what is below a directory sorts behind it, a directory that is not kept need
/// not be entered.
pub(crate) fn list(top: &OwnedFd, asked: &Asked<'_>, recursive: bool, limit: usize) -> Result<Listing, FilesError> {
    let mut kept: BTreeMap<Vec<u8>, Found> = BTreeMap::new();
    let mut to_enter = BTreeSet::from([Vec::new()]);
    let (mut truncated, mut names) = (false, 0);
    while let Some(at) = to_enter.pop_first() {
        if !at.is_empty() && !kept.contains_key(&at) {
            continue;
        }
        let opened = if at.is_empty() {
            step(top, b".", OFlags::RDONLY | OFlags::DIRECTORY)
        } else {
            step(top, &at, OFlags::RDONLY | OFlags::DIRECTORY)
        };
        let folder = match opened {
            Ok(folder) => folder,
            Err(e) if at.is_empty() => return Err(FilesError::of(e, &asked.shown)),
            // Deeper than a path can say, closed to the host, or another file system: more than is told.
            Err(Errno::NAMETOOLONG | Errno::ACCESS | Errno::XDEV) => {
                truncated = true;
                continue;
            }
            // Something else by now.
            Err(_) => continue,
        };
        let entries = rustix::fs::Dir::read_from(&folder).map_err(|e| FilesError::of(e, &asked.shown))?;
        for entry in entries {
            let Ok(entry) = entry else {
                truncated = true;
                break;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            names += 1;
            if names > MOST_NAMES {
                truncated = true;
                break;
            }
            let mut path = at.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            if kept.len() >= limit {
                truncated = true;
                if kept.last_key_value().is_none_or(|(last, _)| *last < path) {
                    continue;
                }
            }
            let Ok(stat) = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let target = match kind(&stat) {
                FileType::Symlink => readlinkat(&folder, name, Vec::new()).ok().map(|t| t.into_bytes()),
                FileType::Directory if recursive => {
                    to_enter.insert(path.clone());
                    None
                }
                _ => None,
            };
            kept.insert(path, Found { stat, target });
            if kept.len() > limit {
                kept.pop_last();
            }
        }
    }
    let prefix: String = asked.parts.iter().flat_map(|part| [part, "/"]).collect();
    let entries = kept.into_iter().map(|(path, found)| found.entry(&prefix, &path)).collect();
    Ok(Listing { entries, truncated })
}

struct Found {
    stat: Stat,
    target: Option<Vec<u8>>,
}

impl Found {
    fn entry(self, prefix: &str, path: &[u8]) -> Entry {
        let (path, path_escaped) = text(&[prefix.as_bytes(), path].concat());
        let target = self.target.map(|t| text(&t));
        Entry {
            path,
            escaped: path_escaped || target.as_ref().is_some_and(|(_, escaped)| *escaped),
            kind: match kind(&self.stat) {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                _ => Kind::Other,
            },
            size: self.stat.st_size.cast_unsigned(),
            mode: self.stat.st_mode & 0o7777,
            modified: self.stat.st_mtime,
            target: target.map(|(target, _)| target),
        }
    }
}
