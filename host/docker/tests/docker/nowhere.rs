//! What keeps a box with a network from the addresses under which clouds tell a machine's credentials. All tests here
//! share one thing: Docker has each address in one network only.

use sandbar_core::runtime::{FolderPlan, Runtime as _, RuntimeError, Unit, UnitPlan};
use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::bench::Bench;

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// The routes of a unit and, beside them, whether this machine has come by a link-local one.
async fn routes(bench: &Bench, unit: &Unit) -> String {
    let here = std::fs::read_to_string("/proc/net/route").expect("this machine has routes");
    // As the kernel writes 169.254.0.0: in hexadecimal, from its end to its beginning.
    assert!(!here.contains("0000FEA9"), "{here}");
    bench.exec(unit, "ip route").await.expect("it runs").stdout
}

fn boxed(bench: &Bench, name: &str, folder: &TempDir) -> UnitPlan {
    let mut plan = bench.plan(name, "exec sleep 600");
    plan.folder = Some(FolderPlan { from: folder.path().display().to_string(), path: "/work".to_owned() });
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_has_a_way_to_others_and_none_to_link_local_addresses() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    // Cleared up in the other order.
    let first = Bench::new().await;
    let second = Bench::new().await;
    for bench in [&first, &second] {
        let service = bench.sleeper("service").await;
        let routes_there = routes(bench, &service).await;
        assert!(routes_there.starts_with("default via") && !routes_there.contains("169.254."), "{routes_there}");
        let unit = bench.put(&boxed(bench, "box", &folder)).await;
        let all = routes(bench, &unit).await;
        assert!(all.starts_with("default via") && all.contains("169.254.0.0/16 dev"), "{all}");
        assert_ne!(unit.address.as_deref().map(|a| a.starts_with("169.254.")), Some(true));
        // Something is there that could be talked to, and here there is nothing.
        let beside = service.address.expect("it has one");
        for (address, says) in
            [(beside.as_str(), "refused"), ("169.254.169.254", "No route"), ("169.254.170.2", "No route")]
        {
            let tried = bench.exec(&unit, &format!("nc -w 9 {address} 80 </dev/null 2>&1")).await.expect("it runs");
            assert!(tried.stdout.contains(says), "{address}: {}", tried.stdout);
        }
        let mut alone = boxed(bench, "alone", &folder);
        alone.network = false;
        let unit = bench.put(&alone).await;
        assert_eq!(routes(bench, &unit).await, "");
    }
    // The second installation uses what the first made, and the first cannot take it away from it.
    assert_eq!(first.runtime.remove(&first.name("box"), std::time::Duration::ZERO).await, Ok(()));
    assert_eq!(first.runtime.remove(&first.name("service"), std::time::Duration::ZERO).await, Ok(()));
    assert_eq!(first.runtime.retire().await, Ok(()));
    let unit = second.runtime.inspect(&second.name("box")).await.expect("it is there");
    assert!(routes(&second, &unit).await.contains("169.254.0.0/16 dev"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_that_wakes_has_none_either() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let bench = Bench::new().await;
    let unit = bench.put(&boxed(&bench, "box", &folder)).await;
    for retire in [false, true] {
        assert_eq!(bench.runtime.suspend(&unit.id, std::time::Duration::ZERO).await, Ok(()));
        if retire {
            assert_eq!(bench.runtime.retire().await, Ok(()));
            assert!(bench.docker.inspect_network(&format!("{}_nowhere", bench.id), None).await.is_err());
        }
        let awake = bench.runtime.resume(&unit.id).await.expect("it starts");
        let all = routes(&bench, &awake).await;
        assert!(all.starts_with("default via") && all.contains("169.254.0.0/16 dev"), "{all}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_addresses_are_in_use_no_box_gets_a_network() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let bench = Bench::new().await;
    let name = bench.name("foreign");
    let pool = bollard::models::IpamConfig { subnet: Some("169.254.77.0/24".to_owned()), ..Default::default() };
    let request = bollard::models::NetworkCreateRequest {
        name: name.clone(),
        internal: Some(true),
        ipam: Some(bollard::models::Ipam { config: Some(vec![pool]), ..Default::default() }),
        options: Some([("com.docker.network.bridge.inhibit_ipv4".to_owned(), "true".to_owned())].into()),
        labels: Some([(crate::bench::INSTALLATION.to_owned(), bench.id.clone())].into()),
        ..Default::default()
    };
    bench.docker.create_network(request).await.expect("Docker makes it");
    let refused = bench.try_put(&boxed(&bench, "box", &folder)).await.expect_err("it has a network");
    assert!(matches!(&refused.error, RuntimeError::Failed(why) if why.contains(&name)), "{refused:?}");
    let mut alone = boxed(&bench, "alone", &folder);
    alone.network = false;
    bench.put(&alone).await;
    bench.docker.remove_network(&name).await.expect("nothing is in it");
}
