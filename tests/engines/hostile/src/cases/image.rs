//! Image references with more in them than an image, and images of somebody else.

use crate::text::{Text, good};
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let image = |reference: &str| -> Source { Text::with(|r| r.container.image = reference.to_owned()).into() };
    let digest = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let mut other = good();
    other.container.image = "evil.example/redis:8".to_owned();
    let later = Text { later: Some(other), ..Text::later("(return (i32.const {later}))", "") };
    named([
        ("image-shell", image("redis:$(id)")),
        ("image-command", image("redis:8; rm -rf /")),
        ("image-option", image("--privileged")),
        ("image-path", image("../../redis:8")),
        ("image-empty", image("")),
        ("image-long", image(&"a".repeat(100_000))),
        ("image-unicode", image("r\u{435}dis:8")),
        ("image-two-tags", image("redis:8:9")),
        ("image-short-digest", image("redis:8@sha256:abc")),
        ("image-upper-digest", image(&format!("redis@{}", digest.to_uppercase()))),
        // The tag that was granted is decoration beside a digest.
        ("image-digest", image(&format!("redis:8-alpine@{digest}"))),
        ("image-registry", image("evil.example/redis:8-alpine")),
        ("image-user", image("docker.io/evil/redis:8-alpine")),
        ("image-port", image("redis:5000/evil:8-alpine")),
        ("image-secret", image("redis:{password}")),
        ("image-later", later.into()),
    ])
}
