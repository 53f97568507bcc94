//! Running a tenant's command in a container: what it reads, what is kept of what it prints, and the two ways in which it
//! ends. One that ends by itself leaves its children alone, such as a server that it started; one that is ended goes with
//! everything that it started, which is the matter of `ending.rs`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::models::ExecConfig;
use sandbar_core::runtime::{Captured, Result, RunOutput, RunPlan, RuntimeError};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ending::{Ending, Guards};
use crate::errors::{CallError, redacted};
use crate::exec::{self, Started, Take};
use crate::{limits, units};

/// The exit code of a command whose time was over, as `timeout` has it.
const TIMED_OUT: i64 = 124;

/// The exit codes with which Docker and shells say that a command could not be started.
const NOT_STARTED: [i64; 2] = [126, 127];

/// How long every command's mark is. `end.sh` knows it.
const MARK: usize = 32;

/// The exit code of a command that was killed.
const KILLED: i64 = 137;

/// Answers whether no other command runs.
pub(crate) type Alone = Arc<dyn Fn() -> bool + Send + Sync>;

/// Runs a command, in a task of its own: when this future is dropped the command is ended as well, and somebody has to see
/// to that.
pub(crate) async fn run(
    docker: Docker,
    guards: Arc<Guards>,
    id: &str,
    plan: &RunPlan,
    cancel: &CancellationToken,
    alone: Alone,
) -> Result<RunOutput> {
    check(plan)?;
    let over = cancel.child_token();
    let _cancels = over.clone().drop_guard();
    let (id, plan) = (id.to_owned(), plan.clone());
    let work = tokio::spawn(async move {
        let result = work(&docker, &guards, &id, &plan, &over, alone).await;
        result.map_err(|error| redacted(error, &plan.env))
    });
    work.await.unwrap_or_else(|error| Err(RuntimeError::Failed(format!("running the command broke off: {error}"))))
}

/// What would reach the command as something else than it is, is refused.
fn check(plan: &RunPlan) -> Result<()> {
    let refused = |what: &str| Err(RuntimeError::Refused(what.to_owned()));
    let (mark, value) = &plan.mark;
    if !is_name(mark) || value.len() != MARK || !value.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return refused("the command's mark is no variable with a value of 32 hexadecimal digits");
    }
    if plan.argv.first().is_none_or(String::is_empty) {
        return refused("there is no program to run");
    }
    if plan.argv.iter().chain([&plan.folder]).chain(&plan.user).any(|text| text.contains('\0')) {
        return refused("no argument, folder or user can hold a zero byte");
    }
    for (name, value) in &plan.env {
        let shown = name.escape_debug();
        if !is_name(name) {
            return refused(&format!("`{shown}` is no name for a variable"));
        }
        if value.contains('\0') {
            return refused(&format!("the variable `{shown}` has a zero byte in its value"));
        }
        if name == mark {
            return refused(&format!("the variable `{shown}` is set by the host"));
        }
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn config(plan: &RunPlan) -> ExecConfig {
    let env = plan.env.iter().chain([&plan.mark]);
    ExecConfig {
        // Without it the command reads from `/dev/null`.
        attach_stdin: Some(!plan.stdin.is_empty()),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some(plan.argv.clone()),
        env: Some(env.map(|(name, value)| format!("{name}={value}")).collect()),
        working_dir: (!plan.folder.is_empty()).then(|| plan.folder.clone()),
        user: plan.user.clone(),
        ..ExecConfig::default()
    }
}

async fn work(
    docker: &Docker,
    guards: &Guards,
    id: &str,
    plan: &RunPlan,
    over: &CancellationToken,
    alone: Alone,
) -> Result<RunOutput> {
    let command = exec::create(docker, id, config(plan)).await?;
    let ending = Ending { docker, id, command: &command, plan, alone };
    // Before the command, which may leave no room for it. Docker starts both while neither waits for the other.
    let guard = match guards.take(docker, id, plan).await {
        Err(error @ (RuntimeError::Gone(_) | RuntimeError::NotFound(_))) => return Err(error),
        guard => guard,
    };
    let until = Instant::now() + plan.timeout;
    let Started { output, input } = match exec::start(docker, &command).await {
        Ok(started) => started,
        // Docker itself says that it did not start.
        Err(error @ CallError::Answered { .. }) => return Err(error.into()),
        // Nobody knows, and nobody will hear of it any more.
        Err(error) => {
            ending.end(guard).await?;
            return Err(error.into());
        }
    };

    let mut printed = Printed::new(plan.keep);
    let ended = {
        let mut collecting = pin!(exec::collect(output, || exec::state(docker, &command), &mut printed));
        let mut feeding = pin!(feed(input, &plan.stdin));
        let is_over = async {
            tokio::select! {
                () = over.cancelled() => {}
                () = tokio::time::sleep_until(until) => {}
            }
        };
        let mut is_over = pin!(is_over);
        let code = tokio::select! {
            biased;
            code = &mut collecting => Some(code),
            () = &mut is_over => None,
            never = &mut feeding => match never {},
        };
        match code {
            Some(code) => {
                if let Ok(guard) = guard {
                    guards.give(id, plan, guard);
                }
                Ok(code.map_err(while_it_ran)?)
            }
            None => {
                let mut end = pin!(ending.end(guard));
                // What it prints meanwhile is read, so that nothing stands still and its last words are there.
                let mut collected = false;
                let gone = loop {
                    tokio::select! {
                        gone = &mut end => break gone.map_err(while_it_ran)?,
                        _ = &mut collecting, if !collected => collected = true,
                    }
                };
                if gone && !collected {
                    let (_, in_all) = limits::EXEC_DRAIN;
                    // Its end has been seen; should the output's never come, what there is will do.
                    drop(tokio::time::timeout(in_all, collecting).await);
                }
                Err(gone)
            }
        }
    };
    match ended {
        Ok(code) => {
            if code == KILLED && ended_with_it(docker, id).await {
                return Err(while_it_ran(RuntimeError::Gone(id.to_owned())));
            }
            Ok(printed.output(code, false, true))
        }
        Err(gone) => Ok(printed.output(TIMED_OUT, true, gone)),
    }
}

/// A command that had begun must not be taken for one that may be started again.
fn while_it_ran(error: RuntimeError) -> RuntimeError {
    match error {
        RuntimeError::Gone(_) | RuntimeError::NotFound(_) => {
            RuntimeError::Failed("the container ended, and the command with it".to_owned())
        }
        other => other,
    }
}

/// Gives a command what it reads, and then nothing but the end. Holds its input until it is dropped: some daemons take
/// its end for the caller having gone.
async fn feed(mut input: Pin<Box<dyn AsyncWrite + Send>>, stdin: &[u8]) -> Infallible {
    if !stdin.is_empty() && input.write_all(stdin).await.is_ok() {
        // A command need not read, nor read to the end.
        let _ = input.shutdown().await;
    }
    std::future::pending().await
}

/// Whether the container ended when the command was killed.
async fn ended_with_it(docker: &Docker, id: &str) -> bool {
    match tokio::time::timeout(limits::KILLED_WITH, units::ended(docker, id)).await {
        Ok(Ok(_) | Err(RuntimeError::NotFound(_))) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}

/// What is kept of what a command has printed.
struct Printed {
    out: Kept,
    err: Kept,
}

impl Printed {
    fn new(keep: usize) -> Self {
        Self { out: Kept::new(keep), err: Kept::new(keep) }
    }

    fn output(self, code: i64, timed_out: bool, gone: bool) -> RunOutput {
        let (mut stdout, mut stderr) = (self.out.captured(), self.err.captured());
        // Some daemons say as if the command had printed it why it could not be started.
        if NOT_STARTED.contains(&code) && stderr == Captured::default() && is_docker_s(&stdout.head) {
            std::mem::swap(&mut stdout, &mut stderr);
        }
        RunOutput { code, stdout, stderr, timed_out, gone }
    }
}

fn is_docker_s(text: &[u8]) -> bool {
    text.starts_with(b"OCI runtime exec failed: ")
}

impl Take for Printed {
    fn take(&mut self, chunk: LogOutput) {
        match chunk {
            LogOutput::StdOut { message } => self.out.take(&message),
            // Without a stream's header comes what Docker itself says of a command that it could not start.
            LogOutput::StdErr { message } | LogOutput::Console { message } => self.err.take(&message),
            LogOutput::StdIn { .. } => {}
        }
    }
}

/// The beginning and the end of a stream.
struct Kept {
    head: Vec<u8>,
    head_room: usize,
    tail: VecDeque<u8>,
    tail_room: usize,
    dropped: u64,
}

impl Kept {
    fn new(keep: usize) -> Self {
        let head_room = keep / 2;
        Self { head: Vec::new(), head_room, tail: VecDeque::new(), tail_room: keep - head_room, dropped: 0 }
    }

    fn take(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_room - self.head.len()));
        self.head.extend_from_slice(first);
        // Of a chunk that is larger than the tail only its end counts.
        let (over, last) = rest.split_at(rest.len().saturating_sub(self.tail_room));
        let push_out = (self.tail.len() + last.len()).saturating_sub(self.tail_room);
        self.tail.drain(..push_out);
        self.tail.extend(last);
        self.dropped += (over.len() + push_out) as u64;
    }

    fn captured(mut self) -> Captured {
        let mut tail = Vec::from(self.tail);
        if self.dropped == 0 {
            self.head.append(&mut tail);
        }
        Captured { head: self.head, tail, dropped: self.dropped }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn plan() -> RunPlan {
        RunPlan {
            argv: vec!["true".to_owned()],
            env: vec![("A".to_owned(), "b=c".to_owned())],
            stdin: Vec::new(),
            folder: "/work".to_owned(),
            user: None,
            timeout: Duration::from_secs(1),
            keep: 10,
            mark: ("MARK".to_owned(), "0123456789abcdef0123456789abcdef".to_owned()),
        }
    }

    #[test]
    fn the_beginning_and_the_end_are_kept_however_they_come() {
        let text: Vec<u8> = (b'a'..=b'z').collect();
        for size in 1..=text.len() {
            for length in 0..=text.len() {
                let mut kept = Kept::new(11);
                for chunk in text[..length].chunks(size) {
                    kept.take(chunk);
                }
                let captured = kept.captured();
                let expected = match length.checked_sub(11) {
                    None | Some(0) => Captured { head: text[..length].to_vec(), tail: Vec::new(), dropped: 0 },
                    Some(more) => Captured {
                        head: text[..5].to_vec(),
                        tail: text[length - 6..length].to_vec(),
                        dropped: more as u64,
                    },
                };
                assert_eq!(captured, expected, "{length} in chunks of {size}");
            }
        }
    }

    #[test]
    fn what_nothing_is_kept_of_is_counted() {
        let mut kept = Kept::new(0);
        kept.take(b"abc");
        assert_eq!(kept.captured(), Captured { dropped: 3, ..Captured::default() });
    }

    #[test]
    fn memory_does_not_grow_with_the_output() {
        let mut kept = Kept::new(1000);
        for _ in 0..10_000 {
            kept.take(&[b'x'; 4096]);
        }
        assert!(kept.head.capacity() + kept.tail.capacity() < 10_000);
        assert_eq!(kept.dropped, 10_000 * 4096 - 1000);
    }

    #[test]
    fn the_environment_gets_the_mark_and_nothing_that_could_be_read_otherwise() {
        let config = config(&plan());
        assert_eq!(config.env, Some(vec!["A=b=c".to_owned(), "MARK=0123456789abcdef0123456789abcdef".to_owned()]));
        assert_eq!((config.attach_stdin, config.privileged), (Some(false), None));
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y"), ("MARK", "x")] {
            let mut plan = plan();
            plan.env = vec![(name.to_owned(), value.to_owned())];
            assert!(matches!(check(&plan), Err(RuntimeError::Refused(_))), "{name:?} {value:?}");
        }
        assert_eq!(check(&plan()), Ok(()));
    }

    #[test]
    fn a_command_without_a_program_or_with_a_mark_that_is_none_is_refused() {
        let refused = |change: fn(&mut RunPlan)| {
            let mut plan = plan();
            change(&mut plan);
            matches!(check(&plan), Err(RuntimeError::Refused(_)))
        };
        assert!(refused(|plan| plan.argv.clear()));
        assert!(refused(|plan| plan.argv[0].clear()));
        assert!(refused(|plan| plan.argv.push("a\0b".to_owned())));
        assert!(refused(|plan| plan.folder.push('\0')));
        assert!(refused(|plan| plan.user = Some("a\0".to_owned())));
        assert!(refused(|plan| plan.mark.1.clear()));
        assert!(refused(|plan| plan.mark.1 = ".".to_owned()));
        assert!(refused(|plan| plan.mark.0 = "A=".to_owned()));
    }

    #[test]
    fn why_a_command_could_not_be_started_stands_on_the_error_stream() {
        let words = "OCI runtime exec failed: exec failed";
        let printed = |code| {
            let mut printed = Printed::new(1000);
            printed.take(LogOutput::StdOut { message: words.into() });
            printed.output(code, false, true)
        };
        assert_eq!((printed(126).stdout, printed(127).stderr.head), (Captured::default(), words.into()));
        assert_eq!((printed(1).stderr, printed(1).stdout.head), (Captured::default(), words.into()));
    }
}
