//! Who is compared: each starts three services, or less, and what it started is asked a query before the clock stops.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sandbar_tests::docker::docker;
use sandbar_tests::host::{image, target};
use serde_json::{Value, json};

use crate::{SERVICES, api};

/// What the services run, in their order.
pub(crate) fn images() -> Result<Vec<String>> {
    ["postgres:16-alpine", "redis:8-alpine", "mongo:8"].iter().map(|upstream| image(upstream)).collect()
}

/// A program of `tests/compare` that takes orders.
pub(crate) struct Program {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn rust(label: &str) -> Result<Self> {
        let mut command = Command::new(tools().join("release/compare"));
        command.args(images()?).arg(label);
        Self::start(command)
    }

    pub(crate) fn python(label: &str) -> Result<Self> {
        let mut command = python("compare.py");
        command.args(images()?).arg(label);
        Self::start(command)
    }

    /// The one that asks whether services answer.
    pub(crate) fn asker() -> Result<Self> {
        Self::start(python("ask.py"))
    }

    fn start(mut command: Command) -> Result<Self> {
        let program = command.get_program().to_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Its image is in a registry.
        command.env("TESTCONTAINERS_RYUK_DISABLED", "true");
        let mut child =
            command.spawn().with_context(|| format!("{} is missing: run `make bench`", program.display()))?;
        let orders = child.stdin.take().context("it takes orders")?;
        let answers = BufReader::new(child.stdout.take().context("it answers")?);
        Ok(Self { child, orders, answers })
    }

    pub(crate) fn order(&mut self, order: &Value) -> Result<Value> {
        writeln!(self.orders, "{order}")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the program ended at {order}");
        Ok(serde_json::from_str(&line)?)
    }

    /// Waits until everything behind these URLs has answered a query.
    pub(crate) fn ask(&mut self, urls: &Value) -> Result<()> {
        self.order(urls).map(drop)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn python(script: &str) -> Command {
    let mut command = Command::new(tools().join("venv/bin/python"));
    command.arg(sandbar_tests::host::sources().join("compare/python").join(script));
    command
}

fn tools() -> PathBuf {
    std::env::var_os("SANDBAR_COMPARE").map_or_else(|| target().with_file_name("compare"), PathBuf::from)
}

/// The URLs in an evidence.
pub(crate) fn urls(evidence: &Value) -> Value {
    let names = ["DATABASE_URL", "REDIS_URL", "MONGODB_URI"];
    let urls = SERVICES.iter().zip(names).filter_map(|(service, name)| {
        evidence[service]["env"][name].as_str().map(|url| ((*service).to_owned(), json!(url)))
    });
    Value::Object(urls.collect())
}

/// What people do today: `docker run` for one after another, and a probe every second. Answers the containers and URLs.
pub(crate) fn by_hand(label: &str) -> Result<(Vec<String>, Value)> {
    let began = Instant::now();
    let run = |image: &str, port: u16, env: &[&str], probe: &[&str]| -> Result<(String, String)> {
        let publish = format!("127.0.0.1::{port}");
        let mut args = vec!["run", "--detach", "--label", label, "--publish", &publish];
        args.extend(env.iter().flat_map(|e| ["--env", *e]));
        args.push(image);
        let id = docker(args)?;
        while docker(["exec", &id].into_iter().chain(probe.iter().copied())).is_err() {
            // The second is what is measured here.
            thread::sleep(Duration::from_secs(1));
            ensure!(began.elapsed() < Duration::from_secs(120), "{image} does not become ready");
        }
        let address = docker(["port", &id, &port.to_string()])?;
        Ok((id, address))
    };
    let images = images()?;
    let (postgres, postgres_at) = run(
        &images[0],
        5432,
        &["POSTGRES_PASSWORD=x"],
        &["psql", "-h", "127.0.0.1", "-U", "postgres", "-c", "select 1"],
    )?;
    let (redis, redis_at) = run(&images[1], 6379, &[], &["redis-cli", "ping"])?;
    let (mongo, mongo_at) = run(
        &images[2],
        27017,
        &["MONGO_INITDB_ROOT_USERNAME=u", "MONGO_INITDB_ROOT_PASSWORD=x"],
        &["mongosh", "--quiet", "mongodb://u:x@127.0.0.1/?authSource=admin", "--eval", "db.runCommand({ping:1}).ok"],
    )?;
    let urls = json!({
        "postgres": format!("postgresql://postgres:x@{postgres_at}/postgres"),
        "redis": format!("redis://{redis_at}/"),
        "mongo": format!("mongodb://u:x@{mongo_at}/?authSource=admin"),
    });
    Ok((vec![postgres, redis, mongo], urls))
}

/// Postgres as its image starts it, with nothing but a password, on a tmpfs. Answers the container and its URL.
pub(crate) fn bare_postgres(label: &str) -> Result<(String, Value)> {
    let more = json!({
        "Env": ["POSTGRES_PASSWORD=x"],
        "HostConfig": { "Tmpfs": { "/var/lib/postgresql/data": "size=256m" }, "PortBindings": { "5432/tcp": [{ "HostIp": "127.0.0.1" }] } },
    });
    let id = api::run(&images()?[0], label, &more)?;
    let seen = api::get(&format!("/containers/{id}/json"))?;
    let port = seen["NetworkSettings"]["Ports"]["5432/tcp"][0]["HostPort"].as_str().context("a port")?;
    let url = format!("postgresql://postgres:x@127.0.0.1:{port}/postgres");
    Ok((id, json!({ "postgres": url })))
}
