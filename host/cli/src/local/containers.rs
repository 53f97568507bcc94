//! `sandbar logs` and `connect`: what a person does with the container of a service, by the command of Docker.

use std::io::{IsTerminal as _, PipeReader, Write as _};
use std::os::fd::AsRawFd as _;

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::{Value, json};
use tokio::process::Command;

use super::services::rows;
use super::{As, Home, Link, Place};

/// Print what a service has logged.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// The service.
    service: String,
    /// How many lines.
    #[arg(long, short = 'n', default_value_t = 100)]
    lines: u32,
    #[command(flatten)]
    place: Place,
}

/// Open the own client of a service that is up, logged in, in its container.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sandbar connect postgres\n  sandbar connect postgres < schema.sql\n  \
    sandbar connect redis -- --scan\n\nIt ends as the client does.")]
pub(crate) struct Connect {
    /// The service.
    service: String,
    /// What the client is given besides.
    #[arg(last = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    place: Place,
}

/// A way to the host, and the container of a service of this user.
async fn container(home: &Home, service: &str) -> Result<(Link, String)> {
    let link = home.find().await?.context("nothing is up: `sandbar up` starts services")?;
    let link = home.awaited(link, None).await?;
    let mine = home.agent()?;
    let rows = rows(&link).await?;
    let mine: Vec<_> = rows.iter().filter(|row| row["agent"] == mine.as_str() && row["state"] == "live").collect();
    let found = mine.iter().find(|row| row["service"] == service).and_then(|row| row["container"].as_str());
    let Some(found) = found else {
        let names: Vec<_> = mine.iter().filter_map(|row| row["service"].as_str()).collect();
        let up = if names.is_empty() { "nothing is".to_owned() } else { names.join(", ") + " are" };
        bail!("`{service}` is not up: {up}\nStart it with `sandbar up {service}`");
    };
    Ok((link, found.to_owned()))
}

/// The command of Docker, for the Docker of the host.
fn docker(home: &Home) -> Result<Command> {
    let mut command = Command::new("docker");
    if let Some(host) = home.config()?.get("docker").and_then(|docker| docker.get("host")?.as_str()) {
        command.env("DOCKER_HOST", host);
    }
    Ok(command)
}

/// Runs it on this terminal, and answers its exit code.
async fn run(mut command: Command) -> Result<u8> {
    let status = command.status().await.context("the command `docker` is needed for this, and cannot be started")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// `sandbar logs`.
pub(crate) async fn logs(logs: Logs) -> Result<u8> {
    let home = Home::open(&logs.place)?;
    let (_, container) = container(&home, &logs.service).await?;
    let mut docker = docker(&home)?;
    docker.args(["logs", "--tail", &logs.lines.to_string(), &container]);
    run(docker).await
}

/// Variables as a file of Docker's that is nowhere: `ps` shows arguments to everybody, and what an engine names must not be a
/// variable of a program outside of its container.
fn variables<'a>(variables: impl Iterator<Item = (&'a String, &'a Value)>) -> Result<PipeReader> {
    let (read, mut write) = std::io::pipe()?;
    for (name, value) in variables {
        // All of it fits into the pipe: the host bounds what an engine names.
        writeln!(write, "{name}={}", value.as_str().unwrap_or_default())?;
    }
    fcntl_setfd(&read, FdFlags::empty())?;
    Ok(read)
}

/// `sandbar connect`.
pub(crate) async fn connect(connect: Connect) -> Result<u8> {
    let home = Home::open(&connect.place)?;
    let (link, _) = container(&home, &connect.service).await?;
    let client = link.call(As::Agent, "sandbox_client", &json!({ "service": connect.service })).await?;
    let mut docker = docker(&home)?;
    docker.args(["exec", "--interactive"]);
    if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
        docker.arg("--tty");
    }
    let variables = variables(client["env"].as_object().into_iter().flatten())?;
    docker.args(["--env-file", &format!("/dev/fd/{}", variables.as_raw_fd())]);
    docker.arg(client["container"].as_str().context("the host answers no container")?);
    docker.args(client["argv"].as_array().into_iter().flatten().filter_map(Value::as_str)).args(connect.arguments);
    run(docker).await
}
