//! The verb endpoint, the same verbs as MCP tools, and the health pages over HTTP. Translates between HTTP and the core, and decides nothing: who may
//! do what, and what an answer is, are the core's.

mod connections;
mod envelope;
mod hosts;
mod mcp;
mod metrics;
mod routes;
mod seats;

use std::sync::Arc;

use sandbar_core::host::Host;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use connections::Listener;
pub use hosts::{AllowedHosts, check_host};
pub use seats::Bounds;

/// Serves on all listeners until `down` turns true, and then until the answers that are being written have been, within a
/// bound. (The core has let running requests finish by then.)
pub async fn serve(
    host: Arc<Host>,
    listeners: Vec<Listener>,
    allowed: AllowedHosts,
    bounds: Bounds,
    down: watch::Receiver<bool>,
) {
    metrics::recorder();
    let boxes = Arc::clone(&host);
    let unheard = Arc::new(move |address| boxes.is_unheard(address));
    // What is left of calls when the last connection has ended ends with it.
    let ended = CancellationToken::new();
    let app = routes::router(host, allowed, ended.clone());
    let _guard = ended.drop_guard();
    connections::serve(app, listeners, bounds, unheard, down).await;
}
