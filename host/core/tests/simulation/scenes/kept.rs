//! What is retained: it outlives everything but its expiry.

use std::sync::Arc;
use std::time::Duration;

use sandbar_core::error::Code;
use sandbar_core::name::AgentName;

use super::{PLAIN, SOON, ZERO, keeping, secs};
use crate::engine;
use crate::faults::{Kind, Trouble};
use crate::schedule::{Meddle, SHORT};

const LATE: Trouble = Trouble::Late { after: Duration::from_secs(10) };

#[test]
fn what_is_retained_outlives_release_restart_eviction_and_its_containers() {
    let s = &keeping(60, 2, |schedule| schedule.max_awake = 2);
    let before = s.life(ZERO, |host| async move {
        let before = s.served(&host, "depot").await;
        s.write(&host, 0).await.unwrap().unwrap();
        s.release(&host, 0).await;
        tokio::time::sleep(SOON).await;
        s.look_at_rest(&host, "at rest");
        assert!(!s.is_up("a1/box@depot") && !s.is_up("a1/pg@depot"));
        before
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        for play in 0..4 {
            match play {
                0 => s.end(&host, 0).await,
                1 => {
                    s.begin(&host, 1, "depot").await;
                    s.ask(&host, 1).await.unwrap();
                    assert!(!s.is_up("a1/box@depot") && !s.is_up("a1/pg@depot"));
                }
                2 => {
                    s.meddle(0, &s.serving("a1/pg@depot"), Meddle::Vanish);
                    s.meddle(0, &s.serving("a1/box@depot"), Meddle::Vanish);
                }
                _ => {
                    s.forget(|_| true);
                    s.world.with(|inner| {
                        inner.go_away(secs(1), true);
                        inner.come_back();
                    });
                }
            }
            s.begin(&host, 0, "depot").await;
            let again = s.ask(&host, 0).await.unwrap();
            assert_eq!((&again["pg"], &again["box"]), (&before["pg"], &before["box"]), "{play}");
            s.read(&host, 0).await.unwrap().unwrap();
        }
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

/// Something half made, something that lost its name, and something stale carry the label of the work folder too.
#[test]
fn a_work_folder_that_is_retained_outlives_every_container_around_it() {
    for play in ["half made", "going", "stale", "renamed", "not whole again"] {
        let s = &keeping(61, 1, |_| {});
        let remade = async |host: &sandbar_core::host::Host| {
            host.set_project(engine::project("loft"), engine::loft(2)).unwrap();
            s.lab.store(2, std::sync::atomic::Ordering::Relaxed);
            tokio::time::timeout(secs(5), s.run(host, 0, SOON, SOON * 2, false, None)).await
        };
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, "loft").await;
            s.write(&host, 0).await.unwrap().unwrap();
            let id = s.serving("a1/box@loft");
            match play {
                "half made" => {
                    s.meddle(0, &id, Meddle::Vanish);
                    s.script(Kind::Start, "a1/box@loft", Trouble::Hangs { done: true });
                    assert!(remade(&host).await.is_err());
                }
                "going" => {
                    (0..9).for_each(|_| s.script(Kind::Remove, "a1/box@loft", Trouble::Hangs { done: false }));
                    remade(&host).await.unwrap().unwrap().unwrap();
                    s.release(&host, 0).await;
                }
                "stale" => {
                    s.script(Kind::Rename, "a1/box@loft", Trouble::Fails);
                    s.script(Kind::Remove, "a1/box@loft", Trouble::Fails);
                    remade(&host).await.unwrap().unwrap().unwrap();
                }
                "renamed" => s.meddle(0, &id, Meddle::Rename),
                _ => {
                    s.meddle(0, &id, Meddle::Vanish);
                    // What is found out at once, and each for itself after that.
                    (0..3).for_each(|_| s.script(Kind::Exec, "a1/box@loft", Trouble::Fails));
                    s.script(Kind::Exec, "a1/pg@loft", Trouble::Fails);
                    s.try_to_ask(&host).await.unwrap_err();
                }
            }
        });
        s.world.with(|inner| inner.script.clear());
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            tokio::time::sleep(secs(600)).await;
            s.look_at_rest(&host, play);
            s.read(&host, 0).await.unwrap().unwrap();
        });
        s.close();
    }
}

#[test]
fn a_kill_before_it_is_noted_that_something_is_whole_takes_nothing_from_it() {
    let s = &keeping(62, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "depot").await;
        for service in ["pg", "box"] {
            s.script(Kind::Rename, &format!("a1/{service}@depot"), Trouble::Hangs { done: true });
        }
        assert!(tokio::time::timeout(secs(5), s.try_to_ask(&host)).await.is_err());
        assert!(s.store.kept().unwrap().iter().all(|row| !row.made));
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        let before = s.ask(&host, 0).await.unwrap();
        s.write(&host, 0).await.unwrap().unwrap();
        for service in ["pg", "box"] {
            s.meddle(0, &s.serving(&format!("a1/{service}@depot")), Meddle::Vanish);
        }
        let after = s.ask(&host, 0).await.unwrap();
        assert_eq!(after["pg"], before["pg"]);
        s.read(&host, 0).await.unwrap().unwrap();
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

/// The same, where what was made went to sleep before any host noted it.
#[test]
fn what_is_woken_is_whole() {
    let s = &keeping(63, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "vault").await;
        s.script(Kind::Rename, "a1/pg@vault", Trouble::Hangs { done: true });
        assert!(tokio::time::timeout(secs(5), s.try_to_ask(&host)).await.is_err());
    });
    s.meddle(0, &s.serving("a1/pg@vault"), Meddle::Kill);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        let before = s.ask(&host, 0).await.unwrap();
        s.meddle(0, &s.serving("a1/pg@vault"), Meddle::Vanish);
        assert_eq!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
    });
    s.close();
}

#[test]
fn a_volume_that_is_made_after_its_create_failed_is_in_nobodys_way() {
    let s = &keeping(64, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "vault").await;
        s.script(Kind::Create, "a1/pg@vault", LATE);
        assert!(s.try_to_ask(&host).await.unwrap_err().retryable);
        tokio::time::sleep(secs(20)).await;
        assert_eq!(s.world.with(|inner| inner.disk.volumes.len()), 1);
        s.ask(&host, 0).await.unwrap();
        tokio::time::sleep(secs(120)).await;
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_lost_its_name_goes_before_it_is_made_anew() {
    let s = &keeping(77, 1, |_| {});
    s.life(ZERO, |host| async move {
        let before = s.served(&host, "vault").await;
        s.meddle(0, &s.serving("a1/pg@vault"), Meddle::Rename);
        assert_eq!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
        tokio::time::sleep(SOON).await;
        assert_eq!(s.ours().len(), 2);
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_no_state_file_knows_is_put_to_sleep_and_left_alone() {
    let s = &keeping(78, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.served(&host, "depot").await;
        s.write(&host, 0).await.unwrap().unwrap();
        s.release(&host, 0).await;
    });
    s.store.kept().unwrap().iter().for_each(|row| s.store.remove_kept(&row.key, &row.service).unwrap());
    s.meddle(0, &s.serving("a1/pg@depot"), Meddle::Restart);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(secs(600)).await;
        assert!(!s.is_up("a1/pg@depot"));
        assert_eq!((s.ours().len(), s.world.with(|inner| inner.disk.volumes.len())), (2, 1));
    });
    s.close();
}

/// A host is killed between the end of work and the release that it brings.
#[test]
fn what_runs_without_work_is_put_to_sleep_by_the_next_host() {
    for other in [None, Some("depot")] {
        let s = &keeping(79, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.served(&host, "vault").await;
            let people = host.people();
            match other {
                None => drop(people.end_work(&s.agents[0], |_| Ok(())).unwrap()),
                Some(project) => {
                    people.begin_work(&s.agents[0], &engine::project(project), "main", |_| Ok(())).unwrap();
                }
            }
        });
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            tokio::time::sleep(SOON).await;
            assert!(!s.is_up("a1/pg@vault"));
            assert_eq!((s.ours().len(), s.world.with(|inner| inner.disk.volumes.len())), (1, 1));
            s.look_at_rest(&host, "at rest");
        });
        s.close();
    }
}

#[test]
fn an_agent_that_is_removed_takes_along_what_it_retained() {
    let s = &keeping(80, 1, |_| {});
    s.life(ZERO, |host| async move {
        let before = s.served(&host, "depot").await;
        s.write(&host, 0).await.unwrap().unwrap();
        let other = AgentName::new("other").unwrap();
        for _ in 0..2 {
            host.people().register(&other, "developer", "main").unwrap();
            host.begin_work("main", &s.projects, &other, &engine::project("depot")).await.unwrap();
            let found = host.read_file(&other, None, "f", 0, 1, None).await.unwrap_err();
            assert_eq!(found.code, Code::NotFound);
            host.write_file(&other, None, "f", vec![1].into(), None, None).await.unwrap();
            host.request_sandbox(&other, None, &PLAIN, None).await.unwrap();
            host.remove_agent(&other).await.unwrap();
        }
        tokio::time::sleep(SOON).await;
        let left = s.world.with(|inner| (inner.disk.volumes.len(), inner.disk.folders.len()));
        assert_eq!((left, s.ours().len(), s.store.kept().unwrap().len()), ((1, 1), 3, 2));
        assert_eq!(s.ask(&host, 0).await.unwrap(), before);
        s.read(&host, 0).await.unwrap().unwrap();
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_cannot_be_adopted_sleeps() {
    let s = &keeping(81, 1, |_| {});
    let before = s.life(ZERO, |host| async move { s.served(&host, "vault").await });
    s.script(Kind::Environment, "a1/pg@vault", Trouble::Fails);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        tokio::time::sleep(SOON).await;
        assert!(!s.is_up("a1/pg@vault"));
        s.look_at_rest(&host, "at rest");
        let created = s.created();
        assert_eq!((s.ask(&host, 0).await.unwrap(), s.created()), (before, created));
    });
    s.close();
}

#[test]
fn data_whose_passwords_are_not_known_is_reported_and_left_alone() {
    let s = &keeping(65, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.served(&host, "vault").await;
        s.meddle(0, &s.serving("a1/pg@vault"), Meddle::Vanish);
        let row = s.store.kept().unwrap().remove(0);
        s.store.remove_kept(&row.key, &row.service).unwrap();
        let error = s.try_to_ask(&host).await.unwrap_err();
        assert!(!error.retryable && error.message.contains("not known"), "{error:?}");
        assert_eq!(s.world.with(|inner| inner.disk.volumes.len()), 1);
    });
    s.close();
}

#[test]
fn a_create_that_loses_against_a_release_only_forgets_what_is_retained() {
    for had in [false, true] {
        for ms in (0..500).step_by(7) {
            let s = &keeping(ms, 1, |_| {});
            s.life(ZERO, |host| async move {
                s.up(&host).await;
                s.begin(&host, 0, "depot").await;
                let mut before = None;
                if had {
                    before = Some(s.ask(&host, 0).await.unwrap());
                    s.write(&host, 0).await.unwrap().unwrap();
                    s.meddle(0, &s.serving("a1/pg@depot"), Meddle::Vanish);
                    s.meddle(0, &s.serving("a1/box@depot"), Meddle::Vanish);
                }
                let release = async {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                    s.release(&host, 0).await;
                };
                let (answer, ()) = tokio::join!(s.request(&host, 0, None, &PLAIN, None), release);
                before = before.or(answer.unwrap().ok());
                tokio::time::sleep(SOON).await;
                s.look_at_rest(&host, "at rest");
                assert!(!s.is_up("a1/box@depot") && !s.is_up("a1/pg@depot"), "had {had}, {ms} ms");
                let whole = s.store.kept().unwrap().iter().filter(|row| row.made).count();
                let data = s.world.with(|inner| inner.disk.volumes.len() + inner.disk.folders.len());
                assert_eq!(data, whole, "had {had}, {ms} ms: nothing is left of what was never whole");
                let again = s.ask(&host, 0).await.unwrap();
                if let Some(before) = before {
                    assert_eq!(again["pg"], before["pg"], "had {had}, {ms} ms");
                }
                if had {
                    s.read(&host, 0).await.unwrap().unwrap();
                }
            });
            s.close();
        }
    }
}

#[test]
fn a_wake_that_fails_leaves_everything() {
    let troubles = [
        (Kind::Start, Trouble::Fails),
        (Kind::Start, Trouble::Garbled),
        (Kind::Start, Trouble::Lost),
        (Kind::Start, Trouble::Hangs { done: true }),
        (Kind::Environment, Trouble::Fails),
        (Kind::Environment, Trouble::Hangs { done: false }),
        (Kind::Exec, Trouble::Lost),
        (Kind::Disk, Trouble::Fails),
    ];
    for (kind, trouble) in troubles {
        let s = &keeping(66, 1, |_| {});
        s.life(ZERO, |host| async move {
            let before = s.served(&host, "loft").await;
            s.write(&host, 0).await.unwrap().unwrap();
            s.release(&host, 0).await;
            let created = s.created();
            for service in ["pg", "box"].iter().filter(|service| kind != Kind::Disk || **service == "box") {
                s.script(kind, &format!("a1/{service}@loft"), trouble);
            }
            if kind == Kind::Disk {
                // Where it cannot be told whom the folder was given to, it is given once more.
                s.script(kind, "a1/box@loft", trouble);
            }
            let error = s.try_to_ask(&host).await.unwrap_err();
            assert!(error.retryable && s.created() == created, "{kind:?} {trouble:?} {error:?}");
            assert!(!s.is_up("a1/box@loft"), "{kind:?} {trouble:?}");
            assert!(kind == Kind::Disk || !s.is_up("a1/pg@loft"), "{kind:?} {trouble:?}");
            s.look_at_rest(&host, "at rest");
            assert_eq!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
            s.read(&host, 0).await.unwrap().unwrap();
            assert_eq!(s.created(), created);
        });
        // Docker was away for the host.
        let expected = |v: &String| v.contains("without a cause");
        let violations = s.world.verdict().violations;
        assert!(violations.iter().all(expected), "{violations:#?}");
    }
}

#[test]
fn what_runs_and_what_sleeps_is_found_again_by_the_next_host() {
    let s = &keeping(67, 2, |_| {});
    let (first, before) = s.life(ZERO, |host| async move {
        s.up(&host).await;
        for (agent, project) in [(0, "depot"), (1, "yard")] {
            s.begin(&host, agent, project).await;
            s.write(&host, agent).await.unwrap().unwrap();
        }
        let before = s.ask(&host, 0).await.unwrap();
        s.release(&host, 0).await;
        let first = s.runs(&host, 1, SOON).await;
        // It is killed in the middle of a command.
        assert!(tokio::time::timeout(SOON, s.run(&host, 1, secs(60), secs(100), false, None)).await.is_err());
        (first, before)
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        assert_eq!(host.registry().occupied(), (1, 0));
        s.look_at_rest(&host, "at rest");
        let created = s.created();
        assert_eq!(s.runs(&host, 1, SOON).await, first);
        s.read(&host, 1).await.unwrap().unwrap();
        assert_eq!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
        s.read(&host, 0).await.unwrap().unwrap();
        // The throwaway service that stood beside them was given back.
        assert_eq!((s.created() - created, host.registry().occupied()), (1, (2, 2)));
    });
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        assert_eq!(host.registry().occupied(), (2, 2));
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_has_slept_for_long_enough_is_deleted_with_its_data() {
    let s = &keeping(68, 1, |schedule| schedule.delete_after = SHORT);
    s.life(ZERO, |host| async move {
        let before = s.served(&host, "depot").await;
        s.write(&host, 0).await.unwrap().unwrap();
        // A call in between begins it anew.
        for _ in 0..2 {
            s.release(&host, 0).await;
            tokio::time::sleep(SHORT - secs(120)).await;
            assert_eq!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
            s.read(&host, 0).await.unwrap().unwrap();
        }
        // What is awake does not age.
        s.runs(&host, 0, SHORT * 2).await;
        s.release(&host, 0).await;
        tokio::time::sleep(secs(300)).await;
        s.read(&host, 0).await.unwrap().unwrap();
        s.release(&host, 0).await;
        tokio::time::sleep(SHORT + secs(120)).await;
        assert_eq!(s.ours(), [""; 0]);
        let left = s.world.with(|inner| (inner.disk.volumes.len(), inner.disk.folders.len()));
        assert_eq!((left, s.store.kept().unwrap().len()), ((0, 0), 0));
        s.look_at_rest(&host, "at rest");
        s.forget(|_| true);
        assert_ne!(s.ask(&host, 0).await.unwrap()["pg"], before["pg"]);
    });
    s.close();
}

/// While one is deleted, which may take long, the other one is used.
#[test]
fn what_was_used_since_it_was_found_expired_is_not_deleted() {
    let s = &keeping(69, 2, |schedule| schedule.delete_after = SHORT);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        for agent in 0..2 {
            s.begin(&host, agent, "vault").await;
            s.ask(&host, agent).await.unwrap();
            s.release(&host, agent).await;
        }
        let rows = s.store.kept().unwrap();
        let other = usize::from(rows[0].tenant.agent == s.agents[0]);
        tokio::time::sleep(SHORT - secs(300)).await;
        s.script(Kind::RemoveVolume, &format!("{}/pg", rows[0].tenant.agent), Trouble::Slow);
        s.scripted(0).await;
        let before = s.ask(&host, other).await.unwrap();
        s.release(&host, other).await;
        tokio::time::sleep(secs(60)).await;
        assert_eq!(s.ask(&host, other).await.unwrap()["pg"], before["pg"]);
        assert_eq!(s.store.kept().unwrap().len(), 1);
    });
    s.close();
}

#[test]
fn a_throwaway_box_does_not_go_with_what_its_tenant_retained() {
    let s = &keeping(70, 1, |schedule| schedule.delete_after = SHORT);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "loft").await;
        s.write(&host, 0).await.unwrap().unwrap();
        s.release(&host, 0).await;
        host.set_project(engine::project("loft"), engine::loft(1)).unwrap();
        s.lab.store(1, std::sync::atomic::Ordering::Relaxed);
        let first = s.runs(&host, 0, SOON).await;
        s.runs(&host, 0, SHORT - SOON).await;
        s.runs(&host, 0, secs(300)).await;
        assert_eq!((s.runs(&host, 0, SOON).await, s.store.kept().unwrap().len()), (first, 0));
        assert_eq!(s.ours().len(), 1);
    });
    s.close();
}

/// Somebody starts what sleeps, and its agent calls while the sweep puts it to sleep again.
#[test]
fn a_sweep_and_a_call_do_not_meet_over_what_somebody_else_started() {
    let s = &keeping(71, 1, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "bench").await;
        s.write(&host, 0).await.unwrap().unwrap();
        s.release(&host, 0).await;
        s.meddle(0, &s.serving("a1/box@bench"), Meddle::Restart);
        s.script(Kind::Suspend, "a1/box@bench", Trouble::Slow);
        s.scripted(0).await;
        s.runs(&host, 0, secs(100)).await;
        s.read(&host, 0).await.unwrap().unwrap();
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}

#[test]
fn what_runs_paused_and_what_nobody_has_sleeps_after_the_grace() {
    for how in [Meddle::Restart, Meddle::Pause] {
        let s = &keeping(72, 1, |_| {});
        s.life(ZERO, |host| async move {
            s.up(&host).await;
            s.begin(&host, 0, "bench").await;
            s.write(&host, 0).await.unwrap().unwrap();
            s.release(&host, 0).await;
            tokio::time::sleep(secs(600)).await;
            let id = s.serving("a1/box@bench");
            s.meddle(0, &id, Meddle::Restart);
            s.meddle(0, &id, how);
            tokio::time::sleep(secs(170)).await;
            assert!(s.is_up("a1/box@bench"), "{how:?}");
            tokio::time::sleep(secs(90)).await;
            assert!(!s.is_up("a1/box@bench"), "{how:?}");
            s.look_at_rest(&host, "at rest");
            s.read(&host, 0).await.unwrap().unwrap();
        });
        s.close();
    }
}

#[test]
fn what_is_published_otherwise_is_made_anew_around_its_data() {
    let mut s = keeping(73, 1, |_| {});
    let before = {
        let s = &s;
        s.life(ZERO, |host| async move { s.served(&host, "vault").await })
    };
    Arc::get_mut(&mut s).unwrap().schedule.publish = true;
    let s = &s;
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        let after = s.ask(&host, 0).await.unwrap();
        assert_eq!((&after["pg"]["password"], &after["pg"]["host"]), (&before["pg"]["password"], &"127.0.0.1".into()));
        s.look_at_rest(&host, "at rest");
    });
    let expected = |v: &String| v.contains("nothing happened to it");
    let violations = s.world.verdict().violations;
    assert!(violations.iter().all(expected), "{violations:#?}");
}

/// Made anew too often, it sleeps, and is not left running without anybody who has it.
#[test]
fn what_may_not_be_made_anew_now_sleeps() {
    let s = &keeping(74, 1, |schedule| schedule.remakes = 1);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "loft").await;
        s.write(&host, 0).await.unwrap().unwrap();
        let declare = |n| {
            s.lab.store(n, std::sync::atomic::Ordering::Relaxed);
            host.set_project(engine::project("loft"), engine::loft(n)).unwrap();
        };
        declare(2);
        s.runs(&host, 0, SOON).await;
        declare(0);
        let error = s.run(&host, 0, SOON, SOON * 2, false, None).await.unwrap().unwrap_err();
        assert_eq!(error.code, Code::Capacity);
        assert!(!s.is_up("a1/box@loft"));
        s.look_at_rest(&host, "at rest");
        tokio::time::sleep(secs(600)).await;
        s.read(&host, 0).await.unwrap().unwrap();
    });
    s.close();
}

/// What was never whole is removed with care: a listing answers more than it was asked for.
#[test]
fn nobody_else_loses_anything_with_what_was_never_whole() {
    let s = &keeping(75, 2, |_| {});
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 1, "depot").await;
        let before = s.ask(&host, 1).await.unwrap();
        s.begin(&host, 0, "vault").await;
        s.world.with(|inner| inner.knobs.loose = 1000);
        s.script(Kind::Exec, "a1/pg@vault", Trouble::Lost);
        assert!(s.try_to_ask(&host).await.is_err());
        s.ask(&host, 0).await.unwrap();
        assert_eq!(s.ask(&host, 1).await.unwrap(), before);
    });
    s.close();
}

/// Its box takes long, and meanwhile somebody else needs room.
#[test]
fn what_a_request_has_already_is_not_evicted_before_it_is_answered() {
    let s = &keeping(76, 2, |schedule| schedule.max_awake = 2);
    s.life(ZERO, |host| async move {
        s.up(&host).await;
        s.begin(&host, 0, "depot").await;
        s.begin(&host, 1, "vault").await;
        s.script(Kind::Start, "a1/box@depot", Trouble::Slow);
        let other = async {
            tokio::time::sleep(SOON).await;
            let error = host.request_sandbox(&s.agents[1], None, &PLAIN, None).await.unwrap_err();
            assert_eq!(error.code, Code::Capacity);
        };
        let (answer, ()) = tokio::join!(s.ask(&host, 0), other);
        answer.unwrap();
        assert!(s.is_up("a1/box@depot") && s.is_up("a1/pg@depot"));
        s.look_at_rest(&host, "at rest");
    });
    s.close();
}
