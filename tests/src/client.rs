//! A caller of the verb endpoint.

use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;

/// The type of content that is sent as it is.
const OCTETS: &str = "application/octet-stream";
/// Longer than any call may take.
const TIMEOUT: Duration = Duration::from_secs(480);

/// A caller with a token, or without one.
#[derive(Clone)]
pub struct Client {
    base: String,
    token: Option<String>,
    agent: ureq::Agent,
}

/// What the endpoint answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The `Retry-After` header.
    pub retry_after: Option<u32>,
    /// The envelope.
    pub body: Value,
}

impl Answer {
    /// The evidence of a good answer.
    ///
    /// # Panics
    /// When the answer is an error, with the whole envelope.
    pub fn evidence(&self) -> &Value {
        assert!(self.status == 200 && self.body["ok"] == true, "{}: {:#}", self.status, self.body);
        &self.body["evidence"]
    }

    /// The code of an error.
    ///
    /// # Panics
    /// When the answer is good.
    pub fn code(&self) -> &str {
        assert_eq!(self.body["ok"], false, "{:#}", self.body);
        self.body["error"]["code"].as_str().unwrap_or("none")
    }

    /// One text of an error, such as `message` or `remediate`.
    pub fn error(&self, key: &str) -> &str {
        self.body["error"][key].as_str().unwrap_or("")
    }
}

impl Client {
    /// A caller of the host at `base`.
    pub fn new(base: impl Into<String>, token: Option<&str>) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        Self { base: base.into(), token: token.map(str::to_owned), agent: config.build().into() }
    }

    /// The same host, with another token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Its token.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The host it calls.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn agent(&self) -> &ureq::Agent {
        &self.agent
    }

    /// Calls a verb with a JSON body.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn call(&self, verb: &str, body: &Value) -> Answer {
        self.send(verb, &body.to_string())
    }

    /// Calls a verb with any text as its body.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn send(&self, verb: &str, body: &str) -> Answer {
        self.try_send(verb, body).unwrap_or_else(|e| panic!("{verb}: {e}"))
    }

    /// Calls a verb; nobody may be there.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn try_send(&self, verb: &str, body: &str) -> anyhow::Result<Answer> {
        let mut request = self.agent.post(format!("{}/v1/do/{verb}", self.base)).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        read(request.send(body)?)
    }

    /// Writes a file with its content as it is.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn write_content(&self, query: &str, content: &[u8]) -> Answer {
        let url = format!("{}/v1/do/write_file?{query}", self.base);
        let token = self.token.as_deref().unwrap_or_default();
        let request = self.agent.post(url).content_type(OCTETS).header("authorization", format!("Bearer {token}"));
        request.send(content).map_err(anyhow::Error::from).and_then(read).unwrap_or_else(|e| panic!("{query}: {e}"))
    }

    /// Reads a file with its content as it is.
    ///
    /// # Errors
    /// When the answer is not the whole of it.
    pub fn read_content(&self, query: &str) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}/v1/do/read_file?{query}", self.base);
        let token = self.token.as_deref().unwrap_or_default();
        let request = self.agent.post(url).header("accept", OCTETS).header("authorization", format!("Bearer {token}"));
        let mut response = request.send_empty()?;
        let is_raw = response.headers().get("content-type").is_some_and(|h| h == OCTETS);
        anyhow::ensure!(is_raw, "{}", response.body_mut().read_to_string()?);
        Ok(response.body_mut().with_config().limit(u64::MAX).read_to_vec()?)
    }

    /// Calls a verb on a connection of its own and closes that without waiting for the answer, once `until` returns.
    ///
    /// # Panics
    /// When nobody is there.
    pub fn hang_up(&self, verb: &str, body: &Value, until: impl FnOnce()) {
        let (address, body) = (self.base.trim_start_matches("http://"), body.to_string());
        let mut stream = std::net::TcpStream::connect(address).expect("somebody listens");
        let token = self.token.as_deref().unwrap_or_default();
        write!(
            stream,
            "POST /v1/do/{verb} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("the request is taken");
        until();
    }

    /// Reads a page.
    ///
    /// # Panics
    /// When nobody answers.
    pub fn get(&self, path: &str) -> Answer {
        let response = self.agent.get(format!("{}{path}", self.base)).call();
        response.map_err(anyhow::Error::from).and_then(read).unwrap_or_else(|e| panic!("{path}: {e}"))
    }
}

fn read(mut response: ureq::http::Response<ureq::Body>) -> anyhow::Result<Answer> {
    let header = response.headers().get("retry-after").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    let text = response.body_mut().read_to_string()?;
    let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(Answer { status: response.status().as_u16(), retry_after: header, body })
}
