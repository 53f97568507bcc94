//! What can be asked of and done to a container that is there: look at it, list, rename, wait for its end, read its log
//! and environment, remove it. Decides nothing about whether that should be done, with one exception: what does not carry
//! this installation's label is neither removed nor stopped.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions,
    RenameContainerOptions, StatsOptions, StopContainerOptions, WaitContainerOptions,
};
use futures_util::StreamExt as _;
use sandbar_core::runtime::{Exit, Result, RuntimeError, Unit, UnitState};

use crate::convert;
use crate::errors::{CallError, within};
use crate::limits::{self, growing};
use crate::reference::{identifier, is_id};
use crate::text;

/// Looks at a container by its id or its exact name.
pub(crate) async fn inspect(docker: &Docker, id_or_name: &str, network: &str) -> Result<Unit> {
    convert::inspected(look(docker, id_or_name).await?, network)
        .ok_or_else(|| RuntimeError::Failed("Docker told of a container without an id".to_owned()))
}

/// Docker also takes the beginning of an id for the whole, and a name may look like one; so it is checked that what was
/// found is what was asked for.
async fn look(docker: &Docker, id_or_name: &str) -> Result<ContainerInspectResponse> {
    let wanted = identifier(id_or_name)?;
    let found = within(limits::LOOK, docker.inspect_container(wanted, None::<InspectContainerOptions>)).await?;
    let is = |text: Option<&str>| text == Some(wanted);
    if is(found.id.as_deref()) || is(found.name.as_deref().map(convert::plain_name)) {
        Ok(found)
    } else {
        Err(RuntimeError::NotFound(format!("No such container: {wanted}")))
    }
}

/// Who holds a name; `None` where that cannot be found out, such as one that is just being made or removed.
pub(crate) async fn holder(docker: &Docker, name: &str, network: &str) -> Result<Option<Unit>> {
    match inspect(docker, name, network).await {
        Ok(unit) => Ok(Some(unit)),
        Err(RuntimeError::Unreachable(text)) => Err(RuntimeError::Unreachable(text)),
        Err(_) => Ok(None),
    }
}

/// Every container with these labels.
pub(crate) async fn list(docker: &Docker, labels: &[(&str, &str)], network: &str) -> Result<Vec<Unit>> {
    let wanted = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let options = ListContainersOptions {
        all: true,
        filters: Some(HashMap::from([("label".to_owned(), wanted)])),
        ..ListContainersOptions::default()
    };
    let found = within(limits::LIST, docker.list_containers(Some(options))).await?;
    let units = found.into_iter().filter_map(|container| convert::listed(container, network));
    // Removals are decided by this list, so it does not rest on how a daemon reads a filter.
    Ok(units
        .filter(|unit| labels.iter().all(|(name, value)| unit.labels.get(*name).map(String::as_str) == Some(*value)))
        .collect())
}

/// Those of these containers that exist. Docker looks at these alone, however many there are.
pub(crate) async fn find(docker: &Docker, ids: &[&str], network: &str) -> Result<Vec<Unit>> {
    // Without a filter it would list everything.
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = ids.iter().map(|id| identifier(id).map(str::to_owned)).collect::<Result<_>>()?;
    let options = ListContainersOptions {
        all: true,
        filters: Some(HashMap::from([("id".to_owned(), wanted)])),
        ..ListContainersOptions::default()
    };
    let found = within(limits::LIST, docker.list_containers(Some(options))).await?;
    let units = found.into_iter().filter_map(|container| convert::listed(container, network));
    Ok(units.filter(|unit| ids.contains(&unit.id.as_str())).collect())
}

/// Gives a container another name.
pub(crate) async fn rename(docker: &Docker, id: &str, name: &str, network: &str) -> Result<()> {
    let (id, name) = (identifier(id)?, identifier(name)?);
    let options = RenameContainerOptions { name: name.to_owned() };
    let error = match within(limits::LOOK, docker.rename_container(id, options)).await {
        Ok(()) => return Ok(()),
        Err(error @ CallError::Other(_)) => return Err(error.into()),
        Err(error) => error,
    };
    // Docker refuses to give a container the name it has, in words that differ between versions.
    let holder = if error.is_not_found() { None } else { holder(docker, name, network).await? };
    match holder {
        Some(unit) if unit.id == id => Ok(()),
        holder if error.conflict().is_some() => {
            Err(RuntimeError::Conflict { name: name.to_owned(), holder: holder.map(Box::new) })
        }
        _ => Err(error.into()),
    }
}

/// The environment a container was made with, the image's included.
pub(crate) async fn environment(docker: &Docker, id: &str) -> Result<Vec<(String, String)>> {
    let env = look(docker, id).await?.config.and_then(|config| config.env).unwrap_or_default();
    let pair = |line: String| match line.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (line, String::new()),
    };
    Ok(env.into_iter().map(pair).collect())
}

/// How much memory a container uses, in bytes, without what is only cached of files.
pub(crate) async fn memory(docker: &Docker, id: &str) -> Result<u64> {
    let mut stats = docker.stats(id, Some(StatsOptions { stream: false, one_shot: true }));
    let first = within(limits::LOOK, async { stats.next().await.transpose() }).await?;
    let memory = first.and_then(|stats| stats.memory_stats).unwrap_or_default();
    let usage = memory.usage.ok_or_else(|| RuntimeError::Gone(id.to_owned()))?;
    let counted = memory.stats.unwrap_or_default();
    // The name in version 1 of control groups, and in version 2.
    let cached = counted.get("total_inactive_file").or_else(|| counted.get("inactive_file")).copied();
    Ok(usage.saturating_sub(cached.unwrap_or_default()))
}

/// The end of a container's log.
pub(crate) async fn logs(docker: &Docker, id: &str, lines: usize) -> Result<String> {
    let options = LogsOptions { stdout: true, stderr: true, tail: lines.to_string(), ..LogsOptions::default() };
    let mut stream = docker.logs(identifier(id)?, Some(options));
    let read = async {
        let mut end = VecDeque::new();
        while let Some(chunk) = stream.next().await {
            end.extend(chunk?.into_bytes());
            end.drain(..end.len().saturating_sub(limits::LOGS));
        }
        Ok::<_, Error>(Vec::from(end))
    };
    Ok(text::end(&within(limits::LOOK, read).await?, limits::LOGS))
}

/// Waits for a container's end.
pub(crate) async fn ended(docker: &Docker, id: &str) -> Result<Exit> {
    let id = identifier(id)?;
    for round in 0.. {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut wait = docker.wait_container(id, Some(options));
        let code = match tokio::time::timeout(limits::WAIT_ROUND, wait.next()).await {
            Ok(Some(Ok(answer))) => Some(answer.status_code),
            // bollard's form of an exit code that is not 0.
            Ok(Some(Err(Error::DockerContainerWaitError { code, .. }))) => Some(code),
            Ok(Some(Err(Error::RequestTimeoutError))) | Err(_) => continue,
            Ok(Some(Err(error))) => return Err(CallError::from(error).into()),
            // Closed without an answer: looking says whether it was the container's end or the daemon's.
            Ok(None) => None,
        };
        let state = look(docker, id).await.map(|found| found.state.unwrap_or_default());
        match (code, state) {
            (Some(code), Ok(state)) => return Ok(Exit { code, out_of_memory: state.oom_killed == Some(true) }),
            // Removed right after it ended, say. The code is known all the same.
            (Some(code), Err(_)) => return Ok(Exit { code, out_of_memory: false }),
            (None, Err(error)) => return Err(error),
            (None, Ok(state)) if convert::inspected_state(Some(&state)) == UnitState::Ended => {
                let code = state.exit_code.unwrap_or_default();
                return Ok(Exit { code, out_of_memory: state.oom_killed == Some(true) });
            }
            (None, Ok(_)) => tokio::time::sleep(growing(limits::LOOK_AGAIN, round)).await,
        }
    }
    unreachable!("the rounds do not end by themselves")
}

/// Looks at a container, which must be of this installation. What is answered has an id.
pub(crate) async fn ours(
    docker: &Docker,
    id_or_name: &str,
    installation: &(String, String),
) -> Result<ContainerInspectResponse> {
    let found = look(docker, id_or_name).await?;
    let labels = found.config.as_ref().and_then(|config| config.labels.as_ref());
    if labels.and_then(|labels| labels.get(&installation.0)) != Some(&installation.1) {
        return Err(RuntimeError::Refused(format!("{id_or_name} is not of this installation and is left alone")));
    }
    if !found.id.as_deref().is_some_and(is_id) {
        return Err(RuntimeError::Failed("Docker told of a container without an id".to_owned()));
    }
    Ok(found)
}

/// Stops a container. `Ok` means that it does not run.
pub(crate) async fn suspend(
    docker: &Docker,
    id_or_name: &str,
    grace: Duration,
    installation: &(String, String),
) -> Result<()> {
    let id = ours(docker, id_or_name, installation).await?.id.unwrap_or_default();
    stop(docker, &id, grace).await;
    match convert::inspected_state(look(docker, &id).await?.state.as_ref()) {
        // One that was never started has nothing to end.
        UnitState::Ended | UnitState::Starting => Ok(()),
        UnitState::Running | UnitState::Paused => {
            Err(RuntimeError::Failed(format!("{id_or_name} was told to stop and still runs")))
        }
    }
}

/// Removes a container and its anonymous volumes. `Ok` means that it is gone.
pub(crate) async fn remove(
    docker: &Docker,
    id_or_name: &str,
    grace: Duration,
    installation: &(String, String),
) -> Result<()> {
    let found = match ours(docker, id_or_name, installation).await {
        Ok(found) => found,
        Err(RuntimeError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    // By its id from here on: the name may be another's by the time.
    let id = found.id.unwrap_or_default();
    if !grace.is_zero() && found.state.is_some_and(|state| state.running == Some(true)) {
        stop(docker, &id, grace).await;
    }
    let options = RemoveContainerOptions { v: true, force: true, link: false };
    match within(limits::REMOVE, docker.remove_container(&id, Some(options))).await {
        Ok(()) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        // Docker is at it already, for another caller or for one that gave up waiting.
        Err(error) if error.conflict().is_some() => gone(docker, &id).await,
        Err(error) => Err(error.into()),
    }
}

/// Stops, then kills. Both are best effort: a removal that follows is forced, and a suspension looks what came of it.
async fn stop(docker: &Docker, id: &str, grace: Duration) {
    // Docker counts in seconds; a part of one is given whole.
    let seconds = grace.as_secs() + u64::from(grace.subsec_nanos() > 0);
    let options = StopContainerOptions { t: i32::try_from(seconds).ok(), signal: None };
    let limit = limits::STOP.max(grace.saturating_add(limits::STOP_MARGIN));
    let Err(error) = within(limit, docker.stop_container(id, Some(options))).await else { return };
    tracing::debug!(id, ?error, "stopping failed, killing");
    if let Err(error) = within(limits::STOP, docker.kill_container(id, None::<KillContainerOptions>)).await {
        tracing::debug!(id, ?error, "killing failed");
    }
}

async fn gone(docker: &Docker, id: &str) -> Result<()> {
    let poll = async {
        for n in 0.. {
            match look(docker, id).await {
                Err(RuntimeError::NotFound(_)) => break,
                Err(error) => return Err(error),
                Ok(_) => tokio::time::sleep(growing(limits::LOOK_AGAIN, n)).await,
            }
        }
        Ok(())
    };
    tokio::time::timeout(limits::REMOVE, poll).await.unwrap_or(Err(RuntimeError::Deadline(limits::REMOVE)))
}
