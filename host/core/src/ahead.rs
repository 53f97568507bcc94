//! Images that are looked for, and pulled where they are absent, before anybody waits for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::host::Host;
use crate::plan;
use crate::progress::ProgressSink;

/// Pause before an image that could not be had is tried again: the calls that need it try by themselves.
const AGAIN: Duration = Duration::from_secs(120);

impl Host {
    /// Has every image that projects would need by their standing features, one at a time, and again whenever what there is
    /// to ask for changed. Nothing waits for it.
    pub(crate) async fn have_images(self: Arc<Self>) {
        let mut catalog = self.catalog().subscribe();
        let ahead = self.registry().ensure_rules().limits().pull_ahead;
        let mut had = BTreeSet::new();
        loop {
            catalog.borrow_and_update();
            let wanted = if self.is_enabled() && ahead { self.images().await } else { BTreeSet::new() };
            let mut failed = false;
            for image in wanted {
                if had.contains(&image) {
                    continue;
                }
                match self.runtime().prepare(&image, &ProgressSink::silent()).await {
                    Ok(()) => drop(had.insert(image)),
                    Err(e) => {
                        tracing::warn!(image, error = %e, "not here yet; a call that needs it tries again");
                        failed = true;
                    }
                }
            }
            let again = async {
                match failed {
                    true => tokio::time::sleep(AGAIN).await,
                    false => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.declared().notified() => {}
                _ = catalog.changed() => {}
                () = again => {}
            }
        }
    }

    /// The images of every service of every project. An engine that cannot answer says so to who asks for it.
    async fn images(&self) -> BTreeSet<String> {
        let catalog = self.catalog().current();
        let limits = self.registry().ensure_rules().limits();
        let mut images = BTreeSet::new();
        for project in self.all_projects() {
            for name in &project.services {
                let Some(service) = catalog.services.get(name) else { continue };
                let features: Vec<_> = project.extensions.get(name).into_iter().flatten().cloned().collect();
                let retained = project.retained.contains(name);
                if let Ok(checked) = service.recipe_or_error(&features, retained, project.superuser).await {
                    images.insert(plan::image(&checked, &limits.images).to_owned());
                }
            }
        }
        images
    }
}
