//! Making units.

use std::time::{Duration, SystemTime};

use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{CreateContainerOptions, ListNetworksOptions};
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{FilePlan, PutStep, Runtime as _, RuntimeError, UnitState};
use tokio::io::AsyncReadExt as _;

use crate::bench::{Bench, INSTALLATION, listed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_runs_within_its_limits_and_in_its_network() {
    let bench = Bench::new().await;
    let plan = bench.plan("a", "exec sleep 600");
    let unit = bench.put(&plan).await;
    assert_eq!((unit.state, &unit.name), (UnitState::Running, &plan.name));
    assert!(plan.labels.iter().all(|(name, value)| unit.labels.get(name) == Some(value)));
    assert!(unit.address.as_deref().is_some_and(|a| a.parse::<std::net::IpAddr>().is_ok()), "{:?}", unit.address);
    assert!(SystemTime::now().duration_since(unit.created).is_ok_and(|age| age < Duration::from_secs(60)));
    assert_eq!(unit.published_port, None);
    assert_eq!(bench.mine().await, [listed(&unit)]);
    assert_eq!(bench.runtime.inspect(&plan.name).await, Ok(unit.clone()));

    let raw = bench.raw(&unit.id).await;
    let host = raw.host_config.expect("there is one");
    assert_eq!((host.memory, host.nano_cpus, host.pids_limit), (Some(32 << 20), Some(500_000_000), Some(32)));
    assert_eq!(host.shm_size, Some(1 << 20));
    let status = bench.exec(&unit, "cat /proc/self/status").await.expect("it runs").stdout;
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("CapEff:\t0000000000000000"), "{status}");

    let networks = bench.docker.list_networks(None::<ListNetworksOptions>).await.expect("Docker lists");
    let network = networks.iter().find(|n| n.name.as_deref() == Some(&bench.id)).expect("it was made");
    let labels = network.labels.as_ref().expect("it has some");
    assert_eq!(labels.get(INSTALLATION), Some(&bench.id));
    assert_eq!(labels.get("sandbar-test.extra").map(String::as_str), Some("1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_volume_is_covered_and_none_is_left_behind() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    let mounts = bench.raw(&unit.id).await.mounts.unwrap_or_default();
    assert!(mounts.iter().all(|mount| mount.typ.as_deref() != Some("volume")), "{mounts:?}");
    let seen = bench.exec(&unit, "grep -E ' /(data|cache) ' /proc/mounts").await.expect("it runs").stdout;
    assert_eq!(seen.lines().filter(|line| line.starts_with("tmpfs ") && line.contains("noexec")).count(), 2, "{seen}");
    // The sizes hold, and everybody may write.
    let fill = "dd if=/dev/zero of=/data/x bs=64k; dd if=/dev/zero of=/cache/x bs=4k; stat -c %s /data/x /cache/x";
    let mut plan = crate::bench::command(fill);
    plan.user = Some("1234".to_owned());
    let filled = bench.runtime.exec(&unit.id, &plan).await.expect("it runs");
    assert_eq!(filled.stdout, format!("{}\n{}\n", 1 << 20, 1 << 16), "{}", filled.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_that_ends_at_once_is_still_made() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.plan("a", "echo before the end; exit 3")).await;
    assert_eq!(bench.ended(&unit).await.map(|exit| (exit.code, exit.out_of_memory)), Ok((3, false)));
    let unit = bench.runtime.inspect(&unit.id).await.expect("it is there");
    assert_eq!((unit.state, unit.address), (UnitState::Ended, None));
    assert_eq!(bench.runtime.logs(&unit.id, 20).await.as_deref(), Ok("before the end\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_there_before_the_start_and_change_no_folder() {
    let bench = Bench::new().await;
    let look = "cat /etc/sandbar/deep/a; stat -c '%a %u %g' /etc/sandbar/deep/a /etc/sandbar/deep /etc/sandbar /etc /tmp \
                /tmp/b /kept /kept/c";
    let mut plan = bench.plan("a", look);
    let file = |path: &str, mode, content: &str| FilePlan { path: path.to_owned(), mode, content: content.to_owned() };
    plan.files =
        vec![file("/etc/sandbar/deep/a", 0o640, "content\n"), file("/tmp/b", 0o755, ""), file("/kept/c", 0o600, "x")];
    let unit = bench.put(&plan).await;
    assert_eq!(bench.ended(&unit).await.map(|exit| exit.code), Ok(0));
    let seen = bench.runtime.logs(&unit.id, 20).await.expect("there is a log");
    let expected = "content\n640 0 0\n755 0 0\n755 0 0\n755 0 0\n1777 0 0\n755 0 0\n750 7 0\n600 0 0\n";
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_put_in_is_refused() {
    let bench = Bench::new().await;
    for path in ["/cache/x", "/tmp"] {
        let mut plan = bench.plan("a", "true");
        plan.files = vec![FilePlan { path: path.to_owned(), mode: 0o644, content: String::new() }];
        let error = bench.try_put(&plan).await.expect_err("it cannot work");
        assert_eq!(error.step, PutStep::Create);
        // The second is noticed only by Docker, which takes it for an error of its own.
        assert!(matches!(error.error, RuntimeError::Refused(_) | RuntimeError::Failed(_)), "{error:?}");
        bench.runtime.remove(&plan.name, Duration::ZERO).await.expect("it can be removed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn making_the_same_again_goes_on_with_what_is_there() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "cat /late; exec sleep 600");
    plan.files = vec![FilePlan { path: "/late".to_owned(), mode: 0o644, content: "in time\n".to_owned() }];
    // As a caller that went away between creation and start leaves it.
    let first = bench.put(&bench.plan("other", "exec sleep 600")).await;
    let options = CreateContainerOptions { name: Some(plan.name.clone()), ..CreateContainerOptions::default() };
    let body = ContainerCreateBody {
        image: Some(plan.image.clone()),
        cmd: Some(plan.command.clone()),
        labels: Some(plan.labels.clone().into_iter().collect()),
        host_config: Some(bollard::models::HostConfig {
            network_mode: Some(bench.id.clone()),
            tmpfs: Some([("/data", ""), ("/cache", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
            ..Default::default()
        }),
        ..ContainerCreateBody::default()
    };
    let made = bench.docker.create_container(Some(options), body).await.expect("Docker makes it");
    let unit = bench.put(&plan).await;
    assert_eq!((&unit.id, unit.state), (&made.id, UnitState::Running));
    assert_ne!(unit.id, first.id);
    let log = || async { bench.runtime.logs(&unit.id, 5).await.ok().filter(|log| log == "in time\n") };
    until("the file was there", log).await;
    // And once it runs, nothing is done to it.
    assert_eq!(bench.put(&plan).await, unit);
    assert_eq!(bench.mine().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_taken_is_a_conflict_that_names_the_holder() {
    let bench = Bench::new().await;
    let holder = bench.sleeper("a").await;
    let mut plan = bench.plan("a", "exec sleep 600");
    plan.labels.insert("sandbar-test.name".to_owned(), "another".to_owned());
    let error = bench.try_put(&plan).await.expect_err("the name is taken");
    let conflict = RuntimeError::Conflict { name: plan.name.clone(), holder: Some(Box::new(holder)) };
    assert_eq!((error.step, error.error), (PutStep::Create, conflict));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_there_fails_the_start() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "");
    plan.entrypoint = Some(vec!["/no/such/program".to_owned()]);
    plan.command = vec!["0123456789abcdef0123456789abcdef".to_owned()];
    let error = bench.try_put(&plan).await.expect_err("it cannot start");
    assert_eq!(error.step, PutStep::Start);
    let RuntimeError::Refused(text) = &error.error else { panic!("{error:?}") };
    assert!(text.contains("/no/such/program") && !text.contains('\n'), "{text}");
    // It is there to be removed, by its name.
    assert_eq!(bench.mine().await.len(), 1);
    bench.runtime.remove(&plan.name, Duration::ZERO).await.expect("it can be removed");
    assert_eq!(bench.mine().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_be_had_fails_the_pull() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "true");
    // Nothing listens at that port, and Docker itself says so.
    plan.image = "127.0.0.1:1/none:1".to_owned();
    let error = bench.try_put(&plan).await.expect_err("there is no such registry");
    assert_eq!(error.step, PutStep::Pull);
    assert!(matches!(&error.error, RuntimeError::Failed(text) if text.contains("127.0.0.1:1")), "{error:?}");
    plan.image = format!("sha256:{}", "0".repeat(64));
    let error = bench.try_put(&plan).await.expect_err("there is no such image");
    assert!(matches!(error.error, RuntimeError::NotFound(_)), "{error:?}");
    assert_eq!(bench.mine().await.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_port_is_reached_on_the_loopback() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "while true; do echo hello | nc -l -p 7; done");
    plan.port = Some(7);
    plan.publish = true;
    // An unprivileged process may serve below 1024 in a container, so no capability is needed for port 7.
    let unit = bench.put(&plan).await;
    let port = unit.published_port.expect("it is published");
    assert_eq!(bench.mine().await, [listed(&unit)]);
    let hello = || async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        (text == "hello\n").then_some(())
    };
    until("the service answers", hello).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_at_once_make_one_network() {
    let bench = Bench::new().await;
    let plans: Vec<_> = (0..4).map(|n| bench.plan(&n.to_string(), "exec sleep 600")).collect();
    let units = futures_util::future::join_all(plans.iter().map(|plan| bench.put(plan))).await;
    assert!(units.iter().all(|unit| unit.address.is_some()));
    let networks = bench.docker.list_networks(None::<ListNetworksOptions>).await.expect("Docker lists");
    assert_eq!(networks.iter().filter(|network| network.name.as_deref() == Some(&bench.id)).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_hosts_at_once_make_one_network() {
    let bench = Bench::new().await;
    let hosts: Vec<_> = (0..4).map(|_| bench.another_host()).collect();
    let plans: Vec<_> = (0..4).map(|n| bench.plan(&n.to_string(), "exec sleep 600")).collect();
    let silent = ProgressSink::silent();
    let puts = hosts.iter().zip(&plans).map(|(host, plan)| host.put(plan, &silent));
    for unit in futures_util::future::join_all(puts).await {
        assert!(unit.expect("the plan can be carried out").address.is_some());
    }
    let networks = bench.docker.list_networks(None::<ListNetworksOptions>).await.expect("Docker lists");
    assert_eq!(networks.iter().filter(|network| network.name.as_deref() == Some(&bench.id)).count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_made_without_the_installation_s_label() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "true");
    plan.labels.remove(INSTALLATION);
    let error = bench.try_put(&plan).await.expect_err("nobody would remove it");
    assert!(matches!(error.error, RuntimeError::Refused(_)));
    assert!(matches!(bench.runtime.inspect(&plan.name).await, Err(RuntimeError::NotFound(_))));
}
