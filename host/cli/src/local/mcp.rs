//! `sandbar mcp`: MCP over standard input and output, for editors. Every line is a message that is handed to the host as it
//! is, and every message of the host's answer is a line; what the tools are is the host's to say.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::services::{opt_in, opt_out};
use super::{Home, Link};
use crate::local::link::Messages;

/// The longest message of a client, in bytes: a file in it is as long as the host takes one.
const LONGEST: usize = 17 << 20;
/// What the code of an error is that is not the client's.
const INTERNAL: i64 = -32603;

/// What is kept of the client between its messages.
#[derive(Default)]
struct Client {
    session: Option<String>,
    version: Option<String>,
}

/// Serves until standard input ends.
pub(crate) async fn mcp(home: Home) -> Result<()> {
    // An editor sees the error that there is none, rather than an answer to its first message.
    home.host().await?;
    let (home, client) = (Arc::new(home), Arc::new(Mutex::new(Client::default())));
    let (lines, mut written) = mpsc::channel::<Vec<u8>>(64);
    let writer = tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(mut line) = written.recv().await {
            line.push(b'\n');
            if out.write_all(&line).await.is_err() || out.flush().await.is_err() {
                break;
            }
        }
    });
    // On its own: what was read of a line must not be lost when something else comes first.
    let (read, mut messages) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut input = BufReader::new(tokio::io::stdin());
        while let Some(line) = line(&mut input).await.transpose() {
            if read.send(line).await.is_err() {
                break;
            }
        }
    });
    let mut calls = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        let line = tokio::select! {
            line = messages.recv() => line,
            Some(_) = calls.join_next() => {
                running.retain(|_, call| !call.is_finished());
                continue;
            }
        };
        let Some(line) = line.transpose()? else { break };
        let message: Value = serde_json::from_slice(&line).unwrap_or_default();
        if message["method"] == "notifications/cancelled" {
            // What goes with its caller ends when the call is given up; in every protocol, and whether or not the host has
            // heard of the call yet.
            if let Some(call) = running.remove(&message["params"]["requestId"].to_string()) {
                call.abort();
            }
            continue;
        }
        let id = message.get("id").cloned();
        let (home, client, lines) = (home.clone(), client.clone(), lines.clone());
        let is_first = message["method"] == "initialize";
        let call = async move {
            let id = message.get("id").cloned();
            if let Err(e) = exchange(&home, &client, &message, line, &lines).await
                && let Some(id) = id
            {
                let error =
                    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": INTERNAL, "message": format!("{e:#}") } });
                let _ = lines.send(error.to_string().into_bytes()).await;
            }
        };
        if is_first {
            // What comes after it is said in the session that it begins.
            call.await;
            continue;
        }
        let call = calls.spawn(call);
        if let Some(id) = id {
            running.insert(id.to_string(), call);
        }
    }
    // Nobody reads the answers any more: a command ends with its caller, and what is being made goes on in the host.
    calls.shutdown().await;
    drop(lines);
    writer.await?;
    Ok(())
}

/// Hands one message on, and its answer back.
async fn exchange(
    home: &Home,
    client: &Mutex<Client>,
    message: &Value,
    line: Vec<u8>,
    lines: &mpsc::Sender<Vec<u8>>,
) -> Result<()> {
    // It may have been ended since.
    let link = home.host().await?;
    let mut added = BTreeSet::new();
    if message["method"] == "tools/call" && message["params"]["name"] == "request_sandbox" {
        added = prepare(home, &link, &message["params"]["arguments"]).await?;
    }
    let (session, version) = {
        let client = client.lock().unwrap_or_else(PoisonError::into_inner);
        (client.session.clone(), client.version.clone())
    };
    let mut headers = Vec::new();
    headers.extend(session.as_deref().map(|session| ("mcp-session-id", session)));
    let own = message.pointer("/params/_meta/io.modelcontextprotocol~1protocolVersion").and_then(Value::as_str);
    headers.extend(own.or(version.as_deref()).map(|version| ("mcp-protocol-version", version)));
    if let Some(method) = message["method"].as_str() {
        headers.push(("mcp-method", method));
    }
    if let Some(name) = message["params"]["name"].as_str() {
        headers.push(("mcp-name", name));
    }
    let response = link.mcp(&headers, Bytes::from(line)).await?;
    let session = response.headers().get("mcp-session-id").and_then(|s| s.to_str().ok()).map(str::to_owned);
    let mut answers = Messages::new(response).await?;
    while let Some(answer) = answers.next().await? {
        if message["method"] == "initialize" {
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
            client.session = session.clone();
            client.version = answer.pointer("/result/protocolVersion").and_then(Value::as_str).map(str::to_owned);
        }
        if !added.is_empty()
            && serde_json::from_slice::<Value>(&answer).is_ok_and(|answer| answer["result"]["isError"] == true)
        {
            opt_out(home, &link, &added).await?;
        }
        if lines.send(answer).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// This user is the operator of the host as well: what their agent names is what the project opts in to. Answers what it had
/// not.
async fn prepare(home: &Home, link: &Link, arguments: &Value) -> Result<BTreeSet<String>> {
    let names = arguments["services"].as_array().into_iter().flatten();
    let names: Vec<_> = names.filter_map(Value::as_str).map(str::to_owned).collect();
    opt_in(home, link, &names).await
}

/// The next line of a client.
async fn line(input: &mut BufReader<tokio::io::Stdin>) -> Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let read = input.fill_buf().await?;
        if read.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let (end, taken) = match read.iter().position(|byte| *byte == b'\n') {
            Some(at) => (true, at + 1),
            None => (false, read.len()),
        };
        anyhow::ensure!(line.len() + taken <= LONGEST, "a message has more than {LONGEST} bytes");
        line.extend_from_slice(&read[..taken]);
        input.consume(taken);
        if end {
            if !line.trim_ascii().is_empty() {
                return Ok(Some(line));
            }
            line.clear();
        }
    }
}
