//! The page at `/metrics`.

use std::collections::BTreeMap;

use sandbar_tests::host::{fixture, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

/// Every sample, by its name with labels.
fn samples(host: &TestHost) -> BTreeMap<String, f64> {
    let Value::String(page) = host.nobody().get("/metrics").body else { panic!("it is text") };
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k.to_owned(), v.parse().unwrap())).collect()
}

#[test]
fn what_a_host_does_is_counted_and_names_nobody() {
    let fixture = fixture("");
    let more = format!("{}[janitor]\nevery_secs = 1\n", fixture.more);
    let host = TestHost::start_with(Options { more, ..fixture });
    let agent = host.developer("secretive-1");
    let evidence = agent.call("request_sandbox", &json!({})).evidence().clone();
    agent.call("request_sandbox", &json!({})).evidence();
    assert_eq!(agent.call("request_sandbox", &json!({ "services": ["none"] })).code(), "invalid_state");
    let now = samples(&host);
    let of = |name: &str| now.get(name).copied().unwrap_or_else(|| panic!("no {name} in {now:#?}"));
    assert_eq!(of(r#"sandbar_requests_total{verb="request_sandbox",code="ok"}"#), 2.0);
    assert_eq!(of(r#"sandbar_requests_total{verb="request_sandbox",code="invalid_state"}"#), 1.0);
    assert_eq!(of(r#"sandbar_held{state="sandboxes"}"#), 1.0);
    assert!(of(r#"sandbar_engine_calls_total{service="fixture",result="ok"}"#) >= 1.0);
    for step in ["create", "start", "ready"] {
        assert_eq!(of(&format!(r#"sandbar_step_seconds_count{{service="fixture",step="{step}"}}"#)), 1.0);
        assert!(of(&format!(r#"sandbar_step_seconds_sum{{service="fixture",step="{step}"}}"#)) > 0.0);
    }
    wait("a sweep that was measured", || {
        let now = samples(&host);
        now.get("sandbar_sweep_seconds_count").is_some_and(|count| *count >= 1.0)
            && now["sandbar_sweep_seconds_sum"] > 0.0
    });
    agent.call("release_sandbox", &json!({})).evidence();
    let later = samples(&host);
    assert_eq!(later[r#"sandbar_released_total{reason="release_sandbox"}"#], 1.0);
    assert_eq!(later[r#"sandbar_held{state="sandboxes"}"#], 0.0);
    let password = evidence["fixture"]["password"].as_str().unwrap();
    let page = format!("{now:?}{later:?}");
    for secret in ["secretive", password, agent.token().unwrap()] {
        assert!(!page.contains(secret), "{page}");
    }
}
