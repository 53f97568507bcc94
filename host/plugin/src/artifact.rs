//! A component's bytes and what can be read from them without compiling or running anything: hash, size, the versions of
//! the contract it exports, what it imports. Judging them is [`Artifact::admissible`]; nothing here knows wasmtime.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use semver::Version;
use sha2::{Digest as _, Sha256};
use wasmparser::{Chunk, Encoding, Parser, Payload};

use crate::contract::{self, CONTRACT_INTERFACE};
use crate::error::{LoadError, LoadReason};
use crate::explain::one_line;
use crate::limits::MAX_COMPONENT_BYTES;
use crate::wasi;

/// The first bytes of everything that is WebAssembly.
const MAGIC: &[u8] = b"\0asm";

/// How many refused imports an error names; the others are counted.
const NAMED_IMPORTS: usize = 8;

/// A component, read but not compiled.
#[derive(Debug, Clone)]
pub struct Artifact {
    bytes: Vec<u8>,
    hash: String,
    contract_versions: Vec<String>,
    imports: Vec<String>,
}

/// How many bytes of a component are what. The rest describes how its parts fit together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// All of them.
    pub whole: usize,
    /// Functions.
    pub code: usize,
    /// What is in memory from the start.
    pub data: usize,
    /// What is not needed to run it, such as names of functions.
    pub custom: usize,
}

impl Artifact {
    /// Reads a file, once. With a pin (SHA-256, 64 hexadecimal digits of either case) the bytes are looked at no further
    /// unless their hash is that one.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is too large, is not the pinned one, or is not a component.
    pub fn read(path: &Path, pin: Option<&str>) -> Result<Self, LoadError> {
        let read = || {
            let pin = pin.map(parse_pin).transpose()?;
            let bytes = read_bounded(path)?;
            let hash = sha256(&bytes);
            match pin {
                Some(expected) if expected != hash => Err(LoadReason::PinMismatch { expected, actual: hash }),
                _ => Self::parse(bytes, hash),
            }
        };
        read().map_err(|reason| LoadError { path: path.to_owned(), reason })
    }

    /// Takes bytes that are at hand.
    ///
    /// # Errors
    ///
    /// They are too many, or not a component.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, LoadReason> {
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if size > MAX_COMPONENT_BYTES {
            return Err(LoadReason::TooLarge { bytes: size });
        }
        let hash = sha256(&bytes);
        Self::parse(bytes, hash)
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Hex SHA-256 of the bytes, in lower case.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Every version under which it exports the contract; an empty string for an export without a version.
    #[must_use]
    pub fn contract_versions(&self) -> &[String] {
        &self.contract_versions
    }

    /// The names of everything it imports, in its order.
    #[must_use]
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// What its bytes are.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes { whole: self.bytes.len(), ..Sizes::default() };
        // Whatever comes after a part that is damaged is counted nowhere.
        for payload in Parser::new(0).parse_all(&self.bytes).map_while(Result::ok) {
            match payload {
                Payload::CodeSectionStart { range, .. } => sizes.code += range.len(),
                Payload::DataSection(section) => sizes.data += section.range().len(),
                Payload::CustomSection(section) => sizes.custom += section.data().len(),
                _ => {}
            }
        }
        sizes
    }

    /// Whether this host can load it, as far as can be told without compiling: the version of the contract that the two
    /// will speak.
    ///
    /// # Errors
    ///
    /// It is no engine, was built for another version of the contract, or imports something that is not on the list.
    pub fn admissible(&self) -> Result<Version, LoadReason> {
        let version = contract::spoken(&self.contract_versions)?;
        let mut refused: Vec<String> =
            self.imports.iter().filter(|import| !wasi::is_allowed(import)).map(|import| one_line(import)).collect();
        if refused.is_empty() {
            return Ok(version);
        }
        let others = refused.len().saturating_sub(NAMED_IMPORTS);
        if others > 0 {
            refused.truncate(NAMED_IMPORTS);
            refused.push(format!("and {others} more"));
        }
        Err(LoadReason::Imports(refused))
    }

    /// Reads the outermost layer. Whether the layers below are valid is found when they are compiled.
    fn parse(bytes: Vec<u8>, hash: String) -> Result<Self, LoadReason> {
        if bytes.is_empty() {
            return Err(LoadReason::Empty);
        }
        let truncated = || LoadReason::Truncated { bytes: bytes.len() };
        if !bytes.starts_with(MAGIC) {
            return Err(match std::str::from_utf8(&bytes) {
                _ if MAGIC.starts_with(&bytes) => truncated(),
                Ok(text) if !text.contains('\0') => LoadReason::Text,
                _ => LoadReason::NotWasm,
            });
        }

        let malformed = |error: wasmparser::Error| LoadReason::Malformed(one_line(&error.to_string()));
        let mut contract_versions = Vec::new();
        let mut imports = Vec::new();
        let mut parser = Parser::new(0);
        let mut rest = bytes.as_slice();
        loop {
            // Never told that this is the end, so that the parser asks for more where something is cut off.
            let (consumed, payload) = match parser.parse(rest, false).map_err(malformed)? {
                Chunk::NeedMoreData(_) if rest.is_empty() => break,
                Chunk::NeedMoreData(_) => return Err(truncated()),
                Chunk::Parsed { consumed, payload } => (consumed, payload),
            };
            rest = rest.get(consumed..).unwrap_or_default();
            match payload {
                Payload::Version { encoding: Encoding::Module, .. } => return Err(LoadReason::CoreModule),
                Payload::ModuleSection { unchecked_range, .. } | Payload::ComponentSection { unchecked_range, .. } => {
                    rest = rest.get(unchecked_range.len()..).ok_or_else(truncated)?;
                    continue;
                }
                Payload::ComponentImportSection(section) => {
                    for import in section {
                        imports.push(import.map_err(malformed)?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) => {
                    for export in section {
                        let name = export.map_err(malformed)?.name.name;
                        match name.strip_prefix(CONTRACT_INTERFACE) {
                            Some("") => contract_versions.push(String::new()),
                            Some(end) => contract_versions.extend(end.strip_prefix('@').map(str::to_owned)),
                            None => {}
                        }
                    }
                }
                Payload::UnknownSection { id, .. } => {
                    return Err(LoadReason::Malformed(format!("it has a section of unknown kind {id}")));
                }
                _ => {}
            }
        }
        Ok(Self { hash, contract_versions, imports, bytes })
    }
}

/// The bytes of a regular file, if they are not too many.
fn read_bounded(path: &Path) -> Result<Vec<u8>, LoadReason> {
    // Asked before opening too, since opening a pipe waits for its other end.
    if !std::fs::metadata(path)?.is_file() {
        return Err(LoadReason::NotAFile);
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    if size > MAX_COMPONENT_BYTES {
        return Err(LoadReason::TooLarge { bytes: size });
    }
    // The file may grow meanwhile.
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    file.take(MAX_COMPONENT_BYTES + 1).read_to_end(&mut bytes)?;
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if size > MAX_COMPONENT_BYTES {
        return Err(LoadReason::TooLarge { bytes: size });
    }
    Ok(bytes)
}

fn parse_pin(pin: &str) -> Result<String, LoadReason> {
    if pin.len() == 64 && pin.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(pin.to_ascii_lowercase())
    } else {
        Err(LoadReason::BadPin(one_line(pin)))
    }
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
