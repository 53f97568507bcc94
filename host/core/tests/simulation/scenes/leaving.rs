//! How a sandbox goes, and who keeps theirs.

use std::time::Duration;

use sandbar_core::owner::Owner;

use super::{SOON, ZERO, knobs, stage};
use crate::faults::{Kind, Trouble};
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::stage::{Extensions, Stage};

#[test]
fn who_waits_for_a_host_that_goes_down_may_try_again() {
    let s = &Stage::new(7, Schedule { knobs: knobs(), keep: false, ..Schedule::plain() }, true);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "shop").await;
        s.script(Kind::Prepare, "pg", Trouble::Slow);
        let (error, ()) = tokio::join!(s.try_to_ask(&host), async {
            tokio::time::sleep(SOON).await;
            host.shut_down().await;
        });
        let error = error.unwrap_err();
        assert!(error.retryable, "{error:?}");
        assert!(s.try_to_ask(&host).await.unwrap_err().retryable);
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_a_listing_answers_beside_what_was_asked_is_left_alone() {
    let s = &stage(20, 1);
    let before = s.life(ZERO, |host| async move { s.served(&host, "wiki").await });
    s.squat(0, "pg");
    s.world.with(|inner| {
        inner.start_own("a1", false, true);
        inner.knobs.loose = 1000;
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(s.ask(&host, 0).await.unwrap(), before);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_takes_long_to_make_is_not_swept() {
    let s = &stage(21, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "shop").await;
        // Redis waits for longer than the janitor has patience with what it does not know.
        s.script(Kind::Prepare, "pg", Trouble::Slow);
        let redis = async {
            tokio::time::sleep(SOON).await;
            s.serving("a1/redis")
        };
        let (answer, redis) = tokio::join!(s.try_to_ask(&host), redis);
        answer.unwrap();
        assert_eq!((s.created(), s.serving("a1/redis")), (2, redis));
    });
    s.close();
}

/// Longer than a lease, the janitor's grace and a sweep.
const NO_LEASE: Duration = Duration::from_secs(30 * 60 + 180 + 65);

#[test]
fn who_runs_needs_no_lease_and_who_does_not_loses_what_it_had() {
    let s = &stage(22, 2);
    s.world.with(|inner| inner.start_own("a1", false, false));
    s.life(ZERO, |host| async move {
        s.begin(&host, 1, "wiki").await;
        let before = s.served(&host, "wiki").await;
        s.ask(&host, 1).await.unwrap();
        tokio::time::sleep(NO_LEASE).await;
        assert_eq!(s.ours(), ["sandbar-sandbox-redis-a1"]);
        // Whether it runs cannot be told now.
        for _ in 0..3 {
            s.script(Kind::List, "", Trouble::Fails);
        }
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(s.world.with(|inner| inner.script.is_empty()));
        assert_eq!(s.ask(&host, 0).await.unwrap(), before);
        // Nobody tells that it ends.
        s.world.with(|inner| inner.containers.retain(|_, c| !c.is_agents_own()));
        tokio::time::sleep(NO_LEASE).await;
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

/// What an agent whose container ends does then, second by second, and whether it keeps its sandbox.
#[test]
fn an_agent_whose_container_ended_keeps_its_sandbox_if_it_comes_back() {
    #[derive(Debug, Clone, Copy)]
    enum Then {
        Starts { again: bool, named: bool },
        Ends,
        Calls,
        CannotBeListed,
    }
    use Then::{Calls, CannotBeListed, Ends, Starts};
    let other = Starts { again: false, named: false };
    let same = Starts { again: true, named: false };
    let plays: [(&[(u64, Then)], bool); 9] = [
        (&[], false),
        (&[(9, other)], true),
        (&[(9, Starts { again: false, named: true })], true),
        (&[(9, same)], true),
        (&[(9, Calls)], true),
        (&[(8, same), (9, CannotBeListed)], true),
        (&[(3, other), (4, Ends)], false),
        (&[(3, other), (6, Ends), (14, other)], true),
        (&[(3, same), (6, Ends), (14, same)], true),
    ];
    for (play, keeps) in plays {
        let s = &stage(23, 1);
        s.world.with(|inner| inner.start_own("a1", false, true));
        s.life(ZERO, |host| async move {
            let before = s.served(&host, "wiki").await;
            tokio::time::sleep(SOON).await;
            let from = s.world.now();
            s.end_own("a1");
            for (at, then) in play {
                tokio::time::sleep(from + Duration::from_secs(*at) - s.world.now()).await;
                match *then {
                    Starts { again, named } => s.world.with(|inner| inner.start_own("a1", again, named)),
                    Ends => s.end_own("a1"),
                    Calls => assert_eq!(s.ask(&host, 0).await.unwrap(), before),
                    CannotBeListed => s.script(Kind::List, "", Trouble::Fails),
                }
            }
            tokio::time::sleep(Duration::from_secs(11)).await;
            assert_eq!(s.ours().len(), usize::from(keeps), "{play:?}");
            s.look_at_rest(&host, "at rest");
            if keeps {
                assert_eq!(s.ask(&host, 0).await.unwrap(), before, "{play:?}");
            }
        });
        s.close();
    }
}

/// However Docker treats one agent, the others do not notice.
#[test]
fn agents_do_not_wait_for_each_other() {
    for seed in 0..40 {
        let s = &stage(seed, 4);
        let mut rng = Rng::keyed(seed, "agents", 0);
        let (at, back) = (rng.ms(0, 400), rng.chance(500));
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            for agent in 0..4 {
                s.begin(&host, agent, "docs").await;
            }
            if back {
                s.ask(&host, 0).await.unwrap();
            }
            let hang = async {
                tokio::time::sleep(at).await;
                s.world.with(|inner| inner.hanging = Some("a1".to_owned()));
                if back {
                    let _ = tokio::time::timeout(Duration::from_secs(60), host.release(&s.agents[0], "test")).await;
                }
            };
            let first = async {
                let asks = s.try_to_ask(&host);
                let _ = tokio::time::timeout(Duration::from_secs(60), asks).await;
            };
            let others = futures_util::future::join_all((1..4).map(|agent| {
                let host = &host;
                async move {
                    for _ in 0..3 {
                        let from = s.world.now();
                        s.ask(host, agent).await.unwrap();
                        s.ask(host, agent).await.unwrap();
                        s.release(host, agent).await;
                        let took = s.world.now() - from;
                        assert!(took < SOON, "seed {seed}: it took {took:?}");
                    }
                }
            }));
            tokio::join!(hang, first, others);
        });
        s.close();
    }
}

/// Whoever waits when the sandbox is released learns that, and nothing is left.
#[test]
fn a_release_ends_every_wait() {
    for seed in 0..100 {
        let s = &stage(seed, 1);
        let mut rng = Rng::keyed(seed, "waiters", 0);
        let mut times: Vec<_> = (0..5).map(|_| rng.ms(0, 120)).collect();
        times.sort();
        let released = rng.ms(121, 400);
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, "docs").await;
            let waiters = times.into_iter().map(|at| {
                let host = &host;
                async move {
                    tokio::time::sleep(at).await;
                    let extensions = if at.as_millis() % 2 == 0 {
                        Extensions::from([("pg".to_owned(), crate::engine::set(&["vector"]))])
                    } else {
                        Extensions::new()
                    };
                    let answer = host.request_sandbox(&s.agents[0], None, &extensions, None).await;
                    (s.world.now(), answer)
                }
            });
            let release = async {
                tokio::time::sleep(released).await;
                let (now, making) =
                    (s.world.now(), host.registry().snapshot(&Owner::agent(&s.agents[0])).state == "making");
                s.release(&host, 0).await;
                (now, making)
            };
            let (answers, (from, making)) = tokio::join!(futures_util::future::join_all(waiters), release);
            for (at, answer) in answers {
                match answer {
                    Ok(_) => assert!(at <= from, "seed {seed}: served after the release"),
                    Err(error) => {
                        let reason = error.details.as_ref().and_then(|d| d.reason);
                        assert!(making && reason == Some("released") && !error.retryable, "seed {seed}: {error:?}");
                    }
                }
            }
            tokio::time::sleep(SOON).await;
            assert_eq!(s.ours(), [""; 0], "seed {seed}");
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}
