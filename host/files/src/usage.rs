//! How much room a work folder takes.

use std::collections::HashSet;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use crate::view::{Id, id, kind, step};

/// How many directories are held open on the way down. A box can nest them deeper than handles can be had; from further
/// down the way back is `..`, taken only when it leads to the directory that was come from.
const HELD: usize = 64;

struct Level {
    handle: Option<OwnedFd>,
    id: Id,
    to_enter: Vec<Vec<u8>>,
}

/// Bytes in `top` and below, or some number above `limit`.
pub(crate) fn usage(top: &OwnedFd, limit: u64) -> Result<u64, Errno> {
    let mut count = Count { bytes: 0, limit, several_names: HashSet::new() };
    let top = step(top, b".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    count.add(&fstat(&top)?);
    let mut levels = vec![count.level(top)?];
    while count.bytes <= limit {
        let held = levels.len() <= HELD;
        let Some(level) = levels.last_mut() else { break };
        let Some(handle) = &level.handle else {
            // The way back was lost, so what is left here cannot be reached by it.
            levels.pop();
            continue;
        };
        if let Some(name) = level.to_enter.pop() {
            match step(handle, &name, OFlags::RDONLY | OFlags::DIRECTORY) {
                Ok(child) => {
                    if !held {
                        level.handle = None;
                    }
                    levels.push(count.level(child)?);
                }
                // Something else by now, or another file system, which takes no room of this one.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {}
                Err(e) => return Err(e),
            }
            continue;
        }
        let done = levels.pop().and_then(|level| level.handle);
        if let (Some(done), Some(parent)) = (done, levels.last_mut())
            && parent.handle.is_none()
        {
            let back = openat(&done, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            parent.handle = back.ok().filter(|back| fstat(back).is_ok_and(|stat| id(&stat) == parent.id));
        }
    }
    Ok(count.bytes)
}

struct Count {
    bytes: u64,
    limit: u64,
    several_names: HashSet<Id>,
}

impl Count {
    fn add(&mut self, stat: &Stat) {
        let several = stat.st_nlink > 1 && kind(stat) != FileType::Directory;
        if several && !self.several_names.insert(id(stat)) {
            return;
        }
        // Something empty takes room as well: an inode. This also bounds what this count has to remember.
        let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512).max(512);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Counts what is in a directory and remembers the directories in it.
    fn level(&mut self, handle: OwnedFd) -> Result<Level, Errno> {
        let mut to_enter = Vec::new();
        for entry in Dir::read_from(&handle)? {
            let entry = match entry {
                Ok(entry) => entry,
                // Deleted while it was read.
                Err(Errno::NOENT) => break,
                Err(e) => return Err(e),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(&handle, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.add(&stat);
            if kind(&stat) == FileType::Directory {
                to_enter.push(name.to_bytes().to_vec());
            }
            if self.bytes > self.limit {
                break;
            }
        }
        Ok(Level { id: id(&fstat(&handle)?), handle: Some(handle), to_enter })
    }
}
