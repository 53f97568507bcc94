//! What orchestrators and the operator do about agents and projects.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{Schema, SchemaGenerator, json_schema};

use super::*;
use crate::body::{Plain, Unique};
use crate::host::{Had, Spawn};
use crate::name::ServiceName;
use crate::people::{Known, OPERATOR};
use crate::project::{Declared, GateValue};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegisterAgent {
    /// Its slug.
    agent: AgentName,
    /// Its job, which decides whether it may ask for sandboxes.
    #[schemars(pattern("^[a-z0-9_-]{1,32}$"))]
    role: String,
}

/// An agent's token.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Registered {
    /// Its slug.
    agent: AgentName,
    /// Its job.
    role: String,
    /// Its token, which is not told again.
    token: String,
}

impl Body for RegisterAgent {
    type Evidence = Registered;

    async fn run(self, call: Call<'_>) -> Result<Registered, Error> {
        let Self { agent, role } = self;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-".contains(c);
        if role.is_empty() || role.len() > 32 || !role.chars().all(plain) {
            return Err(Error::bad_request("`role`: it must match [a-z0-9_-]{1,32}"));
        }
        let by = match call.caller {
            Caller::Operator => OPERATOR,
            _ => call.orchestrator()?.0,
        };
        let token = call.host.people().register(&agent, &role, by)?;
        tracing::info!(target: "audit", %agent, role, by, "register_agent");
        Ok(Registered { agent, role, token: token.reveal().to_owned() })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BeginWork {
    /// The agent.
    agent: AgentName,
    /// What it works on from now on.
    project: ProjectName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Begun {
    /// The agent.
    agent: AgentName,
    /// What it works on.
    project: ProjectName,
}

impl Body for BeginWork {
    type Evidence = Begun;

    async fn run(self, call: Call<'_>) -> Result<Begun, Error> {
        let Self { agent, project } = self;
        let (by, projects) = call.orchestrator()?;
        call.host.begin_work(by, projects, &agent, &project).await?;
        Ok(Begun { agent, project })
    }
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

impl JsonSchema for Outcome {
    fn schema_name() -> Cow<'static, str> {
        "Outcome".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": OUTCOMES })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EndWork {
    /// The agent.
    agent: AgentName,
    /// How its work ended.
    outcome: Outcome,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Ended {
    /// The agent.
    agent: AgentName,
    /// Whether it had work.
    ended: bool,
}

impl Body for EndWork {
    type Evidence = Ended;

    async fn run(self, call: Call<'_>) -> Result<Ended, Error> {
        let Self { agent, outcome: Outcome(why) } = self;
        let ended = call.host.end_work(call.orchestrator()?.1, &agent, &why).await?;
        Ok(Ended { agent, ended })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AgentGone {
    /// The agent.
    agent: AgentName,
}

impl Body for AgentGone {
    type Evidence = Ended;

    async fn run(self, call: Call<'_>) -> Result<Ended, Error> {
        let Self { agent } = self;
        let ended = call.host.end_work(call.orchestrator()?.1, &agent, "agent_gone").await?;
        Ok(Ended { agent, ended })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SpawnEnv {
    /// The agent that is to be started.
    agent: AgentName,
    /// What it will work on.
    project: ProjectName,
}

impl Body for SpawnEnv {
    type Evidence = Spawn;

    async fn run(self, call: Call<'_>) -> Result<Spawn, Error> {
        call.host.spawn_env(call.orchestrator()?.1, &self.agent, &self.project)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetSwitch {
    /// Whether sandboxes may be asked for.
    enabled: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Switch {
    /// Whether sandboxes may be asked for.
    enabled: bool,
}

impl Body for SetSwitch {
    type Evidence = Switch;

    async fn run(self, call: Call<'_>) -> Result<Switch, Error> {
        let Self { enabled } = self;
        call.host.set_switch(enabled)?;
        Ok(Switch { enabled })
    }
}

/// A project and what is declared of it.
// Flattening what the configuration reads would let unknown fields through.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SetProject {
    /// The project.
    project: ProjectName,
    /// The services it opts in to.
    #[serde(default)]
    services: Vec<ServiceName>,
    /// The extensions that its sandboxes always have, by service.
    #[serde(default)]
    extensions: Unique<ServiceName, Vec<String>>,
    /// Services kept by tenant; the others are throwaway.
    #[serde(default)]
    retained: Vec<ServiceName>,
    /// Whether the accounts it gets are without restrictions.
    #[serde(default)]
    superuser: bool,
    /// Whether its boxes are in the sandbox network, rather than without any.
    #[serde(default)]
    box_network: bool,
    /// What an agent is started with when the project has no sandboxes.
    // Written out: whoever may call a verb may not for that read the host's files and environment.
    #[serde(default)]
    gate_env: Unique<String, Plain>,
}

/// A project as it is declared now.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProjectSet {
    /// The project.
    project: ProjectName,
    /// The services it opted in to.
    services: Vec<ServiceName>,
    /// The extensions that its sandboxes always have, by service.
    extensions: BTreeMap<ServiceName, Vec<String>>,
    /// Services kept by tenant.
    retained: Vec<ServiceName>,
    /// Whether the accounts it gets are without restrictions.
    superuser: bool,
    /// Whether its boxes are in the sandbox network.
    box_network: bool,
    /// The names of the variables that an agent is started with when the project has no sandboxes.
    gate_env: Vec<String>,
}

impl Body for SetProject {
    type Evidence = ProjectSet;

    async fn run(self, call: Call<'_>) -> Result<ProjectSet, Error> {
        let Self { project, services, extensions, retained, superuser, box_network, gate_env } = self;
        let gate_env = gate_env.0.into_iter().map(|(k, Plain(v))| (k, GateValue::Plain(v))).collect();
        let declared = Declared { services, extensions: extensions.0, retained, superuser, box_network, gate_env };
        let project = call.host.set_project(project, declared)?;
        Ok(ProjectSet {
            project: project.name.clone(),
            services: project.services.clone(),
            extensions: project.extensions.clone(),
            retained: project.retained.iter().cloned().collect(),
            superuser: project.superuser,
            box_network: project.box_network,
            gate_env: project.gate_env.keys().cloned().collect(),
        })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListAgents {}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Agents {
    /// Every agent.
    agents: Vec<Known>,
}

impl Body for ListAgents {
    type Evidence = Agents;

    async fn run(self, call: Call<'_>) -> Result<Agents, Error> {
        Ok(Agents { agents: call.host.people().agents() })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSandboxes {}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Sandboxes {
    /// Every service that somebody has, by agent.
    sandboxes: Vec<Had>,
}

impl Body for ListSandboxes {
    type Evidence = Sandboxes;

    async fn run(self, call: Call<'_>) -> Result<Sandboxes, Error> {
        Ok(Sandboxes { sandboxes: call.host.list_sandboxes().await? })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RotateToken {
    /// The agent.
    agent: AgentName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Rotated {
    /// The agent.
    agent: AgentName,
    /// Its token, which is not told again.
    token: String,
}

impl Body for RotateToken {
    type Evidence = Rotated;

    async fn run(self, call: Call<'_>) -> Result<Rotated, Error> {
        let Self { agent } = self;
        let token = call.host.people().rotate(&agent)?;
        tracing::info!(target: "audit", %agent, "rotate_token");
        Ok(Rotated { agent, token: token.reveal().to_owned() })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveAgent {
    /// The agent.
    agent: AgentName,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Removed {
    /// The agent that was.
    agent: AgentName,
}

impl Body for RemoveAgent {
    type Evidence = Removed;

    async fn run(self, call: Call<'_>) -> Result<Removed, Error> {
        let Self { agent } = self;
        call.host.remove_agent(&agent).await?;
        Ok(Removed { agent })
    }
}
