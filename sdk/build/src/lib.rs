//! Turns the crate of an engine into a component, and pins it.
//!
//! [`build`] compiles the crate for `wasm32-unknown-unknown` (see [`toolchain`] for where the standard library comes
//! from), encodes the module as a component, checks that it exports the contract and imports nothing, and writes it
//! beside a lock file with its SHA-256 and the grants that it asks for. It contains no WebAssembly runtime, so that
//! engines can be built before the host that loads them; it does not run what it builds.

pub mod component;
pub mod guest;
pub mod lock;
pub mod toolchain;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::lock::{Grant, Lock, Pin};

/// What to build, and where to put it.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of the engine's crate, with its `Cargo.toml`.
    pub crate_dir: PathBuf,
    /// Where `<name>.wasm` and `engines.lock` are written. Made if absent.
    pub out_dir: PathBuf,
    /// Where Cargo puts what it compiles; with none a directory `guest` inside the one that Cargo would use.
    pub target_dir: Option<PathBuf>,
    /// Fail rather than change the crate's `Cargo.lock`.
    pub locked: bool,
    /// Never use the network.
    pub offline: bool,
}

impl Options {
    /// Builds `crate_dir` into `out_dir`.
    pub fn new(crate_dir: impl Into<PathBuf>, out_dir: impl Into<PathBuf>) -> Self {
        let (crate_dir, out_dir) = (crate_dir.into(), out_dir.into());
        Self { crate_dir, out_dir, target_dir: None, locked: false, offline: false }
    }
}

/// What was built.
#[derive(Debug, Clone)]
pub struct Built {
    /// The name of the component: that of its package.
    pub name: String,
    /// The component's file.
    pub path: PathBuf,
    /// How many bytes it has.
    pub size: usize,
    /// Its SHA-256 in hex.
    pub sha256: String,
    /// What it asks an operator for.
    pub grant: Grant,
}

/// Builds one engine, and writes its component and its entry in the lock file. Entries of other components stay.
///
/// # Errors
///
/// If there is no toolchain for the target (the message says what to install), if the crate does not compile, or if
/// what it compiles to is no engine.
pub fn build(options: &Options) -> Result<Built> {
    let guest = guest::Guest::read(options)?;
    let toolchain = toolchain::find(&guest.dir)?;
    let module = guest.compile(&toolchain, options)?;
    let module = std::fs::read(&module).with_context(|| format!("reading {}", module.display()))?;
    let bytes = component::encode(&module).with_context(|| format!("making a component of `{}`", guest.name))?;

    let file = format!("{}.wasm", guest.name);
    let path = options.out_dir.join(&file);
    let sha256 = component::sha256(&bytes);
    std::fs::create_dir_all(&options.out_dir).with_context(|| format!("making {}", options.out_dir.display()))?;
    write(&path, &bytes)?;

    let lock_path = options.out_dir.join(lock::FILE);
    let mut lock = Lock::read(&lock_path)?;
    lock.insert(file, Pin { sha256: sha256.clone(), grant: guest.grant.clone() });
    write(&lock_path, lock.to_string().as_bytes())?;
    Ok(Built { name: guest.name, path, size: bytes.len(), sha256, grant: guest.grant })
}

/// Writes a file in one step: a host that watches the directory never sees half of it.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write as _;
    let dir = path.parent().context("a file needs a directory")?;
    let mut file = tempfile::Builder::new().prefix(".building-").tempfile_in(dir)?;
    file.write_all(bytes)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    }
    file.persist(path).with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}
