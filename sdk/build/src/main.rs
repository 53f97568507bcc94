//! Builds engines: `sandbar-engine-build CRATE… --out DIR`. A thin front of the library.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use sandbar_sdk_build::{Options, build};

const USAGE: &str = "usage: sandbar-engine-build CRATE... --out DIR [--target-dir DIR] [--locked] [--offline]

Builds the engine in each directory CRATE, and writes its component and its entry in engines.lock to DIR.";

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut args: impl Iterator<Item = String>) -> Result<()> {
    let (mut crates, mut out, mut target_dir, mut locked, mut offline) = (Vec::new(), None, None, false, false);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = args.next().map(PathBuf::from),
            "--target-dir" => target_dir = args.next().map(PathBuf::from),
            "--locked" => locked = true,
            "--offline" => offline = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                return Ok(());
            }
            flag if flag.starts_with('-') => bail!("unknown flag `{flag}`\n\n{USAGE}"),
            _ => crates.push(PathBuf::from(arg)),
        }
    }
    let (false, Some(out)) = (crates.is_empty(), out) else { bail!("a crate and --out are needed\n\n{USAGE}") };
    for crate_dir in crates {
        let built = build(&Options {
            target_dir: target_dir.clone(),
            locked,
            offline,
            ..Options::new(crate_dir, out.clone())
        })?;
        println!("{}  {} bytes  sha256 {}", built.path.display(), built.size, built.sha256);
    }
    Ok(())
}
