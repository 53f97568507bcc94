//! HTTP over the socket of the host.

use std::path::PathBuf;
use std::pin::Pin;

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use super::As;

/// A way to the host. Every request has a connection of its own, so a host that was started again is found.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    socket: PathBuf,
    tokens: [String; 3],
}

impl Link {
    pub(super) fn new(socket: PathBuf, tokens: [String; 3]) -> Self {
        Self { socket, tokens }
    }

    /// The same way for another agent.
    pub(crate) fn with_agent(&self, token: &str) -> Self {
        let mut link = self.clone();
        link.tokens[As::Agent as usize] = token.to_owned();
        link
    }

    /// The process that answers.
    pub(crate) async fn pid(&self) -> Result<Option<i32>> {
        Ok(UnixStream::connect(&self.socket).await?.peer_cred()?.pid())
    }

    /// Reads a page.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        let response = self.send(Method::GET, path, &[], Bytes::new()).await?;
        read(response).await
    }

    /// Calls a verb, and answers its evidence.
    pub(crate) async fn call(&self, who: As, verb: &str, body: &Value) -> Result<Value> {
        let authorization = self.authorization(who);
        let headers = [(header::AUTHORIZATION.as_str(), authorization.as_str())];
        let path = format!("/v1/do/{verb}");
        let response = self.send(Method::POST, &path, &headers, body.to_string().into()).await?;
        evidence(read(response).await?)
    }

    /// Sends a message of MCP.
    pub(crate) async fn mcp(&self, headers: &[(&str, &str)], body: Bytes) -> Result<Response<Incoming>> {
        let authorization = self.authorization(As::Agent);
        let mut all = vec![
            (header::AUTHORIZATION.as_str(), authorization.as_str()),
            (header::CONTENT_TYPE.as_str(), "application/json"),
            (header::ACCEPT.as_str(), "application/json, text/event-stream"),
        ];
        all.extend(headers);
        self.send(Method::POST, "/mcp", &all, body).await
    }

    /// Calls a verb as this user's agent, and hears how it goes.
    pub(crate) async fn call_with_progress(
        &self,
        verb: &str,
        arguments: &Value,
        mut hear: impl FnMut(&str),
    ) -> Result<Value> {
        let message = serde_json::json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": verb, "arguments": arguments, "_meta": { "progressToken": 1 } } });
        let version = [("mcp-protocol-version", "2025-06-18")];
        let mut messages = Messages::new(self.mcp(&version, message.to_string().into()).await?).await?;
        while let Some(message) = messages.next().await? {
            let message: Value = serde_json::from_slice(&message).context("the host's answer is no JSON")?;
            if let Some(text) = message.pointer("/params/message").and_then(Value::as_str) {
                hear(text);
            } else if let Some(envelope) = message.pointer("/result/structuredContent") {
                return evidence(envelope.clone());
            } else if let Some(error) = message.pointer("/error/message").and_then(Value::as_str) {
                bail!("{error}");
            }
        }
        bail!("the host ended the call without an answer")
    }

    fn authorization(&self, who: As) -> String {
        format!("Bearer {}", self.tokens[who as usize])
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Response<Incoming>> {
        let stream = UnixStream::connect(&self.socket).await.context("the host is not there any more")?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the body of the answer.
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }
}

async fn read(response: Response<Incoming>) -> Result<Value> {
    let body = response.into_body().collect().await?.to_bytes();
    serde_json::from_slice(&body).map_err(|_| anyhow!("the host answers `{}`", String::from_utf8_lossy(&body).trim()))
}

/// The evidence of a good answer.
fn evidence(mut envelope: Value) -> Result<Value> {
    if envelope["ok"] == Value::Bool(true) {
        return Ok(envelope["evidence"].take());
    }
    let text = |key: &str| envelope["error"][key].as_str().unwrap_or_default().to_owned();
    bail!("{}\n{}", text("message"), text("remediate"))
}

/// The messages that answer one message of MCP.
pub(crate) struct Messages {
    body: Pin<Box<BoxBody<Bytes, hyper::Error>>>,
    events: bool,
    read: Vec<u8>,
    ended: bool,
}

impl Messages {
    /// Begins to read an answer.
    ///
    /// # Errors
    /// Where the host refuses the message in other words than those of MCP.
    pub(crate) async fn new(response: Response<Incoming>) -> Result<Self> {
        let is = |kind: &str| {
            let header = response.headers().get(header::CONTENT_TYPE).and_then(|h| h.to_str().ok()).unwrap_or_default();
            header.starts_with(kind)
        };
        let (events, nothing) = (is("text/event-stream"), response.status() == StatusCode::ACCEPTED);
        if !events && !nothing && !response.status().is_success() {
            let body = response.into_body().collect().await?.to_bytes();
            // In MCP's own words it is an answer as any other.
            if serde_json::from_slice::<Value>(&body).is_ok_and(|answer| answer["jsonrpc"] == "2.0") {
                let empty = Box::pin(Full::new(Bytes::new()).map_err(|never| match never {}).boxed());
                return Ok(Self { body: empty, events, read: body.to_vec(), ended: true });
            }
            let answer = serde_json::from_slice(&body).unwrap_or_default();
            return Err(evidence(answer).err().unwrap_or_else(|| anyhow!("the host answers nothing")));
        }
        let body = Box::pin(response.into_body().boxed());
        Ok(Self { body, events, read: Vec::new(), ended: nothing })
    }

    /// The next message, as one line of JSON.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if self.events
                && let Some(end) = self.read.iter().position(|byte| *byte == b'\n')
            {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                match line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) {
                    Some(data) if !data.is_empty() => return Ok(Some(data.to_vec())),
                    // What keeps the connection alive, and names of events.
                    _ => continue,
                }
            }
            if self.ended {
                let rest = std::mem::take(&mut self.read);
                return Ok((!self.events && !rest.trim_ascii().is_empty()).then(|| rest.trim_ascii().to_vec()));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.context("the host's answer broke off")?.into_data() {
                        self.read.extend_from_slice(&data);
                    }
                }
                None => self.ended = true,
            }
        }
    }
}
