//! Image references: which registry, which name, which tag. Reads them as Docker does; says nothing about whether an
//! image exists. Also checks the identifiers that become part of a request's path, since bollard puts them there as they
//! are.

use sandbar_core::runtime::{Result, RuntimeError};

/// The name by which Docker Hub is known in references.
pub(crate) const HUB: &str = "docker.io";

/// An image reference in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reference {
    /// Host of the registry, with its port.
    pub(crate) registry: String,
    /// Everything before the tag or digest, as it was written.
    pub(crate) name: String,
    /// Digest where there is one, else tag, else `latest`: a pull without would fetch every tag.
    pub(crate) version: String,
}

impl Reference {
    /// Reads a reference.
    pub(crate) fn parse(image: &str) -> Result<Self> {
        let refused = || RuntimeError::Refused(format!("`{}` is no image reference", image.escape_debug()));
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        if image.is_empty() || !image.chars().all(fits) {
            return Err(refused());
        }
        let (rest, digest) = match image.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (image, None),
        };
        // A colon before the last slash belongs to the registry's port.
        let last = rest.rfind('/').map_or(0, |slash| slash + 1);
        let (name, tag) = match rest[last..].split_once(':') {
            Some((_, tag)) => (&rest[..rest.len() - tag.len() - 1], Some(tag)),
            None => (rest, None),
        };
        let parts: Vec<&str> = name.split('/').collect();
        // Also keeps `..` out of the request's path.
        if parts.iter().any(|part| part.is_empty() || part.starts_with('.')) {
            return Err(refused());
        }
        if digest.is_some_and(|d| d.is_empty() || d.contains(['/', '@'])) || tag.is_some_and(|t| !is_tag(t)) {
            return Err(refused());
        }
        let registry = match parts.as_slice() {
            [first, _, ..] if first.contains(['.', ':']) || *first == "localhost" => match *first {
                "index.docker.io" => HUB,
                other => other,
            },
            _ => HUB,
        };
        Ok(Self {
            registry: registry.to_owned(),
            name: name.to_owned(),
            version: digest.or(tag).unwrap_or("latest").to_owned(),
        })
    }

    /// Whether it names an image by its id, which no registry can be asked for.
    pub(crate) fn is_id(&self) -> bool {
        self.name == "sha256" && self.version.len() == 64 && self.version.bytes().all(|b| b.is_ascii_hexdigit())
    }
}

fn is_tag(tag: &str) -> bool {
    !tag.is_empty() && !tag.starts_with(['.', '-']) && !tag.contains([':', '/', '@'])
}

/// A container's or network's id or name, if it can be part of a path.
pub(crate) fn identifier(text: &str) -> Result<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(fits) {
        Ok(text)
    } else {
        Err(RuntimeError::Refused(format!("`{}` is no name or id", text.escape_debug())))
    }
}

/// Whether this is a full container id rather than a name.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit() && !b.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(image: &str) -> (String, String, String) {
        let Ok(r) = Reference::parse(image) else { panic!("{image} should be fine") };
        (r.registry, r.name, r.version)
    }

    #[test]
    fn references_are_read_as_docker_does() {
        for (image, registry, name, version) in [
            ("redis", HUB, "redis", "latest"),
            ("redis:8-alpine", HUB, "redis", "8-alpine"),
            ("redis/redis-stack-server:latest", HUB, "redis/redis-stack-server", "latest"),
            ("docker.io/library/redis", HUB, "docker.io/library/redis", "latest"),
            ("localhost/x", "localhost", "localhost/x", "latest"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000", "127.0.0.1:5000/x", "latest"),
            ("127.0.0.1:5000/a/b:1", "127.0.0.1:5000", "127.0.0.1:5000/a/b", "1"),
            ("r.internal/x@sha256:ab", "r.internal", "r.internal/x", "sha256:ab"),
            ("r.internal/x:1@sha256:ab", "r.internal", "r.internal/x", "sha256:ab"),
        ] {
            assert_eq!(parts(image), (registry.to_owned(), name.to_owned(), version.to_owned()), "{image}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for image in
            ["", "a b", "a?x=1", "a/../b", "../a", "a//b", "/a", "a/", "a:", "a:b:c", "a@", "a#b", "a%2e", "./a"]
        {
            assert!(Reference::parse(image).is_err(), "{image}");
        }
    }

    #[test]
    fn ids_are_told_from_names() {
        let id = "a".repeat(64);
        assert!(Reference::parse(&format!("sha256:{id}")).is_ok_and(|r| r.is_id()));
        assert!(Reference::parse("redis:8").is_ok_and(|r| !r.is_id()));
        assert!(is_id(&id) && !is_id("sandbar-sandbox-pg-a") && !is_id("abc"));
    }

    #[test]
    fn identifiers_cannot_change_a_path() {
        assert!(identifier("sandbar-making-1f").is_ok());
        for bad in ["", "a/b", "..", ".", "a?x", "a b", "-a", "a\n"] {
            assert!(identifier(bad).is_err(), "{bad}");
        }
    }
}
