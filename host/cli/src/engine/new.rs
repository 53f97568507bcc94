//! `sandbar engine new`: the crate of a new engine. It is made from `sdk/template`, which is compiled and tested like every
//! other crate.
//!
//! The SDK is in no registry, and a crate has to build wherever it lies. So unless the author has the SDK's sources and names
//! them, the ones that this binary was built with are written beside the engine, as a path dependency.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use sandbar_core::name::ServiceName;
use toml::{Table, Value};

/// What to make.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The engine's name, which agents will ask for: `[a-z][a-z0-9-]*`.
    name: String,
    /// The directory to make [default: the name].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The directory of the SDK, `sdk` in Sandbar's sources, to build on [default: a copy written into the crate].
    #[arg(long)]
    sdk: Option<PathBuf>,
}

/// The template.
const MANIFEST: &str = include_str!("../../../../sdk/template/Cargo.toml");
const LIB: &str = include_str!("../../../../sdk/template/src/lib.rs");
const TESTS: &str = include_str!("../../../../sdk/template/src/tests.rs");
const IGNORED: &str = "/target\n/engines.d\n";
/// The versions of everything that the template and the SDK depend on, as they were tested.
const LOCK: &str = include_str!("../../../../engines/Cargo.lock");

/// The longest name of a service.
const LONGEST: usize = 32;
/// What a crate or its type cannot be called: keywords, the crates that come with Rust, and what everybody has in scope.
const TAKEN: &str = "abstract as async await become box break const continue crate do dyn else enum extern false final fn for \
    gen if impl in let loop macro match mod move mut override priv pub ref return self static struct super trait true try type \
    typeof unsafe unsized use virtual where while yield alloc core proc-macro std test err none ok option result some string vec \
    sandbar-sdk";

/// Where a crate has its copy of the SDK, with the same paths as in the sources.
const COPY: &str = "sandbar";
/// The SDK as it is in the sources.
const SDK: [(&str, &str); 8] = [
    ("wit/sandbox-engine.wit", include_str!("../../../../wit/sandbox-engine.wit")),
    ("sdk/src/bindings.rs", include_str!("../../../../sdk/src/bindings.rs")),
    ("sdk/src/descriptor.rs", include_str!("../../../../sdk/src/descriptor.rs")),
    ("sdk/src/lib.rs", include_str!("../../../../sdk/src/lib.rs")),
    ("sdk/src/recipe.rs", include_str!("../../../../sdk/src/recipe.rs")),
    ("sdk/src/template.rs", include_str!("../../../../sdk/src/template.rs")),
    ("sdk/src/testing.rs", include_str!("../../../../sdk/src/testing.rs")),
    ("LICENSE", include_str!("../../../../LICENSE")),
];
const SDK_MANIFEST: &str = include_str!("../../../../sdk/Cargo.toml");
/// What the SDK's manifest takes over from.
const WORKSPACE: &str = include_str!("../../../../Cargo.toml");

/// Makes the crate.
///
/// # Errors
/// A name that cannot be, something in the way, or a directory that is not the SDK's.
pub(crate) fn new(args: &Args) -> Result<()> {
    let name = Name::new(&args.name)?;
    let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let shown = dir.display();
    let sdk = args.sdk.as_deref().map(sdk).transpose()?;
    let mut files = vec![
        ("Cargo.toml".to_owned(), name.manifest(sdk.as_deref())?),
        ("src/lib.rs".to_owned(), name.fill(LIB)),
        ("src/tests.rs".to_owned(), name.fill(TESTS)),
        ("Cargo.lock".to_owned(), name.lock()),
        (".gitignore".to_owned(), IGNORED.to_owned()),
    ];
    if sdk.is_none() {
        files.push((format!("{COPY}/sdk/Cargo.toml"), alone(SDK_MANIFEST, WORKSPACE)?));
        files.extend(SDK.map(|(path, text)| (format!("{COPY}/{path}"), text.to_owned())));
    }
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    // One call that finds out whether it is there and makes it.
    fs::create_dir(&dir).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => anyhow!("{shown} exists already: choose another name, or `--dir`"),
        _ => anyhow!("{shown} cannot be made: {e}"),
    })?;
    for (path, text) in files {
        let path = dir.join(path);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        written.with_context(|| format!("writing {}", path.display()))?;
    }
    println!("made the engine `{}` in {shown}; next:", args.name);
    println!("  cargo test --manifest-path {}", dir.join("Cargo.toml").display());
    println!("  sandbar engine build {shown}");
    println!("  sandbar engine test engines.d/{}.wasm --docker", args.name);
    Ok(())
}

/// The SDK's directory as every other directory can name it.
fn sdk(dir: &Path) -> Result<PathBuf> {
    let hint = "name the directory `sdk` of Sandbar's sources, or leave `--sdk` out for a copy of it";
    let found = dir.canonicalize().with_context(|| format!("--sdk {}: {hint}", dir.display()))?;
    let manifest = fs::read_to_string(found.join("Cargo.toml")).unwrap_or_default().parse::<Table>();
    let package = manifest.ok().and_then(|t| t.get("package")?.get("name")?.as_str().map(str::to_owned));
    match package.as_deref() {
        Some("sandbar-sdk") => Ok(found),
        _ => bail!("--sdk {}: the SDK is not there; {hint}", dir.display()),
    }
}

/// An engine's name in the shapes that the template has it in.
struct Name {
    /// `my-cache`, of the package and the service.
    kebab: String,
    /// `MyCache`, of the type.
    camel: String,
    /// `MY_CACHE`, in variables.
    upper: String,
    /// `mycache`, at most 8 characters.
    slug: String,
}

impl Name {
    fn new(name: &str) -> Result<Self> {
        let refuse = |why: &str| bail!("`{}` cannot be the name of an engine: {why}", sandbar_core::error::shown(name));
        let good = ServiceName::new(name).is_ok() && name.starts_with(|c: char| c.is_ascii_lowercase());
        if name.len() > LONGEST {
            return refuse(&format!("it has {} characters, and a name has at most {LONGEST}", name.len()));
        }
        if !good || name.contains("--") {
            return refuse("it begins with a letter and has small letters, digits and single `-`, such as `my-cache`");
        }
        // The crate has this name, and a type, too.
        let imported = LIB.split_once("use sandbar_sdk::{").and_then(|(_, rest)| rest.split_once('}'));
        let mut imported = imported.map_or("", |(names, _)| names).split(',').map(|name| name.trim().to_lowercase());
        if TAKEN.split_whitespace().any(|taken| taken == name) || imported.any(|taken| taken == name) {
            return refuse(&format!("it is a word of Rust or of the SDK; take another, such as `my-{name}`"));
        }
        let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
        Ok(Self {
            kebab: name.to_owned(),
            camel: name.split('-').map(capital).collect(),
            upper: name.replace('-', "_").to_ascii_uppercase(),
            slug: name.chars().filter(|c| *c != '-').take(8).collect(),
        })
    }

    /// A source file with this name in place of the template's.
    fn fill(&self, text: &str) -> String {
        text.replace("Template", &self.camel)
            .replace("TEMPLATE", &self.upper)
            .replace("\"template\"", &format!("\"{}\"", self.slug))
    }

    /// The manifest. A workspace of its own, so that it does not matter in which other one its directory lies.
    fn manifest(&self, sdk: Option<&Path>) -> Result<String> {
        let path = match sdk {
            Some(path) => path.to_str().context("the path of the SDK is not UTF-8")?.to_owned(),
            None => format!("{COPY}/sdk"),
        };
        let kept = MANIFEST.lines().filter(|line| !line.starts_with("workspace ="));
        let lines = kept.flat_map(|line| [line, "\n"]).collect::<String>();
        Ok(lines
            .replace("name = \"template\"", &format!("name = \"{}\"", self.kebab))
            .replace("TEMPLATE", &self.upper)
            .replace("path = \"..\"", &format!("path = {}", Value::String(path)))
            + "\n[workspace]\n")
    }

    /// The lock file, without the other engines, as Cargo itself would write it.
    fn lock(&self) -> String {
        let mut blocks = LOCK.trim_end().split("\n\n");
        let head = blocks.next().unwrap_or_default();
        let ours = |block: &&str| block.contains("\nsource = ") || block.contains("\nname = \"sandbar-sdk\"\n");
        let own = format!(
            "[[package]]\nname = \"{}\"\nversion = \"0.1.0\"\ndependencies = [\n \"sandbar-sdk\",\n]",
            self.kebab
        );
        let mut packages: Vec<_> = blocks.filter(ours).map(str::to_owned).chain([own]).collect();
        let name = |block: &String| block.lines().nth(1).map(str::to_owned);
        packages.sort_by_key(name);
        std::iter::once(head.to_owned()).chain(packages).collect::<Vec<_>>().join("\n\n") + "\n"
    }
}

/// The manifest of a member of a workspace as that of a package for itself.
fn alone(manifest: &str, workspace: &str) -> Result<String> {
    let mut manifest: Table = manifest.parse()?;
    let workspace: Table = workspace.parse()?;
    let shared = workspace.get("workspace").and_then(|w| w.get("package")).and_then(Value::as_table);
    let package = manifest.get_mut("package").and_then(Value::as_table_mut);
    let (shared, package) = shared.zip(package).context("the SDK's manifest has a package, and its workspace too")?;
    for (key, value) in package.iter_mut() {
        if value.get("workspace").is_some() {
            *value = shared.get(key).cloned().with_context(|| format!("the workspace has no {key}"))?;
        }
    }
    manifest.remove("lints");
    Ok(format!("# A copy of the SDK that `sandbar engine new` wrote, of the same version as that.\n{manifest}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_have_their_shapes() {
        let name = Name::new("my-2nd-cache").unwrap();
        let Name { kebab, camel, upper, slug } = &name;
        assert_eq!([kebab, camel, upper, slug], ["my-2nd-cache", "My2ndCache", "MY_2ND_CACHE", "my2ndcac"]);
        for bad in ["", "2nd", "My", "a_b", "-a", "a-", "a--b", "a/b"] {
            let why = Name::new(bad).err().unwrap().to_string();
            assert!(why.contains("my-cache") && !why.contains('\n'), "{why}");
        }
        for bad in ["fn", "core", "self", "test", "result", "engine", "recipe", "sandbar-sdk"] {
            let why = Name::new(bad).err().unwrap().to_string();
            assert!(why.contains(&format!("take another, such as `my-{bad}`")) && !why.contains('\n'), "{why}");
        }
        let why = Name::new(&"a".repeat(33)).err().unwrap().to_string();
        assert!(why.contains("33 characters") && why.contains("at most 32"), "{why}");
        assert!(Name::new(&"a".repeat(32)).is_ok() && Name::new("my-fn").is_ok());
    }

    #[test]
    fn nothing_of_the_template_s_name_stays() {
        let name = Name::new("cache").unwrap();
        for text in [name.manifest(None).unwrap(), name.fill(LIB), name.fill(TESTS)] {
            assert!(!text.to_ascii_lowercase().contains("template"), "{text}");
        }
        let manifest: Table = name.manifest(Some(Path::new("/some where/\"sdk\""))).unwrap().parse().unwrap();
        assert_eq!(manifest["dependencies"]["sandbar-sdk"]["path"].as_str(), Some("/some where/\"sdk\""));
        assert_eq!(manifest["package"]["name"].as_str(), Some("cache"));
        assert!(manifest["package"].get("workspace").is_none() && manifest.contains_key("workspace"));
    }

    #[test]
    fn the_copy_of_the_sdk_is_all_of_it() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut there = BTreeSet::new();
        for dir in ["wit", "sdk/src"] {
            for entry in fs::read_dir(sources.join(dir)).unwrap() {
                there.insert(format!("{dir}/{}", entry.unwrap().file_name().into_string().unwrap()));
            }
        }
        let copied: BTreeSet<_> = SDK.iter().map(|(path, _)| (*path).to_owned()).filter(|p| p != "LICENSE").collect();
        assert_eq!(copied, there);
        let manifest: Table = alone(SDK_MANIFEST, WORKSPACE).unwrap().parse().unwrap();
        assert_eq!(manifest["package"]["edition"].as_str(), Some("2024"));
        assert!(!manifest.to_string().contains("workspace"), "{manifest}");
    }
}
