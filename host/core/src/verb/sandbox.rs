//! What an agent does with its sandbox.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::body::Unique;
use crate::host::{Client, Explained, Status};
use crate::name::ServiceName;
use crate::sandbox::Evidence;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestSandbox {
    /// The services to answer; all that the project opted in to where left out.
    services: Option<Vec<String>>,
    /// Extensions to activate, by service, beside those that the project always has.
    #[serde(default)]
    extensions: Option<Unique<String, Vec<String>>>,
    /// Only say what would be done, and how long each step of making or waking what is there took.
    #[serde(default)]
    explain: bool,
}

/// What was given, or what would be done, by service.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Given {
    Evidence(BTreeMap<String, Evidence>),
    Explained(BTreeMap<ServiceName, Explained>),
}

impl Body for RequestSandbox {
    type Evidence = Given;

    async fn run(self, call: Call<'_>) -> Result<Given, Error> {
        let services = self.services.map(|s| s.into_iter().collect::<BTreeSet<_>>());
        if services.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(Error::bad_request("`services` is empty: name some, or leave it out to get all"));
        }
        let Unique(extensions) = self.extensions.unwrap_or_default();
        let extensions = extensions.into_iter().map(|(s, f)| (s, f.into_iter().collect())).collect();
        let (host, agent) = (call.host, call.agent()?);
        if self.explain {
            host.explain(agent, services.as_ref(), &extensions).await.map(Given::Explained)
        } else {
            host.request_sandbox(agent, services.as_ref(), &extensions, call.listener).await.map(Given::Evidence)
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseSandbox {}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Released {
    /// The services that were given back.
    released: Vec<ServiceName>,
}

impl Body for ReleaseSandbox {
    type Evidence = Released;

    async fn run(self, call: Call<'_>) -> Result<Released, Error> {
        Ok(Released { released: call.host.release(call.agent()?, "release_sandbox").await })
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SandboxStatus {}

impl Body for SandboxStatus {
    type Evidence = Status;

    async fn run(self, call: Call<'_>) -> Result<Status, Error> {
        call.host.health().knows_what_exists()?;
        Ok(call.host.status(call.agent()?))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SandboxClient {
    /// The service.
    service: ServiceName,
}

impl Body for SandboxClient {
    type Evidence = Client;

    async fn run(self, call: Call<'_>) -> Result<Client, Error> {
        call.host.client(call.agent()?, &self.service).await
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RenewSandbox {}

impl Body for RenewSandbox {
    type Evidence = Status;

    async fn run(self, call: Call<'_>) -> Result<Status, Error> {
        // Any call renews the lease.
        SandboxStatus {}.run(call).await
    }
}
