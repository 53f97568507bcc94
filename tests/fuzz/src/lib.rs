//! What is fuzzed. Each function takes any bytes and panics where a promise is broken; libFuzzer calls them, and so does a
//! bounded test with bytes of its own.

#![allow(clippy::unwrap_used, reason = "a broken promise is a panic")]

mod component;
mod edit;
mod image;
mod recipe;

use std::path::PathBuf;

pub use component::component;
pub use image::image;
pub use recipe::recipe;

/// The components of the real engines.
///
/// # Panics
/// When `make engines` has not built them.
#[must_use]
pub fn engines() -> Vec<(String, Vec<u8>)> {
    let here = std::env::current_exe().unwrap();
    let target = here.ancestors().find(|p| p.file_name().is_some_and(|n| n == "debug" || n == "release"));
    let built = || target.unwrap().with_file_name("engines");
    let dir = std::env::var_os("SANDBAR_ENGINES").map_or_else(built, PathBuf::from);
    let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}; run `make engines`", dir.display()));
    let mut engines: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "wasm"))
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    engines.sort();
    assert!(!engines.is_empty(), "{} has no engines; run `make engines`", dir.display());
    engines
}

/// Everything that is refused is refused in one line that a person can read, whatever stands in it.
fn one_line(said: &impl std::fmt::Display) {
    let said = said.to_string();
    // Twice the longest path, for the grant that would be needed, and some words.
    assert!(!said.is_empty() && said.chars().count() < 1200, "{} characters: {said}", said.chars().count());
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    assert!(!said.contains(hidden), "{said:?}");
}
