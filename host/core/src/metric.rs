//! What is counted and measured of a host, for whoever watches it. Names and labels are a contract with dashboards. No label
//! names an agent or anything else that grows with use: the values of each are few and known.

use std::time::Duration;

use metrics::{counter, histogram};

use crate::error::{Code, Error};
use crate::name::ServiceName;

/// Requests, by verb and code; `ok` for what was done.
pub const REQUESTS: &str = "sandbar_requests_total";
/// How long the steps of making a service take, in seconds, by service and step.
pub const STEP_SECONDS: &str = "sandbar_step_seconds";
/// Pulls of images, by result.
pub const PULLS: &str = "sandbar_pulls_total";
/// What there is now, by state: `sandboxes` that are live or being made, `retained_awake`, `leaving`, and of what
/// is kept ready `ready` and `ready_making`.
pub const HELD: &str = "sandbar_held";
/// Services that calls got, by service and where they came from: `pool` or `made`.
pub const HANDED_OUT: &str = "sandbar_handed_out_total";
/// What was let go, by reason.
pub const RELEASED: &str = "sandbar_released_total";
/// How long the janitor's sweeps take, in seconds.
pub const SWEEP_SECONDS: &str = "sandbar_sweep_seconds";
/// Recipes that engines were asked for, by service and result.
pub const ENGINE_CALLS: &str = "sandbar_engine_calls_total";

/// A verb was done, or not.
pub(crate) fn request<T>(verb: &'static str, result: &Result<T, Error>) {
    let code = result.as_ref().map_or_else(|error| name(error.code), |_| "ok");
    counter!(REQUESTS, "verb" => verb, "code" => code).increment(1);
}

/// A step of making a service is over.
pub(crate) fn step(service: &str, step: &'static str, took: Duration) {
    histogram!(STEP_SECONDS, "service" => service.to_owned(), "step" => step).record(took.as_secs_f64());
}

/// A call got services, or begins to make them.
pub(crate) fn handed_out<'a>(services: impl Iterator<Item = &'a ServiceName>, from: &'static str) {
    for service in services {
        counter!(HANDED_OUT, "service" => service.to_string(), "from" => from).increment(1);
    }
}

/// Something was let go.
pub(crate) fn released(reason: &str) {
    counter!(RELEASED, "reason" => reason.to_owned()).increment(1);
}

/// A sweep is over.
pub(crate) fn sweep(took: Duration) {
    histogram!(SWEEP_SECONDS).record(took.as_secs_f64());
}

/// An engine was asked for a recipe.
pub(crate) fn engine_call<T, E>(service: &str, result: &Result<T, E>) {
    let result = if result.is_ok() { "ok" } else { "failed" };
    counter!(ENGINE_CALLS, "service" => service.to_owned(), "result" => result).increment(1);
}

fn name(code: Code) -> &'static str {
    match code {
        Code::Unauthorized => "unauthorized",
        Code::Forbidden => "forbidden",
        Code::NotFound => "not_found",
        Code::BadRequest => "bad_request",
        Code::TooLarge => "too_large",
        Code::InvalidState => "invalid_state",
        Code::Capacity => "capacity",
        Code::Deadline => "deadline",
        Code::Internal => "internal",
    }
}
