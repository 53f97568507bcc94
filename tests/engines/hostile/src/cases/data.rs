//! Data where none may be.

use sandbar_core::engine::DataDir;

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let at = |path: &str| -> Source { Text::with(|r| r.container.data[0].path = path.to_owned()).into() };
    let more = |path: &str| -> Source {
        Text::with(|r| r.container.data.push(DataDir { path: path.to_owned(), tmpfs_bytes: 1 << 20 })).into()
    };
    let sized = |bytes: u64| -> Source { Text::with(|r| r.container.data[0].tmpfs_bytes = bytes).into() };
    named([
        ("data-root", at("/")),
        ("data-parent", at("..")),
        ("data-through-parent", at("/data/../etc")),
        ("data-proc", at("/proc")),
        ("data-sys", at("/sys/fs/cgroup")),
        ("data-dev", at("/dev/shm")),
        ("data-relative", at("data")),
        ("data-mount", at("/data:rw,exec")),
        ("data-invisible", at("/data\u{202e}")),
        ("data-long", at(&"/a".repeat(50_000))),
        ("data-elsewhere", at("/home")),
        ("data-nested", more("/data/more")),
        ("data-huge", sized(u64::MAX)),
        ("data-nothing", sized(0)),
    ])
}
