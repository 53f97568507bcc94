//! The tar archives in which a unit's files go in. Only the files stand in it and never a folder: Docker makes the folders
//! that are missing (root, 0755), and an entry for one that exists would change its owner, mode and time.

use sandbar_core::runtime::{FilePlan, Result, RuntimeError};

/// The time of every file, so that the same plan gives the same bytes. Not zero, which some programs take for "unknown".
const MODIFIED: u64 = 946_684_800;

/// The archive, to be unpacked at the root.
pub(crate) fn archive(files: &[FilePlan]) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    for file in files {
        let path = clean(&file.path)
            .filter(|path| path != "/")
            .ok_or_else(|| RuntimeError::Refused(format!("`{}` is no path for a file", file.path.escape_debug())))?;
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(file.content.len() as u64);
        header.set_mode(file.mode & 0o7777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(MODIFIED);
        builder.append_data(&mut header, path.trim_start_matches('/'), file.content.as_bytes()).map_err(unpackable)?;
    }
    builder.into_inner().map_err(unpackable)
}

/// An archive with nothing but a folder that is there, which gives it this mode, and root as its owner.
pub(crate) fn folder(path: &str, mode: u32) -> Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(MODIFIED);
    builder.append_data(&mut header, path.trim_start_matches('/'), std::io::empty()).map_err(unpackable)?;
    builder.into_inner().map_err(unpackable)
}

fn unpackable(error: std::io::Error) -> RuntimeError {
    RuntimeError::Refused(format!("a file cannot be put into an archive: {error}"))
}

/// An absolute path in its shortest form, as Docker compares paths: no double or final slash and no dots. `None` for one
/// that leads upwards or is no path at all. A relative one counts from the root, as the paths of an image's volumes do.
pub(crate) fn clean(path: &str) -> Option<String> {
    if path.is_empty() || path.contains('\0') {
        return None;
    }
    let mut cleaned = String::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return None;
        }
        cleaned.push('/');
        cleaned.push_str(part);
    }
    Some(if cleaned.is_empty() { "/".to_owned() } else { cleaned })
}

/// Whether `path` is `folder` or lies below it, both cleaned.
pub(crate) fn is_below(path: &str, folder: &str) -> bool {
    folder == "/" || path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn file(path: &str, mode: u32, content: &str) -> FilePlan {
        FilePlan { path: path.to_owned(), mode, content: content.to_owned() }
    }

    #[test]
    fn the_archive_holds_the_files_and_no_folder() {
        let long = format!("/{}/x", "d".repeat(150));
        let files = [file("/etc/a//b.sh", 0o755, "hi\n"), file("/secret", 0o100_600, ""), file(&long, 0o644, "é")];
        let Ok(bytes) = archive(&files) else { panic!("they fit") };
        let mut archive = tar::Archive::new(bytes.as_slice());
        let Ok(entries) = archive.entries() else { panic!("it is an archive") };
        let mut seen = Vec::new();
        for entry in entries {
            let Ok(mut entry) = entry else { panic!("it is whole") };
            let mut content = String::new();
            assert!(entry.read_to_string(&mut content).is_ok());
            let header = entry.header();
            assert!(header.entry_type().is_file());
            assert_eq!((header.uid().ok(), header.gid().ok(), header.mtime().ok()), (Some(0), Some(0), Some(MODIFIED)));
            let path = entry.path().map(|path| path.display().to_string()).unwrap_or_default();
            seen.push((path, entry.header().mode().unwrap_or_default(), content));
        }
        assert_eq!(
            seen,
            [
                ("etc/a/b.sh".to_owned(), 0o755, "hi\n".to_owned()),
                ("secret".to_owned(), 0o600, String::new()),
                (long[1..].to_owned(), 0o644, "é".to_owned()),
            ]
        );
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let files = [file("/a", 0o644, "1"), file("/b", 0o644, "2")];
        assert_eq!(archive(&files), archive(&files));
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["", "/", "/a/../b", "..", "/a\0b"] {
            assert!(matches!(archive(&[file(path, 0o644, "")]), Err(RuntimeError::Refused(_))), "{path:?}");
        }
    }

    #[test]
    fn paths_are_compared_clean() {
        assert_eq!(clean("/data/").as_deref(), Some("/data"));
        assert_eq!(clean("data//./x").as_deref(), Some("/data/x"));
        assert_eq!(clean("//").as_deref(), Some("/"));
        assert!(is_below("/data", "/data") && is_below("/data/x", "/data") && is_below("/x", "/"));
        assert!(!is_below("/database", "/data") && !is_below("/", "/data"));
    }
}
