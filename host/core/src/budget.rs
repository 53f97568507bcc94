//! How much the boxes hold, and may hold: each, and all together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::boxes::told;
use crate::error::{Code, Error};
use crate::folders::FolderError;
use crate::host::Host;
use crate::runtime::Left;
use crate::sandbox::WorkFolder;

/// When a running command is first looked at for how much it has written: most are over by then.
const FIRST_LOOK: Duration = Duration::from_millis(200);
/// Pause between two looks after that. They get rarer where they take long.
const BUDGET_EVERY: Duration = Duration::from_secs(1);

/// Pause between two looks at what grows where no command runs.
const LEFT_EVERY: Duration = Duration::from_secs(5);

/// How much there is for each folder until it is done: bytes on their way into it, so that writers who come at once each see
/// the others, or commands at work in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coming(Arc<Mutex<HashMap<String, u64>>>);

impl Coming {
    /// Has them count until the answer is dropped.
    pub(crate) fn add(&self, folder: &str, bytes: u64) -> OnTheWay {
        self.with(|all| {
            let coming = all.entry(folder.to_owned()).or_default();
            *coming = coming.saturating_add(bytes);
        });
        OnTheWay { coming: self.clone(), folder: folder.to_owned(), bytes }
    }

    /// How many are on their way into one folder, and into all.
    pub(crate) fn count(&self, folder: &str) -> (u64, u64) {
        self.with(|all| {
            let sum = all.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
            (all.get(folder).copied().unwrap_or_default(), sum)
        })
    }

    fn with<T>(&self, look: impl FnOnce(&mut HashMap<String, u64>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes that are on their way until this is dropped.
#[derive(Debug)]
pub(crate) struct OnTheWay {
    coming: Coming,
    folder: String,
    bytes: u64,
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.coming.with(|all| {
            if let Some(coming) = all.get_mut(&self.folder) {
                *coming = coming.saturating_sub(self.bytes);
                if *coming == 0 {
                    all.remove(&self.folder);
                }
            }
        });
    }
}

impl Host {
    /// Keeps room for so many bytes more.
    ///
    /// # Errors
    /// When the box, or all boxes together, would hold more than they may.
    pub(crate) async fn room_for(&self, work: &WorkFolder, bytes: u64) -> Result<OnTheWay, Error> {
        // What could never fit is not counted at all: with it the counts would not be whole numbers of bytes any more.
        if bytes > self.box_budget().one {
            let over = self.over_budget(work, bytes, bytes).await.map_err(told)?;
            return Err(over.unwrap_or_else(Error::internal));
        }
        let on_the_way = self.coming().add(&work.folder.name, bytes);
        let (here, everywhere) = self.coming().count(&work.folder.name);
        match self.over_budget(work, here, everywhere).await.map_err(told)? {
            Some(over) => Err(over),
            None => Ok(on_the_way),
        }
    }

    /// Waits for a command, and cancels it when the box, or all boxes together, hold more than they may. Answers the error
    /// where that happened.
    pub(crate) async fn within_budget<T>(
        &self,
        work: &WorkFolder,
        command: impl Future<Output = T>,
        cancel: &CancellationToken,
    ) -> (T, Option<Error>) {
        let _at_work = self.at_work().add(&work.folder.name, 1);
        // Only what grows is ended: whoever is over its share may remove, and all may go on working where others took it.
        let before = OnceLock::new();
        let outgrown = async || {
            let over = self.over_budget(work, 0, 0).await.ok().flatten()?;
            let before = *before.get()?;
            self.used(work).await.is_ok_and(|used| used > before).then_some(over)
        };
        let watch = async {
            if let Ok(used) = self.used(work).await {
                let _ = before.set(used);
            }
            let mut pause = FIRST_LOOK;
            loop {
                tokio::time::sleep(pause).await;
                let began = tokio::time::Instant::now();
                if let Some(over) = outgrown().await {
                    return over;
                }
                pause = BUDGET_EVERY.max(began.elapsed() * 10);
            }
        };
        tokio::pin!(command);
        tokio::select! {
            // One that was quick is told as well, unless it was quicker than the first count.
            result = &mut command => (result, outgrown().await),
            over = watch => {
                cancel.cancel();
                (command.await, Some(over))
            }
        }
    }

    /// Looks again and again at what the boxes hold in which no command runs. What commands left may fill them as well, and
    /// goes where it does.
    pub(crate) async fn watch_growth(&self) {
        let mut held = HashMap::new();
        let mut pause = LEFT_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let began = tokio::time::Instant::now();
            self.end_what_grows(&mut held).await;
            pause = LEFT_EVERY.max(began.elapsed() * 10);
        }
    }

    async fn end_what_grows(&self, held: &mut HashMap<String, u64>) {
        let before = std::mem::take(held);
        for owner in self.registry().owners() {
            let live = self.registry().snapshot(&owner).live;
            let boxes = live.into_iter().flat_map(|live| live.services.into_values());
            for (serving, work) in boxes.filter_map(|s| s.work.clone().map(|work| (s, work))) {
                let name = &work.folder.name;
                // A command watches over its box itself.
                if self.at_work().count(name).0 > 0 {
                    continue;
                }
                let Ok(used) = self.used(&work).await else { continue };
                let grew = before.get(name).is_some_and(|before| used > *before);
                held.insert(name.clone(), used);
                if !grew || !matches!(self.over_budget(&work, 0, 0).await, Ok(Some(_))) {
                    continue;
                }
                // Counting took its time; a command that came meanwhile may be about to make room.
                if self.at_work().count(name).0 > 0 {
                    continue;
                }
                tracing::warn!(owner = %owner, used, "what commands left in a box fills it, and is ended");
                let mark = self.names().command_mark();
                match self.runtime().end_left(&serving.id, &mark, Left::Everything).await {
                    Ok(true) => {}
                    Ok(false) => {
                        let why = "what fills it could not be ended";
                        self.registry().release_serving(&owner, &serving, why).await;
                    }
                    // The next round tries again: that Docker does not answer says nothing of the box.
                    Err(error) => tracing::warn!(owner = %owner, %error, "it could not be ended now"),
                }
            }
        }
    }

    /// What a box holds.
    async fn used(&self, work: &WorkFolder) -> Result<u64, FolderError> {
        let Some(folders) = self.folders_if_any() else { return Ok(0) };
        folders.usage(&work.folder, u64::MAX).await
    }

    /// What is to be answered where the box, or all boxes together, would hold more than they may with so many bytes more.
    async fn over_budget(&self, work: &WorkFolder, here: u64, everywhere: u64) -> Result<Option<Error>, FolderError> {
        let Some(folders) = self.folders_if_any() else { return Ok(None) };
        let budget = self.box_budget();
        let over = |message: String, remediate: &str| Ok(Some(Error::new(Code::InvalidState, message, remediate)));
        if folders.usage(&work.folder, budget.one).await?.saturating_add(here) > budget.one {
            return over(
                format!("the work folder would hold more than {} bytes", budget.one),
                "remove files with a short command; the operator sets `[boxes] max_bytes`",
            );
        }
        if folders.usage_of_all(budget.all).await?.saturating_add(everywhere) > budget.all {
            return over(
                format!("all work folders together would hold more than {} bytes", budget.all),
                "remove files with a short command, or have the operator raise `[boxes] max_total_bytes`",
            );
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_counts_until_it_is_there_or_given_up() {
        let coming = Coming::default();
        let (one, two, other) = (coming.add("a", 3), coming.add("a", 4), coming.add("b", 5));
        assert_eq!((coming.count("a"), coming.count("b"), coming.count("c")), ((7, 12), (5, 12), (0, 12)));
        drop(one);
        assert_eq!(coming.count("a"), (4, 9));
        drop((two, other));
        assert_eq!(coming.count("a"), (0, 0));
        assert!(coming.with(|all| all.is_empty()));
    }
}
