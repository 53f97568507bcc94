//! What a tenant does in its box: commands, and files in its work folder. A box that is not there is made, one that sleeps
//! is woken, and one that is gone is made anew once. Nothing here names a tenant in a log but by a prefix of its key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::budget::OnTheWay;
use crate::error::{Code, Error, listed, shown as shown_name};
use crate::failure;
use crate::folders::{Content, FolderError, Folders, Listing, Pieces, Result as FolderResult};
use crate::host::Host;
use crate::name::{AgentName, ServiceName};
use crate::owner::Owner;
use crate::registry::{InFlight, Listener, Registry};
use crate::runtime::{Captured, RunOutput, RunPlan, RuntimeError};
use crate::sandbox::{Serving, WorkFolder};
use crate::secret::random_hex;
use crate::store::ArtifactRow;

/// How long a command may take where its caller does not say.
pub const DEADLINE: Duration = Duration::from_secs(120);
/// How long a command may take at all.
pub const LONGEST_DEADLINE: Duration = Duration::from_secs(3600);
/// How many bytes of each stream of a command are answered.
const KEPT_OUTPUT: usize = 64 << 10;
/// How many bytes one read answers at most.
pub const LONGEST_READ: u64 = 1 << 20;
/// How large an artifact may be, in bytes.
const LARGEST_ARTIFACT: u64 = 64 << 20;
/// How many entries one listing answers at most.
const LONGEST_LISTING: usize = 2_000;
/// How many files of an agent are on their way at once.
const TRANSFERS: u64 = 16;
/// How long whoever reads a file may take nothing of it.
const READER_SILENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the box of a transfer that stands still is there.
const LOOK_AT_BOX: Duration = Duration::from_secs(1);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The box, where the project has several.
    pub service: Option<String>,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Standard input.
    pub stdin: Vec<u8>,
    /// The folder it runs in, relative to the work folder.
    pub folder: Option<String>,
    /// How long it may take.
    pub deadline: Duration,
}

/// How a command went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Ran {
    /// The box.
    pub service: ServiceName,
    /// Its exit code; 124 where its time was over.
    pub exit_code: i64,
    /// Standard output; where it was cut, the first and the last part of it.
    pub stdout: String,
    /// Standard error, in the same way.
    pub stderr: String,
    /// Whether some of standard output was left out.
    pub stdout_cut: bool,
    /// Whether some of standard error was left out.
    pub stderr_cut: bool,
    /// Whether its time was over.
    pub timed_out: bool,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
}

/// A box that is in use until this is dropped.
struct InUse {
    service: ServiceName,
    owner: Owner,
    serving: Arc<Serving>,
    work: WorkFolder,
    flight: Arc<InFlight>,
}

impl InUse {
    /// Sends the content of a file on, until whoever reads it takes none for too long, or the box is let go.
    async fn send_on(
        self,
        registry: Arc<Registry>,
        mut content: BoxStream<'static, FolderResult<Bytes>>,
        to: mpsc::Sender<FolderResult<Bytes>>,
    ) {
        while let Some(piece) = content.next().await {
            if !registry.has(&self.owner, &self.work.folder.name) {
                return;
            }
            let until = tokio::time::Instant::now() + READER_SILENCE;
            let taken = async {
                let _ = to.send(piece).await;
            };
            tokio::pin!(taken);
            loop {
                tokio::select! {
                    () = &mut taken => break,
                    () = tokio::time::sleep(LOOK_AT_BOX) => {}
                }
                if tokio::time::Instant::now() >= until || !registry.has(&self.owner, &self.work.folder.name) {
                    return;
                }
            }
            if to.is_closed() {
                return;
            }
        }
    }

    /// The same content, which breaks off when the box is let go.
    fn as_long_as_it_is_there(
        &self,
        registry: Arc<Registry>,
        content: BoxStream<'static, FolderResult<Bytes>>,
    ) -> BoxStream<'static, FolderResult<Bytes>> {
        let (owner, folder) = (self.owner.clone(), self.work.folder.name.clone());
        // Once more after the last piece, before it gets its path.
        let content = content.chain(stream::once(async { Ok(Bytes::new()) }));
        let looked_at = content.map(move |piece| match registry.has(&owner, &folder) {
            true => piece,
            false => Err(FolderError::Incomplete("the box was let go".to_owned())),
        });
        looked_at.boxed()
    }
}

impl Host {
    /// Runs a command in the agent's box.
    ///
    /// # Errors
    /// A guard's refusal, why the box could not be had, or why the command could not be run. A command that fails is none.
    pub async fn run_command(&self, agent: &AgentName, run: &Run, listener: Option<&Listener>) -> Result<Ran, Error> {
        // Before a box is made for it.
        self.check_run(run)?;
        let mut used = self.in_box(agent, run.service.as_deref(), listener).await?;
        let cancel = CancellationToken::new();
        // Whatever becomes of the caller, its command ends with it.
        let _guard = cancel.clone().drop_guard();
        let mut made_anew = false;
        loop {
            let plan = self.plan(run, &used.work);
            let began = Instant::now();
            let flight = used.flight.clone();
            let alone = Arc::new(move || flight.is_alone());
            let work = self.runtime().run(&used.serving.id, &plan, &cancel, alone);
            let (result, over) = self.within_budget(&used.work, work, &cancel).await;
            self.folders()?.changed(&used.work.folder);
            match result {
                Ok(output) => {
                    tracing::info!(target: "audit", owner = %used.owner, service = %used.service, code = output.code, "run_command");
                    if !output.gone {
                        // What cannot be ended goes with its box.
                        let why = "a command could not be ended";
                        self.registry().release_serving(&used.owner, &used.serving, why).await;
                    }
                    if let Some(over) = over {
                        return Err(over);
                    }
                    return Ok(ran(used.service.clone(), output, began.elapsed()));
                }
                // It was not started, so it may be tried once more, in the box that is made then.
                Err(RuntimeError::Gone(_) | RuntimeError::NotFound(_)) if !made_anew => {
                    made_anew = true;
                    used = self.in_box(agent, run.service.as_deref(), listener).await?;
                }
                Err(RuntimeError::Gone(_) | RuntimeError::NotFound(_)) => return Err(box_gone(&used.service)),
                Err(e @ RuntimeError::Refused(_)) => return Err(Error::bad_request(e.to_string())),
                Err(e) => return Err(failure::runtime(&e)),
            }
        }
    }

    fn check_run(&self, run: &Run) -> Result<(), Error> {
        let nul = |s: &String| s.contains('\0');
        if run.argv.iter().chain(&run.folder).any(nul) || run.env.iter().any(|(k, v)| nul(k) || nul(v)) {
            return Err(Error::bad_request("a command, its variables and its folder hold no NUL"));
        }
        let reserved = self.names().reserved_prefix();
        if let Some(name) =
            run.env.keys().find(|name| name.is_empty() || name.contains('=') || name.starts_with(&reserved))
        {
            return Err(Error::bad_request(format!("`env`: `{}` is no name that may be set", shown_name(name))));
        }
        Ok(())
    }

    fn plan(&self, run: &Run, work: &WorkFolder) -> RunPlan {
        let folder = match run.folder.as_deref() {
            None | Some("" | ".") => work.folder.inside.clone(),
            Some(folder) if folder.starts_with('/') => folder.to_owned(),
            Some(folder) => format!("{}/{folder}", work.folder.inside),
        };
        RunPlan {
            argv: run.argv.clone(),
            env: run.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            stdin: run.stdin.clone(),
            folder,
            user: None,
            timeout: run.deadline,
            keep: KEPT_OUTPUT,
            mark: (self.names().command_mark(), random_hex(16)),
        }
    }

    /// Reads a file of the agent's box.
    ///
    /// # Errors
    /// As [`Host::run_command`], and what is wrong with the path.
    pub async fn read_file(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        path: &str,
        offset: u64,
        limit: u64,
        listener: Option<&Listener>,
    ) -> Result<Content, Error> {
        let used = self.in_box(agent, service, listener).await?;
        let content = self.folders()?.read(&used.work.folder, path, offset, limit.min(LONGEST_READ)).await;
        let content = content.map_err(told)?;
        tracing::info!(target: "audit", owner = %used.owner, service = %used.service, bytes = content.bytes.len(), "read_file");
        Ok(content)
    }

    /// Reads a file of the agent's box in pieces, as much of it as is asked for. The box is in use until the last one.
    ///
    /// # Errors
    /// As [`Host::read_file`].
    pub async fn open_file(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        path: &str,
        offset: u64,
        limit: u64,
        listener: Option<&Listener>,
    ) -> Result<Pieces, Error> {
        let transfer = self.transfer(agent)?;
        let used = self.in_box(agent, service, listener).await?;
        let Pieces { size, stream } =
            self.folders()?.open(&used.work.folder, path, offset, limit).await.map_err(told)?;
        tracing::info!(target: "audit", owner = %used.owner, service = %used.service, bytes = size, "read_file");
        let (pieces, sent) = mpsc::channel(1);
        let registry = self.registry().clone();
        tokio::spawn(async move {
            let _one_more = transfer;
            used.send_on(registry, stream, pieces).await;
        });
        let sent = stream::unfold(sent, async |mut sent| Some((sent.recv().await?, sent)));
        Ok(Pieces { size, stream: sent.boxed() })
    }

    /// One more transfer of an agent, until the answer is dropped. Each holds files of the host open, of which there are so
    /// many for all.
    fn transfer(&self, agent: &AgentName) -> Result<OnTheWay, Error> {
        let transfer = self.transfers().add(agent.as_str(), 1);
        if self.transfers().count(agent.as_str()).0 > TRANSFERS {
            let message = format!("you have {TRANSFERS} transfers of files under way already");
            return Err(Error::retry(Code::Capacity, 1, message, "wait for one to end"));
        }
        Ok(transfer)
    }

    /// Writes a file of the agent's box, whole or not at all.
    ///
    /// # Errors
    /// As [`Host::read_file`], when the box would hold more than it may, and when the content does not come as a whole.
    pub async fn write_file(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        path: &str,
        content: Pieces,
        mode: Option<u32>,
        listener: Option<&Listener>,
    ) -> Result<u64, Error> {
        let _transfer = self.transfer(agent)?;
        let used = self.in_box(agent, service, listener).await?;
        let size = content.size;
        let _coming = self.room_for(&used.work, size).await?;
        let content = Pieces { size, stream: used.as_long_as_it_is_there(self.registry().clone(), content.stream) };
        match self.folders()?.write(&used.work.folder, path, content, mode, used.work.user).await {
            Err(FolderError::Incomplete(_)) if !self.registry().has(&used.owner, &used.work.folder.name) => {
                return Err(failure::let_go());
            }
            written => written.map_err(told)?,
        }
        tracing::info!(target: "audit", owner = %used.owner, service = %used.service, bytes = size, "write_file");
        Ok(size)
    }

    /// Lists a directory of the agent's box.
    ///
    /// # Errors
    /// As [`Host::read_file`].
    pub async fn list_files(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        path: &str,
        recursive: bool,
        listener: Option<&Listener>,
    ) -> Result<Listing, Error> {
        let used = self.in_box(agent, service, listener).await?;
        let listing = self.folders()?.list(&used.work.folder, path, recursive, LONGEST_LISTING).await.map_err(told)?;
        tracing::info!(target: "audit", owner = %used.owner, service = %used.service, "list_files");
        Ok(listing)
    }

    /// Copies a file out of the agent's box, as a new artifact or in place of one of its own.
    ///
    /// # Errors
    /// As [`Host::read_file`], `not_found` for an artifact that is not the agent's, and when the file is too large.
    pub async fn set_artifact(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        path: &str,
        artifact: Artifact<'_>,
        listener: Option<&Listener>,
    ) -> Result<ArtifactRow, Error> {
        let used = self.in_box(agent, service, listener).await?;
        let tenant = used.owner.keyed.as_ref().map(|k| k.tenant.clone()).ok_or_else(Error::internal)?;
        let (id, name) = match artifact {
            Artifact::New(name) => (random_hex(16), name.to_owned()),
            Artifact::Known(id) => {
                let row = self.artifact_of(id, |row| row.tenant == tenant)?;
                (row.id, row.name)
            }
        };
        let kept = self.folders()?.keep(&used.work.folder, path, LARGEST_ARTIFACT).await.map_err(told)?;
        let row = ArtifactRow { id, tenant, name, sha256: kept.sha256, size: kept.size };
        let unused = self.store().set_artifact(&row).map_err(internal)?;
        self.forget(unused).await;
        tracing::info!(target: "audit", owner = %used.owner, artifact = row.id, bytes = row.size, "artifact written");
        Ok(row)
    }

    /// Reads an artifact. It is its maker's, and of the orchestrators of its project.
    ///
    /// # Errors
    /// `not_found`, also for one that is somebody else's.
    pub async fn read_artifact(
        &self,
        id: &str,
        may_read: impl Fn(&ArtifactRow) -> bool,
        offset: u64,
        limit: u64,
    ) -> Result<(ArtifactRow, Content), Error> {
        let row = self.artifact_of(id, may_read)?;
        let content = self.folders()?.kept(&row.sha256, offset, limit.min(LONGEST_READ)).await.map_err(told)?;
        tracing::info!(target: "audit", artifact = row.id, bytes = content.bytes.len(), "artifact read");
        Ok((row, content))
    }

    fn artifact_of(&self, id: &str, may_read: impl Fn(&ArtifactRow) -> bool) -> Result<ArtifactRow, Error> {
        let row = self.store().artifact(id).map_err(internal)?.filter(may_read);
        row.ok_or_else(|| {
            let message = format!("you have no artifact `{}`", shown_name(id));
            Error::new(Code::NotFound, message, "use an id that `create_artifact` answered")
        })
    }

    /// Removes the artifacts of an agent that is no more.
    pub(crate) async fn remove_artifacts(&self, agent: &AgentName) {
        let rows = self.store().artifacts_of(agent).inspect_err(|e| drop(internal(e))).unwrap_or_default();
        for row in rows {
            match self.store().remove_artifact(&row) {
                Ok(unused) => self.forget(unused).await,
                Err(e) => drop(internal(e)),
            }
        }
    }

    async fn forget(&self, unused: Option<String>) {
        if let (Some(sha256), Some(folders)) = (unused, self.folders_if_any())
            && let Err(e) = folders.forget(&sha256).await
        {
            tracing::warn!(error = %e, "the content of an artifact that is no more stays");
        }
    }

    /// The agent's box, made or woken where it has to be, and in use until the answer is dropped.
    async fn in_box(
        &self,
        agent: &AgentName,
        service: Option<&str>,
        listener: Option<&Listener>,
    ) -> Result<InUse, Error> {
        let none = BTreeMap::new();
        let service = service.map(|name| BTreeSet::from([name.to_owned()]));
        let admission = self.admit(agent, service.as_ref(), &none).await?;
        let boxes: Vec<_> = self
            .parts(agent, &admission)
            .into_iter()
            .filter(|(owner, want)| {
                owner.keyed.is_some()
                    && want.services.keys().all(|name| self.is_box(name) && admission.admitted.asked.contains(name))
            })
            .collect();
        let names: Vec<_> = boxes.iter().flat_map(|(_, want)| want.services.keys()).map(ServiceName::as_str).collect();
        let [(owner, want)] = boxes.as_slice() else {
            return Err(if boxes.is_empty() {
                let message = match &service {
                    Some(_) => "that service is no box: commands and files are for boxes",
                    None => "the project has no box",
                };
                Error::new(
                    Code::InvalidState,
                    message,
                    "the operator opts the project in to a service with a work folder",
                )
            } else {
                Error::bad_request(format!("`service`: the project has the boxes {}, so name one", listed(&names)))
                    .allowing(names)
            });
        };
        self.folders()?;
        // Before it is looked for: from here on nobody puts it to sleep.
        let flight = Arc::new(self.registry().in_flight(owner));
        let live = self.ensure_part(agent, &admission, owner, want, listener).await?;
        let (service, serving) = live.services.into_iter().next().ok_or_else(Error::internal)?;
        let work = serving.work.clone().ok_or_else(Error::internal)?;
        Ok(InUse { service, owner: owner.clone(), serving, work, flight })
    }

    pub(crate) fn folders(&self) -> Result<&dyn Folders, Error> {
        self.folders_if_any().ok_or_else(|| {
            Error::new(
                Code::InvalidState,
                "this host has no boxes: its container runtime does not share folders with it",
                "the operator runs the host on the machine of its container runtime",
            )
        })
    }
}

/// Which artifact is written.
#[derive(Debug, Clone, Copy)]
pub enum Artifact<'a> {
    /// A new one of this name.
    New(&'a str),
    /// The one with this id.
    Known(&'a str),
}

fn internal(e: impl std::fmt::Display) -> Error {
    tracing::error!(error = %e, "a fault of the host");
    Error::internal()
}

fn box_gone(service: &ServiceName) -> Error {
    let message = format!("the box `{service}` went away while it was used, and once more after it was made anew");
    Error::retry(Code::InvalidState, 5, message, "find out what ends it; then call again")
}

/// What a caller hears of a folder's error.
pub(crate) fn told(e: FolderError) -> Error {
    let message = e.to_string();
    match e {
        FolderError::NotFound(_) => Error::new(Code::NotFound, message, "list the files to see what there is"),
        FolderError::Outside(_) | FolderError::BadPath(_) | FolderError::Kind { .. } => {
            Error::bad_request(format!("`path`: {message}"))
        }
        FolderError::Busy(_) => Error::retry(Code::InvalidState, 1, message, "call again when it stands still"),
        FolderError::TooLarge { .. } => Error::new(Code::TooLarge, message, "make it smaller, or split it"),
        FolderError::Incomplete(_) => Error::bad_request(format!("the content is not whole: {message}")),
        FolderError::Full => Error::new(Code::InvalidState, message, "remove files, or tell the operator"),
        FolderError::Failed(_) => {
            tracing::error!(error = %message, "a work folder failed");
            Error::internal()
        }
    }
}

fn ran(service: ServiceName, output: RunOutput, took: Duration) -> Ran {
    Ran {
        service,
        exit_code: output.code,
        stdout_cut: output.stdout.dropped > 0,
        stderr_cut: output.stderr.dropped > 0,
        stdout: shown(&output.stdout),
        stderr: shown(&output.stderr),
        timed_out: output.timed_out,
        duration_ms: took.as_millis().try_into().unwrap_or(u64::MAX),
    }
}

/// A stream as text. A cut is never inside of a character, and says how much is missing.
fn shown(captured: &Captured) -> String {
    if captured.dropped == 0 {
        let all = [captured.head.as_slice(), &captured.tail].concat();
        return String::from_utf8_lossy(&all).into_owned();
    }
    let head = whole_start(&captured.head);
    let tail = whole_end(&captured.tail);
    let dropped = captured.dropped as usize + (captured.head.len() - head.len()) + (captured.tail.len() - tail.len());
    let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
    format!("{head}\n[{dropped} bytes left out]\n{tail}")
}

/// Without a character at the end that is not whole.
fn whole_start(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => &bytes[..e.valid_up_to()],
        Err(e) if e.valid_up_to() + 4 > bytes.len() => &bytes[..e.valid_up_to()],
        _ => match bytes.iter().rposition(|b| b & 0xC0 != 0x80) {
            // Something before it is no text; what counts is its end.
            Some(start) if std::str::from_utf8(&bytes[start..]).is_err_and(|e| e.error_len().is_none()) => {
                &bytes[..start]
            }
            _ => bytes,
        },
    }
}

/// Without the rest of a character at the beginning.
fn whole_end(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|b| **b & 0xC0 == 0x80).count();
    &bytes[rest..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_between_characters_and_says_how_much_is_missing() {
        let text = "äöü€😀".repeat(10);
        let bytes = text.as_bytes();
        for cut in 1..60 {
            let captured =
                Captured { head: bytes[..cut].to_vec(), tail: bytes[bytes.len() - cut..].to_vec(), dropped: 1000 };
            let shown = shown(&captured);
            assert!(!shown.contains('\u{fffd}'), "{cut}: {shown}");
            let (head, rest) = shown.split_once("\n[").unwrap();
            let (dropped, tail) = rest.split_once(" bytes left out]\n").unwrap();
            assert_eq!(head.len() + tail.len() + dropped.parse::<usize>().unwrap(), 2 * cut + 1000);
        }
    }

    #[test]
    fn what_was_not_cut_is_whole() {
        let captured = Captured { head: b"a\xff".to_vec(), tail: b"b".to_vec(), dropped: 0 };
        assert_eq!(shown(&captured), "a\u{fffd}b");
    }
}
