//! Docker, through its command line.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs `docker` and answers its standard output.
///
/// # Errors
/// When it fails, with its standard error.
pub fn docker<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Result<String> {
    let output = Command::new("docker").args(args).output().context("running docker")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Everything with this label: containers, networks and volumes, a line each.
///
/// # Errors
/// When Docker cannot be asked.
pub fn with_label(label: &str) -> Result<Vec<String>> {
    let filter = format!("label={label}");
    let mut found = Vec::new();
    for (kind, args) in [
        ("container", vec!["ps", "--all", "--format", "{{.Names}} ({{.Status}})"]),
        ("network", vec!["network", "ls", "--format", "{{.Name}}"]),
        ("volume", vec!["volume", "ls", "--format", "{{.Name}}"]),
    ] {
        let out = docker(args.into_iter().chain(["--filter", &filter]))?;
        found.extend(out.lines().map(|line| format!("{kind} {line}")));
    }
    Ok(found)
}

/// Runs a command as an agent would: in a sibling container on a network, with variables set, and answers its output.
///
/// # Errors
/// When it fails, with its standard error.
pub fn run_beside(network: &str, image: &str, env: &BTreeMap<String, String>, argv: &[&str]) -> Result<String> {
    let mut args: Vec<String> = ["run", "--rm", "--network", network].map(str::to_owned).into();
    for (name, value) in env {
        args.extend(["--env".to_owned(), format!("{name}={value}")]);
    }
    let (program, rest) = argv.split_first().context("a command has a program")?;
    args.extend(["--entrypoint".to_owned(), (*program).to_owned(), image.to_owned()]);
    args.extend(rest.iter().map(|a| (*a).to_owned()));
    docker(args)
}
