//! The configuration file as something to change: comments and order stay as they are, and it is replaced in one step, so
//! that a host that runs never reads half of it.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use sandbar_core::name::ServiceName;
use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value, value};

use crate::config::{Config, Unusable};
use crate::engine::Asked;

/// What some editors begin a file with.
const MARK: char = '\u{feff}';

/// What becomes of an engine's table. What is not named here stays in it.
pub(crate) struct Admitted<'a> {
    /// As it is written: relative to the file, or absolute.
    pub(crate) component: &'a str,
    pub(crate) sha256: &'a str,
    pub(crate) slug: Option<&'a str>,
    pub(crate) grants: &'a Asked,
    pub(crate) settings: &'a [(String, String)],
}

/// A configuration file.
pub(crate) struct File {
    path: PathBuf,
    /// What is replaced: where a link leads.
    target: PathBuf,
    text: String,
    document: DocumentMut,
}

impl File {
    /// Reads one that a host could run with.
    ///
    /// # Errors
    /// It is not there, or no configuration; with the line of what is wrong in it.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let target = fs::canonicalize(path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => Unusable(format!("there is no {shown}: name the configuration with --config")),
            _ => Unusable(format!("{shown} cannot be read: {e}")),
        })?;
        if !target.is_file() {
            return Err(Unusable(format!("{shown} is no file: name the configuration with --config")).into());
        }
        let text = crate::config::text(path)?;
        // Says what is wrong better than the other parser, and knows the keys.
        Config::parse(&text, path)?;
        let document = text.parse().with_context(|| format!("in {shown}"))?;
        Ok(Self { path: path.to_owned(), target, text, document })
    }

    /// What it says now, with all changes.
    ///
    /// # Errors
    /// A change that makes it no configuration.
    pub(crate) fn config(&self) -> Result<Config> {
        Config::parse(&self.document.to_string(), &self.path)
    }

    /// The directory from which relative paths in it are meant.
    ///
    /// # Errors
    /// There is no working directory.
    pub(crate) fn base(&self) -> Result<PathBuf> {
        Ok(std::path::absolute(&self.path)?.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// Writes an engine's table, or into it.
    ///
    /// # Errors
    /// What stands there is no table.
    pub(crate) fn admit(&mut self, name: &ServiceName, admitted: &Admitted<'_>) -> Result<()> {
        let no_table = || format!("[engines.{name}] in {} is no table", self.path.display());
        let engines = self.document.entry("engines").or_insert_with(|| {
            let mut engines = Table::new();
            engines.set_implicit(true);
            engines.into()
        });
        let engines = engines.as_table_like_mut().with_context(no_table)?;
        let item = match engines.entry(name.as_str()) {
            toml_edit::Entry::Occupied(found) => found.into_mut(),
            toml_edit::Entry::Vacant(free) => free.insert(Item::Table(Table::new())),
        };
        let table = item.as_table_like_mut().with_context(no_table)?;
        put(table, "component", admitted.component);
        put(table, "sha256", admitted.sha256);
        if let Some(slug) = admitted.slug {
            put(table, "slug", slug);
        }
        let Asked { images, capabilities, data_dirs, variables } = admitted.grants;
        let grant = inner(table, "grant", true).with_context(no_table)?;
        for (key, values) in
            [("images", images), ("capabilities", capabilities), ("data_dirs", data_dirs), ("variables", variables)]
        {
            put(grant, key, values.iter().map(String::as_str).collect::<toml_edit::Array>());
        }
        if !admitted.settings.is_empty() {
            let settings = inner(table, "settings", false).with_context(no_table)?;
            for (key, text) in admitted.settings {
                put(settings, key, text.as_str());
            }
        }
        Ok(())
    }

    /// Takes an engine's table out. Answers whether there was one.
    pub(crate) fn remove(&mut self, name: &ServiceName) -> bool {
        let engines = self.document.get_mut("engines").and_then(Item::as_table_like_mut);
        let Some(removed) = engines.and_then(|engines| engines.remove(name.as_str())) else { return false };
        if let Item::Table(table) = removed {
            self.keep_comments(&table);
        }
        true
    }

    /// A comment above a table is the table's; what stands apart from it above that, such as the head of the file, is not.
    fn keep_comments(&mut self, removed: &Table) {
        let above = removed.decor().prefix().and_then(|p| p.as_str()).unwrap_or_default();
        let Some((apart, _)) = above.rsplit_once("\n\n").filter(|(apart, _)| !apart.trim().is_empty()) else { return };
        let apart = format!("{apart}\n");
        let place = removed.position();
        let mut next = None;
        visit(self.document.as_table_mut(), &mut |table| {
            if table.position() > place && (next.is_none() || table.position() < next) {
                next = table.position();
            }
        });
        match next {
            Some(next) => visit(self.document.as_table_mut(), &mut |table| {
                if table.position() == Some(next) {
                    let own = table.decor().prefix().and_then(|p| p.as_str()).unwrap_or_default().to_owned();
                    table.decor_mut().set_prefix(format!("{apart}{own}"));
                }
            }),
            None => {
                let trailing = self.document.trailing().as_str().unwrap_or_default().to_owned();
                self.document.set_trailing(format!("{apart}{trailing}"));
            }
        }
    }

    /// An engine's table as it would be written.
    pub(crate) fn shown(&self, name: &ServiceName) -> String {
        let mut alone = DocumentMut::new();
        let engines = self.document.get("engines").and_then(|engines| engines.get(name.as_str()));
        let table = engines.cloned().and_then(|item| item.into_table().ok()).unwrap_or_default();
        let mut around = Table::new();
        around.set_implicit(true);
        around.insert(name.as_str(), Item::Table(table));
        alone.insert("engines", Item::Table(around));
        alone.to_string().trim().to_owned()
    }

    /// What is written: with the line ends of the file, and the mark that some editors put at its beginning.
    fn changed(&self) -> String {
        let text = self.document.to_string().replace("\r\n", "\n");
        let text = text.trim_start_matches(MARK);
        let ends = if self.text.contains("\r\n") { "\r\n" } else { "\n" };
        let mark = if self.text.starts_with(MARK) { "\u{feff}" } else { "" };
        format!("{mark}{}", text.replace('\n', ends))
    }

    /// Replaces the file in one step; its mode and its owner stay. A link goes on to lead to it.
    ///
    /// # Errors
    /// It cannot be written, and is as it was.
    pub(crate) fn write(self) -> Result<()> {
        let shown = self.path.display();
        let before = fs::metadata(&self.target).with_context(|| format!("{shown} cannot be read"))?;
        // Who may write in its directory could replace it nevertheless, and is asked not to.
        if before.permissions().readonly() {
            bail!("{shown} is read-only and stays as it is: `chmod u+w {}` first", self.target.display());
        }
        let dir = self.target.parent().unwrap_or(Path::new("/"));
        let failed = |e: std::io::Error| {
            let dir = dir.display();
            anyhow!("{shown} stays as it is, for nothing can be written to {dir}: {e}; run this as who may write there")
        };
        let mut new = tempfile::Builder::new().prefix(".sandbar-").tempfile_in(dir).map_err(failed)?;
        new.write_all(self.changed().as_bytes()).map_err(failed)?;
        let made = new.as_file().metadata().map_err(failed)?;
        if (made.uid(), made.gid()) != (before.uid(), before.gid()) {
            fchown(new.as_file(), Some(before.uid()), Some(before.gid())).map_err(failed)?;
        }
        new.as_file().set_permissions(Permissions::from_mode(before.mode() & 0o7777)).map_err(failed)?;
        new.as_file().sync_all().map_err(failed)?;
        if fs::read_to_string(&self.target).map_err(failed)? != self.text {
            bail!("{shown} was changed by somebody else meanwhile and stays as it is: try again");
        }
        new.persist(&self.target).map_err(|e| failed(e.error))?;
        Ok(())
    }
}

/// Writes a value; what stands around an earlier one, such as a comment behind it, stays.
fn put(table: &mut dyn TableLike, key: &str, new: impl Into<Value>) {
    let mut new = new.into();
    if let Some(old) = table.get(key).and_then(Item::as_value) {
        *new.decor_mut() = old.decor().clone();
    }
    table.insert(key, Item::Value(new));
}

/// A table in a table, made where it is missing: with dotted keys, or on one line.
fn inner<'a>(table: &'a mut dyn TableLike, key: &str, dotted: bool) -> Option<&'a mut dyn TableLike> {
    let made = || {
        let mut made = InlineTable::new();
        made.set_dotted(dotted);
        value(made)
    };
    table.entry(key).or_insert_with(made).as_table_like_mut()
}

/// Every table that has a header of its own.
fn visit(table: &mut Table, with: &mut impl FnMut(&mut Table)) {
    for (_, item) in table.iter_mut() {
        if let Item::Table(inner) = item {
            if !inner.is_implicit() && !inner.is_dotted() {
                with(inner);
            }
            visit(inner, with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        File { path: "x.toml".into(), target: "x.toml".into(), text: text.into(), document: text.parse().unwrap() }
    }

    fn name() -> ServiceName {
        ServiceName::new("cache").unwrap()
    }

    fn added(text: &str, settings: &[(String, String)]) -> String {
        let mut file = file(text);
        let (images, variables) = (vec!["redis:*".to_owned()], vec!["CACHE_URL".to_owned()]);
        let grants = Asked { images, variables, capabilities: Vec::new(), data_dirs: Vec::new() };
        let admitted =
            Admitted { component: "engines.d/cache.wasm", sha256: "abc", slug: None, grants: &grants, settings };
        file.admit(&name(), &admitted).unwrap();
        let text = file.changed();
        let config: Config = toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let engine = &config.engines[&name()];
        assert_eq!(engine.sha256.as_deref(), Some("abc"), "{text}");
        assert_eq!(engine.grant.images.as_deref(), Some(&["redis:*".to_owned()][..]), "{text}");
        assert_eq!(engine.grant.data_dirs.as_deref(), Some(&[][..]), "granted nothing, whatever a lock file says");
        text
    }

    const TABLE: &str = "[engines.cache]\ncomponent = \"engines.d/cache.wasm\"\nsha256 = \"abc\"\n\
        grant.images = [\"redis:*\"]\ngrant.capabilities = []\ngrant.data_dirs = []\ngrant.variables = [\"CACHE_URL\"]\n";

    #[test]
    fn a_table_is_added_and_nothing_else_changes() {
        assert_eq!(added("", &[]), TABLE);
        let text = "# head\n\n[host] # mine\nnamespace   = 'x'\n\n# shop\n[projects.shop]\nservices = [\n  'cache', # a\n]\n# end\n";
        assert_eq!(added(text, &[]).replacen(&format!("\n{TABLE}"), "", 1), text);
        let text = "[engines.other]\nslug = 'o'\n\n[projects.shop]\n";
        let expected = format!("[engines.other]\nslug = 'o'\n\n{TABLE}\n[projects.shop]\n");
        assert_eq!(added(text, &[]), expected, "beside its like");
        let settings = [("image".to_owned(), "a \"b\"".to_owned())];
        assert!(added("", &settings).ends_with("settings = { image = 'a \"b\"' }\n"), "{}", added("", &settings));
    }

    #[test]
    fn line_ends_and_the_mark_stay() {
        let text = "\u{feff}# head\r\n[host]\r\nnamespace = 'x'\r\n";
        let new = added(text, &[]);
        assert_eq!(new, format!("{text}\r\n{}", TABLE.replace('\n', "\r\n")));
        assert!(!added("[host]\n", &[]).contains('\r'));
    }

    #[test]
    fn a_table_that_is_there_keeps_what_is_not_admitted() {
        for (text, kept) in [
            (
                "[engines.cache] # kept\nsha256 = 'old' # too\nmemory = '1g'\n",
                &["# kept", "# too", "memory = '1g'"][..],
            ),
            ("[engines.cache.grant]\nimages = ['old']\n", &["[engines.cache.grant]"]),
            ("[engines.cache]\ngrant.images = ['old'] # why\n", &["# why"]),
            ("[engines]\ncache = { sha256 = 'old', pids = 99 }\n", &["pids = 99"]),
            ("engines.cache.sha256 = 'old'\n", &["engines.cache.sha256"]),
            ("engines = { other = { slug = 'o' } }\n", &["slug = 'o'"]),
        ] {
            let new = added(text, &[("image".to_owned(), "x".to_owned())]);
            assert!(kept.iter().all(|kept| new.contains(kept)) && !new.contains("'old'"), "{text} has become {new}");
        }
    }

    #[test]
    fn a_table_goes_with_its_own_comment_alone() {
        let removed = |text: &str| {
            let mut file = file(text);
            assert!(file.remove(&name()));
            assert!(!file.remove(&name()));
            file.document.to_string()
        };
        assert_eq!(
            removed("# head\n\n# its own\n[engines.cache]\nsha256 = 'x'\ngrant.images = []\n\n# next\n[images]\n"),
            "# head\n\n# next\n[images]\n"
        );
        assert_eq!(removed("# head\n\n[engines.cache]\n[engines.cache.settings]\na = 'b'\n"), "# head\n");
        assert_eq!(
            removed("[engines]\ncache = { slug = 'x' }\nb = { slug = 'b' }\n"),
            "[engines]\nb = { slug = 'b' }\n"
        );
        assert_eq!(removed("[host]\n# apart\n\n[engines.cache]\n# end\n"), "[host]\n# apart\n# end\n");
    }
}
