//! What is kept when a unit stops or goes: volumes and the folder. And units without a network.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::RemoveVolumeOptions;
use sandbar_core::runtime::{
    DataKind, DataPlan, FilePlan, FolderPlan, PutStep, Runtime as _, RuntimeError, UnitPlan, UnitState,
};

use crate::bench::{Bench, INSTALLATION, listed};

/// A plan with a volume at a path that the image declares as one, and as a user that owns nothing.
fn with_volume(bench: &Bench, name: &str, volume: &str) -> UnitPlan {
    let mut plan = bench.plan(name, "exec sleep 600");
    plan.user = "1234".to_owned();
    plan.data = vec![DataPlan { path: "/data".to_owned(), kind: DataKind::Volume(volume.to_owned()) }];
    plan
}

/// A folder of this machine that everybody may write to.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    folder
}

fn with_folder(bench: &Bench, name: &str, folder: &tempfile::TempDir) -> UnitPlan {
    let mut plan = bench.plan(name, "pwd > started; exec sleep 600");
    plan.user = "1234".to_owned();
    plan.folder = Some(FolderPlan { from: folder.path().display().to_string(), path: "/work/here".to_owned() });
    // With one it would share what all such tests have in common.
    plan.network = false;
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_outlives_its_unit_and_everybody_may_write_to_it() {
    let bench = Bench::new().await;
    let volume = bench.name("v");
    let mut plan = with_volume(&bench, "a", &volume);
    // Also where the image has no such folder.
    plan.data.push(DataPlan { path: "/new/deep".to_owned(), kind: DataKind::Volume(bench.name("w")) });
    let unit = bench.put(&plan).await;
    let look = "stat -c '%a %u' /data /new/deep; echo kept > /data/x && echo more > /new/deep/x; cat /data/x";
    let seen = bench.exec(&unit, look).await.expect("it runs");
    assert_eq!(seen.stdout, "1777 0\n1777 0\nkept\n", "{}", seen.stderr);
    let mounts = bench.raw(&unit.id).await.mounts.unwrap_or_default();
    assert_eq!(mounts.iter().filter(|mount| mount.typ.as_deref() == Some("volume")).count(), 2);

    let mut names = bench.runtime.volumes(&[(INSTALLATION, &bench.id)]).await.expect("Docker lists");
    names.sort_unstable();
    assert_eq!(names, [volume.clone(), bench.name("w")]);
    assert_eq!(bench.runtime.volumes(&[(INSTALLATION, &bench.id), ("sandbar-test.name", "b")]).await, Ok(Vec::new()));
    // In use, so it stays.
    assert!(matches!(bench.runtime.remove_volume(&volume).await, Err(RuntimeError::Failed(_))));

    assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    let unit = bench.put(&with_volume(&bench, "b", &volume)).await;
    assert!(bench.exec(&unit, "cat /data/x").await.is_ok_and(|seen| seen.stdout == "kept\n"));
    assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    for _ in 0..2 {
        assert_eq!(bench.runtime.remove_volume(&volume).await, Ok(()));
    }
    assert_eq!(bench.runtime.volumes(&[(INSTALLATION, &bench.id)]).await, Ok(vec![bench.name("w")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mode_that_somebody_gave_a_volume_stays() {
    let bench = Bench::new().await;
    let volume = bench.name("v");
    let mut plan = with_volume(&bench, "a", &volume);
    // Owner and root, so it needs no capability.
    plan.user = "0".to_owned();
    let unit = bench.put(&plan).await;
    assert!(bench.exec(&unit, "busybox chmod 700 /data").await.is_ok_and(|done| done.code == 0));
    assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    let unit = bench.put(&plan).await;
    assert!(bench.exec(&unit, "stat -c %a /data").await.is_ok_and(|seen| seen.stdout == "700\n"));
    // One that was made and not opened, as a host that was killed between the two leaves it, is opened later.
    let left = bench.name("left");
    let labels = HashMap::from([(INSTALLATION.to_owned(), bench.id.clone())]);
    let request = VolumeCreateRequest { name: Some(left.clone()), labels: Some(labels), ..Default::default() };
    bench.docker.create_volume(request).await.expect("Docker makes it");
    let unit = bench.put(&with_volume(&bench, "b", &left)).await;
    assert!(bench.exec(&unit, "stat -c %a /data").await.is_ok_and(|seen| seen.stdout == "1777\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_s_volume_is_neither_used_nor_removed() {
    let (bench, other) = (Bench::new().await, Bench::new().await);
    let foreign = other.name("v");
    other.put(&with_volume(&other, "a", &foreign)).await;
    let bare = bench.name("bare");
    let request = VolumeCreateRequest { name: Some(bare.clone()), ..Default::default() };
    bench.docker.create_volume(request).await.expect("Docker makes it");
    for name in [&foreign, &bare] {
        let error = bench.try_put(&with_volume(&bench, "a", name)).await.expect_err("it is not ours");
        assert!(
            matches!((error.step, &error.error), (PutStep::Create, RuntimeError::Refused(text)) if text.contains(name)),
            "{error:?}"
        );
        assert!(matches!(bench.runtime.remove_volume(name).await, Err(RuntimeError::Refused(_))));
        assert!(bench.docker.inspect_volume(name).await.is_ok());
    }
    assert_eq!(bench.mine().await, []);
    bench.docker.remove_volume(&bare, None::<RemoveVolumeOptions>).await.expect("Docker removes it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_seen_both_ways() {
    let (bench, folder) = (Bench::new().await, folder());
    std::fs::write(folder.path().join("before"), "from here\n").expect("it can be written");
    let unit = bench.put(&with_folder(&bench, "a", &folder)).await;
    let seen = bench.exec(&unit, "cat before; echo from there > after; pwd").await.expect("it runs");
    assert_eq!(seen.stdout, "from here\n/work/here\n");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert_eq!((read("after").as_str(), read("started").as_str()), ("from there\n", "/work/here\n"));
    assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    assert_eq!(read("after"), "from there\n");
    // No file of a plan is written into it.
    let mut plan = with_folder(&bench, "b", &folder);
    plan.files = vec![FilePlan { path: "/work/here/x".to_owned(), mode: 0o644, content: String::new() }];
    let error = bench.try_put(&plan).await.expect_err("it is the tenant's");
    assert!(matches!(error.error, RuntimeError::Refused(_)));
    plan.files.clear();
    plan.folder = Some(FolderPlan { from: format!("{}/none", folder.path().display()), path: "/work".to_owned() });
    let error = bench.try_put(&plan).await.expect_err("there is no such folder");
    assert!(matches!(error.error, RuntimeError::Refused(_)), "{error:?}");
    assert!(!folder.path().join("none").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_lies_above_the_image_s_volumes_around_it_and_not_below() {
    let (bench, folder) = (Bench::new().await, folder());
    // The image declares `/data` and `/cache`.
    for (path, fine) in [("/data", true), ("/cache/below/it", true)] {
        let mut plan = with_folder(&bench, "a", &folder);
        plan.data.clear();
        plan.folder = Some(FolderPlan { path: path.to_owned(), ..plan.folder.expect("it has one") });
        let unit = bench.put(&plan).await;
        let seen = bench.exec(&unit, "echo here > here; pwd").await.expect("it runs");
        assert_eq!((seen.stdout.trim_end() == path, folder.path().join("here").exists()), (fine, fine), "{seen:?}");
        std::fs::remove_file(folder.path().join("here")).expect("it was written");
        let mounts = bench.raw(&unit.id).await.mounts.unwrap_or_default();
        assert_eq!(mounts.len(), 1, "{mounts:?}");
        assert_eq!(bench.runtime.remove(&unit.id, Duration::ZERO).await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sleeps_keeps_its_volume_and_folder_and_loses_its_memory() {
    let (bench, folder) = (Bench::new().await, folder());
    let mut plan = with_volume(&bench, "a", &bench.name("v"));
    plan.folder = with_folder(&bench, "a", &folder).folder;
    plan.network = false;
    let unit = bench.put(&plan).await;
    let write = "echo v > /data/x; echo f > x; echo m > /cache/x; echo l > /tmp/x";
    assert!(bench.exec(&unit, write).await.is_ok_and(|done| done.code == 0));
    for _ in 0..2 {
        assert_eq!(bench.runtime.suspend(&unit.id, Duration::from_secs(1)).await, Ok(()));
        let asleep = bench.runtime.inspect(&unit.id).await.expect("it is there");
        assert_eq!((asleep.state, asleep.address), (UnitState::Ended, None));
    }
    let awake = bench.runtime.resume(&unit.id).await.expect("it starts");
    assert_eq!((awake.state, &awake.id, awake.run == unit.run), (UnitState::Running, &unit.id, false));
    assert_eq!(bench.runtime.resume(&unit.id).await, Ok(awake.clone()));
    assert_eq!(bench.mine().await, [listed(&awake)]);
    let seen = bench.exec(&unit, "cat /data/x x /tmp/x; ls /cache").await.expect("it runs");
    assert_eq!(seen.stdout, "v\nf\nl\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_sleeps_wakes_in_a_network_that_was_made_anew() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    assert_eq!(bench.runtime.suspend(&unit.id, Duration::ZERO).await, Ok(()));
    assert_eq!(bench.runtime.retire().await, Ok(()));
    for _ in 0..2 {
        let awake = bench.runtime.resume(&unit.id).await.expect("it starts");
        assert!(awake.address.is_some() && awake.state == UnitState::Running);
        assert_eq!(bench.runtime.suspend(&unit.id, Duration::ZERO).await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_paused_can_sleep_and_wake() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    bench.docker.pause_container(&unit.id).await.expect("Docker pauses it");
    assert!(bench.runtime.resume(&unit.id).await.is_ok_and(|unit| unit.state == UnitState::Running));
    bench.docker.pause_container(&unit.id).await.expect("Docker pauses it");
    assert_eq!(bench.runtime.suspend(&unit.id, Duration::ZERO).await, Ok(()));
    assert!(bench.runtime.resume(&unit.id).await.is_ok_and(|unit| unit.state == UnitState::Running));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_installation_s_unit_is_neither_stopped_nor_started() {
    let (bench, other) = (Bench::new().await, Bench::new().await);
    let unit = other.sleeper("a").await;
    let refused = bench.runtime.suspend(&unit.id, Duration::ZERO).await;
    assert!(matches!(refused, Err(RuntimeError::Refused(_))), "{refused:?}");
    assert_eq!(other.mine().await, [listed(&unit)]);
    assert_eq!(other.runtime.suspend(&unit.id, Duration::ZERO).await, Ok(()));
    assert!(matches!(bench.runtime.resume(&unit.id).await, Err(RuntimeError::Refused(_))));
    assert!(other.runtime.inspect(&unit.id).await.is_ok_and(|unit| unit.state == UnitState::Ended));
    let nobody = "0".repeat(64);
    assert!(matches!(bench.runtime.suspend(&nobody, Duration::ZERO).await, Err(RuntimeError::NotFound(_))));
    assert!(matches!(bench.runtime.resume(&nobody).await, Err(RuntimeError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_network_there_is_only_the_loopback() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "exec sleep 600");
    plan.network = false;
    let unit = bench.put(&plan).await;
    assert_eq!((unit.state, &unit.address), (UnitState::Running, &None));
    let interfaces = bench.exec(&unit, "ls /sys/class/net").await.expect("it runs");
    assert_eq!(interfaces.stdout, "lo\n");
    // Nor was one made for it.
    let networks = bench.docker.list_networks(None::<bollard::query_parameters::ListNetworksOptions>).await;
    assert!(networks.is_ok_and(|all| all.iter().all(|network| network.name.as_deref() != Some(&bench.id))));
    assert_eq!(bench.runtime.suspend(&unit.id, Duration::ZERO).await, Ok(()));
    assert!(bench.runtime.resume(&unit.id).await.is_ok_and(|unit| unit.address.is_none()));
}
