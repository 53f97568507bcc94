//! The one shape of every answer.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandbar_core::error::Error;
use sandbar_core::verb::Reply;
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
struct Good {
    ok: bool,
    evidence: Value,
    lease_expires_at: Option<String>,
    request_id: String,
}

#[derive(Serialize)]
struct Bad {
    ok: bool,
    error: Error,
    request_id: String,
}

/// Puts what a verb answered, or why it did not, in an envelope.
pub(crate) fn envelope(result: Result<Reply, Error>, request_id: String) -> Response {
    match result {
        Ok(Reply { evidence, lease_expires_at }) => {
            Json(Good { ok: true, evidence, lease_expires_at, request_id }).into_response()
        }
        Err(error) => {
            let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let retry_after = error.retry_after;
            let mut response = (status, Json(Bad { ok: false, error, request_id })).into_response();
            if let Some(seconds) = retry_after {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}
