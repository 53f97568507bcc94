//! Which components are loaded, and what is said about the others; and the cache of compiled code.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sandbar_core::engine::{Engine as _, Feature};
use sandbar_plugin::{Artifact, Host, HostError, LoadReason};

use crate::fixture::{Text, file, harmless, host, limits, load, soon};

async fn refused(text: &Text) -> LoadReason {
    soon(load(text)).await.expect_err("it must be refused")
}

#[tokio::test]
async fn a_file_is_loaded_with_its_pin() {
    let (_directory, path) = file(&Text::default().build());
    let hash = Artifact::read(&path, None).unwrap().hash().to_owned();
    let engine = soon(host().load(&path, Some(&hash))).await.unwrap();
    assert_eq!(engine.hash(), hash);
    assert!(soon(engine.plan(&harmless())).await.is_ok());

    let error = soon(host().load(&path, Some(&"0".repeat(64)))).await.expect_err("another pin");
    assert!(matches!(error.reason, LoadReason::PinMismatch { .. }), "{error}");
    assert_eq!(error.path, path);
}

#[tokio::test]
async fn a_component_without_the_contract_is_no_engine() {
    let other = wat::parse_str("(component)").unwrap();
    let reason = host().load_artifact(Artifact::from_bytes(other).unwrap()).await.expect_err("no engine");
    assert!(matches!(reason, LoadReason::NoContract { .. }));
    assert!(reason.to_string().contains("version 1.0"), "{reason}");
}

#[tokio::test]
async fn versions_are_compared_before_anything_else() {
    for other in ["0.9.0", "1.1.0", "2.0.0"] {
        let reason = refused(&Text { version: other.to_owned(), ..Text::default() }).await;
        let text = reason.to_string();
        assert!(matches!(reason, LoadReason::WrongContract { .. }), "{text}");
        assert!(text.contains(&format!("version {other} of")) && text.contains("speaks version 1.0"), "{text}");
    }
    let later = Text { version: "1.0.3".to_owned(), ..Text::default() };
    let engine = load(&later).await.unwrap();
    assert_eq!(engine.contract_version().to_string(), "1.0.3");
    assert!(soon(engine.plan(&harmless())).await.is_ok(), "a fix of the contract's text changes nothing");
}

#[tokio::test]
async fn a_shape_that_is_not_the_contracts_is_told() {
    for forged in [
        ("slug: string,", "slug: string, colour: string,"),
        ("mode: u32,", "mode: s32,"),
        ("exit-zero,", "exit-zero, exit-one,"),
    ] {
        let reason = refused(&Text { forged: Some(forged), ..Text::default() }).await;
        assert!(matches!(&reason, LoadReason::Shape { version, .. } if version == "1.0.0"), "{forged:?}: {reason}");
        assert!(!reason.to_string().contains('\n'), "{reason}");
    }
    let empty = r#"(component (instance $engine) (export "sandbar:engine/engine@1.0.0" (instance $engine)))"#;
    let artifact = Artifact::from_bytes(wat::parse_str(empty).unwrap()).unwrap();
    let reason = host().load_artifact(artifact).await.expect_err("without functions");
    assert!(matches!(reason, LoadReason::Shape { .. }), "{reason}");
    assert!(reason.to_string().contains("describe"), "{reason}");
}

#[tokio::test]
async fn other_imports_are_refused_by_name() {
    let text = r#"(component
        (import "wasi:http/outgoing-handler@0.2.0" (instance))
        (import "wasi:io/poll@0.2.0" (instance))
        (import "evil:host/files@1.0.0" (instance))
        (import "shell" (func))
        (instance $engine)
        (export "sandbar:engine/engine@1.0.0" (instance $engine)))"#;
    let artifact = Artifact::from_bytes(wat::parse_str(text).unwrap()).unwrap();
    let reason = host().load_artifact(artifact).await.expect_err("it wants too much");
    let LoadReason::Imports(names) = reason else { panic!("{reason}") };
    assert_eq!(names, ["wasi:http/outgoing-handler@0.2.0", "evil:host/files@1.0.0", "shell"]);
}

#[tokio::test]
async fn an_improper_descriptor_is_refused() {
    let mut text = Text::default();
    text.descriptor.name = "Not a name".to_owned();
    let reason = refused(&text).await;
    assert!(matches!(reason, LoadReason::Descriptor(_)), "{reason}");
    assert!(reason.to_string().contains("`Not a name`"), "{reason}");

    let mut text = Text::default();
    let feature = Feature { name: "same".to_owned(), summary: String::new() };
    text.descriptor.features = vec![feature.clone(), feature];
    assert!(refused(&text).await.to_string().contains("`same` appears twice"));
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

#[tokio::test]
async fn compiled_code_is_kept_by_content_and_damage_is_harmless() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("deep/cache");
    let load = async |text: &Text| {
        let host = Host::new(Some(cache.clone()), limits()).unwrap();
        let engine = host.load_artifact(Artifact::from_bytes(text.build()).unwrap()).await.unwrap();
        assert!(soon(engine.plan(&harmless())).await.is_ok());
    };
    // Only what was compiled; the cache keeps statistics beside it.
    let compiled = || {
        let mut inodes: Vec<_> = files(&cache)
            .into_iter()
            .filter(|path| path.extension().is_none())
            .map(|path| (path.metadata().unwrap().ino(), path))
            .collect();
        inodes.sort();
        inodes
    };

    load(&Text::default()).await;
    let first = compiled();
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!(cache.metadata().unwrap().mode() & 0o777, 0o700);

    load(&Text::default()).await;
    assert_eq!(compiled(), first, "the second time nothing was compiled, so nothing was written");

    let mut other = Text::default();
    other.descriptor.version = "0.2.0".to_owned();
    load(&other).await;
    assert_eq!(compiled().len(), 2, "other bytes, other code");

    // Empty, cut off, other bytes, one other bit anywhere, and the code of another engine: all that is compiled again, and
    // then nothing.
    let other = std::fs::read(&compiled().iter().find(|entry| !first.contains(entry)).unwrap().1).unwrap();
    let path = &first[0].1;
    let sound = std::fs::read(path).unwrap();
    let flip = |at: usize| {
        let mut flipped = sound.clone();
        flipped[at] ^= 1;
        flipped
    };
    let half = sound[..sound.len() / 2].to_vec();
    let mut damages = vec![vec![], half, b"nonsense".to_vec(), other];
    damages.extend((1..8).map(|eighth| flip(sound.len() * eighth / 8)));
    for damage in damages {
        std::fs::write(path, damage).unwrap();
        load(&Text::default()).await;
        assert!(std::fs::read(path).unwrap() == sound, "it was written anew");
        let healed = compiled();
        load(&Text::default()).await;
        assert_eq!(compiled(), healed);
    }
    // An entry of which nothing is known is not taken: here it is of a host that was killed while it wrote.
    std::fs::remove_file(cache.join("sums.txt")).unwrap();
    let before = path.metadata().unwrap().modified().unwrap();
    load(&Text::default()).await;
    assert!(path.metadata().unwrap().modified().unwrap() > before, "it was written anew");
    assert!(cache.join("sums.txt").exists());
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = Host::new(Some(directory.path().to_owned()), limits()).expect_err("anyone could put code there");
    assert!(matches!(error, HostError::Cache { .. }), "{error}");
    assert!(error.to_string().contains("chmod go-w"), "{error}");

    let (_directory, path) = file(b"");
    let error = Host::new(Some(path), limits()).expect_err("a file is no directory");
    assert!(matches!(error, HostError::Cache { .. }), "{error}");
}
