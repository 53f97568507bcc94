//! The crate of an engine: what its manifest says, and compiling it to a core module.
//!
//! Cargo does both; this module only calls it, and reads its answers as JSON. It sets the profile itself, so that an
//! author's manifest needs none: small, stripped, and without a path of the machine it was built on.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::Options;
use crate::lock::Grant;
use crate::toolchain::{Std, TARGET, Toolchain};

/// The profile. A component is loaded, hashed and compiled by every host, so size counts more than speed.
const PROFILE: [&str; 6] = [
    "profile.release.opt-level='s'",
    "profile.release.lto=true",
    "profile.release.codegen-units=1",
    "profile.release.panic='abort'",
    "profile.release.strip=true",
    "profile.release.debug=false",
];

/// What to do where there is no crate.
const NAME_ONE: &str = "name the directory of an engine's crate, or make one with `sandbar engine new`";

/// The crate of an engine.
#[derive(Debug)]
pub struct Guest {
    /// The package's name, and so the component's.
    pub name: String,
    /// The package's directory.
    pub dir: PathBuf,
    /// What it asks an operator for.
    pub grant: Grant,
    manifest: PathBuf,
    target_dir: PathBuf,
    /// Directories whose names must not be in the component, and what stands there instead.
    remap: Vec<(PathBuf, String)>,
}

/// The part of `cargo metadata` that is read.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    /// None for a package that is a directory on this machine.
    source: Option<String>,
    metadata: Option<serde_json::Value>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    crate_types: Vec<String>,
}

/// The part of a line of `cargo build --message-format=json` that is read.
#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

impl Guest {
    /// Reads what the manifest in a directory says.
    ///
    /// # Errors
    ///
    /// If there is no package there, it has no library that can become a component, or its
    /// `[package.metadata.sandbar.grant]` holds a key that is not known.
    pub fn read(options: &Options) -> Result<Self> {
        let shown = options.crate_dir.display();
        let dir = options.crate_dir.canonicalize();
        let dir = dir.with_context(|| format!("there is no directory {shown}; {NAME_ONE}"))?;
        if !dir.is_dir() {
            bail!("{shown} is no directory; {NAME_ONE}");
        }
        let manifest = dir.join("Cargo.toml");
        if !manifest.is_file() {
            bail!("there is no Cargo.toml in {shown}; {NAME_ONE}");
        }
        // Cargo itself reads a workspace without members as a broken one. What is no TOML is for cargo to tell.
        let text = std::fs::read_to_string(&manifest).with_context(|| format!("reading {}", manifest.display()))?;
        if toml::from_str::<toml::Table>(&text).is_ok_and(|manifest| !manifest.contains_key("package")) {
            bail!("{shown} is a workspace and no crate; {NAME_ONE}");
        }
        let mut cargo = cargo(&dir, options);
        cargo.args(["metadata", "--format-version=1", "--filter-platform", TARGET, "--manifest-path"]).arg(&manifest);
        let metadata = stdout(cargo, || format!("cargo cannot read {}", manifest.display()))?;
        let metadata: Metadata = serde_json::from_slice(&metadata).context("reading what cargo metadata says")?;

        let package = metadata.packages.iter().find(|package| package.manifest_path == manifest);
        let package = package.with_context(|| format!("{shown} holds no crate; {NAME_ONE}"))?;
        if !package.targets.iter().any(|target| target.crate_types.iter().any(|kind| kind == "cdylib")) {
            bail!("`{}` is no engine: its Cargo.toml needs `[lib] crate-type = [\"cdylib\", \"rlib\"]`", package.name);
        }
        let grant = package.metadata.as_ref().and_then(|metadata| metadata.pointer("/sandbar/grant"));
        let grant = grant.map(Grant::deserialize).transpose();
        let grant = grant.with_context(|| format!("[package.metadata.sandbar.grant] in {}", manifest.display()))?;

        let local = metadata.packages.iter().filter(|package| package.source.is_none());
        let mut remap: BTreeMap<PathBuf, String> = local
            .filter_map(|package| Some((package.manifest_path.parent()?.to_owned(), format!("/{}", package.name))))
            .collect();
        remap.entry(metadata.workspace_root).or_insert_with(|| "/workspace".to_owned());
        remap.extend(cargo_home().map(|home| (home.join("registry/src"), "/registry".to_owned())));
        Ok(Self {
            name: package.name.clone(),
            grant: grant.unwrap_or_default(),
            target_dir: options.target_dir.clone().unwrap_or_else(|| metadata.target_directory.join("guest")),
            // Shorter paths sort before those inside them, and the compiler takes the last one that matches.
            remap: remap.into_iter().collect(),
            dir,
            manifest,
        })
    }

    /// Compiles it, and says where the core module is.
    ///
    /// # Errors
    ///
    /// If it does not compile.
    pub fn compile(&self, toolchain: &Toolchain, options: &Options) -> Result<PathBuf> {
        let mut cargo = cargo(&self.dir, options);
        cargo.args(["build", "--lib", "--release", "--target", TARGET, "--message-format=json-render-diagnostics"]);
        cargo.arg("--manifest-path").arg(&self.manifest).arg("--target-dir").arg(&self.target_dir);
        for setting in PROFILE {
            cargo.args(["--config", setting]);
        }
        if let Some(rustc) = &toolchain.rustc {
            cargo.env("RUSTC", rustc);
        }
        if let Std::Source { linker } = &toolchain.std {
            cargo.arg("-Zbuild-std=std,panic_abort");
            cargo.env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", self.rustflags(toolchain));

        let manifest = self.manifest.as_path();
        let what = || format!("`{}` does not compile for {TARGET}", self.name);
        let module = stdout(cargo, what)?
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice::<Message>(line).ok())
            .filter(|message| message.reason == "compiler-artifact")
            .filter(|message| message.manifest_path.as_deref() == Some(manifest))
            .flat_map(|message| message.filenames)
            .find(|file| file.extension().is_some_and(|extension| extension == "wasm"));
        module.with_context(|| format!("cargo made no module of `{}`", self.name))
    }

    /// The flags of the compiler, with one for each directory to hide. They replace whatever the environment says, which
    /// would make another component on every machine.
    fn rustflags(&self, toolchain: &Toolchain) -> OsString {
        let source = toolchain.sysroot.join("lib/rustlib/src/rust");
        let mut remap = vec![(source.clone(), "/rust".to_owned())];
        remap.extend(source.canonicalize().ok().map(|real| (real, "/rust".to_owned())));
        remap.extend(self.remap.iter().cloned());
        // Messages keep the real paths: people click on them.
        let mut flags = OsString::from("--remap-path-scope=object");
        for (from, to) in remap {
            flags.push("\u{1f}--remap-path-prefix=");
            flags.push(from);
            flags.push("=");
            flags.push(to);
        }
        flags
    }
}

/// Cargo, in a directory.
fn cargo(dir: &Path, options: &Options) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(dir).stdin(Stdio::null()).stderr(Stdio::inherit());
    cargo.args(options.locked.then_some("--locked")).args(options.offline.then_some("--offline"));
    cargo
}

/// Runs it, and takes its standard output. What it has to say to people goes where this process's does; `failure` is what
/// it failed to do.
fn stdout(mut command: Command, failure: impl Fn() -> String) -> Result<Vec<u8>> {
    let output = command.output().context("cargo cannot be run; install Rust from https://rustup.rs")?;
    if !output.status.success() {
        bail!("{}: why stands above", failure());
    }
    Ok(output.stdout)
}

fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_failed_and_where_to_look() {
        let said = |program: &str| {
            let failed = stdout(Command::new(program), || "`thing` does not compile".to_owned());
            format!("{:#}", failed.unwrap_err())
        };
        assert_eq!(said("false"), "`thing` does not compile: why stands above");
        assert!(said("/nowhere/cargo").starts_with("cargo cannot be run; install Rust from https://rustup.rs"));
    }
}
