//! The check that nothing is left behind, shown to work.

use sandbar_tests::docker::docker;
use sandbar_tests::host::image;
use sandbar_tests::{Options, TestHost};

/// Makes something of a host's installation that the host knows nothing about, and expects the check to find it.
fn finds(kind: &str, make: impl FnOnce(&TestHost, &[String]) -> anyhow::Result<String>) {
    let mut host = TestHost::prepare(Options::default());
    let label = |key: &str, value: &str| format!("{}.{key}={value}", host.namespace);
    let labels = [label("installation", &host.installation), label("sandbox", "1")];
    let args: Vec<_> = labels.iter().flat_map(|l| ["--label".to_owned(), l.clone()]).collect();
    make(&host, &args).unwrap();
    let left = host.finish().unwrap();
    assert!(left.len() == 1 && left[0].starts_with(kind), "{left:?}");
    // Found and removed: dropping the host finds nothing more.
    assert_eq!(host.finish().unwrap(), Vec::<String>::new());
}

#[test]
fn a_container_left_behind_is_found() {
    finds("container", |_, labels| {
        let mut args = vec!["create".to_owned()];
        args.extend_from_slice(labels);
        args.extend([image("redis:8-alpine")?, "true".to_owned()]);
        docker(args)
    });
}

#[test]
fn a_network_left_behind_is_found() {
    finds("network", |host, labels| {
        let mut args = vec!["network".to_owned(), "create".to_owned()];
        args.extend_from_slice(labels);
        args.push(host.network());
        docker(args)
    });
}

#[test]
fn a_volume_left_behind_is_found() {
    finds("volume", |host, labels| {
        let mut args = vec!["volume".to_owned(), "create".to_owned()];
        args.extend_from_slice(labels);
        args.push(format!("{}-volume", host.namespace));
        docker(args)
    });
}

#[test]
#[should_panic(expected = "the host left behind")]
fn a_test_that_leaves_something_fails() {
    let host = TestHost::prepare(Options::default());
    let labels = format!("{}.installation={}", host.namespace, host.installation);
    docker(["volume", "create", "--label", &labels, &format!("{}-volume", host.namespace)]).unwrap();
    drop(host);
}
