//! The compiled code that is kept. What lies there is run as it is, and wasmtime notices damage only where it cannot unpack
//! an entry. So the hash of each entry is kept too, and when the directory is opened every entry goes that is not what was
//! written: it is compiled again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use wasmtime::{Cache, CacheConfig};

use crate::artifact::sha256;
use crate::error::HostError;
use crate::explain::one_line;

/// A directory of compiled code.
pub(crate) struct CodeCache {
    /// Where wasmtime keeps it.
    code: PathBuf,
    /// The file with a line for each entry: its hash, and its path in `code`.
    sums: PathBuf,
    known: Mutex<BTreeMap<String, String>>,
    cache: Cache,
}

impl CodeCache {
    /// Opens a directory, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// It cannot be used, or others may write to it.
    pub(crate) fn open(path: &Path) -> Result<Self, HostError> {
        let failed = |reason: String| HostError::Cache { path: path.to_owned(), reason };
        let io = |error: io::Error| failed(error.to_string());
        let path = std::path::absolute(path).map_err(io)?;
        let code = path.join("code");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&code).map_err(io)?;
        let mode = fs::metadata(&path).map_err(io)?.mode();
        if mode & 0o022 != 0 {
            return Err(failed(format!(
                "others may write to it (mode {:o}), and what lies in it is run; take that away with chmod go-w",
                mode & 0o777
            )));
        }
        let sums = path.join("sums.txt");
        let mut known = read(&sums);
        let mut sound = BTreeMap::new();
        for (name, file) in entries(&code) {
            match known.remove(&name) {
                Some(sum) if fs::read(&file).is_ok_and(|bytes| sha256(&bytes) == sum) => {
                    sound.insert(name, sum);
                }
                _ => fs::remove_file(&file).map_err(io)?,
            }
        }
        let mut config = CacheConfig::new();
        config.with_directory(&code);
        // Else wasmtime would write entries anew by itself, packed more tightly.
        config.with_optimized_compression_usage_counter_threshold(u64::MAX);
        let cache = Cache::new(config).map_err(|error| failed(one_line(&format!("{error:#}"))))?;
        Ok(Self { code, sums, known: Mutex::new(sound), cache })
    }

    /// For wasmtime.
    pub(crate) fn cache(&self) -> Cache {
        self.cache.clone()
    }

    /// Remembers what was compiled since the last time.
    pub(crate) fn remember(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new: Vec<_> = entries(&self.code).into_iter().filter(|(name, _)| !known.contains_key(name)).collect();
        if new.is_empty() {
            return;
        }
        known.extend(new.into_iter().filter_map(|(name, file)| Some((name, sha256(&fs::read(file).ok()?)))));
        let text: String = known.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
        let part = self.sums.with_extension("part");
        if let Err(error) = fs::write(&part, text).and_then(|()| fs::rename(&part, &self.sums)) {
            tracing::warn!(%error, "compiled engines are not remembered, and the next start compiles them again");
        }
    }
}

/// The hash of each entry, as it was written; nothing where nothing can be read.
fn read(sums: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(sums).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once("  ")).map(|(sum, name)| (name.to_owned(), sum.to_owned())).collect()
}

/// Every entry by its path in the directory: `modules/<compiler>/<hash>`. What has an extension are wasmtime's statistics.
fn entries(code: &Path) -> Vec<(String, PathBuf)> {
    let below = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = below(&code.join("modules")).flat_map(|compiler| below(&compiler).collect::<Vec<_>>());
    let entries = files.filter(|file| file.extension().is_none() && file.is_file());
    entries.filter_map(|file| Some((file.strip_prefix(code).ok()?.to_str()?.to_owned(), file))).collect()
}
