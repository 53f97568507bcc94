//! Commands and files in boxes, and what may not happen to a box meanwhile.

use std::time::Duration;

use sandbar_core::error::Code;

use super::{SOON, ZERO, keeping, secs};
use crate::faults::{Kind, Trouble};
use crate::schedule::Meddle;

#[test]
fn a_box_in_use_is_not_evicted_and_who_finds_all_busy_is_refused() {
    let s = &keeping(40, 2, |schedule| schedule.max_awake = 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "bench").await;
        s.begin(&host, 1, "bench").await;
        let other = async {
            tokio::time::sleep(SOON).await;
            let error = s.run(&host, 1, SOON, SOON * 2, false, None).await.unwrap().unwrap_err();
            assert!(error.code == Code::Capacity && error.retryable && error.retry_after.is_some(), "{error:?}");
        };
        tokio::join!(s.runs(&host, 0, secs(100)), other);
        s.runs(&host, 1, SOON).await;
        assert!(!s.is_up("a1/box@bench") && s.is_up("a2/box@bench"));
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn a_transfer_keeps_its_box_as_a_command_does() {
    let s = &keeping(41, 2, |schedule| schedule.max_awake = 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "bench").await;
        s.begin(&host, 1, "bench").await;
        s.write(&host, 0).await.unwrap().unwrap();
        s.script(Kind::Disk, "a1/box@bench#a1", Trouble::Slow);
        let other = async {
            tokio::time::sleep(SOON).await;
            let error = s.run(&host, 1, SOON, SOON * 2, false, None).await.unwrap().unwrap_err();
            assert_eq!(error.code, Code::Capacity);
        };
        let (read, ()) = tokio::join!(s.read(&host, 0), other);
        read.unwrap().unwrap();
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn a_box_in_use_is_not_idle_and_one_that_is_sleeps_or_is_closed() {
    for (project, retained) in [("bench", true), ("yard", false)] {
        let key = format!("a1/box@{project}");
        let s = &keeping(42, 1, |schedule| (schedule.idle_sleep, schedule.idle_close) = (secs(300), secs(300)));
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, project).await;
            let first = s.runs(&host, 0, secs(1500)).await;
            tokio::time::sleep(secs(280)).await;
            assert_eq!(s.runs(&host, 0, SOON).await, first, "{project}");
            // Whoever goes away has used it until then.
            assert!(s.run(&host, 0, secs(1500), secs(1600), false, Some(secs(1000))).await.is_none());
            tokio::time::sleep(secs(280)).await;
            assert_eq!(s.runs(&host, 0, SOON).await, first, "{project}");
            s.write(&host, 0).await.unwrap().unwrap();
            tokio::time::sleep(secs(300 + 65)).await;
            assert!(!s.is_up(&key), "{project}");
            assert_eq!(s.world.with(|inner| inner.disk.folders.len()), usize::from(retained));
            assert_eq!(s.ours().len(), usize::from(retained));
            s.look_at_rest(&host, "at rest");
            s.read(&host, 0).await.unwrap().unwrap();
        });
        s.close();
    }
}

#[test]
fn who_was_used_least_recently_makes_room() {
    let s = &keeping(43, 3, |schedule| schedule.max_awake = 2);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        for agent in 0..3 {
            s.begin(&host, agent, "bench").await;
        }
        for agent in [0, 1, 0, 2] {
            s.runs(&host, agent, SOON).await;
        }
        assert!(s.is_up("a1/box@bench") && !s.is_up("a2/box@bench") && s.is_up("a3/box@bench"));
    });
    s.close();
}

#[test]
fn one_that_goes_to_sleep_already_makes_room() {
    let s = &keeping(44, 3, |schedule| schedule.max_awake = 2);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        for agent in 0..3 {
            s.begin(&host, agent, "bench").await;
        }
        s.runs(&host, 0, SOON).await;
        s.runs(&host, 1, SOON).await;
        tokio::join!(s.release(&host, 1), s.runs(&host, 2, SOON));
        assert!(s.is_up("a1/box@bench") && !s.is_up("a2/box@bench") && s.is_up("a3/box@bench"));
    });
    s.close();
}

/// A box goes after it was looked at and before the command reaches it: once, and once more when it was made anew.
#[test]
fn a_gone_box_is_made_anew_once_and_the_command_runs_in_the_new_one() {
    for (project, how) in
        [("yard", Meddle::Vanish), ("yard", Meddle::Kill), ("bench", Meddle::Vanish), ("bench", Meddle::Kill)]
    {
        for twice in [false, true] {
            let key = &format!("a1/box@{project}");
            let s = &keeping(45, 1, |_| {});
            s.life(ZERO, |host| async move {
                s.up(&host).await;
                s.begin(&host, 0, project).await;
                let before = s.runs(&host, 0, SOON).await;
                // The command is carried out after some seconds.
                (0..=u32::from(twice)).for_each(|_| s.script(Kind::Run, key, Trouble::Slow));
                let name = s.owner(0, &crate::engine::project(project), "box").1;
                let meddle = async {
                    for left in (0..=usize::from(twice)).rev() {
                        s.scripted(left).await;
                        tokio::time::sleep(SOON).await;
                        let id = s.world.with(|inner| inner.find(&name).map(|c| c.id.clone())).unwrap();
                        s.meddle(0, &id, how);
                    }
                };
                let (ran, ()) = tokio::join!(s.run(&host, 0, SOON, secs(60), false, None), meddle);
                match ran.unwrap() {
                    Ok(ran) => assert!(!twice && ran.stdout != before && ran.exit_code == 0, "{project} {how:?}"),
                    Err(error) => assert!(twice && error.retryable && error.message.contains("once more"), "{error:?}"),
                }
                // What is retained and only ended is woken.
                let again = u64::from(project == "yard" || matches!(how, Meddle::Vanish));
                assert_eq!(s.created(), 1 + again, "{project} {how:?}");
                s.runs(&host, 0, SOON).await;
                tokio::time::sleep(SOON).await;
                s.look_at_rest(&host, key);
            });
            s.close();
        }
    }
}

#[test]
fn a_command_whose_time_is_over_answers_124_and_its_box_stays() {
    for project in ["yard", "bench"] {
        let s = &keeping(46, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, project).await;
            s.write(&host, 0).await.unwrap().unwrap();
            let ran = s.run(&host, 0, secs(60), secs(5), false, None).await.unwrap().unwrap();
            assert_eq!((ran.exit_code, ran.timed_out), (124, true));
            assert_eq!(s.runs(&host, 0, SOON).await, ran.stdout);
            s.read(&host, 0).await.unwrap().unwrap();
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}

#[test]
fn a_command_that_cannot_be_ended_takes_its_box_along() {
    for (project, retained) in [("yard", false), ("bench", true)] {
        let s = &keeping(47, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, project).await;
            s.write(&host, 0).await.unwrap().unwrap();
            let ran = s.run(&host, 0, secs(60), secs(5), true, None).await.unwrap().unwrap();
            assert_eq!(ran.exit_code, 124);
            tokio::time::sleep(SOON).await;
            assert!(!s.is_up(&format!("a1/box@{project}")));
            assert_eq!(
                (s.ours().len(), s.world.with(|inner| inner.disk.folders.len())),
                (usize::from(retained), usize::from(retained))
            );
            s.look_at_rest(&host, "at rest");
            assert_ne!(s.runs(&host, 0, SOON).await, ran.stdout);
            s.read(&host, 0).await.unwrap().unwrap();
        });
        s.close();
    }
}

/// It is known only after 10 s that a command cannot be ended. Its box may have been given back and had again by then.
#[test]
fn what_is_decided_late_does_not_touch_the_box_that_there_is_since() {
    for project in ["yard", "bench"] {
        let s = &keeping(48, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, project).await;
            s.runs(&host, 0, SOON).await;
            let late = s.run(&host, 0, secs(60), secs(5), true, None);
            let again = async {
                tokio::time::sleep(secs(8)).await;
                s.release(&host, 0).await;
                s.runs(&host, 0, secs(30)).await
            };
            let (late, ran) = tokio::join!(late, again);
            assert_eq!(late.unwrap().unwrap().exit_code, 124);
            assert_eq!(s.runs(&host, 0, SOON).await, ran, "{project}");
        });
        s.close();
    }
}

#[test]
fn whoever_goes_away_leaves_nothing_in_flight() {
    for after in [1, 20, 150, 3_000, 50_000] {
        let s = &keeping(49, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, "bench").await;
            let left = s.run(&host, 0, secs(60), secs(100), false, Some(Duration::from_millis(after))).await;
            assert!(left.is_none());
            tokio::time::sleep(SOON).await;
            assert_eq!(host.registry().in_use(), 0, "after {after} ms");
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}

/// What it started without the mark of a command may be another command's.
#[test]
fn a_command_is_alone_where_there_is_no_other() {
    let s = &keeping(52, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "bench").await;
        let late = s.run(&host, 0, secs(60), secs(5), false, None);
        let (late, _) = tokio::join!(late, s.runs(&host, 0, secs(30)));
        assert_eq!(late.unwrap().unwrap().exit_code, 124);
    });
    s.close();
}

#[test]
fn a_work_folder_that_cannot_be_removed_now_is_removed_later() {
    let s = &keeping(50, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "yard").await;
        s.runs(&host, 0, SOON).await;
        s.script(Kind::Disk, "a1/box@yard#remove", Trouble::Fails);
        s.release(&host, 0).await;
        tokio::time::sleep(SOON).await;
        assert!(s.world.with(|inner| inner.script.is_empty()));
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn every_tenant_has_a_box_of_its_own() {
    let s = &keeping(51, 2, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        let mut boxes = std::collections::BTreeSet::new();
        for project in ["bench", "depot", "yard"] {
            for agent in 0..2 {
                s.begin(&host, agent, project).await;
                s.write(&host, agent).await.unwrap().unwrap();
                boxes.insert(s.runs(&host, agent, SOON).await);
                s.read(&host, agent).await.unwrap().unwrap();
                let listed = host.list_files(&s.agents[agent], None, ".", true, None).await.unwrap();
                assert_eq!(listed.items.len(), 1);
            }
        }
        assert_eq!(boxes.len(), 6);
    });
    s.close();
}
