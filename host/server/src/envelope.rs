//! The one shape of every answer.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandbar_core::error::{Code, Error};
use sandbar_core::verb::{Envelope, Reply};

/// Puts what a verb answered, or why it did not, in an envelope.
pub(crate) fn envelope(result: Result<Reply, Error>, request_id: String) -> Response {
    let (status, retry_after) = match &result {
        Ok(_) => (StatusCode::OK, None),
        Err(error) => (status(error), error.retry_after),
    };
    let mut response = (status, Json(Envelope::new(result, request_id))).into_response();
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Whatever is retryable is 503, unless its code says more.
fn status(error: &Error) -> StatusCode {
    match error.code {
        Code::Capacity => StatusCode::TOO_MANY_REQUESTS,
        Code::Deadline => StatusCode::GATEWAY_TIMEOUT,
        _ if error.retryable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::InvalidState => StatusCode::CONFLICT,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
