//! Boxes: commands, waking, and files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sandbar_tests::docker::docker;
use sandbar_tests::host::image;
use sandbar_tests::{Client, Options, TestHost};
use serde_json::json;

use crate::{QUICK_ROUNDS, ROUNDS, api, clear, median, millis, register_for, row, timed};

/// A file, in bytes.
const LARGE: usize = 64 << 20;
/// How many small files there are, and their size.
const SMALL: (usize, usize) = (1000, 4 << 10);

fn host() -> Result<TestHost> {
    let image = image("redis:8-alpine")?;
    let more = format!(
        "[engines.box]\nsettings = {{ image = {image:?} }}\ngrant.images = [{image:?}]\n\
         [projects.kept]\nservices = [\"box\"]\nretained = [\"box\"]\n\
         [orchestrators.bench]\ntoken = {{ env = \"TEST_BENCH\" }}\nprojects = [\"kept\"]\n"
    );
    let env = vec![("TEST_BENCH".to_owned(), crate::TOKEN.to_owned())];
    let host = TestHost::start_with(Options { services: vec!["box"], more, env, ..Options::default() });
    clear::watch(&host);
    Ok(host)
}

pub(crate) fn boxes() -> Result<()> {
    let host = host()?;
    let agent = register_for(&host, "kept");
    let run = || agent.call("run_command", &json!({ "argv": ["true"] })).evidence().clone();
    run();
    let container = host.containers().pop().context("the box")?;
    let (mut commands, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..QUICK_ROUNDS {
        let (took, code) = timed(|| bare_exec(&container));
        ensure!(code? == 0, "the control works");
        bare.push(took);
        commands.push(timed(run).0);
    }
    beside("`run_command true` on a live box", commands, "a bare exec through Docker's API", bare, "<= 1.3");
    wake(&host, &agent)?;
    files(&host, &agent)?;
    small_files(&host, &agent)?;
    host.operator().call("remove_agent", &json!({ "agent": "bench" })).evidence();
    Ok(())
}

fn beside(what: &str, ours: Vec<Duration>, control: &str, theirs: Vec<Duration>, asked: &str) {
    let (ours, theirs) = (median(ours), median(theirs));
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    row(what, &millis(ours), &format!("{control}: {}", millis(theirs)), ratio, asked);
}

/// A box that was put to sleep and is asked for again, beside a container that was stopped and is started.
fn wake(host: &TestHost, agent: &Client) -> Result<()> {
    let image = image("redis:8-alpine")?;
    let label = format!("{}.installation={}", host.namespace, host.installation);
    let control =
        docker(["create", "--label", &label, "--init", "--network", "none", "--entrypoint", "sleep", &image, "600"])?;
    let (mut wakes, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        docker(["stop", "--time", "0", &control])?;
        let (took, answer) = timed(|| api::call("POST", &format!("/containers/{control}/start"), ""));
        answer?;
        starts.push(took);
        agent.call("release_sandbox", &json!({})).evidence();
        wakes.push(timed(|| agent.call("request_sandbox", &json!({})).evidence().clone()).0);
    }
    docker(["rm", "--force", &control])?;
    beside("waking a box", wakes, "a bare container start", starts, "<= 1.5");
    Ok(())
}

/// One file of 64 MiB, beside `cp` of the same bytes between two folders of this machine.
fn files(host: &TestHost, agent: &Client) -> Result<()> {
    let bytes: Vec<u8> = (0..LARGE).map(|n| (n * 31 % 251) as u8).collect();
    let here = host.dir.path().join("control");
    fs::write(&here, &bytes)?;
    let (mut writes, mut reads, mut copies) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        copies.push(timed(|| copy(&here)).0);
        let (took, answer) = timed(|| agent.write_content("path=large", &bytes));
        answer.evidence();
        writes.push(took);
        let (took, back) = timed(|| agent.read_content("path=large"));
        reads.push(took);
        ensure!(back? == bytes, "what was read is what was written");
    }
    beside("writing 64 MiB", writes, "`cp`", copies.clone(), "<= 3");
    beside("reading 64 MiB", reads, "`cp`", copies, "<= 3");
    Ok(())
}

fn small_files(host: &TestHost, agent: &Client) -> Result<()> {
    let (count, size) = SMALL;
    let content = "x".repeat(size);
    let here = host.dir.path().join("small");
    fs::create_dir(&here)?;
    for n in 0..count {
        fs::write(here.join(n.to_string()), &content)?;
    }
    let copies = timed(|| copy(&here)).0;
    let (writes, ()) = timed(|| {
        for n in 0..count {
            agent.call("write_file", &json!({ "path": format!("small/{n}"), "content": content })).evidence();
        }
    });
    let (reads, ()) = timed(|| {
        for n in 0..count {
            agent.call("read_file", &json!({ "path": format!("small/{n}") })).evidence();
        }
    });
    beside("writing 1,000 files of 4 KiB", vec![writes], "`cp -r`", vec![copies], "-");
    beside("reading 1,000 files of 4 KiB", vec![reads], "`cp -r`", vec![copies], "-");
    Ok(())
}

fn copy(from: &Path) -> Result<()> {
    let to = from.with_extension("copy");
    let copied = std::process::Command::new("cp").arg("-rT").args([from, &to]).status()?;
    ensure!(copied.success(), "cp works");
    Ok(())
}

/// Makes an exec, starts it, reads to its end and asks for its exit code, as the plainest client would.
fn bare_exec(container: &str) -> Result<i64> {
    let command = json!({ "AttachStdout": true, "AttachStderr": true, "Cmd": ["true"] });
    let id = api::make(&format!("/containers/{container}/exec"), &command)?;
    api::call("POST", &format!("/exec/{id}/start"), r#"{"Detach":false,"Tty":false}"#)?;
    api::get(&format!("/exec/{id}/json"))?["ExitCode"].as_i64().context("an exit code")
}
