//! Files where none may be.

use sandbar_core::engine::File;

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let file = |path: &str, mode: u32, content: &str| -> Source {
        let (path, content) = (path.to_owned(), content.to_owned());
        Text::with(|r| r.container.files.push(File { path, mode, content })).into()
    };
    let many = (0..16).map(|i| File { path: format!("/{i}"), mode: 0o644, content: String::new() });
    named([
        ("file-in-data", file("/data/file", 0o644, "")),
        ("file-passwd", file("/etc/passwd", 0o644, "root::0:0::/:/bin/sh")),
        ("file-preload", file("/etc/ld.so.preload", 0o644, "/evil.so")),
        ("file-sudoers", file("/etc/sudoers.d/evil", 0o440, "")),
        ("file-hosts", file("/etc/hosts", 0o644, "")),
        ("file-proc", file("/proc/sysrq-trigger", 0o644, "b")),
        ("file-parent", file("/etc/../data/file", 0o644, "")),
        ("file-relative", file("file", 0o644, "")),
        ("file-setuid", file("/bin/evil", 0o4755, "")),
        ("file-twice", file("/etc/cache.conf", 0o644, "")),
        ("file-large", file("/large", 0o644, &"x".repeat(300 << 10))),
        ("file-many", Text::with(|r| r.container.files.extend(many)).into()),
        ("file-in-work-folder", Text::with(|r| r.container.work_folder = Some("/etc".to_owned())).into()),
        ("work-folder-in-data", Text::with(|r| r.container.work_folder = Some("/data/work".to_owned())).into()),
    ])
}
