//! Connections: accepted as long as there is room, ended when they ask nothing for too long, and at the end.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use http_body_util::BodyExt as _;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::either::Either;

use crate::seats::{Admission, Bounds, Request, Seat, Seats};

/// What connections come in by.
#[derive(Debug)]
pub enum Listener {
    /// An address of this machine.
    Tcp(TcpListener),
    /// A socket in the file system. Who may connect is decided by the permissions of its path.
    Unix(UnixListener),
}

type Stream = Either<TcpStream, UnixStream>;

impl Listener {
    /// The next connection, and where it comes from.
    async fn accept(&self) -> std::io::Result<(Stream, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // An answer is one small write; waiting for more would only make it late.
                let _ = stream.set_nodelay(true);
                // An IPv4 address is the same one on a socket that takes both kinds.
                Ok((Either::Left(stream), Some(peer.ip().to_canonical())))
            }
            Self::Unix(listener) => Ok((Either::Right(listener.accept().await?.0), None)),
        }
    }
}

/// Says of an address whether its connections are ended unheard.
pub(crate) type Unheard = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// How long a connection may take to send the head of a request, and be idle before it.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);

/// How long an answer may take to be written once the host goes down.
const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// Whom connections by a socket of the file system count for.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Pause after a connection could not be accepted for want of something that others have to give back.
const BREATH: Duration = Duration::from_millis(100);

/// Serves until `down`, and until what was answered then has been written, within [`WRITE_DEADLINE`].
pub(crate) async fn serve(
    app: Router,
    listeners: Vec<Listener>,
    bounds: Bounds,
    unheard: Unheard,
    down: watch::Receiver<bool>,
) {
    let seats = Seats::new(bounds);
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, app.clone(), seats.clone(), unheard.clone(), down.clone()));
    }
    while accepting.join_next().await.is_some() {}
}

/// Takes the connections of one listener.
async fn accept(listener: Listener, app: Router, seats: Arc<Seats>, unheard: Unheard, mut down: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut told = false;
    loop {
        let accepted = tokio::select! {
            biased;
            () = goes_down(&mut down) => break,
            Some(_) = connections.join_next() => continue,
            accepted = async {
                seats.room().await;
                listener.accept().await
            } => accepted,
        };
        match accepted {
            Ok((_, Some(peer))) if unheard(peer) => tracing::debug!(%peer, "refused: it is a box"),
            Ok((stream, peer)) => match seats.admit(peer.unwrap_or(HERE)) {
                Admission::Seated(seat) => {
                    connections.spawn(connection(stream, app.clone(), seat, down.clone()));
                }
                Admission::Refused => tracing::debug!(?peer, "refused: too many connections of this address"),
            },
            // The other side changed its mind.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
            // No descriptor or no memory: those who ask nothing give theirs back, and until then the others are served.
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "a connection could not be accepted; trying again, and not telling again");
                }
                seats.make_room();
                tokio::time::sleep(BREATH).await;
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn goes_down(down: &mut watch::Receiver<bool>) {
    // An error means that whoever would say so is gone, which is the same.
    let _ = down.wait_for(|down| *down).await;
}

/// Serves one connection.
async fn connection(stream: Stream, app: Router, seat: Seat, mut down: watch::Receiver<bool>) {
    let seat = Arc::new(seat);
    let app = TowerToHyperService::new(app);
    let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| {
        let (app, waiting) = (app.clone(), seat.request());
        async move {
            let answer: Result<_, Infallible> = app.call(request.map(Body::new)).await;
            answer.map(|answer| answer.map(|body| held(body, waiting)))
        }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    tokio::select! {
        // That it ended badly is the client's to know.
        _ = serving.as_mut() => return,
        () = seat.taken_away() => return,
        () = goes_down(&mut down) => {}
    }
    // One that is idle ends at once by this, and one with an answer when that has been written. One that has sent half a
    // head is waited for no longer than an answer before that may take.
    serving.as_mut().graceful_shutdown();
    if let Some(answered) = seat.answered() {
        let _ = tokio::time::timeout_at(answered + WRITE_DEADLINE, serving).await;
    }
}

/// Keeps a request unanswered while its answer still grows. One whose length is known is there.
fn held(body: Body, waiting: Request) -> Body {
    if body.size_hint().exact().is_some() {
        return body;
    }
    Body::new(body.map_frame(move |frame| {
        let _ = &waiting;
        frame
    }))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    /// A byte a second.
    fn growing() -> impl futures_util::Stream<Item = Result<&'static str, Infallible>> {
        futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some((Ok("x"), ()))
        })
    }

    struct Served {
        address: std::net::SocketAddr,
        down: watch::Sender<bool>,
        server: tokio::task::JoinHandle<()>,
    }

    impl Served {
        async fn start() -> Self {
            let app = Router::new()
                .route("/", get(|| async { "ok" }))
                .route("/large", get(|| async { vec![b'x'; 64 << 20] }))
                .route("/never", get(std::future::pending::<&str>))
                .route("/grows", get(|| async { Body::from_stream(growing()) }));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (sender, down) = watch::channel(false);
            let bounds = Bounds { total: 10, per_peer: 10 };
            Self {
                address,
                down: sender,
                server: tokio::spawn(serve(app, vec![Listener::Tcp(listener)], bounds, Arc::new(|_| false), down)),
            }
        }

        async fn send(&self, text: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            stream
        }

        /// Goes down, and answers how long that took.
        async fn end(self) -> Duration {
            let since = Instant::now();
            self.down.send_replace(true);
            self.server.await.unwrap();
            since.elapsed()
        }
    }

    const ASK: &str = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    /// Reads the answer to [`ASK`].
    async fn answer(stream: &mut TcpStream) -> String {
        let mut text = String::new();
        while !text.ends_with("ok") {
            let byte = stream.read_u8().await.unwrap();
            text.push(char::from(byte));
        }
        text
    }

    // In these the clock stands still but where everybody waits for it.

    #[tokio::test(start_paused = true)]
    async fn who_asks_nothing_is_ended_after_a_while() {
        let served = Served::start().await;
        for text in ["", "GET / HTT"] {
            let mut stream = served.send(text).await;
            let since = Instant::now();
            assert_eq!(stream.read(&mut [0; 100]).await.unwrap_or(0), 0, "{text:?}");
            assert!(since.elapsed() >= HEAD_DEADLINE, "{text:?}");
        }
        // Also after an answer.
        let mut stream = served.send(ASK).await;
        answer(&mut stream).await;
        let since = Instant::now();
        assert_eq!(stream.read(&mut [0; 100]).await.unwrap_or(0), 0);
        assert!(since.elapsed() >= HEAD_DEADLINE);
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_asks_again_and_again() {
        let served = Served::start().await;
        let mut stream = served.send(ASK).await;
        for _ in 0..3 {
            assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
            stream.write_all(ASK.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_grows_is_not_there_yet() {
        let served = Served::start().await;
        let mut stream = served.send("GET /grows HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let reading = tokio::spawn(async move {
            let mut read = 0;
            while let Ok(n @ 1..) = stream.read(&mut [0; 100]).await {
                read += n;
            }
            read
        });
        tokio::time::sleep(HEAD_DEADLINE * 2).await;
        assert!(!reading.is_finished());
        let took = served.end().await;
        assert!(took >= WRITE_DEADLINE / 2 && took <= WRITE_DEADLINE * 2, "{took:?}");
        assert!(reading.await.unwrap() > 100);
    }

    #[tokio::test(start_paused = true)]
    async fn only_answers_hold_up_the_end_and_they_within_a_bound() {
        let served = Served::start().await;
        let half = served.send("GET / HTT").await;
        let mut idle = served.send(ASK).await;
        answer(&mut idle).await;
        assert!(served.end().await < WRITE_DEADLINE);
        drop((half, idle));

        for path in ["large", "never"] {
            let served = Served::start().await;
            // Who does not read its answer, or waits for one that does not come.
            let stream = served.send(&format!("GET /{path} HTTP/1.1\r\nHost: x\r\n\r\n")).await;
            // Served before, as this one is.
            answer(&mut served.send(ASK).await).await;
            let took = served.end().await;
            assert!(took >= WRITE_DEADLINE / 2 && took <= WRITE_DEADLINE * 2, "{path}: {took:?}");
            drop(stream);
        }
    }
}
