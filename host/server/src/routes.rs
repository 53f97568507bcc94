//! Routes: verbs at `/v1/do/<verb>` and as tools at `/mcp`, and health.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sandbar_core::error::{Code, Error};
use sandbar_core::folders::{FolderError, Pieces};
use sandbar_core::health;
use sandbar_core::host::Host;
use sandbar_core::people::Caller;
use sandbar_core::secret::random_hex;
use sandbar_core::verb::{self, Reply};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::envelope::envelope;
use crate::hosts::AllowedHosts;
use crate::mcp::Mcp;

/// Largest body of a verb, in bytes.
pub(crate) const MAX_BODY: usize = 64 << 10;

/// Largest body of a verb that carries a file, in bytes.
pub(crate) const MAX_FILE_BODY: usize = 16 << 20;

/// The type of content that is sent as it is, in either direction.
const OCTETS: &str = "application/octet-stream";

/// How long the body of a refused caller may take. It is on its way already.
const DISCARD_DEADLINE: Duration = Duration::from_secs(1);

/// How slowly content may come, in bytes a second.
const SLOWEST: u64 = 16 << 10;

/// How long a body may take to arrive. It is small, so this is patience with the network, not with the caller.
const BODY_DEADLINE: Duration = Duration::from_secs(10);

/// Every route.
pub(crate) fn router(host: Arc<Host>, allowed: AllowedHosts, down: CancellationToken) -> Router {
    let tools = Arc::new(Mcp::new(host.clone(), down));
    Router::new()
        .route("/mcp", any(move |request| async move { tools.answer(request).await }))
        .route("/v1/do/{verb}", post(do_verb).fallback(not_post))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(async |State(host): State<Arc<Host>>| crate::metrics::page(&host)))
        .method_not_allowed_fallback(not_get)
        .fallback(nowhere)
        .layer(middleware::from_fn_with_state(Arc::new(allowed), check_host))
        .with_state(host)
}

async fn check_host(State(allowed): State<Arc<AllowedHosts>>, request: Request, next: Next) -> Response {
    let headers = request.headers().get_all(header::HOST);
    if headers.iter().nth(1).is_some() {
        return envelope(Err(Error::bad_request("there is more than one `Host` header")), random_hex(8));
    }
    // A request can also name the host in its first line; then both must be allowed.
    let authority = request.uri().authority().map(|a| a.as_str());
    let names: Vec<_> = headers.iter().map(|h| h.to_str().unwrap_or_default()).chain(authority).collect();
    if !names.is_empty() && names.iter().all(|name| allowed.allows(name)) {
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        if origins.all(|origin| origin.to_str().is_ok_and(|origin| allowed.allows_origin(origin))) {
            return next.run(request).await;
        }
        let message = "a page of another site may not call this server: the `Origin` header is not allowed";
        let remediate = "call it from a program, or have the operator add the page's host to `[host] allowed_hosts`";
        return envelope(Err(Error::new(Code::Forbidden, message, remediate)), random_hex(8));
    }
    let message = "this server is not called by that name: the `Host` header is not allowed";
    let remediate = "use a loopback address, or have the operator add the name to `[host] allowed_hosts`";
    envelope(Err(Error::new(Code::Forbidden, message, remediate)), random_hex(8))
}

async fn nowhere() -> Response {
    let remediate = "verbs are at POST /v1/do/<verb>, and tools at /mcp";
    envelope(Err(Error::new(Code::NotFound, "there is nothing here", remediate)), random_hex(8))
}

async fn not_post() -> Response {
    let error = Error::bad_request("verbs are called with POST");
    envelope(Err(error), random_hex(8))
}

async fn not_get() -> Response {
    let error = Error::bad_request("this page is read with GET");
    envelope(Err(error), random_hex(8))
}

async fn do_verb(
    State(host): State<Arc<Host>>,
    name: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let request_id = random_hex(8);
    // A name that is no text is no verb.
    let name = name.map_or_else(|_| String::from("?"), |Path(name)| name);
    let query = query.unwrap_or_default();
    let span = tracing::info_span!("verb", request_id, verb = tracing::field::Empty);
    match run_verb(&host, &name, &query, &headers, body).instrument(span).await {
        Ok(Answer::Reply(reply)) => envelope(Ok(reply), request_id),
        Ok(Answer::Content(content)) => raw(content, &request_id),
        Err(e) => envelope(Err(e), request_id),
    }
}

/// What a verb answers.
enum Answer {
    Reply(Reply),
    /// The bytes of a file.
    Content(Pieces),
}

async fn run_verb(host: &Arc<Host>, name: &str, query: &str, headers: &HeaderMap, body: Body) -> Result<Answer, Error> {
    let (verb, caller) = match authenticate(host, headers).and_then(|c| Ok((verb::find(host, name, &c)?, c))) {
        Ok(found) => found,
        Err(e) => {
            discard(body).await;
            return Err(e);
        }
    };
    tracing::Span::current().record("verb", verb.name);
    let is_raw = |of| {
        let header = headers.get(of).and_then(|h| h.to_str().ok()).unwrap_or_default();
        let kinds = header.split(',').map(|kind| kind.split(';').next().unwrap_or_default().trim());
        kinds.into_iter().any(|kind| kind.eq_ignore_ascii_case(OCTETS))
    };
    if verb.carries_file && is_raw(header::CONTENT_TYPE) {
        let body = Arc::new(Mutex::new(body));
        let written = match incoming(host.clone(), headers.clone(), body.clone()) {
            Ok(content) => verb::write_content(host, &caller, query, content).await,
            Err(e) => Err(e),
        };
        if written.is_err() {
            discard_rest(&body).await;
        }
        return written.map(Answer::Reply);
    }
    let max = if verb.carries_file { MAX_FILE_BODY } else { MAX_BODY };
    let body = read(headers, body, max).await?;
    // Once more: a token may have been revoked while the body was on its way.
    let caller = authenticate(host, headers)?;
    verb::find(host, name, &caller)?;
    if verb.answers_file && is_raw(header::ACCEPT) {
        let Pieces { size, stream } = verb::read_content(host, &caller, query).await?;
        let stream = as_long_as_known(host.clone(), headers.clone(), stream);
        return Ok(Answer::Content(Pieces { size, stream }));
    }
    verb::call(host, verb, &caller, &body, None).await.map(Answer::Reply)
}

/// A body that is the content of a file.
fn incoming(host: Arc<Host>, headers: HeaderMap, body: Arc<Mutex<Body>>) -> Result<Pieces, Error> {
    let size = headers.get(header::CONTENT_LENGTH).and_then(|h| h.to_str().ok()?.parse().ok());
    let size = size.ok_or_else(|| Error::bad_request("content that is sent as it is needs a `Content-Length`"))?;
    let until = Instant::now() + BODY_DEADLINE + Duration::from_secs(size / SLOWEST);
    let stream = stream::unfold(Some((body, until)), async |state| {
        let (body, until) = state?;
        let broken = |why: String| Some((Err(FolderError::Incomplete(why)), None));
        if Instant::now() > until {
            return broken(format!("it comes slower than {SLOWEST} bytes a second"));
        }
        let piece = tokio::time::timeout(BODY_DEADLINE, async { body.lock().await.frame().await }).await;
        match piece {
            // What is no data is a trailer, and says nothing here.
            Ok(Some(Ok(frame))) => Some((Ok(frame.into_data().unwrap_or_default()), Some((body, until)))),
            Ok(None) => None,
            Ok(Some(Err(_))) => broken("the body ended before it was complete".to_owned()),
            Err(_) => broken(format!("nothing came for {} s", BODY_DEADLINE.as_secs())),
        }
    });
    Ok(Pieces { size, stream: as_long_as_known(host, headers, stream.boxed()) })
}

/// The same content, which breaks off when the caller's token is revoked.
fn as_long_as_known(
    host: Arc<Host>,
    headers: HeaderMap,
    content: BoxStream<'static, Result<Bytes, FolderError>>,
) -> BoxStream<'static, Result<Bytes, FolderError>> {
    let looked_at = content.map(move |piece| match authenticate(&host, &headers) {
        Ok(_) => piece,
        Err(_) => Err(FolderError::Incomplete("the token was revoked".to_owned())),
    });
    looked_at.boxed()
}

/// As [`discard`], however much it is: a sender that is cut off while it sends does not read the answer.
async fn discard_rest(body: &Mutex<Body>) {
    let rest = async { while let Some(Ok(_)) = body.lock().await.frame().await {} };
    let _ = tokio::time::timeout(DISCARD_DEADLINE, rest).await;
}

/// The content of a file as it is. Where it breaks off, so does the answer.
fn raw(Pieces { size, stream }: Pieces, request_id: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, OCTETS.to_owned()),
        (header::CONTENT_LENGTH, size.to_string()),
        (HeaderName::from_static("x-request-id"), request_id.to_owned()),
    ];
    (headers, Body::from_stream(stream)).into_response()
}

pub(crate) fn authenticate(host: &Host, headers: &HeaderMap) -> Result<Caller, Error> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|h| h.to_str().ok())
        .and_then(|h| h.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let refuse =
        |message| Error::new(Code::Unauthorized, message, "send `Authorization: Bearer <token>` with your own token");
    let token = token.ok_or_else(|| refuse("there is no bearer token"))?;
    host.people().authenticate(token).ok_or_else(|| refuse("nobody has this token"))
}

pub(crate) async fn read(headers: &HeaderMap, body: Body, max: usize) -> Result<Bytes, Error> {
    if headers.get(header::CONTENT_LENGTH).and_then(|h| h.to_str().ok()?.parse::<u64>().ok()) > Some(max as u64) {
        discard_rest(&Mutex::new(body)).await;
        return Err(too_large(max));
    }
    let body = tokio::time::timeout(BODY_DEADLINE, Limited::new(body, max).collect()).await;
    let body =
        body.map_err(|_| Error::bad_request(format!("the body did not arrive within {} s", BODY_DEADLINE.as_secs())))?;
    match body {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(too_large(max)),
        Err(_) => Err(Error::bad_request("the body ended before it was complete")),
    }
}

/// Reads what a refused caller sent: where a body is left unread the connection ends with the answer, and the caller's next
/// request on it would be lost.
pub(crate) async fn discard(body: Body) {
    // Whatever comes of it, the caller is refused.
    let _ = tokio::time::timeout(DISCARD_DEADLINE, Limited::new(body, MAX_BODY).collect()).await;
}

pub(crate) fn too_large(max: usize) -> Error {
    Error::new(Code::TooLarge, format!("the body is larger than {max} bytes"), "send a smaller request")
}

/// What serves and what does not. The status says whether requests are taken, which needs Docker and the state file; one bad
/// engine does not change that, since the others serve, but it is listed with its reason.
async fn readyz(State(host): State<Arc<Host>>) -> Response {
    let state = match host.health().state() {
        health::State::Starting => match host.health().unreachable().await {
            Some(why) => format!("starting: the container runtime is not reachable: {why}"),
            None => "starting".to_owned(),
        },
        health::State::Up => "up".to_owned(),
        health::State::Away(why) => format!("the container runtime is not reachable: {why}"),
        health::State::Draining => "shutting down".to_owned(),
    };
    let catalog = host.catalog().current();
    let mut engines = serde_json::Map::new();
    for service in catalog.services.values() {
        engines.insert(service.name.to_string(), json!({ "state": "serving", "sha256": service.engine.hash() }));
    }
    for broken in &catalog.broken {
        if let Some(serving) = engines.get_mut(&broken.name) {
            // The earlier one goes on.
            serving["why"] = json!(broken.why);
            continue;
        }
        let state = if broken.pending { "pending" } else { "failed" };
        engines.insert(broken.name.clone(), json!({ "state": state, "why": broken.why }));
    }
    let state_file = host.check_state_file().err();
    if let Some(error) = &state_file {
        tracing::error!(%error, "the state file cannot be used");
    }
    let ready = state == "up" && state_file.is_none();
    let state_file = state_file.map_or_else(|| "ok".to_owned(), |error| error.to_string());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(json!({ "ready": ready, "state": state, "state_file": state_file, "engines": engines })))
        .into_response()
}
