//! The books of what was let go: a container stays in them until the runtime says that it is gone. Removal happens
//! behind the answer, is repeated until it succeeds, and never holds anybody up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::crash;
use crate::folders::Folders;
use crate::name::Names;
use crate::runtime::{Runtime, RuntimeError};

/// First pause between two attempts; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A runtime that is away for long is asked twice a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A create whose answer was lost may still be carried out: longer than the runtime's own deadline for it (20 s) can
/// explain is long enough.
const SUSPECT_FOR: Duration = Duration::from_secs(90);

/// What is being removed.
#[derive(Clone)]
pub struct Leaving {
    runtime: Arc<dyn Runtime>,
    names: Arc<Names>,
    folders: Option<Arc<dyn Folders>>,
    /// What is not gone yet, and whether it is only suspected to exist.
    books: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Leaving {
    /// Empty books.
    pub fn new(runtime: Arc<dyn Runtime>, names: Arc<Names>, folders: Option<Arc<dyn Folders>>) -> Self {
        Self { runtime, names, folders, books: Arc::default() }
    }

    /// How many things are not gone yet.
    pub fn len(&self) -> usize {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether everything is gone.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many things exist for certain and are not gone yet. What may never come to exist is not waited for: it carries
    /// a name that the next start removes.
    pub fn certain(&self) -> usize {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.values().filter(|suspect| !**suspect).count()
    }

    /// Lets a container go: frees its name, and removes it behind the caller's back, with the work folder of that name.
    pub async fn let_go(&self, id: &str, folder: Option<&str>) {
        self.enter(id, false);
        match self.runtime.rename(id, &self.names.leaving()).await {
            Ok(()) => crash::here("renamed to leave"),
            Err(RuntimeError::NotFound(_)) => return self.remove_behind(id.to_owned(), None, folder),
            // The name is not free, then; whoever needs it finds a stale container of this installation and lets it go.
            Err(e) => tracing::warn!(container = short(id), error = %e, "could not rename what is let go"),
        }
        self.remove_behind(id.to_owned(), None, folder);
    }

    /// Removes what a failed attempt left under a name that only it used; waits for one try, and goes on behind.
    /// `suspect` means that the runtime may still be about to make it.
    pub async fn discard(&self, name: &str, suspect: bool, folder: Option<&str>) {
        self.enter(name, suspect);
        let until = suspect.then(|| Instant::now() + SUSPECT_FOR);
        match self.runtime.remove(name, Duration::ZERO).await {
            Ok(()) if !suspect && folder.is_none() => {
                crash::here("discarded");
                self.strike(name);
            }
            _ => self.remove_behind(name.to_owned(), until, folder),
        }
    }

    fn remove_behind(&self, key: String, suspect_until: Option<Instant>, folder: Option<&str>) {
        let (this, folder) = (self.clone(), folder.map(str::to_owned));
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                match this.runtime.remove(&key, Duration::ZERO).await {
                    Ok(()) if suspect_until.is_none_or(|until| Instant::now() >= until) => {
                        crash::here("removed");
                        // Only now: while the container is there it may write into it.
                        this.remove_folder(folder).await;
                        break this.strike(&key);
                    }
                    Ok(()) => {}
                    Err(e) => tracing::warn!(container = short(&key), error = %e, "not removed yet"),
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }

    /// Removes a work folder that no container has. Waits for one try, and goes on behind.
    pub async fn remove_folder(&self, folder: Option<String>) {
        let (Some(name), Some(folders)) = (folder, self.folders.clone()) else { return };
        let Err(e) = folders.remove(&name).await else { return };
        tracing::warn!(error = %e, "a work folder is not removed yet");
        self.enter(&name, false);
        let this = self.clone();
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                tokio::time::sleep(pause).await;
                match folders.remove(&name).await {
                    Ok(()) => break this.strike(&name),
                    Err(e) => tracing::warn!(error = %e, "a work folder is not removed yet"),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }

    fn enter(&self, key: &str, suspect: bool) {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), suspect);
    }

    fn strike(&self, key: &str) {
        self.books.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Enough of an id to recognise it.
pub fn short(id: &str) -> &str {
    match id.get(..12) {
        Some(prefix) if id.len() == 64 => prefix,
        _ => id,
    }
}
