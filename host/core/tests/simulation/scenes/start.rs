//! What a host finds when it starts.

use std::time::Duration;

use sandbar_core::health::State;

use super::{SOON, ZERO, stage};
use crate::faults::{Kind, Trouble};
use crate::schedule::Meddle;

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
