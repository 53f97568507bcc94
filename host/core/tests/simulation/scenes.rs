//! Scenes: what schedules found, and what they find too seldom, each played out on purpose.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::error::Error;
use sandbar_core::health::State;
use sandbar_core::host::Host;
use serde_json::Value;

use crate::faults::{Kind, Knobs, Trouble};
use crate::rng::Rng;
use crate::schedule::{Meddle, Schedule};
use crate::stage::{Extensions, Stage};

/// Long enough for everything that nothing holds up.
const SOON: Duration = Duration::from_secs(2);

fn stage(seed: u64, agents: usize) -> Arc<Stage> {
    let knobs = Knobs { latency: 10, boot: 100, ..Knobs::default() };
    crate::quiet_panics();
    Stage::new(seed, Schedule { knobs, agents, ..Schedule::plain() }, true)
}

impl Stage {
    fn script(&self, kind: Kind, key: &str, trouble: Trouble) {
        self.world.with(|inner| inner.script.push((kind, key.to_owned(), trouble)));
    }

    async fn up(&self, host: &Host) {
        let up = async { host.health().subscribe().wait_for(|s| *s == State::Up).await.is_ok() };
        assert_eq!(tokio::time::timeout(Duration::from_secs(60), up).await, Ok(true), "the host comes up");
    }

    async fn ask(&self, host: &Host, agent: usize) -> Result<Value, Error> {
        self.request(host, agent, None, &PLAIN, None).await.unwrap()
    }

    /// The first agent's request, whose answer the scene judges.
    async fn try_to_ask(&self, host: &Host) -> Result<Value, Error> {
        host.request_sandbox(&self.agents[0], None, &PLAIN, None).await
    }

    /// A host that comes up, and an agent that works on a project and has its sandbox.
    async fn served(&self, host: &Host, project: &str) -> Value {
        self.up(host).await;
        self.begin(host, 0, project).await;
        self.ask(host, 0).await.unwrap()
    }

    fn created(&self) -> u64 {
        self.world.with(|inner| inner.created)
    }

    fn ours(&self) -> Vec<String> {
        self.world.with(|inner| inner.ours().map(|c| c.name.clone()).collect())
    }

    fn serving(&self, key: &str) -> String {
        self.world.with(|inner| inner.ours().find(|c| c.key == key).map(|c| c.id.clone())).unwrap()
    }

    /// Nothing was seen that must not be.
    fn close(&self) {
        let verdict = self.world.verdict();
        assert!(verdict.violations.is_empty(), "{:#?}\n{}", verdict.violations, verdict.log.join("\n"));
    }
}

const ZERO: Duration = Duration::ZERO;
/// No extensions beyond the project's.
static PLAIN: Extensions = Extensions::new();

#[test]
fn what_is_released_while_the_host_starts_is_not_adopted() {
    let s = &stage(1, 1);
    s.life(ZERO, |host| async move { s.served(&host, "shop").await });
    s.script(Kind::List, "", Trouble::Slow);
    s.life(ZERO, |host| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(host.health().state(), State::Starting);
        s.release(&host, 0).await;
        s.up(&host).await;
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
        s.ask(&host, 0).await.unwrap();
    });
    s.close();
}

#[test]
fn a_kill_between_the_end_of_work_and_its_release_leaves_nothing() {
    for other in [None, Some("docs")] {
        let s = &stage(2, 1);
        s.life(ZERO, |host| async move {
            s.served(&host, "shop").await;
            s.script(Kind::Rename, "a1/", Trouble::Hangs { done: false });
            s.script(Kind::Rename, "a1/", Trouble::Hangs { done: false });
            let ends = async {
                match other {
                    None => s.end(&host, 0).await,
                    Some(project) => s.begin(&host, 0, project).await,
                }
            };
            assert!(tokio::time::timeout(Duration::from_secs(1), ends).await.is_err(), "the host is killed before");
        });
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            tokio::time::sleep(SOON).await;
            assert_eq!(s.ours(), [""; 0]);
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}

#[test]
fn a_panic_over_one_container_does_not_keep_the_host_from_starting() {
    let s = &stage(3, 1);
    s.life(ZERO, |host| async move { s.served(&host, "shop").await });
    s.script(Kind::Prepare, "plan pg", Trouble::Fails);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(SOON).await;
        s.look_at_rest(&host, "at rest");
        s.ask(&host, 0).await.unwrap();
    });
    s.close();
}

#[test]
fn a_panic_over_one_service_leaves_nothing_of_the_others() {
    let s = &stage(4, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "docs").await;
        s.script(Kind::Prepare, "plan pg", Trouble::Fails);
        let created = s.created();
        let error = s.try_to_ask(&host).await.unwrap_err();
        assert!(s.created() > created && error.retryable, "{error:?}");
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
        s.ask(&host, 0).await.unwrap();
    });
    s.close();
}

#[test]
fn what_nobody_waited_for_is_found_by_the_next_call() {
    let s = &stage(5, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "shop").await;
        let left = s.request(&host, 0, None, &PLAIN, Some(Duration::from_millis(5))).await;
        assert!(left.is_none());
        tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        let created = s.created();
        s.ask(&host, 0).await.unwrap();
        assert_eq!((created, s.created()), (2, 2));
    });
    s.close();
}

#[test]
fn a_stale_container_with_the_name_is_let_go_and_is_never_told_to_be_somebody_elses() {
    // A failed rename leaves the predecessor its name, and it cannot be removed in time.
    for renames in [1, 2, 30] {
        let s = &stage(6, 1);
        s.life(ZERO, |host| async move {
            s.served(&host, "wiki").await;
            let id = s.serving("a1/redis");
            s.world.with(|inner| inner.end(&id, 1));
            for _ in 0..renames {
                s.script(Kind::Rename, "a1/", Trouble::Fails);
                s.script(Kind::Remove, "a1/", Trouble::Hangs { done: false });
            }
            let answer = s.try_to_ask(&host).await;
            match answer {
                Ok(_) => assert!(renames < 30),
                Err(error) => assert!(error.retryable, "{error:?}"),
            }
            s.world.with(|inner| inner.script.clear());
            tokio::time::sleep(Duration::from_secs(120)).await;
            s.ask(&host, 0).await.unwrap();
            tokio::time::sleep(SOON).await;
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}

#[test]
fn who_waits_for_a_host_that_goes_down_may_try_again() {
    let knobs = Knobs { latency: 10, boot: 100, ..Knobs::default() };
    let s = &Stage::new(7, Schedule { knobs, keep: false, ..Schedule::plain() }, true);
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
fn what_ends_after_it_was_confirmed_is_not_handed_out() {
    for how in [Meddle::Kill, Meddle::Restart, Meddle::Vanish, Meddle::Pause] {
        let s = &stage(8, 1);
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, "shop").await;
            s.script(Kind::Prepare, "pg", Trouble::Slow);
            let meddle = async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                s.meddle(0, &s.serving("a1/redis"), how);
            };
            let (answer, ()) = tokio::join!(s.request(&host, 0, None, &PLAIN, None), meddle);
            match (answer.unwrap(), how) {
                (Ok(_), _) => {}
                // It could not be given its name.
                (Err(error), Meddle::Vanish) if error.retryable => {}
                (Err(error), _) => panic!("{how:?}: {error:?}"),
            }
            let sound = s.world.with(|inner| {
                inner
                    .ours()
                    .filter(|c| c.key == "a1/redis" && inner.serves(&c.name).is_some())
                    .all(|c| c.restarted.is_none())
            });
            assert!(sound && s.all_run(), "{how:?}");
        });
        // It took longer than a call may where nothing goes wrong; and one that was started again is noticed after its
        // commit.
        let expected = |v: &String| [" took ", "is committed", "failed at commit"].iter().any(|w| v.contains(w));
        let violations = s.world.verdict().violations;
        assert!(violations.iter().all(expected), "{violations:#?}");
    }
}

#[test]
fn what_is_started_again_while_the_host_starts_is_made_anew() {
    let s = &stage(9, 1);
    let before = s.life(ZERO, |host| async move { s.served(&host, "shop").await });
    // Everything about pg is long known when redis is.
    s.script(Kind::Environment, "a1/redis", Trouble::Slow);
    s.life(ZERO, |host| async move {
        tokio::time::sleep(SOON).await;
        s.meddle(0, &s.serving("a1/pg"), Meddle::Restart);
        s.up(&host).await;
        s.with(0, |a| a.forget(s.world.now()));
        assert_ne!(s.ask(&host, 0).await.unwrap()["pg"]["password"], before["pg"]["password"]);
    });
    s.close();
}

#[test]
fn what_is_created_after_its_host_was_killed_is_swept() {
    let s = &stage(10, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "wiki").await;
        s.script(Kind::Create, "a1/", Trouble::Late { after: Duration::from_secs(10) });
        let asks = s.try_to_ask(&host);
        assert!(tokio::time::timeout(Duration::from_secs(5), asks).await.is_err());
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(s.ours().len(), 1);
        tokio::time::sleep(Duration::from_secs(400)).await;
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
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
                let (now, making) = (s.world.now(), host.registry().snapshot(&s.agents[0]).state == "making");
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
