//! The core's [`Folders`] on this machine: work folders, and a store of artifacts beside them in which a file is found by
//! the hash of its content. Everything blocks, so it is done on threads that may.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, FileExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, OpenOptions};
use futures_util::future::join;
use futures_util::stream::{self, StreamExt as _};
use sandbar_core::folders::{Content, Folder, FolderError, Folders, Ids, Item, Kept, Listing, Pieces, Result};
use sandbar_core::secret::hex;
use sha2::{Digest, Sha256};

use crate::{FilesError, Owner, WorkFolder, WorkFolders, remove};

/// How much of a file is read at once, in bytes.
const PIECE: u64 = 512 << 10;
/// How many pieces that have come are written at once.
const BATCH: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct LocalFolders(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    work: WorkFolders,
    artifacts: Dir,
    /// How many bytes each folder held when that was last counted.
    used: Mutex<HashMap<String, u64>>,
}

impl LocalFolders {
    /// Opens both directories, making them where they are absent, and deletes what earlier removals left.
    ///
    /// # Errors
    /// When one of them cannot be used.
    pub fn open(work: &Path, artifacts: &Path) -> std::result::Result<Self, FilesError> {
        let work = WorkFolders::open(work)?;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(artifacts);
        let opened = made.and_then(|()| Dir::open_ambient_dir(artifacts, ambient_authority()));
        let inner = Arc::new(Inner { work, artifacts: opened.map_err(FilesError::Io)?, used: Mutex::default() });
        let sweeping = inner.clone();
        std::thread::spawn(move || {
            // What stays is tried again at the next start.
            let _ = sweeping.work.sweep();
        });
        Ok(Self(inner))
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> Result<T> + Send + 'static) -> Result<T> {
        let inner = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        done.unwrap_or_else(|e| Err(FolderError::Failed(format!("it broke off: {e}"))))
    }

    async fn at<T: Send + 'static>(
        &self,
        folder: &Folder,
        work: impl FnOnce(WorkFolder, &Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = folder.clone();
        self.blocking(move |inner| work(inner.work.folder(&folder.name, &folder.inside).map_err(told)?, inner)).await
    }
}

fn owner(ids: Ids) -> Owner {
    Owner { uid: ids.uid, gid: ids.gid }
}

/// What an error here is for the core.
fn told(e: FilesError) -> FolderError {
    match e {
        FilesError::NotFound(path) => FolderError::NotFound(path),
        FilesError::Outside(path) => FolderError::Outside(path),
        FilesError::BadPath(_) => FolderError::BadPath(e.to_string()),
        FilesError::NotAFile(path) => FolderError::Kind { path, wanted: "a regular file" },
        FilesError::NotADirectory(path) => FolderError::Kind { path, wanted: "a directory" },
        FilesError::TooLarge { path, most, .. } => FolderError::TooLarge { path, limit: most },
        FilesError::Busy(path) => FolderError::Busy(path),
        FilesError::Full(_) => FolderError::Full,
        FilesError::BadKey
        | FilesError::Denied(_)
        | FilesError::Elsewhere(_)
        | FilesError::Unsupported(_)
        | FilesError::Io(_) => FolderError::Failed(e.to_string()),
    }
}

/// A part of a file; less of it where the file got shorter.
fn piece(file: &std::fs::File, offset: u64, size: u64) -> Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    bytes.truncate(read);
    Ok(bytes.into())
}

fn failed(e: std::io::Error) -> FolderError {
    told(FilesError::of_io(e, "artifact"))
}

#[async_trait]
impl Folders for LocalFolders {
    async fn make(&self, folder: &Folder) -> Result<String> {
        self.at(folder, |work, _| {
            let path = work.host_path().to_str().map(str::to_owned);
            path.ok_or_else(|| FolderError::Failed("the path of the work folders is no text".to_owned()))
        })
        .await
    }

    async fn names(&self) -> Result<Vec<String>> {
        self.blocking(|inner| inner.work.keys().map_err(told)).await
    }

    async fn remove(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.blocking(move |inner| {
            inner.work.remove(&name).map_err(told)?;
            inner.used().remove(&name);
            Ok(())
        })
        .await
    }

    async fn give(&self, folder: &Folder, to: Ids) -> Result<()> {
        self.at(folder, move |work, _| {
            work.chown_root(owner(to)).map_err(told)?;
            work.remove_staged().map_err(told)
        })
        .await
    }

    async fn given(&self, folder: &Folder) -> Result<Option<Ids>> {
        self.at(folder, |work, _| {
            let Owner { uid, gid } = work.owner().map_err(told)?;
            // One that was never given away is this process's.
            Ok((uid != rustix::process::geteuid().as_raw()).then_some(Ids { uid, gid }))
        })
        .await
    }

    async fn read(&self, folder: &Folder, path: &str, offset: u64, limit: u64) -> Result<Content> {
        let (path, limit) = (path.to_owned(), usize::try_from(limit).unwrap_or(usize::MAX));
        self.at(folder, move |work, _| {
            let crate::Content { bytes, size, .. } = work.read(&path, offset, limit).map_err(told)?;
            Ok(Content { bytes, size })
        })
        .await
    }

    async fn open(&self, folder: &Folder, path: &str, offset: u64, limit: u64) -> Result<Pieces> {
        let path = path.to_owned();
        let (file, size) = self.at(folder, move |work, _| work.open_read(&path, u64::MAX).map_err(told)).await?;
        let (file, end) = (Arc::new(file), size.min(offset.saturating_add(limit)));
        let offsets = stream::iter((offset..end).step_by(PIECE as usize));
        let this = Self(self.0.clone());
        let pieces = offsets.map(move |at| {
            let (this, file) = (Self(this.0.clone()), file.clone());
            async move { this.blocking(move |_| piece(&file, at, PIECE.min(end - at))).await }
        });
        // One is read while the one before it is on its way.
        Ok(Pieces { size: end.saturating_sub(offset), stream: pieces.buffered(2).boxed() })
    }

    async fn write(&self, folder: &Folder, path: &str, content: Pieces, mode: Option<u32>, to: Ids) -> Result<()> {
        let (name, path, Pieces { size, stream }) = (folder.name.clone(), path.to_owned(), content);
        let (work, mut staged) = self
            .at(folder, move |work, _| {
                let staged = work.stage(&path, owner(to), true).map_err(told)?;
                Ok((work, staged))
            })
            .await?;
        let mut batches = stream.ready_chunks(BATCH);
        let (mut came, mut next) = (0_u64, batches.next().await);
        // Whoever sends may take its time, so that no thread waits for it.
        while let Some(batch) = next {
            let batch = batch.into_iter().collect::<Result<Vec<_>>>()?;
            came += batch.iter().map(|piece| piece.len() as u64).sum::<u64>();
            if came > size {
                break;
            }
            let append = self.blocking(move |_| {
                batch.iter().try_for_each(|piece| staged.append(piece)).map_err(told)?;
                Ok(staged)
            });
            let (appended, after) = join(append, batches.next()).await;
            (staged, next) = (appended?, after);
        }
        if came != size {
            return Err(FolderError::Incomplete(format!("{came} of {size} bytes came")));
        }
        self.blocking(move |inner| {
            work.settle(staged, mode).map_err(told)?;
            // What it took the place of is found out by the next count.
            if let Some(used) = inner.used().get_mut(&name) {
                *used = used.saturating_add(size);
            }
            Ok(())
        })
        .await
    }

    async fn unlink(&self, folder: &Folder, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.at(folder, move |work, _| work.unlink(&path).map_err(told)).await
    }

    async fn list(&self, folder: &Folder, path: &str, recursive: bool, limit: usize) -> Result<Listing> {
        let path = path.to_owned();
        self.at(folder, move |work, _| {
            let crate::Listing { entries, truncated } = work.list(&path, recursive, limit).map_err(told)?;
            let items = entries.into_iter().map(|e| Item {
                path: e.path,
                kind: e.kind.as_str(),
                size: e.size,
                mode: e.mode,
                modified_unix: e.modified,
                target: e.target,
            });
            Ok(Listing { items: items.collect(), truncated })
        })
        .await
    }

    async fn keep(&self, folder: &Folder, path: &str, limit: u64) -> Result<Kept> {
        let path = path.to_owned();
        self.at(folder, move |work, inner| {
            let (file, _) = work.open_read(&path, limit).map_err(told)?;
            inner.keep(file, &path, limit)
        })
        .await
    }

    async fn kept(&self, sha256: &str, offset: u64, limit: u64) -> Result<Content> {
        let (name, limit) = (sha256.to_owned(), usize::try_from(limit).unwrap_or(usize::MAX));
        self.blocking(move |inner| {
            let file = inner.artifacts.open(&name).map_err(failed)?.into_std();
            let size = file.metadata().map_err(failed)?.len();
            let most = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(limit);
            let mut bytes = vec![0; most];
            file.read_exact_at(&mut bytes, offset).map_err(failed)?;
            Ok(Content { bytes, size })
        })
        .await
    }

    async fn forget(&self, sha256: &str) -> Result<()> {
        let name = sha256.to_owned();
        self.blocking(move |inner| match inner.artifacts.remove_file(&name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(e)),
            _ => Ok(()),
        })
        .await
    }

    async fn usage(&self, folder: &Folder, limit: u64) -> Result<u64> {
        let name = folder.name.clone();
        self.at(folder, move |work, inner| {
            let used = work.usage(limit).map_err(told)?;
            inner.used().insert(name, used);
            Ok(used)
        })
        .await
    }

    async fn usage_of_all(&self, limit: u64) -> Result<u64> {
        self.blocking(move |inner| {
            let mut all = 0_u64;
            for name in inner.work.keys().map_err(told)? {
                let counted = inner.used().get(&name).copied();
                let used = match counted {
                    Some(used) => used,
                    None => {
                        let used = inner.work.usage(&name, limit).map_err(told)?;
                        inner.used().insert(name, used);
                        used
                    }
                };
                all = all.saturating_add(used);
            }
            Ok(all)
        })
        .await
    }

    fn changed(&self, folder: &Folder) {
        self.0.used().remove(&folder.name);
    }
}

impl Inner {
    fn used(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what a handle reads, under a name of its own first, since the box may go on writing to it.
    fn keep(&self, file: std::fs::File, path: &str, limit: u64) -> Result<Kept> {
        let temporary = format!(".{}", remove::unique());
        let mut options = OpenOptions::new();
        let mut copy = self.artifacts.open_with(&temporary, options.write(true).create_new(true)).map_err(failed)?;
        let kept = || {
            let (mut hash, mut size, mut piece) = (Sha256::new(), 0_u64, vec![0; 256 << 10]);
            // One more than the limit, to see whether it grew beyond it.
            let mut file = file.take(limit.saturating_add(1));
            loop {
                let n = file.read(&mut piece).map_err(failed)?;
                if n == 0 {
                    break;
                }
                size += n as u64;
                if size > limit {
                    return Err(FolderError::TooLarge { path: path.to_owned(), limit });
                }
                hash.update(&piece[..n]);
                copy.write_all(&piece[..n]).map_err(failed)?;
            }
            // Before its name says what is in it.
            copy.sync_all().map_err(failed)?;
            let sha256 = hex(&hash.finalize());
            self.artifacts.rename(&temporary, &self.artifacts, &sha256).map_err(failed)?;
            Ok(Kept { sha256, size })
        };
        let result = kept();
        if result.is_err() {
            let _ = self.artifacts.remove_file(&temporary);
        }
        result
    }
}
