//! What happens in a schedule, drawn from its seed before anything runs: who calls what and when, who meddles, and how
//! each host ends.

use std::time::Duration;

use crate::engine::{KEEPING, PROJECTS, SERVICES};
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
        /// One that nobody has yet, if there is one.
        ready: bool,
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
    /// An agent runs a command in its box.
    Run {
        agent: usize,
        takes: Duration,
        deadline: Duration,
        /// Whether it cannot be ended.
        stubborn: bool,
        /// When the caller goes away.
        cancel: Option<Duration>,
    },
    Write {
        agent: usize,
    },
    /// An agent reads back what it wrote.
    Read {
        agent: usize,
    },
    /// The operator declares the project `loft` anew.
    DeclareLoft(u64),
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

/// For how long what is retained sleeps before it is deleted, by default, and where a schedule is to see it.
const LONG: Duration = Duration::from_secs(30 * 24 * 3600);
pub(crate) const SHORT: Duration = Duration::from_secs(3600);

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
    /// How many retained things may be awake.
    pub(crate) max_awake: usize,
    pub(crate) idle_sleep: Duration,
    pub(crate) idle_close: Duration,
    pub(crate) delete_after: Duration,
    /// What is kept ready: services, features, how many.
    pub(crate) pool: Vec<(&'static str, &'static [&'static str], usize)>,
    pub(crate) runs: Vec<Run>,
}

/// What is kept ready in a third of all schedules. It has numbers of its own, so that the others are as they were without it.
fn draw_pool(seed: u64) -> Vec<(&'static str, &'static [&'static str], usize)> {
    let mut rng = Rng::keyed(seed, "pool", 0);
    if !rng.chance(350) {
        return Vec::new();
    }
    let all: [(_, &[_]); 5] =
        [("pg", &[]), ("pg", &["postgis"]), ("redis", &[]), ("redis", &["search"]), ("mongo", &[])];
    let sized = all.map(|(service, features)| (service, features, usize::try_from(rng.below(3)).unwrap_or(0)));
    sized.into_iter().filter(|(_, _, size)| *size > 0).collect()
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
            max_awake: 50,
            idle_sleep: Duration::from_secs(15 * 60),
            idle_close: Duration::from_secs(30 * 60),
            delete_after: LONG,
            pool: Vec::new(),
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
            pool: draw_pool(seed),
            knobs,
            runs,
            ..Self::plain()
        }
    }

    /// Whether it is one of those with boxes and with what is retained.
    pub(crate) fn keeps(&self) -> bool {
        self.knobs.disk > 0
    }

    /// With boxes, and with things that are retained.
    pub(crate) fn draw_keeping(seed: u64) -> Self {
        let mut rng = Rng::keyed(seed, "keeping", 0);
        let agents = 1 + usize::try_from(rng.below(3)).unwrap_or(0);
        let knobs = Knobs::draw(&mut rng).with_disk(&mut rng);
        let hosts = 1 + rng.below(3);
        let contained = rng.chance(200);
        let run = |n| Run::draw_keeping(&mut rng, agents, contained, &knobs, n == 1, n == hosts);
        let runs = (1..=hosts).map(run).collect();
        Self {
            agents,
            contained,
            max_live: if rng.chance(100) { 2 } else { 200 },
            remakes: if rng.chance(100) { 2 } else { 1000 },
            keep: rng.chance(700),
            publish: rng.chance(200),
            idles: false,
            max_awake: *rng.pick(&[1, 2, 2, 3, 50]),
            idle_sleep: Duration::from_secs(*rng.pick(&[300, 900])),
            idle_close: Duration::from_secs(*rng.pick(&[300, 1800])),
            delete_after: if rng.chance(300) { SHORT } else { LONG },
            pool: draw_pool(seed),
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

impl Run {
    fn draw_keeping(rng: &mut Rng, agents: usize, contained: bool, knobs: &Knobs, first: bool, last: bool) -> Self {
        let lasts = Duration::from_millis(*rng.pick(&[2_000, 20_000, 100_000, 100_000, 1_000_000, 3_000_000]));
        let mut events = Vec::new();
        for agent in 0..agents {
            if first && rng.chance(950) {
                events.push((Duration::ZERO, Event::Begin { agent, project: rng.pick::<&str>(&KEEPING) }));
            }
        }
        let span = u64::try_from(lasts.as_millis()).unwrap_or(0);
        let mut at = Duration::ZERO;
        for _ in 0..6 + rng.below(20) {
            at = if rng.chance(600) { at + rng.up_to(&[60, 2_000]) } else { rng.ms(20, span) };
            events.push((at, Event::draw_keeping(rng, agents, contained, knobs)));
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
        if let Some(happens) = Self::draw_from_outside(rng, agent, service, contained, knobs) {
            return happens;
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

    fn draw_keeping(rng: &mut Rng, agents: usize, contained: bool, knobs: &Knobs) -> Self {
        let agent = if rng.chance(400) { 0 } else { usize::try_from(rng.below(agents as u64)).unwrap_or(0) };
        let service = *rng.pick(&["box", "box", "pg", "redis"]);
        if let Some(happens) = Self::draw_from_outside(rng, agent, service, contained, knobs) {
            return happens;
        }
        match rng.below(100) {
            0..32 => {
                let takes = rng.up_to(&[50, 2_000, 60_000, 400_000]);
                let deadline = if rng.chance(300) { takes / 2 } else { takes * 2 } + Duration::from_millis(10);
                let cancel = rng.chance(150).then(|| rng.up_to(&[50, 2_000, 60_000]));
                Self::Run { agent, takes, deadline, stubborn: rng.chance(150), cancel }
            }
            32..44 => Self::Write { agent },
            44..52 => Self::Read { agent },
            52..72 => {
                let cancel = rng.chance(200).then(|| rng.up_to(&[5, 100, 2_000]));
                let services = rng.chance(400).then(|| vec![service]);
                let extensions = if rng.chance(200) { vec![("pg", "postgis")] } else { vec![] };
                Self::Request { agent, services, extensions, cancel }
            }
            72..84 => Self::Release { agent },
            84..94 => Self::Begin { agent, project: rng.pick::<&str>(&KEEPING) },
            94..96 => Self::End { agent },
            _ => Self::DeclareLoft(rng.below(5)),
        }
    }

    /// What nobody does through the host.
    fn draw_from_outside(
        rng: &mut Rng,
        agent: usize,
        service: &'static str,
        contained: bool,
        knobs: &Knobs,
    ) -> Option<Self> {
        if contained && rng.chance(150) {
            return Some(Self::Depart { agent, back: Back::draw(rng) });
        }
        if rng.chance(20) {
            return Some(Self::Jump(*rng.pick(&[-86_400, -600, -181, 181, 600, 86_400])));
        }
        if rng.chance(knobs.meddling) {
            return Some(match rng.below(10) {
                0..7 => {
                    let all =
                        [Meddle::Kill, Meddle::Pause, Meddle::Restart, Meddle::Vanish, Meddle::Rename, Meddle::Replace];
                    let how = *rng.pick(&all);
                    // Between its confirmation and its commit nobody would notice that one was started again.
                    let making = rng.chance(350) && !matches!(how, Meddle::Restart);
                    let after = rng.up_to(&[1, 20, 300]);
                    Self::Meddle { agent, service, how, making, ready: after.subsec_millis().is_multiple_of(4), after }
                }
                7..9 => Self::Outage { lasts: rng.up_to(&[50, 2_000, 30_000]), kills: rng.chance(400) },
                _ => Self::Squat { agent, service },
            });
        }
        None
    }
}
