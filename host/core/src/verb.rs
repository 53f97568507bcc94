//! The verbs: one table from which every interface builds its routes or tools. An interface authenticates, finds the
//! verb, and hands over the body; what happens is the same everywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::body::{Plain, Unique, read};
use crate::boxes::{self, Artifact, Run};
use crate::error::{Code, Error, listed, shown};
use crate::folders::Content;
use crate::host::Host;
use crate::name::{AgentName, ProjectName, ServiceName};
use crate::people::{Caller, CallerKind, OPERATOR};
use crate::project::{Declared, GateValue};
use crate::registry::Listener;
use crate::store::ArtifactRow;

/// One verb.
#[derive(Debug, Clone, Copy)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Who may call it.
    pub callers: &'static [CallerKind],
    /// Whether only agents with a role that may ask for sandboxes may call it.
    pub by_role: bool,
    /// Whether its body may hold a whole file.
    pub carries_file: bool,
    /// One line for a caller.
    pub summary: &'static str,
}

const fn verb(name: &'static str, callers: &'static [CallerKind], summary: &'static str) -> Verb {
    Verb { name, callers, by_role: false, carries_file: false, summary }
}

/// A verb for agents that makes a box where there is none.
const fn in_box(name: &'static str, summary: &'static str) -> Verb {
    Verb { by_role: true, ..verb(name, &[Agent], summary) }
}

use CallerKind::{Agent, Operator, Orchestrator};

/// Every verb.
pub const VERBS: &[Verb] = &[
    Verb {
        by_role: true,
        ..verb(
            "request_sandbox",
            &[Agent],
            "Get the throwaway services of the project you work on, with their connection variables. Repeat it freely: \
             what you have is answered again.",
        )
    },
    verb("release_sandbox", &[Agent], "Give your sandbox back. Its data is gone then."),
    verb("sandbox_status", &[Agent], "See what you have: services, extensions, age and lease."),
    verb("renew_sandbox", &[Agent], "Start the lease of your sandbox anew, as any other call does."),
    in_box("run_command", "Run a command in your box, and get its exit code and output. It ends when you go away."),
    Verb {
        carries_file: true,
        ..in_box("write_file", "Write a file in the work folder of your box, whole or not at all.")
    },
    in_box("read_file", "Read a file of the work folder of your box."),
    in_box("list_files", "List a directory of the work folder of your box."),
    in_box("create_artifact", "Copy a file out of your box to where it stays when the box goes."),
    in_box("update_artifact", "Copy a file out of your box in place of an artifact of yours."),
    Verb {
        by_role: true,
        ..verb("read_artifact", &[Agent, Orchestrator], "Read an artifact of yours, or of a project of yours.")
    },
    verb("register_agent", &[Orchestrator, Operator], "Make an agent known. Its token is answered this once."),
    verb("begin_work", &[Orchestrator], "Bind an agent to a project."),
    verb("end_work", &[Orchestrator], "End an agent's work, with its outcome. Its sandbox goes."),
    verb("agent_gone", &[Orchestrator], "Tell that an agent is gone. Its work ends and its sandbox goes."),
    verb("spawn_env", &[Orchestrator], "Learn what to start an agent with."),
    verb("set_switch", &[Operator], "Turn sandboxes on or off. Off refuses new requests only."),
    verb("set_project", &[Operator], "Declare a project, in place of what was declared of it before."),
    verb("list_agents", &[Operator], "See every agent with its role and work."),
    verb("rotate_token", &[Operator], "Give a registered agent a new token. The old one stops working at once."),
    verb("remove_agent", &[Operator], "Remove a registered agent: its token, its work and its sandbox."),
];

/// What a verb answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reply {
    /// What happened.
    pub evidence: Value,
    /// When the caller's lease ends, where it has a sandbox.
    pub lease_expires_at: Option<String>,
}

/// Finds a verb for a caller.
///
/// # Errors
/// `not_found`, or `forbidden` when it is not for this caller.
pub fn find(host: &Host, name: &str, caller: &Caller) -> Result<&'static Verb, Error> {
    let Some(verb) = VERBS.iter().find(|v| v.name == name) else {
        let names: Vec<_> = VERBS.iter().map(|v| v.name).collect();
        let message = format!("there is no verb `{}`", shown(name));
        return Err(Error::new(Code::NotFound, message, format!("the verbs are {}", listed(&names))).allowing(names));
    };
    if !verb.callers.contains(&caller.kind()) {
        let whose = verb.callers.iter().map(|k| k.plural()).collect::<Vec<_>>().join(" and ");
        let message = format!("`{name}` is for {whose}");
        return Err(Error::new(Code::Forbidden, message, "use the token of a caller that it is for"));
    }
    if let (true, Caller::Agent { role, .. }) = (verb.by_role, caller) {
        host.role_may_ask(role)?;
    }
    Ok(verb)
}

/// A verb that takes nothing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestSandbox {
    services: Option<Vec<String>>,
    #[serde(default)]
    extensions: Option<Unique<String, Vec<String>>>,
    #[serde(default)]
    explain: bool,
}

/// Either `argv` or a line for the shell.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunCommand {
    service: Option<String>,
    argv: Option<Vec<String>>,
    command: Option<String>,
    #[serde(default)]
    env: Unique<String, String>,
    #[serde(default)]
    stdin: String,
    folder: Option<String>,
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

/// Content is text, or bytes in Base64.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    service: Option<String>,
    path: String,
    content: Option<String>,
    content_base64: Option<String>,
    mode: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    service: Option<String>,
    path: String,
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ListFiles {
    service: Option<String>,
    path: String,
    recursive: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateArtifact {
    service: Option<String>,
    path: String,
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateArtifact {
    service: Option<String>,
    id: String,
    path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadArtifact {
    id: String,
    #[serde(default)]
    offset: u64,
    limit: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegisterAgent {
    agent: AgentName,
    role: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentAndProject {
    agent: AgentName,
    project: ProjectName,
}

/// How work can end.
const OUTCOMES: [&str; 6] = ["done", "unclaim", "idle", "pass_review", "fail_review", "documented"];

/// How work ended.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Outcome(String);

impl TryFrom<String> for Outcome {
    type Error = String;
    fn try_from(given: String) -> Result<Self, String> {
        if OUTCOMES.contains(&given.as_str()) {
            return Ok(Self(given));
        }
        Err(format!("`{}` is no outcome; there is {}", shown(&given), listed(&OUTCOMES)))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndWork {
    agent: AgentName,
    outcome: Outcome,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OneAgent {
    agent: AgentName,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetSwitch {
    enabled: bool,
}

/// A project and what is declared of it. (Flattening would let unknown fields through.)
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetProject {
    project: ProjectName,
    #[serde(default)]
    services: Vec<ServiceName>,
    #[serde(default)]
    extensions: Unique<ServiceName, Vec<String>>,
    #[serde(default)]
    retained: Vec<ServiceName>,
    #[serde(default)]
    superuser: bool,
    /// Written out: whoever may call a verb may not for that read the host's files and environment.
    #[serde(default)]
    box_network: bool,
    #[serde(default)]
    gate_env: Unique<String, Plain>,
}

/// Carries a verb out. The caller must be one that [`find`] let through.
///
/// # Errors
/// What the caller is told.
pub async fn call(
    host: &Host,
    verb: &Verb,
    caller: &Caller,
    body: &[u8],
    listener: Option<&Listener>,
) -> Result<Reply, Error> {
    match caller {
        Caller::Agent { name, .. } => {
            host.registry().call_came(name);
            let evidence = agent_verb(host, verb, name, body, listener).await?;
            host.registry().call_ended(name);
            Ok(Reply { evidence, lease_expires_at: host.lease_expires_at(name) })
        }
        Caller::Orchestrator { name, projects } => {
            let evidence = orchestrator_verb(host, verb, name, projects, body).await?;
            Ok(Reply { evidence, lease_expires_at: None })
        }
        Caller::Operator => Ok(Reply { evidence: operator_verb(host, verb, body).await?, lease_expires_at: None }),
    }
}

async fn agent_verb(
    host: &Host,
    verb: &Verb,
    agent: &AgentName,
    body: &[u8],
    listener: Option<&Listener>,
) -> Result<Value, Error> {
    match verb.name {
        "request_sandbox" => {
            let args: RequestSandbox = read(body)?;
            let services = args.services.map(|s| s.into_iter().collect::<BTreeSet<_>>());
            if services.as_ref().is_some_and(BTreeSet::is_empty) {
                return Err(Error::bad_request("`services` is empty: name some, or leave it out to get all"));
            }
            let Unique(extensions) = args.extensions.unwrap_or_default();
            let extensions = extensions.into_iter().map(|(s, f)| (s, f.into_iter().collect())).collect();
            if args.explain {
                host.explain(agent, services.as_ref(), &extensions).await
            } else {
                host.request_sandbox(agent, services.as_ref(), &extensions, listener).await
            }
        }
        "release_sandbox" => {
            let Nothing {} = read(body)?;
            Ok(json!({ "released": host.release(agent, "release_sandbox").await }))
        }
        "sandbox_status" | "renew_sandbox" => {
            let Nothing {} = read(body)?;
            host.health().knows_what_exists()?;
            serde_json::to_value(host.status(agent)).map_err(|_| Error::internal())
        }
        _ => box_verb(host, verb, agent, body).await,
    }
}

async fn box_verb(host: &Host, verb: &Verb, agent: &AgentName, body: &[u8]) -> Result<Value, Error> {
    match verb.name {
        "run_command" => {
            let run = read::<RunCommand>(body)?.into_run()?;
            serde_json::to_value(host.run_command(agent, &run).await?).map_err(|_| Error::internal())
        }
        "write_file" => {
            let WriteFile { service, path, content, content_base64, mode } = read(body)?;
            let bytes = match (content, content_base64) {
                (Some(text), None) => text.into_bytes(),
                (None, Some(text)) => {
                    BASE64.decode(text).map_err(|e| Error::bad_request(format!("`content_base64`: {e}")))?
                }
                _ => return Err(Error::bad_request("name either `content` or `content_base64`")),
            };
            if mode.is_some_and(|mode| mode > 0o777) {
                return Err(Error::bad_request("`mode`: it is more than 0o777, which is 511"));
            }
            let bytes = host.write_file(agent, service.as_deref(), &path, bytes, mode).await?;
            Ok(json!({ "path": path, "bytes": bytes }))
        }
        "read_file" => {
            let ReadFile { service, path, offset, limit } = read(body)?;
            let limit = limit.unwrap_or(boxes::LONGEST_READ);
            let content = host.read_file(agent, service.as_deref(), &path, offset, limit).await?;
            Ok(with_content(json!({ "path": path }), offset, content))
        }
        "create_artifact" => {
            let CreateArtifact { service, path, name } = read(body)?;
            if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
                return Err(Error::bad_request("`name`: it has 1 to 200 bytes and no control character"));
            }
            let artifact = Artifact::New(&name);
            Ok(about(&host.set_artifact(agent, service.as_deref(), &path, artifact).await?))
        }
        "update_artifact" => {
            let UpdateArtifact { service, id, path } = read(body)?;
            Ok(about(&host.set_artifact(agent, service.as_deref(), &path, Artifact::Known(&id)).await?))
        }
        "read_artifact" => {
            let work = host.people().work(agent);
            let tenant = work.map(|work| work.tenant(agent));
            read_artifact(host, body, |row| tenant.as_ref() == Some(&row.tenant)).await
        }
        "list_files" => {
            let ListFiles { service, path, recursive } = read(body)?;
            let path = if path.is_empty() { ".".to_owned() } else { path };
            let listing = host.list_files(agent, service.as_deref(), &path, recursive).await?;
            Ok(json!({ "path": path, "files": listing.items, "truncated": listing.truncated }))
        }
        _ => Err(Error::internal()),
    }
}

async fn read_artifact(host: &Host, body: &[u8], may_read: impl Fn(&ArtifactRow) -> bool) -> Result<Value, Error> {
    let ReadArtifact { id, offset, limit } = read(body)?;
    let limit = limit.unwrap_or(boxes::LONGEST_READ);
    let (row, content) = host.read_artifact(&id, may_read, offset, limit).await?;
    Ok(with_content(about(&row), offset, content))
}

fn about(row: &ArtifactRow) -> Value {
    json!({ "id": row.id, "name": row.name, "sha256": row.sha256, "size": row.size })
}

/// Adds what was read: as text where it is text, else in Base64.
fn with_content(mut about: Value, offset: u64, Content { bytes, size }: Content) -> Value {
    let end = offset.saturating_add(bytes.len() as u64);
    let (content, content_base64) = match String::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(e) => (None, Some(BASE64.encode(e.as_bytes()))),
    };
    for (key, value) in [
        ("content", json!(content)),
        ("content_base64", json!(content_base64)),
        ("offset", json!(offset)),
        ("size", json!(size)),
        ("truncated", json!(end < size)),
    ] {
        about[key] = value;
    }
    about
}

async fn orchestrator_verb(
    host: &Host,
    verb: &Verb,
    name: &str,
    projects: &[ProjectName],
    body: &[u8],
) -> Result<Value, Error> {
    match verb.name {
        "register_agent" => register(host, name, body),
        "begin_work" => {
            let AgentAndProject { agent, project } = read(body)?;
            host.begin_work(name, projects, &agent, &project).await?;
            Ok(json!({ "agent": agent, "project": project }))
        }
        "end_work" => {
            let EndWork { agent, outcome: Outcome(why) } = read(body)?;
            let ended = host.end_work(projects, &agent, &why).await?;
            Ok(json!({ "agent": agent, "ended": ended }))
        }
        "agent_gone" => {
            let OneAgent { agent } = read(body)?;
            let ended = host.end_work(projects, &agent, "agent_gone").await?;
            Ok(json!({ "agent": agent, "ended": ended }))
        }
        "read_artifact" => read_artifact(host, body, |row| projects.contains(&row.tenant.project)).await,
        "spawn_env" => {
            let AgentAndProject { agent, project } = read(body)?;
            let spawn = host.spawn_env(projects, &agent, &project)?;
            serde_json::to_value(spawn).map_err(|_| Error::internal())
        }
        _ => Err(Error::internal()),
    }
}

fn register(host: &Host, by: &str, body: &[u8]) -> Result<Value, Error> {
    let RegisterAgent { agent, role } = read(body)?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
    if role.is_empty() || role.len() > 32 || !role.chars().all(plain) {
        return Err(Error::bad_request("`role`: it must match [a-z0-9_-]{1,32}"));
    }
    let token = host.people().register(&agent, &role, by)?;
    tracing::info!(target: "audit", %agent, role, by, "register_agent");
    Ok(json!({ "agent": agent, "role": role, "token": token.reveal() }))
}

async fn operator_verb(host: &Host, verb: &Verb, body: &[u8]) -> Result<Value, Error> {
    match verb.name {
        "register_agent" => register(host, OPERATOR, body),
        "set_switch" => {
            let SetSwitch { enabled } = read(body)?;
            host.set_switch(enabled)?;
            Ok(json!({ "enabled": enabled }))
        }
        "set_project" => {
            let SetProject { project, services, extensions, retained, superuser, box_network, gate_env } = read(body)?;
            let gate_env: BTreeMap<_, _> =
                gate_env.0.into_iter().map(|(k, Plain(v))| (k, GateValue::Plain(v))).collect();
            let declared = Declared { services, extensions: extensions.0, retained, superuser, box_network, gate_env };
            let project = host.set_project(project, declared)?;
            Ok(json!({
                "project": project.name,
                "services": project.services,
                "extensions": project.extensions,
                "retained": project.retained,
                "superuser": project.superuser,
                "box_network": project.box_network,
                "gate_env": project.gate_env.keys().collect::<Vec<_>>(),
            }))
        }
        "list_agents" => {
            let Nothing {} = read(body)?;
            Ok(json!({ "agents": host.people().agents() }))
        }
        "rotate_token" => {
            let OneAgent { agent } = read(body)?;
            let token = host.people().rotate(&agent)?;
            tracing::info!(target: "audit", %agent, "rotate_token");
            Ok(json!({ "agent": agent, "token": token.reveal() }))
        }
        "remove_agent" => {
            let OneAgent { agent } = read(body)?;
            host.remove_agent(&agent).await?;
            Ok(json!({ "agent": agent }))
        }
        _ => Err(Error::internal()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a body is not what a verb takes.
    fn refused<T: serde::de::DeserializeOwned>(body: &str) -> String {
        match read::<T>(body.as_bytes()) {
            Ok(_) => panic!("it was read: {body}"),
            Err(e) => e.message,
        }
    }

    #[test]
    fn messages_speak_of_fields_and_not_of_the_host_s_types() {
        // Whatever is sent, in place of the body and of each field.
        let wrong =
            ["1", "\"x\"", "null", "true", "[]", "[1]", "[[\"a\"],null,true]", "{\"x\":1}", "{\"\":null}", "1e400"];
        let fields = [
            "services",
            "extensions",
            "explain",
            "agent",
            "role",
            "project",
            "outcome",
            "enabled",
            "superuser",
            "gate_env",
        ];
        let mut said = Vec::new();
        for value in wrong {
            let whole = value.to_owned();
            let bodies = fields.iter().map(|f| format!("{{\"{f}\":{value}}}")).chain([whole]);
            for body in bodies {
                let body = body.as_bytes();
                said.extend(read::<Nothing>(body).err());
                said.extend(read::<RequestSandbox>(body).err());
                said.extend(read::<RegisterAgent>(body).err());
                said.extend(read::<AgentAndProject>(body).err());
                said.extend(read::<EndWork>(body).err());
                said.extend(read::<OneAgent>(body).err());
                said.extend(read::<SetSwitch>(body).err());
                said.extend(read::<SetProject>(body).err());
            }
        }
        assert!(said.len() > 500, "{}", said.len());
        for Error { message, .. } in said {
            for word in
                ["struct", "enum", "newtype", "tuple", "Nothing", "Sandbox", "Agent", "Work", "Set", "`?`", ".?"]
            {
                assert!(!message.contains(word), "{message}");
            }
        }
    }

    #[test]
    fn an_object_is_taken_and_nothing_by_position() {
        assert!(refused::<RequestSandbox>(r#"[["redis"],null,true]"#).contains("JSON object"));
        assert!(refused::<Nothing>("[]").contains("JSON object"));
        assert!(read::<Nothing>(b"").is_ok() && read::<Nothing>(b" {} ").is_ok());
        let outcome = refused::<EndWork>(r#"{"agent": "a", "outcome": {"done": null}}"#);
        assert!(outcome.starts_with("`outcome`: "), "{outcome}");
        let outcome = refused::<EndWork>(r#"{"agent": "a", "outcome": "gone"}"#);
        assert!(outcome.contains("`gone`") && outcome.contains("`pass_review`"), "{outcome}");
    }

    #[test]
    fn a_key_stands_once() {
        let twice = refused::<RequestSandbox>(r#"{"extensions": {"postgres": ["vector"], "postgres": []}}"#);
        assert!(twice.starts_with("`extensions`: ") && twice.contains("`postgres` stands there twice"), "{twice}");
        let twice = refused::<SetProject>(r#"{"project": "p", "gate_env": {"A": "x", "A": "y"}}"#);
        assert!(twice.starts_with("`gate_env`: ") && twice.contains("`A` stands there twice"), "{twice}");
        let twice = refused::<SetProject>(r#"{"project": "p", "project": "q"}"#);
        assert!(twice.contains("`project`"), "{twice}");
    }

    #[test]
    fn a_verb_reads_no_secret_of_the_host() {
        for value in [r#"{"file": "/etc/passwd"}"#, r#"{"env": "HOME"}"#, "1"] {
            let said = refused::<SetProject>(&format!(r#"{{"project": "p", "gate_env": {{"A": {value}}}}}"#));
            assert!(said.starts_with("`gate_env.A`: ") && said.contains("in the configuration"), "{said}");
        }
    }

    #[test]
    fn what_is_said_back_is_bounded() {
        let long = "x".repeat(60_000);
        for body in [
            format!(r#"{{"{long}": 1}}"#),
            format!(r#"{{"extensions": {{"{long}": 1}}}}"#),
            format!(r#"{{"extensions": "{long}"}}"#),
            format!(r#"{{"extensions": {{"{long}": [], "{long}": []}}}}"#),
        ] {
            let said = refused::<RequestSandbox>(&body);
            assert!(said.len() < 600 && said.contains("xxx"), "{said}");
        }
        assert!(refused::<OneAgent>(&format!(r#"{{"agent": "{long}"}}"#)).len() < 300);
        assert!(refused::<EndWork>(&format!(r#"{{"agent": "a", "outcome": "{long}"}}"#)).len() < 300);
    }
}
