//! What happens to containers, as Docker tells it: those of agents matter too, and nobody knows their labels and names
//! beforehand. Docker keeps only a short memory of events and loses it when it restarts, so the receiver is told where a
//! gap begins and where it ends: Docker may be back and asked for other things before its events are.
//!
//! An end may be told more than once: a container that dies and is removed has two events, and the seams between two
//! subscriptions overlap.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt as _;
use sandbar_core::runtime::{Event, Labels};
use tokio::sync::mpsc;

use crate::connect::{self, Connection};
use crate::limits::{self, growing};

/// What Docker adds to a container's labels in an event; a label of that name cannot be told from it.
const ADDED: [&str; 6] = ["image", "name", "exitCode", "execDuration", "signal", "execID"];

/// The receiver is gone.
struct Left;

/// Follows events until the receiver is dropped. Needs a Tokio runtime.
pub(crate) fn watch(connection: Arc<Connection>) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(limits::EVENTS_HELD);
    // Taken now: what happens from this call on is told, however long the connection takes.
    let since = start();
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            Left = follow(&connection, since, &sender) => {}
        }
    });
    receiver
}

async fn follow(connection: &Connection, mut since: u64, sender: &mpsc::Sender<Event>) -> Left {
    let mut failures = 0;
    let mut gap = false;
    loop {
        if let Ok(docker) = connection.answering().await {
            if gap {
                // Before the receiver looks, so that what happens while it does is told as well.
                since = start();
                if sender.send(Event::Resumed).await.is_err() {
                    return Left;
                }
                tracing::info!("following Docker's events again");
                gap = false;
            }
            let began = tokio::time::Instant::now();
            if let Err(left) = subscription(&docker, since, sender).await {
                return left;
            }
            if began.elapsed() > limits::EVENTS_BACKOFF.1 {
                failures = 0;
            }
        }
        if !gap {
            gap = true;
            tracing::info!("Docker's events are interrupted");
            if sender.send(Event::Interrupted).await.is_err() {
                return Left;
            }
        }
        tokio::time::sleep(growing(limits::EVENTS_BACKOFF, failures)).await;
        failures = failures.saturating_add(1);
    }
}

/// Passes events on until the stream breaks.
async fn subscription(docker: &Docker, since: u64, sender: &mpsc::Sender<Event>) -> Result<(), Left> {
    let mut events = docker.events(Some(options(since)));
    loop {
        match tokio::time::timeout(limits::EVENTS_SILENCE, events.next()).await {
            Ok(Some(Ok(message))) => {
                if let Some(event) = event(message) {
                    sender.send(event).await.map_err(|_| Left)?;
                }
            }
            Ok(Some(Err(error))) => {
                tracing::debug!(error = %crate::errors::one_line(&error.to_string()), "the events broke off");
                return Ok(());
            }
            Ok(None) => return Ok(()),
            Err(_) => {
                if connect::ping(docker).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

fn options(since: u64) -> EventsOptions {
    let filters = HashMap::from([
        ("type".to_owned(), vec!["container".to_owned()]),
        ("event".to_owned(), vec!["die".to_owned(), "destroy".to_owned()]),
    ]);
    EventsOptions { since: Some(since.to_string()), until: None, filters: Some(filters) }
}

fn event(message: EventMessage) -> Option<Event> {
    if !matches!(message.action.as_deref(), Some("die" | "destroy")) {
        return None;
    }
    let actor = message.actor?;
    let mut labels: Labels = actor.attributes.unwrap_or_default().into_iter().collect();
    let name = labels.get("name").cloned().unwrap_or_default();
    labels.retain(|name, _| !ADDED.contains(&name.as_str()));
    Some(Event::Ended { id: actor.id?, name, labels })
}

/// The second from which events are asked for.
fn start() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(limits::EVENTS_OVERLAP).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Event> {
        let Ok(message) = serde_json::from_str(text) else { panic!("that is an event") };
        event(message)
    }

    #[test]
    fn ends_are_told_with_names_and_labels() {
        let told = parse(
            r#"{"Type": "container", "Action": "die", "Actor": {"ID": "1f",
                "Attributes": {"sandbar.owner": "a", "image": "redis", "name": "x", "exitCode": "137"}},
                "scope": "local", "time": 1, "timeNano": 1000000000}"#,
        );
        let labels = [("sandbar.owner".to_owned(), "a".to_owned())].into();
        assert_eq!(told, Some(Event::Ended { id: "1f".to_owned(), name: "x".to_owned(), labels }));
    }

    #[test]
    fn other_events_are_not() {
        assert_eq!(parse(r#"{"Type": "container", "Action": "exec_die", "Actor": {"ID": "1f"}}"#), None);
        assert_eq!(parse(r#"{"Type": "container", "Action": "die"}"#), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_receiver_that_goes_ends_the_task() {
        let nowhere = crate::connect::Target::Unix("/nowhere/docker.sock".to_owned());
        let connection = Arc::new(Connection::new(nowhere));
        let receiver = watch(Arc::clone(&connection));
        tokio::time::sleep(limits::EVENTS_BACKOFF.1).await;
        drop(receiver);
        tokio::time::sleep(limits::EVENTS_BACKOFF.1).await;
        assert_eq!(Arc::strong_count(&connection), 1);
    }
}
