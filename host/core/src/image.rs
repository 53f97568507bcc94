//! Image references: the strict part of Docker's grammar that Sandbar accepts, the normalised form in which they are
//! compared, and the patterns with which operators grant them.

use std::fmt;

use crate::error::bounded;

/// A reference in its full form: registry, repository and either a tag or a digest or both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<String>,
}

/// Text that is no image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an image reference")]
pub struct BadImage(String);

/// Longest reference.
const MAX_BYTES: usize = 255;
/// How many characters of a text that is no reference are said back.
const SHOWN: usize = 80;

impl Image {
    /// Reads a reference as Docker does, and writes out what Docker would assume: `postgres:16` is
    /// `docker.io/library/postgres:16`, and a reference with neither tag nor digest means `:latest`.
    ///
    /// # Errors
    /// When it is no reference.
    pub fn parse(text: &str) -> Result<Self, BadImage> {
        Self::read(text, "").ok_or_else(|| BadImage(bounded(text, SHOWN)))
    }

    /// `extra` are characters allowed beside the grammar's: none for a reference, `*` for a pattern.
    fn read(text: &str, extra: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        let (registry, repository) = match path.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest.to_owned()),
            Some(_) => ("docker.io", path.to_owned()),
            None => ("docker.io", format!("library/{path}")),
        };
        let registry = if registry == "index.docker.io" { "docker.io" } else { registry };

        let allowed = |s: &str, more: &str| {
            !s.is_empty()
                && s.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c) || extra.contains(c))
        };
        let separator = |s: &str| matches!(s, "" | "." | "_" | "__") || s.bytes().all(|b| b == b'-');
        let part = |s: &str| {
            allowed(s, "._-")
                && !s.starts_with(['.', '_', '-'])
                && !s.ends_with(['.', '_', '-'])
                && s.split(|c| !"._-".contains(c)).all(separator)
        };
        let upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        let (domain, port) = registry.split_once(':').map_or((registry, None), |(d, p)| (d, Some(p)));
        let label = |s: &str| allowed(s, &format!("{upper}-")) && !s.starts_with('-') && !s.ends_with('-');
        let ok = domain.split('.').all(label)
            && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
            && repository.split('/').all(part)
            && tag.is_none_or(|t| t.len() <= 128 && allowed(t, &format!("{upper}._-")) && !t.starts_with(['.', '-']))
            && digest.is_none_or(|d| {
                d == extra && !extra.is_empty()
                    || d.strip_prefix("sha256:").is_some_and(|h| {
                        h.len() == 64 && h.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
                    })
            });
        let image = ok.then(|| Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.or(if digest.is_none() { Some("latest") } else { None }).map(str::to_owned),
            digest: digest.map(str::to_owned),
        });
        // In full, so that the full form is a reference too.
        image.filter(|image| image.to_string().len() <= MAX_BYTES)
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// What an operator grants: a reference in which `*` stands for any run of characters inside one part. It never
/// reaches over a `/`, and a reference with a digest needs a pattern with one, since Docker ignores the tag beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePattern {
    text: String,
    image: Image,
}

impl ImagePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// When it is no reference with stars.
    pub fn parse(text: &str) -> Result<Self, BadImage> {
        let image = Image::read(text, "*").ok_or_else(|| BadImage(bounded(text, SHOWN)))?;
        Ok(Self { text: text.to_owned(), image })
    }

    /// Whether it covers an image.
    pub fn covers(&self, image: &Image) -> bool {
        let option = |p: &Option<String>, s: &Option<String>| match (p, s) {
            (Some(p), Some(s)) => star_matches(p, s),
            (None, None) => true,
            _ => false,
        };
        let parts = |s: &str| s.split('/').count();
        let tag = match (&self.image.tag, &image.tag) {
            // With a digest the tag says nothing, so a pattern without a tag covers any.
            (None, _) if image.digest.is_some() => true,
            (p, s) => option(p, s),
        };
        star_matches(&self.image.registry, &image.registry)
            && parts(&self.image.repository) == parts(&image.repository)
            && self.image.repository.split('/').zip(image.repository.split('/')).all(|(p, s)| star_matches(p, s))
            && tag
            && option(&self.image.digest, &image.digest)
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether `text` is `pattern`, where each `*` stands for any run of characters.
fn star_matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(s: &str) -> String {
        Image::parse(s).unwrap().to_string()
    }

    #[test]
    fn normalises() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(full("postgres:16-alpine"), "docker.io/library/postgres:16-alpine");
        assert_eq!(full("postgres"), "docker.io/library/postgres:latest");
        assert_eq!(full("redis/redis-stack-server"), "docker.io/redis/redis-stack-server:latest");
        assert_eq!(full("a.b_c__d---e"), "docker.io/library/a.b_c__d---e:latest");
        assert_eq!(full("localhost:5000/a/b:1"), "localhost:5000/a/b:1");
        assert_eq!(full("index.docker.io/library/x:1"), "docker.io/library/x:1");
        assert_eq!(full(&format!("x@{digest}")), format!("docker.io/library/x@{digest}"));
    }

    #[test]
    fn refuses_tricks() {
        let short = "x@sha256:abc";
        for bad in [
            "", "x y", "x;rm", "$(x)", "x:a b", "../x", "x/../y", "-x", "x:-t", "X", "x\n", "x:*", short, "x@", ":a",
            "a//b", "a..b", "a.-b", "a___b", "a_.b",
        ] {
            assert!(Image::parse(bad).is_err(), "{bad:?}");
        }
        let longest = "a".repeat(MAX_BYTES - "docker.io/library/:latest".len());
        assert_eq!(Image::parse(&full(&longest)), Image::parse(&longest));
        assert!(Image::parse(&format!("{longest}a")).is_err());
    }

    #[test]
    fn patterns() {
        let covers = |p: &str, s: &str| ImagePattern::parse(p).unwrap().covers(&Image::parse(s).unwrap());
        let digest = format!("sha256:{}", "a".repeat(64));
        assert!(covers("postgres:*", "postgres:16-alpine"));
        assert!(covers("postgres:*", "docker.io/library/postgres:17"));
        assert!(covers("postgres:16*", "postgres:16-alpine"));
        assert!(covers("registry.internal/*/pg:1", "registry.internal/team/pg:1"));
        assert!(!covers("registry.internal/*:1", "registry.internal/team/pg:1"));
        assert!(!covers("postgres:*", "evil.example/postgres:16"));
        assert!(!covers("postgres:*", "postgres-evil:16"));
        assert!(!covers("postgres", "postgres:16"));
        // The tag is only decoration beside a digest.
        assert!(!covers("postgres:*", &format!("postgres:16@{digest}")));
        assert!(covers(&format!("postgres@{digest}"), &format!("postgres:16@{digest}")));
        assert!(covers("postgres@*", &format!("postgres@{digest}")));
        assert!(ImagePattern::parse("a b").is_err());
    }
}
