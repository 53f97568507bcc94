//! Scenes: what schedules found, and what they find too seldom, each played out on purpose.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::error::{Code, Error};
use sandbar_core::health::State;
use sandbar_core::host::Host;
use sandbar_core::janitor::{Janitor, Pace};
use sandbar_core::owner::Owner;
use serde_json::Value;

use crate::docker::Docker;
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

    /// The container in which an agent runs ends.
    fn end_own(&self, agent: &str) {
        self.world.with(|inner| {
            let id = inner.own(agent).unwrap().id.clone();
            inner.end(&id, 0);
        });
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
fn a_panic_over_what_runs_already_leaves_nothing() {
    let s = &stage(26, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "docs").await;
        s.script(Kind::Exec, "a1/pg", Trouble::Panics);
        let error = s.try_to_ask(&host).await.unwrap_err();
        assert!(s.created() > 0 && error.retryable, "{error:?}");
        tokio::time::sleep(SOON).await;
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
                // The rename that is the commit fails too.
                Err(error) => assert!(error.retryable && renames > 1, "{error:?}"),
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
fn what_is_made_and_started_again_while_nobody_tells_is_made_anew() {
    let s = &stage(9, 1);
    s.life(ZERO, |host| async move {
        s.served(&host, "shop").await;
        s.world.with(|inner| {
            inner.go_away(Duration::from_secs(1), false);
            inner.come_back();
        });
        // Docker answers, and its events are not followed yet.
        for _ in 0..2 {
            let before = s.ask(&host, 0).await.unwrap();
            s.meddle(0, &s.serving("a1/pg"), Meddle::Restart);
            tokio::time::sleep(Duration::from_millis(100)).await;
            s.with(0, |a| a.forget(s.world.now()));
            assert_ne!(s.ask(&host, 0).await.unwrap()["pg"]["password"], before["pg"]["password"]);
        }
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

#[test]
fn no_more_are_live_than_may_be() {
    let knobs = Knobs { latency: 10, boot: 100, ..Knobs::default() };
    let s = &Stage::new(11, Schedule { knobs, agents: 3, max_live: 2, ..Schedule::plain() }, true);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        for agent in 0..3 {
            s.begin(&host, agent, "wiki").await;
        }
        let answers = futures_util::future::join_all((0..3).map(|agent| s.ask(&host, agent))).await;
        let refused: Vec<_> = answers.iter().filter_map(|a| a.as_ref().err()).collect();
        assert!(matches!(&refused[..], [error] if error.code == Code::Capacity && error.retryable), "{refused:?}");
        let first = answers.iter().position(Result::is_ok).unwrap();
        let turned_away = answers.iter().position(Result::is_err).unwrap();
        s.release(&host, first).await;
        s.ask(&host, turned_away).await.unwrap();
    });
    s.close();
}

#[test]
fn a_sandbox_is_made_anew_so_often_and_no_more() {
    let s = &stage(12, 1);
    s.life(ZERO, |host| async move {
        s.served(&host, "wiki").await;
        let kill = || {
            s.meddle(0, &s.serving("a1/redis"), Meddle::Kill);
            s.with(0, |a| a.forget(s.world.now()));
        };
        for _ in 0..6 {
            kill();
            s.ask(&host, 0).await.unwrap();
            tokio::time::sleep(SOON).await;
        }
        kill();
        let created = s.created();
        let error = s.try_to_ask(&host).await.unwrap_err();
        assert!(error.code == Code::Capacity && error.retryable && s.created() == created, "{error:?}");
        tokio::time::sleep(Duration::from_secs(600)).await;
        s.ask(&host, 0).await.unwrap();
    });
    s.close();
}

#[test]
fn what_was_made_for_another_project_goes_before_anything_is_made() {
    let s = &stage(13, 1);
    s.life(ZERO, |host| async move {
        s.served(&host, "docs").await;
        // Work is written down before the release that it brings, and a call may come between.
        let new = host.people().begin_work(&s.agents[0], &crate::engine::project("wiki"), "main", |_| Ok(()));
        assert!(new.unwrap());
        let answer = s.try_to_ask(&host).await.unwrap();
        assert_eq!(answer.as_object().unwrap().keys().collect::<Vec<_>>(), ["redis"]);
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours(), ["sandbar-sandbox-redis-a1"]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn a_predecessor_that_lost_its_name_goes_too() {
    let s = &stage(14, 1);
    s.life(ZERO, |host| async move {
        s.served(&host, "wiki").await;
        s.meddle(0, &s.serving("a1/redis"), Meddle::Rename);
        s.ask(&host, 0).await.unwrap();
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours(), ["sandbar-sandbox-redis-a1"]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn nothing_is_made_for_a_name_that_is_somebody_elses() {
    let s = &stage(15, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "wiki").await;
        s.squat(0, "redis");
        let created = s.created();
        let error = s.try_to_ask(&host).await.unwrap_err();
        assert!(!error.retryable && s.created() == created, "{error:?}");
    });
    s.close();
}

#[test]
fn what_was_half_made_is_removed_by_the_next_start() {
    let s = &stage(16, 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "docs").await;
        s.script(Kind::Prepare, "pg", Trouble::Slow);
        assert!(tokio::time::timeout(SOON, s.try_to_ask(&host)).await.is_err());
        assert_eq!(s.ours().len(), 2);
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours(), [""; 0]);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn nothing_is_concluded_from_what_docker_did_not_say_when_the_host_starts() {
    for (kind, key) in [(Kind::List, ""), (Kind::Environment, "a1/"), (Kind::Inspect, "a1/")] {
        let s = &stage(17, 1);
        let before = s.life(ZERO, |host| async move { s.served(&host, "shop").await });
        for _ in 0..3 {
            s.script(kind, key, Trouble::Hangs { done: false });
        }
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            assert_eq!(s.ask(&host, 0).await.unwrap(), before, "{kind:?}");
        });
        s.close();
    }
}

#[test]
fn what_was_started_again_while_no_host_was_there_has_lost_its_features_and_goes() {
    let s = &stage(18, 1);
    let before = s.life(ZERO, |host| async move { s.served(&host, "shop").await });
    s.meddle(0, &s.serving("a1/pg"), Meddle::Restart);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.with(0, |a| a.forget(s.world.now()));
        let after = s.ask(&host, 0).await.unwrap();
        assert_ne!(after["pg"]["password"], before["pg"]["password"]);
        assert_eq!(after["redis"], before["redis"]);
    });
    s.close();
}

#[test]
fn a_name_alone_makes_nobody_an_owner() {
    let s = &stage(19, 2);
    s.life(ZERO, |host| async move {
        s.begin(&host, 1, "wiki").await;
        s.served(&host, "wiki").await
    });
    let id = s.serving("a1/redis");
    let name = "sandbar-sandbox-redis-a2";
    s.world.with(|inner| inner.rename(&id, name));
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours(), [""; 0]);
        s.ask(&host, 1).await.unwrap();
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

#[test]
fn new_work_has_nothing_of_the_work_before_a_kill() {
    let s = &stage(24, 1);
    let before = s.life(ZERO, |host| async move {
        let before = s.served(&host, "wiki").await;
        // The host is killed when the end of work is written down and nothing is released.
        host.people().end_work(&s.agents[0], |_| Ok(())).unwrap();
        before
    });
    s.script(Kind::List, "", Trouble::Slow);
    s.life(ZERO, |host| async move {
        s.begin(&host, 0, "wiki").await;
        s.up(&host).await;
        assert_ne!(s.ask(&host, 0).await.unwrap(), before);
        tokio::time::sleep(SOON).await;
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

/// However much there is.
#[test]
fn a_hit_is_one_listing_and_a_sweep_is_two() {
    for agents in [1, 20] {
        let s = &stage(25, agents);
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            for agent in 0..agents {
                s.begin(&host, agent, "wiki").await;
                s.ask(&host, agent).await.unwrap();
            }
            let listings = || s.world.with(|inner| inner.listings);
            s.ask(&host, 0).await.unwrap();
            let before = listings();
            s.ask(&host, 0).await.unwrap();
            assert_eq!(listings() - before, 1);
            let (runtime, names) = (Arc::new(Docker(s.world.clone())), s.names.clone());
            let mut janitor = Janitor::new(host.registry().clone(), runtime, names, Pace::default());
            let before = listings();
            janitor.sweep().await.unwrap();
            assert_eq!(listings() - before, 2);
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
