//! What goes wrong, and how often. A schedule has few kinds of trouble, each of them often or seldom: trouble of every kind
//! at once would hide what only one of them brings about.

use std::time::Duration;

use sandbar_core::runtime::RuntimeError;

use crate::rng::Rng;

/// A kind of call to the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Ping,
    Prepare,
    Create,
    Start,
    Rename,
    Exec,
    List,
    Inspect,
    Environment,
    Logs,
    Remove,
    Suspend,
    Retire,
    /// A tenant's command is started.
    Run,
    Volumes,
    RemoveVolume,
    /// Something is done in a work folder.
    Disk,
}

impl Kind {
    /// The limits of `host/docker`. A command's own limit is in its plan.
    pub(crate) fn deadline(self) -> Duration {
        Duration::from_secs(match self {
            Self::Ping => 5,
            Self::Prepare => 300,
            Self::Create | Self::Start => 20,
            Self::Remove | Self::Suspend | Self::Retire | Self::RemoveVolume => 15,
            Self::Rename | Self::Exec | Self::List | Self::Inspect | Self::Environment | Self::Logs => 10,
            Self::Run | Self::Volumes | Self::Disk => 10,
        })
    }

    fn changes(self) -> bool {
        matches!(self, Self::Create | Self::Start | Self::Rename | Self::Remove | Self::Suspend | Self::RemoveVolume)
    }
}

/// What goes wrong with one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Refused with an error, and not done.
    Fails,
    /// Done, and then the connection breaks.
    Lost,
    /// Done, and then answered with words that nobody understands.
    Garbled,
    /// No answer until the deadline; whether it is done by then.
    Hangs { done: bool },
    /// No answer until the deadline, and done that long after it.
    Late { after: Duration },
    /// The connection breaks, and it is done that long after.
    Detached { after: Duration },
    /// Takes most of its deadline.
    Slow,
    /// Whoever calls panics over it.
    Panics,
}

/// How a call goes: when it is done, when it is answered, and with what instead of its result.
pub(crate) struct Course {
    pub(crate) done: Option<Duration>,
    pub(crate) answered: Duration,
    pub(crate) error: Option<RuntimeError>,
}

impl Course {
    pub(crate) fn new(trouble: Option<Trouble>, latency: Duration, deadline: Duration) -> Self {
        let half = latency / 2;
        let broken = || Some(RuntimeError::Unreachable("connection reset".to_owned()));
        let (done, answered, error) = match trouble {
            None | Some(Trouble::Panics) => (Some(half), latency, None),
            Some(Trouble::Fails) => (None, latency, Some(RuntimeError::Failed("simulated trouble".to_owned()))),
            Some(Trouble::Lost) => (Some(half), latency, broken()),
            Some(Trouble::Garbled) => {
                (Some(half), latency, Some(RuntimeError::Failed("the answer was not understood".to_owned())))
            }
            Some(Trouble::Hangs { done }) => (done.then_some(half), deadline, Some(RuntimeError::Deadline(deadline))),
            Some(Trouble::Late { after }) => (Some(deadline + after), deadline, Some(RuntimeError::Deadline(deadline))),
            Some(Trouble::Detached { after }) => (Some(latency + after), latency, broken()),
            Some(Trouble::Slow) => (Some(deadline / 2), deadline * 4 / 5, None),
        };
        Self { done, answered, error }
    }
}

/// Longest time after its answer at which a call is still carried out: below what the core waits for.
const LATEST: u64 = 60_000;

/// How often things go wrong, each in a thousand.
#[derive(Debug, Clone, Default)]
pub(crate) struct Knobs {
    /// Longest ordinary latency of a call, in milliseconds.
    pub(crate) latency: u64,
    /// Longest time until a service answers its probe, in milliseconds.
    pub(crate) boot: u64,
    pub(crate) fails: u64,
    pub(crate) lost: u64,
    pub(crate) hangs: u64,
    pub(crate) late: u64,
    pub(crate) slow: u64,
    /// A container ends soon after its start.
    pub(crate) dies: u64,
    /// A service that never answers.
    pub(crate) deaf: u64,
    /// A feature that is never confirmed.
    pub(crate) unconfirmed: u64,
    /// Who holds a name is not found out.
    pub(crate) nameless: u64,
    pub(crate) engine_fails: u64,
    pub(crate) engine_panics: u64,
    /// The only calls that have trouble, where it is not all of them.
    pub(crate) only: Vec<Kind>,
    /// A listing answers more than it was asked for.
    pub(crate) loose: u64,
    /// Longest time that something in a work folder takes, in milliseconds.
    pub(crate) disk: u64,
    pub(crate) disk_fails: u64,
    /// Nothing takes any time.
    pub(crate) instant: bool,
    /// Somebody else kills, pauses, restarts, renames and removes containers, and Docker goes away: how often a schedule
    /// has such an event.
    pub(crate) meddling: u64,
}

impl Knobs {
    /// Nothing goes wrong but what the host's own people do: calls, releases, crashes.
    pub(crate) fn calm(rng: &mut Rng) -> Self {
        Self { latency: *rng.pick(&[2, 10, 60]), boot: *rng.pick(&[5, 100, 800]), ..Self::default() }
    }

    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let mut knobs = Self::calm(rng);
        if rng.chance(200) {
            return knobs;
        }
        let mut often = |on: u64, rates: &[u64]| if rng.chance(on) { *rng.pick(rates) } else { 0 };
        knobs.fails = often(350, &[10, 40, 150]);
        knobs.lost = often(350, &[10, 40, 150]);
        knobs.hangs = often(350, &[5, 20, 80]);
        knobs.late = often(350, &[10, 60, 200]);
        knobs.slow = often(200, &[5, 30]);
        knobs.dies = often(250, &[20, 150]);
        knobs.deaf = often(150, &[20, 100]);
        knobs.unconfirmed = often(250, &[50, 300]);
        knobs.nameless = often(200, &[300]);
        knobs.loose = often(100, &[300]);
        knobs.engine_fails = often(200, &[20, 100]);
        knobs.engine_panics = often(200, &[20, 100]);
        knobs.meddling = often(500, &[100, 300, 500]);
        if rng.chance(400) {
            let few: [&[Kind]; 8] = [
                &[Kind::Create],
                &[Kind::Create, Kind::Remove],
                &[Kind::Start, Kind::Environment],
                &[Kind::Rename],
                &[Kind::Rename, Kind::Remove],
                &[Kind::Exec],
                &[Kind::List],
                &[Kind::Inspect, Kind::Ping],
            ];
            knobs.only = rng.pick(&few).to_vec();
            for rate in [&mut knobs.fails, &mut knobs.lost, &mut knobs.hangs, &mut knobs.late, &mut knobs.slow] {
                *rate *= 3;
            }
        }
        knobs
    }

    /// Whether nothing at all goes wrong, so that nothing may fail.
    pub(crate) fn is_calm(&self) -> bool {
        let Self { fails, lost, hangs, late, slow, dies, deaf, unconfirmed, .. } = self;
        let Self { nameless, engine_fails, engine_panics, disk_fails, meddling, .. } = self;
        let all = [fails, lost, hangs, late, slow, dies, deaf, unconfirmed, nameless, engine_fails, engine_panics];
        let all = all.into_iter().chain([disk_fails]);
        all.into_iter().all(|n| *n == 0) && *meddling == 0
    }

    /// As [`Knobs::draw`], with work folders that take time and fail.
    pub(crate) fn with_disk(mut self, rng: &mut Rng) -> Self {
        self.disk = *rng.pick(&[1, 5, 50]);
        if !self.is_calm() && rng.chance(300) {
            self.disk_fails = *rng.pick(&[20, 100]);
        }
        self
    }

    /// What goes wrong with this call, if anything does.
    pub(crate) fn trouble(&self, rng: &mut Rng, kind: Kind) -> Option<Trouble> {
        if !self.only.is_empty() && !self.only.contains(&kind) {
            return None;
        }
        let latest = |rng: &mut Rng| rng.ms(1, LATEST);
        if rng.chance(self.fails) {
            Some(Trouble::Fails)
        } else if rng.chance(self.lost) {
            Some(if rng.chance(500) { Trouble::Lost } else { Trouble::Garbled })
        } else if rng.chance(self.hangs) {
            Some(Trouble::Hangs { done: rng.chance(500) })
        } else if rng.chance(self.slow) {
            Some(Trouble::Slow)
        } else if kind.changes() && rng.chance(self.late) {
            let after = latest(rng);
            Some(if rng.chance(500) { Trouble::Late { after } } else { Trouble::Detached { after } })
        } else {
            None
        }
    }
}
