//! Values that are written in a way of their own: addresses, tokens, sizes, shares of the CPUs.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::PathBuf;

use sandbar_core::error::shown;
use sandbar_core::secret::SecretSource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Where to listen. Names are not looked up: what they lead to can change, and is often more than one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    /// An address.
    Address(SocketAddr),
    /// A socket in the file system, written `unix:<path>`, for this host's own user alone.
    Socket(PathBuf),
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Socket(path.into()));
        }
        text.parse().map(Self::Address).map_err(|_| {
            let text = shown(&text);
            de::Error::custom(format!(
                "`{text}` is neither an IP address and a port, such as \"127.0.0.1:7070\", nor `unix:` and a path"
            ))
        })
    }
}

impl Serialize for Listen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Address(address) => serializer.collect_str(address),
            Self::Socket(path) => serializer.collect_str(&format_args!("unix:{}", path.display())),
        }
    }
}

impl JsonSchema for Listen {
    fn schema_name() -> Cow<'static, str> {
        "Listen".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "An IP address and a port, or `unix:` and a path.",
            "examples": ["127.0.0.1:7070", "unix:host.sock"] })
    }
}

/// Where a secret is: exactly one of the keys.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "{ file = \u{2026} }, { env = \u{2026} } or { sha256 = \u{2026} }")]
struct Keys {
    file: Option<PathBuf>,
    env: Option<String>,
    sha256: Option<String>,
}

/// A bearer token: kept elsewhere, or known by its hash only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Source(SecretSource),
    Sha256(String),
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Keys::deserialize(deserializer)? {
            Keys { file: Some(file), env: None, sha256: None } => Ok(Self::Source(SecretSource::File(file))),
            Keys { file: None, env: Some(env), sha256: None } => Ok(Self::Source(SecretSource::Env(env))),
            Keys { file: None, env: None, sha256: Some(hash) } => {
                if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) {
                    Ok(Self::Sha256(hash.to_ascii_lowercase()))
                } else {
                    Err(de::Error::custom("`sha256` must be 64 hex digits"))
                }
            }
            _ => Err(de::Error::custom("a token is exactly one of { file = … }, { env = … } and { sha256 = … }")),
        }
    }
}

/// Without the hash: a token that a person made up can be guessed from it.
impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Source(source) => source.serialize(serializer),
            Self::Sha256(_) => serializer.collect_map([("sha256", "***")]),
        }
    }
}

impl JsonSchema for Token {
    fn schema_name() -> Cow<'static, str> {
        "Token".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Where a bearer token is, of at least 16 characters: in a file, in an environment variable, or known by its SHA-256 only.",
            "type": "object",
            "properties": {
                "file": { "type": "string", "description": "A file that holds it and nothing else." },
                "env": { "type": "string", "description": "An environment variable of the host." },
                "sha256": { "type": "string", "pattern": "^[0-9A-Fa-f]{64}$", "description": "Its hash, in hex." },
            },
            "additionalProperties": false,
            "minProperties": 1,
            "maxProperties": 1,
        })
    }
}

/// A size: a number of bytes, or text such as `512m` in powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    /// Reads one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(1 << shift).map(Self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Shape {
            Number(u64),
            Text(String),
        }
        let size = match Shape::deserialize(deserializer) {
            Ok(Shape::Number(n)) => Some(Self(n)),
            Ok(Shape::Text(text)) => Self::parse(&text),
            Err(_) => None,
        };
        size.ok_or_else(|| de::Error::custom("a size is a number of bytes or a text such as \"512m\""))
    }
}

/// In the largest unit that shows it exactly.
impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let units = [(30, "g"), (20, "m"), (10, "k"), (0, "b")];
        let (shift, unit) = units.into_iter().find(|(shift, _)| self.0.is_multiple_of(1 << shift)).unwrap_or((0, "b"));
        serializer.collect_str(&format_args!("{}{unit}", self.0 >> shift))
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, or a text with a unit: k, m or g, in powers of 1024.",
            "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string", "pattern": "^ *[0-9]+ *([kKmMgG]([iI]?[bB])?|[bB])? *$" }],
            "examples": ["512m", "2g"],
        })
    }
}

/// A share of the CPUs, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub(crate) milli: u64,
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let cpus = f64::deserialize(deserializer)?;
        if !(0.01..=1024.0).contains(&cpus) {
            return Err(de::Error::custom("cpus must be between 0.01 and 1024"));
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
        let milli = (cpus * 1000.0).round() as u64;
        Ok(Self { milli })
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(u32::try_from(self.milli).unwrap_or(u32::MAX)) / 1000.0)
    }
}

impl JsonSchema for Cpus {
    fn schema_name() -> Cow<'static, str> {
        "Cpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "description": "A number of CPUs, fractions too.", "type": "number", "minimum": 0.01, "maximum": 1024 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(Bytes::parse("512m"), Some(Bytes(512 << 20)));
        assert_eq!(Bytes::parse("2 GiB"), Some(Bytes(2 << 30)));
        assert_eq!(Bytes::parse("7"), Some(Bytes(7)));
        for bad in ["", "m", "-1", "1.5g", "99999999999g"] {
            assert_eq!(Bytes::parse(bad), None, "{bad}");
        }
        for (bytes, shown) in [(2 << 30, "2g"), (1536 << 20, "1536m"), (1025, "1025b"), (0, "0g")] {
            assert_eq!(serde_json::to_value(Bytes(bytes)).unwrap(), shown);
            assert_eq!(Bytes::parse(shown), Some(Bytes(bytes)));
        }
    }
}
