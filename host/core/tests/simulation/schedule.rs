//! What happens in a schedule, drawn from its seed before anything runs: who calls what and when, who meddles, and how
//! each host ends.

use std::time::Duration;

use crate::engine::{PROJECTS, SERVICES};
use crate::faults::Knobs;
use crate::rng::Rng;

/// What somebody else does to a container.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meddle {
    Kill,
    Pause,
    Restart,
    Vanish,
    Rename,
    /// Removed, and a container that is not of this installation takes the name.
    Replace,
}

/// How an agent whose container ended comes back, and after what time: soon enough to keep what it has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Back {
    Never,
    /// In the same container, or in another, that is named as the agent or labelled with it.
    Runs {
        after: Duration,
        again: bool,
        named: bool,
    },
    Calls {
        after: Duration,
    },
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Request {
        agent: usize,
        services: Option<Vec<&'static str>>,
        extensions: Vec<(&'static str, &'static str)>,
        /// When the caller goes away.
        cancel: Option<Duration>,
    },
    Release {
        agent: usize,
    },
    Begin {
        agent: usize,
        project: &'static str,
    },
    End {
        agent: usize,
    },
    /// The operator declares the project `lab` anew.
    Declare(u64),
    Meddle {
        agent: usize,
        service: &'static str,
        how: Meddle,
        /// A container that is being made, rather than the one that serves.
        making: bool,
        /// After it was found.
        after: Duration,
    },
    /// Docker goes away; whether its containers have ended when it comes back.
    Outage {
        lasts: Duration,
        kills: bool,
    },
    /// A container of somebody else takes a final name, if it is free.
    Squat {
        agent: usize,
        service: &'static str,
    },
    /// The container ends in which an agent runs.
    Depart {
        agent: usize,
        back: Back,
    },
    /// Docker's wall clock jumps, by seconds.
    Jump(i64),
}

/// How a host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Crash,
    ShutDown,
    /// It lives on until everything is settled. The last one does.
    Settle,
}

/// What happens while one host lives.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) events: Vec<(Duration, Event)>,
    pub(crate) lasts: Duration,
    pub(crate) end: End,
    /// How long no host is there then.
    pub(crate) pause: Duration,
}

/// Everything about a schedule.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) knobs: Knobs,
    pub(crate) agents: usize,
    pub(crate) max_live: usize,
    pub(crate) remakes: usize,
    pub(crate) keep: bool,
    pub(crate) publish: bool,
    /// Whether agents run in containers.
    pub(crate) contained: bool,
    /// Whether nobody calls for longer than a lease, in the end.
    pub(crate) idles: bool,
    pub(crate) runs: Vec<Run>,
}

impl Schedule {
    /// One agent, bounds as they are by default, and nothing happens.
    pub(crate) fn plain() -> Self {
        Self {
            knobs: Knobs::default(),
            agents: 1,
            max_live: 200,
            remakes: 6,
            keep: true,
            publish: false,
            contained: false,
            idles: false,
            runs: Vec::new(),
        }
    }

    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, "schedule", 0);
        let agents = 1 + usize::try_from(rng.below(4)).unwrap_or(0);
        let knobs = Knobs::draw(&mut rng);
        let hosts = 1 + rng.below(3);
        let contained = rng.chance(400);
        let runs = (1..=hosts).map(|n| Run::draw(&mut rng, agents, contained, &knobs, n == 1, n == hosts)).collect();
        Self {
            agents,
            max_live: if rng.chance(150) { 2 } else { 200 },
            remakes: if rng.chance(150) { 2 } else { 1000 },
            keep: rng.chance(700),
            publish: rng.chance(300),
            contained,
            idles: rng.chance(100),
            knobs,
            runs,
        }
    }
}

impl Run {
    fn draw(rng: &mut Rng, agents: usize, contained: bool, knobs: &Knobs, first: bool, last: bool) -> Self {
        let lasts = Duration::from_millis(*rng.pick(&[300, 2_000, 2_000, 20_000, 100_000]));
        let mut events = Vec::new();
        for agent in 0..agents {
            if first && rng.chance(950) {
                events.push((Duration::ZERO, Event::Begin { agent, project: rng.pick::<&str>(&PROJECTS) }));
            }
        }
        let span = u64::try_from(lasts.as_millis()).unwrap_or(0);
        let mut at = Duration::ZERO;
        for _ in 0..4 + rng.below(14) {
            // Half of what happens happens close to something else.
            at = if rng.chance(500) { at + rng.ms(0, 60) } else { rng.ms(20, span) };
            events.push((at, Event::draw(rng, agents, contained, knobs)));
        }
        let end = match last {
            true => End::Settle,
            false if rng.chance(700) => End::Crash,
            false => End::ShutDown,
        };
        Self { events, lasts, end, pause: rng.up_to(&[20, 500, 30_000]) }
    }
}

impl Back {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(4) {
            0..2 => {
                Self::Runs { after: rng.up_to(&[50, 2_000, 9_000]), again: rng.chance(500), named: rng.chance(500) }
            }
            2 => Self::Calls { after: rng.ms(50, 9_000) },
            _ => Self::Never,
        }
    }
}

impl Event {
    fn draw(rng: &mut Rng, agents: usize, contained: bool, knobs: &Knobs) -> Self {
        // The first agent is busier than the others.
        let agent = if rng.chance(400) { 0 } else { usize::try_from(rng.below(agents as u64)).unwrap_or(0) };
        let service = rng.pick(&SERVICES).0;
        if contained && rng.chance(150) {
            return Self::Depart { agent, back: Back::draw(rng) };
        }
        if rng.chance(20) {
            return Self::Jump(*rng.pick(&[-86_400, -600, -181, 181, 600, 86_400]));
        }
        if rng.chance(knobs.meddling) {
            return match rng.below(10) {
                0..7 => {
                    let all =
                        [Meddle::Kill, Meddle::Pause, Meddle::Restart, Meddle::Vanish, Meddle::Rename, Meddle::Replace];
                    let how = *rng.pick(&all);
                    // Between its confirmation and its commit nobody would notice that one was started again.
                    let making = rng.chance(350) && !matches!(how, Meddle::Restart);
                    Self::Meddle { agent, service, how, making, after: rng.up_to(&[1, 20, 300]) }
                }
                7..9 => Self::Outage { lasts: rng.up_to(&[50, 2_000, 30_000]), kills: rng.chance(400) },
                _ => Self::Squat { agent, service },
            };
        }
        match rng.below(100) {
            0..58 => {
                let cancel = rng.chance(300).then(|| rng.up_to(&[5, 100, 2_000]));
                let services = rng.chance(400).then(|| vec![service]);
                let mut extensions = Vec::new();
                for (service, features) in SERVICES {
                    if !features.is_empty() && rng.chance(200) {
                        extensions.push((service, *rng.pick(features)));
                    }
                }
                Self::Request { agent, services, extensions, cancel }
            }
            58..74 => Self::Release { agent },
            74..88 => Self::Begin { agent, project: rng.pick::<&str>(&PROJECTS) },
            88..94 => Self::End { agent },
            _ => Self::Declare(rng.below(5)),
        }
    }
}
