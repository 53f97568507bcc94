//! What the work folders promise while nothing disturbs them.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use sandbar_files::{FilesError, Kind, Owner, WorkFolder, WorkFolders};

struct Bench {
    above: tempfile::TempDir,
    folders: WorkFolders,
    folder: WorkFolder,
}

impl Bench {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        fs::write(above.path().join("secret"), "secret").unwrap();
        let folders = WorkFolders::open(&above.path().join("boxes")).unwrap();
        let folder = folders.folder("key", "/home/node").unwrap();
        Self { above, folders, folder }
    }

    /// As the box sees its folder.
    fn work(&self) -> &Path {
        self.folder.host_path()
    }

    fn read(&self, path: &str) -> Result<String, FilesError> {
        Ok(String::from_utf8(self.folder.read(path, 0, 1000)?.bytes).unwrap())
    }

    fn write(&self, path: &str, text: &str) -> Result<(), FilesError> {
        self.folder.write(path, text.as_bytes(), None, me(), true)
    }

    fn names(&self, path: &str, recursive: bool) -> Vec<String> {
        self.folder.list(path, recursive, 1000).unwrap().entries.into_iter().map(|e| e.path).collect()
    }
}

/// Who runs the tests, who may give files only to itself unless it is root.
fn me() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn folders_are_private_and_found_again() {
    let bench = Bench::new();
    let dir = bench.above.path().join("boxes");
    assert_eq!(bench.work(), dir.canonicalize().unwrap().join("key/root/home/node"));
    for private in ["", "key", "key/root", "key/root/home"] {
        assert_eq!(fs::metadata(dir.join(private)).unwrap().mode() & 0o777, 0o700, "{private}");
    }
    assert_eq!(fs::metadata(bench.work()).unwrap().mode() & 0o777, 0o755);
    bench.write("kept", "kept").unwrap();
    fs::set_permissions(bench.work(), fs::Permissions::from_mode(0o700)).unwrap();
    let again = WorkFolders::open(&dir).unwrap();
    assert_eq!(again.folder("key", "/home/node").unwrap().read("kept", 0, 9).unwrap().bytes, b"kept");
    assert_eq!(fs::metadata(bench.work()).unwrap().mode() & 0o777, 0o700, "the box's choice stays");
    again.folder("another", "/sandbox").unwrap();
    assert_eq!(again.keys().unwrap(), ["another", "key"]);
    assert!(again.exists("key").unwrap());
    assert!(!again.exists("none").unwrap());
    assert!(matches!(again.exists("../key"), Err(FilesError::BadKey)));
}

#[test]
fn a_folder_stays_where_it_was_made() {
    let bench = Bench::new();
    // Below a work folder the box decides what a path means.
    symlink("/etc", bench.work().join("deeper")).unwrap();
    for elsewhere in ["/home", "/home/node/deeper", "/sandbox"] {
        let error = bench.folders.folder("key", elsewhere).unwrap_err();
        assert!(matches!(&error, FilesError::Elsewhere(place) if place == "/home/node"), "{elsewhere}: {error}");
    }
    assert!(matches!(bench.folders.folder("key", "/home/../etc"), Err(FilesError::BadPath(_))));
    assert!(matches!(bench.folders.folder("a/b", "/home"), Err(FilesError::BadKey)));
}

#[test]
fn reading_gives_a_part_of_a_regular_file() {
    let bench = Bench::new();
    bench.write("dir/file", "0123456789").unwrap();
    let content = bench.folder.read("dir/file", 2, 3).unwrap();
    assert_eq!((content.bytes.as_slice(), content.size), (&b"234"[..], 10));
    assert!((content.modified - fs::metadata(bench.work()).unwrap().mtime()).abs() < 60);
    assert_eq!(bench.folder.read("/home/node/dir/./file", 8, 100).unwrap().bytes, b"89");
    assert_eq!(bench.folder.read("dir/../dir/file", u64::MAX, 100).unwrap().bytes, b"");
    assert!(bench.folder.read("dir/file", 0, 0).unwrap().bytes.is_empty());

    let (mut file, size) = bench.folder.open_read("dir/file", 10).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), size), ("0123456789", 10));
    let error = bench.folder.open_read("dir/file", 9).unwrap_err();
    assert!(matches!(error, FilesError::TooLarge { size: 10, most: 9, .. }), "{error}");

    assert!(matches!(bench.read("none"), Err(FilesError::NotFound(_))));
    assert!(matches!(bench.read("none/none"), Err(FilesError::NotFound(_))));
    assert!(matches!(bench.read("dir/file/x"), Err(FilesError::NotADirectory(_))));
    for directory in ["dir", ".", "dir/", "dir/.."] {
        assert!(matches!(bench.read(directory), Err(FilesError::NotAFile(_))), "{directory}");
    }
    // A file that says it is larger than any memory.
    fs::File::create(bench.work().join("huge")).unwrap().set_len(1 << 42).unwrap();
    assert_eq!(bench.folder.read("huge", 1 << 41, 10).unwrap().bytes, [0; 10]);
}

#[test]
fn special_files_are_never_opened() {
    let bench = Bench::new();
    rustix::fs::mkfifoat(CWD, bench.work().join("pipe"), Mode::RWXU).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(bench.work().join("socket")).unwrap();
    let mut special = vec!["pipe", "socket"];
    if is_root() {
        // A device without a driver: opening it would be another error.
        let device = rustix::fs::makedev(240, 77);
        let path = bench.work().join("device");
        if rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RWXU, device).is_ok() {
            special.push("device");
        }
    }
    for name in special {
        symlink(name, bench.work().join(format!("{name}-link"))).unwrap();
        for path in [name.to_owned(), format!("{name}-link")] {
            assert!(matches!(bench.read(&path), Err(FilesError::NotAFile(_))), "{path}");
            assert!(matches!(bench.folder.open_read(&path, 1), Err(FilesError::NotAFile(_))), "{path}");
            assert!(matches!(bench.write(&path, "x"), Err(FilesError::NotAFile(_))), "{path}");
        }
        assert!(matches!(bench.folder.list(name, true, 1), Err(FilesError::NotADirectory(_))));
        let listed = bench.folder.list(".", false, 100).unwrap().entries;
        assert_eq!(listed.iter().find(|e| e.path == name).unwrap().kind, Kind::Other);
    }
}

#[test]
fn links_mean_what_they_mean_in_the_box() {
    let bench = Bench::new();
    bench.write("dir/file", "inside").unwrap();
    let link = |name: &str, target: &str| symlink(target, bench.work().join(name)).unwrap();
    link("relative", "dir/file");
    link("absolute", "/home/node/dir/file");
    link("chain", "absolute");
    link("dir/up", "../relative");
    link("folder", "/home/node/dir");
    link("around", "../../../../home/node/dir");
    for path in
        ["relative", "absolute", "chain", "dir/up", "folder/file", "folder/up", "around/file", "around/../chain"]
    {
        assert_eq!(bench.read(path).unwrap(), "inside", "{path}");
        bench.write(path, "inside").unwrap();
    }
    assert!(fs::symlink_metadata(bench.work().join("chain")).unwrap().is_symlink(), "the target was written");
    assert_eq!(bench.names("folder", false), ["folder/file", "folder/up"]);
    bench.write("folder/new/deep/file", "new").unwrap();
    assert_eq!(bench.read("dir/new/deep/file").unwrap(), "new");
    // A link to nothing makes its target, as a shell would.
    link("to-come", "/home/node/dir/came");
    assert!(matches!(bench.read("to-come"), Err(FilesError::Outside(_))));
    bench.write("to-come", "came").unwrap();
    assert_eq!(bench.read("dir/came").unwrap(), "came");
}

#[test]
fn links_that_lead_out_lead_nowhere() {
    let bench = Bench::new();
    let above = bench.above.path().to_str().unwrap();
    let link = |name: &str, target: &str| symlink(target, bench.work().join(name)).unwrap();
    link("etc", "/etc");
    link("passwd", "/etc/passwd");
    link("above", above);
    link("secret", &format!("{above}/secret"));
    link("climb", "../../../../../secret");
    link("up", "..");
    link("root", "/");
    link("home", "/home");
    link("new", "/home/new");
    link("circle", "circle");
    link("self", "/proc/self/root/etc/passwd");
    link("to-up", "up");
    let before = snapshot(bench.above.path());
    for path in [
        "passwd",
        "secret",
        "climb",
        "new",
        "circle",
        "self",
        "etc/passwd",
        "above/secret",
        "up/new",
        "root/new",
        "home/new",
        "to-up/x",
        "root/etc/passwd",
        "up/../../../secret",
    ] {
        let error = bench.read(path).unwrap_err();
        assert!(matches!(error, FilesError::Outside(_) | FilesError::NotFound(_)), "{path}: {error}");
        assert!(!error.to_string().contains(above), "{error}");
    }
    for path in [
        "passwd",
        "secret",
        "climb",
        "new",
        "circle",
        "etc/x",
        "above/secret",
        "up/new",
        "root/new",
        "home/x/y",
        "to-up/x",
        "root/x/y/z",
    ] {
        let error = bench.write(path, "x").unwrap_err();
        assert!(matches!(error, FilesError::Outside(_)), "{path}: {error}");
    }
    for path in ["etc", "above", "up", "root", "home", "circle", "to-up"] {
        let error = bench.folder.list(path, true, 10).unwrap_err();
        assert!(matches!(error, FilesError::Outside(_)), "{path}: {error}");
    }
    for path in ["/etc/passwd", "..", "../../key", "/home", "dir/../../x"] {
        assert!(matches!(bench.read(path), Err(FilesError::Outside(_))), "{path}");
    }
    assert_eq!(snapshot(bench.above.path()), before);
    // Through the shadow root and back in is the box's own view, and inside.
    bench.write("file", "inside").unwrap();
    assert_eq!(bench.read("root/home/node/file").unwrap(), "inside");
    assert_eq!(bench.read("up/node/file").unwrap(), "inside");
}

#[test]
fn a_write_is_whole_and_never_grants_more() {
    let bench = Bench::new();
    let mode = |name: &str| fs::metadata(bench.work().join(name)).unwrap().mode() & 0o7777;
    bench.write("file", "one").unwrap();
    assert_eq!(mode("file"), 0o644);
    bench.folder.write("file", b"two", Some(0o7755), me(), false).unwrap();
    assert_eq!(mode("file"), 0o755);
    fs::set_permissions(bench.work().join("file"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::hard_link(bench.work().join("file"), bench.work().join("other-name")).unwrap();
    bench.write("file", "three").unwrap();
    assert_eq!(mode("file"), 0o711, "kept, without set-uid");
    assert_eq!(bench.read("other-name").unwrap(), "two", "replaced, not written into");
    fs::create_dir(bench.work().join("dir")).unwrap();
    assert!(matches!(bench.write("dir", "x"), Err(FilesError::NotAFile(_))));
    assert!(matches!(bench.write("file/x", "x"), Err(FilesError::NotADirectory(_))));
    assert!(matches!(bench.write("none/../x", "x"), Err(FilesError::NotFound(_))));
    let without = bench.folder.write("a/b/c", b"x", None, me(), false);
    assert!(matches!(without, Err(FilesError::NotFound(_))));
    bench.write("a/b/c", "x").unwrap();
    assert_eq!((mode("a"), mode("a/b")), (0o755, 0o755));
    let nobody = Owner { uid: u32::MAX, gid: 0 };
    assert!(bench.folder.write("file", b"x", None, nobody, false).is_err());
    assert_eq!(bench.read("file").unwrap(), "three");
    assert_eq!(bench.names(".", true), ["a", "a/b", "a/b/c", "dir", "file", "other-name"], "nothing was left");
}

#[test]
fn what_is_made_belongs_to_the_owner() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let owner = Owner { uid: 12_345, gid: 54_321 };
    bench.folder.chown_root(owner).unwrap();
    fs::create_dir(bench.work().join("there")).unwrap();
    bench.folder.write("there/a/b/file", b"x", Some(0o600), owner, true).unwrap();
    for (path, uid) in
        [(".", 12_345), ("there", 0), ("there/a", 12_345), ("there/a/b", 12_345), ("there/a/b/file", 12_345)]
    {
        let stat = fs::metadata(bench.work().join(path)).unwrap();
        assert_eq!(stat.uid(), uid, "{path}");
        assert_eq!(stat.gid() == 54_321, uid == 12_345, "{path}");
    }
}

#[test]
fn a_full_file_system_is_told_and_leaves_nothing() {
    // A file system of 64 KiB, where one may be mounted.
    let small = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).arg(small.path()).status();
    if !is_root() || !mount(&["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs"]).is_ok_and(|s| s.success()) {
        return;
    }
    let folder = WorkFolders::open(small.path()).unwrap().folder("key", "/work").unwrap();
    folder.write("kept", b"kept", None, me(), false).unwrap();
    let full = folder.write("kept", &[1; 100_000], None, me(), false);
    let left = folder.list(".", true, 10).unwrap().entries.len();
    let kept = folder.read("kept", 0, 10).unwrap().bytes;
    drop(folder);
    assert!(mount(&["umount"]).unwrap().success());
    assert!(matches!(full, Err(FilesError::Full(_))), "{full:?}");
    assert_eq!((left, kept.as_slice()), (1, &b"kept"[..]));
}

#[test]
fn a_listing_is_sorted_bounded_and_follows_nothing() {
    let bench = Bench::new();
    for path in ["b/2", "b/1", "a", "b-x", "c/d/e"] {
        bench.write(path, "12345").unwrap();
    }
    symlink("/etc", bench.work().join("c/out")).unwrap();
    symlink("/home/node/b", bench.work().join("in")).unwrap();
    assert_eq!(bench.names(".", false), ["a", "b", "b-x", "c", "in"]);
    assert_eq!(bench.names("/home/node", true), ["a", "b", "b-x", "b/1", "b/2", "c", "c/d", "c/d/e", "c/out", "in"]);
    assert_eq!(bench.names("c/d/..", false), ["c/d/../d", "c/d/../out"]);
    let all = bench.folder.list(".", true, 10).unwrap();
    assert!(!all.truncated);
    let by = |path: &str| all.entries.iter().find(|e| e.path == path).unwrap();
    assert_eq!((by("a").kind, by("a").size, by("a").mode), (Kind::File, 5, 0o644));
    assert_eq!((by("c").kind, by("c").target.as_deref()), (Kind::Directory, None));
    assert_eq!((by("c/out").kind, by("c/out").target.as_deref()), (Kind::Link, Some("/etc")));
    for limit in 0..10 {
        let some = bench.folder.list(".", true, limit).unwrap();
        assert!(some.truncated);
        assert_eq!(some.entries, all.entries[..limit], "the first {limit}");
    }
    assert!(matches!(bench.folder.list("a", true, 1), Err(FilesError::NotADirectory(_))));
    assert!(matches!(bench.folder.list("none", true, 1), Err(FilesError::NotFound(_))));

    fs::write(bench.work().join(std::ffi::OsStr::from_bytes(b"z\xff")), "").unwrap();
    let last = bench.folder.list(".", false, 100).unwrap().entries.pop().unwrap();
    assert_eq!((last.path.as_str(), last.escaped), ("z\\xff", true));
}

#[test]
fn usage_counts_room_and_stops_early() {
    let bench = Bench::new();
    let empty = bench.folder.usage(u64::MAX).unwrap();
    bench.write("a/b/file", &"x".repeat(1 << 20)).unwrap();
    let one = bench.folder.usage(u64::MAX).unwrap();
    assert!(one - empty >= 1 << 20 && one - empty < (1 << 20) + 100_000, "{empty} {one}");
    fs::hard_link(bench.work().join("a/b/file"), bench.work().join("again")).unwrap();
    fs::File::create(bench.work().join("sparse")).unwrap().set_len(1 << 40).unwrap();
    symlink("/usr", bench.work().join("usr")).unwrap();
    assert!(bench.folder.usage(u64::MAX).unwrap() - one < 100_000, "a file with two names counts once");
    assert!(bench.folder.usage(1000).unwrap() > 1000);
}

/// Nests directories through handles, since no path can name them.
fn nest(at: &Path, depth: usize) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut folder = rustix::fs::open(at, flags, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&folder, "deep", Mode::RWXU).unwrap();
        let file = OFlags::CREATE | OFlags::WRONLY;
        drop(rustix::fs::openat(&folder, "file", file, Mode::RUSR).unwrap());
        folder = rustix::fs::openat(&folder, "deep", flags, Mode::empty()).unwrap();
    }
}

#[test]
fn trees_of_any_depth_are_counted_listed_and_removed() {
    let bench = Bench::new();
    nest(bench.work(), 10_000);
    let bytes = bench.folder.usage(u64::MAX).unwrap();
    assert!(bytes >= 20_000 * 512, "{bytes}");
    let listing = bench.folder.list(".", true, 5000).unwrap();
    assert!(listing.truncated);
    assert!(listing.entries.len() > 1000);
    bench.folders.remove("key").unwrap();
    assert_eq!(snapshot(&bench.above.path().join("boxes")), [".trash d 0"]);
    bench.folders.remove("key").unwrap();
    assert!(matches!(bench.read("file"), Err(FilesError::NotFound(_))), "a handle of a removed folder finds nothing");
}

#[test]
fn a_wide_tree_is_removed() {
    let bench = Bench::new();
    for i in 0..300 {
        fs::create_dir_all(bench.work().join(format!("{i}/empty"))).unwrap();
        for j in 0..30 {
            fs::write(bench.work().join(format!("{i}/{j}")), "").unwrap();
        }
    }
    bench.folders.remove("key").unwrap();
    assert!(!bench.folders.exists("key").unwrap());
    assert_eq!(snapshot(&bench.above.path().join("boxes")), [".trash d 0"]);
}

#[test]
fn removing_follows_no_link_and_needs_no_permissions() {
    // As a user who is stopped by permissions; only this thread becomes one.
    let above = tempfile::tempdir().unwrap();
    if is_root() {
        rustix::fs::chown(above.path(), Some(rustix::fs::Uid::from_raw(12_345)), None).unwrap();
        rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(12_345)).unwrap();
    }
    let outside = above.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "outside").unwrap();
    let folders = WorkFolders::open(&above.path().join("boxes")).unwrap();
    let folder = folders.folder("key", "/home/node").unwrap();
    let work = folder.host_path();
    symlink(&outside, work.join("link")).unwrap();
    for (dir, mode) in [("unreadable/deep", 0o000), ("unwritable/deep", 0o500), ("unsearchable/deep", 0o600)] {
        fs::create_dir_all(work.join(dir)).unwrap();
        fs::write(work.join(dir).join("file"), "").unwrap();
        fs::set_permissions(work.join(dir).join("file"), fs::Permissions::from_mode(0o000)).unwrap();
        symlink(&outside, work.join(dir).join("link")).unwrap();
        fs::set_permissions(work.join(dir), fs::Permissions::from_mode(mode)).unwrap();
        fs::set_permissions(work.join(dir).parent().unwrap(), fs::Permissions::from_mode(mode)).unwrap();
    }
    assert!(matches!(folder.list("unreadable", false, 1), Err(FilesError::Denied(_))));
    let before = snapshot(&outside);
    folders.remove("key").unwrap();
    assert_eq!(snapshot(&outside), before);
    assert_eq!(snapshot(&above.path().join("boxes")), [".trash d 0"]);
}

#[test]
fn a_sweep_finishes_what_was_interrupted() {
    let bench = Bench::new();
    let trash = bench.above.path().join("boxes/.trash");
    // As a host that was killed leaves it: names in use, some of them directories.
    for left in ["dead/0/root/home/node/x/y", "dead/1/z", "dead/2", "other/0"] {
        fs::create_dir_all(trash.join(left)).unwrap();
        fs::write(trash.join(left).join("file"), "").unwrap();
    }
    fs::create_dir(trash.join("bare")).unwrap();
    bench.folders.sweep().unwrap();
    assert_eq!(fs::read_dir(&trash).unwrap().count(), 0);
    assert_eq!(bench.folders.keys().unwrap(), ["key"]);
}

/// Everything below a directory, in a form that can be compared.
fn snapshot(at: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut left = vec![at.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let stat = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(at).unwrap().display();
            if stat.is_dir() {
                all.push(format!("{name} d {}", fs::read_dir(&path).unwrap().count()));
                left.push(path);
            } else {
                all.push(format!("{name} {:o} {:?}", stat.mode(), fs::read(&path).ok().filter(|_| stat.is_file())));
            }
        }
    }
    all.sort();
    all
}
