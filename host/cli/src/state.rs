//! The state directory: opened once, held by one process, readable by nobody else.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use sandbar_core::name::Installation;
use sandbar_core::secret::random_hex;
use sandbar_core::store::Store;

/// A state directory that this process holds until it ends.
pub(crate) struct StateDir {
    path: PathBuf,
    dir: Dir,
    // Held, not read: the lock ends with it.
    _lock: File,
}

impl StateDir {
    /// Opens the directory, making it if it is absent, and takes its lock.
    ///
    /// # Errors
    /// When another process holds it (its id is in the message), or it cannot be used.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path).with_context(|| format!("making the state directory {}", path.display()))?;
        let dir = Dir::open_ambient_dir(path, ambient_authority())
            .with_context(|| format!("opening the state directory {}", path.display()))?;
        // Through the handle, so that it is this directory whatever the path means by now.
        dir.set_permissions(".", cap_std::fs::Permissions::from_std(std::fs::Permissions::from_mode(0o700)))
            .with_context(|| format!("making {} private", path.display()))?;
        let mut options = OpenOptions::new();
        let mut lock = dir.open_with("lock", options.read(true).write(true).create(true))?.into_std();
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                let mut holder = String::new();
                lock.read_to_string(&mut holder)?;
                bail!("the state directory {} is held by another host: {}", path.display(), holder.trim());
            }
            Err(std::fs::TryLockError::Error(e)) => {
                return Err(e).with_context(|| format!("locking the state directory {}", path.display()));
            }
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "process {}", std::process::id())?;
        Ok(Self { path: path.to_owned(), dir, _lock: lock })
    }

    /// Whether a state directory that somebody else holds is this installation's.
    pub(crate) fn belongs_to(path: &Path, configured: Option<&Installation>, installation: &Installation) -> bool {
        let found = || Installation::new(std::fs::read_to_string(path.join("installation")).ok()?.trim()).ok();
        configured.cloned().or_else(found).as_ref() == Some(installation)
    }

    /// The installation's id: the operator's, or the one of this directory, made the first time.
    ///
    /// # Errors
    /// When its file cannot be used.
    pub(crate) fn installation(&self, configured: Option<&Installation>) -> Result<Installation> {
        if let Some(configured) = configured {
            return Ok(configured.clone());
        }
        const FILE: &str = "installation";
        match self.dir.read_to_string(FILE) {
            Ok(text) => Installation::new(text.trim()).with_context(|| {
                format!(
                    "{} holds no installation id; restore it, or set `[host] installation`",
                    self.path.join(FILE).display()
                )
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let id = random_hex(8);
                // In one step: half an id would be another installation's.
                self.dir.write("installation.new", format!("{id}\n"))?;
                self.dir.rename("installation.new", &self.dir, FILE)?;
                Ok(Installation::new(id)?)
            }
            Err(e) => Err(e).with_context(|| format!("reading {}", self.path.join(FILE).display())),
        }
    }

    /// The state file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(crate) fn store(&self) -> Result<Arc<Store>> {
        // SQLite opens files by path only; this path goes through the handle.
        let path = self.through_handle("state.sqlite");
        Ok(Arc::new(
            Store::open(&path).with_context(|| format!("opening {}", self.path.join("state.sqlite").display()))?,
        ))
    }

    /// Where compiled engines are kept.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn compile_cache(&self) -> Result<PathBuf> {
        // Code is run from there, so it must be ours alone whatever the umask says.
        let mut builder = cap_std::fs::DirBuilder::new();
        cap_std::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
        self.dir.create_dir_with("compiled", &builder)?;
        Ok(self.path.join("compiled"))
    }

    fn through_handle(&self, name: &str) -> PathBuf {
        use std::os::fd::AsRawFd;
        let through = PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()));
        if through.exists() { through.join(name) } else { self.path.join(name) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_it_and_the_id_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("state");
        let first = StateDir::open(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let error = StateDir::open(&path).err().unwrap().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let id = first.installation(None).unwrap();
        drop(first.store().unwrap());
        drop(first);
        assert!(path.join("state.sqlite").exists());
        assert_eq!(StateDir::open(&path).unwrap().installation(None).unwrap(), id);
    }

    #[test]
    fn a_spoilt_id_is_not_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let state = StateDir::open(parent.path()).unwrap();
        std::fs::write(parent.path().join("installation"), "NOT AN ID").unwrap();
        assert!(state.installation(None).is_err());
        assert!(state.installation(Some(&Installation::new("mine").unwrap())).is_ok());
    }
}
