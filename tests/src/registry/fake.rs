//! A registry that does wrong: it has one image, under every name, and for each part of it a test says what is done.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::forget;
use super::image::{Blob, Image};

/// Part of an image that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Always asked for first.
    Manifest,
    /// Small; Docker tries it once.
    Config,
    /// Two megabytes; Docker tries it again, for more than a minute, where it thinks that this may help.
    Layer,
}

/// What is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// What a registry should do.
    Serve,
    /// Sends nothing until something else is to be done, and then that.
    Hold,
    /// Sends half and then nothing, and keeps the connection open.
    Stall,
    /// Sends half of what it announced and closes the connection.
    Cut,
    /// Sends half and says that this is all.
    Short,
    /// Answers an error of the registry's API: status, code, message.
    Error(u16, &'static str, &'static str),
}

#[derive(Default)]
struct State {
    acts: BTreeMap<Part, Act>,
    /// How often each thing was asked for.
    asked: BTreeMap<(Part, String), usize>,
    waiting: usize,
    over: bool,
}

struct Shared {
    image: Image,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn act(&self, part: Part) -> Act {
        self.state().acts.get(&part).copied().unwrap_or(Act::Serve)
    }
}

/// A running registry. Dropping it ends it, and removes what was pulled from it.
pub struct Fake {
    address: String,
    shared: Arc<Shared>,
}

impl Fake {
    /// One that does as it should, with an image of its own.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let shared = Arc::new(Shared { image: Image::unique(), state: Mutex::default() });
        let to = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if to.state().over {
                    break;
                }
                let shared = to.clone();
                // A connection that breaks is the other side's affair.
                std::thread::spawn(move || drop(answer(stream, &shared)));
            }
        });
        Self { address, shared }
    }

    /// Its address, as image names begin with it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The name of its image.
    pub fn image(&self) -> String {
        format!("{}/team/thing:1", self.address)
    }

    /// Says what is done with requests for a part, from now on.
    pub fn set(&self, part: Part, act: Act) {
        self.shared.state().acts.insert(part, act);
    }

    /// How many pulls there were: how often the same was asked of a part, which is not how often Docker looked at it, by
    /// tag and by digest.
    pub fn asked(&self, part: Part) -> usize {
        let state = self.shared.state();
        state.asked.iter().filter(|((p, _), _)| *p == part).map(|(_, n)| *n).max().unwrap_or(0)
    }

    /// How many connections wait for something that does not come.
    pub fn waiting(&self) -> usize {
        self.shared.state().waiting
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.state().over = true;
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect(&self.address);
        forget(&self.address);
    }
}

/// Reads one request and answers it; every connection has only one.
fn answer(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    // Docker tries TLS first, and waits as long as we do.
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(8192).read_until(b'\n', &mut line)?;
        let Ok(line) = String::from_utf8(line) else { return stream.shutdown(Shutdown::Both) };
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut words = lines.first().map(String::as_str).unwrap_or_default().split(' ');
    let (Some(method @ ("GET" | "HEAD")), Some(path)) = (words.next(), words.next()) else {
        return stream.shutdown(Shutdown::Both);
    };
    let image = &shared.image;
    let (part, blob) = match path.rsplit('/').next().unwrap_or_default() {
        "" => return head(&stream, "200 OK", "application/json", 0, None),
        _ if path.contains("/manifests/") => (Part::Manifest, &image.manifest),
        digest if digest == image.config.digest => (Part::Config, &image.config),
        digest if digest == image.layer.digest => (Part::Layer, &image.layer),
        _ => return head(&stream, "404 Not Found", "application/json", 0, None),
    };
    *shared.state().asked.entry((part, format!("{method} {path}"))).or_default() += 1;
    reply(stream, shared, part, blob, method == "HEAD")
}

fn reply(mut stream: TcpStream, shared: &Shared, part: Part, blob: &Blob, is_head: bool) -> std::io::Result<()> {
    wait(&stream, shared, || shared.act(part) == Act::Hold)?;
    let act = shared.act(part);
    if let Act::Error(status, code, message) = act {
        let body = serde_json::json!({ "errors": [{ "code": code, "message": message }] }).to_string();
        head(&stream, &format!("{status} Error"), "application/json", body.len(), None)?;
        return if is_head { Ok(()) } else { stream.write_all(body.as_bytes()) };
    }
    let half = blob.bytes.len() / 2;
    let announced = if act == Act::Short { half } else { blob.bytes.len() };
    head(&stream, "200 OK", blob.media_type, announced, Some(&blob.digest))?;
    if is_head {
        return Ok(());
    }
    if act == Act::Serve {
        return stream.write_all(&blob.bytes);
    }
    stream.write_all(&blob.bytes[..half])?;
    if act == Act::Stall {
        wait(&stream, shared, || true)?;
    }
    stream.shutdown(Shutdown::Both)
}

/// Waits for as long as `on` says so; the error is that the other side did not.
fn wait(mut stream: &TcpStream, shared: &Shared, on: impl Fn() -> bool) -> std::io::Result<()> {
    shared.state().waiting += 1;
    stream.set_read_timeout(Some(Duration::from_millis(20)))?;
    let mut result = Ok(());
    while result.is_ok() && on() && !shared.state().over {
        // Nothing more is asked on this connection, so all that can be read is its end.
        if !matches!(stream.read(&mut [0]), Err(e) if is_timeout(&e)) {
            result = Err(std::io::ErrorKind::ConnectionAborted.into());
        }
    }
    shared.state().waiting -= 1;
    result
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn head(
    mut stream: &TcpStream,
    status: &str,
    media_type: &str,
    length: usize,
    digest: Option<&str>,
) -> std::io::Result<()> {
    let digest = digest.map(|d| format!("docker-content-digest: {d}\r\n")).unwrap_or_default();
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n{digest}\
         docker-distribution-api-version: registry/2.0\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(text.as_bytes())
}
