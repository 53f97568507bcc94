//! The verbs: one table from which every interface builds its routes or tools. An interface authenticates, finds the
//! verb, and hands over the body; what happens is the same everywhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::body::{Plain, Unique, read};
use crate::error::{Code, Error, listed, shown};
use crate::host::Host;
use crate::name::{AgentName, ProjectName, ServiceName};
use crate::people::{Caller, CallerKind, OPERATOR};
use crate::project::{Declared, GateValue};
use crate::registry::Listener;

/// One verb.
#[derive(Debug, Clone, Copy)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Who may call it.
    pub callers: &'static [CallerKind],
    /// Whether only agents with a role that may ask for sandboxes may call it.
    pub by_role: bool,
    /// One line for a caller.
    pub summary: &'static str,
}

const fn verb(name: &'static str, callers: &'static [CallerKind], summary: &'static str) -> Verb {
    Verb { name, callers, by_role: false, summary }
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
    superuser: bool,
    /// Written out: whoever may call a verb may not for that read the host's files and environment.
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
        _ => Err(Error::internal()),
    }
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
            let SetProject { project, services, extensions, superuser, gate_env } = read(body)?;
            let gate_env: BTreeMap<_, _> =
                gate_env.0.into_iter().map(|(k, Plain(v))| (k, GateValue::Plain(v))).collect();
            let declared = Declared { services, extensions: extensions.0, superuser, gate_env };
            let project = host.set_project(project, declared)?;
            Ok(json!({
                "project": project.name,
                "services": project.services,
                "extensions": project.extensions,
                "superuser": project.superuser,
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
