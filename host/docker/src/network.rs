//! The network of the sandboxes: made when it is not there, labelled, and one of its name even when several hosts make it
//! at the same moment. Removes none but those with this installation's labels.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::models::{NetworkConnectRequest, NetworkCreateRequest, NetworkDisconnectRequest};
use bollard::query_parameters::ListNetworksOptions;
use sandbar_core::runtime::{Labels, Result, RuntimeError};
use tokio::sync::Mutex;

use crate::errors::{CallError, within};
use crate::limits;

/// The network's name and labels.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) name: String,
    labels: Labels,
    /// Held while the network is looked for and made: the services of a sandbox are all made at once.
    making: Mutex<()>,
}

impl Network {
    pub(crate) fn new(name: String, labels: Labels) -> Self {
        Self { name, labels, making: Mutex::new(()) }
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
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Puts a container that does not run into the network that has the name now.
    pub(crate) async fn rejoin(&self, docker: &Docker, id: &str) -> Result<()> {
        let leave = NetworkDisconnectRequest { container: id.to_owned(), force: Some(true) };
        within(limits::CREATE, docker.disconnect_network(&self.name, leave)).await?;
        let join = NetworkConnectRequest { container: id.to_owned(), endpoint_config: None };
        Ok(within(limits::CREATE, docker.connect_network(&self.name, join)).await?)
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
        Ok(self.named(docker).await?.into_iter().filter_map(|network| network.id).collect())
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
            ..NetworkCreateRequest::default()
        };
        match within(limits::CREATE, docker.create_network(request)).await {
            Ok(made) => Ok(Some(made.id)),
            Err(error) if error.conflict().is_some() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
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
