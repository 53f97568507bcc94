//! Every time limit and size bound of this crate, each with its reason. Nothing else in the crate writes down a number of
//! seconds or bytes that bounds a call.

use std::time::Duration;

/// Asking whether the daemon answers. A daemon that is well does so in a millisecond; one that needs longer is no use to
/// the guard that asks.
pub(crate) const PING: Duration = Duration::from_secs(5);

/// Making a container, and each step that belongs to it: network, upload of files. The specification's number.
pub(crate) const CREATE: Duration = Duration::from_secs(20);

/// How many containers are made and started at once. Docker starts some three a second for each core and takes all that it is
/// given, so that with a hundred at once each would wait longer than [`START`] for all the others.
pub(crate) const AT_ONCE: usize = 8;

/// Starting a container. The specification's number.
pub(crate) const START: Duration = Duration::from_secs(20);

/// Each call of an exec but the command itself, which has the time that its plan gives it. The specification's number.
pub(crate) const EXEC_CALL: Duration = Duration::from_secs(10);

/// Stopping, where the grace is shorter than this. The specification's number.
pub(crate) const STOP: Duration = Duration::from_secs(15);

/// What a stop may take beyond its grace: Docker kills after the grace and then waits for the process to be gone.
pub(crate) const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Killing and removing. The specification's number.
pub(crate) const REMOVE: Duration = Duration::from_secs(15);

/// Listing. The specification's number.
pub(crate) const LIST: Duration = Duration::from_secs(10);

/// Looking at one container or image, renaming, reading logs: as cheap as listing, so as long.
pub(crate) const LOOK: Duration = Duration::from_secs(10);

/// How long pulls may take. The one limit that the operator sets, since it depends on the line to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullLimits {
    /// A whole pull. The specification's number.
    pub total: Duration,
    /// Silence within a pull. Docker reports a download and an extraction several times a second, so a minute without a
    /// word means that the registry stalls.
    pub silence: Duration,
}

impl Default for PullLimits {
    fn default() -> Self {
        Self { total: Duration::from_secs(300), silence: Duration::from_secs(60) }
    }
}

/// What a waiter gives a shared pull beyond its time, so that it is the pull's own end that it hears.
pub(crate) const PULL_MARGIN: Duration = Duration::from_secs(30);

/// A credential helper. Some ask a keychain over the session bus; none of them has anybody to ask a password from.
pub(crate) const HELPER: Duration = Duration::from_secs(10);

/// How long one wait for a container's end stays open before it is issued again. A connection that died without a word
/// (a remote daemon) is noticed after this long at the latest.
pub(crate) const WAIT_ROUND: Duration = Duration::from_secs(600);

/// bollard's own limit for response headers. Above every other limit here, since those are the ones that are meant.
pub(crate) const CLIENT: Duration = Duration::from_secs(3600);

/// Pauses between looks at something that is about to change: a command that is ending, a removal under way. They grow
/// from the first to the second, since what ends soon ends within milliseconds.
pub(crate) const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// Pauses between looks at a command whose output is still open. Its end is normally seen as the end of the output, so
/// these looks are for children that keep the output open, and may be rare.
pub(crate) const EXEC_LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long the output of a command that has ended may stay silent before it counts as complete, and how long it is read
/// in all: a child that goes on may also go on printing.
pub(crate) const EXEC_DRAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How long a tenant's command may take to be ended with all that it started. The specification's number: after that the
/// caller lets the whole container go.
pub(crate) const ENDING: Duration = Duration::from_secs(10);

/// How much of [`ENDING`] goes to the command's own user, before root tries. What can be ended at all is normally ended
/// within a quarter of a second.
pub(crate) const ENDING_AS_USER: Duration = Duration::from_secs(6);

/// How long a guard may take to say that it heard its order: far longer than it needs on a busy machine, and short enough for
/// another to be done in time.
pub(crate) const GUARD_SPEAKS: Duration = Duration::from_millis(1500);

/// How long the end of a container may come after that of a command in it that was killed. The kernel kills all that is in
/// a container before its first process is gone, and Docker tells of each within some milliseconds; a command that was
/// killed by itself is answered later by this.
pub(crate) const KILLED_WITH: Duration = Duration::from_millis(500);

/// Pauses between attempts to follow the daemon's events.
pub(crate) const EVENTS_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Silence among the events after which the daemon is asked whether it is still there: a remote one can vanish without
/// closing the connection.
pub(crate) const EVENTS_SILENCE: Duration = Duration::from_secs(30);

/// How far back the first events are asked for, so that none is lost between a look at everything and the daemon taking
/// up the subscription. Docker counts in whole seconds.
pub(crate) const EVENTS_OVERLAP: Duration = Duration::from_secs(1);

/// Events held for a receiver that is busy; after that the daemon's socket holds them.
pub(crate) const EVENTS_HELD: usize = 256;

/// How often the network is looked for and made while others do the same.
pub(crate) const NETWORK_TRIES: u32 = 6;

/// The shortest pause between two such tries. Making a network takes about this long.
pub(crate) const NETWORK_PAUSE: Duration = Duration::from_millis(50);

/// Output kept of a command, for each of its streams.
pub(crate) const EXEC_OUTPUT: usize = 64 * 1024;

/// Log text kept, from its end.
pub(crate) const LOGS: usize = 16 * 1024;

/// Text kept of a daemon's error message.
pub(crate) const MESSAGE: usize = 600;

/// Values of the environment at least this long are taken out of error messages. Passwords have 32 digits; shorter
/// values are user and database names, which are no secret and would tear holes into container names.
pub(crate) const SECRET: usize = 16;

/// The pause before look number `n` (from 0) at something that is about to change.
pub(crate) fn growing(range: (Duration, Duration), n: u32) -> Duration {
    range.0.saturating_mul(2_u32.saturating_pow(n)).min(range.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_end_and_stay_there() {
        assert_eq!(growing(LOOK_AGAIN, 0), LOOK_AGAIN.0);
        assert_eq!(growing(LOOK_AGAIN, 1), LOOK_AGAIN.0 * 2);
        assert_eq!(growing(LOOK_AGAIN, 40), LOOK_AGAIN.1);
        assert_eq!(growing(LOOK_AGAIN, u32::MAX), LOOK_AGAIN.1);
    }
}
