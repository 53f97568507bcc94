//! Deleting trees that somebody else made.
//!
//! A tree may be nested deeper than a path can say or handles can be had, have millions of entries, and change while it
//! is deleted. So nothing walks it: it lies in a directory of the host's own, a bin, and every directory that is found
//! in a directory of the bin is moved up, beside it. However deep a tree was, everything is then done one level below
//! the bin, with one name in one directory at a time, and a host that is killed in the middle goes on where it was.

use std::os::fd::{AsFd, OwnedFd};

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, Mode, OFlags, chmod, fchmod, fstat, renameat, unlinkat};
use rustix::io::Errno;

use crate::FilesError;
use crate::view::{step, through};

/// How many names of a directory are taken before any of them is removed. Somebody who goes on making things there could
/// otherwise keep one reading of it from ever ending.
const BATCH: usize = 100_000;
/// When a directory, with those it was in, is given up: after so many batches, or a tenth of that when it had less than
/// a batch each time and still did not become empty.
const MOST_PASSES: u32 = 1000;

/// A name that nothing has.
pub(crate) fn unique() -> String {
    let mut bytes = [0; 8];
    #[expect(clippy::expect_used, reason = "a system that gives no random bytes cannot run anything")]
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

/// Deletes a bin and everything in it.
pub(crate) fn bin(trash: &Dir, name: &str) -> Result<(), FilesError> {
    let emptied = match open(trash, name.as_bytes()) {
        Ok(bin) => empty(&bin),
        Err(Errno::NOTDIR | Errno::LOOP) => unlinkat(trash, name, AtFlags::empty()),
        Err(e) => Err(e),
    };
    match emptied.and_then(|()| unlinkat(trash, name, AtFlags::REMOVEDIR)) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(FilesError::Busy("what is being removed".to_owned())),
        Err(e) => Err(FilesError::of(e, "what is being removed")),
    }
}

/// Deletes what is in a bin.
fn empty(bin: &OwnedFd) -> Result<(), Errno> {
    let mut left: Vec<(Vec<u8>, u32)> = names(bin, usize::MAX)?.into_iter().map(|name| (name, 0)).collect();
    let mut outcome = Ok(());
    let mut next = 0_u64;
    while let Some((name, passes)) = left.pop() {
        let folder = match open(bin, &name) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => continue,
            // Most likely a file that was swapped in for a directory before that was moved here.
            Err(_) => {
                outcome = outcome.and(unlink(bin, &name, AtFlags::empty()));
                continue;
            }
        };
        let mut moved = Vec::new();
        let pass = clear(&folder, bin, &mut next, &mut moved);
        drop(folder);
        match unlink(bin, &name, AtFlags::REMOVEDIR) {
            Ok(()) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if passes < MOST_PASSES => {
                // It is tried after what was in it, for there may have been too many to move at once.
                let more = match pass {
                    Ok(Pass { full: true, removed: true }) => 1,
                    Ok(Pass { removed: true, .. }) => 10,
                    _ => 100,
                };
                left.push((name, passes + more));
            }
            Err(e) => outcome = outcome.and(pass.map(drop)).and(Err(e)),
        }
        left.extend(moved.into_iter().map(|name| (name, passes)));
    }
    outcome
}

/// What became of one batch of a directory.
#[derive(Clone, Copy)]
struct Pass {
    /// Whether there may be more than was taken.
    full: bool,
    /// Whether anything could be removed.
    removed: bool,
}

/// Removes what is in a directory, a batch at most, moving directories that are not empty to the bin. An error only if
/// there was something and all of it failed.
fn clear(folder: &OwnedFd, bin: &OwnedFd, next: &mut u64, moved: &mut Vec<Vec<u8>>) -> Result<Pass, Errno> {
    let names = names(folder, BATCH)?;
    let (full, mut removed, mut failed) = (names.len() == BATCH, false, Ok(()));
    for name in names {
        match discard(folder, &name, bin, next) {
            Ok(directory) => {
                removed = true;
                moved.extend(directory);
            }
            Err(e) => failed = failed.and(Err(e)),
        }
    }
    if removed { Ok(Pass { full, removed }) } else { failed.map(|()| Pass { full, removed }) }
}

/// Removes one entry, or answers what it is called in the bin.
fn discard(folder: &OwnedFd, name: &[u8], bin: &OwnedFd, next: &mut u64) -> Result<Option<Vec<u8>>, Errno> {
    let refused = match unlink(folder, name, AtFlags::empty()) {
        // What POSIX says of directories, beside what Linux says.
        Err(e @ (Errno::ISDIR | Errno::PERM)) => e,
        other => return other.map(|()| None),
    };
    match unlink(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        Err(Errno::NOTDIR) => return Err(refused),
        other => return other.map(|()| None),
    }
    let mut opened_up = false;
    loop {
        *next += 1;
        let new = next.to_string();
        match renameat(folder, name, bin, &new) {
            Ok(()) => return Ok(Some(new.into_bytes())),
            Err(Errno::NOENT) => return Ok(None),
            // A name that an interrupted removal used.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            // A directory that moves is written to as well: its `..` changes.
            Err(Errno::ACCESS) if !opened_up => {
                opened_up = true;
                open_up(folder, name)?;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Removes a name. That it is gone already is fine.
fn unlink(folder: &OwnedFd, name: &[u8], flags: AtFlags) -> Result<(), Errno> {
    match unlinkat(folder, name, flags) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Opens a directory to empty it, also one that its owner may not read, search or write.
fn open(folder: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let folder = folder.as_fd();
    let opened = step(folder, name, OFlags::RDONLY | OFlags::DIRECTORY).or_else(|e| match e {
        Errno::ACCESS => {
            open_up(folder, name)?;
            step(folder, name, OFlags::RDONLY | OFlags::DIRECTORY)
        }
        other => Err(other),
    })?;
    if fstat(&opened)?.st_mode & 0o700 != 0o700 {
        // Whoever may not do this may not need to: root.
        let _ = fchmod(&opened, Mode::RWXU);
    }
    Ok(opened)
}

/// Gives the owner of a directory all permissions on it.
fn open_up(folder: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    let handle = step(folder, name, OFlags::PATH | OFlags::DIRECTORY)?;
    chmod(through(&handle), Mode::RWXU)
}

/// At most so many names of what is in a directory.
fn names(folder: &OwnedFd, most: usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = match entry {
            Ok(entry) => entry,
            // Deleted while it was read.
            Err(Errno::NOENT) => break,
            Err(e) => return Err(e),
        };
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_bytes().to_vec());
        }
        if names.len() == most {
            break;
        }
    }
    Ok(names)
}
