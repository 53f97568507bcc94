//! What an agent does in its box, and with what it copied out of it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;
use crate::body::Unique;
use crate::boxes::{self, Artifact, Ran, Run};
use crate::folders::{Content, Item};
use crate::store::ArtifactRow;

/// Either `argv` or `command`, a line for the shell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunCommand {
    /// The box, where the project has several.
    service: Option<String>,
    /// A program and its arguments.
    argv: Option<Vec<String>>,
    /// A line for the shell.
    command: Option<String>,
    /// Variables to set.
    #[serde(default)]
    env: Unique<String, String>,
    /// What it reads from its standard input.
    #[serde(default)]
    stdin: String,
    /// The folder it runs in, relative to the work folder; the work folder where left out.
    folder: Option<String>,
    /// How long it may take, in seconds, up to 3600; 120 where left out.
    deadline_secs: Option<u64>,
}

impl RunCommand {
    fn into_run(self) -> Result<Run, Error> {
        let Self { service, argv, command, env, stdin, folder, deadline_secs } = self;
        let argv = match (argv, command) {
            (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => argv,
            (Some(_), None) => return Err(Error::bad_request("`argv`: it names no program")),
            (None, Some(line)) => vec!["sh".to_owned(), "-c".to_owned(), line],
            _ => return Err(Error::bad_request("name either `argv` or `command`, a line for the shell")),
        };
        let longest = boxes::LONGEST_DEADLINE;
        let deadline = deadline_secs.map_or(boxes::DEADLINE, Duration::from_secs);
        if deadline.is_zero() || deadline > longest {
            return Err(Error::bad_request(format!("`deadline_secs`: it is from 1 to {}", longest.as_secs())));
        }
        Ok(Run { service, argv, env: env.0, stdin: stdin.into_bytes(), folder, deadline })
    }
}

impl Body for RunCommand {
    type Evidence = Ran;

    async fn run(self, call: Call<'_>) -> Result<Ran, Error> {
        let run = self.into_run()?;
        call.host.run_command(call.agent()?, &run, call.listener).await
    }
}

/// Content is text, or bytes in Base64.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// The box, where the project has several.
    service: Option<String>,
    /// Its path, absolute or relative to the work folder. Directories that are missing are made.
    path: String,
    /// What it holds, as text.
    content: Option<String>,
    /// What it holds, in Base64.
    content_base64: Option<String>,
    /// Its permission bits.
    mode: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Written {
    /// The file.
    path: String,
    /// How much was written.
    bytes: u64,
}

impl Body for WriteFile {
    type Evidence = Written;

    async fn run(self, call: Call<'_>) -> Result<Written, Error> {
        let Self { service, path, content, content_base64, mode } = self;
        let bytes = match (content, content_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => {
                BASE64.decode(text).map_err(|e| Error::bad_request(format!("`content_base64`: {e}")))?
            }
            _ => return Err(Error::bad_request("name either `content` or `content_base64`")),
        };
        WriteContent { service, path, mode }.write(call, bytes.into()).await
    }
}

/// Where content goes that comes as it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteContent {
    service: Option<String>,
    path: String,
    mode: Option<u32>,
}

impl WriteContent {
    pub(super) async fn write(self, call: Call<'_>, content: Pieces) -> Result<Written, Error> {
        let Self { service, path, mode } = self;
        if mode.is_some_and(|mode| mode > 0o777) {
            return Err(Error::bad_request("`mode`: it is more than 0o777, which is 511"));
        }
        let bytes =
            call.host.write_file(call.agent()?, service.as_deref(), &path, content, mode, call.listener).await?;
        Ok(Written { path, bytes })
    }
}

/// A part of a file: as text where it is text, else in Base64.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Part {
    /// What was read, where it is text.
    content: Option<String>,
    /// What was read, in Base64, where it is no text.
    content_base64: Option<String>,
    /// Where in the file it begins.
    offset: u64,
    /// The size of the whole file, in bytes.
    size: u64,
    /// Whether there is more after it.
    truncated: bool,
}

impl Part {
    fn new(offset: u64, Content { bytes, size }: Content) -> Self {
        let end = offset.saturating_add(bytes.len() as u64);
        let (content, content_base64) = match String::from_utf8(bytes) {
            Ok(text) => (Some(text), None),
            Err(e) => (None, Some(BASE64.encode(e.as_bytes()))),
        };
        Self { content, content_base64, offset, size, truncated: end < size }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// The box, where the project has several.
    service: Option<String>,
    /// Its path, absolute or relative to the work folder.
    path: String,
    /// Where to begin, in bytes.
    #[serde(default)]
    offset: u64,
    /// How many bytes to read at most; as many as one answer holds where left out.
    limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileRead {
    /// The file.
    path: String,
    #[serde(flatten)]
    part: Part,
}

impl ReadFile {
    /// The content as it is, as much of it as is asked for.
    pub(super) async fn open(self, call: Call<'_>) -> Result<Pieces, Error> {
        let Self { service, path, offset, limit } = self;
        let limit = limit.unwrap_or(u64::MAX);
        call.host.open_file(call.agent()?, service.as_deref(), &path, offset, limit, call.listener).await
    }
}

impl Body for ReadFile {
    type Evidence = FileRead;

    async fn run(self, call: Call<'_>) -> Result<FileRead, Error> {
        let Self { service, path, offset, limit } = self;
        let limit = limit.unwrap_or(boxes::LONGEST_READ);
        let (host, agent) = (call.host, call.agent()?);
        let content = host.read_file(agent, service.as_deref(), &path, offset, limit, call.listener).await?;
        Ok(FileRead { path, part: Part::new(offset, content) })
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListFiles {
    /// The box, where the project has several.
    service: Option<String>,
    /// The directory; the work folder where left out.
    path: String,
    /// Whether to list the directories in it too.
    recursive: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    /// The directory.
    path: String,
    /// What it holds, by path.
    files: Vec<Item>,
    /// Whether there are more than one answer holds.
    truncated: bool,
}

impl Body for ListFiles {
    type Evidence = Listed;

    async fn run(self, call: Call<'_>) -> Result<Listed, Error> {
        let Self { service, path, recursive } = self;
        let path = if path.is_empty() { ".".to_owned() } else { path };
        let listing = call.host.list_files(call.agent()?, service.as_deref(), &path, recursive, call.listener).await?;
        Ok(Listed { path, files: listing.items, truncated: listing.truncated })
    }
}

/// An artifact.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct About {
    /// Its id, which `read_artifact` and `update_artifact` take.
    id: String,
    /// What its maker called it.
    name: String,
    /// Hex SHA-256 of its content.
    sha256: String,
    /// Its size in bytes.
    size: u64,
}

impl From<ArtifactRow> for About {
    fn from(row: ArtifactRow) -> Self {
        Self { id: row.id, name: row.name, sha256: row.sha256, size: row.size }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateArtifact {
    /// The box, where the project has several.
    service: Option<String>,
    /// The file to copy, absolute or relative to the work folder.
    path: String,
    /// What to call it.
    name: String,
}

impl Body for CreateArtifact {
    type Evidence = About;

    async fn run(self, call: Call<'_>) -> Result<About, Error> {
        let Self { service, path, name } = self;
        if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
            return Err(Error::bad_request("`name`: it has 1 to 200 bytes and no control character"));
        }
        let artifact = Artifact::New(&name);
        call.host.set_artifact(call.agent()?, service.as_deref(), &path, artifact, call.listener).await.map(About::from)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateArtifact {
    /// The box, where the project has several.
    service: Option<String>,
    /// The artifact.
    id: String,
    /// The file to copy, absolute or relative to the work folder.
    path: String,
}

impl Body for UpdateArtifact {
    type Evidence = About;

    async fn run(self, call: Call<'_>) -> Result<About, Error> {
        let Self { service, id, path } = self;
        let artifact = Artifact::Known(&id);
        call.host.set_artifact(call.agent()?, service.as_deref(), &path, artifact, call.listener).await.map(About::from)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArtifact {
    /// The artifact.
    id: String,
    /// Where to begin, in bytes.
    #[serde(default)]
    offset: u64,
    /// How many bytes to read at most; as many as one answer holds where left out.
    limit: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ArtifactRead {
    /// Its id.
    id: String,
    /// What its maker called it.
    name: String,
    /// Hex SHA-256 of its content.
    sha256: String,
    #[serde(flatten)]
    part: Part,
}

impl Body for ReadArtifact {
    type Evidence = ArtifactRead;

    async fn run(self, call: Call<'_>) -> Result<ArtifactRead, Error> {
        let Self { id, offset, limit } = self;
        let tenant = match call.caller {
            Caller::Agent { name, .. } => call.host.people().work(name).map(|work| work.tenant(name)),
            _ => None,
        };
        let may_read = |row: &ArtifactRow| match call.caller {
            Caller::Agent { .. } => tenant.as_ref() == Some(&row.tenant),
            Caller::Orchestrator { projects, .. } => projects.contains(&row.tenant.project),
            Caller::Operator => false,
        };
        let limit = limit.unwrap_or(boxes::LONGEST_READ);
        let (row, content) = call.host.read_artifact(&id, may_read, offset, limit).await?;
        Ok(ArtifactRead { id: row.id, name: row.name, sha256: row.sha256, part: Part::new(offset, content) })
    }
}
