//! Names: what callers may be called, and every name this host makes in Docker or in an environment. All of them are
//! derived from the namespace here and nowhere else, so that another namespace changes every one of them.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// Whether `s` is `[a-z0-9]([a-z0-9-]{0,max-2}[a-z0-9])?`.
fn is_slug(s: &str, max: usize) -> bool {
    let bytes = s.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    !bytes.is_empty()
        && bytes.len() <= max
        && bytes.iter().all(inner)
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// A word that was not what its kind of name must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {kind}: it must match {pattern}")]
pub struct BadName {
    given: String,
    kind: &'static str,
    pattern: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $pattern:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// When it does not match the pattern of its kind.
            pub fn new(s: impl AsRef<str>) -> Result<Self, BadName> {
                let s = s.as_ref();
                let check: fn(&str) -> bool = $check;
                if check(s) {
                    Ok(Self(s.into()))
                } else {
                    let given = crate::error::shown(s);
                    Err(BadName { given, kind: $kind, pattern: $pattern })
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = BadName;
            fn try_from(s: String) -> Result<Self, BadName> {
                Self::new(s)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": concat!("^", $pattern, "$") })
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// An agent's slug.
    AgentName,
    "the name of an agent",
    "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?",
    |s| is_slug(s, 32)
);
name!(
    /// The name under which agents ask for a service.
    ServiceName,
    "the name of a service",
    "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?",
    |s| is_slug(s, 32)
);
name!(
    /// An engine's short name inside container names. Without `-`, so that a container's name can be read one way only.
    EngineSlug,
    "the slug of an engine",
    "[a-z0-9]{1,8}",
    |s| is_slug(s, 8) && !s.contains('-')
);
name!(
    /// A project.
    ProjectName,
    "the name of a project",
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    |s| {
        s.len() <= 64
            && s.starts_with(|c: char| c.is_ascii_alphanumeric())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    }
);
name!(
    /// The prefix of every name that this host makes.
    Namespace,
    "a namespace",
    "[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?",
    |s| is_slug(s, 12)
);
name!(
    /// Tells hosts that share one Docker apart.
    Installation,
    "an installation id",
    "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?",
    |s| is_slug(s, 32)
);

/// In the names of what is retained.
const KEPT: &str = "kept";
/// In the names of throwaway boxes.
const BOX: &str = "box";

/// Every derived name.
#[derive(Debug, Clone)]
pub struct Names {
    ns: Namespace,
    upper: String,
    installation: Installation,
}

/// What a container's name says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind<'a> {
    /// It is being made.
    Making,
    /// It was let go and is being removed.
    Leaving,
    /// It is ready for whoever asks next.
    Pooled,
    /// It serves an agent, under this engine slug.
    Sandbox {
        /// The engine's slug.
        slug: &'a str,
        /// The agent's slug.
        agent: &'a str,
    },
    /// It is a box or is retained, under this engine slug; its owner is known by a key alone.
    Keyed {
        /// Whether it is retained.
        retained: bool,
        /// The engine's slug.
        slug: &'a str,
    },
    /// None of the names this host makes.
    Other,
}

impl Names {
    /// Names of one installation.
    pub fn new(ns: Namespace, installation: Installation) -> Self {
        let upper = ns.as_str().to_ascii_uppercase().replace('-', "_");
        Self { ns, upper, installation }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.ns.as_str()
    }

    /// The installation.
    pub fn installation(&self) -> &str {
        self.installation.as_str()
    }

    /// The final name of a throwaway container. At most 12 + 9 + 8 + 1 + 32 = 62 bytes: a DNS label.
    pub fn sandbox(&self, slug: &EngineSlug, agent: &AgentName) -> String {
        format!("{}-sandbox-{slug}-{agent}", self.ns)
    }

    /// The final name of a box or of what is retained. At most 12 + 6 + 8 + 1 + 32 = 59 bytes: a DNS label.
    pub fn keyed(&self, retained: bool, slug: &EngineSlug, digits: &str) -> String {
        format!("{}-{}-{slug}-{digits}", self.ns, if retained { KEPT } else { BOX })
    }

    /// The name of the volume that holds what is retained at a path of that container.
    pub fn volume(&self, container: &str, path: &str) -> String {
        format!("{container}-{}", &crate::secret::sha256_hex(path)[..8])
    }

    /// A fresh name for a container that is being made.
    pub fn making(&self) -> String {
        format!("{}-making-{}", self.ns, crate::secret::random_hex(8))
    }

    /// A fresh name for a container that is ready for whoever asks next.
    pub fn pooled(&self) -> String {
        format!("{}-pool-{}", self.ns, crate::secret::random_hex(8))
    }

    /// A fresh name for a container that was let go.
    pub fn leaving(&self) -> String {
        format!("{}-leaving-{}", self.ns, crate::secret::random_hex(8))
    }

    /// Reads a container's name.
    pub fn read<'a>(&self, name: &'a str) -> Kind<'a> {
        let Some(rest) = name.strip_prefix(self.ns.as_str()).and_then(|r| r.strip_prefix('-')) else {
            return Kind::Other;
        };
        if rest.starts_with("making-") {
            return Kind::Making;
        }
        if rest.starts_with("leaving-") {
            return Kind::Leaving;
        }
        if rest.starts_with("pool-") {
            return Kind::Pooled;
        }
        match rest.split_once('-').map(|(kind, rest)| (kind, rest.split_once('-'))) {
            Some(("sandbox", Some((slug, agent)))) => Kind::Sandbox { slug, agent },
            Some((kind @ (KEPT | BOX), Some((slug, _)))) => Kind::Keyed { retained: kind == KEPT, slug },
            _ => Kind::Other,
        }
    }

    /// The network that sandboxes join when the operator names none.
    pub fn network(&self) -> String {
        format!("{}_default", self.ns)
    }

    /// A label's key.
    pub fn label(&self, key: &str) -> String {
        format!("{}.{key}", self.ns)
    }

    /// The value of the owner label.
    pub fn owner(&self, agent: &AgentName) -> String {
        format!("{}-agent-{agent}", self.ns)
    }

    /// The value of the owner label of what was made before anybody asked for it.
    pub fn pool(&self) -> String {
        format!("{}-pool", self.ns)
    }

    /// The labels that everything of this installation carries.
    pub fn base_labels(&self) -> crate::runtime::Labels {
        [(self.label("sandbox"), "1".to_owned()), (self.label("installation"), self.installation.to_string())].into()
    }

    /// Whether these are labels of something of this installation.
    pub fn are_ours(&self, labels: &crate::runtime::Labels) -> bool {
        self.base_labels().iter().all(|(k, v)| labels.get(k) == Some(v))
    }

    /// What the host writes before a prefixed variable of an engine.
    pub fn variable_prefix(&self) -> String {
        format!("{}_TEST_", self.upper)
    }

    /// The variable by which everything that a command started is told from the rest of its box.
    pub fn command_mark(&self) -> String {
        format!("{}COMMAND", self.reserved_prefix())
    }

    /// Names that start so are the host's own in a container's environment.
    pub fn reserved_prefix(&self) -> String {
        format!("{}_", self.upper)
    }

    /// Under this name the host finds the agent's password again in a container's environment.
    pub fn password_variable(&self) -> String {
        format!("{}_SECRET_PASSWORD", self.upper)
    }

    /// The same for the administrator's password.
    pub fn admin_password_variable(&self) -> String {
        format!("{}_SECRET_ADMIN_PASSWORD", self.upper)
    }

    /// The environment variable that sets the master switch at start.
    pub fn switch_variable(&self) -> String {
        format!("{}_SANDBOX_DB_ENABLED", self.upper)
    }

    /// The variable that tells an agent which services it may ask for.
    pub fn marker_variable(&self) -> String {
        format!("{}_SANDBOX_SERVICES_AVAILABLE", self.upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ns: &str) -> Names {
        Names::new(Namespace::new(ns).unwrap(), Installation::new("i1").unwrap())
    }

    #[test]
    fn slugs() {
        for good in ["a", "be-dev-1", "0", &"a".repeat(32)] {
            assert!(AgentName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "é", "a\n", &"a".repeat(33)] {
            assert!(AgentName::new(bad).is_err(), "{bad}");
        }
        assert!(EngineSlug::new("a-b").is_err());
        assert!(Namespace::new("thirteenchars").is_err());
        assert!(ProjectName::new("Shop.v2_x").is_ok());
        assert!(ProjectName::new("../x").is_err());
    }

    #[test]
    fn the_longest_name_is_a_dns_label() {
        let n = names("abcdefghijkl");
        let name = n.sandbox(&EngineSlug::new("12345678").unwrap(), &AgentName::new("a".repeat(32)).unwrap());
        assert_eq!(name.len(), 62);
        assert_eq!(n.read(&name), Kind::Sandbox { slug: "12345678", agent: &"a".repeat(32) });
    }

    #[test]
    fn names_that_roboco_knows() {
        let n = names("roboco");
        let agent = AgentName::new("be-dev-1").unwrap();
        assert_eq!(n.sandbox(&EngineSlug::new("pg").unwrap(), &agent), "roboco-sandbox-pg-be-dev-1");
        assert_eq!(n.label("sandbox.owner"), "roboco.sandbox.owner");
        assert_eq!(n.owner(&agent), "roboco-agent-be-dev-1");
        assert_eq!(n.network(), "roboco_default");
        assert_eq!(n.variable_prefix(), "ROBOCO_TEST_");
        assert_eq!(n.switch_variable(), "ROBOCO_SANDBOX_DB_ENABLED");
        assert_eq!(n.marker_variable(), "ROBOCO_SANDBOX_SERVICES_AVAILABLE");
    }

    #[test]
    fn names_are_read_back() {
        let n = names("sandbar");
        assert_eq!(n.read(&n.making()), Kind::Making);
        assert_eq!(n.read(&n.leaving()), Kind::Leaving);
        assert_eq!(n.read("sandbar-sandbox-pg-a-b"), Kind::Sandbox { slug: "pg", agent: "a-b" });
        assert_eq!(n.read("sandbarx-sandbox-pg-a"), Kind::Other);
        assert_eq!(n.read("other"), Kind::Other);
    }
}
