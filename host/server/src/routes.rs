//! Routes: verbs at `/v1/do/<verb>` and as tools at `/mcp`, and health.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sandbar_core::error::{Code, Error};
use sandbar_core::health;
use sandbar_core::host::Host;
use sandbar_core::people::Caller;
use sandbar_core::secret::random_hex;
use sandbar_core::verb::{self, Reply};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::envelope::envelope;
use crate::hosts::AllowedHosts;
use crate::mcp::Mcp;

/// Largest body of a verb, in bytes.
pub(crate) const MAX_BODY: usize = 64 << 10;

/// Largest body of a verb that carries a file, in bytes.
pub(crate) const MAX_FILE_BODY: usize = 16 << 20;

/// How long the body of a refused caller may take. It is on its way already.
const DISCARD_DEADLINE: Duration = Duration::from_secs(1);

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
    headers: HeaderMap,
    body: Body,
) -> Response {
    let request_id = random_hex(8);
    // A name that is no text is no verb.
    let name = name.map_or_else(|_| String::from("?"), |Path(name)| name);
    let span = tracing::info_span!("verb", request_id, verb = tracing::field::Empty);
    let result = run_verb(&host, &name, &headers, body).instrument(span).await;
    envelope(result, request_id)
}

async fn run_verb(host: &Arc<Host>, name: &str, headers: &HeaderMap, body: Body) -> Result<Reply, Error> {
    let verb = match authenticate(host, headers).and_then(|caller| verb::find(host, name, &caller)) {
        Ok(verb) => verb,
        Err(e) => {
            discard(body).await;
            return Err(e);
        }
    };
    tracing::Span::current().record("verb", verb.name);
    let max = if verb.carries_file { MAX_FILE_BODY } else { MAX_BODY };
    let body = read(headers, body, max).await?;
    // Once more: a token may have been revoked while the body was on its way.
    let caller = authenticate(host, headers)?;
    verb::find(host, name, &caller)?;
    verb::call(host, verb, &caller, &body, None).await
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

/// What serves and what does not. The status says whether requests are taken; one bad engine does not change that, since
/// the others serve, but it is listed with its reason.
async fn readyz(State(host): State<Arc<Host>>) -> Response {
    let state = match host.health().state() {
        health::State::Starting => "starting".to_owned(),
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
    let ready = state == "up";
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, axum::Json(json!({ "ready": ready, "state": state, "engines": engines }))).into_response()
}
