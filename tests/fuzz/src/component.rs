//! Any bytes as a component: read, judged, compiled, asked. Whatever they are, they cost one line and no more.

use std::sync::LazyLock;
use std::time::Duration;

use sandbar_core::engine::{Engine as _, Request};
use sandbar_plugin::{Artifact, Host, Limits};
use tokio::runtime::Runtime;

use crate::one_line;

static HOST: LazyLock<(Runtime, Host)> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    // Enough for what ends at all.
    let limits = Limits { plan: Duration::from_millis(500), describe: Duration::from_millis(500), ..Limits::default() };
    (runtime, Host::new(None, limits).unwrap())
});

/// The bytes are a component, or not.
///
/// # Panics
/// Where a promise is broken.
pub fn component(data: &[u8]) {
    let artifact = match Artifact::from_bytes(data.to_vec()) {
        Ok(artifact) => artifact,
        Err(e) => return one_line(&e),
    };
    let sizes = artifact.sizes();
    assert_eq!(sizes.whole, data.len());
    assert!(sizes.code + sizes.data + sizes.custom <= sizes.whole, "{sizes:?}");
    if let Err(e) = artifact.admissible() {
        return one_line(&e);
    }
    let (runtime, host) = &*HOST;
    runtime.block_on(async {
        let engine = match host.load_artifact(artifact).await {
            Ok(engine) => engine,
            Err(e) => return one_line(&e),
        };
        // What it says about itself goes to people as it is.
        let descriptor = engine.descriptor();
        for text in [&descriptor.name, &descriptor.slug, &descriptor.version, &descriptor.summary] {
            one_line(&format!("`{text}`"));
        }
        let settings = descriptor.settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
        let request =
            Request { features: Vec::new(), retained: false, superuser: false, memory_bytes: 512 << 20, settings };
        if let Err(e) = engine.plan(&request).await {
            one_line(&e);
        }
    });
}
