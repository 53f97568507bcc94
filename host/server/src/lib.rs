//! The verb endpoint and the health pages over HTTP. Translates between HTTP and the core, and decides nothing: who may
//! do what, and what an answer is, are the core's.

mod envelope;
mod hosts;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::host::Host;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use hosts::AllowedHosts;

/// How long running requests may go on once the host goes down. The core bounds what they wait for; this is for clients
/// that do not read their answer.
const GRACE: Duration = Duration::from_secs(30);

/// Serves on all listeners until `down` turns true, and then until running requests have ended, within a bound.
///
/// # Errors
/// When a listener fails.
pub async fn serve(
    host: Arc<Host>,
    listeners: Vec<TcpListener>,
    allowed: AllowedHosts,
    down: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let app = routes::router(host, allowed);
    let mut servers = tokio::task::JoinSet::new();
    for listener in listeners {
        let mut drain = down.clone();
        let signal = async move {
            // An error means that whoever would say so is gone, which is the same.
            let _ = drain.wait_for(|down| *down).await;
        };
        let server = axum::serve(listener, app.clone()).with_graceful_shutdown(signal);
        servers.spawn(async move { server.await });
    }
    let mut down = down;
    let late = async move {
        let _ = down.wait_for(|down| *down).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::pin!(late);
    loop {
        tokio::select! {
            () = &mut late => return Ok(()),
            ended = servers.join_next() => match ended {
                Some(result) => result.map_err(std::io::Error::other)??,
                None => return Ok(()),
            },
        }
    }
}
