//! What the callers know, and what they may expect of an answer because of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::tenants::Written;

/// Somewhat shorter than a lease.
const LEASE: Duration = Duration::from_secs(1700);

/// A password that was handed out, and the features its container had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handed {
    pub(crate) password: String,
    features: BTreeSet<String>,
}

/// A call that lets an agent's sandbox go, from its beginning to its answer.
#[derive(Debug, Clone)]
struct Upset {
    from: Duration,
    to: Option<Duration>,
    /// Whether it was answered, rather than cut off with its host.
    answered: bool,
    /// Whether a request was under way when it began.
    amid: bool,
}

/// What is known about one agent's calls.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agent {
    upsets: Vec<Upset>,
    pub(crate) requests: usize,
    last_request: Option<Duration>,
    handed: BTreeMap<String, Handed>,
    /// When something last began or ended after which a service may have been made anew.
    unsure: BTreeMap<String, Duration>,
    all_unsure: Duration,
    /// Whether somebody else ever had one of its names.
    pub(crate) squatted: bool,
    pub(crate) on_lab: bool,
    /// What it worked on last.
    pub(crate) project: Option<&'static str>,
    /// The files it has written into its boxes.
    pub(crate) written: Vec<Written>,
}

impl Agent {
    /// A call that lets go begins. Answers its number.
    pub(crate) fn upset(&mut self, now: Duration) -> usize {
        self.handed.clear();
        self.all_unsure = now;
        self.upsets.push(Upset { from: now, to: None, answered: false, amid: self.requests > 0 });
        self.upsets.len() - 1
    }

    pub(crate) fn upset_over(&mut self, number: usize, now: Duration, answered: bool) {
        self.all_unsure = now;
        let upset = &mut self.upsets[number];
        (upset.to, upset.answered) = (Some(now), answered);
    }

    /// Whether a call that lets go was under way at some time of this span.
    pub(crate) fn was_upset(&self, from: Duration, to: Duration) -> bool {
        self.upsets.iter().any(|u| u.from <= to && u.to.is_none_or(|end| end >= from))
    }

    /// Whether it gave its sandbox back, was answered, and has asked for nothing since.
    pub(crate) fn has_nothing(&self) -> bool {
        let after = |u: &Upset| self.last_request.is_none_or(|at| at < u.from);
        self.requests == 0 && self.upsets.last().is_some_and(|u| u.answered && !u.amid && after(u))
    }

    /// Whether it asked for something since then, or waits for an answer since before.
    pub(crate) fn has_called_since(&self, since: Duration) -> bool {
        self.last_request.is_some_and(|at| at >= since)
    }

    /// Its host ended before what was given back was gone.
    pub(crate) fn unanswered(&mut self) {
        self.upsets.iter_mut().for_each(|u| u.answered = false);
    }

    pub(crate) fn request(&mut self, now: Duration, extensions: &BTreeMap<String, BTreeSet<String>>) {
        self.requests += 1;
        // Whoever calls so seldom has no lease in between.
        if self.last_request.replace(now).is_some_and(|last| now - last > LEASE) {
            self.forget(now);
        }
        self.doubt(now, extensions);
    }

    pub(crate) fn request_over(&mut self, now: Duration, extensions: &BTreeMap<String, BTreeSet<String>>) {
        self.requests -= 1;
        self.doubt(now, extensions);
    }

    /// A call for more features than a container has may bring another container.
    fn doubt(&mut self, now: Duration, extensions: &BTreeMap<String, BTreeSet<String>>) {
        for (service, features) in extensions {
            if self.handed.get(service).is_none_or(|h| !h.features.is_superset(features)) {
                self.handed.remove(service);
                self.unsure.insert(service.clone(), now);
            }
        }
    }

    /// What an answer hands out has to be what was handed out before, where nothing happened that changes it. Answers
    /// what it should have been.
    pub(crate) fn hand(
        &mut self,
        service: &str,
        password: &str,
        features: BTreeSet<String>,
        since: Duration,
    ) -> Option<Handed> {
        if self.on_lab {
            return None;
        }
        match self.handed.get(service) {
            Some(handed) if handed.password != password => Some(handed.clone()),
            Some(_) => None,
            None => {
                let sure = self.all_unsure < since && self.unsure.get(service).is_none_or(|at| *at < since);
                if sure && !self.was_upset(since, since) {
                    self.handed.insert(service.to_owned(), Handed { password: password.to_owned(), features });
                }
                None
            }
        }
    }

    /// From here on nothing that was handed out is expected to stay.
    pub(crate) fn forget(&mut self, now: Duration) {
        self.handed.clear();
        self.all_unsure = now;
    }
}
