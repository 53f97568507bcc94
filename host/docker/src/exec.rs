//! Running a command of an engine in a container and collecting what it prints, and what running a tenant's
//! (`command.rs`) has in common with that.
//!
//! Docker has no way to end such a command: when its time is over it is left to itself, and the container's end is its
//! end too. For a tenant's there is `ending.rs`.

use std::pin::Pin;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt as _};
use sandbar_core::runtime::{ExecOutput, ExecPlan, Result, RuntimeError};
use tokio::io::AsyncWrite;

use crate::errors::{CallError, redacted, within};
use crate::limits::{self, growing};
use crate::reference::identifier;
use crate::text;

/// Runs a command; `Deadline` when it takes longer than its plan allows.
pub(crate) async fn exec(docker: &Docker, id: &str, plan: &ExecPlan) -> Result<ExecOutput> {
    match tokio::time::timeout(plan.timeout, run(docker, id, plan)).await {
        Ok(result) => result.map_err(|error| redacted(error, &plan.env)),
        Err(_) => Err(RuntimeError::Deadline(plan.timeout)),
    }
}

async fn run(docker: &Docker, id: &str, plan: &ExecPlan) -> Result<ExecOutput> {
    let config = ExecConfig {
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some(plan.argv.clone()),
        env: Some(plan.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        user: plan.user.clone(),
        ..ExecConfig::default()
    };
    let exec = create(docker, id, config).await?;
    let Started { output, input } = start(docker, &exec).await?;
    let mut printed = Printed::default();
    let code = collect(output, || state(docker, &exec), &mut printed).await?;
    // Held until here: some daemons take its end for the caller having gone.
    drop(input);
    Ok(ExecOutput {
        code,
        stdout: text::start(&printed.out, limits::EXEC_OUTPUT),
        stderr: text::start(&printed.err, limits::EXEC_OUTPUT),
    })
}

/// The ends of a command's streams.
pub(crate) struct Started {
    pub(crate) output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    pub(crate) input: Pin<Box<dyn AsyncWrite + Send>>,
}

/// Tells Docker of a command, which does not run yet, and answers Docker's id of it.
pub(crate) async fn create(docker: &Docker, id: &str, config: ExecConfig) -> Result<String, CallError> {
    let id = identifier(id).map_err(CallError::Other)?;
    Ok(within(limits::EXEC_CALL, docker.create_exec(id, config)).await?.id)
}

/// Starts a command. It may take a moment more until it runs.
pub(crate) async fn start(docker: &Docker, exec: &str) -> Result<Started, CallError> {
    match within(limits::EXEC_CALL, docker.start_exec(exec, None::<StartExecOptions>)).await? {
        StartExecResults::Attached { output, input } => Ok(Started { output, input }),
        StartExecResults::Detached => {
            Err(CallError::Other(RuntimeError::Failed("Docker did not attach to the command".to_owned())))
        }
    }
}

/// What takes in what a command prints.
pub(crate) trait Take {
    fn take(&mut self, chunk: LogOutput);
}

/// What a command has printed so far. A little more than the limit is kept, so that the cut can be between characters.
#[derive(Debug, Default)]
struct Printed {
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Take for Printed {
    fn take(&mut self, chunk: LogOutput) {
        let (to, bytes) = match chunk {
            LogOutput::StdOut { message } => (&mut self.out, message),
            LogOutput::StdErr { message } => (&mut self.err, message),
            // Without a stream's header comes what Docker itself says of a command that it could not start.
            LogOutput::Console { message } => (&mut self.err, message),
            LogOutput::StdIn { .. } => return,
        };
        // Read on beyond the limit: a command that nobody reads from stands still.
        let room = (limits::EXEC_OUTPUT + 1).saturating_sub(to.len());
        to.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Reads the output until the command has ended, and answers its exit code. The output's end nearly always comes with the
/// command's, but a child that goes on can keep it open, so the command itself is looked at as well.
pub(crate) async fn collect<S, F>(output: S, state: impl Fn() -> F, printed: &mut impl Take) -> Result<i64>
where
    S: Stream<Item = Result<LogOutput, Error>>,
    F: Future<Output = Result<Option<i64>>>,
{
    let mut output = std::pin::pin!(output);
    let mut looks = 0;
    let mut look_at = tokio::time::Instant::now() + growing(limits::EXEC_LOOK, looks);
    loop {
        // A child may print so fast that there is always something to read, so the time is looked at as well.
        let next = match tokio::time::Instant::now() < look_at {
            true => tokio::time::timeout_at(look_at, output.next()).await.ok(),
            false => None,
        };
        match next {
            Some(Some(chunk)) => printed.take(chunk.map_err(CallError::from)?),
            Some(None) => break,
            None => {
                if let Some(code) = state().await? {
                    drain(output, printed).await?;
                    return Ok(code);
                }
                looks += 1;
                look_at = tokio::time::Instant::now() + growing(limits::EXEC_LOOK, looks);
            }
        }
    }
    // Docker closes the output a moment before it notes the exit code.
    for n in 0.. {
        if let Some(code) = state().await? {
            return Ok(code);
        }
        tokio::time::sleep(growing(limits::LOOK_AGAIN, n)).await;
    }
    unreachable!("the looks do not end by themselves")
}

/// Takes in what is still on its way from a command that has ended.
async fn drain<S>(mut output: Pin<&mut S>, printed: &mut impl Take) -> Result<()>
where
    S: Stream<Item = Result<LogOutput, Error>>,
{
    let (silence, in_all) = limits::EXEC_DRAIN;
    let end = tokio::time::Instant::now() + in_all;
    while tokio::time::Instant::now() < end {
        let until = end.min(tokio::time::Instant::now() + silence);
        let Ok(Some(chunk)) = tokio::time::timeout_at(until, output.next()).await else { return Ok(()) };
        printed.take(chunk.map_err(CallError::from)?);
    }
    Ok(())
}

/// The exit code of a command, `None` while it runs.
pub(crate) async fn state(docker: &Docker, exec: &str) -> Result<Option<i64>> {
    let state = match within(limits::EXEC_CALL, docker.inspect_exec(exec)).await {
        Ok(state) => state,
        // With its container Docker also forgets the commands in it.
        Err(CallError::Answered { status: 404 | 409, message }) => return Err(RuntimeError::Gone(message)),
        Err(error) => return Err(error.into()),
    };
    match (state.running, state.exit_code) {
        (Some(true), _) => Ok(None),
        (_, Some(code)) => Ok(Some(code)),
        // Neither running nor ended is a command that is about to start, unless its container went first; the caller's
        // time bounds how long that can be believed.
        (_, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use futures_util::stream;

    use super::*;

    fn out(text: &'static str) -> Result<LogOutput, Error> {
        Ok(LogOutput::StdOut { message: text.into() })
    }

    #[tokio::test(start_paused = true)]
    async fn the_exit_code_may_come_after_the_output() {
        let looks = Cell::new(0);
        let state = || {
            looks.set(looks.get() + 1);
            let code = (looks.get() > 3).then_some(7);
            async move { Ok(code) }
        };
        let mut printed = Printed::default();
        assert_eq!(collect(stream::iter([out("a"), out("b")]), state, &mut printed).await, Ok(7));
        assert_eq!(printed.out, b"ab");
    }

    #[tokio::test(start_paused = true)]
    async fn an_output_that_stays_open_does_not_hold_up_the_answer() {
        let output = stream::iter([out("a")]).chain(stream::pending());
        let mut printed = Printed::default();
        let start = tokio::time::Instant::now();
        assert_eq!(collect(output, || async { Ok(Some(0)) }, &mut printed).await, Ok(0));
        assert_eq!(printed.out, b"a");
        assert!(start.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_child_that_goes_on_printing_does_not_either() {
        let chatter = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Some((out("x"), ()))
        });
        let start = tokio::time::Instant::now();
        assert_eq!(collect(chatter, || async { Ok(Some(0)) }, &mut Printed::default()).await, Ok(0));
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test]
    async fn nor_does_one_that_never_pauses() {
        let flood = stream::repeat_with(|| out("x"));
        let mut printed = Printed::default();
        let collected = collect(flood, || async { Ok(Some(0)) }, &mut printed);
        assert_eq!(tokio::time::timeout(Duration::from_secs(20), collected).await, Ok(Ok(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_goes_ends_it() {
        let gone = || async { Err(RuntimeError::Gone("no such exec".to_owned())) };
        let result = collect(stream::iter([out("a")]), gone, &mut Printed::default()).await;
        assert!(matches!(result, Err(RuntimeError::Gone(_))));
    }

    #[test]
    fn output_is_bounded_and_its_streams_are_told_apart() {
        let mut printed = Printed::default();
        for _ in 0..100 {
            printed.take(LogOutput::StdOut { message: vec![b'x'; 4096].into() });
        }
        printed.take(LogOutput::StdErr { message: "e".into() });
        printed.take(LogOutput::Console { message: "c".into() });
        assert_eq!(text::start(&printed.out, limits::EXEC_OUTPUT).len(), limits::EXEC_OUTPUT);
        assert_eq!(printed.err, b"ec");
    }
}
