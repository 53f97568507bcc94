//! Builds an engine of this repository for real, and looks at the component. Needs a toolchain for the target; the
//! build says what to install where there is none.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use sandbar_sdk_build::component::Names;
use sandbar_sdk_build::lock::{FILE, Lock};
use sandbar_sdk_build::{Options, build, component};

fn repository() -> PathBuf {
    // As it is now: a build directory may have been used for another checkout.
    Path::new(&std::env::var_os("CARGO_MANIFEST_DIR").expect("Cargo sets it"))
        .join("../..")
        .canonicalize()
        .expect("this crate is in its repository")
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn an_engine_becomes_a_small_component_without_imports_or_paths() {
    let out = tempfile::tempdir().unwrap();
    // What another engine has in the lock file is not touched.
    let other = "[\"other.wasm\"]\nsha256 = \"00\"\ngrant = { images = [\"other:*\"] }\n";
    std::fs::write(out.path().join(FILE), other).unwrap();

    let built = build(&Options::new(repository().join("engines/redis"), out.path())).unwrap();
    assert_eq!((built.name.as_str(), built.path.as_path()), ("redis", out.path().join("redis.wasm").as_path()));

    let bytes = std::fs::read(&built.path).unwrap();
    let names = Names::of(&bytes).unwrap();
    assert!(names.imports.is_empty(), "{names:?}");
    assert_eq!(names.exports, ["sandbar:engine/engine@1.0.0"]);
    assert!(bytes.len() < 100 * 1024, "{} bytes", bytes.len());
    let home = std::env::home_dir().unwrap();
    for path in [repository().as_path(), home.as_path(), Path::new("/usr/lib/rustlib"), Path::new("/usr/src")] {
        assert!(!contains(&bytes, path.to_str().unwrap()), "{} is in the component", path.display());
    }

    let lock = Lock::read(&out.path().join(FILE)).unwrap();
    assert_eq!(lock.get("other.wasm").unwrap().grant.images, ["other:*"]);
    let pin = lock.get("redis.wasm").unwrap();
    assert_eq!(pin.sha256, component::sha256(&bytes));
    assert_eq!(pin.grant.variables, ["REDIS_URL"]);
}

#[test]
fn a_directory_without_a_crate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nothing");
    let error = build(&Options::new(&missing, dir.path())).unwrap_err();
    assert!(error.to_string().contains("nothing"), "{error:#}");
}

#[test]
fn what_is_no_engine_is_refused() {
    let empty_module = b"\0asm\x01\0\0\0";
    let error = component::encode(empty_module).unwrap_err();
    assert!(format!("{error:#}").contains("export_engine!"), "{error:#}");
    assert!(component::check(empty_module).unwrap_err().to_string().contains("no WebAssembly component"));
}
