//! One work folder: what is read from it and written to it.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fstat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

use crate::path::Asked;
use crate::view::{Place, View, kind, reopen, step};
use crate::{FilesError, Listing, list, remove, usage};

/// How often a write begins anew because what it stood on was moved away.
const MOST_ROUNDS: u32 = 64;

/// What the names of files begin with that do not have their path yet.
const STAGED: &str = ".sandbar-staged-";

/// Whose a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user's number, as the host sees it.
    pub uid: u32,
    /// The group's number, as the host sees it.
    pub gid: u32,
}

impl Owner {
    fn take(self, handle: impl AsFd) -> Result<(), Errno> {
        // To the kernel these mean "leave it as it is", which would be root.
        if self.uid == u32::MAX || self.gid == u32::MAX {
            return Err(Errno::INVAL);
        }
        fchown(handle, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes from where reading began.
    pub bytes: Vec<u8>,
    /// How large the whole file was.
    pub size: u64,
    /// When it was last changed, in seconds since 1970; whatever the box says, so it may be any number.
    pub modified: i64,
}

/// The work folder of one box. See the [crate] for what holds while the box runs.
#[derive(Debug)]
pub struct WorkFolder {
    view: View,
    own: OwnedFd,
    path: PathBuf,
}

impl WorkFolder {
    pub(crate) fn new(view: View, own: OwnedFd, path: PathBuf) -> Self {
        Self { view, own, path }
    }

    /// Where it is on this machine: what is mounted into the box. Not for opening.
    pub fn host_path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder itself to the box's user, who can use it then, whatever was done to its permissions.
    ///
    /// # Errors
    /// When the host may not.
    pub fn chown_root(&self, owner: Owner) -> Result<(), FilesError> {
        let of = |e| FilesError::of(e, ".");
        owner.take(&self.own).map_err(of)?;
        let mode = fstat(&self.own).map_err(of)?.st_mode & 0o777;
        fchmod(&self.own, Mode::from_raw_mode(mode | 0o700)).map_err(of)
    }

    /// Removes what a host that was killed had staged. Nothing may be staged now.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn remove_staged(&self) -> Result<(), FilesError> {
        let entries = rustix::fs::Dir::read_from(&self.own).map_err(|e| FilesError::of(e, "."))?;
        for entry in entries.flatten() {
            if entry.file_name().to_bytes().starts_with(STAGED.as_bytes()) {
                // A directory of that name is the box's.
                let _ = unlinkat(&self.own, entry.file_name(), AtFlags::empty());
            }
        }
        Ok(())
    }

    /// Whose the folder itself is.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn owner(&self) -> Result<Owner, FilesError> {
        let stat = fstat(&self.own).map_err(|e| FilesError::of(e, "."))?;
        Ok(Owner { uid: stat.st_uid, gid: stat.st_gid })
    }

    /// Reads at most `limit` bytes of a regular file. Beyond its end there are none.
    ///
    /// # Errors
    /// When it is no regular file inside, or cannot be read.
    pub fn read(&self, path: &str, offset: u64, limit: usize) -> Result<Content, FilesError> {
        let asked = self.asked(path)?;
        let (file, stat) = self.regular(&asked)?;
        let size = stat.st_size.cast_unsigned();
        let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(limit);
        let mut bytes = Vec::new();
        // In pieces: a file may say that it is larger than the memory.
        let mut piece = vec![0; most.min(256 * 1024)];
        while bytes.len() < most {
            let wanted = piece.len().min(most - bytes.len());
            match file.read_at(&mut piece[..wanted], offset + bytes.len() as u64) {
                Ok(0) => break,
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(FilesError::of_io(e, &asked.shown)),
            }
        }
        Ok(Content { bytes, size, modified: stat.st_mtime })
    }

    /// Opens a regular file of at most `most` bytes, and says how many it had. The box may go on writing to it, so
    /// whoever reads it takes that many and looks whether there were.
    ///
    /// # Errors
    /// When it is no regular file inside, is larger, or cannot be opened.
    pub fn open_read(&self, path: &str, most: u64) -> Result<(File, u64), FilesError> {
        let asked = self.asked(path)?;
        let (file, stat) = self.regular(&asked)?;
        let size = stat.st_size.cast_unsigned();
        if size > most { Err(FilesError::TooLarge { path: asked.shown, size, most }) } else { Ok((file, size)) }
    }

    /// Writes a file in one step: whoever opens the path has the old content or the new, whole. A file that is there is
    /// replaced and keeps its permissions unless `mode` is given; a new one has 0644. A link is followed and its target
    /// written. With `parents` the directories on the way are made too and belong to `owner`.
    ///
    /// Set-uid, set-gid and sticky bits in `mode` are dropped.
    ///
    /// # Errors
    /// When the path is not inside, is something else than a regular file, or cannot be written.
    pub fn write(
        &self,
        path: &str,
        bytes: &[u8],
        mode: Option<u32>,
        owner: Owner,
        parents: bool,
    ) -> Result<(), FilesError> {
        let mut staged = self.stage(path, owner, parents)?;
        staged.append(bytes)?;
        self.settle(staged, mode)
    }

    /// Begins what [`WorkFolder::write`] does, for content that comes in pieces: [`Staged::append`] takes them, and
    /// [`WorkFolder::settle`] puts the file under its path. What can be told of the path is told here.
    ///
    /// # Errors
    /// As [`WorkFolder::write`].
    pub fn stage(&self, path: &str, owner: Owner, parents: bool) -> Result<Staged, FilesError> {
        let asked = self.asked(path)?;
        again(&asked.shown, || self.place(&asked, owner, parents))?;
        let shown = asked.shown;
        let of = |e| FilesError::of(e, &shown);
        let own = self.own.try_clone().map_err(|e| FilesError::of_io(e, &shown))?;
        let name = format!("{STAGED}{}", remove::unique());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(&own, &name, flags, Mode::from_raw_mode(0o600)).map_err(of)?);
        Ok(Staged { own, name, file, path: path.to_owned(), owner, parents, settled: false })
    }

    /// Puts a staged file under its path.
    ///
    /// # Errors
    /// As [`WorkFolder::write`], and [`FilesError::Busy`] where the box took it away.
    pub fn settle(&self, mut staged: Staged, mode: Option<u32>) -> Result<(), FilesError> {
        let path = staged.path.clone();
        let asked = self.asked(&path)?;
        let shown = &asked.shown;
        staged.owner.take(&staged.file).map_err(|e| FilesError::of(e, shown))?;
        again(shown, || {
            let (place, kept) = self.place(&asked, staged.owner, staged.parents)?;
            let mode = Mode::from_raw_mode(mode.unwrap_or(kept) & 0o777);
            // After the owner: a change of owner takes bits away.
            fchmod(&staged.file, mode).map_err(|e| FilesError::of(e, shown))?;
            renameat(&staged.own, &staged.name, &place.folder, place.name.as_slice()).map_err(|e| match e {
                // The directory was deleted, or the box took the new file away before it had its name.
                Errno::NOENT => Failed::Moved(FilesError::Busy(shown.clone())),
                other => FilesError::of(other, shown).into(),
            })
        })?;
        staged.settled = true;
        Ok(())
    }

    /// Where a path leads, and the permissions of what is there.
    fn place(&self, asked: &Asked<'_>, owner: Owner, parents: bool) -> Result<(Place, u32), Failed> {
        let place = match self.view.place(asked) {
            Err(FilesError::NotFound(_)) if parents => {
                self.make_parents(asked, owner)?;
                self.view.place(asked).map_err(|e| match e {
                    FilesError::NotFound(path) => Failed::Moved(FilesError::Busy(path)),
                    other => Failed::Finally(other),
                })?
            }
            other => other?,
        };
        let kept = match &place.found {
            Some((_, stat)) if kind(stat) == FileType::RegularFile => stat.st_mode & 0o777,
            Some(_) => return Err(FilesError::NotAFile(asked.shown.clone()).into()),
            None => 0o644,
        };
        Ok((place, kept))
    }

    /// Makes the directories that a path needs.
    fn make_parents(&self, asked: &Asked<'_>, owner: Owner) -> Result<(), Failed> {
        let shown = &asked.shown;
        let parts = asked.parts.split_last().map_or(&[][..], |(_, parts)| parts);
        let (mut folder, there) = self.view.deepest(parts, shown)?;
        let missing = &parts[there..];
        if missing.contains(&"..") {
            // Of a directory that is not there, so nobody knows where that is.
            return Err(FilesError::NotFound(shown.clone()).into());
        }
        for part in missing {
            let made = match mkdirat(&folder, *part, Mode::from_raw_mode(0o700)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(Errno::NOENT) => return Err(Failed::Moved(FilesError::Busy(shown.clone()))),
                Err(e) => return Err(FilesError::of(e, shown).into()),
            };
            folder = step(&folder, part.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(|e| match e {
                Errno::NOENT => Failed::Moved(FilesError::Busy(shown.clone())),
                // A link to nothing is in the way, or came there just now.
                Errno::LOOP => Failed::Moved(FilesError::Outside(shown.clone())),
                other => FilesError::of(other, shown).into(),
            })?;
            if made {
                hand_over(&folder, owner).map_err(|e| FilesError::of(e, shown))?;
            }
        }
        Ok(())
    }

    /// Removes a regular file; of a link its target. Nothing being there is fine.
    ///
    /// # Errors
    /// When the path is not inside, is something else than a regular file, or cannot be removed.
    pub fn unlink(&self, path: &str) -> Result<(), FilesError> {
        let asked = self.asked(path)?;
        let place = match self.view.place(&asked) {
            Err(FilesError::NotFound(_)) => return Ok(()),
            place => place?,
        };
        match place.found {
            None => Ok(()),
            Some((_, stat)) if kind(&stat) == FileType::RegularFile => {
                match unlinkat(&place.folder, place.name.as_slice(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => Ok(()),
                    Err(e) => Err(FilesError::of(e, &asked.shown)),
                }
            }
            Some(_) => Err(FilesError::NotAFile(asked.shown)),
        }
    }

    /// What is in a directory, or below it with `recursive`: the first `limit` entries in the order of their paths.
    /// Links are told, not followed, except those on the way to `path`.
    ///
    /// # Errors
    /// When it is no directory inside, or cannot be read.
    pub fn list(&self, path: &str, recursive: bool, limit: usize) -> Result<Listing, FilesError> {
        let asked = self.asked(path)?;
        let top = self.view.directory(&asked)?;
        list::list(&top, &asked, recursive, limit)
    }

    /// How many bytes the folder takes, counting a file with several names once and what is empty as a sector. Stops
    /// as soon as it is more than `limit`; what is answered then is more than `limit` too.
    ///
    /// A box that moves things about while this counts can be counted wrong, and a file that is deleted but still open
    /// in the box is not seen. Where that matters a quota of the file system is needed.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn usage(&self, limit: u64) -> Result<u64, FilesError> {
        usage::usage(&self.own, limit).map_err(|e| FilesError::of(e, "."))
    }

    fn asked<'a>(&self, path: &'a str) -> Result<Asked<'a>, FilesError> {
        Asked::new(path, self.view.inside())
    }

    /// Opens a regular file. Anything else is left unopened.
    fn regular(&self, asked: &Asked<'_>) -> Result<(File, Stat), FilesError> {
        let shown = &asked.shown;
        let place = self.view.place(asked)?;
        let (handle, stat) = match place.found {
            Some((handle, stat)) if kind(&stat) == FileType::RegularFile => (handle, stat),
            Some(_) => return Err(FilesError::NotAFile(shown.clone())),
            None if place.linked => return Err(FilesError::Outside(shown.clone())),
            None => return Err(FilesError::NotFound(shown.clone())),
        };
        Ok((reopen(&handle).map_err(|e| FilesError::of(e, shown))?, stat))
    }
}

/// Why a write did not happen.
enum Failed {
    /// Something was moved meanwhile; the error if it happens every time.
    Moved(FilesError),
    Finally(FilesError),
}

impl From<FilesError> for Failed {
    fn from(e: FilesError) -> Self {
        Self::Finally(e)
    }
}

/// Does it, anew where what it stood on was moved away.
fn again<T>(shown: &str, mut done: impl FnMut() -> Result<T, Failed>) -> Result<T, FilesError> {
    let mut last = None;
    for _ in 0..MOST_ROUNDS {
        match done() {
            Ok(done) => return Ok(done),
            Err(Failed::Finally(e)) => return Err(e),
            Err(Failed::Moved(e)) => last = Some(e),
        }
        std::thread::yield_now();
    }
    Err(last.unwrap_or_else(|| FilesError::Busy(shown.to_owned())))
}

/// A file that has its content before it has its path; where it does not get there, nothing is left of it. Until then it has
/// a name of its own in the work folder, and everything is done through its handle: nothing that the box does to that name
/// can change whose file is given away.
#[derive(Debug)]
pub struct Staged {
    own: OwnedFd,
    name: String,
    file: File,
    path: String,
    owner: Owner,
    parents: bool,
    settled: bool,
}

impl Staged {
    /// Adds to it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FilesError> {
        self.file.write_all(bytes).map_err(|e| FilesError::of_io(e, &self.path))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.settled {
            // It may have become something else; then it stays, and is the box's.
            let _ = unlinkat(&self.own, &self.name, AtFlags::empty());
        }
    }
}

/// Gives a directory that was just made to the box's user. Between making and opening it the box may have put another
/// one in its place, and that one is left alone: it was not the host's to give.
fn hand_over(folder: &OwnedFd, owner: Owner) -> Result<(), Errno> {
    let stat = fstat(folder)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o777 == 0o700;
    let mut entries = rustix::fs::Dir::read_from(folder)?;
    let empty = entries.all(|e| e.is_ok_and(|e| matches!(e.file_name().to_bytes(), b"." | b"..")));
    if ours && empty {
        owner.take(folder)?;
        fchmod(folder, Mode::from_raw_mode(0o755))?;
    }
    Ok(())
}
