//! How a sandbox is made, found again and made anew.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::error::Code;
use sandbar_core::janitor::{Janitor, Pace};

use super::{PLAIN, SOON, ZERO, knobs, stage};
use crate::docker::Docker;
use crate::faults::{Kind, Trouble};
use crate::schedule::{Meddle, Schedule};
use crate::stage::Stage;

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
fn no_more_are_live_than_may_be() {
    let s = &Stage::new(11, Schedule { knobs: knobs(), agents: 3, max_live: 2, ..Schedule::plain() }, true);
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
