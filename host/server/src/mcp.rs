//! The verbs as tools of MCP at `/mcp`, over streamable HTTP, in the current protocol and those before it.
//!
//! Every request stands for itself in all of them: closing its stream cancels it, and a host that was started again has lost
//! nothing. Older clients also cancel by a message of its own, which must find its request and no other client's; so each
//! gets a session, which is a name that says whose it is and nothing more.

use std::collections::HashMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::ready;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorCode, ErrorData, Implementation, JsonRpcError,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken, RequestId, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{Peer, RoleServer, ServerHandler};
use sandbar_core::error::{Code, Error, shown};
use sandbar_core::host::Host;
use sandbar_core::people::Caller;
use sandbar_core::progress::Progress;
use sandbar_core::registry::Listener;
use sandbar_core::secret::{random_hex, sha256_hex};
use sandbar_core::verb::{self, Envelope, Reply, VERBS, Verb};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::envelope::envelope;
use crate::routes::{MAX_BODY, MAX_FILE_BODY, authenticate, discard, read, too_large};

/// A client hears something at least this often. Many give up after a minute of silence.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// A client that asked for progress is told that its call has begun, unless it has ended by then.
const BEGUN_AFTER: Duration = Duration::from_secs(1);
/// How often a client is told how many bytes are done.
const BYTES_EVERY: Duration = Duration::from_millis(500);
/// Reports that a slow client may fall behind by; it misses the newest then.
const REPORTS: usize = 64;

const SESSION: &str = "mcp-session-id";

const INSTRUCTIONS: &str = "Sandbar gives you throwaway databases and work boxes. Call `request_sandbox` for the services of \
    your project with their connection variables; `run_command` and the file tools work in your box. An error says in \
    `remediate` what to do, and in `retryable` whether the same call may succeed later. A call that you gave up waiting for \
    goes on: repeat it.";

/// What answers at `/mcp`.
pub(crate) struct Mcp {
    host: Arc<Host>,
    service: StreamableHttpService<Tools, NeverSessionManager>,
    calls: Arc<Calls>,
}

impl Mcp {
    pub(crate) fn new(host: Arc<Host>, down: CancellationToken) -> Self {
        let tools = Tools { host: host.clone(), tools: VERBS.iter().map(|verb| (verb, tool(verb))).collect() };
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            // Where nothing comes before it: clients bound the length of an event.
            .with_json_response(true)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_sse_retry(None)
            .with_max_request_body_bytes(MAX_FILE_BODY)
            .with_cancellation_token(down)
            // Both headers have been compared before, as on every route.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let service = StreamableHttpService::new(move || Ok(tools.clone()), Arc::default(), config);
        Self { host, service, calls: Arc::default() }
    }

    /// Answers one request.
    pub(crate) async fn answer(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        let (caller, body) = match self.read(&parts, body).await {
            Ok(read) => read,
            Err(e) => return envelope(Err(e), random_hex(8)),
        };
        if parts.method != Method::POST {
            return not_post();
        }
        let session = parts.headers.get(SESSION).map(|session| session.to_str().unwrap_or_default().to_owned());
        if session.as_ref().is_some_and(|session| !is_session_of(session, &caller)) {
            let message = "this is no session of yours: initialize a new one";
            return refused(StatusCode::NOT_FOUND, ErrorCode::INVALID_REQUEST, message, None);
        }
        let Message { id, what } = match Message::read(&body) {
            Ok(message) => message,
            Err((code, message, id)) => return refused(StatusCode::BAD_REQUEST, code, message, id),
        };
        let carries_file =
            matches!(&what, What::Tool(call) if VERBS.iter().any(|v| v.carries_file && v.name == call.name));
        if body.len() > MAX_BODY && !carries_file {
            return envelope(Err(too_large(MAX_BODY)), random_hex(8));
        }
        let new_session = matches!(what, What::Initialize).then(|| new_session(&caller));
        match (what, session, id) {
            (What::Tool(call), session, id) => {
                let arguments = call.arguments.map(|arguments| body.slice_ref(arguments.get().as_bytes()));
                parts.extensions.insert(Arguments(arguments.unwrap_or_default()));
                if let (Some(session), Some(id)) = (session, id) {
                    parts.extensions.insert(self.calls.begin(session, id));
                }
            }
            (What::Cancelled(id), Some(session), _) => self.calls.cancel(session, id),
            _ => {}
        }
        parts.extensions.insert(caller);
        let service = self.service.clone();
        let request = Request::from_parts(parts, Body::from(body));
        let mut response = kept_alive(async move { service.handle(request).await.map(Body::new) }).await;
        if let Some(session) = new_session.and_then(|session| HeaderValue::from_str(&session).ok())
            && response.status() == StatusCode::OK
        {
            response.headers_mut().insert(SESSION, session);
        }
        response
    }

    /// Who calls, and with what.
    async fn read(&self, parts: &Parts, body: Body) -> Result<(Caller, Bytes), Error> {
        let caller = match authenticate(&self.host, &parts.headers) {
            Ok(caller) => caller,
            Err(e) => {
                discard(body).await;
                return Err(e);
            }
        };
        let may_carry = VERBS.iter().any(|verb| verb.carries_file && verb.is_for(&self.host, &caller).is_ok());
        let body = read(&parts.headers, body, if may_carry { MAX_FILE_BODY } else { MAX_BODY }).await?;
        // Once more: a token may have been revoked while the body was on its way.
        Ok((authenticate(&self.host, &parts.headers)?, body))
    }
}

/// As much of a message as has to be known before it is handled.
struct Message<'a> {
    id: Option<RequestId>,
    what: What<'a>,
}

enum What<'a> {
    Initialize,
    Tool(ToolCall<'a>),
    Cancelled(RequestId),
    Other,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl<'a> Message<'a> {
    /// Reads it, or says what is wrong with it, and with the request of which id.
    fn read(body: &'a [u8]) -> Result<Self, (ErrorCode, &'static str, Option<RequestId>)> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            id: Option<RequestId>,
            method: Option<String>,
            #[serde(borrow)]
            params: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Cancelled {
            request_id: RequestId,
        }
        let raw: Raw<'_> = serde_json::from_slice(body).map_err(|e| match e.classify() {
            serde_json::error::Category::Data => (ErrorCode::INVALID_REQUEST, "this is no JSON-RPC message", None),
            _ => (ErrorCode::PARSE_ERROR, "this is no JSON", None),
        })?;
        let params = raw.params.map_or("{}", RawValue::get);
        let what = match raw.method.as_deref() {
            Some("initialize") => What::Initialize,
            Some("tools/call") => match serde_json::from_str::<ToolCall<'_>>(params) {
                Ok(call) if call.arguments.is_none_or(|arguments| arguments.get().starts_with('{')) => What::Tool(call),
                Ok(_) => return Err((ErrorCode::INVALID_PARAMS, "`arguments` is not an object", raw.id)),
                Err(_) => return Err((ErrorCode::INVALID_PARAMS, "`params` are no call of a tool", raw.id)),
            },
            Some("notifications/cancelled") => {
                serde_json::from_str(params).map_or(What::Other, |Cancelled { request_id }| What::Cancelled(request_id))
            }
            _ => What::Other,
        };
        Ok(Self { id: raw.id, what })
    }
}

/// An error of the protocol.
fn refused(status: StatusCode, code: ErrorCode, message: &str, id: Option<RequestId>) -> Response {
    let error = JsonRpcError::new(id, ErrorData::new(code, message.to_owned(), None));
    (status, axum::Json(error)).into_response()
}

/// Nothing is said but in answer to a request, so there is nothing to GET.
fn not_post() -> Response {
    let mut response = envelope(Err(Error::bad_request("MCP messages are sent with POST")), random_hex(8));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
    response
}

/// Where an answer takes long to begin, begins it with comments, which clients read over. Only a call that is under way
/// takes long, and the status of its answer is known.
async fn kept_alive(answer: impl Future<Output = Response> + Send + 'static) -> Response {
    let mut answer = Box::pin(answer);
    if let Ok(answer) = timeout(KEEP_ALIVE, &mut answer).await {
        return answer;
    }
    let text = |text: &'static str| stream::once(ready(Ok(Bytes::from_static(text.as_bytes()))));
    let events = stream::unfold(Some(answer), move |waiting| async move {
        let mut answer = waiting?;
        let Ok(answer) = timeout(KEEP_ALIVE, &mut answer).await else {
            return Some((text(":\n\n").boxed(), Some(answer)));
        };
        let is_json = answer.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
        let body = answer.into_body().into_data_stream();
        let body = if is_json { text("data: ").chain(body).chain(text("\n\n")).boxed() } else { body.boxed() };
        Some((body, None))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(events.flatten())).into_response()
}

fn new_session(caller: &Caller) -> String {
    let random = random_hex(16);
    let whose = whose(&random, caller);
    format!("{random}-{whose}")
}

/// Whoever makes one up has one of its own, and gains nothing: what it may do is decided by its token.
fn is_session_of(session: &str, caller: &Caller) -> bool {
    session.split_once('-').is_some_and(|(random, given)| given == whose(random, caller))
}

fn whose(random: &str, caller: &Caller) -> String {
    let who = match caller {
        Caller::Agent { name, .. } => format!("agent {name}"),
        Caller::Orchestrator { name, .. } => format!("orchestrator {name}"),
        Caller::Operator => "operator".to_owned(),
    };
    sha256_hex(format!("{random} {who}"))
}

/// The calls under way that can be cancelled by a message.
#[derive(Default)]
struct Calls(Mutex<HashMap<(String, RequestId), CancellationToken>>);

impl Calls {
    fn begin(self: &Arc<Self>, session: String, id: RequestId) -> Arc<Running> {
        let (key, cancelled) = ((session, id), CancellationToken::new());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), cancelled.clone());
        Arc::new(Running { calls: self.clone(), key, cancelled })
    }

    fn cancel(&self, session: String, id: RequestId) {
        if let Some(cancelled) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(session, id)) {
            cancelled.cancel();
        }
    }
}

/// A call that is under way until this is dropped.
struct Running {
    calls: Arc<Calls>,
    key: (String, RequestId),
    cancelled: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.calls.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// The arguments of a call as they were sent: they are the body of its verb.
#[derive(Clone)]
struct Arguments(Bytes);

fn tool(verb: &Verb) -> Tool {
    Tool::new(verb.name, verb.summary, Arc::new(verb.takes())).with_raw_output_schema(Arc::new(verb.answers()))
}

/// The tools, for one request.
#[derive(Clone)]
struct Tools {
    host: Arc<Host>,
    tools: Arc<[(&'static Verb, Tool)]>,
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("sandbar", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let caller: Caller = sent(&context)?;
        let tools = self.tools.iter().filter(|(verb, _)| verb.is_for(&self.host, &caller).is_ok());
        Ok(ListToolsResult::with_all_items(tools.map(|(_, tool)| tool.clone()).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let request_id = random_hex(8);
        let span = tracing::info_span!("verb", request_id, verb = tracing::field::Empty);
        let result = self.run(&request.name, &context).instrument(span).await?;
        let failed = result.is_err();
        let envelope = json!(Envelope::new(result, request_id));
        Ok(if failed { CallToolResult::structured_error(envelope) } else { CallToolResult::structured(envelope) }
            .into())
    }
}

impl Tools {
    /// Calls a verb. What the verb answers, good or bad, is the inner result.
    async fn run(&self, name: &str, context: &RequestContext<RoleServer>) -> Result<Result<Reply, Error>, ErrorData> {
        let (caller, Arguments(body)): (Caller, _) = (sent(context)?, sent(context)?);
        let verb = match verb::find(&self.host, name, &caller) {
            Ok(verb) => verb,
            Err(e) if e.code == Code::NotFound => {
                return Err(ErrorData::invalid_params(format!("there is no tool `{}`", shown(name)), None));
            }
            Err(e) => return Ok(Err(e)),
        };
        tracing::Span::current().record("verb", verb.name);
        let (reports, reported) = mpsc::channel(REPORTS);
        let listener: Listener = Arc::new(move |report| drop(reports.try_send(report)));
        let token = context.meta.get_progress_token();
        let call = verb::call(&self.host, verb, &caller, &body, token.is_some().then_some(&listener));
        let cancelled = async {
            match sent::<Arc<Running>>(context) {
                Ok(running) => running.cancelled.cancelled().await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = AssertUnwindSafe(call).catch_unwind() => Ok(result.unwrap_or_else(|_| {
                tracing::error!("a verb panicked");
                Err(Error::internal())
            })),
            // Nobody waits for the answer. Whatever ends with its caller ends by being dropped here.
            () = context.ct.cancelled() => Err(ErrorData::internal_error("the client went away", None)),
            () = cancelled => Err(ErrorData::internal_error("the client cancelled this call", None)),
            never = tell(&context.peer, token, verb.name, reported) => match never {},
        }
    }
}

/// What the request brought along.
fn sent<T: Clone + Send + Sync + 'static>(context: &RequestContext<RoleServer>) -> Result<T, ErrorData> {
    let parts = context.extensions.get::<Parts>();
    let found = parts.and_then(|parts| parts.extensions.get::<T>()).cloned();
    found.ok_or_else(|| ErrorData::internal_error("the request came by no way that this server knows", None))
}

/// Tells a client that asks for it how its call goes, and that it goes on.
async fn tell(
    peer: &Peer<RoleServer>,
    token: Option<ProgressToken>,
    verb: &str,
    mut reported: mpsc::Receiver<Progress>,
) -> Infallible {
    let Some(token) = token else { return std::future::pending().await };
    let mut told = 0.0;
    let mut bytes_told: Option<Instant> = None;
    loop {
        let (patience, otherwise) = if told == 0.0 { (BEGUN_AFTER, "has begun") } else { (KEEP_ALIVE, "goes on") };
        let message = loop {
            match timeout(patience, reported.recv()).await {
                Ok(Some(report)) if report.bytes.is_some() => {
                    if bytes_told.is_none_or(|at| at.elapsed() >= BYTES_EVERY) {
                        bytes_told = Some(Instant::now());
                        break in_words(&report);
                    }
                }
                Ok(Some(report)) => break in_words(&report),
                // Nobody reports any more, and the call is about to end.
                Ok(None) => return std::future::pending().await,
                Err(_) => break format!("{verb} {otherwise}"),
            }
        };
        told += 1.0;
        let notification = ProgressNotificationParam::new(token.clone(), told).with_message(message);
        // A client that cannot be told is gone, and its call ends with it.
        let _ = peer.notify_progress(notification).await;
    }
}

fn in_words(Progress { service, step, detail, bytes }: &Progress) -> String {
    let mut words = format!("{service}: {step}");
    if !detail.is_empty() {
        words.extend([" ", detail]);
    }
    if let Some((done, total)) = bytes {
        words.push_str(&format!(", {done} of {total} bytes"));
    }
    words
}
