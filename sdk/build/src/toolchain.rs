//! Finds a compiler for `wasm32-unknown-unknown`.
//!
//! Usually the toolchain in use has the target's standard library (`rustup target add`). Where none can be had, one
//! that at least has the library's source will do: Cargo then compiles it along (`-Zbuild-std`). Debian's packages
//! `rustc-web` and `rust-web-src` are such a compiler; its missing linker is borrowed from the other toolchain.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The target that engines are compiled for. It has no system interface, so a component made from it imports nothing.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// Where distributions put their compiler, beside which rustup's may come first on the path.
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";

/// A compiler for the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler, unless it is the one that Cargo takes anyway.
    pub rustc: Option<PathBuf>,
    /// Where its files are.
    pub sysroot: PathBuf,
    /// How the standard library comes about.
    pub std: Std,
}

/// How the standard library comes about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Std {
    /// It is installed.
    Installed,
    /// It is compiled from its source, and linked with this linker.
    Source {
        /// The linker.
        linker: PathBuf,
    },
}

/// What a compiler answered about itself.
#[derive(Debug, Clone)]
struct Candidate {
    /// How to call it, unless Cargo takes it anyway.
    rustc: Option<PathBuf>,
    /// Where its files are.
    sysroot: PathBuf,
    /// Whether it has the target's standard library.
    has_std: bool,
    /// Whether it has the library's source where Cargo looks for it.
    has_source: bool,
    /// Its linker for the target, if it brings one.
    linker: Option<PathBuf>,
}

/// Finds a compiler, as seen from the directory of a crate (which may hold a `rust-toolchain.toml`).
///
/// # Errors
///
/// If there is none; the message says what to install.
pub fn find(dir: &Path) -> Result<Toolchain> {
    let default = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
    let default = Candidate::ask(&default, None, dir);
    let system = Candidate::ask(Path::new(SYSTEM_RUSTC), Some(PathBuf::from(SYSTEM_RUSTC)), dir);
    let candidates: Vec<Candidate> = [default, system].into_iter().flatten().collect();
    choose(&candidates, on_path("wasm-ld"))
}

/// The best of the candidates. An installed library comes first, wherever it is: it saves a minute.
fn choose(candidates: &[Candidate], other_linker: Option<PathBuf>) -> Result<Toolchain> {
    let toolchain =
        |found: &Candidate, std| Toolchain { rustc: found.rustc.clone(), sysroot: found.sysroot.clone(), std };
    if let Some(found) = candidates.iter().find(|candidate| candidate.has_std) {
        return Ok(toolchain(found, Std::Installed));
    }
    let linker = candidates.iter().find_map(|candidate| candidate.linker.clone()).or(other_linker);
    match (candidates.iter().find(|candidate| candidate.has_source), linker) {
        (Some(found), Some(linker)) => Ok(toolchain(found, Std::Source { linker })),
        (Some(_), None) => bail!(
            "there is no linker for {TARGET}: install a toolchain with rustup (it brings rust-lld), or on Debian run \
             `apt-get install lld`"
        ),
        (None, _) => bail!(
            "there is no Rust standard library for {TARGET}: run `rustup target add {TARGET}`, or on Debian \
             `apt-get install rustc-web rust-web-src`"
        ),
    }
}

impl Candidate {
    /// Asks a compiler about itself; none if it cannot be run.
    fn ask(program: &Path, rustc: Option<PathBuf>, dir: &Path) -> Option<Self> {
        let sysroot = PathBuf::from(output(program, &["--print", "sysroot"], dir).ok()?.trim());
        let version = output(program, &["-vV"], dir).ok()?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "))?;
        let libraries = output(program, &["--print", "target-libdir", "--target", TARGET], dir).ok();
        let linker = sysroot.join("lib/rustlib").join(host).join("bin/rust-lld");
        Some(Self {
            rustc,
            has_std: libraries.is_some_and(|libraries| holds_std(Path::new(libraries.trim()))),
            has_source: sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").is_file(),
            linker: linker.is_file().then_some(linker),
            sysroot,
        })
    }
}

fn holds_std(libraries: &Path) -> bool {
    let entries = std::fs::read_dir(libraries).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

/// What a compiler prints.
fn output(rustc: &Path, args: &[&str], dir: &Path) -> Result<String> {
    let run = Command::new(rustc).args(args).current_dir(dir).output();
    let run = run.with_context(|| format!("running {}", rustc.display()))?;
    if !run.status.success() {
        bail!("{} failed: {}", rustc.display(), String::from_utf8_lossy(&run.stderr).trim());
    }
    Ok(String::from_utf8(run.stdout)?)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn candidate(rustc: Option<&str>) -> Candidate {
        let sysroot = PathBuf::from("/sysroot");
        Candidate { rustc: rustc.map(PathBuf::from), sysroot, has_std: false, has_source: false, linker: None }
    }

    #[test]
    fn an_installed_library_comes_first() {
        let default = Candidate { has_source: true, linker: Some(PathBuf::from("lld")), ..candidate(None) };
        let system = Candidate { has_std: true, ..candidate(Some("/usr/bin/rustc")) };
        let found = choose(&[default, system], None).unwrap();
        assert_eq!((found.rustc, found.std), (Some(PathBuf::from("/usr/bin/rustc")), Std::Installed));
    }

    #[test]
    fn a_source_borrows_the_other_linker() {
        let default = Candidate { linker: Some(PathBuf::from("lld")), ..candidate(None) };
        let system = Candidate { has_source: true, ..candidate(Some("/usr/bin/rustc")) };
        let found = choose(&[default, system.clone()], None).unwrap();
        assert_eq!(found.std, Std::Source { linker: PathBuf::from("lld") });
        let found = choose(&[system], Some(PathBuf::from("wasm-ld"))).unwrap();
        assert_eq!(found.std, Std::Source { linker: PathBuf::from("wasm-ld") });
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_install() {
        let nothing = choose(&[candidate(None)], None).unwrap_err().to_string();
        assert!(nothing.contains("rustup target add") && nothing.contains("rustc-web rust-web-src"), "{nothing}");
        let no_linker = choose(&[Candidate { has_source: true, ..candidate(None) }], None).unwrap_err().to_string();
        assert!(no_linker.contains("no linker"), "{no_linker}");
    }
}
