//! The verbs: one table from which every interface builds its routes or tools. An interface authenticates, finds the
//! verb, and hands over the body; what happens is the same everywhere.

mod boxes;
mod people;
mod sandbox;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::body::{read, read_query};
use crate::error::{Code, Error, listed, shown};
use crate::folders::Pieces;
use crate::host::Host;
use crate::metric;
use crate::name::{AgentName, ProjectName};
use crate::people::{Caller, CallerKind};
use crate::registry::Listener;

use CallerKind::{Agent, Operator, Orchestrator};
use boxes::{CreateArtifact, ListFiles, ReadArtifact, ReadFile, RunCommand, UpdateArtifact, WriteContent, WriteFile};
use people::{
    AgentGone, BeginWork, EndWork, ListAgents, ListSandboxes, RegisterAgent, RemoveAgent, RotateToken, SetProject,
    SetSwitch, SpawnEnv,
};
use sandbox::{ReleaseSandbox, RenewSandbox, RequestSandbox, SandboxClient, SandboxStatus};

/// A verb being done.
type Running<'a> = BoxFuture<'a, Result<Value, Error>>;

/// One verb.
#[derive(Debug, Clone, Copy)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Who may call it.
    pub callers: &'static [CallerKind],
    /// Whether only agents with a role that may ask for sandboxes may call it.
    pub by_role: bool,
    /// Whether its body may hold a whole file, or be one; see [`write_content`].
    pub carries_file: bool,
    /// Whether its answer may be a file; see [`read_content`].
    pub answers_file: bool,
    /// One line for a caller.
    pub summary: &'static str,
    takes: fn() -> Map<String, Value>,
    answers: fn() -> Map<String, Value>,
    run: for<'a> fn(Call<'a>, &'a [u8]) -> Running<'a>,
}

/// A verb whose body is read into a `B`, which then does it.
const fn verb<B: Body>(name: &'static str, callers: &'static [CallerKind], summary: &'static str) -> Verb {
    Verb {
        name,
        callers,
        by_role: false,
        carries_file: false,
        answers_file: false,
        summary,
        takes: || schema::<B>(SchemaSettings::draft2020_12().for_deserialize()),
        answers: || schema::<Envelope<B::Evidence>>(SchemaSettings::draft2020_12().for_serialize()),
        run: |call, body| {
            async move {
                let evidence = read::<B>(body)?.run(call).await?;
                serde_json::to_value(evidence).map_err(|_| Error::internal())
            }
            .boxed()
        },
    }
}

/// A verb for agents that makes a box where there is none.
const fn in_box<B: Body>(name: &'static str, summary: &'static str) -> Verb {
    Verb { by_role: true, ..verb::<B>(name, &[Agent], summary) }
}

/// Every verb.
pub const VERBS: &[Verb] = &[
    Verb {
        by_role: true,
        ..verb::<RequestSandbox>(
            "request_sandbox",
            &[Agent],
            "Get the throwaway services of the project you work on, with their connection variables. Repeat it freely: \
             what you have is answered again.",
        )
    },
    verb::<ReleaseSandbox>("release_sandbox", &[Agent], "Give your sandbox back. Its data is gone then."),
    verb::<SandboxStatus>("sandbox_status", &[Agent], "See what you have: services, extensions, age and lease."),
    verb::<RenewSandbox>("renew_sandbox", &[Agent], "Start the lease of your sandbox anew, as any other call does."),
    verb::<SandboxClient>(
        "sandbox_client",
        &[Agent],
        "Learn how to open the own client of a service that you have (such as a shell for its queries) in its container, \
         where you may use Docker there.",
    ),
    in_box::<RunCommand>(
        "run_command",
        "Run a command in your box, and get its exit code and output. It ends when you go away.",
    ),
    Verb {
        carries_file: true,
        ..in_box::<WriteFile>("write_file", "Write a file in the work folder of your box, whole or not at all.")
    },
    Verb { answers_file: true, ..in_box::<ReadFile>("read_file", "Read a file of the work folder of your box.") },
    in_box::<ListFiles>("list_files", "List a directory of the work folder of your box."),
    in_box::<CreateArtifact>("create_artifact", "Copy a file out of your box to where it stays when the box goes."),
    in_box::<UpdateArtifact>("update_artifact", "Copy a file out of your box in place of an artifact of yours."),
    Verb {
        by_role: true,
        ..verb::<ReadArtifact>(
            "read_artifact",
            &[Agent, Orchestrator],
            "Read an artifact of yours, or of a project of yours.",
        )
    },
    verb::<RegisterAgent>(
        "register_agent",
        &[Orchestrator, Operator],
        "Make an agent known. Its token is answered this once.",
    ),
    verb::<BeginWork>("begin_work", &[Orchestrator], "Bind an agent to a project."),
    verb::<EndWork>("end_work", &[Orchestrator], "End an agent's work, with its outcome. Its sandbox goes."),
    verb::<AgentGone>("agent_gone", &[Orchestrator], "Tell that an agent is gone. Its work ends and its sandbox goes."),
    verb::<SpawnEnv>("spawn_env", &[Orchestrator], "Learn what to start an agent with."),
    verb::<SetSwitch>("set_switch", &[Operator], "Turn sandboxes on or off. Off refuses new requests only."),
    verb::<SetProject>("set_project", &[Operator], "Declare a project, in place of what was declared of it before."),
    verb::<ListAgents>("list_agents", &[Operator], "See every agent with its role and work."),
    verb::<ListSandboxes>("list_sandboxes", &[Operator], "See what everybody has: services, state, age and memory."),
    verb::<RotateToken>(
        "rotate_token",
        &[Operator],
        "Give a registered agent a new token. The old one stops working at once.",
    ),
    verb::<RemoveAgent>("remove_agent", &[Operator], "Remove a registered agent: its token, its work and its sandbox."),
];

/// What a verb answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// What happened.
    pub evidence: Value,
    /// When the caller's lease ends, where it has a sandbox.
    pub lease_expires_at: Option<String>,
}

/// The one shape of every answer. An object in every case, since MCP has no schema for anything else.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Envelope<E> {
    /// Whether it was done.
    pub ok: bool,
    /// What happened, if it was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<E>,
    /// What went wrong, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// When the caller's lease ends, null where it has no sandbox. Not there with an error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Option<String>>,
    /// What to tell the operator about this call.
    pub request_id: String,
}

impl Envelope<Value> {
    /// Puts what a verb answered, or why it did not, in an envelope.
    pub fn new(result: Result<Reply, Error>, request_id: String) -> Self {
        match result {
            Ok(Reply { evidence, lease_expires_at }) => Self {
                ok: true,
                evidence: Some(evidence),
                error: None,
                lease_expires_at: Some(lease_expires_at),
                request_id,
            },
            Err(error) => Self { ok: false, evidence: None, error: Some(error), lease_expires_at: None, request_id },
        }
    }
}

impl Verb {
    /// The JSON schema of its body.
    pub fn takes(&self) -> Map<String, Value> {
        (self.takes)()
    }

    /// The JSON schema of its envelope.
    pub fn answers(&self) -> Map<String, Value> {
        (self.answers)()
    }

    /// Whether it is a verb of this caller.
    ///
    /// # Errors
    /// `forbidden`, with whose it is.
    pub fn is_for(&self, host: &Host, caller: &Caller) -> Result<(), Error> {
        if !self.callers.contains(&caller.kind()) {
            let whose = self.callers.iter().map(|k| k.plural()).collect::<Vec<_>>().join(" and ");
            let message = format!("`{}` is for {whose}", self.name);
            return Err(Error::new(Code::Forbidden, message, "use the token of a caller that it is for"));
        }
        match caller {
            Caller::Agent { role, .. } if self.by_role => host.role_may_ask(role),
            _ => Ok(()),
        }
    }
}

/// Everything written out where it is used: not every client follows references.
fn schema<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let settings = settings.with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    // It is the name of a type of the host.
    schema.remove("title");
    schema.as_object().cloned().unwrap_or_default()
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
    verb.is_for(host, caller)?;
    Ok(verb)
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
    let run = (verb.run)(Call { host, caller, listener }, body);
    let (evidence, lease_expires_at) = counted(host, caller, verb.name, run).await?;
    Ok(Reply { evidence, lease_expires_at })
}

/// `write_file` with the content as it is, of any size that the box may hold; what else it takes is in `query`, as in the
/// query of a URL.
///
/// # Errors
/// What the caller is told.
pub async fn write_content(host: &Host, caller: &Caller, query: &str, content: Pieces) -> Result<Reply, Error> {
    let fields = read_query::<WriteContent>(query)?;
    let (written, lease_expires_at) =
        counted(host, caller, "write_file", fields.write(Call { host, caller, listener: None }, content)).await?;
    let evidence = serde_json::to_value(written).map_err(|_| Error::internal())?;
    Ok(Reply { evidence, lease_expires_at })
}

/// `read_file` with the content as it is, as much of it as is asked for; what it takes is in `query`.
///
/// # Errors
/// What the caller is told.
pub async fn read_content(host: &Host, caller: &Caller, query: &str) -> Result<Pieces, Error> {
    let fields = read_query::<ReadFile>(query)?;
    Ok(counted(host, caller, "read_file", fields.open(Call { host, caller, listener: None })).await?.0)
}

/// Does it on the caller's books, and answers when its lease ends.
async fn counted<T>(
    host: &Host,
    caller: &Caller,
    verb: &'static str,
    run: impl Future<Output = Result<T, Error>>,
) -> Result<(T, Option<String>), Error> {
    let run = async {
        let result = run.await;
        metric::request(verb, &result);
        result
    };
    let Caller::Agent { name, .. } = caller else { return Ok((run.await?, None)) };
    host.registry().call_came(name);
    let done = run.await?;
    host.registry().call_ended(name);
    Ok((done, host.lease_expires_at(name)))
}

/// A call of a verb.
#[derive(Clone, Copy)]
struct Call<'a> {
    host: &'a Host,
    caller: &'a Caller,
    listener: Option<&'a Listener>,
}

impl<'a> Call<'a> {
    /// The caller of a verb that is for agents.
    fn agent(&self) -> Result<&'a AgentName, Error> {
        match self.caller {
            Caller::Agent { name, .. } => Ok(name),
            _ => Err(Error::internal()),
        }
    }

    /// The caller of a verb that is for orchestrators, and the projects it may name.
    fn orchestrator(&self) -> Result<(&'a str, &'a [ProjectName]), Error> {
        match self.caller {
            Caller::Orchestrator { name, projects } => Ok((name, projects)),
            _ => Err(Error::internal()),
        }
    }
}

/// The body of a verb, and what is done with it.
trait Body: DeserializeOwned + JsonSchema + Send {
    type Evidence: Serialize + JsonSchema;

    fn run(self, call: Call<'_>) -> impl Future<Output = Result<Self::Evidence, Error>> + Send;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
                said.extend(read::<ReleaseSandbox>(body).err());
                said.extend(read::<RequestSandbox>(body).err());
                said.extend(read::<RegisterAgent>(body).err());
                said.extend(read::<BeginWork>(body).err());
                said.extend(read::<EndWork>(body).err());
                said.extend(read::<AgentGone>(body).err());
                said.extend(read::<SetSwitch>(body).err());
                said.extend(read::<SetProject>(body).err());
            }
        }
        assert!(said.len() > 500, "{}", said.len());
        for Error { message, .. } in said {
            for word in ["struct", "enum", "newtype", "tuple", "Sandbox", "Agent", "Work", "Set", "`?`", ".?"] {
                assert!(!message.contains(word), "{message}");
            }
        }
    }

    #[test]
    fn an_object_is_taken_and_nothing_by_position() {
        assert!(refused::<RequestSandbox>(r#"[["redis"],null,true]"#).contains("JSON object"));
        assert!(refused::<ReleaseSandbox>("[]").contains("JSON object"));
        assert!(read::<ReleaseSandbox>(b"").is_ok() && read::<ReleaseSandbox>(b" {} ").is_ok());
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
        assert!(refused::<AgentGone>(&format!(r#"{{"agent": "{long}"}}"#)).len() < 300);
        assert!(refused::<EndWork>(&format!(r#"{{"agent": "a", "outcome": "{long}"}}"#)).len() < 300);
    }

    #[test]
    fn every_verb_has_schemas_that_speak_for_themselves() {
        for verb in VERBS {
            let (takes, answers) = (verb.takes(), verb.answers());
            assert_eq!(
                (&takes["type"], &takes["additionalProperties"]),
                (&json!("object"), &json!(false)),
                "{}",
                verb.name
            );
            assert_eq!((&answers["type"], &answers["required"]), (&json!("object"), &json!(["ok", "request_id"])));
            for property in ["evidence", "error", "lease_expires_at"] {
                assert!(answers["properties"][property].is_object(), "{}: {property}", verb.name);
            }
            for field in takes.get("properties").and_then(Value::as_object).into_iter().flatten() {
                assert!(field.1["description"].is_string(), "{}: {}", verb.name, field.0);
            }
            let text = json!([takes, answers]).to_string();
            assert!(!text.contains("$ref") && !text.contains("\"title\""), "{}: {text}", verb.name);
        }
    }

    #[test]
    fn a_name_is_a_verb_s_once() {
        let names: std::collections::BTreeSet<_> = VERBS.iter().map(|v| v.name).collect();
        assert_eq!(names.len(), VERBS.len());
    }
}
