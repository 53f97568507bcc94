//! Three small engines and a box, and what is asked of them: the catalog and the projects of every schedule.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbar_core::catalog::{Catalog, CatalogHandle, Limits, Service};
use sandbar_core::check::Grants;
use sandbar_core::engine::{
    Account, Command, Container, DataDir, Descriptor, Engine, EngineError, Expectation, Feature, Recipe, Request, Step,
    Variable,
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
/// The service that is a box.
pub(crate) const BOX: &str = "box";
/// Its work folder.
pub(crate) const WORK: &str = "/work";
/// Where the only service keeps its data that does not lose it when it stops.
const DATA: &str = "/data";

struct Fake {
    world: World,
    descriptor: Descriptor,
}

fn command(argv: &[&str], env: &[(&str, &str)]) -> Command {
    Command {
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        user: None,
        expect: Expectation::ExitZero,
        timeout_ms: 1_000,
    }
}

fn step(kind: &str, feature: &str, env: &[(&str, &str)]) -> Step {
    let about = (feature != "base").then(|| feature.to_owned());
    Step { name: format!("{kind} {feature}"), feature: about, run: command(&[kind, feature], env) }
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
        let (has_user, is_box) = (name == "pg", name == BOX);
        let env: &[_] = if is_box { &[] } else { &[("PW", "{password}")] };
        let url = Variable {
            name: format!("{}_URL", name.to_uppercase()),
            value: "{host}:{port}:{password}".into(),
            prefixed: true,
        };
        Ok(Recipe {
            container: Container {
                image: format!("{name}:1"),
                entrypoint: None,
                command: vec![],
                user: String::new(),
                env: env.iter().map(|(_, value)| ("SERVICE_PASSWORD".into(), (*value).into())).collect(),
                files: vec![],
                data: if has_user { vec![DataDir { path: DATA.into(), tmpfs_bytes: 64 << 20 }] } else { vec![] },
                work_folder: is_box.then(|| WORK.into()),
                shm_bytes: 0,
                capabilities: vec![],
                port: (!is_box).then_some(1000),
                account: (!is_box).then(|| Account {
                    user: has_user.then(|| "sandbox".into()),
                    database: has_user.then(|| "sandbox".into()),
                    admin: has_user,
                }),
                more: vec![],
            },
            ready: command(&["probe", "{address}"], env),
            deadline_ms: 3_000,
            setup: request.features.iter().map(|f| step("setup", f, env)).collect(),
            verify: ["base"]
                .into_iter()
                .chain(request.features.iter().map(String::as_str))
                .map(|f| step("verify", f, env))
                .collect(),
            variables: if is_box { vec![] } else { vec![url] },
        })
    }
}

/// Loads the engines.
pub(crate) async fn catalog(world: &World, names: &Arc<Names>) -> CatalogHandle {
    let mut services = BTreeMap::new();
    for (name, features) in SERVICES.into_iter().chain([(BOX, &[][..])]) {
        let descriptor = Descriptor {
            name: name.into(),
            slug: name.into(),
            version: "1".into(),
            summary: String::new(),
            features: features.iter().map(|f| Feature { name: (*f).into(), summary: String::new() }).collect(),
            settings: vec![],
            more: vec![],
        };
        let images = vec![ImagePattern::parse(&format!("{name}:*")).unwrap()];
        let grants = Grants { images, data_dirs: vec![DATA.to_owned()], ..Grants::default() };
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

fn retaining(services: &[&str], features: &[(&str, &str)], retained: &[&str]) -> Declared {
    let retained = retained.iter().map(|s| ServiceName::new(*s).unwrap()).collect();
    Declared { retained, ..declared(services, features, false) }
}

/// What the project `loft` is declared to be, one after another.
pub(crate) fn loft(n: u64) -> Declared {
    match n % 5 {
        0 => retaining(&["box", "pg"], &[], &["box", "pg"]),
        1 => retaining(&["box", "redis"], &[], &[]),
        2 => Declared { box_network: true, ..retaining(&["box"], &[], &["box"]) },
        3 => retaining(&["pg", "box"], &[("pg", "postgis")], &["pg"]),
        _ => Declared { superuser: true, ..retaining(&["pg", "redis"], &[], &["pg"]) },
    }
}

/// The projects with boxes and with what is retained; `loft` is declared while hosts run.
pub(crate) const KEEPING: [&str; 5] = ["bench", "yard", "vault", "depot", "loft"];

/// The projects that agents work on; `lab` is declared while hosts run.
pub(crate) const PROJECTS: [&str; 4] = ["shop", "wiki", "docs", "lab"];

/// What a project is declared to be, `lab` or `loft` for the n-th time.
pub(crate) fn declaration(name: &str, n: u64) -> Declared {
    match name {
        "shop" => declared(&["pg", "redis"], &[("pg", "vector")], false),
        "wiki" => declared(&["redis"], &[], false),
        "docs" => declared(&["redis", "pg", "mongo"], &[], false),
        "bench" => retaining(&["box", "redis"], &[], &["box"]),
        "yard" => retaining(&["box"], &[], &[]),
        "vault" => retaining(&["pg", "redis"], &[("pg", "vector")], &["pg"]),
        "depot" => retaining(&["redis", "box", "pg"], &[], &["box", "pg"]),
        "loft" => loft(n),
        _ => lab(n),
    }
}

/// The projects of the configuration.
pub(crate) fn projects(catalog: &Catalog) -> Vec<Project> {
    let all = PROJECTS.into_iter().chain(KEEPING).filter(|name| !["lab", "loft"].contains(name));
    all.map(|name| Project::declare(project(name), declaration(name, 0), catalog).unwrap()).collect()
}

pub(crate) fn project(name: &str) -> ProjectName {
    ProjectName::new(name).unwrap()
}

/// Names as texts.
pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}
