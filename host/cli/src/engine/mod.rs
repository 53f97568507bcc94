//! Commands for authors of engines, and for operators who admit them.

mod admit;
mod bench;
mod control;
mod inspect;
mod new;
mod test;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use sandbar_plugin::{HostError, LoadReason};

pub(crate) use admit::Asked;

/// What can be asked for.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    /// Make the crate of a new engine: it compiles, its tests pass, and it serves something already.
    New(new::Args),
    /// Build the crate of an engine into a component, with its entry in the lock file beside it.
    Build {
        /// The directories of the crates.
        #[arg(required = true)]
        crates: Vec<PathBuf>,
        /// Where the components and `engines.lock` are written.
        #[arg(long, default_value = "engines.d")]
        out: PathBuf,
        /// Fail rather than change a crate's Cargo.lock.
        #[arg(long)]
        locked: bool,
        /// Never use the network.
        #[arg(long)]
        offline: bool,
    },
    /// Say what a component is: its contract, imports, images, features, settings, sizes and hash.
    Inspect(inspect::Args),
    /// Test whether a component keeps the contract; with --docker on real containers too.
    Test(test::Args),
    /// Measure how long a component takes to load and to answer, beside the smallest engine there can be.
    Bench(bench::Args),
    /// Show what an engine would be allowed to do, and write its pin and its grants into the configuration.
    Add(admit::AddArgs),
    /// Say which engines a configuration has, and what becomes of each.
    List(admit::ListArgs),
    /// Take an engine's table out of the configuration.
    Remove(admit::RemoveArgs),
}

/// Carries a command out. Answers whether what it looked at is good.
///
/// # Errors
/// One line that says what to do.
pub(crate) fn run(command: EngineCommand) -> Result<bool> {
    let multi = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match command {
        EngineCommand::New(args) => new::new(&args).map(|()| true),
        EngineCommand::Build { crates, out, locked, offline } => {
            for crate_dir in crates {
                let options = sandbar_sdk_build::Options::new(crate_dir, &out);
                let built = sandbar_sdk_build::build(&sandbar_sdk_build::Options { locked, offline, ..options })?;
                println!("{}  {} bytes  sha256 {}", built.path.display(), built.size, built.sha256);
            }
            Ok(true)
        }
        EngineCommand::Inspect(args) => multi()?.block_on(inspect::inspect(&args)),
        EngineCommand::Test(args) => multi()?.block_on(test::test(&args)),
        EngineCommand::Bench(args) => multi()?.block_on(bench::bench(&args)).map(|()| true),
        EngineCommand::Add(args) => multi()?.block_on(admit::add(&args)).map(|()| true),
        EngineCommand::List(args) => multi()?.block_on(admit::list(&args)).map(|()| true),
        EngineCommand::Remove(args) => multi()?.block_on(admit::remove(&args)).map(|()| true),
    }
}

/// A host for components whose compiled code is kept in a directory of its own, for as long as that is kept.
fn plugins(cache: &Path) -> Result<sandbar_plugin::Host, HostError> {
    sandbar_plugin::Host::new(Some(cache.join("compiled")), sandbar_plugin::Limits::default())
}

/// A directory that is gone afterwards.
fn scratch() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("sandbar-engine-").tempdir().context("making a temporary directory")
}

/// Why a component cannot be loaded, and what to do about it.
fn advice(file: &Path, reason: &LoadReason) -> String {
    let build = "`sandbar engine build <crate>` makes one";
    let todo = match reason {
        LoadReason::Read(e) if e.kind() == std::io::ErrorKind::NotFound => build,
        LoadReason::NotAFile => "name the `.wasm` file; `sandbar engine build <crate>` writes it to engines.d",
        LoadReason::Empty | LoadReason::Text | LoadReason::NotWasm => build,
        LoadReason::Truncated { .. } | LoadReason::Malformed(_) => "copy or build it again",
        LoadReason::NoContract { .. } => {
            "implement `sandbar_sdk::Engine` and put `export_engine!` at the root of the crate"
        }
        LoadReason::WrongContract { .. } | LoadReason::Shape { .. } => "build it with the SDK of this host",
        LoadReason::Imports(_) => {
            "an engine has no authority: take out what needs them, or build for wasm32-unknown-unknown as `sandbar engine build` does"
        }
        LoadReason::Silent(_) | LoadReason::Descriptor(_) => {
            "correct `describe`; `cargo test` in its crate shows it natively"
        }
        // The reason says it already.
        _ => "",
    };
    let separator = if todo.is_empty() { "" } else { "; " };
    format!("{} {reason}{separator}{todo}", file.display())
}

/// A `name=value` of the command line.
fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is written `name=value`")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Whether every feature that was named is one of the engine's.
fn known_features(named: &[String], known: &[String]) -> Result<()> {
    match named.iter().find(|f| !known.contains(f)) {
        Some(unknown) => bail!("it has no feature `{unknown}`; it has {}", sandbar_core::error::listed(known)),
        None => Ok(()),
    }
}
