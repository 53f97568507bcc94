//! One entry an agent, and the state machine of its sandbox:
//!
//! `Absent -> Making -> Live -> LettingGo -> Absent`, with `Making` again whenever a live one lacks something.
//!
//! Whatever is done to an agent's containers is done by one flight at a time: a task of its own that outlives the
//! caller. Calls join it; a release cancels it, and the flight itself removes what it holds. Different agents share
//! nothing but the map in which their entries are found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crash;
use crate::ensure::{Ensure, Limits};
use crate::error::{Code, Error};
use crate::failure;
use crate::leaving::Leaving;
use crate::metric;
use crate::name::{AgentName, Names, ServiceName};
use crate::owner::Owner;
use crate::pool::Holds;
use crate::progress::Progress;
use crate::runtime::Unit;
use crate::sandbox::{Live, Serving, Want};
use crate::store::KeptRow;
use crate::unheard::Unheard;

/// How long a release waits until names are free and what was being made is gone; it goes on behind after that.
const RELEASE_WAIT: Duration = Duration::from_secs(10);
/// Reports that a slow listener may fall behind by; it misses the oldest then.
const PROGRESS_BACKLOG: usize = 256;
/// How often one call starts over because what it waited for was not what it wanted.
const ROUNDS_A_CALL: usize = 4;

/// How a flight ended, for all who waited.
#[derive(Clone)]
struct Outcome {
    /// What is live and was verified in this flight.
    live: Option<Live>,
    /// Why the last round failed.
    error: Option<Error>,
    /// What that round wanted; `None` when a release ended the flight, which is final for all who waited.
    wanted: Option<Want>,
}

/// A provision, a check or a change under way.
struct Flight {
    id: u64,
    /// What everybody who joined wants.
    wanted: Want,
    /// What was live when it began, for status.
    had: Option<Live>,
    cancel: CancellationToken,
    outcome: watch::Receiver<Option<Outcome>>,
    progress: broadcast::Sender<Progress>,
    /// Turns true when the flight holds nothing any more.
    done: watch::Receiver<bool>,
}

#[derive(Default)]
enum State {
    #[default]
    Absent,
    Making(Flight),
    Live(Live),
    LettingGo(watch::Receiver<bool>),
}

/// An agent's entry.
#[derive(Default)]
pub(crate) struct Entry {
    state: Mutex<State>,
    /// When containers of this agent were remade.
    pub(crate) remakes: Mutex<VecDeque<Instant>>,
    lease_until: Mutex<Option<Instant>>,
    /// When its last call came.
    called: Mutex<Option<Instant>>,
    /// How many commands and transfers are under way. It grows only under the state's lock.
    in_flight: AtomicUsize,
}

impl Entry {
    fn note_call(&self) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps what an owner has from being put to sleep or closed for idleness, until it is dropped.
pub struct InFlight {
    registry: Arc<Registry>,
    entry: Arc<Entry>,
}

impl InFlight {
    /// Whether nothing else is under way there.
    pub fn is_alone(&self) -> bool {
        self.entry.in_flight.load(Ordering::SeqCst) == 1
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // It was in use until now.
        self.registry.start_lease(&self.entry);
        self.entry.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What an agent has, for status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// `absent`, `making`, `live` or `letting_go`.
    pub state: &'static str,
    /// What is live.
    pub live: Option<Live>,
    /// What is being made.
    pub making: Option<Want>,
    /// For how much longer its lease is fresh.
    pub lease: Option<Duration>,
}

/// Every agent's sandbox.
pub struct Registry {
    ensure: Ensure,
    entries: Mutex<BTreeMap<Owner, Arc<Entry>>>,
    /// How many entries of what is throwaway are not absent.
    occupied: AtomicUsize,
    /// How many entries of what is retained are not absent.
    awake: AtomicUsize,
    flights: AtomicU64,
    /// Whether the host goes down: nothing new is started.
    closed: AtomicBool,
    /// Who was released before it was known what there is; `None` once it is known.
    early: Mutex<Option<BTreeSet<AgentName>>>,
}

/// Where a caller's reports go.
pub type Listener = Arc<dyn Fn(Progress) + Send + Sync>;

enum Next {
    /// As many as may be are awake.
    Full,
    Join(watch::Receiver<Option<Outcome>>, broadcast::Receiver<Progress>),
    Wait(watch::Receiver<bool>),
}

impl Registry {
    /// An empty one.
    pub fn new(ensure: Ensure) -> Self {
        Self {
            ensure,
            entries: Mutex::default(),
            occupied: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            flights: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            early: Mutex::new(Some(BTreeSet::new())),
        }
    }

    pub(crate) fn ensure_rules(&self) -> &Ensure {
        &self.ensure
    }

    fn limits(&self) -> &Limits {
        self.ensure.limits()
    }

    /// The books of what was let go.
    pub fn leaving(&self) -> &Leaving {
        self.ensure.leaving()
    }

    /// How many sandboxes there are or are about to be, and how many retained things are awake.
    pub fn occupied(&self) -> (usize, usize) {
        (self.occupied.load(Ordering::Relaxed), self.awake.load(Ordering::Relaxed))
    }

    fn count(&self, owner: &Owner) -> &AtomicUsize {
        if owner.retains() { &self.awake } else { &self.occupied }
    }

    /// Everything that an agent has or had.
    pub fn owners_of(&self, agent: &AgentName) -> Vec<Owner> {
        self.of(agent).into_iter().map(|(owner, _)| owner).collect()
    }

    fn entries_of(&self, agent: &AgentName) -> Vec<Arc<Entry>> {
        self.of(agent).into_iter().map(|(_, entry)| entry).collect()
    }

    fn of(&self, agent: &AgentName) -> Vec<(Owner, Arc<Entry>)> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let from = entries.range(Owner::agent(agent)..).take_while(|(owner, _)| owner.agent == *agent);
        from.map(|(owner, entry)| (owner.clone(), entry.clone())).collect()
    }

    /// How many commands and transfers are under way, everybody's.
    pub fn in_use(&self) -> usize {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.values().map(|entry| entry.in_flight.load(Ordering::SeqCst)).sum()
    }

    /// Marks what an owner has, or is about to have, as in use.
    pub fn in_flight(self: &Arc<Self>, owner: &Owner) -> InFlight {
        let entry = self.entry(owner);
        {
            // Whoever decides that it is idle holds this.
            let _state = entry.lock();
            entry.in_flight.fetch_add(1, Ordering::SeqCst);
        }
        InFlight { registry: self.clone(), entry }
    }

    fn find(&self, owner: &Owner) -> Option<Arc<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(owner).cloned()
    }

    fn entry(&self, owner: &Owner) -> Arc<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).entry(owner.clone()).or_default().clone()
    }

    /// Makes sure that `agent` has what is wanted, and answers it. Dropping the future only detaches. `still` is asked
    /// under the entry's lock whether the wish still stands, so that a release that came between is not overtaken.
    ///
    /// # Errors
    /// What the caller is told.
    pub async fn ensure(
        self: &Arc<Self>,
        owner: &Owner,
        want: &Want,
        deadline: Duration,
        still: &(dyn Fn() -> Result<(), Error> + Sync),
        listener: Option<&Listener>,
    ) -> Result<Live, Error> {
        let until = Instant::now() + deadline;
        let late = |_| failure::deadline(deadline);
        let entry = self.entry(owner);
        entry.note_call();
        for round in 1.. {
            let (mut outcome, progress) = match self.next(owner, &entry, want, still)? {
                Next::Wait(mut gone) => {
                    // The sender always turns it true before it goes; either way the state is to be looked at again.
                    let gone = tokio::time::timeout_at(until, gone.wait_for(|gone| *gone)).await.map_err(late)?;
                    // Whoever would have said so died.
                    gone.map_err(|_| Error::internal())?;
                    continue;
                }
                Next::Full if self.make_room().await => continue,
                Next::Full => {
                    let message =
                        format!("{} retained things are awake and all of them are busy", self.limits().max_awake);
                    let remediate = "call again when a command has ended; the operator sets `[retention] max_live`";
                    return Err(Error::retry(Code::Capacity, 10, message, remediate));
                }
                Next::Join(outcome, progress) => (outcome, progress),
            };
            let wait = listen(&mut outcome, progress, listener);
            let Some(outcome) = tokio::time::timeout_at(until, wait).await.map_err(late)? else {
                return Err(Error::internal());
            };
            if let Some(live) = outcome.live.filter(|live| live.covers(want)) {
                return Ok(live);
            }
            match outcome.error {
                // It failed over something that only others wanted: try without.
                Some(_) if outcome.wanted.is_some_and(|w| w != *want) && round < ROUNDS_A_CALL => {}
                Some(error) => return Err(error),
                // The project changed meanwhile.
                None if round < ROUNDS_A_CALL => {}
                None => return Err(failure::not_serving("changing this project")),
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Joins what is under way, or starts it.
    fn next(
        self: &Arc<Self>,
        owner: &Owner,
        entry: &Arc<Entry>,
        want: &Want,
        still: &(dyn Fn() -> Result<(), Error> + Sync),
    ) -> Result<Next, Error> {
        let mut state = entry.lock();
        still()?;
        if self.closed.load(Ordering::Relaxed) {
            return Err(failure::not_serving("shutting down"));
        }
        // Whatever becomes of the caller, the sandbox has a lease from the first moment on.
        self.start_lease(entry);
        match &mut *state {
            State::LettingGo(gone) => return Ok(Next::Wait(gone.clone())),
            State::Making(flight) if flight.wanted.project != want.project => {
                flight.cancel.cancel();
                let gone = flight.done.clone();
                *state = State::LettingGo(gone.clone());
                return Ok(Next::Wait(gone));
            }
            State::Making(flight) => {
                flight.wanted.merge(want);
                return Ok(Next::Join(flight.outcome.clone(), flight.progress.subscribe()));
            }
            State::Absent => {
                let max = if owner.retains() { self.limits().max_awake } else { self.limits().max_live };
                let room = |n: usize| (n < max).then_some(n + 1);
                if self.count(owner).fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
                    if owner.retains() {
                        return Ok(Next::Full);
                    }
                    let message = format!("{max} sandboxes are live, and more are not allowed");
                    let remediate =
                        "call again when another agent has released its own; the operator sets `[sandbox] max_live`";
                    return Err(Error::retry(Code::Capacity, 10, message, remediate));
                }
            }
            State::Live(_) => {}
        }
        let had = match std::mem::take(&mut *state) {
            State::Live(live) => Some(live),
            _ => None,
        };
        let id = self.flights.fetch_add(1, Ordering::Relaxed);
        let (outcome_tx, outcome) = watch::channel(None);
        let (done_tx, done) = watch::channel(false);
        let flight = Flight {
            id,
            wanted: want.clone(),
            had: had.clone(),
            cancel: CancellationToken::new(),
            outcome,
            progress: broadcast::Sender::new(PROGRESS_BACKLOG),
            done,
        };
        let next = Next::Join(flight.outcome.clone(), flight.progress.subscribe());
        let fly = Fly {
            registry: self.clone(),
            owner: owner.clone(),
            entry: entry.clone(),
            id,
            cancel: flight.cancel.clone(),
            progress: flight.progress.clone(),
            outcome: outcome_tx,
            done: done_tx,
        };
        *state = State::Making(flight);
        drop(state);
        tokio::spawn(fly.run(had));
        Ok(next)
    }

    /// Lets go everything that `agent` has and stops what is being made for it; what is retained goes to sleep. Answers the
    /// services it had; for none, at once.
    pub async fn release(self: &Arc<Self>, agent: &AgentName, why: &str) -> Vec<ServiceName> {
        // Before the entry is looked at: then either this is seen when the sandbox is adopted, or the sandbox is seen here.
        if let Some(early) = &mut *self.early.lock().unwrap_or_else(PoisonError::into_inner) {
            early.insert(agent.clone());
        }
        let owners = self.owners_of(agent);
        join_all(owners.iter().map(|owner| self.release_if(owner, why, |_, _| true))).await.concat()
    }

    /// Lets go what one owner has.
    pub async fn release_owner(self: &Arc<Self>, owner: &Owner, why: &str) -> Vec<ServiceName> {
        self.release_if(owner, why, |_, _| true).await
    }

    /// Lets go what one owner has, if that is still this container in this run. Whoever decides late must not touch what was
    /// made or woken since.
    pub(crate) async fn release_serving(self: &Arc<Self>, owner: &Owner, serving: &Serving, why: &str) {
        let same = |_: &Entry, state: &State| match state {
            State::Live(live) | State::Making(Flight { had: Some(live), .. }) => {
                live.services.values().any(|s| s.id == serving.id && s.run == serving.run)
            }
            _ => false,
        };
        self.release_if(owner, why, same).await;
    }

    /// Puts the retained thing to sleep that was used least recently and is not in use, unless one is going to sleep already.
    /// Answers whether there was one.
    async fn make_room(self: &Arc<Self>) -> bool {
        let going = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let mut retained = entries.iter().filter(|(owner, _)| owner.retains());
            retained.find_map(
                |(_, entry)| if let State::LettingGo(gone) = &*entry.lock() { Some(gone.clone()) } else { None },
            )
        };
        if let Some(mut gone) = going
            && matches!(tokio::time::timeout(RELEASE_WAIT, gone.wait_for(|gone| *gone)).await, Ok(Ok(_)))
        {
            return true;
        }
        let idle = |entry: &Entry, state: &State| {
            matches!(state, State::Live(_)) && entry.in_flight.load(Ordering::SeqCst) == 0
        };
        let mut candidates: Vec<_> = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let retained = entries.iter().filter(|(owner, entry)| owner.retains() && idle(entry, &entry.lock()));
            let last_use = |entry: &Entry| *entry.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
            retained.map(|(owner, entry)| (last_use(entry), owner.clone())).collect()
        };
        candidates.sort();
        for (_, owner) in candidates {
            if !self.release_if(&owner, "room was needed, and it was used least recently", idle).await.is_empty() {
                return true;
            }
        }
        false
    }

    /// Starts nothing new from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.ensure.pool.stop.cancel();
    }

    /// Opens or closes the pool, and says nothing about what is not kept ready.
    pub(crate) fn set_pool_open(&self, open: bool) {
        self.ensure.pool.set_open(open);
    }

    /// What is ready before anybody asks.
    pub fn pool(&self) -> Holds {
        self.ensure.pool.holds()
    }

    /// Lets go everything that is ready.
    pub(crate) async fn empty_pool(&self) {
        let all = self.ensure.pool.claim_surplus(&BTreeMap::new());
        join_all(all.into_iter().map(|claim| self.ensure.let_ready_go(claim, "the host goes down"))).await;
    }

    /// Has the next call look more closely at a container.
    pub(crate) fn doubt(&self, id: &str) {
        self.ensure.doubt(id);
        self.ensure.pool.doubt(Some(id));
    }

    /// Has the next call look more closely at every container; while it is `unseen` what ends, every call.
    pub(crate) fn doubt_all(&self, unseen: bool) {
        self.ensure.doubt_all(unseen);
        self.ensure.pool.doubt(None);
    }

    /// Lets an agent's sandbox go, and what is being made for it, if it has called nothing since. Decided under the entry's lock.
    pub(crate) async fn release_departed(self: &Arc<Self>, agent: &AgentName, since: Instant) {
        let silent = |entry: &Entry, _: &State| !Self::called_since(entry, since);
        let owners = self.owners_of(agent);
        join_all(owners.iter().map(|owner| self.release_if(owner, "its container ended", silent))).await;
    }

    /// Lets an agent's sandbox go if its lease ran out and nothing was asked for within `grace`. Decided under the entry's
    /// lock: a call that came in between has renewed the lease.
    pub async fn release_idle(self: &Arc<Self>, owner: &Owner, grace: Duration) {
        let idle = |entry: &Entry, state: &State| matches!(state, State::Live(_)) && self.lease_is_over(entry, grace);
        self.release_if(owner, "its lease ran out and it does not run", idle).await;
    }

    /// Who is not heard.
    pub(crate) fn unheard(&self) -> &Unheard {
        &self.ensure.unheard
    }

    /// Puts to sleep or closes what stands alone and has not been in use for long enough.
    pub async fn release_unused(self: &Arc<Self>, owner: &Owner) {
        let limits = self.limits();
        let bound = if owner.retains() { limits.idle_sleep } else { limits.idle_close };
        let unused = |entry: &Entry, state: &State| {
            let until = *entry.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = until.is_none_or(|until| Instant::now() + limits.lease >= until + bound);
            idle && matches!(state, State::Live(_)) && entry.in_flight.load(Ordering::SeqCst) == 0
        };
        self.release_if(owner, "it was not in use", unused).await;
    }

    async fn release_if(
        self: &Arc<Self>,
        owner: &Owner,
        why: &str,
        wanted: impl FnOnce(&Entry, &State) -> bool,
    ) -> Vec<ServiceName> {
        let Some(entry) = self.find(owner) else { return Vec::new() };
        let names = |live: &Live| live.services.keys().cloned().collect();
        let (services, mut gone): (Vec<ServiceName>, _) = {
            let mut state = entry.lock();
            if !wanted(&entry, &state) {
                return Vec::new();
            }
            match std::mem::take(&mut *state) {
                State::Absent => return Vec::new(),
                State::LettingGo(gone) => {
                    *state = State::LettingGo(gone.clone());
                    (Vec::new(), gone)
                }
                State::Making(flight) => {
                    flight.cancel.cancel();
                    *state = State::LettingGo(flight.done.clone());
                    (flight.wanted.services.keys().cloned().collect(), flight.done)
                }
                State::Live(live) => {
                    let (tx, gone) = watch::channel(false);
                    *state = State::LettingGo(gone.clone());
                    let services = names(&live);
                    let (this, entry, owner) = (self.clone(), entry.clone(), owner.clone());
                    tokio::spawn(async move {
                        this.let_go_all(&owner, &live).await;
                        this.vacate(&owner, &entry);
                        tx.send_replace(true);
                    });
                    (services, gone)
                }
            }
        };
        crash::here("release decided");
        if !services.is_empty() {
            let names: Vec<_> = services.iter().map(ServiceName::as_str).collect();
            tracing::info!(target: "audit", agent = owner.slug(), owner = owner.key(), services = ?names, why, "released");
            metric::released(why);
        }
        if tokio::time::timeout(RELEASE_WAIT, gone.wait_for(|gone| *gone)).await.is_err() {
            tracing::warn!(agent = owner.slug(), owner = owner.key(), "released; the removal takes longer and goes on");
        }
        services
    }

    async fn let_go_all(&self, owner: &Owner, live: &Live) {
        if owner.retains() {
            join_all(live.services.values().map(|s| self.ensure.sleep(owner, &s.id))).await;
        } else {
            self.ensure.let_go(live.services.values()).await;
        }
    }

    fn vacate(&self, owner: &Owner, entry: &Entry) {
        *entry.lock() = State::Absent;
        self.count(owner).fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes in what was found running when the host started.
    ///
    /// `still` is asked under the entry's lock whether the agent still works on that project; if not, or if it was released
    /// since the host started, it is handed back.
    pub(crate) fn adopt(&self, owner: &Owner, live: Live, still: impl FnOnce() -> bool) -> Result<(), Live> {
        let entry = self.entry(owner);
        let mut state = entry.lock();
        let early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        let released = early.as_ref().is_some_and(|early| early.contains(&owner.agent));
        drop(early);
        if released || !still() || !matches!(*state, State::Absent) {
            return Err(live);
        }
        *state = State::Live(live);
        self.count(owner).fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.start_lease(&entry);
        Ok(())
    }

    /// Notes that everything that exists is known.
    pub(crate) fn recovered(&self) {
        *self.early.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes a call of the agent that came just now, which starts its leases anew.
    pub fn call_came(&self, agent: &AgentName) {
        for entry in self.entries_of(agent) {
            entry.note_call();
            self.start_lease(&entry);
        }
    }

    /// Starts the agent's leases anew once its call is answered. Whether the agent still lives is another question: it may
    /// have died while it waited.
    pub fn call_ended(&self, agent: &AgentName) {
        for entry in self.entries_of(agent) {
            self.start_lease(&entry);
        }
    }

    /// The owner labels of everybody whose containers a flight is busy with.
    pub(crate) fn being_changed(&self, names: &Names) -> BTreeSet<String> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = entries.iter().filter(|(_, e)| matches!(*e.lock(), State::Making(_) | State::LettingGo(_)));
        let ahead = (!self.ensure.pool.is_still()).then(|| names.pool());
        busy.map(|(owner, _)| owner.label(names)).chain(ahead).collect()
    }

    fn start_lease(&self, entry: &Entry) {
        let until = Instant::now() + self.limits().lease;
        *entry.lease_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
    }

    /// What the agent has, from the books alone.
    pub fn snapshot(&self, owner: &Owner) -> Snapshot {
        let Some(entry) = self.find(owner) else {
            return Snapshot { state: "absent", live: None, making: None, lease: None };
        };
        let mut making = None;
        let (state, live) = match &*entry.lock() {
            State::Absent => ("absent", None),
            // A call that only checks what is there changes nothing about it.
            State::Making(Flight { had: Some(had), wanted, .. }) if had.covers(wanted) => ("live", Some(had.clone())),
            State::Making(flight) => {
                making = Some(flight.wanted.clone());
                ("making", flight.had.clone())
            }
            State::Live(live) => ("live", Some(live.clone())),
            State::LettingGo(_) => ("letting_go", None),
        };
        let until = *entry.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
        let lease = until.filter(|_| state != "absent").map(|until| until.saturating_duration_since(Instant::now()));
        Snapshot { state, live, making, lease }
    }

    /// Everybody who has or is about to have a sandbox.
    pub fn owners(&self) -> Vec<Owner> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().filter(|(_, e)| !matches!(*e.lock(), State::Absent)).map(|(a, _)| a.clone()).collect()
    }

    /// Whether an owner still has this work folder, in whatever container.
    pub(crate) fn has(&self, owner: &Owner, folder: &str) -> bool {
        let live = self.snapshot(owner).live;
        live.is_some_and(|live| live.services.values().any(|s| s.folder() == Some(folder)))
    }

    /// Forgets what says nothing any more. An entry that somebody holds is kept: there must never be two
    /// of an agent.
    pub(crate) fn prune(&self) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |at: &Instant| at.elapsed() >= self.limits().remake_window;
        entries.retain(|_, entry| {
            let spent = matches!(*entry.lock(), State::Absent)
                && entry.remakes.lock().unwrap_or_else(PoisonError::into_inner).back().is_none_or(old);
            !(spent && Arc::strong_count(entry) == 1)
        });
        drop(entries);
        self.ensure.forget_all(&self.known_ids());
    }

    /// What was noted as handed out, by id.
    pub(crate) fn handed_out(&self) -> Vec<String> {
        let rows = self.ensure.store.handed_out().unwrap_or_default();
        rows.into_iter().map(|row| row.container).collect()
    }

    /// Forgets who got what is gone.
    pub(crate) fn forget_handed_out(&self, gone: Vec<String>) {
        if !gone.is_empty()
            && let Err(e) = self.ensure.store.forget_handed_out(&gone)
        {
            tracing::warn!(error = %e, "who got what is gone is not forgotten yet");
        }
    }

    /// Counts time for what is asleep, and deletes what has been for long enough.
    pub(crate) async fn expire(&self, passed: Duration) {
        let store = &self.ensure.store;
        let rows = match store.kept() {
            Ok(rows) => rows,
            Err(e) => return tracing::warn!(error = %e, "nothing expires: what is retained cannot be read"),
        };
        let mut expired = Vec::new();
        for row in rows {
            let owner = Owner::keyed(&self.ensure.names, &row.tenant, &row.service, true);
            let entry = self.entry(&owner);
            // Held until it is noted: one that is woken begins anew.
            let state = entry.lock();
            if !matches!(*state, State::Absent) {
                continue;
            }
            if let Err(e) = store.add_asleep(&row.key, &row.service, passed.as_secs()) {
                tracing::warn!(error = %e, "for how long something sleeps cannot be noted");
            }
            if row.asleep_secs.saturating_add(passed.as_secs()) >= self.limits().delete_after.as_secs() {
                expired.push((owner, row));
            }
        }
        // Deleting takes time, in which others may be woken.
        for (owner, row) in expired {
            self.delete(&owner, &row).await;
        }
    }

    /// Whether something has slept for long enough, from the state file: it may have been awake since its row was read.
    fn is_expired(&self, row: &KeptRow) -> bool {
        let rows = self.ensure.store.kept().unwrap_or_default();
        let now = rows.iter().find(|now| now.key == row.key && now.service == row.service);
        now.is_some_and(|now| now.asleep_secs >= self.limits().delete_after.as_secs())
    }

    /// Deletes what an agent that is no more retained.
    pub(crate) async fn delete_retained(&self, agent: &AgentName) {
        let store = &self.ensure.store;
        for row in store.kept().unwrap_or_default().iter().filter(|row| row.tenant.agent == *agent) {
            // If it cannot be deleted now, the next sweep finds it expired.
            if let Err(e) = store.set_asleep(&row.key, &row.service, self.limits().delete_after.as_secs()) {
                tracing::warn!(error = %e, "it stays until it expires");
            }
            self.delete(&Owner::keyed(&self.ensure.names, &row.tenant, &row.service, true), row).await;
        }
    }

    /// Deletes something retained that nobody has, with its data.
    async fn delete(&self, owner: &Owner, row: &KeptRow) {
        let delete = async {
            match self.ensure.delete_kept(row).await {
                Ok(()) => {
                    tracing::info!(target: "audit", agent = owner.slug(), owner = owner.key(), service = %row.service, "deleted")
                }
                Err(e) => {
                    tracing::warn!(agent = owner.slug(), owner = owner.key(), error = %e, "not deleted yet; the next sweep tries again")
                }
            }
        };
        self.while_absent(owner, || self.is_expired(row), delete).await;
    }

    /// Puts something retained to sleep that runs and that nobody has.
    pub(crate) async fn sleep_stray(&self, unit: &Unit) {
        match self.ensure.keeper(unit) {
            Some(owner) => self.while_absent(&owner, || true, self.ensure.sleep(&owner, &unit.id)).await,
            // The state file does not know it, so nobody can say whose it is.
            None => self.ensure.suspend(unit).await,
        }
    }

    /// Does something to what an owner does not have. A call that comes meanwhile waits for the end of that.
    async fn while_absent(&self, owner: &Owner, still: impl FnOnce() -> bool, work: impl Future<Output = ()>) {
        let entry = self.entry(owner);
        let (tx, gone) = watch::channel(false);
        {
            let mut state = entry.lock();
            if !matches!(*state, State::Absent) || !still() {
                return;
            }
            *state = State::LettingGo(gone);
            self.count(owner).fetch_add(1, Ordering::Relaxed);
        }
        work.await;
        self.vacate(owner, &entry);
        tx.send_replace(true);
    }

    /// The ids of everything that is live, or ready for whoever asks next.
    pub fn known_ids(&self) -> BTreeSet<String> {
        // In this order: what is handed out between the two looks is known by the second.
        let mut all = self.ensure.pool.ids();
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let ids = |state: &State| match state {
            State::Live(live) | State::Making(Flight { had: Some(live), .. }) => {
                live.services.values().map(|s| s.id.clone()).collect()
            }
            _ => Vec::new(),
        };
        all.extend(entries.values().flat_map(|entry| ids(&entry.lock())));
        all
    }

    fn called_since(entry: &Entry, since: Instant) -> bool {
        entry.called.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|called| called >= since)
    }

    fn lease_is_over(&self, entry: &Entry, grace: Duration) -> bool {
        let until = *entry.lease_until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // A lease begins with whatever was asked last.
        until.is_none_or(|until| now >= until && now + self.limits().lease >= until + grace)
    }

    /// Waits until no flight is under way and nothing is being made ahead, at most `bound`.
    pub async fn settle(&self, bound: Duration) {
        let until = Instant::now() + bound;
        let entries: Vec<_> = self.entries.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for entry in entries {
            let done = match &*entry.lock() {
                State::Making(flight) => flight.done.clone(),
                State::LettingGo(gone) => gone.clone(),
                _ => continue,
            };
            let mut done = done;
            let _ = tokio::time::timeout_at(until, done.wait_for(|done| *done)).await;
        }
        let _ = tokio::time::timeout_at(until, self.ensure.pool.still()).await;
    }
}

/// Waits for a flight's outcome and passes its reports on. `None` when the flight died without one.
async fn listen(
    outcome: &mut watch::Receiver<Option<Outcome>>,
    mut progress: broadcast::Receiver<Progress>,
    listener: Option<&Listener>,
) -> Option<Outcome> {
    let mut open = listener.is_some();
    loop {
        tokio::select! {
            biased;
            report = progress.recv(), if open => match report {
                Ok(report) => {
                    if let Some(listener) = listener {
                        listener(report);
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => open = false,
            },
            ended = outcome.wait_for(Option::is_some) => return ended.ok().and_then(|o| o.clone()),
        }
    }
}

/// The task of a flight.
struct Fly {
    registry: Arc<Registry>,
    owner: Owner,
    entry: Arc<Entry>,
    id: u64,
    cancel: CancellationToken,
    progress: broadcast::Sender<Progress>,
    outcome: watch::Sender<Option<Outcome>>,
    done: watch::Sender<bool>,
}

impl Fly {
    async fn run(self, had: Option<Live>) {
        let mut held = had;
        loop {
            let wanted = match &*self.entry.lock() {
                State::Making(flight) if flight.id == self.id => flight.wanted.clone(),
                _ => break,
            };
            let round =
                self.registry.ensure.round(&self.owner, &self.entry, &wanted, &mut held, &self.cancel, &self.progress);
            let result = match std::panic::AssertUnwindSafe(round).catch_unwind().await {
                Ok(result) => result,
                Err(_) => {
                    tracing::error!(agent = self.owner.slug(), owner = self.owner.key(), "a provision panicked");
                    // What it was making has been discarded by its maker; what was held is still on our hands.
                    Err(Error::internal())
                }
            };
            let mut state = self.entry.lock();
            match &*state {
                State::Making(flight) if flight.id == self.id => {
                    if result.is_ok() && flight.wanted != wanted {
                        continue;
                    }
                }
                _ => break,
            }
            let live = held.clone().filter(|_| result.is_ok());
            match held.filter(|live| !live.services.is_empty()) {
                Some(live) => *state = State::Live(live),
                None => {
                    *state = State::Absent;
                    self.registry.count(&self.owner).fetch_sub(1, Ordering::Relaxed);
                }
            }
            drop(state);
            self.outcome.send_replace(Some(Outcome { live, error: result.err(), wanted: Some(wanted) }));
            self.done.send_replace(true);
            return;
        }
        // Released. Whoever waited for this learns it at once; the names are free before `done` is true.
        let closed = self.registry.closed.load(Ordering::Relaxed);
        let error = if closed { failure::not_serving("shutting down") } else { failure::released() };
        self.outcome.send_replace(Some(Outcome { live: None, error: Some(error), wanted: None }));
        if let Some(live) = held {
            self.registry.let_go_all(&self.owner, &live).await;
        }
        self.registry.vacate(&self.owner, &self.entry);
        self.done.send_replace(true);
    }
}
