//! The network of the sandboxes: made when it is not there, labelled, and one of its name even when several hosts make it
//! at the same moment. Removes none but those with this installation's labels.
//!
//! And a second one that leads nowhere, which keeps boxes with a network from the link-local addresses under which clouds
//! tell every process of a machine that machine's credentials. It claims all of them: who is in it has a route to them that
//! is more exact than its default route, and ends at a bridge on which neither this machine nor, as its members may not
//! talk to each other, anything else answers. Nothing inside can change a route without `NET_ADMIN`.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{Ipam, IpamConfig, NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest};
use bollard::query_parameters::ListNetworksOptions;
use sandbar_core::runtime::{Labels, Result, RuntimeError};
use tokio::sync::Mutex;

use crate::errors::{CallError, within};
use crate::limits;

/// All link-local addresses.
const LINK_LOCAL: &str = "169.254.0.0/16";
/// The address that the clouds have in common. Docker gives it to no member of a network of which it is the gateway.
const METADATA: &str = "169.254.169.254";
/// What makes a bridge lead nowhere: this machine has no address on it, so that its own way to [`METADATA`] stays, and its
/// members do not reach each other.
const DEAD: [(&str, &str); 2] =
    [("com.docker.network.bridge.inhibit_ipv4", "true"), ("com.docker.network.bridge.enable_icc", "false")];

/// A network's name and labels.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    labels: Labels,
    /// Whether it is the one that leads nowhere.
    nowhere: bool,
    /// Held while the network is looked for and made: the services of a sandbox are all made at once.
    making: Mutex<()>,
}

impl Network {
    pub(crate) fn new(name: String, labels: Labels) -> Self {
        Self { name, labels, nowhere: false, making: Mutex::new(()) }
    }

    /// The one that leads nowhere, beside `self`.
    pub(crate) fn nowhere(&self) -> Self {
        let name = format!("{}_nowhere", self.name);
        Self { name, labels: self.labels.clone(), nowhere: true, making: Mutex::new(()) }
    }

    /// Sees to it that the network is there.
    ///
    /// Before 23.0 Docker lets two networks have one name, and a container can then be started in neither. So whoever
    /// finds another one beside the one it just made takes its own back and looks again. Of two that were made at the
    /// same moment at least one sees the other, so two never stay; but they can be there for a moment after this has found
    /// one, and [`is_unsettled`] is how that shows.
    pub(crate) async fn ensure(&self, docker: &Docker) -> Result<()> {
        // Nearly always it is there, and then nobody waits for anybody.
        if self.ids(docker).await?.len() == 1 {
            return Ok(());
        }
        let _making = self.making.lock().await;
        for attempt in 1..=limits::NETWORK_TRIES {
            match self.ids(docker).await?.len() {
                0 => {}
                1 => return Ok(()),
                _ => {
                    tokio::time::sleep(pause(attempt)).await;
                    continue;
                }
            }
            let Some(made) = self.create(docker).await? else { continue };
            if self.ids(docker).await?.iter().all(|id| *id == made) {
                tracing::info!(network = self.name, "made the network");
                return Ok(());
            }
            // Refused when somebody has started a container in it already; then the other one goes.
            if let Err(error) = within(limits::REMOVE, docker.remove_network(&made)).await {
                tracing::debug!(network = self.name, ?error, "the second network stays for now");
            }
            tokio::time::sleep(pause(attempt)).await;
        }
        Err(RuntimeError::Failed(format!(
            "there are several networks `{}`, so no container can be started in it: remove all but one",
            self.name
        )))
    }

    /// Removes the network if it carries our labels and nothing is connected to it; Docker itself refuses the latter.
    pub(crate) async fn retire(&self, docker: &Docker) -> Result<()> {
        let _making = self.making.lock().await;
        for network in self.named(docker).await? {
            if let (true, Some(id)) = (self.has_our_labels(&network), network.id) {
                match within(limits::REMOVE, docker.remove_network(&id)).await.map_err(RuntimeError::from) {
                    Ok(()) | Err(RuntimeError::NotFound(_)) => {}
                    // Other installations are in it.
                    Err(RuntimeError::Refused(_) | RuntimeError::Failed(_)) if self.nowhere => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Puts a container that does not run into the network, which is there. Where it was in one of that name before it is in
    /// the one that has the name now.
    pub(crate) async fn join(&self, docker: &Docker, id: &str) -> Result<()> {
        for network in self.usable(docker).await? {
            let name = network.name.as_deref().unwrap_or(&self.name);
            let leave = NetworkDisconnectRequest { container: id.to_owned(), force: Some(true) };
            match within(limits::CREATE, docker.disconnect_network(name, leave)).await {
                Ok(()) => {}
                // It was never in it.
                Err(CallError::Answered { message, .. }) if message.contains("is not connected to") => {}
                Err(error) => return Err(error.into()),
            }
            let join = NetworkConnectRequest { container: id.to_owned(), endpoint_config: None };
            within(limits::CREATE, docker.connect_network(name, join)).await?;
        }
        Ok(())
    }

    /// Whether it is there and carries our labels.
    pub(crate) async fn is_ours(&self, docker: &Docker) -> Result<bool> {
        Ok(self.named(docker).await?.iter().any(|network| self.has_our_labels(network)))
    }

    fn has_our_labels(&self, network: &bollard::models::Network) -> bool {
        let labels = network.labels.as_ref();
        self.labels.iter().all(|(key, value)| labels.is_some_and(|l| l.get(key) == Some(value)))
    }

    async fn ids(&self, docker: &Docker) -> Result<Vec<String>> {
        Ok(self.usable(docker).await?.into_iter().filter_map(|network| network.id).collect())
    }

    /// The networks that would do; more than one is a conflict. Of those that lead nowhere any would, whoever made it: Docker
    /// has each address in one network only, so that installations have to share.
    async fn usable(&self, docker: &Docker) -> Result<Vec<bollard::models::Network>> {
        if !self.nowhere {
            return self.named(docker).await;
        }
        let networks = within(limits::LIST, docker.list_networks(None)).await?;
        networks.into_iter().filter(claims_link_local).map(leads_nowhere).collect()
    }

    /// All networks with exactly this name. (Docker's filter also finds names that contain it.)
    async fn named(&self, docker: &Docker) -> Result<Vec<bollard::models::Network>> {
        let filters = HashMap::from([("name".to_owned(), vec![self.name.clone()])]);
        let options = ListNetworksOptions { filters: Some(filters) };
        let networks = within(limits::LIST, docker.list_networks(Some(options))).await?;
        Ok(networks.into_iter().filter(|network| network.name.as_deref() == Some(self.name.as_str())).collect())
    }

    /// Makes one; `None` when somebody else has done so in the meantime.
    async fn create(&self, docker: &Docker) -> Result<Option<String>> {
        let request = NetworkCreateRequest {
            name: self.name.clone(),
            driver: Some("bridge".to_owned()),
            labels: Some(self.labels.clone().into_iter().collect()),
            internal: self.nowhere.then_some(true),
            options: self.nowhere.then(|| DEAD.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ipam: self.nowhere.then(|| Ipam { config: Some(vec![link_local()]), ..Ipam::default() }),
            ..NetworkCreateRequest::default()
        };
        if self.nowhere {
            knows_dead_bridges(docker).await?;
        }
        match within(limits::CREATE, docker.create_network(request)).await {
            Ok(made) => Ok(Some(made.id)),
            Err(error) if error.conflict().is_some() => Ok(None),
            // Somebody else made it in the meantime.
            Err(CallError::Answered { message, .. }) if self.nowhere && message.contains("overlaps") => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn link_local() -> IpamConfig {
    IpamConfig { subnet: Some(LINK_LOCAL.to_owned()), gateway: Some(METADATA.to_owned()), ..IpamConfig::default() }
}

/// Whether a network has a link-local address.
fn claims_link_local(network: &bollard::models::Network) -> bool {
    let pools = network.ipam.as_ref().and_then(|ipam| ipam.config.as_deref()).unwrap_or_default();
    pools.iter().any(|pool| pool.subnet.as_deref().is_some_and(|subnet| subnet.starts_with("169.254.")))
}

/// A network that has link-local addresses, if it is one that leads nowhere.
fn leads_nowhere(network: bollard::models::Network) -> Result<bollard::models::Network> {
    let pools = network.ipam.as_ref().and_then(|ipam| ipam.config.as_deref()).unwrap_or_default();
    let options = network.options.as_ref();
    let dead = DEAD.iter().all(|(key, value)| options.is_some_and(|o| o.get(*key).map(String::as_str) == Some(*value)));
    let whole = pools.len() == 1 && pools[0].subnet.as_deref() == Some(LINK_LOCAL);
    if dead && whole && network.internal == Some(true) {
        return Ok(network);
    }
    Err(RuntimeError::Failed(format!(
        "the network `{}` has link-local addresses, so nothing can be kept from them: remove it, or give boxes no network",
        network.name.unwrap_or_default()
    )))
}

/// Podman has bridges too and would give this machine the address that is meant for nobody.
async fn knows_dead_bridges(docker: &Docker) -> Result<()> {
    let version = within(limits::LOOK, docker.version()).await?;
    let parts = version.components.unwrap_or_default();
    if parts.iter().any(|part| part.name.to_lowercase().contains("podman")) {
        return Err(RuntimeError::Refused(
            "Podman cannot keep a box from link-local addresses, where clouds keep credentials: give boxes no network"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Whether these are Docker's words for a network that is not there any more.
pub(crate) fn is_lost(message: &str) -> bool {
    message.starts_with("network ") && message.contains("not found")
}

/// Whether a start failed because the network was not the only one of its name, or had just been taken back.
pub(crate) fn is_unsettled(error: &CallError) -> bool {
    match error {
        CallError::Answered { message, .. } => {
            is_lost(message) || (message.starts_with("network ") && message.contains("is ambiguous"))
        }
        CallError::Other(_) => false,
    }
}

/// Two hosts that meet wait for different times, so that they do not meet again.
fn pause(attempt: u32) -> Duration {
    let share = f64::from(std::process::id() % 97) / 97.0;
    limits::NETWORK_PAUSE.mul_f64(f64::from(attempt) * (1.0 + share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_s_words_for_an_unsettled_network_are_known() {
        let says = |message: &str| is_unsettled(&CallError::Answered { status: 400, message: message.to_owned() });
        assert!(says("network sandbar_default is ambiguous (2 matches found on name)"));
        assert!(says("network sandbar_default not found"));
        assert!(!says("No such container: network"));
        assert!(!is_unsettled(&CallError::Other(RuntimeError::Failed("network x not found".to_owned()))));
    }

    #[test]
    fn pauses_grow_with_the_attempts() {
        assert!(pause(1) >= limits::NETWORK_PAUSE && pause(2) > pause(1));
    }
}
