//! The directory of all work folders. What is here is written by the host alone, so cap-std does it: a handle on the
//! directory, and names below it that can lead nowhere else.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, DirBuilder};
use rustix::fs::{Mode, OFlags, fchmod};

use crate::path::{check_inside, check_key};
use crate::view::{View, probe, step};
use crate::{FilesError, WorkFolder, remove, usage};

/// A name that no key can have.
const TRASH: &str = ".trash";
/// The link that says where in the box a work folder is.
const INSIDE: &str = "inside";
/// The directory that is the box's `/`, as far as the host can see it.
const ROOT: &str = "root";

/// The work folders of all boxes.
#[derive(Debug)]
pub struct WorkFolders {
    dir: Dir,
    /// For mounting only.
    path: PathBuf,
}

impl WorkFolders {
    /// Opens the directory, making it private (0700) where it is absent.
    ///
    /// # Errors
    /// When it cannot be used, or the machine lacks what containment needs.
    pub fn open(dir: &Path) -> Result<Self, FilesError> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(FilesError::Io)?;
        let path = dir.canonicalize().map_err(FilesError::Io)?;
        let dir = Dir::open_ambient_dir(&path, ambient_authority()).map_err(FilesError::Io)?;
        probe(&dir)?;
        make(&dir, TRASH)?;
        Ok(Self { dir, path })
    }

    /// The work folder of a box, made where it is absent. `inside` is where it is in the box: absolute, without `.`
    /// and `..`.
    ///
    /// # Errors
    /// For a key or a path that cannot be one, when this key's folder was made to be elsewhere, or when it cannot be made.
    pub fn folder(&self, key: &str, inside: &str) -> Result<WorkFolder, FilesError> {
        check_key(key)?;
        let below = check_inside(inside)?;
        self.prepare(key, inside, below).map_err(FilesError::Io)?;
        let place = self.dir.open_dir(key).map_err(FilesError::Io)?;
        // Before anything below `root` is believed to be the host's: what is on the way to one work folder may be in
        // another one, and then it is the box's.
        let recorded = place.read_link_contents(INSIDE).map_err(FilesError::Io)?;
        if recorded != Path::new(inside) {
            return Err(FilesError::Elsewhere(recorded.display().to_string().escape_debug().to_string()));
        }
        make(&place, ROOT)?;
        let root = place.open_dir(ROOT).map_err(FilesError::Io)?;
        let mut at = PathBuf::new();
        let mut made = false;
        for part in below.split('/') {
            at.push(part);
            made = make(&root, &at)?;
        }
        let own = step(&root, below.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(broken)?;
        if made {
            // As home directories are; the directory above keeps others out.
            fchmod(&own, Mode::from_raw_mode(0o755)).map_err(broken)?;
        }
        let view = View::new(root.into_std_file().into(), below).map_err(broken)?;
        Ok(WorkFolder::new(view, own, self.path.join(key).join(ROOT).join(below)))
    }

    /// Makes the key's directory and records where the folder is, in that order and each in one step, so that a crash
    /// leaves nothing that the next call does not finish.
    fn prepare(&self, key: &str, inside: &str, below: &str) -> std::io::Result<()> {
        debug_assert!(inside.ends_with(below));
        let mut builder = DirBuilder::new();
        cap_std::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let there = |e: std::io::Error| if e.kind() == std::io::ErrorKind::AlreadyExists { Ok(()) } else { Err(e) };
        self.dir.create_dir_with(key, &builder).or_else(there)?;
        // A link is the smallest file that is whole from the moment it exists.
        self.dir.symlink_contents(inside, Path::new(key).join(INSIDE)).or_else(there)
    }

    /// Whether there is a folder of this key.
    ///
    /// # Errors
    /// For what cannot be a key, or when the directory cannot be read.
    pub fn exists(&self, key: &str) -> Result<bool, FilesError> {
        check_key(key)?;
        match self.dir.symlink_metadata(key) {
            Ok(found) => Ok(found.is_dir()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(FilesError::Io(e)),
        }
    }

    /// The keys of all folders, sorted.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn keys(&self) -> Result<Vec<String>, FilesError> {
        let mut keys = Vec::new();
        for entry in self.dir.entries().map_err(FilesError::Io)? {
            let entry = entry.map_err(FilesError::Io)?;
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            keys.extend(entry.file_name().into_string().ok().filter(|name| is_dir && check_key(name).is_ok()));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// How many bytes are kept under a key, or some number above `limit`; none where there is nothing.
    ///
    /// # Errors
    /// For what cannot be a key, or when the directory cannot be read.
    pub fn usage(&self, key: &str, limit: u64) -> Result<u64, FilesError> {
        check_key(key)?;
        match self.dir.open_dir(key) {
            Ok(kept) => usage::usage(&kept.into_std_file().into(), limit).map_err(|e| FilesError::of(e, key)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(e) => Err(FilesError::Io(e)),
        }
    }

    /// Removes everything that is kept under a key; that there is nothing is fine. The key is free at once, and what it
    /// had is deleted before this answers. The box should be gone: one that goes on writing can make this fail.
    ///
    /// # Errors
    /// For what cannot be a key, or when something could not be deleted. That stays out of sight, and
    /// [`sweep`](Self::sweep) tries again.
    pub fn remove(&self, key: &str) -> Result<(), FilesError> {
        check_key(key)?;
        if !self.exists(key)? {
            return Ok(());
        }
        let trash = self.dir.open_dir(TRASH).map_err(FilesError::Io)?;
        let bin = remove::unique();
        make(&trash, &bin)?;
        match self.dir.rename(key, &trash, Path::new(&bin).join("0")) {
            // Another call took it.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(FilesError::Io)?,
        }
        remove::bin(&trash, &bin)
    }

    /// Deletes what earlier removals left, because they failed or the host ended. Meant for the start of a host, beside
    /// whatever else it does: it may take a while.
    ///
    /// # Errors
    /// When something could not be deleted; the rest is.
    pub fn sweep(&self) -> Result<(), FilesError> {
        let trash = self.dir.open_dir(TRASH).map_err(FilesError::Io)?;
        let mut outcome = Ok(());
        for entry in trash.entries().map_err(FilesError::Io)? {
            let name = entry.map_err(FilesError::Io)?.file_name();
            outcome = outcome.and(remove::bin(&trash, &name.to_string_lossy()));
        }
        outcome
    }
}

/// Makes a private directory, and says whether it was absent.
fn make(dir: &Dir, name: impl AsRef<Path>) -> Result<bool, FilesError> {
    let mut builder = DirBuilder::new();
    cap_std::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match dir.create_dir_with(name, &builder) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(FilesError::Io(e)),
    }
}

/// An error with a directory that only the host writes.
fn broken(errno: rustix::io::Errno) -> FilesError {
    FilesError::of(errno, ".")
}
