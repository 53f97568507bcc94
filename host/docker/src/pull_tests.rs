//! Tests of pulls, with streams made by hand and a clock that jumps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use futures_util::stream;
use sandbar_core::progress::Progress;

use super::*;

const SILENCE: Duration = Duration::from_secs(60);

fn info(text: &str) -> Result<CreateImageInfo, Error> {
    let Ok(info) = serde_json::from_str(text) else { panic!("that is a report: {text}") };
    Ok(info)
}

async fn reports(lines: &[&str]) -> (Result<()>, Vec<Report>) {
    let mut seen = Vec::new();
    let result = follow(stream::iter(lines.iter().map(|line| info(line))), SILENCE, |report| seen.push(report)).await;
    (result, seen)
}

#[tokio::test]
async fn bytes_are_summed_over_layers_and_never_go_back() {
    let (result, seen) = reports(&[
        r#"{"status": "Pulling from library/redis", "id": "8-alpine"}"#,
        r#"{"status": "Pulling fs layer", "id": "a", "progressDetail": {}}"#,
        r#"{"status": "Already exists", "id": "z", "progressDetail": {}}"#,
        r#"{"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 100}}"#,
        r#"{"status": "Downloading", "id": "b", "progressDetail": {"current": 50, "total": 50}}"#,
        r#"{"status": "Downloading", "id": "b", "progressDetail": {"current": 50, "total": 50}}"#,
        r#"{"status": "Download complete", "id": "a", "progressDetail": {}}"#,
        r#"{"status": "Extracting", "id": "a", "progressDetail": {"current": 1, "total": 100}}"#,
        r#"{"status": "Pull complete", "id": "a", "progressDetail": {}}"#,
        r#"{"status": "Status: Downloaded newer image for redis:8-alpine"}"#,
    ])
    .await;
    assert_eq!(result, Ok(()));
    let bytes: Vec<_> = seen.iter().filter_map(|report| report.bytes).collect();
    assert_eq!(bytes, [(10, 100), (60, 150), (150, 150), (150, 150), (150, 150), (150, 150)]);
}

#[tokio::test]
async fn an_error_within_a_good_answer_is_a_failure() {
    let first = r#"{"status": "Pulling from library/redis", "id": "x"}"#;
    for (text, kind) in [
        ("manifest for r/x:1 not found: manifest unknown: manifest unknown", "not found"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "refused"),
        ("unauthorized: authentication required", "refused"),
        ("unexpected EOF", "failed"),
        ("toomanyrequests: You have reached your pull rate limit", "failed"),
    ] {
        let error = format!(r#"{{"errorDetail": {{"message": "{text}"}}, "error": "{text}"}}"#);
        let (result, _) = reports(&[first, &error]).await;
        let found = match result {
            Err(RuntimeError::NotFound(_)) => "not found",
            Err(RuntimeError::Refused(_)) => "refused",
            Err(RuntimeError::Failed(_)) => "failed",
            other => panic!("{other:?}"),
        };
        assert_eq!(found, kind, "{text}");
    }
}

#[tokio::test]
async fn bollard_s_form_of_such_an_error_is_one_too() {
    let error = Error::DockerStreamError { error: "unexpected\nEOF".to_owned() };
    let result = follow(stream::iter([Err(error)]), SILENCE, |_| {}).await;
    assert_eq!(result, Err(RuntimeError::Failed("unexpected EOF".to_owned())));
}

#[tokio::test]
async fn a_registry_that_is_away_does_not_look_like_docker_being_away() {
    let error = Error::DockerResponseServerError { status_code: 503, message: "registry is down".to_owned() };
    let result = follow(stream::iter([Err(error)]), SILENCE, |_| {}).await;
    assert_eq!(result, Err(RuntimeError::Failed("registry is down".to_owned())));
    let denied = "pull access denied for x, repository does not exist or may require 'docker login': denied: no";
    for (message, kind) in [("no such thing", "not found"), (denied, "refused")] {
        let error = Error::DockerResponseServerError { status_code: 404, message: message.to_owned() };
        let result = follow(stream::iter([Err(error)]), SILENCE, |_| {}).await;
        assert!(result.is_err_and(|e| e.to_string() == format!("{kind}: {message}")));
    }
    let reset = Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    let result = follow(stream::iter([Err(reset)]), SILENCE, |_| {}).await;
    assert!(matches!(result, Err(RuntimeError::Unreachable(_))));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_stalls_fails() {
    let line = info(r#"{"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 2}}"#);
    let start = tokio::time::Instant::now();
    let result = follow(stream::iter([line]).chain(stream::pending()), SILENCE, |_| {}).await;
    let Err(RuntimeError::Failed(text)) = result else { panic!("{result:?}") };
    assert_eq!(text, "the pull stalled: nothing came for 60s; Docker's last word: Downloading, 1 of 2 bytes");
    assert_eq!(start.elapsed(), SILENCE);
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_share_one_pull_and_its_result() {
    let (pulls, started) = (Pulls::default(), AtomicUsize::new(0));
    let silent = ProgressSink::silent();
    let join = || {
        pulls.join("x", &silent, |_| {
            started.fetch_add(1, Ordering::Relaxed);
            async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Err(RuntimeError::Failed("no".to_owned()))
            }
        })
    };
    let results = futures_util::future::join_all([join(), join(), join()]).await;
    assert!(results.iter().all(|result| *result == Err(RuntimeError::Failed("no".to_owned()))));
    assert_eq!(started.load(Ordering::Relaxed), 1);
    // The next one is a new attempt.
    tokio::task::yield_now().await;
    assert!(join().await.is_err());
    assert_eq!(started.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_pull_outlives_those_who_wait() {
    let pulls = Pulls::default();
    let silent = ProgressSink::silent();
    let pull = |_| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok(())
    };
    let left = tokio::time::timeout(Duration::from_secs(1), pulls.join("x", &silent, pull)).await;
    assert!(left.is_err());
    let start = tokio::time::Instant::now();
    let again = pulls.join("x", &silent, |_| async { panic!("one is under way") }).await;
    assert_eq!((again, start.elapsed()), (Ok(()), Duration::from_secs(4)));
}

#[tokio::test(start_paused = true)]
async fn a_pull_ends_after_its_time_and_a_panic_is_a_failure() {
    let pulls = Pulls::default();
    let silent = ProgressSink::silent();
    let start = tokio::time::Instant::now();
    let never = pulls.join("x", &silent, |reporter| async move {
        reporter.report(Report { doing: "Retrying in 5 seconds".to_owned(), bytes: None });
        std::future::pending().await
    });
    let why = "the pull was not done within 300s; Docker's last word: Retrying in 5 seconds";
    assert_eq!(never.await, Err(RuntimeError::Failed(why.to_owned())));
    assert_eq!(start.elapsed(), PullLimits::default().total);
    let broken = pulls.join("y", &silent, |_| async { panic!("as a test does") }).await;
    assert!(matches!(broken, Err(RuntimeError::Failed(_))));
    assert!(pulls.under_way().is_empty());
}

#[tokio::test(start_paused = true)]
async fn every_waiter_hears_the_progress() {
    let pulls = Pulls::default();
    let heard: Arc<Mutex<Vec<Progress>>> = Arc::default();
    let to = Arc::clone(&heard);
    let sink = ProgressSink::new("cache", Arc::new(move |p| to.lock().unwrap_or_else(PoisonError::into_inner).push(p)));
    let result = pulls.join("x", &sink, |reporter| async move {
        for done in [1, 2] {
            reporter.report(Report { doing: "Downloading".to_owned(), bytes: Some((done, 2)) });
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    });
    assert_eq!(result.await, Ok(()));
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(heard.iter().all(|p| p.step == STEP && p.service == "cache"));
    assert!(heard.iter().any(|p| p.bytes == Some((1, 2)) && p.detail == "x: Downloading"));
    assert!(heard.iter().any(|p| p.bytes == Some((2, 2))));
}
