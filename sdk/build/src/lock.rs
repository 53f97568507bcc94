//! The lock file: which bytes a component has, and what it may use. The build writes it, the host reads it.
//!
//! One table for each component, named like its file. Everything in it is sorted or in the author's order, so the same
//! engines always make the same file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The name of the lock file.
pub const FILE: &str = "engines.lock";

/// What an engine may use: `[package.metadata.sandbar.grant]` in its manifest. Patterns may hold `{namespace}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grant {
    /// Patterns of image references.
    pub images: Vec<String>,
    /// Linux capabilities.
    pub capabilities: Vec<String>,
    /// Directories whose content is data.
    pub data_dirs: Vec<String>,
    /// Variables that an agent gets under just their name.
    pub variables: Vec<String>,
}

/// The entry of one component.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pin {
    /// SHA-256 of its bytes in hex.
    pub sha256: String,
    /// What it may use.
    pub grant: Grant,
}

/// A lock file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lock {
    pins: BTreeMap<String, Pin>,
}

impl Lock {
    /// Reads a lock file; one that is not there is empty.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is no lock file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        toml::from_str(&text).with_context(|| format!("{} is no lock file of engines", path.display()))
    }

    /// Adds or replaces the entry of a component.
    pub fn insert(&mut self, file: impl Into<String>, pin: Pin) {
        self.pins.insert(file.into(), pin);
    }

    /// The entry of a component.
    #[must_use]
    pub fn get(&self, file: &str) -> Option<&Pin> {
        self.pins.get(file)
    }
}

impl fmt::Display for Lock {
    /// The file's text. Written here and not by the serializer, so that a grant stands on one line, as it does in a
    /// configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Written by the build of the engines: the bytes of each component, and what it may use.\n")?;
        for (file, Pin { sha256, grant }) in &self.pins {
            write!(f, "\n[{}]\nsha256 = {}\ngrant = {{ ", quoted(file), quoted(sha256))?;
            let keys = [
                ("images", &grant.images),
                ("capabilities", &grant.capabilities),
                ("data_dirs", &grant.data_dirs),
                ("variables", &grant.variables),
            ];
            for (index, (key, values)) in keys.into_iter().enumerate() {
                let values: Vec<String> = values.iter().map(|value| quoted(value)).collect();
                write!(f, "{}{key} = [{}]", if index == 0 { "" } else { ", " }, values.join(", "))?;
            }
            f.write_str(" }\n")?;
        }
        Ok(())
    }
}

/// A basic string of TOML, always in double quotes.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn lock() -> Lock {
        let grant = Grant {
            images: vec!["postgres:*".to_owned(), "{namespace}-sandbox-pg:*".to_owned()],
            data_dirs: vec!["/var/lib/postgresql/data".to_owned()],
            ..Grant::default()
        };
        let mut lock = Lock::default();
        lock.insert("redis.wasm", Pin { sha256: "bb".to_owned(), grant: Grant::default() });
        lock.insert("postgres.wasm", Pin { sha256: "aa".to_owned(), grant });
        lock
    }

    #[test]
    fn the_text_has_one_table_for_each_component() {
        let expected = r#"# Written by the build of the engines: the bytes of each component, and what it may use.

["postgres.wasm"]
sha256 = "aa"
grant = { images = ["postgres:*", "{namespace}-sandbox-pg:*"], capabilities = [], data_dirs = ["/var/lib/postgresql/data"], variables = [] }

["redis.wasm"]
sha256 = "bb"
grant = { images = [], capabilities = [], data_dirs = [], variables = [] }
"#;
        assert_eq!(lock().to_string(), expected);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut lock = lock();
        let grant = Grant { images: vec!["\"\\\n\u{7f}".to_owned()], ..Grant::default() };
        lock.insert("odd \"name\".wasm", Pin { sha256: String::new(), grant });
        assert_eq!(toml::from_str::<Lock>(&lock.to_string()).unwrap(), lock);
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let bad = "[\"a.wasm\"]\nsha256 = \"\"\ngrant = { mounts = [\"/\"] }\n";
        assert!(toml::from_str::<Lock>(bad).unwrap_err().to_string().contains("mounts"));
    }
}
