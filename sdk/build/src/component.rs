//! Makes a component of a core module, and checks that it is an engine. Runs nothing of it.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};
use wit_component::ComponentEncoder;

/// The interface that an engine exports, up to its version.
const INTERFACE: &str = "sandbar:engine/engine@";

/// Encodes a core module as a component, and checks it.
///
/// # Errors
///
/// If the module is not what `sandbar_sdk::export_engine!` makes, or it imports anything.
pub fn encode(module: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = ComponentEncoder::default().validate(true).module(module)?;
    let bytes = encoder.encode().context("encoding it (is there an `export_engine!` at the root of the crate?)")?;
    check(&bytes)?;
    Ok(bytes)
}

/// Checks that a component exports the contract and imports nothing.
///
/// # Errors
///
/// If it does not, by name; or if the bytes are no component.
pub fn check(bytes: &[u8]) -> Result<()> {
    let names = Names::of(bytes)?;
    if !names.imports.is_empty() {
        bail!("it imports {}: an engine imports nothing", names.imports.join(", "));
    }
    if !names.exports.iter().any(|name| name.starts_with(INTERFACE)) {
        bail!("it does not export `{INTERFACE}…`: put `export_engine!` at the root of the crate");
    }
    Ok(())
}

/// Hex SHA-256 of bytes.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a component imports and exports at its outermost level.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The names of its imports.
    pub imports: Vec<String>,
    /// The names of its exports.
    pub exports: Vec<String>,
}

impl Names {
    /// Reads the names from a component.
    ///
    /// # Errors
    ///
    /// If the bytes are no component.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        if !Parser::is_component(bytes) {
            bail!("this is no WebAssembly component");
        }
        let mut names = Self::default();
        // Components and modules nest; only what stands at depth 0 reaches the host.
        let mut depth = 0_u32;
        for payload in Parser::new(0).parse_all(bytes) {
            match payload? {
                Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
                Payload::End(_) => depth = depth.saturating_sub(1),
                Payload::ComponentImportSection(section) if depth == 0 => {
                    for import in section {
                        names.imports.push(import?.name.name.to_owned());
                    }
                }
                Payload::ComponentExportSection(section) if depth == 0 => {
                    for export in section {
                        names.exports.push(export?.name.name.to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(names)
    }
}
