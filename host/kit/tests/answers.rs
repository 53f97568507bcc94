//! Engines that keep the contract but for one thing, and the line that says so.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use sandbar_core::catalog::Limits;
use sandbar_core::check::Grants;
use sandbar_core::engine::*;
use sandbar_core::name::{Installation, Names, Namespace};
use sandbar_kit::{Report, Subject, Verdict, answers};

type Plan = fn(&Odd, &Request) -> Result<Recipe, EngineError>;

/// An engine whose answers are a function.
struct Odd {
    descriptor: Descriptor,
    plan: Plan,
    asked: AtomicU64,
}

#[async_trait]
impl Engine for Odd {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn hash(&self) -> &str {
        "none"
    }

    async fn plan(&self, request: &Request) -> Result<Recipe, EngineError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        (self.plan)(self, request)
    }
}

fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        env: vec![("PASSWORD".into(), "{password}".into())],
        user: None,
        expect: Expectation::ExitZero,
        timeout_ms: 1000,
    }
}

fn variable(name: &str, value: &str) -> Variable {
    Variable { name: name.into(), value: value.into(), prefixed: true }
}

/// A good answer.
fn good(_: &Odd, request: &Request) -> Result<Recipe, EngineError> {
    if let Some(unknown) = request.features.iter().find(|f| *f != "more") {
        return Err(EngineError::UnsupportedFeature(unknown.clone()));
    }
    let size = &request.settings.iter().find(|s| s.0 == "size").ok_or(EngineError::Other("no size".into()))?.1;
    if size.parse::<u16>().is_err() {
        return Err(EngineError::BadSetting("size".into(), "it is no number".into()));
    }
    let confirm = |f: &String| Step { name: "confirm".into(), feature: Some(f.clone()), run: command(&["confirm"]) };
    Ok(Recipe {
        container: Container {
            image: "db:1".into(),
            entrypoint: None,
            command: vec![],
            user: String::new(),
            env: vec![],
            files: vec![],
            data: vec![DataDir { path: "/data".into(), tmpfs_bytes: request.memory_bytes / 2 }],
            work_folder: None,
            shm_bytes: 0,
            capabilities: vec![],
            port: Some(1234),
            account: Some(Account { user: Some("u".into()), database: None, admin: false }),
            more: vec![],
        },
        ready: command(&["probe", "{address}"]),
        deadline_ms: 5000,
        setup: vec![],
        verify: request.features.iter().map(confirm).collect(),
        variables: vec![variable("DB_URL", "{user}:{password}@{host}:{port}")],
    })
}

fn engine(plan: Plan) -> Arc<Odd> {
    let descriptor = Descriptor {
        name: "odd".into(),
        slug: "odd".into(),
        version: "1".into(),
        summary: "For tests".into(),
        features: vec![Feature { name: "more".into(), summary: String::new() }],
        settings: vec![Setting { name: "size".into(), default: "1".into(), summary: String::new() }],
        more: vec![],
    };
    Arc::new(Odd { descriptor, plan, asked: AtomicU64::new(0) })
}

async fn failures(plan: Plan, elsewhere: Plan) -> (Vec<String>, Grants) {
    let subject = Subject {
        engine: engine(plan),
        elsewhere: engine(elsewhere),
        settings: Default::default(),
        limits: Limits { memory_bytes: 512 << 20, milli_cpus: 1000, pids: 256 },
        names: Arc::new(Names::new(Namespace::new("kit").unwrap(), Installation::new("test").unwrap())),
    };
    let mut tell = |_: &_| {};
    let mut report = Report::new(&mut tell);
    let grants = answers::answers(&subject, &mut report).await;
    let failed = report.checks().iter().filter(|c| c.verdict == Verdict::Failed);
    (failed.map(|c| format!("{}: {}", c.name, c.detail)).collect(), grants)
}

/// Expects that just this check fails, and says this.
async fn one(plan: Plan, name: &str, says: &str) {
    let (failed, _) = failures(plan, plan).await;
    assert!(failed.len() == 1 && failed[0].starts_with(name) && failed[0].contains(says), "{failed:#?}");
}

#[tokio::test]
async fn a_good_one_passes_and_says_what_it_asks_for() {
    let (failed, grants) = failures(good, good).await;
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!((grants.images[0].to_string().as_str(), grants.data_dirs), ("db:1", vec!["/data".to_owned()]));
}

#[tokio::test]
async fn what_changes_is_found() {
    let (failed, _) = failures(
        |odd, request| {
            let recipe = good(odd, request)?;
            Ok(Recipe { deadline_ms: 5000 + odd.asked.load(Ordering::Relaxed) as u32, ..recipe })
        },
        good,
    )
    .await;
    assert!(failed.iter().all(|f| f.contains("twice, it answers differently")) && failed.len() == 2, "{failed:#?}");
    let (failed, _) = failures(good, |odd, request| Ok(Recipe { deadline_ms: 6000, ..good(odd, request)? })).await;
    assert!(failed.iter().all(|f| f.contains("depends on the clock")) && failed.len() == 2, "{failed:#?}");
}

#[tokio::test]
async fn refusals_have_their_errors() {
    let takes: Plan = |odd, request| {
        let features = request.features.iter().filter(|f| *f == "more").cloned().collect();
        good(odd, &Request { features, ..request.clone() })
    };
    one(takes, "feature: unknown", "it takes a feature that it does not have").await;
    let other: Plan = |odd, request| {
        good(odd, request).map_err(|e| match e {
            EngineError::UnsupportedFeature(f) => EngineError::Other(f),
            e => e,
        })
    };
    one(other, "feature: unknown", "and not that the feature cannot be had").await;
    let other: Plan = |odd, request| {
        good(odd, request).map_err(|e| match e {
            EngineError::BadSetting(_, why) => EngineError::Other(why),
            e => e,
        })
    };
    one(other, "setting: size", "not `bad-setting` of `size`").await;
    let breaks: Plan = |odd, request| match request.settings.is_empty() {
        true => Err(EngineError::Broken("it crashed".into())),
        false => good(odd, request),
    };
    one(breaks, "setting: unknown", "without any").await;
}

#[tokio::test]
async fn limits_are_kept() {
    let greedy: Plan = |odd, request| {
        let mut recipe = good(odd, request)?;
        recipe.container.data[0].tmpfs_bytes = 128 << 20;
        Ok(recipe)
    };
    one(greedy, "memory", "with 64 MiB, no feature: data: ").await;
    let picky: Plan = |odd, request| match request.memory_bytes > 8 << 30 {
        true => Err(EngineError::Other("too much".into())),
        false => good(odd, request),
    };
    one(picky, "memory", "too much").await;
    let modest: Plan = |odd, request| match request.memory_bytes < 256 << 20 {
        true => Err(EngineError::Other("too little".into())),
        false => good(odd, request),
    };
    assert_eq!(failures(modest, modest).await.0, Vec::<String>::new());
}

#[tokio::test]
async fn a_probe_and_the_variables_are_of_use() {
    let loopback: Plan = |odd, request| Ok(Recipe { ready: command(&["probe"]), ..good(odd, request)? });
    one(loopback, "probe", "no use of {address}").await;
    let anybody: Plan = |odd, request| {
        let ready = Command { env: vec![], ..command(&["probe", "{address}"]) };
        Ok(Recipe { ready, ..good(odd, request)? })
    };
    one(anybody, "probe", "no {password}").await;
    let silent: Plan = |odd, request| Ok(Recipe { variables: vec![variable("H", "{host}")], ..good(odd, request)? });
    one(silent, "variables", "no variable holds `{port}`, `{password}`, `{user}`").await;
}

#[tokio::test]
async fn a_secret_where_it_can_be_seen_is_the_host_s_to_refuse() {
    let shown: Plan = |odd, request| {
        let mut recipe = good(odd, request)?;
        recipe.ready.argv.push("{password}".into());
        Ok(recipe)
    };
    let (failed, _) = failures(shown, shown).await;
    assert!(failed[0].contains("ready: {password} may not stand here"), "{failed:#?}");
}
