//! Places between two steps at which a test has this process killed, to see what the next start makes of it. Nothing of
//! it is in a release build.

/// The variable that names a place.
pub const VARIABLE: &str = "SANDBAR_CRASH_AT";

/// Every place, by what has just been done: Docker's steps of making and letting go, and the state file's.
pub const PLACES: [&str; 20] = [
    "agent written",
    "work written",
    "name looked up",
    "network made",
    "created",
    "filled",
    "started",
    "confirmed",
    "made ahead",
    "hand-out noted",
    "predecessor let go",
    "committed",
    "work deleted",
    "release decided",
    "sweep decided",
    "renamed to leave",
    "removed",
    "discarded",
    "agent deleted",
    "looked at what is there",
];

/// Kills this process where the environment says so.
#[cfg(debug_assertions)]
pub fn here(place: &'static str) {
    use std::sync::LazyLock;
    static AT: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(VARIABLE).ok());
    debug_assert!(PLACES.contains(&place), "{place} is not listed");
    if AT.as_deref() == Some(place) {
        // As from outside: no destructor, no handler, no other thread gets a word in.
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
pub fn here(_: &'static str) {}
