//! Secrets: making them, holding them so that no log shows them, and taking them out of text that is shown.

use std::fmt;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// A fresh password: 16 random bytes as 32 hex digits.
    pub fn password() -> Self {
        Self(random_hex(16))
    }

    /// A fresh bearer token: 32 random bytes in hex behind a prefix that secret scanners can be taught.
    pub fn token() -> Self {
        Self(format!("sbx_{}", random_hex(32)))
    }

    /// The value itself. Whoever calls this decides where it goes.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Random bytes as hex.
///
/// # Panics
/// When the operating system has no randomness: nothing safe can be done then.
pub fn random_hex(bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    getrandom::fill(&mut buffer).expect("the operating system gives random bytes");
    hex(&buffer)
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Hex SHA-256. Tokens carry 256 random bits, so a plain hash is as good as a slow one and far cheaper.
pub fn sha256_hex(data: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(data.as_ref()))
}

/// Where the operator keeps a secret. Read when it is needed, so that a rotated file counts at once.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// The content of a file, without white space around it.
    File(PathBuf),
    /// An environment variable of this process.
    Env(String),
}

impl SecretSource {
    /// Reads it.
    ///
    /// # Errors
    /// One line that names the source and never its content.
    pub fn read(&self) -> Result<Secret, String> {
        let value = match self {
            Self::File(path) => {
                std::fs::read_to_string(path).map_err(|e| format!("the file {} cannot be read: {e}", path.display()))?
            }
            Self::Env(name) => {
                std::env::var(name).map_err(|_| format!("the environment variable {name} is not set to text"))?
            }
        };
        // Editors of some systems write a mark at the beginning of a file.
        let value = value.trim_start_matches('\u{feff}').trim();
        if value.is_empty() {
            return Err(format!("{self} is empty"));
        }
        if value.contains('\0') {
            return Err(format!("{self} has a NUL in it"));
        }
        Ok(Secret::new(value))
    }

    /// Reads a bearer token, which has to fit in a header.
    ///
    /// # Errors
    /// One line that names the source and never its content.
    pub fn read_token(&self) -> Result<Secret, String> {
        let token = self.read()?;
        let found =
            |what: &str| Err(format!("{self} has {what} within the token: it holds one token and nothing else"));
        if token.reveal().contains(char::is_whitespace) {
            return found("white space");
        }
        if token.reveal().contains(char::is_control) {
            return found("a control character");
        }
        if !token.reveal().is_ascii() {
            return found("a character that is not ASCII");
        }
        Ok(token)
    }
}

impl fmt::Display for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "the file {}", path.display()),
            Self::Env(name) => write!(f, "the environment variable {name}"),
        }
    }
}

/// At most this many lines of foreign output are shown.
const SHOWN_LINES: usize = 20;
/// At most this many bytes of foreign output are shown.
const SHOWN_BYTES: usize = 4096;

/// The end of some foreign output as lines fit to be shown: no secret, no control character, bounded.
pub fn shown_lines(text: &str, secrets: &[&Secret]) -> Vec<String> {
    let mut text = text.to_owned();
    for secret in secrets.iter().filter(|s| !s.reveal().is_empty()) {
        text = text.replace(secret.reveal(), "***");
    }
    let mut left = SHOWN_BYTES;
    let mut lines = Vec::new();
    for line in text.lines().rev().filter(|l| !l.trim().is_empty()).take(SHOWN_LINES) {
        let clean: String = line.trim_end().chars().map(|c| if c == '\t' { ' ' } else { c }).collect();
        let clean: String = clean.chars().filter(|c| !c.is_control()).collect();
        if clean.len() > left {
            let mut from = clean.len() - left;
            while !clean.is_char_boundary(from) {
                from += 1;
            }
            lines.push(clean[from..].to_owned());
            break;
        }
        left -= clean.len();
        lines.push(clean);
    }
    lines.retain(|l| !l.is_empty());
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_fresh_and_hex() {
        let (a, b) = (Secret::password(), Secret::password());
        assert_eq!(a.reveal().len(), 32);
        assert!(a.reveal().bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(a, b);
        assert_eq!(format!("{a:?}"), "***");
    }

    #[test]
    fn a_token_is_one_word_without_what_stands_around_it() {
        let dir = tempfile::tempdir().unwrap();
        let source = SecretSource::File(dir.path().join("a.token"));
        let read = |bytes: &[u8]| {
            std::fs::write(dir.path().join("a.token"), bytes).unwrap();
            source.read_token().map(|t| t.reveal().to_owned())
        };
        for good in ["abc", "abc\n", " \t\r\nabc\r\n\n", "\u{feff}abc\r\n"] {
            assert_eq!(read(good.as_bytes()).unwrap(), "abc", "{good:?}");
        }
        for (bad, why) in [
            (&b"abc def"[..], "white space"),
            (b"abc\ndef", "white space"),
            (b"abc\0def", "NUL"),
            (b"abc\x1bdef", "control"),
            ("abcé".as_bytes(), "ASCII"),
            (b" \n", "empty"),
            (b"abc\xff", "UTF-8"),
        ] {
            let said = read(bad).unwrap_err();
            assert!(said.contains(why) && said.contains("a.token") && !said.contains("abc"), "{said}");
        }
    }

    #[test]
    fn shown_lines_are_bounded_and_clean() {
        let secret = Secret::new("hunter2");
        let text = format!("{}\nlogin \u{1b}[31mhunter2\tfailed\r\n\n", "x\n".repeat(100));
        let lines = shown_lines(&text, &[&secret]);
        assert_eq!(lines.len(), 20);
        assert_eq!(lines[19], "login [31m*** failed");
        let long = shown_lines(&"é".repeat(10_000), &[]);
        assert!(long.iter().map(String::len).sum::<usize>() <= 4096);
        assert!(long[0].chars().all(|c| c == 'é'));
    }
}
