//! An image for registries: busybox and a file that makes it different from every other image, so that Docker cannot
//! have its layer from somewhere else.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use serde_json::json;
use sha2::{Digest as _, Sha256};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A piece of an image as a registry keeps it.
#[derive(Debug, Clone)]
pub struct Blob {
    /// `sha256:` and the digits.
    pub digest: String,
    /// Its type, as the registry names it.
    pub media_type: &'static str,
    /// Its content.
    pub bytes: Vec<u8>,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        let digits: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Self { digest: format!("sha256:{digits}"), media_type, bytes }
    }

    fn descriptor(&self) -> serde_json::Value {
        json!({ "mediaType": self.media_type, "size": self.bytes.len(), "digest": self.digest })
    }
}

/// An image of one layer, in the form of Docker's schema 2.
#[derive(Debug, Clone)]
pub struct Image {
    /// What names the other two.
    pub manifest: Blob,
    /// What to run and how.
    pub config: Blob,
    /// The files: about two megabytes.
    pub layer: Blob,
}

impl Image {
    /// A new one, which nobody has seen before.
    ///
    /// # Panics
    /// When there is no busybox on this machine.
    pub fn unique() -> Self {
        let layer = Blob::new("application/vnd.docker.image.rootfs.diff.tar", files().expect("busybox can be packed"));
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "Cmd": ["sh"] },
            "rootfs": { "type": "layers", "diff_ids": [layer.digest] },
        });
        let config = Blob::new("application/vnd.docker.container.image.v1+json", config.to_string().into_bytes());
        let media_type = "application/vnd.docker.distribution.manifest.v2+json";
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        });
        Self { manifest: Blob::new(media_type, manifest.to_string().into_bytes()), config, layer }
    }
}

/// The layer: a shell, what the fixture engine runs in it, its user, and something new.
fn files() -> std::io::Result<Vec<u8>> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let busybox = std::fs::read(busybox.expect("busybox is there (apt-get install busybox-static)"))?;
    let users = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
    let new = format!("{:?} {} {}", SystemTime::now(), std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, content) in [
        ("bin/busybox", 0o755, busybox.as_slice()),
        ("etc/passwd", 0o644, users.as_bytes()),
        ("etc/new", 0o644, new.as_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        tar.append_data(&mut header, path, content)?;
    }
    for tool in ["sh", "sleep"] {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        header.set_mode(0o777);
        tar.append_link(&mut header, format!("bin/{tool}"), "busybox")?;
    }
    tar.into_inner()
}
