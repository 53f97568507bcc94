//! The state directory: opened once, held by one process, readable by nobody else.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt, OpenOptions};
use sandbar_core::error::shown;
use sandbar_core::name::Installation;
use sandbar_core::secret::random_hex;
use sandbar_core::store::Store;

/// The file that is locked.
const LOCK: &str = "lock";
/// The file that has the installation's id.
const ID_FILE: &str = "installation";
/// The file of [`Store`].
const STATE_FILE: &str = "state.sqlite";

/// A state directory that this process holds until it ends.
pub(crate) struct StateDir {
    path: PathBuf,
    dir: Dir,
    // Held, not read: the lock ends with it.
    _lock: File,
}

/// Whether a process holds the directory now.
pub(crate) fn is_held(path: &Path) -> bool {
    let lock = File::open(path.join(LOCK));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock)))
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
        check(&dir).map_err(|why| anyhow!("`[host] state_dir`: {} {why}", path.display()))?;
        // Through the handle, so that it is this directory whatever the path means by now.
        dir.set_permissions(".", cap_std::fs::Permissions::from_std(std::fs::Permissions::from_mode(0o700)))
            .with_context(|| format!("making {} private", path.display()))?;
        let mut options = OpenOptions::new();
        let lock = dir.open_with(LOCK, options.read(true).write(true).create(true));
        let mut lock = lock.with_context(|| format!("opening {}", path.join(LOCK).display()))?.into_std();
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
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "process {}", std::process::id()))
            .with_context(|| format!("writing {}", path.join(LOCK).display()))?;
        Ok(Self { path: path.to_owned(), dir, _lock: lock })
    }

    /// Whether a state directory that somebody else holds is this installation's.
    pub(crate) fn belongs_to(path: &Path, configured: Option<&Installation>, installation: &Installation) -> bool {
        let found = || Installation::new(std::fs::read_to_string(path.join(ID_FILE)).ok()?.trim()).ok();
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
        match self.dir.read_to_string(ID_FILE) {
            Ok(text) => Installation::new(text.trim()).with_context(|| {
                format!(
                    "{} holds no installation id; restore it, or set `[host] installation`",
                    self.path.join(ID_FILE).display()
                )
            }),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                if self.dir.exists(STATE_FILE) {
                    bail!(
                        "{} is missing, and the state beside it belongs to an installation: restore it, or set \
                         `[host] installation` (the label `<namespace>.installation` of its containers has the id)",
                        self.path.join(ID_FILE).display()
                    );
                }
                let id = random_hex(8);
                // In one step: half an id would be another installation's.
                let written = self.dir.write("installation.new", format!("{id}\n"));
                written
                    .and_then(|()| self.dir.rename("installation.new", &self.dir, ID_FILE))
                    .with_context(|| format!("writing {}", self.path.join(ID_FILE).display()))?;
                Ok(Installation::new(id)?)
            }
            Err(e) => Err(e).with_context(|| format!("reading {}", self.path.join(ID_FILE).display())),
        }
    }

    /// The state file.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(crate) fn store(&self) -> Result<Arc<Store>> {
        // SQLite opens files by path only; this path goes through the handle.
        let path = self.through_handle(STATE_FILE);
        Ok(Arc::new(Store::open(&path).with_context(|| self.path.join(STATE_FILE).display().to_string())?))
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

/// Whether a directory may become, or is, a state directory: it is made private, and what is in it is trusted.
fn check(dir: &Dir) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot be looked at: {e}");
    let (owner, me) = (dir.dir_metadata().map_err(failed)?.uid(), rustix::process::geteuid().as_raw());
    if owner != me {
        return Err(format!("belongs to the user {owner}, and this host runs as {me}"));
    }
    if [LOCK, ID_FILE, STATE_FILE].iter().any(|name| dir.exists(name)) {
        return Ok(());
    }
    for entry in dir.entries().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // The root of a file system of its own has this.
        if name != "lost+found" {
            return Err(format!(
                "is not empty and no state directory (it has `{}`): name one of its own, which is made when it is missing",
                shown(&name.to_string_lossy())
            ));
        }
    }
    Ok(())
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
    fn a_directory_of_somebody_else_is_left_as_it_is() {
        let parent = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        std::fs::set_permissions(parent.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(parent.path().join("letter.txt"), "").unwrap();
        let error = format!("{:#}", StateDir::open(parent.path()).err().unwrap());
        assert!(error.contains("`letter.txt`") && error.contains("[host] state_dir"), "{error}");
        assert_eq!(mode(parent.path()), 0o755);
        assert!(!parent.path().join("lock").exists());
        // What is one already may have more in it, and so may the root of a file system.
        std::fs::rename(parent.path().join("letter.txt"), parent.path().join("lost+found")).unwrap();
        drop(StateDir::open(parent.path()).unwrap());
        std::fs::write(parent.path().join("letter.txt"), "").unwrap();
        drop(StateDir::open(parent.path()).unwrap());
        assert_eq!(mode(parent.path()), 0o700);
        // Only root can give a directory away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(parent.path(), Some(12_345), None).unwrap();
            let error = format!("{:#}", StateDir::open(parent.path()).err().unwrap());
            assert!(error.contains("12345"), "{error}");
        }
    }

    #[test]
    fn an_id_that_was_lost_is_not_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let state = StateDir::open(parent.path()).unwrap();
        let id = state.installation(None).unwrap();
        drop(state.store().unwrap());
        std::fs::remove_file(parent.path().join("installation")).unwrap();
        let error = state.installation(None).unwrap_err().to_string();
        assert!(error.contains("installation is missing") && error.contains("[host] installation"), "{error}");
        assert_eq!(state.installation(Some(&id)).unwrap(), id);
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
