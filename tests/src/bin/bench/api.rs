//! Docker's API as the plainest client would use it: a connection for each request.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result, ensure};
use sandbar_tests::docker::docker;
use serde_json::{Value, json};

/// Asks, and answers the body of what Docker says is done.
pub(crate) fn call(method: &str, path: &str, body: &str) -> Result<String> {
    let mut stream = UnixStream::connect("/var/run/docker.sock")?;
    // In this version a body comes in one piece. In one write, since Docker may hang up on what it need not read.
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: docker\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer has a body")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{method} {path}: {answer}");
    Ok(body.to_owned())
}

/// Asks for what exists.
pub(crate) fn get(path: &str) -> Result<Value> {
    Ok(serde_json::from_str(&call("GET", path, "")?)?)
}

/// Asks for something that is made, and answers its id.
pub(crate) fn make(path: &str, body: &Value) -> Result<String> {
    let made: Value = serde_json::from_str(&call("POST", path, &body.to_string())?)?;
    Ok(made["Id"].as_str().context("an id")?.to_owned())
}

/// A listing, as a filter in the path.
pub(crate) fn filter(label: &str) -> String {
    format!("/containers/json?all=1&filters=%7B%22label%22%3A%5B%22{}%22%5D%7D", label.replace('=', "%3D"))
}

/// Makes a container with this label and starts it; `more` is added to what Docker is asked for.
pub(crate) fn run(image: &str, label: &str, more: &Value) -> Result<String> {
    let (key, value) = label.split_once('=').context("a label has a value")?;
    let mut body = json!({ "Image": image, "Labels": { key: value } });
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    let id = make("/containers/create", &body)?;
    call("POST", &format!("/containers/{id}/start"), "")?;
    Ok(id)
}

/// A container of this image that does nothing.
pub(crate) fn idle(image: &str, label: &str) -> Result<String> {
    run(image, label, &json!({ "Entrypoint": ["sleep", "600"] }))
}

/// Gives it another name.
pub(crate) fn rename(id: &str, name: &str) -> Result<()> {
    call("POST", &format!("/containers/{id}/rename?name={name}"), "").map(drop)
}

/// Does the same for each, all at once.
pub(crate) fn at_once<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|one| scope.spawn(|| work(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it answers what fails")).collect()
    })
}

/// Removes containers with their anonymous volumes.
pub(crate) fn remove(ids: &[String]) -> Result<()> {
    let args = ["rm", "--force", "--volumes"].into_iter().map(str::to_owned);
    docker(args.chain(ids.iter().cloned())).map(drop)
}
