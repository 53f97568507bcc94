//! Ending a command and all that it started. Docker can end a container but no command in one, so a shell in the container
//! does it (`end.sh`), as the user whose command it is, and then as root. Never with more privileges than the container
//! has: the shell is the container's own.
//!
//! Starting a shell costs as much as the usual command does, so one that was not needed waits for the next command of its
//! container.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::models::ExecConfig;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbar_core::runtime::{Left, Result, RunPlan, RuntimeError};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use crate::exec::{self, Started, Take};
use crate::limits::{self, growing};

const SCRIPT: &str = include_str!("end.sh");

/// The mark of a guard, which no command can have.
const GUARD: &str = ".";

/// What the order has in place of a mark for every command that is still at work.
const AT_WORK: &str = "-";

/// The script's exit code where something is left.
const LEFT: i64 = 1;

/// Root, by its number: an image need not have a name for it.
const ROOT: &str = "0";

/// Guards that wait for a command, by container and user: at most one each.
#[derive(Default)]
pub(crate) struct Guards(Mutex<HashMap<(String, Option<String>), Guard>>);

impl std::fmt::Debug for Guards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guards")
    }
}

impl Guards {
    /// One that waits, or a new one.
    pub(crate) async fn take(&self, docker: &Docker, id: &str, plan: &RunPlan) -> Result<Guard> {
        let key = (id.to_owned(), plan.user.clone());
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        if let Some(mut guard) = waiting
            && guard.waits()
        {
            return Ok(guard);
        }
        Guard::start(docker, id, &plan.mark.0, plan.user.clone()).await
    }

    /// Has one wait that was not needed.
    pub(crate) fn give(&self, id: &str, plan: &RunPlan, guard: Guard) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((id.to_owned(), plan.user.clone()), guard);
    }

    /// Lets those of a container go, before it ends.
    pub(crate) fn dismiss(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != id);
    }
}

/// A shell in the container that waits for the order to end a command.
pub(crate) struct Guard {
    exec: String,
    started: Started,
}

impl Guard {
    /// Starts one.
    async fn start(docker: &Docker, id: &str, name: &str, user: Option<String>) -> Result<Self> {
        let argv = ["/bin/sh", "-c", SCRIPT, "end", &format!("{name}=")];
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(argv.map(str::to_owned).to_vec()),
            env: Some(vec![format!("{name}={GUARD}")]),
            user,
            // Any folder that is there.
            working_dir: Some("/".to_owned()),
            ..ExecConfig::default()
        };
        let exec = exec::create(docker, id, config).await?;
        let mut started = exec::start(docker, &exec).await?;
        // Until it says that it is there: in a container that a command has filled it would not get in any more. One that
        // says something else, or nothing, is found out when it is needed.
        let _ = tokio::time::timeout(limits::EXEC_CALL, started.output.next()).await;
        Ok(Self { exec, started })
    }

    /// Whether it has said nothing, and is there as far as is known.
    fn waits(&mut self) -> bool {
        self.started.output.next().now_or_never().is_none()
    }

    /// Gives the order, and answers the script's exit code.
    async fn end(self, docker: &Docker, mark: &str, alone: bool, patience: Duration) -> Result<i64> {
        let Started { mut output, mut input } = self.started;
        let order = format!("{} {} {mark}\n", u8::from(alone), patience.as_secs());
        // One that is not there any more has an exit code that tells.
        if input.write_all(order.as_bytes()).await.is_ok() {
            let _ = input.flush().await;
            // One that was stopped says nothing, and another has to do it.
            if tokio::time::timeout(limits::GUARD_SPEAKS, output.next()).await.is_err() {
                return Ok(LEFT);
            }
        }
        let mut said = Said::default();
        let code = exec::collect(output, || exec::state(docker, &self.exec), &mut said).await?;
        if code != 0 {
            tracing::debug!(code, said = %crate::errors::one_line(&said.0), "a command could not be ended");
        }
        Ok(code)
    }
}

/// What the script, or Docker in its place, says when something is wrong.
#[derive(Default)]
struct Said(String);

impl Take for Said {
    fn take(&mut self, chunk: LogOutput) {
        if self.0.len() < limits::MESSAGE {
            self.0.push_str(&String::from_utf8_lossy(&chunk.into_bytes()));
        }
    }
}

/// Ends what is left in a container in which no command runs, and answers whether it is gone.
pub(crate) async fn end_left(docker: &Docker, id: &str, mark: &str, left: Left) -> Result<bool> {
    let order = match left {
        Left::AtWork => AT_WORK,
        // What every mark begins with.
        Left::Everything => "",
    };
    let by_guards = async {
        for user in [None, Some(ROOT.to_owned())] {
            let guard = Guard::start(docker, id, mark, user).await?;
            if guard.end(docker, order, true, limits::ENDING_AS_USER).await? == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    };
    tokio::time::timeout(limits::ENDING, by_guards).await.unwrap_or(Ok(false))
}

/// A command to be ended.
pub(crate) struct Ending<'a> {
    pub(crate) docker: &'a Docker,
    pub(crate) id: &'a str,
    /// Docker's id of the command.
    pub(crate) command: &'a str,
    pub(crate) plan: &'a RunPlan,
    pub(crate) alone: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Ending<'_> {
    /// Ends it, and answers whether everything is gone; `Gone` or `NotFound` where the container is not running any more.
    pub(crate) async fn end(&self, mut guard: Result<Guard>) -> Result<bool> {
        let start = Instant::now();
        let by_guards = async {
            for n in 0.. {
                match self.by(guard, start).await {
                    Ok(true) => return Ok(true),
                    Err(error @ (RuntimeError::Gone(_) | RuntimeError::NotFound(_))) => return Err(error),
                    // One that was killed, or could not be started in a container that is full, is replaced.
                    Ok(false) | Err(_) => {}
                }
                tokio::time::sleep(growing(limits::LOOK_AGAIN, n)).await;
                let user = if start.elapsed() < limits::ENDING_AS_USER {
                    self.plan.user.clone()
                } else {
                    Some(ROOT.to_owned())
                };
                guard = Guard::start(self.docker, self.id, &self.plan.mark.0, user).await;
            }
            unreachable!("the attempts do not end by themselves")
        };
        match tokio::time::timeout(limits::ENDING, by_guards).await {
            Ok(gone) => gone,
            Err(_) => {
                tracing::warn!(id = self.id, "a command could not be ended");
                Ok(false)
            }
        }
    }

    /// Ends it by this guard, and answers whether that succeeded.
    async fn by(&self, guard: Result<Guard>, start: Instant) -> Result<bool> {
        let guard = guard?;
        let spent = start.elapsed();
        let limit = if spent < limits::ENDING_AS_USER { limits::ENDING_AS_USER } else { limits::ENDING };
        let code = guard.end(self.docker, &self.plan.mark.1, (self.alone)(), limit.saturating_sub(spent)).await?;
        if code == LEFT {
            tracing::debug!(id = self.id, "something is left of a command");
        }
        // One that Docker was only about to start is not seen by the guard, nor is it ended by it.
        Ok(code == 0 && exec::state(self.docker, self.command).await?.is_some())
    }
}
