//! Files of boxes that are sent as they are.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sandbar_tests::host::wait;
use sandbar_tests::{Client, TestHost};
use serde_json::json;

use crate::boxes::{boxes, tenant};

const SIZE: usize = 40 << 20;

fn content() -> Vec<u8> {
    (0..SIZE).map(|n| (n * 31 % 251) as u8).collect()
}

fn out(agent: &Client, line: &str) -> String {
    let ran = agent.call("run_command", &json!({ "service": "box", "command": line })).evidence().clone();
    assert_eq!(ran["exit_code"], 0, "{ran}");
    ran["stdout"].as_str().unwrap().trim().to_owned()
}

/// The resident memory of the host, in bytes.
fn memory(host: &TestHost) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_file_of_any_size_goes_in_and_out_as_it_is() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let content = content();
    out(&agent, "true");
    let before = memory(&host);
    let written = agent.write_content("service=box&path=a/b%20%C3%A4&mode=256", &content);
    assert_eq!(written.evidence(), &json!({ "path": "a/b ä", "bytes": SIZE }));
    std::fs::write(host.dir.path().join("same"), &content).unwrap();
    let sum = std::process::Command::new("sha256sum").arg(host.dir.path().join("same")).output().unwrap().stdout;
    let sum = String::from_utf8(sum).unwrap()[..64].to_owned();
    assert_eq!(out(&agent, "sha256sum < 'a/b ä'; stat -c '%a %u' a/b*; ls -A"), format!("{sum}  -\n400 1000\na"));
    assert!(agent.read_content("service=box&path=a/b%20%C3%A4").unwrap() == content);
    let part = agent.read_content("service=box&path=a/b%20%C3%A4&offset=1000000&limit=2000000").unwrap();
    assert!(part == content[1_000_000..3_000_000]);
    assert_eq!(agent.read_content("service=box&path=a/b%20%C3%A4&offset=99999999999").unwrap(), b"");
    let grown = memory(&host) - before;
    assert!(grown < SIZE / 2, "it is never in memory as a whole: {grown}");
}

#[test]
fn what_is_wrong_with_a_transfer_is_told_and_leaves_nothing() {
    let host = TestHost::start_with(boxes("[boxes]\nmax_bytes = 20000000\n"));
    let agent = tenant(&host, "dev-1");
    out(&agent, "mkdir dir; echo old > file; mkfifo pipe; ln -s /etc/passwd out");
    let refused = |query: &str, content: &[u8]| {
        let answer = agent.write_content(query, content);
        (answer.code().to_owned(), answer.error("message").to_owned())
    };
    for (query, code, word) in [
        ("service=box", "bad_request", "path"),
        ("service=box&path=x&no=1", "bad_request", "`no`"),
        ("service=box&path=x&path=y", "bad_request", "path"),
        ("service=box&path=x&mode=a", "bad_request", "digit"),
        ("service=box&path=x&mode=4095", "bad_request", "mode"),
        ("service=none&path=x", "invalid_state", "none"),
        ("service=box&path=dir", "bad_request", "`dir`"),
        ("service=box&path=pipe", "bad_request", "`pipe`"),
        ("service=box&path=../x", "bad_request", "`../x`"),
        ("service=box&path=out", "bad_request", "`out`"),
        ("service=box&path=x%00y", "bad_request", "NUL"),
    ] {
        let (is, said) = refused(query, b"new");
        assert!(is == code && said.contains(word), "{query}: {is} {said}");
        if query.contains("path=") && !query.contains("mode") {
            let said = agent.read_content(query).unwrap_err().to_string();
            assert!(said.contains("\"ok\":false") && said.contains(word), "{query}: {said}");
        }
    }
    let (code, said) = refused("service=box&path=file", &content());
    assert!(code == "invalid_state" && said.contains("20000000 bytes"), "{said}");
    assert_eq!(agent.with_token("x").write_content("service=box&path=file", b"new").status, 401);

    // A sender that stops, and one that goes away.
    let address = agent.base().trim_start_matches("http://");
    let head = |length: &str| {
        format!(
            "POST /v1/do/write_file?service=box&path=file HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/octet-stream\r\n{length}\r\n\r\n",
            agent.token().unwrap()
        )
    };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all((head("Content-Length: 10000000") + "half").as_bytes()).unwrap();
    wait("its content has begun to come", || out(&agent, "ls -A | grep -c '^.sandbar-' || true") == "1");
    drop(stream);
    wait("nothing is left of it", || out(&agent, "ls -A | grep -c '^.sandbar-' || true") == "0");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all((head("Transfer-Encoding: chunked") + "3\r\nnew\r\n0\r\n\r\n").as_bytes()).unwrap();
    let mut said = String::new();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut piece = [0; 4096];
    while !said.contains("request_id") {
        let n = stream.read(&mut piece).unwrap();
        assert_ne!(n, 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&piece[..n]));
    }
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("Content-Length"), "{said}");
    assert_eq!(out(&agent, "cat file; ls -A"), "old\ndir\nfile\nout\npipe");
}

#[test]
fn writers_at_once_do_not_exceed_the_budget_together() {
    let host = TestHost::start_with(boxes("[boxes]\nmax_bytes = 20000000\n"));
    let agent = tenant(&host, "dev-1");
    out(&agent, "true");
    let content = vec![1; 8_000_000];
    let answers: Vec<_> = std::thread::scope(|scope| {
        let (agent, content) = (&agent, &content);
        let write = move |n: usize| agent.write_content(&format!("service=box&path={n}"), content);
        let writers: Vec<_> = (0..8).map(|n| scope.spawn(move || write(n))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let taken = answers.iter().filter(|answer| answer.status == 200).count();
    assert!((1..=2).contains(&taken), "{answers:?}");
    assert!(answers.iter().all(|a| a.status == 200 || a.code() == "invalid_state"), "{answers:?}");
    let bytes: usize = out(&agent, "cat * | wc -c").parse().unwrap();
    assert_eq!(bytes, taken * content.len());
}

#[test]
fn a_file_that_gets_shorter_breaks_off_and_the_box_is_free_after_it() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    out(&agent, "head -c 300000000 /dev/zero > large");
    let address = agent.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/do/read_file?service=box&path=large HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Accept: application/octet-stream\r\nContent-Length: 0\r\n\r\n",
        agent.token().unwrap()
    )
    .unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    // More than what is on its way already.
    out(&agent, ": > large");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 300_000_000, "{}", rest.len());
    assert_eq!(out(&agent, "echo there"), "there");
}

/// A raw write of which only the beginning has come.
fn begun(agent: &Client, query: &str, size: usize) -> TcpStream {
    let address = agent.base().trim_start_matches("http://");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/do/write_file?{query} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: Application/Octet-Stream; charset=binary\r\nContent-Length: {size}\r\n\r\nhalf",
        agent.token().unwrap()
    )
    .unwrap();
    wait("it has begun to come", || out(agent, "ls -A | grep -c '^.sandbar-' || true") == "1");
    stream
}

/// Sends the rest of it, and answers what is said.
fn finished(mut stream: TcpStream, size: usize) -> String {
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let _ = stream.write_all(&vec![b'x'; size - 4]);
    let (mut said, mut piece) = (String::new(), [0; 4096]);
    while !said.contains("request_id") {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(n) => said.push_str(&String::from_utf8_lossy(&piece[..n])),
        }
    }
    said
}

#[test]
fn a_transfer_ends_with_the_box_and_with_the_token() {
    let host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    out(&agent, "true");
    let stream = begun(&agent, "service=box&path=late", 100_000);
    assert_eq!(agent.call("release_sandbox", &json!({})).status, 200);
    let said = finished(stream, 100_000);
    assert!(said.contains("let go"), "{said}");
    assert_eq!(out(&agent, "ls -A"), "");
    let stream = begun(&agent, "service=box&path=late", 100_000);
    let rotated = host.operator().call("rotate_token", &json!({ "agent": "dev-1" }));
    let agent = agent.with_token(rotated.evidence()["token"].as_str().unwrap());
    let said = finished(stream, 100_000);
    assert!(said.contains("revoked"), "{said}");
    assert_eq!(out(&agent, "ls -A"), "");

    // A reader that takes nothing: its box can go, and with it the file that the reader has open.
    out(&agent, "head -c 300000000 /dev/zero > large");
    let address = agent.base().trim_start_matches("http://");
    let mut reader = TcpStream::connect(address).unwrap();
    write!(
        reader,
        "POST /v1/do/read_file?service=box&path=large HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
         Accept: application/octet-stream, */*\r\nContent-Length: 0\r\n\r\n",
        agent.token().unwrap()
    )
    .unwrap();
    let mut head = [0; 12];
    reader.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let open = || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", host.pid())).unwrap().flatten();
        files.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|path| path.to_string_lossy().contains("/large"))
    };
    assert!(open());
    assert_eq!(agent.call("release_sandbox", &json!({})).status, 200);
    wait("it is closed", || !open());
}

#[test]
fn what_a_killed_host_had_not_finished_is_removed() {
    let mut host = TestHost::start_with(boxes(""));
    let agent = tenant(&host, "dev-1");
    let stream = begun(&agent, "service=box&path=late", 100_000);
    host.kill();
    drop(stream);
    host.up().unwrap();
    let agent = host.nobody().with_token(agent.token().unwrap());
    assert_eq!(out(&agent, "ls -A"), "");
}
