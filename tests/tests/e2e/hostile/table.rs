//! What becomes of each hostile engine, and the words of the error.

use std::collections::BTreeSet;

/// What becomes of an engine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum End {
    /// It is not loaded.
    Load,
    /// It serves, and one kind of request is refused.
    Request,
    /// It serves: what it wants to do cannot be done, and nobody is harmed by what it does instead.
    Harmless,
}

use End::{Harmless, Load, Request as Asked};

pub(super) type Row = (&'static str, End, &'static [&'static str]);

/// Engines that do something: where they are refused, and words that the error holds beside the engine's name.
pub(super) const DEEDS: [Row; 36] = [
    ("loop-at-start", Load, &["did not say what it is", "longer than 5s"]),
    ("loop-in-describe", Load, &["did not say what it is", "longer than 5s"]),
    ("loop-in-plan", Load, &["did not answer", "longer than 1s"]),
    ("loop-in-realloc", Load, &["did not answer", "longer than 1s"]),
    ("loop-later", Asked, &["did not answer", "longer than 1s"]),
    ("loop-in-cleanup", Asked, &["did not answer", "longer than 1s"]),
    ("wait-in-describe", Load, &["did not say what it is", "longer than 5s"]),
    ("wait-later", Asked, &["did not answer", "longer than 1s"]),
    ("memory-bomb", Asked, &["more than 65536 KiB of memory"]),
    ("memory-in-two", Asked, &["more than 65536 KiB of memory"]),
    ("memory-at-start", Load, &["more than 65536 KiB of memory"]),
    ("memory-in-many", Load, &["memor"]),
    ("table-bomb", Asked, &["more than 262144 table elements"]),
    ("table-at-start", Load, &["more than 262144 table elements"]),
    ("recursion", Asked, &["recursed too deeply: its stack is 512 KiB"]),
    ("trap", Asked, &["crashed, as a panic does"]),
    ("trap-division", Asked, &["crashed: integer divide by zero"]),
    ("trap-load", Asked, &["crashed: out of bounds memory access"]),
    ("trap-exit", Asked, &["ended itself with exit code 1"]),
    ("trap-at-start", Load, &["did not say what it is", "crashed"]),
    ("trap-in-describe", Load, &["did not say what it is", "crashed"]),
    ("large-text", Asked, &["its answer is larger than 1024 KiB"]),
    ("large-aliased", Asked, &["its answer is larger than 1024 KiB"]),
    ("large-aliased-little", Asked, &["its answer is larger than 1024 KiB"]),
    ("large-list", Asked, &["its answer is larger than 1024 KiB"]),
    ("large-steps", Asked, &["its answer is larger than 1024 KiB"]),
    ("malformed-outside", Asked, &["out of bounds"]),
    ("malformed-text", Asked, &["utf-8"]),
    ("malformed-case", Asked, &["broke the rules of a call"]),
    ("malformed-address", Asked, &["broke the rules of a call"]),
    ("malformed-alignment", Asked, &["align"]),
    ("chance-clock", Harmless, &["redis:0-alpine"]),
    ("chance-date", Harmless, &["redis:0-alpine"]),
    ("chance-random", Harmless, &["redis:0-alpine"]),
    ("chance-memory", Harmless, &["redis:0-alpine"]),
    ("image-later", Asked, &["`evil.example/redis:8` was not granted", "grant.images"]),
];

/// Engines that answer or are something that is not allowed.
pub(super) const ANSWERS: [Row; 107] = [
    ("door-files", Load, &["crashed"]),
    ("door-environment", Load, &["crashed"]),
    ("door-arguments", Load, &["crashed"]),
    ("door-tcp", Load, &["crashed"]),
    ("door-udp", Load, &["crashed"]),
    ("import-run", Load, &["imports what engines do not get", "evil:host/run@1.0.0"]),
    ("import-http", Load, &["imports what engines do not get", "wasi:http/outgoing-handler@0.2.0"]),
    ("import-function", Load, &["imports what engines do not get", "shell"]),
    ("import-missing", Load, &["wasi:io/poll@0.2.0", "no-such-thing"]),
    ("slug-one", Harmless, &["redis:8-alpine"]),
    ("slug-two", Load, &["`slug-two` and `slug-one`", "same slug `same`"]),
    ("image-shell", Load, &["image: ", "`redis:$(id)` is not an image reference"]),
    ("image-command", Load, &["image: ", "is not an image reference"]),
    ("image-option", Load, &["image: ", "`--privileged` is not an image reference"]),
    ("image-path", Load, &["image: ", "is not an image reference"]),
    ("image-empty", Load, &["image: ", "`` is not an image reference"]),
    ("image-long", Load, &["image: ", "is not an image reference"]),
    ("image-unicode", Load, &["image: ", "is not an image reference"]),
    ("image-two-tags", Load, &["image: ", "is not an image reference"]),
    ("image-short-digest", Load, &["image: ", "is not an image reference"]),
    ("image-upper-digest", Load, &["image: ", "is not an image reference"]),
    ("image-digest", Load, &["image: ", "was not granted", "grant.images"]),
    ("image-registry", Load, &["`evil.example/redis:8-alpine` was not granted", "grant.images"]),
    ("image-user", Load, &["`docker.io/evil/redis:8-alpine` was not granted", "grant.images"]),
    ("image-port", Load, &["image: ", "was not granted", "grant.images"]),
    ("image-secret", Load, &["image: ", "{password} may not stand here"]),
    ("variable-path", Load, &["`PATH` is never an engine's to set"]),
    ("variable-preload", Load, &["`LD_PRELOAD` is never an engine's to set"]),
    ("variable-not-granted", Load, &["`HOME` was not granted", "grant.variables"]),
    ("variable-lower", Load, &["`path` is no name of a variable"]),
    ("variable-equals", Load, &["`A=B` is no name of a variable"]),
    ("variable-empty", Load, &["`` is no name of a variable"]),
    ("variable-long", Load, &["variables: ", "is no name of a variable"]),
    ("variable-twice", Load, &["`CACHE_URL` appears twice"]),
    ("variable-admin", Load, &["variable HOST", "{admin_password} may not stand here"]),
    ("variable-many", Load, &["variables: 35 are more than 32"]),
    ("variable-in-container", Load, &["container.env: `A=B` is no name of a variable"]),
    ("variable-in-container-twice", Load, &["container.env: `ACCOUNT_PASSWORD` appears twice"]),
    ("variable-in-container-long", Load, &["container.env: ", "is no name of a variable"]),
    ("variable-of-the-probe", Load, &["ready: `X Y` is no name of a variable"]),
    ("data-root", Load, &["data: `/` is not an absolute path"]),
    ("data-parent", Load, &["data: `..` is not an absolute path"]),
    ("data-through-parent", Load, &["data: `/data/../etc` is not an absolute path in its shortest form"]),
    ("data-proc", Load, &["data: `/proc` lies in /proc"]),
    ("data-sys", Load, &["data: `/sys/fs/cgroup` lies in /sys"]),
    ("data-dev", Load, &["data: `/dev/shm` lies in /dev"]),
    ("data-relative", Load, &["data: `data` is not an absolute path"]),
    ("data-mount", Load, &["data: `/data:rw,exec` is not an absolute path"]),
    ("data-invisible", Load, &["data: ", "is not an absolute path"]),
    ("data-long", Load, &["data: ", "is not an absolute path"]),
    ("data-elsewhere", Load, &["data: `/home` was not granted", "grant.data_dirs"]),
    ("data-nested", Load, &["data: /data/more lies in another data directory"]),
    ("data-huge", Load, &["data: ", "bytes of tmpfs are more than half"]),
    ("data-nothing", Load, &["data: /data has 0 bytes"]),
    ("file-in-data", Load, &["files: /data/file lies in the data directory /data"]),
    ("file-passwd", Load, &["files: /etc/passwd is the image's own"]),
    ("file-preload", Load, &["files: /etc/ld.so.preload is the image's own"]),
    ("file-sudoers", Load, &["files: /etc/sudoers.d/evil is the image's own"]),
    ("file-hosts", Load, &["files: /etc/hosts is the image's own"]),
    ("file-proc", Load, &["files: `/proc/sysrq-trigger` lies in /proc"]),
    ("file-parent", Load, &["files: `/etc/../data/file` is not an absolute path"]),
    ("file-relative", Load, &["files: `file` is not an absolute path"]),
    ("file-setuid", Load, &["files: /bin/evil has mode 4755"]),
    ("file-twice", Load, &["files: /etc/cache.conf appears twice"]),
    ("file-large", Load, &["files: together they are larger than 256 KiB"]),
    ("file-many", Load, &["files: 17 are more than 16"]),
    ("file-in-work-folder", Load, &["work-folder: the file /etc/cache.conf lies in it"]),
    ("work-folder-in-data", Load, &["work-folder: /data/work and the data directory /data overlap"]),
    ("time-ready-none", Load, &["deadline-ms: 0 is outside 1000..=300000"]),
    ("time-ready-year", Load, &["deadline-ms: 4294967295 is outside"]),
    ("time-probe-none", Load, &["ready: timeout-ms 0 is outside 100..=60000"]),
    ("time-step-none", Load, &["setup `set up`: timeout-ms 0 is outside"]),
    ("time-step-year", Load, &["verify `verify`: timeout-ms 4294967295 is outside"]),
    ("steps-many", Load, &["setup: 1000 are more than 32"]),
    ("steps-many-verify", Load, &["verify: 33 are more than 32"]),
    ("steps-name", Load, &["setup: ", "is no name of a step"]),
    ("steps-name-long", Load, &["setup: ", "is no name of a step"]),
    ("steps-program", Load, &["setup `set up`: it names no program"]),
    ("steps-arguments", Load, &["setup `set up`: 129 are more than 128"]),
    ("steps-other-feature", Load, &["setup: `set up` is about a feature nobody asked for"]),
    ("steps-unconfirmed", Load, &["with `one`", "verify: no step confirms the feature `one`"]),
    ("placeholder-argument", Load, &["ready: {password} may not stand here"]),
    ("placeholder-argument-admin", Load, &["ready: {admin_password} may not stand here"]),
    ("placeholder-file", Load, &["file /etc/cache.conf: {password} may not stand here"]),
    ("placeholder-step", Load, &["verify `verify`: {password} may not stand here"]),
    ("placeholder-address", Load, &["container.env ACCOUNT_PASSWORD: {address} may not stand here"]),
    ("placeholder-host", Load, &["{host} may not stand here"]),
    ("placeholder-admin", Load, &["{admin_password} stands here, but the recipe has no such thing"]),
    ("placeholder-unknown", Load, &["`{evil}` is no placeholder"]),
    ("placeholder-open", Load, &["`{password` is no placeholder"]),
    ("placeholder-close", Load, &["`}` is no placeholder"]),
    ("placeholder-nested", Load, &["`{pass{password}word}` is no placeholder"]),
    ("placeholder-terminal", Load, &["is no placeholder"]),
    ("account-sql", Load, &["account.user: `x'; drop table users; --` must match"]),
    ("account-empty", Load, &["account.user: `` must match"]),
    ("account-long", Load, &["account.user: ", "must match"]),
    ("account-database", Load, &["account.database: `$(id)` must match"]),
    ("account-process", Load, &["user: `root; id` is no user"]),
    ("account-process-long", Load, &["user: ", "is no user"]),
    ("account-capability", Load, &["capabilities: `SYS_ADMIN` was not granted", "grant.capabilities"]),
    ("account-capability-text", Load, &["capabilities: ", "is no capability"]),
    ("account-capability-long", Load, &["capabilities: ", "is no capability"]),
    ("account-port", Load, &["port: 0 is no port"]),
    ("account-shm", Load, &["shm-bytes: ", "more than an eighth"]),
    ("account-more", Load, &["container.more: this host knows no key `privileged`"]),
    ("account-more-long", Load, &["container.more: this host knows no key"]),
    ("describe-hyphen", Load, &["the slug `a-b` is not of the form [a-z0-9]{1,8}"]),
];

/// Engines that describe themselves in a way that is not allowed.
pub(super) const DESCRIPTIONS: [Row; 8] = [
    ("describe-long-slug", Load, &["the slug `aaa", "is not of the form"]),
    ("describe-name", Load, &["the name `../Evil` is not of the form"]),
    ("describe-twice", Load, &["the feature `one` appears twice"]),
    ("describe-many", Load, &["33 features; 32 are allowed"]),
    ("describe-settings", Load, &["33 settings; 32 are allowed"]),
    ("describe-summary", Load, &["the summary has 100000 characters; 200 are allowed"]),
    ("describe-terminal", Load, &["the summary holds the invisible character U+001B"]),
    ("describe-backwards", Load, &["the version holds the invisible character U+202E"]),
];

/// Where in an answer a text with NUL or a newline is, and what the error about it begins with.
const TEXTS: [(&str, &str); 35] = [
    ("image", "image: "),
    ("entrypoint", "entrypoint: "),
    ("command", "command: "),
    ("user", "user: "),
    ("env-name", "container.env: "),
    ("env-value", "container.env ACCOUNT_PASSWORD: "),
    ("file-path", "files: "),
    ("file-content", "file /etc/cache.conf: "),
    ("data-path", "data: "),
    ("work-folder", "work-folder: "),
    ("capability", "capabilities: "),
    ("account-user", "account.user: "),
    ("account-database", "account.database: "),
    ("more-key", "container.more: "),
    ("probe", "ready: "),
    ("probe-env-name", "ready: "),
    ("probe-env-value", "ready AUTH: "),
    ("probe-user", "ready: "),
    ("probe-output", "ready: "),
    ("probe-lines", "ready: "),
    ("step-name", "setup: "),
    ("step-feature", "setup: "),
    ("step", "setup `set up`: "),
    ("verify", "verify `verify`: "),
    ("variable-name", "variables: "),
    ("variable-value", "variable"),
    ("describe-name", "the name"),
    ("describe-slug", "the slug"),
    ("describe-version", "the version"),
    ("describe-summary", "the summary"),
    ("describe-feature", "the feature"),
    ("describe-feature-summary", "the summary of feature"),
    ("describe-setting", "the setting"),
    ("describe-setting-default", "the default of setting"),
    ("describe-setting-summary", "the summary of setting"),
];

/// A row of one of the tables, with what is computed.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) end: End,
    pub(super) words: Vec<&'static str>,
}

impl Case {
    /// Whether its rule is the deadline.
    pub(super) fn is_slow(&self) -> bool {
        self.words.iter().any(|word| word.contains("longer than"))
    }
}

pub(super) fn cases(rows: &[Row]) -> Vec<Case> {
    rows.iter().map(|(name, end, words)| Case { name: (*name).to_owned(), end: *end, words: words.to_vec() }).collect()
}

/// Those of [`TEXTS`]: NUL is refused everywhere, and a newline where there can be no lines.
pub(super) fn texts() -> Vec<Case> {
    let there: BTreeSet<_> = sandbar_hostile::all().into_iter().map(|(name, _)| name).collect();
    let mut cases = Vec::new();
    for (text, says) in TEXTS {
        for (kind, end, words) in
            [("nul", Load, vec![says]), ("line", Load, vec![says]), ("lines", Harmless, vec!["redis:8-alpine"])]
        {
            let name = format!("{kind}-in-{text}");
            if there.contains(&name) {
                cases.push(Case { name, end, words });
            }
        }
    }
    cases
}
