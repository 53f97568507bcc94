//! What the work folders promise while a box attacks them: threads that stand for the box swap, in tight loops, every
//! part of the paths that the host uses meanwhile. Whatever the timing, nothing outside may be read, written or
//! removed, and what is left alone must go on working.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by failing")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, RenameFlags, renameat_with};
use sandbar_files::{FilesError, Owner, WorkFolder, WorkFolders};
use sha2::{Digest, Sha256};

/// What everything inside says, and what the host writes.
const INSIDE: &str = "inside";
/// What everything outside says.
const SECRET: &str = "SECRET";
/// A name that is nowhere inside.
const SECRET_NAME: &str = "name-of-a-secret";

/// One attack at a time: each takes every processor.
static ALONE: Mutex<()> = Mutex::new(());
/// How much longer an attack goes on than it should where the machine is too busy for it to mean anything yet.
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of work folders, and beside it what a box would like to have.
struct Scene {
    above: tempfile::TempDir,
    folders: WorkFolders,
    /// A part of every name that the host makes here, so that it can be looked for on the whole machine.
    marker: String,
}

impl Scene {
    fn new() -> Self {
        // In memory where that can be had: what is tested is a race, and a busy disk would win every one.
        let above = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let folders = WorkFolders::open(&above.path().join("boxes")).unwrap();
        let state = above.path().join("state");
        let another = folders.folder("another", "/home/node").unwrap();
        for outside in [state.as_path(), another.host_path()] {
            fs::create_dir_all(outside.join("sub/dir")).unwrap();
            for file in ["file", "leaf", "sub/file", "sub/dir/file", SECRET_NAME] {
                fs::write(outside.join(file), SECRET).unwrap();
            }
        }
        let marker = format!("attack-{}-{:?}", std::process::id(), std::thread::current().id());
        Self { above, folders, marker: marker.replace(['(', ')'], "") }
    }

    fn state(&self) -> PathBuf {
        self.above.path().join("state")
    }

    fn another(&self) -> PathBuf {
        self.folders.folder("another", "/home/node").unwrap().host_path().to_owned()
    }

    /// Everything outside of the attacked folders, with checksums.
    fn outside(&self) -> BTreeMap<PathBuf, String> {
        let mut all = BTreeMap::new();
        let mut left = vec![self.above.path().to_owned()];
        let attacked = self.above.path().join("boxes");
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let stat = fs::symlink_metadata(&path).unwrap();
                let is_work = path.starts_with(&attacked) && path.ends_with("root/home/node");
                let is_removed = path.starts_with(attacked.join(".trash")) || path.starts_with(attacked.join("doomed"));
                if is_removed || is_work && !path.starts_with(attacked.join("another")) {
                    continue;
                }
                // A directory changes with what is made and removed in it, and so does its time.
                let time = if stat.is_dir() && path.starts_with(&attacked) { 0 } else { stat.mtime_nsec() };
                let sum = if stat.is_file() { Sha256::digest(fs::read(&path).unwrap()).to_vec() } else { Vec::new() };
                all.insert(path.clone(), format!("{:o} {} {} {time} {sum:x?}", stat.mode(), stat.uid(), stat.nlink()));
                if stat.is_dir() {
                    left.push(path);
                }
            }
        }
        all
    }

    /// That the host made nothing where a link of the box may have led.
    fn assert_nothing_was_made_elsewhere(&self) {
        for place in ["/", "/etc", "/home", "/tmp"] {
            for entry in fs::read_dir(place).into_iter().flatten() {
                let name = entry.unwrap().file_name();
                assert!(!name.to_string_lossy().contains(&self.marker), "{name:?} was made in {place}");
                assert!(!name.to_string_lossy().starts_with(".sandbar-"), "{name:?} was left in {place}");
            }
        }
    }

    /// Where the links of a box lead that wants out, and some that stay inside.
    fn targets(&self, climb: usize) -> Vec<String> {
        let state = self.state().to_str().unwrap().to_owned();
        let another = self.another().to_str().unwrap().to_owned();
        let mut targets: Vec<String> = [
            "/home/node/real",
            "real",
            "chain-1",
            "/etc",
            "..",
            "../..",
            "/",
            "/home",
            ".",
            "/proc/self/cwd",
            "nothing",
        ]
        .map(str::to_owned)
        .into();
        // From the work folder up to what is beside `boxes`, and to another box.
        targets.push(format!("{}state", "../".repeat(climb)));
        targets.push(format!("{}another/root/home/node", "../".repeat(climb - 1)));
        targets.extend([state, another]);
        targets
    }
}

/// Who runs the tests.
fn me() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// How much has to be tried for a test to mean something.
const READS: u64 = 5000;
const LISTS: u64 = 250;
const REMOVALS: u64 = 50;

/// How often something was tried, and how often it worked.
#[derive(Debug, Default)]
struct Tally {
    tried: AtomicU64,
    worked: AtomicU64,
    outside: AtomicU64,
    busy: AtomicU64,
}

impl Tally {
    fn count<T>(&self, outcome: Result<T, FilesError>) -> Option<T> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(value) => {
                self.worked.fetch_add(1, Ordering::Relaxed);
                return Some(value);
            }
            Err(FilesError::Outside(_)) => self.outside.fetch_add(1, Ordering::Relaxed),
            Err(FilesError::Busy(_)) => self.busy.fetch_add(1, Ordering::Relaxed),
            Err(FilesError::NotFound(_) | FilesError::NotAFile(_) | FilesError::NotADirectory(_)) => 0,
            Err(other) => panic!("nothing that a box does makes this: {other}"),
        };
        None
    }

    /// That the attack hit, and that enough went on nevertheless.
    fn assert_decent(&self, what: &str, tried: u64, percent: u64) {
        let [all, worked] = [&self.tried, &self.worked].map(|n| n.load(Ordering::Relaxed));
        println!("{what}: {self:?}");
        assert!(all >= tried, "{what}: only {all} were tried");
        assert!(worked * 100 >= all * percent, "{what}: only {worked} of {all} worked");
        assert!(self.outside.load(Ordering::Relaxed) > 0, "{what}: no attack was seen");
    }
}

/// Makes the folder that the attacks are made in, as a box would have it.
fn furnish(work: &Path, targets: &[String]) {
    for dir in ["real/sub/dir", "spare/sub/dir", "nest/a/sub/dir", "other-nest", "steady", "stash", "made"] {
        fs::create_dir_all(work.join(dir)).unwrap();
    }
    for dir in ["real", "spare", "nest/a", "steady"] {
        for file in ["file", "leaf"] {
            fs::write(work.join(dir).join(file), INSIDE).unwrap();
        }
    }
    for dir in ["real/sub", "real/sub/dir", "spare/sub", "spare/sub/dir", "nest/a/sub", "nest/a/sub/dir"] {
        fs::write(work.join(dir).join("file"), INSIDE).unwrap();
    }
    symlink("/home/node/chain-2", work.join("chain-1")).unwrap();
    symlink("real", work.join("chain-2")).unwrap();
    symlink("steady/file", work.join("steady-relative")).unwrap();
    symlink("/home/node/steady/file", work.join("steady-absolute")).unwrap();
    symlink("../steady/file", work.join("steady/up")).unwrap();
    // Out of what is moved about, from where it is now and from where it is then.
    symlink("../../../../../../../../../state/file", work.join("nest/a/sub/dir/climb")).unwrap();
    symlink("../../../../../../../../state/file", work.join("nest/a/sub/dir/climb-less")).unwrap();
    symlink("../../../../real/file", work.join("nest/a/sub/dir/across")).unwrap();
    for (i, target) in targets.iter().enumerate() {
        symlink(target, work.join(format!("link-{i}"))).unwrap();
    }
    fs::rename(work.join("spare"), work.join("swap")).unwrap();
}

fn exchange(a: &Path, b: &Path) {
    let _ = renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
}

/// The box: swaps until it is told to stop.
fn attack(work: &Path, targets: &[String], stop: &AtomicBool, which: usize) {
    let links: Vec<PathBuf> = (0..targets.len()).map(|i| work.join(format!("link-{i}"))).collect();
    let at = |name: &str| work.join(name);
    let mut round = which;
    while !stop.load(Ordering::Relaxed) {
        round += 1;
        let link = &links[round % links.len()];
        let target = &targets[round % targets.len()];
        match which {
            // A directory for a link and back, at once.
            0 => {
                exchange(link, &at("swap"));
                exchange(link, &at("swap"));
            }
            // The last part of a path: a file, links, a pipe, a directory.
            1 => {
                let leaf = at("leaf");
                let new = at("stash/leaf");
                match round % 4 {
                    0 => fs::write(&new, INSIDE).unwrap(),
                    1 => symlink(format!("{target}/leaf"), &new).unwrap(),
                    2 => symlink(["/home/node/steady/leaf", "real/leaf"][round / 4 % 2], &new).unwrap(),
                    _ if round % 8 == 3 => rustix::fs::mkfifoat(CWD, &new, Mode::RWXU).unwrap(),
                    _ => fs::create_dir(&new).unwrap(),
                }
                exchange(&new, &leaf);
                let _ = fs::rename(&new, &leaf);
                for left in [&new, &leaf] {
                    let _ = fs::remove_file(left).or_else(|_| fs::remove_dir(left));
                }
                fs::write(&new, INSIDE).unwrap();
                fs::rename(&new, &leaf).unwrap();
            }
            // A directory that a walk is in, moved up, down and over another; and a directory that the host just made,
            // for a link.
            _ => {
                let _ = fs::rename(at("nest/a"), at("moved"));
                let _ = fs::rename(at("moved"), at("other-nest/a"));
                exchange(&at("other-nest"), &at("nest"));
                let _ = fs::rename(at("other-nest/a"), at("nest/a"));
                let gone = at(&format!("stash/{round}"));
                let _ = fs::rename(at("made/x"), &gone);
                let _ = symlink(target, at("made/x"));
                std::thread::yield_now();
                let _ = fs::remove_file(at("made/x"));
                let _ = fs::remove_dir_all(&gone);
            }
        }
    }
}

#[test]
fn nothing_outside_is_read_or_written() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::new();
    let folder = scene.folders.folder("victim", "/home/node").unwrap();
    let work = folder.host_path();
    let targets = scene.targets(5);
    furnish(work, &targets);
    let before = scene.outside();
    let stop = AtomicBool::new(false);
    let (reads, writes, lists, steady) = (Tally::default(), Tally::default(), Tally::default(), Tally::default());
    std::thread::scope(|threads| {
        for which in 0..3 {
            let (work, targets, stop) = (work, &targets, &stop);
            threads.spawn(move || attack(work, targets, stop, which));
        }
        // Stops the others when a check here fails, too; else this would never end.
        let until = Instant::now() + Duration::from_secs(6);
        let (scene, folder, tallies) = (&scene, &folder, [&reads, &writes, &lists, &steady]);
        let host = move |seed| transfer(scene, folder, seed, until, tallies);
        let hosts = [threads.spawn(move || host(0)), threads.spawn(move || host(1))];
        let ended = hosts.map(std::thread::ScopedJoinHandle::join);
        stop.store(true, Ordering::Relaxed);
        for outcome in ended {
            outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    assert_eq!(scene.outside(), before);
    scene.assert_nothing_was_made_elsewhere();
    reads.assert_decent("reads", READS, 20);
    writes.assert_decent("writes", READS / 5, 20);
    lists.assert_decent("lists", LISTS, 20);
    println!("steady: {steady:?}");
    let [tried, worked] = [steady.tried, steady.worked].map(AtomicU64::into_inner);
    assert!(worked * 100 >= tried * 99, "only {worked} of {tried} worked");
}

/// The host's side, until the time is up.
fn transfer(scene: &Scene, folder: &WorkFolder, seed: usize, until: Instant, tallies: [&Tally; 4]) {
    let [reads, writes, lists, steady] = tallies;
    let marker = &scene.marker;
    let through_link = (0..20).map(|i| format!("link-{i}/file"));
    let to_read: Vec<String> = [
        "swap/file",
        "leaf",
        "swap/sub/file",
        "swap/sub/dir/file",
        "nest/a/sub/dir/climb",
        "moved/sub/dir/climb-less",
        "nest/a/sub/dir/across",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain(["nest/a/sub/../sub/dir/../../file", "swap/../swap/sub/../file", "swap/passwd"].map(str::to_owned))
    .chain(through_link)
    .collect();
    let to_write = [
        "leaf".to_owned(),
        "swap/leaf".to_owned(),
        format!("swap/{marker}"),
        format!("swap/{marker}-new/deep/file"),
        format!("made/x/{marker}/file"),
        format!("nest/a/sub/{marker}"),
    ];
    let judge = |path: &str, bytes: &[u8]| assert_eq!(std::str::from_utf8(bytes), Ok(INSIDE), "read by {path}");
    let mut round = seed;
    let enough = || lists.tried.load(Ordering::Relaxed) >= LISTS && reads.tried.load(Ordering::Relaxed) >= READS;
    while Instant::now() < until || !enough() && Instant::now() < until + PATIENCE {
        round += 1;
        for _ in 0..4 {
            round += 1;
            let path = &to_read[round % to_read.len()];
            if let Some(content) = reads.count(folder.read(path, 0, 1000)) {
                judge(path, &content.bytes);
            }
        }
        if let Some((file, _)) = reads.count(folder.open_read("leaf", 1000)) {
            judge("leaf", std::io::read_to_string(file).unwrap().as_bytes());
        }
        let path = &to_write[round / 5 % to_write.len()];
        writes.count(folder.write(path, INSIDE.as_bytes(), Some(0o7777), me(), true));
        if round % 4 == seed {
            let path = ["swap", "swap/sub", "nest/a", ".", "made/x", "swap/.."][round / 4 % 6];
            if let Some(listing) = lists.count(folder.list(path, round.is_multiple_of(8), 200)) {
                for entry in listing.entries {
                    let name = entry.path.rsplit('/').next().unwrap();
                    assert!(![SECRET_NAME, "passwd", "node", "home", "boxes"].contains(&name), "{path}: {entry:?}");
                }
            }
            folder.usage(u64::MAX).unwrap();
        }
        for path in ["steady-relative", "steady-absolute", "steady/up", "/home/node/steady/../steady-absolute"] {
            if let Some(content) = steady.count(folder.read(path, 0, 1000)) {
                judge(path, &content.bytes);
            }
        }
    }
}

#[test]
fn nothing_outside_is_removed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let scene = Scene::new();
    // To what this test made, and nowhere else: if they are ever followed, only that is lost.
    let targets = [scene.state(), scene.state().join("sub"), scene.another()];
    let before = scene.outside();
    let (mut tried, mut removed, mut swaps) = (0_u64, 0, 0);
    let mut unexpected = None;
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until || removed < REMOVALS && Instant::now() < until + PATIENCE {
        let folder = scene.folders.folder("doomed", "/home/node").unwrap();
        let work = folder.host_path().to_owned();
        for dir in 0..20 {
            fs::create_dir_all(work.join(format!("{dir}/sub/dir"))).unwrap();
            fs::write(work.join(format!("{dir}/sub/dir/file")), INSIDE).unwrap();
            symlink(&targets[dir % targets.len()], work.join(format!("link-{dir}"))).unwrap();
        }
        let stop = AtomicBool::new(false);
        let started = AtomicBool::new(false);
        // As a process in the box has it: its work folder stays reachable for it, wherever the host moves it.
        let handle = fs::File::open(&work).unwrap();
        std::thread::scope(|threads| {
            let attacker = threads.spawn(|| {
                let mut swapped = 0_u64;
                for round in 0.. {
                    let (dir, link) = (format!("{}", round % 20), format!("link-{}", round / 20 % 20));
                    let done = renameat_with(&handle, &dir, &handle, &link, RenameFlags::EXCHANGE).is_ok();
                    swapped += u64::from(done);
                    if round % 64 == 0 && round < 64_000 {
                        let _ = rustix::fs::mkdirat(&handle, format!("new-{round}"), Mode::RWXU);
                    }
                    started.store(true, Ordering::Relaxed);
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                }
                swapped
            });
            while !started.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let outcome = scene.folders.remove("doomed");
            stop.store(true, Ordering::Relaxed);
            swaps += attacker.join().unwrap();
            if !matches!(outcome, Ok(()) | Err(FilesError::Busy(_))) {
                // For the end: what became of the outside matters more.
                unexpected = outcome.as_ref().err().map(ToString::to_string);
            }
            tried += 1;
            removed += u64::from(outcome.is_ok());
        });
        assert!(!scene.folders.exists("doomed").unwrap());
    }
    println!("removed {removed} times of {tried} under {swaps} swaps");
    assert_eq!(scene.outside(), before);
    assert_eq!(unexpected, None);
    assert!(removed >= REMOVALS && swaps > removed, "removed {removed} times of {tried} under {swaps} swaps");
    // Whatever a box held up goes once it is gone.
    scene.folders.sweep().unwrap();
    assert_eq!(fs::read_dir(scene.above.path().join("boxes/.trash")).unwrap().count(), 0);
    assert_eq!(scene.outside(), before);
    scene.assert_nothing_was_made_elsewhere();
}
