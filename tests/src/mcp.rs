//! Callers of the tools at `/mcp`: the official Python client, and one that sends what no client would.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::host::cache;

/// How long an answer of the client may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which client, and what it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// The current one, the current protocol.
    Current,
    /// The current one, as it speaks to servers that know older protocols only.
    Legacy,
    /// The one before, which knows older protocols only.
    Before,
}

/// A Python client that is connected.
pub struct PythonClient {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<Value>,
    early: Vec<Value>,
    calls: u64,
    /// The protocol that was agreed on.
    pub protocol: String,
}

impl PythonClient {
    /// Connects with somebody's token.
    ///
    /// # Panics
    /// When it does not connect.
    pub fn connect(who: &Client, speaks: Speaks) -> Self {
        Self::start(&format!("{}/mcp", who.base()), who.token().unwrap_or_default(), speaks)
    }

    /// Has it start a server, to which it speaks over standard input and output.
    ///
    /// # Panics
    /// When it does not connect.
    pub fn over_stdio(command: &Path, args: &[&str], env: &BTreeMap<String, String>, speaks: Speaks) -> Self {
        Self::start(&json!({ "command": command, "args": args, "env": env }).to_string(), "", speaks)
    }

    fn start(server: &str, token: &str, speaks: Speaks) -> Self {
        let (client, mode) = match speaks {
            Speaks::Current => ("current", "auto"),
            Speaks::Legacy => ("current", "legacy"),
            Speaks::Before => ("before", "legacy"),
        };
        let python = cache().join("mcp-clients").join(client).join("bin/python");
        assert!(python.exists(), "{} is missing: run `make setup`", python.display());
        let script = crate::host::sources().join("mcp/client.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([server, token, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let (answer, answers) = channel();
        let out = BufReader::new(child.stdout.take().expect("its output is piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                if answer.send(line).is_err() {
                    break;
                }
            }
        });
        let orders = child.stdin.take();
        let mut client = Self { child, orders, answers, early: Vec::new(), calls: 0, protocol: String::new() };
        client.protocol =
            client.wait(|a| a["protocol"].is_string())["protocol"].as_str().unwrap_or_default().to_owned();
        client
    }

    fn order(&mut self, order: &Value) {
        let orders = self.orders.as_mut().expect("it is connected");
        writeln!(orders, "{order}").expect("the client reads");
    }

    /// The first answer that fits. What came before it is kept.
    fn wait(&mut self, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.early.iter().position(&fits) {
            return self.early.remove(at);
        }
        loop {
            match self.answers.recv_timeout(PATIENCE) {
                Ok(answer) if fits(&answer) => return answer,
                Ok(answer) => self.early.push(answer),
                Err(RecvTimeoutError::Timeout) => panic!("no answer of the client, but {:?}", self.early),
                Err(RecvTimeoutError::Disconnected) => panic!("the client ended after {:?}", self.early),
            }
        }
    }

    /// The tools it is offered, by name.
    ///
    /// # Panics
    /// When they cannot be listed.
    pub fn tools(&mut self) -> Vec<Value> {
        self.order(&json!({ "tools": true }));
        let tools = self.wait(|a| a["tools"].is_array());
        tools["tools"].as_array().cloned().unwrap_or_default()
    }

    /// Begins a call, with a wish for progress, and a time after which it gives up.
    ///
    /// # Panics
    /// When the client is gone.
    pub fn begin(&mut self, tool: &str, arguments: &Value, progress: bool, timeout: Option<f64>) -> u64 {
        self.calls += 1;
        let id = self.calls;
        self.order(
            &json!({ "id": id, "call": tool, "arguments": arguments, "progress": progress, "timeout": timeout }),
        );
        id
    }

    /// Cancels a call.
    ///
    /// # Panics
    /// When it is answered nevertheless.
    pub fn cancel(&mut self, call: u64) {
        self.order(&json!({ "cancel": call }));
        let end = self.end(call);
        assert_eq!(end["gone"], true, "{end}");
    }

    /// How a call ended.
    ///
    /// # Panics
    /// When it does not.
    pub fn end(&mut self, call: u64) -> Value {
        self.wait(|a| a["id"] == call && a["progress"].is_null())
    }

    /// What it was told of a call that has ended: numbers that grow, and messages.
    pub fn progress(&mut self, call: u64) -> Vec<(f64, String)> {
        let (told, others) = self.early.drain(..).partition(|a| a["id"] == call && a["progress"].is_array());
        self.early = others;
        let told: Vec<Value> = told;
        told.iter()
            .map(|a| (a["progress"][0].as_f64().unwrap_or(0.0), a["progress"][1].as_str().unwrap_or("").to_owned()))
            .collect()
    }

    /// Waits until it was told something of a call.
    ///
    /// # Panics
    /// When it is not.
    pub fn wait_for_progress(&mut self, call: u64, message: &str) {
        self.wait(|a| a["id"] == call && a["progress"][1].as_str().is_some_and(|m| m.contains(message)));
    }

    /// Calls a tool and answers its result.
    ///
    /// # Panics
    /// When the protocol answers an error.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let call = self.begin(tool, arguments, false, None);
        let end = self.end(call);
        assert!(end["result"].is_object(), "{tool}: {end}");
        end["result"].clone()
    }
}

impl Drop for PythonClient {
    fn drop(&mut self) {
        // It ends when there are no more orders, but not while it waits for an answer.
        self.orders = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the server answered to one message.
#[derive(Debug)]
pub struct Raw {
    /// The HTTP status.
    pub status: u16,
    /// The session it gave.
    pub session: Option<String>,
    /// How it wants to be authenticated.
    pub authenticate: Option<String>,
    /// The body: JSON, the last message of a stream, or text.
    pub body: Value,
}

impl Client {
    /// Sends any text to `/mcp`, with headers beside the usual ones.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn mcp(&self, body: &str, headers: &[(&str, &str)]) -> Raw {
        let mut request = self
            .agent()
            .post(format!("{}/mcp", self.base()))
            .content_type("application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(token) = self.token() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = request.send(body).unwrap_or_else(|e| panic!("{body}: {e}"));
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let (session, authenticate) = (header("mcp-session-id"), header("www-authenticate"));
        let text = response.body_mut().with_config().limit(64 << 20).read_to_string().expect("the answer is text");
        let last = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&text);
        let body = serde_json::from_str(last).unwrap_or(Value::String(text));
        Raw { status: response.status().as_u16(), session, authenticate, body }
    }

    /// Calls a tool in an older protocol, without a session.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn tool(&self, name: &str, arguments: &Value) -> Raw {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": name, "arguments": arguments } });
        self.mcp(&call.to_string(), &[])
    }
}
