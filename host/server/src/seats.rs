//! Who may be connected. Every connection costs a file descriptor, and the host needs some to reach Docker, so there is a
//! bound on all of them and one on those of one address. Where it is reached, the connection that has been without a
//! request for longest makes room: who connects and asks nothing keeps nobody out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In all.
    pub total: usize,
    /// From one address, other than a loopback one: that is shared by all agents of this machine.
    pub per_peer: usize,
}

/// No bound needs to be larger: an agent has one connection or two.
const MOST: usize = 1024;

impl Bounds {
    /// The bounds of a process that may have so many descriptors. Half of them are left to the rest of the host.
    pub fn for_descriptors(limit: Option<u64>) -> Self {
        let half = limit.map_or(MOST, |n| usize::try_from(n / 2).unwrap_or(MOST));
        let total = half.clamp(8, MOST);
        Self { total, per_peer: (total / 8).max(4) }
    }
}

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// Nothing, or sending the head of a request, since it was accepted or answered.
    Asking { since: Instant, answered: bool },
    /// Waiting for the answer to a request.
    Waiting,
}

#[derive(Debug)]
struct Taken {
    peer: IpAddr,
    doing: Doing,
    leave: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inner {
    taken: BTreeMap<u64, Taken>,
    next: u64,
}

/// The seats of all connections.
#[derive(Debug)]
pub(crate) struct Seats {
    bounds: Bounds,
    inner: Mutex<Inner>,
    /// Tells that a seat became free, or could be freed.
    freed: Notify,
}

/// What becomes of a connection that comes.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It is served.
    Seated(Seat),
    /// Its address has as many as it may, all of them with a request.
    Refused,
}

impl Seats {
    pub(crate) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, inner: Mutex::default(), freed: Notify::new() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change is one step, so a panic leaves nothing half done.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another connection can be taken, making room where none is.
    pub(crate) async fn room(&self) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on no word is missed.
            freed.as_mut().enable();
            if self.inner().taken.len() < self.bounds.total {
                return;
            }
            self.make_room();
            freed.await;
        }
    }

    /// Ends the connection that has been without a request for longest. Answers whether there was one.
    pub(crate) fn make_room(&self) -> bool {
        self.end_idlest(|_| true)
    }

    fn end_idlest(&self, among: impl Fn(&IpAddr) -> bool) -> bool {
        let mut inner = self.inner();
        let idle = inner.taken.iter().filter(|(_, t)| among(&t.peer)).filter_map(|(id, t)| match t.doing {
            Doing::Asking { since, .. } => Some((since, *id)),
            Doing::Waiting => None,
        });
        let Some((_, id)) = idle.min() else { return false };
        // Its descriptor is free a moment later; its seat is free now, so that it is not ended twice.
        if let Some(taken) = inner.taken.remove(&id) {
            taken.leave.notify_one();
        }
        drop(inner);
        self.freed.notify_waiters();
        true
    }

    /// Gives a connection a seat.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Admission {
        // An IPv4 address is the same one on a socket that takes both kinds.
        let peer = peer.to_canonical();
        if !peer.is_loopback() {
            let theirs = self.inner().taken.values().filter(|t| t.peer == peer).count();
            if theirs >= self.bounds.per_peer && !self.end_idlest(|p| *p == peer) {
                return Admission::Refused;
            }
        }
        let leave = Arc::new(Notify::new());
        let mut inner = self.inner();
        let id = inner.next;
        inner.next += 1;
        let doing = Doing::Asking { since: Instant::now(), answered: false };
        inner.taken.insert(id, Taken { peer, doing, leave: leave.clone() });
        Admission::Seated(Seat { seats: self.clone(), id, leave })
    }
}

/// One connection's seat, free when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    id: u64,
    leave: Arc<Notify>,
}

impl Seat {
    /// Ends when the seat is given to somebody else.
    pub(crate) async fn taken_away(&self) {
        self.leave.notified().await;
    }

    fn set(&self, doing: Doing) {
        if let Some(taken) = self.seats.inner().taken.get_mut(&self.id) {
            taken.doing = doing;
        }
    }

    /// Notes that a request came. When that is dropped, it has been answered.
    pub(crate) fn request(self: &Arc<Self>) -> Request {
        self.set(Doing::Waiting);
        Request(self.clone())
    }

    /// When the last answer was given, where one can still be on its way; `None` where nobody waits for one.
    pub(crate) fn answered(&self) -> Option<Instant> {
        match self.seats.inner().taken.get(&self.id)?.doing {
            Doing::Waiting => Some(Instant::now()),
            Doing::Asking { since, answered } => answered.then_some(since),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.inner().taken.remove(&self.id);
        self.seats.freed.notify_waiters();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Request(Arc<Seat>);

impl Drop for Request {
    fn drop(&mut self) {
        self.0.set(Doing::Asking { since: Instant::now(), answered: true });
        // Whoever waits for room finds some here.
        self.0.seats.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn seat(seats: &Arc<Seats>, peer: &str) -> Option<Arc<Seat>> {
        match seats.admit(peer.parse().expect("an address")) {
            Admission::Seated(seat) => Some(Arc::new(seat)),
            Admission::Refused => None,
        }
    }

    async fn is_ended(seat: &Seat) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, seat.taken_away()).await.is_ok()
    }

    #[test]
    fn half_of_the_descriptors_are_left_to_the_host() {
        assert_eq!(Bounds::for_descriptors(Some(150)), Bounds { total: 75, per_peer: 9 });
        assert_eq!(Bounds::for_descriptors(Some(1 << 20)), Bounds { total: 1024, per_peer: 128 });
        assert_eq!(Bounds::for_descriptors(None), Bounds::for_descriptors(Some(u64::MAX)));
        assert_eq!(Bounds::for_descriptors(Some(0)).total, 8);
    }

    #[tokio::test]
    async fn who_asks_nothing_makes_room_and_who_waits_stays() {
        let seats = Seats::new(Bounds { total: 2, per_peer: 1 });
        let (first, second) = (seat(&seats, "127.0.0.1").expect("a seat"), seat(&seats, "::1").expect("a seat"));
        let request = first.request();
        seats.room().await;
        assert!(is_ended(&second).await && !is_ended(&first).await);
        let third = seats.admit(LOCAL);
        assert!(matches!(third, Admission::Seated(_)));
        // With a request on every seat nobody is ended, and room comes when one has been answered.
        drop(third);
        let third = seat(&seats, "127.0.0.1").expect("a seat");
        let other = third.request();
        assert!(!seats.make_room());
        let (room, ()) = tokio::join!(seats.room(), async { drop(request) });
        let () = room;
        assert!(is_ended(&first).await && !is_ended(&third).await);
        drop(other);
    }

    #[tokio::test]
    async fn one_address_has_its_share_and_loopback_has_none() {
        let seats = Seats::new(Bounds { total: 10, per_peer: 1 });
        let first = seat(&seats, "10.0.0.1").expect("a seat");
        let request = first.request();
        assert!(seat(&seats, "10.0.0.1").is_none() && seat(&seats, "::ffff:10.0.0.1").is_none());
        let neighbour = seat(&seats, "10.0.0.2").expect("a seat");
        drop(request);
        let next = seat(&seats, "10.0.0.1").expect("the one that asks nothing makes room");
        assert!(is_ended(&first).await && !is_ended(&next).await && !is_ended(&neighbour).await);
        let local: Vec<_> = (0..5).map(|_| seat(&seats, "127.0.0.1")).collect();
        assert!(local.iter().all(Option::is_some));
    }

    #[test]
    fn only_an_answer_is_waited_for() {
        let seats = Seats::new(Bounds { total: 2, per_peer: 1 });
        let seat = seat(&seats, "127.0.0.1").expect("a seat");
        assert_eq!(seat.answered(), None);
        let request = seat.request();
        assert!(seat.answered().is_some());
        drop(request);
        assert!(seat.answered().is_some());
    }
}
