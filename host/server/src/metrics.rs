//! The page at `/metrics`, in Prometheus' text format.

use std::sync::OnceLock;

use metrics::{describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use sandbar_core::host::Host;
use sandbar_core::metric::{ENGINE_CALLS, HANDED_OUT, HELD, PULLS, RELEASED, REQUESTS, STEP_SECONDS, SWEEP_SECONDS};

/// Bounds of the histograms, in seconds: from a Redis that is ready at once to the longest pull.
const BOUNDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// The recorder of this process, which begins to record with the first call.
pub(crate) fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new();
        // It refuses only an empty list of bounds.
        let builder = builder
            .set_buckets_for_metric(Matcher::Full(STEP_SECONDS.to_owned()), &BOUNDS)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full(SWEEP_SECONDS.to_owned()), &BOUNDS))
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        // Somebody else's is left in place; then this page is empty.
        let _ = metrics::set_global_recorder(recorder);
        describe_counter!(REQUESTS, "Requests, by verb and code.");
        describe_histogram!(STEP_SECONDS, "How long the steps of making a service take, by service and step.");
        describe_counter!(PULLS, "Pulls of images, by result.");
        describe_gauge!(HELD, "What there is now, by state.");
        describe_counter!(HANDED_OUT, "Services that calls got, by service and whether they were ready before.");
        describe_counter!(RELEASED, "What was let go, by reason.");
        describe_histogram!(SWEEP_SECONDS, "How long the janitor's sweeps take.");
        describe_counter!(ENGINE_CALLS, "Recipes that engines were asked for, by service and result.");
        handle
    })
}

/// The page.
pub(crate) fn page(host: &Host) -> String {
    let recorder = recorder();
    let (sandboxes, awake) = host.registry().occupied();
    let pool = host.registry().pool();
    for (state, count) in [
        ("sandboxes", sandboxes),
        ("retained_awake", awake),
        ("leaving", host.registry().leaving().len()),
        ("ready", pool.ready),
        ("ready_making", pool.making),
    ] {
        gauge!(HELD, "state" => state).set(count as f64);
    }
    recorder.render()
}
