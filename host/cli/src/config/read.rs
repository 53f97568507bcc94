//! Reads a configuration and says everything in it that cannot be read, not the first thing only: what is wrong is taken out,
//! and the rest is read again.

use std::ops::Range;
use std::path::Path;

use anyhow::Result;
use serde::Deserialize as _;

use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::Config;

/// A configuration, as far as it could be read.
pub(crate) struct Read {
    /// Without what was refused.
    pub(crate) config: Config,
    /// In the order of the file.
    pub(crate) refused: Vec<Refused>,
}

/// Something that could not be read.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The keys that lead to what was taken out; none for what is no TOML.
    pub(crate) keys: Vec<String>,
    /// Where it begins, in bytes.
    offset: usize,
    why: String,
}

impl Refused {
    /// The table and the key, as `[projects.shop] services`.
    fn at(&self) -> String {
        // These tables are of things that the operator names.
        let named = ["engines", "projects", "agents", "orchestrators"];
        let depth = if self.keys.first().is_some_and(|first| named.contains(&first.as_str())) { 2 } else { 1 };
        let (table, key) = self.keys.split_at(depth.min(self.keys.len()));
        format!("[{}] {}", table.join("."), key.join(".")).trim_end().to_owned()
    }

    /// One line for people: where, and why.
    pub(crate) fn line(&self, text: &str, path: &Path) -> String {
        let (line, column) = self.place(text);
        format!("{}:{line}:{column}: {self}", path.display())
    }

    /// Line and column, both from 1.
    pub(crate) fn place(&self, text: &str) -> (usize, usize) {
        place(text, self.offset)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.keys.is_empty() {
            true => f.write_str(&self.why),
            false => write!(f, "{}: {}", self.at(), self.why),
        }
    }
}

/// Line and column, both from 1, of a byte.
pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..text.floor_char_boundary(offset)];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Reads the text of a file. Relative paths in it are meant from its own directory.
///
/// # Errors
/// There is no working directory.
pub(crate) fn read(text: &str, path: &Path) -> Result<Read> {
    let (mut root, broken) = DeTable::parse_recoverable(text);
    let mut refused: Vec<_> = broken.iter().map(|error| refused(error, Vec::new())).collect();
    let mut config = Config::default();
    // What stands in a file that is no TOML is a guess.
    while refused.iter().all(|refused| !refused.keys.is_empty()) {
        match Config::deserialize(Deserializer::from(root.clone())) {
            Ok(read) => {
                config = read;
                break;
            }
            Err(error) => {
                let keys = error.span().and_then(|span| find(root.get_ref(), &span)).unwrap_or_default();
                take_out(root.get_mut(), &keys);
                refused.push(self::refused(&error, keys));
            }
        }
    }
    refused.sort_by_key(|refused| refused.offset);
    let base = std::path::absolute(path)?;
    config.resolve(base.parent().unwrap_or(Path::new("/")));
    Ok(Read { config, refused })
}

fn refused(error: &Error, keys: Vec<String>) -> Refused {
    let why = error.message().lines().collect::<Vec<_>>().join(", ");
    Refused { keys, offset: error.span().map_or(0, |span| span.start), why }
}

/// The keys that lead to what an error is about: the deepest entry whose key or value it lies in.
fn find(table: &DeTable<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    let within = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    table.iter().find_map(|(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
        let mut keys = vec![key.get_ref().to_string()];
        // A table with a header of its own is not inside of the span of the one that it belongs to.
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(deeper) = find(inner, span)
        {
            keys.extend(deeper);
            return Some(keys);
        }
        (within(key.span()) || within(value.span())).then_some(keys)
    })
}

fn take_out(table: &mut DeTable<'_>, keys: &[String]) {
    match keys {
        [] => {}
        [last] => {
            table.remove(last.as_str());
        }
        [first, rest @ ..] => {
            if let Some(DeValue::Table(inner)) = table.get_mut(first.as_str()).map(Spanned::get_mut) {
                take_out(inner, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let Read { refused, .. } = read(text, Path::new("x.toml")).unwrap();
        refused.iter().map(|refused| refused.line(text, Path::new("x.toml"))).collect()
    }

    fn starts(text: &str, expected: &[&str]) {
        let said = said(text);
        let fits =
            said.len() == expected.len() && said.iter().zip(expected).all(|(said, start)| said.starts_with(start));
        assert!(fits && said.iter().all(|line| !line.contains('\n')), "{text}\n{said:#?}");
    }

    #[test]
    fn everything_that_cannot_be_read_is_said_with_its_place() {
        let text = "[sandbox]\nmemroy = \"1g\"\nmemory = \"5x\"\ncpus = 0\nmax_live = 3\n\n\
             [engines.a]\ngrant.images = 1\ngrant.sockets = []\nsettings = { a = 1, b = \"c\" }\n\n\
             [engines.a.limits]\nx = 1\n\n[orchestrators.o]\nprojects = [\"p\", \"-q\"]\n\n[projects.p]\nservices = [\"ä\", \"b\"]\n\
             gate_env = { A = 1 }\n\n[nonsense]\n";
        starts(
            text,
            &[
                "x.toml:2:1: [sandbox] memroy: unknown field `memroy`, expected one of `enabled`, ",
                "x.toml:3:10: [sandbox] memory: a size is",
                "x.toml:4:8: [sandbox] cpus: cpus must be between",
                "x.toml:8:16: [engines.a] grant.images: invalid type: integer `1`",
                "x.toml:9:7: [engines.a] grant.sockets: unknown field `sockets`",
                "x.toml:10:18: [engines.a] settings.a: invalid type: integer `1`, expected a string",
                "x.toml:12:12: [engines.a] limits: unknown field",
                "x.toml:15:1: [orchestrators.o]: missing field `token`",
                "x.toml:16:12: [orchestrators.o] projects: `-q` is not the name of a project",
                "x.toml:19:12: [projects.p] services: `ä` is not the name of a service",
                "x.toml:20:18: [projects.p] gate_env.A: a value is a text",
                "x.toml:22:2: [nonsense]: unknown field `nonsense`",
            ],
        );
        let Read { config, .. } = read(text, Path::new("x.toml")).unwrap();
        assert_eq!((config.sandbox.max_live, config.sandbox.pids), (3, 256), "the rest is read");
        assert_eq!(config.engines.len(), 1);
    }

    #[test]
    fn what_is_no_toml_is_said_alone() {
        starts("[host\nlisten = 1\n", &["x.toml:1:6: "]);
        starts("[host]\na = \n[sandbox]\nb = 'x\n", &["x.toml:2:", "x.toml:4:"]);
        starts("a = 1\na = 2\n", &["x.toml:2:1: "]);
        starts("host = 1\nimages = []\n", &["x.toml:1:8: [host]: ", "x.toml:2:10: [images]: "]);
    }
}
