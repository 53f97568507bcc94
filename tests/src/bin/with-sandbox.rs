//! `with-sandbox [--extensions a,b] COMMAND…`: starts a host, asks a sandbox of Postgres, and runs the command as an agent
//! would: with the evidence's variables, and of this process's own nothing but the paths. Leaves nothing behind.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result, ensure};
use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn main() -> Result<ExitCode> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut extensions = Vec::new();
    if args.first().is_some_and(|a| a == "--extensions") {
        ensure!(args.len() > 1, "--extensions needs a list");
        extensions = args[1].split(',').map(str::to_owned).collect();
        args.drain(..2);
    }
    let mut host =
        TestHost::start_with(Options { services: vec!["postgres"], publish: "loopback", ..Options::default() });
    let ran = run(&host, &extensions, &args);
    let left = host.finish()?;
    let status = ran?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

fn run(host: &TestHost, extensions: &[String], argv: &[String]) -> Result<ExitStatus> {
    let (program, args) = argv.split_first().context("usage: with-sandbox [--extensions a,b] COMMAND…")?;
    let answer = host.developer("suite").call("request_sandbox", &json!({ "extensions": { "postgres": extensions } }));
    let env: BTreeMap<String, String> = serde_json::from_value(answer.evidence()["postgres"]["env"].clone())?;
    let own = ["PATH", "HOME"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(own).envs(env);
    command.status().with_context(|| format!("running {program}"))
}
