//! Paths and keys as callers give them.

use crate::FilesError;

pub(crate) const TOO_LONG: &str = "is too long, or a part of it is longer than 255 bytes";
/// What Linux takes, without the NUL.
const LONGEST: usize = 4095;
const LONGEST_PART: usize = 255;

/// A path that a caller gave, taken apart. That it stays inside is not decided here but when it is opened; this only
/// refuses early what can be seen without looking.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// Its parts below the work folder; none for the folder itself. May hold `..`.
    pub(crate) parts: Vec<&'a str>,
    /// Whether it can only be a directory, as with a slash at the end.
    pub(crate) directory: bool,
    /// For messages.
    pub(crate) shown: String,
}

impl<'a> Asked<'a> {
    /// Takes `path`, which is relative to the work folder, or absolute and below `/<inside>`.
    pub(crate) fn new(path: &'a str, inside: &str) -> Result<Self, FilesError> {
        if path.is_empty() {
            return Err(FilesError::BadPath("is empty; the work folder itself is `.`"));
        }
        if path.contains('\0') {
            return Err(FilesError::BadPath("has a NUL in it"));
        }
        if path.len() + inside.len() + 2 > LONGEST {
            return Err(FilesError::BadPath(TOO_LONG));
        }
        let shown = shown(path);
        let mut parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
        if path.starts_with('/') {
            let above = inside.split('/').count();
            if !parts.iter().take(above).copied().eq(inside.split('/')) {
                return Err(FilesError::Outside(shown));
            }
            parts.drain(..above);
        }
        let mut depth = 0_usize;
        for part in &parts {
            if part.len() > LONGEST_PART {
                return Err(FilesError::BadPath(TOO_LONG));
            }
            depth = if *part == ".." {
                depth.checked_sub(1).ok_or_else(|| FilesError::Outside(shown.clone()))?
            } else {
                depth + 1
            };
        }
        let directory = parts.last().is_none_or(|last| *last == "..") || path.ends_with('/') || path.ends_with("/.");
        Ok(Self { parts, directory, shown })
    }
}

/// A path for a message: bounded, on one line.
fn shown(path: &str) -> String {
    const MOST: usize = 200;
    let mut shown: String = path.chars().take(MOST).flat_map(char::escape_debug).collect();
    if path.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// Refuses what cannot be a box's key.
pub(crate) fn check_key(key: &str) -> Result<(), FilesError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if (1..=128).contains(&key.len()) && key.bytes().all(fits) { Ok(()) } else { Err(FilesError::BadKey) }
}

/// Where a work folder is in its box, without the leading slash.
pub(crate) fn check_inside(inside: &str) -> Result<&str, FilesError> {
    let below = inside
        .strip_prefix('/')
        .filter(|b| b.len() <= 1024 && !b.contains('\0'))
        .filter(|b| b.split('/').all(|p| !p.is_empty() && p != "." && p != ".." && p.len() <= LONGEST_PART));
    below.ok_or(FilesError::BadPath("of a work folder in its box must be absolute, without `.`, `..` and empty parts"))
}

/// A name as text. What is not UTF-8 is escaped, and the flag says so; only then is a backslash escaped too, so that
/// the name can be told from the text.
pub(crate) fn text(name: &[u8]) -> (String, bool) {
    if let Ok(name) = std::str::from_utf8(name) {
        return (name.to_owned(), false);
    }
    let mut text = String::new();
    for chunk in name.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    (text, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(path: &str) -> Vec<&str> {
        Asked::new(path, "home/node").unwrap().parts
    }

    #[test]
    fn paths_are_relative_or_absolute_inside() {
        assert_eq!(parts("a/b"), ["a", "b"]);
        assert_eq!(parts("./a//b/."), ["a", "b"]);
        assert_eq!(parts("/home/node/a"), ["a"]);
        assert_eq!(parts("//home/./node//a"), ["a"]);
        assert_eq!(parts("a/../b"), ["a", "..", "b"]);
        for own in [".", "/home/node", "/home/node/"] {
            let own = Asked::new(own, "home/node").unwrap();
            assert!(own.parts.is_empty() && own.directory);
        }
        assert!(Asked::new("a/", "home/node").unwrap().directory);
        assert!(!Asked::new("a", "home/node").unwrap().directory);
    }

    #[test]
    fn what_can_be_seen_to_be_wrong_is_refused() {
        for outside in
            ["/", "/etc/passwd", "/home", "/home/nodes", "..", "a/../../b", "/home/node/../x", "/../home/node"]
        {
            assert!(matches!(Asked::new(outside, "home/node"), Err(FilesError::Outside(_))), "{outside}");
        }
        for bad in ["", "a\0b", &"a/".repeat(3000), &"a".repeat(256)] {
            assert!(matches!(Asked::new(bad, "home/node"), Err(FilesError::BadPath(_))), "{bad:?}");
        }
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(300)).chars().count(), 201);
    }

    #[test]
    fn keys_and_places() {
        assert!(check_key("sandbar-0_Af").is_ok());
        for bad in ["", ".", "..", "a/b", "a.b", "ä", &"k".repeat(129)] {
            assert!(matches!(check_key(bad), Err(FilesError::BadKey)), "{bad}");
        }
        assert_eq!(check_inside("/home/node").unwrap(), "home/node");
        for bad in ["", "/", "home", "/home/", "//home", "/home/..", "/./home", "/a\0"] {
            assert!(matches!(check_inside(bad), Err(FilesError::BadPath(_))), "{bad}");
        }
    }

    #[test]
    fn names_that_are_not_utf8_are_escaped() {
        assert_eq!(text(b"a\\b"), ("a\\b".to_owned(), false));
        assert_eq!(text(b"a\\\xffb"), ("a\\\\\\xffb".to_owned(), true));
    }
}
