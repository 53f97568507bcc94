//! Three small engines, and what is asked of them: the catalog and the projects of every schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::catalog::{Catalog, CatalogHandle, Limits, Service};
use sandbar_core::check::Grants;
use sandbar_core::engine::{
    Account, Command, Container, Descriptor, Engine, EngineError, Expectation, Feature, Recipe, Request, Step, Variable,
};
use sandbar_core::image::ImagePattern;
use sandbar_core::name::{EngineSlug, Names, ProjectName, ServiceName};
use sandbar_core::project::{Declared, Project};

use crate::faults::Kind;
use crate::world::World;

/// What a panic on purpose says, so that the panic hook leaves it out.
pub(crate) const PANIC: &str = "a simulated panic";

/// Services with their features. Name and slug are the same, so that a container's name says which service it is.
pub(crate) const SERVICES: [(&str, &[&str]); 3] =
    [("pg", &["postgis", "vector"]), ("redis", &["search"]), ("mongo", &[])];

struct Fake {
    world: World,
    descriptor: Descriptor,
}

fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        env: vec![("PW".into(), "{password}".into())],
        user: None,
        expect: Expectation::ExitZero,
        timeout_ms: 1_000,
    }
}

fn step(kind: &str, feature: &str) -> Step {
    let about = (feature != "base").then(|| feature.to_owned());
    Step { name: format!("{kind} {feature}"), feature: about, run: command(&[kind, feature]) }
}

#[async_trait]
impl Engine for Fake {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn hash(&self) -> &str {
        "00"
    }

    async fn plan(&self, request: &Request) -> Result<Recipe, EngineError> {
        let name = &self.descriptor.name;
        let (pause, panics, fails) = self.world.with(|inner| {
            let key = format!("plan {name}");
            let mut rng = inner.rng(Kind::Prepare, &key);
            let (panics, fails) = (rng.chance(inner.knobs.engine_panics), rng.chance(inner.knobs.engine_fails));
            match inner.scripted(Kind::Prepare, &key) {
                // Late, so that the other services are on their way.
                Some(_) => (Duration::from_millis(300), true, None),
                None if inner.knobs.instant => (Duration::ZERO, panics, None),
                None => (rng.ms(0, 40), panics, fails.then(|| rng.chance(500))),
            }
        });
        tokio::time::sleep(pause).await;
        assert!(!panics, "{PANIC}");
        match fails {
            Some(true) => return Err(EngineError::Broken("a trap".to_owned())),
            Some(false) => return Err(EngineError::Other("not today".to_owned())),
            None => {}
        }
        let has_user = name == "pg";
        Ok(Recipe {
            container: Container {
                image: format!("{name}:1"),
                entrypoint: None,
                command: vec![],
                user: String::new(),
                env: vec![("SERVICE_PASSWORD".into(), "{password}".into())],
                files: vec![],
                data: vec![],
                work_folder: None,
                shm_bytes: 0,
                capabilities: vec![],
                port: Some(1000),
                account: Some(Account {
                    user: has_user.then(|| "sandbox".into()),
                    database: has_user.then(|| "sandbox".into()),
                    admin: has_user,
                }),
                more: vec![],
            },
            ready: command(&["probe", "{address}"]),
            deadline_ms: 3_000,
            setup: request.features.iter().map(|f| step("setup", f)).collect(),
            verify: ["base"]
                .into_iter()
                .chain(request.features.iter().map(String::as_str))
                .map(|f| step("verify", f))
                .collect(),
            variables: vec![Variable {
                name: format!("{}_URL", name.to_uppercase()),
                value: "{host}:{port}:{password}".into(),
                prefixed: true,
            }],
        })
    }
}

/// Loads the engines.
pub(crate) async fn catalog(world: &World, names: &Arc<Names>) -> CatalogHandle {
    let mut services = BTreeMap::new();
    for (name, features) in SERVICES {
        let descriptor = Descriptor {
            name: name.into(),
            slug: name.into(),
            version: "1".into(),
            summary: String::new(),
            features: features.iter().map(|f| Feature { name: (*f).into(), summary: String::new() }).collect(),
            settings: vec![],
            more: vec![],
        };
        let grants = Grants { images: vec![ImagePattern::parse(&format!("{name}:*")).unwrap()], ..Grants::default() };
        let engine = Arc::new(Fake { world: world.clone(), descriptor });
        let service = ServiceName::new(name).unwrap();
        let slug = EngineSlug::new(name).unwrap();
        let limits = Limits { memory_bytes: 512 << 20, milli_cpus: 1000, pids: 256 };
        let loaded = Service::new(service.clone(), slug, engine, grants, &BTreeMap::new(), limits, names.clone()).await;
        services.insert(service, Arc::new(loaded.unwrap()));
    }
    CatalogHandle::new(Catalog { services, broken: vec![] })
}

fn declared(services: &[&str], features: &[(&str, &str)], superuser: bool) -> Declared {
    let service = |name: &str| ServiceName::new(name).unwrap();
    Declared {
        services: services.iter().map(|s| service(s)).collect(),
        extensions: features.iter().map(|(s, f)| (service(s), vec![(*f).to_owned()])).collect(),
        superuser,
        ..Declared::default()
    }
}

/// What the project `lab` is declared to be, one after another.
pub(crate) fn lab(n: u64) -> Declared {
    match n % 5 {
        0 => declared(&["pg", "redis", "mongo"], &[], false),
        1 => declared(&["redis"], &[("redis", "search")], false),
        2 => declared(&["pg", "mongo"], &[("pg", "postgis")], false),
        3 => declared(&["pg"], &[], true),
        _ => declared(&["mongo", "redis"], &[], false),
    }
}

/// The projects that agents work on; `lab` is declared while hosts run.
pub(crate) const PROJECTS: [&str; 4] = ["shop", "wiki", "docs", "lab"];

/// What a project is declared to be, `lab` for the n-th time.
pub(crate) fn declaration(name: &str, n: u64) -> Declared {
    match name {
        "shop" => declared(&["pg", "redis"], &[("pg", "vector")], false),
        "wiki" => declared(&["redis"], &[], false),
        "docs" => declared(&["redis", "pg", "mongo"], &[], false),
        _ => lab(n),
    }
}

/// The projects of the configuration.
pub(crate) fn projects(catalog: &Catalog) -> Vec<Project> {
    let all = PROJECTS.into_iter().filter(|name| *name != "lab");
    all.map(|name| Project::declare(project(name), declaration(name, 0), catalog).unwrap()).collect()
}

pub(crate) fn project(name: &str) -> ProjectName {
    ProjectName::new(name).unwrap()
}

/// Names as texts.
pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}
