//! Docker that is away. A proxy before its socket is cut and mended, so that the daemon itself goes on for the other tests.

use std::path::PathBuf;
use std::time::Duration;

use sandbar_core::runtime::{Event, Exit, Runtime as _, RuntimeError};
use sandbar_docker::{DockerOptions, DockerRuntime, PullLimits};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::bench::{Bench, INSTALLATION, listed, until};

/// A socket that leads to Docker's while it is up.
struct Proxy {
    dir: tempfile::TempDir,
    task: Option<JoinHandle<()>>,
}

impl Proxy {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory"), task: None }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("docker.sock")
    }

    fn host(&self) -> Option<String> {
        Some(format!("unix://{}", self.path().display()))
    }

    fn up(&mut self) {
        let host = std::env::var("DOCKER_HOST").unwrap_or_default();
        let real = host.strip_prefix("unix://").unwrap_or("/var/run/docker.sock").to_owned();
        let listener = UnixListener::bind(self.path()).expect("the socket is free");
        self.task = Some(tokio::spawn(async move {
            // Dropped with this task, and every connection with it.
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let real = real.clone();
                connections.spawn(async move {
                    let mut far = UnixStream::connect(real).await.expect("Docker is there");
                    // Ends in an error when one side goes, as it should.
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        }));
    }

    /// Cuts every connection. The socket stays behind, as that of a daemon that was killed does.
    async fn down(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // Until its connections are closed.
            let _ = task.await;
        }
    }

    fn unlink(&self) {
        std::fs::remove_file(self.path()).expect("the socket was there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_daemon_everything_says_unreachable_until_it_comes() {
    let mut proxy = Proxy::new();
    let bench = Bench::at(proxy.host()).await;
    let away = |error: RuntimeError| matches!(error, RuntimeError::Unreachable(_));
    assert!(bench.runtime.caps().local);
    assert!(bench.runtime.ping().await.is_err_and(away));
    assert!(bench.runtime.list(&[]).await.is_err_and(away));
    assert!(bench.runtime.remove("x", Duration::ZERO).await.is_err_and(away));
    assert!(bench.try_put(&bench.plan("a", "true")).await.is_err_and(|error| away(error.error)));
    proxy.up();
    assert_eq!(bench.runtime.ping().await, Ok(()));
    let unit = bench.sleeper("a").await;
    // Away again, first with a socket that nobody listens at, then without one.
    proxy.down().await;
    assert!(bench.runtime.ping().await.is_err_and(away));
    proxy.unlink();
    assert!(bench.runtime.ping().await.is_err_and(away));
    assert!(bench.runtime.inspect(&unit.id).await.is_err_and(away));
    proxy.up();
    assert_eq!(bench.mine().await, [listed(&unit)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_is_cut_off_concludes_nothing() {
    let mut proxy = Proxy::new();
    proxy.up();
    let bench = Bench::at(proxy.host()).await;
    let unit = bench.put(&bench.plan("a", "while ! [ -e /tmp/go ]; do sleep 0.05; done; exit 5")).await;
    let wait = bench.ended(&unit);
    let mut wait = std::pin::pin!(wait);
    // Long enough for the wait to be with Docker; were it not, the answer would be the same.
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut wait).await.is_err());
    proxy.down().await;
    let cut = wait.await;
    assert!(matches!(cut, Err(RuntimeError::Unreachable(_))), "{cut:?}");
    proxy.unlink();
    proxy.up();
    assert!(bench.exec(&unit, "touch /tmp/go").await.is_ok_and(|answer| answer.code == 0));
    assert_eq!(bench.ended(&unit).await, Ok(Exit { code: 5, out_of_memory: false }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gap_in_the_events_is_told() {
    let mut proxy = Proxy::new();
    proxy.up();
    let bench = Bench::at(proxy.host()).await;
    let (first, second) = (bench.sleeper("a").await, bench.sleeper("b").await);
    let events = tokio::sync::Mutex::new(bench.runtime.watch());
    let hear = |what: &'static str, wanted: fn(&Event, &str) -> bool, id: &str| {
        let (events, id) = (&events, id.to_owned());
        async move {
            let heard = || async { events.lock().await.recv().await.filter(|event| wanted(event, &id)).map(|_| ()) };
            until(what, heard).await;
        }
    };
    let ended = |event: &Event, id: &str| matches!(event, Event::Ended { id: ended, .. } if ended == id);
    assert_eq!(bench.runtime.remove(&first.id, Duration::ZERO).await, Ok(()));
    hear("the first end", ended, &first.id).await;
    proxy.down().await;
    hear("the beginning of the gap", |event, _| *event == Event::Interrupted, "").await;
    proxy.unlink();
    proxy.up();
    hear("its end", |event, _| *event == Event::Resumed, "").await;
    // At once, while the subscription may not even have reached the daemon.
    assert_eq!(bench.runtime.remove(&second.id, Duration::ZERO).await, Ok(()));
    hear("the second end", ended, &second.id).await;
}

#[tokio::test]
async fn options_that_can_never_work_are_refused_at_once() {
    for (host, network) in [("ssh://nowhere", "net"), ("unix:///a", "a/b"), ("unix:///a", "")] {
        let options = DockerOptions {
            host: Some(host.to_owned()),
            network: network.to_owned(),
            network_labels: [].into(),
            installation: (INSTALLATION.to_owned(), "x".to_owned()),
            pull: PullLimits::default(),
        };
        assert!(matches!(DockerRuntime::connect(options), Err(RuntimeError::Refused(_))), "{host} {network}");
    }
}
