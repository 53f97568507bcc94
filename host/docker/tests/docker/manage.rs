//! Names, listings, logs and environments of units.

use std::time::Duration;

use sandbar_core::runtime::{Runtime as _, RuntimeError};

use crate::bench::{Bench, INSTALLATION, listed, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_is_renamed_once_and_to_what_is_free() {
    let bench = Bench::new().await;
    let (a, b) = (bench.sleeper("a").await, bench.sleeper("b").await);
    let new = bench.name("new");
    assert_eq!(bench.runtime.rename(&a.id, &new).await, Ok(()));
    assert_eq!(bench.runtime.rename(&a.id, &new).await, Ok(()));
    assert!(bench.runtime.inspect(&new).await.is_ok_and(|unit| unit.id == a.id && unit.name == new));
    assert!(matches!(bench.runtime.inspect(&a.name).await, Err(RuntimeError::NotFound(_))));
    let conflict = bench.runtime.rename(&b.id, &new).await;
    let Err(RuntimeError::Conflict { name, holder: Some(holder) }) = conflict else { panic!("{conflict:?}") };
    assert_eq!((name, &holder.id, holder.name), (new.clone(), &a.id, new));
    let nobody = bench.runtime.rename(&"0".repeat(64), &bench.name("x")).await;
    assert!(matches!(nobody, Err(RuntimeError::NotFound(_))), "{nobody:?}");
    let refused = bench.runtime.rename(&b.id, "a/b").await;
    assert!(matches!(refused, Err(RuntimeError::Refused(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_has_what_has_all_labels_with_equal_values() {
    let bench = Bench::new().await;
    for (name, value) in [("a", "x"), ("b", "xx"), ("c", "x=1")] {
        let mut plan = bench.plan(name, "exec sleep 600");
        plan.labels.insert("sandbar-test.value".to_owned(), value.to_owned());
        bench.put(&plan).await;
    }
    let named = |value: &'static str| {
        let bench = &bench;
        async move {
            let labels = [(INSTALLATION, bench.id.as_str()), ("sandbar-test.value", value)];
            let mut names: Vec<_> =
                bench.runtime.list(&labels).await.expect("Docker lists").into_iter().map(|unit| unit.name).collect();
            names.sort_unstable();
            names
        }
    };
    assert_eq!(named("x").await, [bench.name("a")]);
    assert_eq!(named("xx").await, [bench.name("b")]);
    assert_eq!(named("x=1").await, [bench.name("c")]);
    assert_eq!(named("").await, Vec::<String>::new());
    assert_eq!(bench.mine().await.len(), 3);
    assert_eq!(bench.runtime.list(&[(INSTALLATION, "")]).await, Ok(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unit_is_found_by_its_whole_id_or_name_only() {
    let bench = Bench::new().await;
    let unit = bench.sleeper("a").await;
    assert_eq!(bench.runtime.inspect(&unit.id).await, Ok(unit.clone()));
    for other in [&unit.id[..12], &unit.name[..unit.name.len() - 2]] {
        assert!(matches!(bench.runtime.inspect(other).await, Err(RuntimeError::NotFound(_))), "{other}");
    }
    // Removing by such a beginning removes nothing.
    assert_eq!(bench.runtime.remove(&unit.id[..12], Duration::ZERO).await, Ok(()));
    assert_eq!(bench.mine().await, [listed(&unit)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_are_asked_for_are_found_with_their_image() {
    let bench = Bench::new().await;
    let plan = bench.plan("a", "exec sleep 600");
    let (one, two) = (bench.put(&plan).await, bench.sleeper("b").await);
    let found = |ids: Vec<String>| {
        let bench = &bench;
        async move {
            let ids: Vec<_> = ids.iter().map(String::as_str).collect();
            bench.runtime.find(&ids).await.expect("Docker lists")
        }
    };
    // Not by the beginning of an id, and nothing where nothing is asked for.
    assert_eq!(found(vec![]).await, []);
    assert_eq!(found(vec!["0".repeat(64), one.id[..12].to_owned()]).await, []);
    let both = found(vec![one.id.clone(), two.id.clone()]).await;
    assert_eq!(both.iter().map(|unit| &unit.id).collect::<std::collections::BTreeSet<_>>().len(), 2);
    let image = async || found(vec![one.id.clone()]).await[0].image.clone();
    assert_eq!(image().await.as_deref(), Some(plan.image.as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_log_has_both_streams_and_a_bound() {
    let bench = Bench::new().await;
    let unit = bench.put(&bench.plan("a", "seq 1 5; echo six >&2")).await;
    assert!(bench.ended(&unit).await.is_ok());
    // Each stream keeps its order; between the two Docker promises none.
    let log = bench.runtime.logs(&unit.id, 20).await.expect("there is a log");
    assert_eq!((log.lines().count(), log.replace("six\n", "").as_str()), (6, "1\n2\n3\n4\n5\n"));
    assert!(bench.runtime.logs(&unit.id, 2).await.is_ok_and(|end| end.lines().count() == 2 && log.ends_with(&end)));
    assert_eq!(bench.runtime.logs(&unit.id, 0).await.as_deref(), Ok(""));
    assert!(matches!(bench.runtime.logs(&"0".repeat(64), 1).await, Err(RuntimeError::NotFound(_))));

    // Far more than the log's files hold, so they have been started anew several times.
    let unit = bench.put(&bench.plan("b", "yes 0123456789é | head -n 300000; echo end")).await;
    assert!(bench.ended(&unit).await.is_ok());
    let whole = || async { bench.runtime.logs(&unit.id, 100_000).await.ok().filter(|log| log.ends_with("é\nend\n")) };
    let log = until("the log is complete", whole).await;
    assert!(log.len() <= 16 * 1024 && log.len() > 16 * 1024 - 4, "{}", log.len());
    assert!(!log.contains('\u{fffd}'));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_environment_is_read_back() {
    let bench = Bench::new().await;
    let mut plan = bench.plan("a", "exec sleep 600");
    plan.env.push(("WITH".to_owned(), "a=b c".to_owned()));
    plan.env.push(("EMPTY".to_owned(), String::new()));
    let unit = bench.put(&plan).await;
    let env = bench.runtime.environment(&unit.id).await.expect("it is there");
    assert!(plan.env.iter().all(|pair| env.contains(pair)), "{env:?}");
    assert!(env.contains(&("FROM_IMAGE".to_owned(), "yes".to_owned())));
}
