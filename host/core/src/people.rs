//! Who calls, and what agents work on. Tokens are kept as hashes only; a caller's identity comes from its token and
//! from nothing else it says.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use schemars::JsonSchema;
use serde::Serialize;

use crate::crash;
use crate::error::{Code, Error, listed};
use crate::name::{AgentName, ProjectName};
use crate::owner::Tenant;
use crate::secret::{Secret, sha256_hex};
use crate::store::{Store, StoreError};

/// An authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// An agent.
    Agent {
        /// Its slug.
        name: AgentName,
        /// Its job.
        role: String,
    },
    /// An orchestrator.
    Orchestrator {
        /// Its name in the configuration.
        name: String,
        /// The projects it may name.
        projects: Vec<ProjectName>,
    },
    /// The operator.
    Operator,
}

/// The kinds of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerKind {
    /// Agents.
    Agent,
    /// Orchestrators.
    Orchestrator,
    /// The operator.
    Operator,
}

impl CallerKind {
    /// In words, as in "this is for …".
    pub fn plural(self) -> &'static str {
        match self {
            Self::Agent => "agents",
            Self::Orchestrator => "orchestrators",
            Self::Operator => "the operator",
        }
    }
}

impl Caller {
    /// What kind of caller it is.
    pub fn kind(&self) -> CallerKind {
        match self {
            Self::Agent { .. } => CallerKind::Agent,
            Self::Orchestrator { .. } => CallerKind::Orchestrator,
            Self::Operator => CallerKind::Operator,
        }
    }
}

/// An agent's binding to a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// What it works on.
    pub project: ProjectName,
    /// Tells this work from earlier ones.
    pub id: u64,
    /// Tells the agent from earlier ones of its slug; absent for agents of the configuration.
    pub incarnation: Option<u64>,
}

impl Work {
    /// The tenant that an agent with this work is.
    pub fn tenant(&self, agent: &AgentName) -> Tenant {
        Tenant { project: self.project.clone(), agent: agent.clone(), incarnation: self.incarnation }
    }
}

/// An agent as the operator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Known {
    /// Its slug.
    pub agent: AgentName,
    /// Its job.
    pub role: String,
    /// What it works on.
    pub project: Option<ProjectName>,
    /// Whether the configuration names it, rather than an orchestrator having registered it.
    pub configured: bool,
}

/// A caller that the configuration names, with the hash of its token.
#[derive(Debug, Clone)]
pub struct Configured {
    /// Who it is.
    pub caller: Caller,
    /// Hex SHA-256 of its token.
    pub token_sha256: String,
}

struct Agent {
    role: String,
    token_sha256: String,
    configured: bool,
    /// The orchestrator, or `operator`, that registered it.
    registered_by: Option<String>,
    incarnation: Option<u64>,
}

#[derive(Default)]
struct Inner {
    agents: BTreeMap<AgentName, Agent>,
    tokens: BTreeMap<String, Caller>,
    work: BTreeMap<AgentName, Work>,
}

/// Who registered an agent that the operator registered.
pub const OPERATOR: &str = "operator";

/// Everybody the host knows.
pub struct People {
    store: Arc<Store>,
    inner: RwLock<Inner>,
}

impl People {
    /// Joins the people of the configuration with the registered ones of the state file. An agent in both is the
    /// configuration's.
    ///
    /// # Errors
    /// When the state file cannot be read, or two callers have the same token.
    pub fn new(store: Arc<Store>, configured: Vec<Configured>) -> Result<Self, PeopleError> {
        let mut inner = Inner::default();
        for Configured { caller, token_sha256 } in configured {
            if let Caller::Agent { name, role } = &caller {
                let agent = Agent {
                    role: role.clone(),
                    token_sha256: token_sha256.clone(),
                    configured: true,
                    registered_by: None,
                    incarnation: None,
                };
                inner.agents.insert(name.clone(), agent);
            }
            if let Some(other) = inner.tokens.insert(token_sha256, caller.clone()) {
                return Err(PeopleError::SameToken(describe(&other), describe(&caller)));
            }
        }
        for row in store.agents()? {
            if inner.agents.contains_key(&row.name) {
                tracing::warn!(agent = %row.name, "registered and configured: the configuration counts");
                continue;
            }
            let caller = Caller::Agent { name: row.name.clone(), role: row.role.clone() };
            inner.tokens.entry(row.token_sha256.clone()).or_insert(caller);
            let registered_by = Some(row.registered_by);
            let agent = Agent {
                role: row.role,
                token_sha256: row.token_sha256,
                configured: false,
                registered_by,
                incarnation: Some(row.incarnation),
            };
            inner.agents.insert(row.name, agent);
        }
        for row in store.work()? {
            // An agent that was taken out of the configuration took its work along: whoever gets the slug next is
            // somebody else.
            let Some(agent) = inner.agents.get(&row.agent) else {
                store.end_work(&row.agent)?;
                continue;
            };
            let work = Work { project: row.project, id: row.id, incarnation: agent.incarnation };
            inner.work.insert(row.agent, work);
        }
        Ok(Self { store, inner: RwLock::new(inner) })
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has this token. The look-up compares hashes, so its timing says nothing about any token.
    pub fn authenticate(&self, token: &str) -> Option<Caller> {
        self.read().tokens.get(&sha256_hex(token)).cloned()
    }

    /// Registers an agent and answers its token, which is told this once.
    ///
    /// # Errors
    /// `invalid_state` when the slug exists.
    pub fn register(&self, name: &AgentName, role: &str, by: &str) -> Result<Secret, Error> {
        let token = Secret::token();
        let token_sha256 = sha256_hex(token.reveal());
        let mut inner = self.write();
        let incarnation = if inner.agents.contains_key(name) {
            None
        } else {
            self.store.add_agent(name, role, &token_sha256, by).map_err(internal)?
        };
        if incarnation.is_none() {
            let remediate = "choose another slug, or have the operator remove or re-token the agent that has it";
            return Err(Error::new(Code::InvalidState, format!("an agent `{name}` exists already"), remediate));
        }
        crash::here("agent written");
        let role = role.to_owned();
        inner.tokens.insert(token_sha256.clone(), Caller::Agent { name: name.clone(), role: role.clone() });
        let registered_by = Some(by.to_owned());
        inner.agents.insert(name.clone(), Agent { role, token_sha256, configured: false, registered_by, incarnation });
        Ok(token)
    }

    /// Gives a registered agent a new token; the old one stops working at once.
    ///
    /// # Errors
    /// `not_found`, or `invalid_state` for an agent of the configuration.
    pub fn rotate(&self, name: &AgentName) -> Result<Secret, Error> {
        let mut inner = self.write();
        let agent = registered(&inner, name)?;
        let (role, old, registered_by) = (agent.role.clone(), agent.token_sha256.clone(), agent.registered_by.clone());
        let incarnation = agent.incarnation;
        let token = Secret::token();
        let token_sha256 = sha256_hex(token.reveal());
        self.store.set_token(name, &token_sha256).map_err(internal)?;
        inner.tokens.remove(&old);
        inner.tokens.insert(token_sha256.clone(), Caller::Agent { name: name.clone(), role: role.clone() });
        inner.agents.insert(name.clone(), Agent { role, token_sha256, configured: false, registered_by, incarnation });
        Ok(token)
    }

    /// Removes a registered agent: its token stops working at once, and its work ends.
    ///
    /// # Errors
    /// `not_found`, or `invalid_state` for an agent of the configuration.
    pub fn remove(&self, name: &AgentName) -> Result<(), Error> {
        let mut inner = self.write();
        let old = registered(&inner, name)?.token_sha256.clone();
        self.store.remove_agent(name).map_err(internal)?;
        crash::here("agent deleted");
        inner.tokens.remove(&old);
        inner.agents.remove(name);
        inner.work.remove(name);
        Ok(())
    }

    /// All work.
    pub fn all_work(&self) -> Vec<(AgentName, Work)> {
        self.read().work.iter().map(|(agent, work)| (agent.clone(), work.clone())).collect()
    }

    /// Every agent, for the operator.
    pub fn agents(&self) -> Vec<Known> {
        let inner = self.read();
        let known = inner.agents.iter().map(|(name, agent)| Known {
            agent: name.clone(),
            role: agent.role.clone(),
            project: inner.work.get(name).map(|w| w.project.clone()),
            configured: agent.configured,
        });
        known.collect()
    }

    /// What an agent works on.
    pub fn work(&self, agent: &AgentName) -> Option<Work> {
        self.read().work.get(agent).cloned()
    }

    /// Begins work for the orchestrator `by`, in place of what the agent worked on before. Answers whether it is new:
    /// beginning the same work again changes nothing. `may_take` decides whether the earlier work may be replaced.
    ///
    /// # Errors
    /// `not_found` when there is no such agent.
    pub fn begin_work(
        &self,
        agent: &AgentName,
        project: &ProjectName,
        by: &str,
        may_take: impl FnOnce(&ProjectName) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut inner = self.write();
        let Some(known) = inner.agents.get(agent) else {
            let remediate = "register the agent first, with `register_agent` or in the configuration";
            return Err(Error::new(Code::NotFound, format!("there is no agent `{agent}`"), remediate));
        };
        if known.registered_by.as_deref().is_some_and(|r| r != by && r != OPERATOR) {
            let message = format!("the agent `{agent}` was registered by another orchestrator");
            return Err(Error::new(Code::Forbidden, message, "register an agent of your own"));
        }
        let incarnation = known.incarnation;
        if let Some(before) = inner.work.get(agent) {
            may_take(&before.project)?;
            if before.project == *project {
                return Ok(false);
            }
        }
        let id = self.store.begin_work(agent, project).map_err(internal)?;
        crash::here("work written");
        inner.work.insert(agent.clone(), Work { project: project.clone(), id, incarnation });
        Ok(true)
    }

    /// Ends an agent's work, if it has any. `may_end` decides whether this one may be ended.
    ///
    /// # Errors
    /// What `may_end` answers.
    pub fn end_work(
        &self,
        agent: &AgentName,
        may_end: impl FnOnce(&ProjectName) -> Result<(), Error>,
    ) -> Result<Option<Work>, Error> {
        let mut inner = self.write();
        let Some(work) = inner.work.get(agent).cloned() else { return Ok(None) };
        may_end(&work.project)?;
        self.store.end_work(agent).map_err(internal)?;
        crash::here("work deleted");
        inner.work.remove(agent);
        Ok(Some(work))
    }
}

fn registered<'a>(inner: &'a Inner, name: &AgentName) -> Result<&'a Agent, Error> {
    match inner.agents.get(name) {
        None => Err(Error::new(Code::NotFound, format!("there is no agent `{name}`"), "see the list of agents")),
        Some(agent) if agent.configured => Err(Error::new(
            Code::InvalidState,
            format!("the agent `{name}` is written in the configuration"),
            format!("change the table [agents.{name}] there"),
        )),
        Some(agent) => Ok(agent),
    }
}

fn internal(e: StoreError) -> Error {
    tracing::error!(error = %e, "the state file failed");
    Error::internal()
}

fn describe(caller: &Caller) -> String {
    match caller {
        Caller::Agent { name, .. } => format!("the agent `{name}`"),
        Caller::Orchestrator { name, .. } => format!("the orchestrator `{name}`"),
        Caller::Operator => "the operator".to_owned(),
    }
}

/// Why the host cannot start with these people.
#[derive(Debug, thiserror::Error)]
pub enum PeopleError {
    /// The state file failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A token says who calls, so two callers cannot share one.
    #[error("{0} and {1} have the same token")]
    SameToken(String, String),
}

/// Whether a caller may name a project.
///
/// # Errors
/// `forbidden`, with the projects it may name.
pub fn may_name(projects: &[ProjectName], project: &ProjectName) -> Result<(), Error> {
    if projects.contains(project) {
        return Ok(());
    }
    let names: Vec<_> = projects.iter().map(ProjectName::as_str).collect();
    let message = format!("this orchestrator may not act for the project `{project}`");
    let remediate = format!("its projects are {}; the operator sets them", listed(&names));
    Err(Error::new(Code::Forbidden, message, remediate).allowing(names))
}
