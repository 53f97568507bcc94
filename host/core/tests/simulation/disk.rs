//! What outlives containers: named volumes with data that knows its password, and the work folders of boxes. Both notice
//! when something is removed that an agent was given and may still come back for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::folders::{Content, Folder, FolderError, Folders, Ids, Item, Kept, Listing, Pieces, Result};
use sandbar_core::runtime::{Labels, RuntimeError};

use crate::container::Container;
use crate::faults::{Course, Kind, Trouble};
use crate::world::{Inner, World};

/// Where work folders lie.
const ROOT: &str = "/srv/";
/// Whom the processes of a box belong to.
const USER: Ids = Ids { uid: 1000, gid: 100 };
/// How much later than a thing was used last it may look as if it had slept since: a sweep, and the calls that one waits for.
const COUNTED: Duration = Duration::from_secs(600);

/// A volume or a work folder.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Whose it is, as the key of its containers; empty as long as none had it.
    pub(crate) key: String,
    labels: Labels,
    /// The password that the data knows.
    password: Option<String>,
    activated: BTreeSet<String>,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// When its agent was last told of something in it.
    prized: Option<Duration>,
    /// When it came to be.
    pub(crate) born: Duration,
    /// Whom a work folder was given to.
    given: Option<Ids>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) volumes: BTreeMap<String, Store>,
    pub(crate) folders: BTreeMap<String, Store>,
    /// For how long something has to have slept before it may go.
    pub(crate) delete_after: Duration,
}

impl Disk {
    /// The name of the folder at a path of this machine.
    pub(crate) fn name(path: &str) -> String {
        path.strip_prefix(ROOT).unwrap_or(path).to_owned()
    }

    pub(crate) fn activated(&self, volumes: &[String]) -> BTreeSet<String> {
        volumes.iter().filter_map(|v| self.volumes.get(v)).flat_map(|v| v.activated.clone()).collect()
    }

    pub(crate) fn activate(&mut self, volumes: &[String], feature: &str) {
        for name in volumes {
            if let Some(volume) = self.volumes.get_mut(name) {
                volume.activated.insert(feature.to_owned());
            }
        }
    }

    /// Its agent has been told of what is in the volumes of a key, and in the folder that the key keeps.
    pub(crate) fn prize(&mut self, key: &str, folder: &str, now: Duration) {
        let volumes = self.volumes.values_mut().filter(|v| v.key == key);
        let folders = self.folders.get_mut(folder);
        volumes.chain(folders).for_each(|s| s.prized = Some(now));
    }
}

impl Inner {
    /// A container is created with its volumes and its folder.
    pub(crate) fn mount(&mut self, container: &Container) {
        let now = self.now();
        for name in &container.volumes {
            let labels = container.labels.clone();
            let new = || Store { key: container.key.clone(), labels, born: now, ..Store::default() };
            self.disk.volumes.entry(name.clone()).or_insert_with(new);
        }
        let Some(name) = &container.folder else { return };
        let Some(folder) = self.disk.folders.get_mut(name) else { return };
        if !folder.key.is_empty() && folder.key != container.key {
            let text = format!("the folder of {} is given to {}", folder.key, container.key);
            return self.violation(text);
        }
        folder.key.clone_from(&container.key);
    }

    /// Before a container starts: nobody else may use its data, and that has to know its password.
    pub(crate) fn look_at_data(&mut self, id: &str) {
        let Some(container) = self.containers.get(id).cloned() else { return };
        let shares = |c: &&Container| {
            let volumes = c.volumes.iter().any(|v| container.volumes.contains(v));
            c.id != id && c.is_up() && (volumes || c.folder.is_some() && c.folder == container.folder)
        };
        // What somebody else has renamed or started is not found by its name any more.
        let other = self.containers.values().find(shares).filter(|c| !self.was_disturbed(c.agent(), c.born));
        if let Some(other) = other {
            let text = format!("{} and {} have the same data at once", container.name, other.name);
            self.violation(text);
        }
        let password = container.variable(&self.names.password_variable()).map(str::to_owned);
        for volume in &container.volumes {
            let Some(volume) = self.disk.volumes.get_mut(volume) else { continue };
            if volume.password.is_some() && volume.password != password {
                let text = format!("{} does not have the password that its data knows", container.key);
                return self.violation(text);
            }
            volume.password.clone_from(&password);
        }
    }

    fn look_at_loss(&mut self, what: &str, store: &Store) {
        let (now, after) = (self.now(), self.disk.delete_after);
        if let Some(at) = store.prized.filter(|at| now < *at + after.saturating_sub(COUNTED)) {
            self.violation(format!("the {what} of {} is removed, and was used {:?} ago", store.key, now - at));
        } else if store.prized.is_some() {
            self.count("expired");
        }
    }

    pub(crate) fn volumes(&self, labels: &[(String, String)]) -> Vec<String> {
        let fits = |v: &Store| labels.iter().all(|(k, l)| v.labels.get(k) == Some(l));
        self.disk.volumes.iter().filter(|(_, v)| fits(v)).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn remove_volume(&mut self, name: &str) -> sandbar_core::runtime::Result<()> {
        if self.containers.values().any(|c| c.volumes.iter().any(|v| v == name)) {
            return Err(RuntimeError::Failed("the volume is in use".to_owned()));
        }
        if let Some(volume) = self.disk.volumes.remove(name) {
            self.look_at_loss("volume", &volume);
            self.log(|| format!("  the volume {name} of {} is removed", volume.key));
        }
        Ok(())
    }

    /// What a command that only looks prints, if it is one.
    pub(crate) fn cat(&self, id: &str, argv: &[&str]) -> Option<String> {
        let container = self.containers.get(id)?;
        let status = format!("Uid:\t{0}\t{0}\nGid:\t{1}\t{1}\n", USER.uid, USER.gid);
        match argv {
            ["cat", "/proc/self/status"] => Some(status),
            ["cat", "/proc/self/status", path] => {
                let folder = self.disk.folders.get(container.folder.as_ref()?)?;
                let bytes = folder.files.get(path.strip_prefix(crate::engine::WORK)?.trim_start_matches('/'))?;
                Some(status + &String::from_utf8_lossy(bytes))
            }
            _ => None,
        }
    }
}

/// Something that a tenant has under way, until it is dropped.
pub(crate) struct InUse(World, u64);

impl InUse {
    pub(crate) fn begin(world: &World, key: &str, of: &str) -> Self {
        Self(world.clone(), world.with(|inner| inner.begin_use(key, of)))
    }

    /// Whether the tenant has nothing else under way in this container.
    pub(crate) fn is_alone(world: &World, of: &str) -> bool {
        world.with(|inner| inner.uses.values().filter(|u| u.is_of(of)).count() <= 1)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.with(|inner| inner.uses.remove(&self.1));
    }
}

/// A count of what a work folder holds, until it is dropped.
struct Count(World);

impl Count {
    fn begin(world: &World) -> Self {
        world.with(|inner| inner.counts += 1);
        Self(world.clone())
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        self.0.with(|inner| inner.counts -= 1);
    }
}

/// The work folders as the core's [`Folders`].
pub(crate) struct WorkFolders(pub(crate) World);

impl WorkFolders {
    fn key(&self, folder: &str) -> String {
        self.0.with(|inner| inner.disk.folders.get(folder).map(|f| f.key.clone()).unwrap_or_default())
    }

    /// Something about `what` in a folder: named by that too, since who wait for one box are woken in any order.
    async fn call<T>(&self, folder: &str, what: &str, done: impl FnOnce(&mut Inner) -> Result<T>) -> Result<T> {
        let key = format!("{}#{}", self.key(folder), if what.starts_with('.') { "" } else { what });
        let (takes, fails) = self.0.with(|inner| {
            let disk = inner.knobs.disk;
            if disk == 0 {
                return (Duration::ZERO, matches!(inner.scripted(Kind::Disk, &key), Some(Trouble::Fails)));
            }
            let mut rng = inner.rng(Kind::Disk, &key);
            // Where all of them cannot be listed, what nobody has stays until the next start.
            let fails = !folder.is_empty() && rng.chance(inner.knobs.disk_fails);
            let trouble = inner.scripted(Kind::Disk, &key);
            let takes = match trouble {
                Some(_) => Course::new(trouble, rng.ms(1, disk + 1), Kind::Disk.deadline()).answered,
                None => rng.ms(1, disk + 1),
            };
            (takes, fails || trouble == Some(Trouble::Fails))
        });
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if fails {
            self.0.with(|inner| {
                inner.count("trouble with a work folder");
                inner.log(|| format!("  a work folder of {key} fails"));
            });
            return Err(FolderError::Failed("simulated trouble".to_owned()));
        }
        self.0.with(done)
    }

    /// Does something in a folder.
    async fn inside<T>(
        &self,
        folder: &Folder,
        path: &str,
        done: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> Result<T>,
    ) -> Result<T> {
        let name = folder.name.clone();
        let key = self.key(&name);
        // The host's own files are no tenant's.
        let _use = (!path.starts_with('.')).then(|| InUse::begin(&self.0, &key, &name));
        self.call(&folder.name, path, |inner| {
            // Files are named as whoever writes them.
            if !path.starts_with('.') && path.split_once('-').is_some_and(|(tenant, _)| tenant != key) {
                inner.violation(format!("{path} is in the folder of {key}"));
            }
            let folder = inner.disk.folders.get_mut(&name).ok_or_else(|| FolderError::NotFound(path.to_owned()))?;
            done(&mut folder.files)
        })
        .await
    }
}

#[async_trait]
impl Folders for WorkFolders {
    async fn make(&self, folder: &Folder) -> Result<String> {
        self.call(&folder.name, "make", |inner| {
            let born = inner.now();
            inner.disk.folders.entry(folder.name.clone()).or_insert_with(|| Store { born, ..Store::default() });
            Ok(format!("{ROOT}{}", folder.name))
        })
        .await
    }

    async fn names(&self) -> Result<Vec<String>> {
        self.call("", "names", |inner| Ok(inner.disk.folders.keys().cloned().collect())).await
    }

    async fn remove(&self, name: &str) -> Result<()> {
        self.call(name, "remove", |inner| {
            let used = inner.containers.values().any(|c| c.folder.as_deref() == Some(name) && c.is_up());
            let Some(folder) = inner.disk.folders.remove(name) else { return Ok(()) };
            if used {
                inner.violation(format!("the folder of {} is removed while its box runs", folder.key));
            }
            inner.look_at_loss("work folder", &folder);
            inner.log(|| format!("  the work folder of {} is removed", folder.key));
            Ok(())
        })
        .await
    }

    async fn give(&self, folder: &Folder, to: Ids) -> Result<()> {
        let name = folder.name.clone();
        self.call(&folder.name, "give", |inner| {
            if let Some(folder) = inner.disk.folders.get_mut(&name) {
                folder.given = Some(to);
            }
            Ok(())
        })
        .await
    }

    async fn given(&self, folder: &Folder) -> Result<Option<Ids>> {
        let name = folder.name.clone();
        self.call(&folder.name, "given", |inner| Ok(inner.disk.folders.get(&name).and_then(|f| f.given))).await
    }

    async fn read(&self, folder: &Folder, path: &str, _: u64, _: u64) -> Result<Content> {
        self.inside(folder, path, |files| {
            let bytes = files.get(path).cloned().ok_or_else(|| FolderError::NotFound(path.to_owned()))?;
            Ok(Content { size: bytes.len() as u64, bytes })
        })
        .await
    }

    async fn open(&self, folder: &Folder, path: &str, offset: u64, limit: u64) -> Result<Pieces> {
        Ok(self.read(folder, path, offset, limit).await?.bytes.into())
    }

    async fn write(&self, folder: &Folder, path: &str, content: Pieces, _: Option<u32>, _: Ids) -> Result<()> {
        let bytes = content.collect().await?;
        self.inside(folder, path, |files| {
            files.insert(path.to_owned(), bytes);
            Ok(())
        })
        .await
    }

    async fn unlink(&self, folder: &Folder, path: &str) -> Result<()> {
        self.inside(folder, path, |files| {
            files.remove(path);
            Ok(())
        })
        .await
    }

    async fn list(&self, folder: &Folder, _: &str, _: bool, _: usize) -> Result<Listing> {
        self.inside(folder, "", |files| {
            let item = |(path, bytes): (&String, &Vec<u8>)| Item {
                path: path.clone(),
                kind: "file",
                size: bytes.len() as u64,
                mode: 0o644,
                modified_unix: 0,
                target: None,
            };
            Ok(Listing { items: files.iter().map(item).collect(), truncated: false })
        })
        .await
    }

    async fn keep(&self, _: &Folder, _: &str, _: u64) -> Result<Kept> {
        Err(FolderError::Failed("artifacts are not simulated".to_owned()))
    }

    async fn kept(&self, _: &str, _: u64, _: u64) -> Result<Content> {
        Err(FolderError::Failed("artifacts are not simulated".to_owned()))
    }

    async fn forget(&self, _: &str) -> Result<()> {
        Ok(())
    }

    async fn usage(&self, folder: &Folder, _: u64) -> Result<u64> {
        let (takes, name) = (self.0.with(|inner| inner.knobs.disk), folder.name.clone());
        let _count = Count::begin(&self.0);
        tokio::time::sleep(Duration::from_millis(takes)).await;
        let used = |f: &Store| f.files.values().map(|bytes| bytes.len() as u64).sum();
        Ok(self.0.with(|inner| inner.disk.folders.get(&name).map(used).unwrap_or_default()))
    }

    async fn usage_of_all(&self, _: u64) -> Result<u64> {
        let used = |f: &Store| f.files.values().map(|bytes| bytes.len() as u64).sum::<u64>();
        Ok(self.0.with(|inner| inner.disk.folders.values().map(used).sum()))
    }

    fn changed(&self, _: &Folder) {}
}
