//! What the tests here share: hosts, engines loaded, and questions.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandbar_core::engine::{Engine as _, EngineError, Request};
pub(crate) use sandbar_hostile::text::{EMPTY_RECIPE, SCRATCH, Text};
use sandbar_plugin::{Artifact, Host, Limits, LoadReason, LoadedEngine};

/// A host without a cache, whose deadlines are beyond everything that is measured here.
pub(crate) fn host() -> Host {
    Host::new(None, limits()).unwrap()
}

/// The limits of [`host`].
pub(crate) fn limits() -> Limits {
    Limits { plan: Duration::from_secs(30), describe: Duration::from_secs(30), ..Limits::default() }
}

/// A deadline that is worth waiting for.
pub(crate) const HASTE: Duration = Duration::from_millis(300);

/// An engine that never ends when it is provoked.
pub(crate) fn looping() -> Text {
    Text::later("(loop $forever (br $forever))", "")
}

/// Makes and loads an engine.
pub(crate) async fn load(text: &Text) -> Result<Arc<LoadedEngine>, LoadReason> {
    host().load_artifact(Artifact::from_bytes(text.build())?).await
}

/// Makes and loads an engine whose plans may take `limit`.
pub(crate) async fn load_hasty(text: &Text, limit: Duration) -> Arc<LoadedEngine> {
    let host = Host::new(None, Limits { plan: limit, ..limits() }).unwrap();
    host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap()
}

/// A temporary file with this content. It goes with the directory.
pub(crate) fn file(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine.wasm");
    std::fs::write(&path, content).unwrap();
    (directory, path)
}

/// A question that hostile engines answer.
pub(crate) fn harmless() -> Request {
    Request { features: Vec::new(), retained: false, superuser: false, memory_bytes: 1 << 28, settings: Vec::new() }
}

/// The question to which hostile engines do their deed.
pub(crate) fn provoking() -> Request {
    Request { superuser: true, ..harmless() }
}

/// Waits for something that must not hang. The bound is far beyond everything that is measured here.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

/// Asks something harmless until there is an answer: where the deadline is [`HASTE`] a busy machine may miss it.
pub(crate) async fn answers(engine: &LoadedEngine) {
    soon(async {
        while let Err(error) = engine.plan(&harmless()).await {
            assert!(error.to_string().contains("longer than"), "{error}");
        }
    })
    .await;
}

/// What a call says that got no answer.
pub(crate) async fn broken(engine: &LoadedEngine, request: &Request) -> String {
    match soon(engine.plan(request)).await {
        Err(EngineError::Broken(why)) => why,
        other => panic!("expected a broken call, got {other:?}"),
    }
}
