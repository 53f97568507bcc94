//! From a path to a handle: the one place where a path that a box can change is followed.
//!
//! Links must keep working as they do in the box, absolute ones too, and nothing outside may be reached, whatever is
//! swapped meanwhile. One call does both: `openat2` with `RESOLVE_IN_ROOT`, from the shadow root above the work folder.
//! There `/home/node/x` is what it is in the box, `/etc/passwd` is nothing, and the kernel itself sees to it that no
//! `..` climbs higher, or says `EAGAIN` when something was renamed just then. (cap-std is what holds the directories
//! that only the host writes, in `folders.rs`. It refuses every absolute link, so it would need this beside it, and two
//! ways to open one path are twice as much to trust.)
//!
//! That leaves what is in the shadow root and not in the work folder: the directories on the way down to it, `root` and
//! `root/home`. They are known, no box can change them, and the host never makes anything in them; so a directory below
//! `root` that is none of them is in the work folder. This is asked of the handle, and everything else is done with a
//! single name in a directory that passed.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat};
use rustix::io::Errno;

use crate::FilesError;
use crate::path::Asked;

/// As in the kernel.
const MOST_LINKS: usize = 40;
/// How often a walk is begun anew because something was renamed meanwhile. Anything that is renamed anywhere on the
/// machine disturbs a walk with `..` in it, for some microseconds; that hundreds in a row are is no accident.
const MOST_TRIES: u32 = 400;

/// The box's own view of its files, and which part of it is the work folder.
#[derive(Debug)]
pub(crate) struct View {
    root: OwnedFd,
    /// Where the work folder is below `root`, such as `home/node`.
    inside: String,
    /// `root` and what is between it and the work folder.
    above: Vec<Id>,
}

/// Tells a file from every other.
pub(crate) type Id = (u64, u64);

pub(crate) fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

/// A name in a directory of the work folder.
#[derive(Debug)]
pub(crate) struct Place {
    /// A directory that is inside; for names in it, not for reading.
    pub(crate) folder: OwnedFd,
    /// The name, which has no slash in it and is not `..`.
    pub(crate) name: Vec<u8>,
    /// What has this name, unless nothing has. The handle is no more than a name for it: nothing was opened.
    pub(crate) found: Option<(OwnedFd, Stat)>,
    /// Whether it was reached through a link as the last part of the path.
    pub(crate) linked: bool,
}

impl View {
    pub(crate) fn new(root: OwnedFd, inside: &str) -> Result<Self, Errno> {
        let mut above = vec![id(&fstat(&root)?)];
        let mut at = String::new();
        for part in inside.split('/') {
            if !at.is_empty() {
                above.push(id(&fstat(step(&root, at.as_bytes(), OFlags::PATH | OFlags::DIRECTORY)?)?));
                at.push('/');
            }
            at.push_str(part);
        }
        Ok(Self { root, inside: inside.to_owned(), above })
    }

    pub(crate) fn inside(&self) -> &str {
        &self.inside
    }

    /// Opens a directory that a caller named, to be read. Links are followed.
    pub(crate) fn directory(&self, asked: &Asked<'_>) -> Result<OwnedFd, FilesError> {
        self.enter(self.at(&asked.parts).as_bytes(), OFlags::RDONLY, &asked.shown)
    }

    /// Opens as much of the way to `parts` as there is, and says how much that was.
    pub(crate) fn deepest(&self, parts: &[&str], shown: &str) -> Result<(OwnedFd, usize), FilesError> {
        let mut deepest = self.enter(self.at(&[]).as_bytes(), OFlags::RDONLY, shown)?;
        for there in 1..=parts.len() {
            match self.try_enter(self.at(&parts[..there]).as_bytes(), OFlags::RDONLY) {
                Ok(folder) => deepest = folder.ok_or_else(|| FilesError::Outside(shown.to_owned()))?,
                Err(Errno::NOENT) => return Ok((deepest, there - 1)),
                Err(e) => return Err(FilesError::of(e, shown)),
            }
        }
        Ok((deepest, parts.len()))
    }

    /// Finds what a caller named without opening it. The last part is followed here and not by the kernel, so that its
    /// directory can be judged and a file can be put in its place.
    pub(crate) fn place(&self, asked: &Asked<'_>) -> Result<Place, FilesError> {
        let shown = &asked.shown;
        let Some((name, parts)) = asked.parts.split_last().filter(|_| !asked.directory) else {
            return Err(FilesError::NotAFile(shown.clone()));
        };
        let (mut at, mut name) = (self.at(parts).into_bytes(), name.as_bytes().to_vec());
        for links in 0..=MOST_LINKS {
            let folder = self.enter(&at, OFlags::PATH, shown).map_err(|e| match e {
                FilesError::NotFound(path) if links > 0 => FilesError::Outside(path),
                other => other,
            })?;
            let found = match step(&folder, &name, OFlags::PATH) {
                Ok(handle) => {
                    let stat = fstat(&handle).map_err(|e| FilesError::of(e, shown))?;
                    Some((handle, stat))
                }
                Err(Errno::NOENT) => None,
                Err(e) => return Err(FilesError::of(e, shown)),
            };
            match found {
                Some((link, stat)) if kind(&stat).is_symlink() => {
                    let target = readlinkat(&link, "", Vec::new()).map_err(|e| FilesError::of(e, shown))?;
                    (at, name) = onward(at, target.as_bytes()).ok_or_else(|| FilesError::NotAFile(shown.clone()))?;
                }
                found => return Ok(Place { folder, name, found, linked: links > 0 }),
            }
        }
        Err(FilesError::Outside(shown.clone()))
    }

    /// A path from the shadow root.
    fn at(&self, parts: &[&str]) -> String {
        let mut at = self.inside.clone();
        for part in parts {
            at.push('/');
            at.push_str(part);
        }
        at
    }

    /// Opens a directory, and answers with it only if it is inside.
    fn enter(&self, at: &[u8], flags: OFlags, shown: &str) -> Result<OwnedFd, FilesError> {
        match self.try_enter(at, flags) {
            Ok(Some(folder)) => Ok(folder),
            Ok(None) => Err(FilesError::Outside(shown.to_owned())),
            // In the shadow root what is outside is not there. Only the words depend on which it was.
            Err(Errno::NOENT) if self.ends_at_link(at) => Err(FilesError::Outside(shown.to_owned())),
            Err(e) => Err(FilesError::of(e, shown)),
        }
    }

    fn try_enter(&self, at: &[u8], flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
        // Without NO_XDEV a file system that is mounted here on the host would be inside; the box does not see it.
        let scope = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let opened = insist(&self.root, at, flags | OFlags::DIRECTORY, scope)?;
        let inside = !self.above.contains(&id(&fstat(&opened)?));
        Ok(inside.then_some(opened))
    }

    /// Whether what is missing on a way is where a link leads.
    fn ends_at_link(&self, mut at: &[u8]) -> bool {
        while let Some(slash) = at.iter().rposition(|b| *b == b'/') {
            let name = &at[slash + 1..];
            at = &at[..slash];
            match self.try_enter(at, OFlags::PATH) {
                Ok(Some(folder)) => {
                    let found = step(&folder, name, OFlags::PATH).and_then(|found| fstat(&found));
                    return found.is_ok_and(|stat| kind(&stat).is_symlink());
                }
                Err(Errno::NOENT) => {}
                _ => return false,
            }
        }
        false
    }
}

/// Where a link in the directory `at` leads: a directory and a name in it. None where that is a directory for certain.
fn onward(mut at: Vec<u8>, target: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (folder, name) = match target.iter().rposition(|b| *b == b'/') {
        Some(slash) => (&target[..=slash], &target[slash + 1..]),
        None => (&b"."[..], target),
    };
    if name.is_empty() || name == b"." || name == b".." {
        return None;
    }
    if folder.starts_with(b"/") {
        at.clear();
    } else {
        at.push(b'/');
    }
    at.extend_from_slice(folder);
    Some((at, name.to_vec()))
}

/// Opens one name, or a path without links, below a directory. A link as its last part is an error, except that `PATH`
/// without `DIRECTORY` gives a handle of the link itself.
pub(crate) fn step(folder: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let scope = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    if flags.contains(OFlags::DIRECTORY) {
        insist(folder, name, flags, scope | ResolveFlags::NO_SYMLINKS)
    } else {
        insist(folder, name, flags | OFlags::NOFOLLOW, scope)
    }
}

/// `openat2`, again while the kernel says that something was renamed under it.
fn insist(from: impl AsFd, path: &[u8], flags: OFlags, scope: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
    // With PATH the kernel takes no flags but these.
    let flags = if flags.contains(OFlags::PATH) {
        flags & (OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY | OFlags::NOFOLLOW)
    } else {
        flags
    };
    for tried in 0..MOST_TRIES {
        match openat2(&from, path, flags, Mode::empty(), scope) {
            Err(Errno::AGAIN | Errno::INTR) if tried < 16 => std::thread::yield_now(),
            Err(Errno::AGAIN | Errno::INTR) => std::thread::sleep(Duration::from_micros(50)),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a regular file of which there is a handle, to be read. Only through `/proc` is it certain to be the file that
/// was judged; opening the name again could open a device, and for some devices that alone has consequences.
pub(crate) fn reopen(handle: &OwnedFd) -> Result<std::fs::File, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::open(through(handle), flags, Mode::empty()).map(Into::into)
}

/// A path that means this handle, whatever happens to names.
pub(crate) fn through(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

/// Fails where the machine lacks what this file is built on.
pub(crate) fn probe(dir: impl AsFd) -> Result<(), FilesError> {
    let Ok(handle) = openat2(&dir, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT) else {
        return Err(FilesError::Unsupported(
            "it has no `openat2`; Linux has it since 5.6, and a system call filter may forbid it",
        ));
    };
    reopen(&handle).map(drop).map_err(|_| FilesError::Unsupported("`/proc` is not mounted"))
}

pub(crate) fn kind(stat: &Stat) -> rustix::fs::FileType {
    rustix::fs::FileType::from_raw_mode(stat.st_mode)
}
