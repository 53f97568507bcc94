//! What is told from a file without running it.

use std::fs::File;
use std::time::Duration;

use sandbar_plugin::{Artifact, LoadError, LoadReason, MAX_COMPONENT_BYTES};

use crate::fixture::{Text, file};

fn reason(content: &[u8]) -> LoadReason {
    Artifact::from_bytes(content.to_vec()).expect_err("it is no component")
}

#[test]
fn what_is_not_a_component_is_called_by_its_name() {
    assert!(matches!(reason(b""), LoadReason::Empty));
    assert!(matches!(reason(b"(component)"), LoadReason::Text));
    assert!(matches!(reason(b"\x7fELF\x02\x01\x01\0\0\0\0"), LoadReason::NotWasm));
    assert!(matches!(reason(b"\0asx\x0d\0\x01\0"), LoadReason::NotWasm));
    assert!(matches!(reason(&Text::default().module()), LoadReason::CoreModule));
    assert!(matches!(reason(b"\0asm\x63\0\x01\0"), LoadReason::Malformed(_)), "a version that does not exist");
    let mut broken = Text::default().build();
    broken[8] = 0x7f;
    assert!(matches!(reason(&broken), LoadReason::Malformed(_)), "a section that does not exist");
}

#[test]
fn a_truncated_file_is_called_truncated() {
    let whole = Text::default().build();
    let mut complete = 0;
    for length in 1..whole.len() {
        match Artifact::from_bytes(whole[..length].to_vec()) {
            Err(LoadReason::Truncated { bytes }) => assert_eq!(bytes, length),
            // Cut between two sections nothing is missing that could be noticed here.
            Ok(_) => complete += 1,
            Err(other) => panic!("at {length}: {other}"),
        }
    }
    assert!(complete < 40, "{complete} of {} prefixes passed", whole.len());
}

#[test]
fn facts_are_read_without_compiling() {
    let text = Text { imports: "import wasi:random/random@0.2.0;".to_owned(), ..random() };
    let bytes = text.build();
    let artifact = Artifact::from_bytes(bytes.clone()).unwrap();
    assert_eq!(artifact.bytes(), bytes);
    assert_eq!(artifact.imports(), ["wasi:random/random@0.2.0"]);
    assert_eq!(artifact.contract_versions(), ["1.0.0"]);
    assert_eq!(artifact.admissible().unwrap().to_string(), "1.0.0");
}

/// An engine that uses random numbers, so that the import stays.
fn random() -> Text {
    Text {
        beside: r#"(import "wasi:random/random@0.2.0" "get-random-u64" (func $random (result i64)))"#.to_owned(),
        plan: "(drop (call $random)) (i32.const {answer})".to_owned(),
        ..Text::default()
    }
}

#[test]
fn names_that_would_be_obeyed_by_a_terminal_are_not_said_back() {
    // Names are not looked at before something is compiled.
    let evil = |from: &[u8], to: &[u8]| {
        let mut bytes = Text::default().build();
        while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
            bytes.splice(at..at + from.len(), to.iter().copied());
        }
        Artifact::from_bytes(bytes).unwrap().admissible().expect_err("no version").to_string()
    };
    let said = evil(b"engine@1.0.0", b"engine@\x1b[1m\n");
    assert!(said.contains("was built for version") && !said.contains(char::is_control), "{said:?}");
}

#[test]
fn the_hash_is_sha256() {
    let (_directory, path) = file(&Text::default().build());
    let artifact = Artifact::read(&path, None).unwrap();
    let output = std::process::Command::new("sha256sum").arg(&path).output().expect("coreutils are installed");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with(artifact.hash()));
}

#[test]
fn a_pin_holds_in_either_case_and_refuses_everything_else() {
    let (_directory, path) = file(&Text::default().build());
    let hash = Artifact::read(&path, None).unwrap().hash().to_owned();
    assert!(Artifact::read(&path, Some(&hash)).is_ok());
    assert!(Artifact::read(&path, Some(&hash.to_uppercase())).is_ok());

    let other = format!("{}{}", if hash.starts_with('0') { '1' } else { '0' }, &hash[1..]);
    let LoadError { path: named, reason } = Artifact::read(&path, Some(&other)).expect_err("another pin");
    assert_eq!(named, path);
    let text = reason.to_string();
    assert!(text.contains(&hash) && text.contains(&other), "{text}");

    for bad in ["", "abc", &hash[1..], &format!("{hash}0"), &format!("sha256:{hash}"), &"g".repeat(64)] {
        let error = Artifact::read(&path, Some(bad)).expect_err("no pin");
        assert!(matches!(error.reason, LoadReason::BadPin(_)), "{bad}: {error}");
    }
}

#[test]
fn bytes_that_are_not_the_pinned_ones_are_not_looked_at() {
    let (_directory, path) = file(b"not WebAssembly");
    let error = Artifact::read(&path, Some(&"0".repeat(64))).expect_err("another pin");
    assert!(matches!(error.reason, LoadReason::PinMismatch { .. }), "{error}");
}

#[test]
fn files_are_bounded_and_regular() {
    let (directory, path) = file(b"");
    File::options().write(true).open(&path).unwrap().set_len(MAX_COMPONENT_BYTES + 1).unwrap();
    let error = Artifact::read(&path, None).expect_err("too large");
    assert!(matches!(error.reason, LoadReason::TooLarge { bytes } if bytes == MAX_COMPONENT_BYTES + 1), "{error}");

    let error = Artifact::read(directory.path(), None).expect_err("a directory");
    assert!(matches!(error.reason, LoadReason::NotAFile), "{error}");

    let missing = directory.path().join("missing.wasm");
    let error = Artifact::read(&missing, None).expect_err("not there");
    assert!(matches!(error.reason, LoadReason::Read(_)), "{error}");
    assert!(error.to_string().starts_with(&missing.display().to_string()), "{error}");
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_other_end() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("coreutils are installed").success());
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::spawn(move || answer.send(Artifact::read(&pipe, None)));
    let error = answered.recv_timeout(Duration::from_secs(60)).expect("it hangs").expect_err("a pipe");
    assert!(matches!(error.reason, LoadReason::NotAFile), "{error}");
}
