//! Registries on the loopback, each with an image that nobody else has: Debian's `docker-registry` ([`Real`]), and one of
//! our own that does wrong what a test wants done wrong ([`Fake`]). Docker takes a registry on the loopback without TLS.
//!
//! Dropping a registry removes what was pulled from it, so it must outlive the host whose containers use that.

mod fake;
mod image;
mod real;

pub use fake::{Act, Fake, Part};
pub use image::Image;
pub use real::{Account, Real};

use crate::docker::docker;

/// What Docker has of the registry at this address, by tag.
///
/// # Errors
/// When Docker cannot be asked.
pub fn pulled_from(address: &str) -> anyhow::Result<Vec<String>> {
    let all = docker(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"])?;
    let ours = format!("{address}/");
    Ok(all.lines().filter(|image| image.starts_with(&ours)).map(str::to_owned).collect())
}

/// Removes what [`pulled_from`] finds.
fn forget(address: &str) {
    for image in pulled_from(address).unwrap_or_default() {
        if let Err(e) = docker(["image", "rm", "--force", &image]) {
            eprintln!("{image} could not be removed: {e:#}");
        }
    }
}
