//! A recipe of a real engine, changed: either it is refused in one line, or all that the host would do with it is what an
//! engine may have done.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use sandbar_core::catalog::{Limits, Service};
use sandbar_core::check::{Grants, check};
use sandbar_core::engine::{Descriptor, Engine, EngineError, Recipe, Request};
use sandbar_core::image::{Image, ImagePattern};
use sandbar_core::name::{AgentName, EngineSlug, Installation, Names, Namespace, ProjectName, ServiceName};
use sandbar_core::owner::{For, Owner};
use sandbar_core::plan::{self, Make, Note, Secrets};
use sandbar_core::secret::Secret;
use sandbar_plugin::{Artifact, Host};

use crate::edit::edit;
use crate::{engines, one_line};

const MEMORY: u64 = 512 << 20;
const PASSWORD: &str = "0123456789abcdef0123456789abcdef";
const ADMIN: &str = "fedcba9876543210fedcba9876543210";

/// A recipe of a real engine, and what its operator grants.
#[derive(Clone)]
struct Base {
    request: Request,
    grants: Grants,
    recipe: Recipe,
}

static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let host = Host::new(None, sandbar_plugin::Limits::default()).unwrap();
        let mut bases = Vec::new();
        for (name, component) in engines() {
            let engine = host.load_artifact(Artifact::from_bytes(component).unwrap()).await.unwrap();
            let descriptor = engine.descriptor();
            let mut features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
            features.sort();
            let settings: Vec<_> = descriptor.settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
            for (features, superuser) in [(Vec::new(), false), (features, false), (Vec::new(), true)] {
                let request =
                    Request { features, retained: false, superuser, memory_bytes: MEMORY, settings: settings.clone() };
                let recipe = engine.plan(&request).await.unwrap();
                let grants = granted(&recipe);
                let good = check(recipe.clone(), &request, &grants, &NAMES);
                assert!(good.is_ok(), "{name}: {good:?}");
                bases.push(Base { request, grants, recipe });
            }
        }
        bases
    })
});

static NAMES: LazyLock<Names> =
    LazyLock::new(|| Names::new(Namespace::new("sandbar").unwrap(), Installation::new("fuzz").unwrap()));

/// All that a recipe asks for.
fn granted(recipe: &Recipe) -> Grants {
    let image = recipe.container.image.replace("{namespace}", NAMES.namespace());
    Grants {
        images: vec![ImagePattern::parse(&image).unwrap()],
        capabilities: recipe.container.capabilities.clone(),
        data_dirs: recipe.container.data.iter().map(|dir| dir.path.clone()).collect(),
        variables: recipe.variables.iter().filter(|v| !v.prefixed).map(|v| v.name.clone()).collect(),
    }
}

/// An engine with one answer.
struct Answering(Descriptor, Recipe);

#[async_trait]
impl Engine for Answering {
    fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    fn hash(&self) -> &str {
        "none"
    }

    async fn plan(&self, _: &Request) -> Result<Recipe, EngineError> {
        Ok(self.1.clone())
    }
}

/// The first byte chooses a recipe, and the others change it.
///
/// # Panics
/// Where a promise is broken.
pub fn recipe(data: &[u8]) {
    let (first, changes) = data.split_first().unwrap_or((&0, &[]));
    let Base { request, grants, mut recipe } = BASES[usize::from(*first) % BASES.len()].clone();
    edit(&mut recipe, changes);
    let checked = match check(recipe.clone(), &request, &grants, &NAMES) {
        Ok(checked) => checked,
        Err(refusal) => return one_line(&refusal),
    };
    assert_eq!(checked.recipe(), &recipe, "it is carried out as it was checked");
    let image = Image::parse(checked.image()).unwrap();
    assert!(grants.images.iter().any(|pattern| pattern.covers(&image)), "{image}");

    // Everything can be filled in, and the passwords are only where they may be.
    let account = recipe.container.account.as_ref();
    let secrets = account
        .map(|account| Secrets { password: Secret::new(PASSWORD), admin: account.admin.then(|| Secret::new(ADMIN)) });
    let unit = unit(&checked, secrets.as_ref());
    let words = unit.entrypoint.iter().flatten().chain(&unit.command);
    words.chain(unit.files.iter().map(|file| &file.content)).for_each(|text| public(text));
    for path in unit.files.iter().map(|f| &f.path).chain(unit.data.iter().map(|d| &d.path)) {
        assert!(path.starts_with('/') && !path.split('/').any(|part| part == ".."), "{path:?}");
        assert!(
            !["/proc", "/sys", "/dev", "/etc/passwd"].iter().any(|p| path.starts_with(&format!("{p}/")) || path == p)
        );
    }
    for (name, value) in &unit.env {
        assert!(!name.is_empty() && !name.contains(['=', '\0', '\n']) && !value.contains('\0'), "{name:?}");
    }
    let own = unit.env.iter().filter(|(name, _)| name.starts_with(&NAMES.reserved_prefix())).count();
    assert_eq!(own, secrets.as_ref().map_or(0, |s| s.all().len()), "the host's variables are the host's");
    let steps = recipe.setup.iter().chain(&recipe.verify).map(|step| &step.run);
    for command in std::iter::once(&recipe.ready).chain(steps) {
        let exec = plan::exec(command, &checked, secrets.as_ref(), "192.0.2.1", NAMES.namespace()).unwrap();
        exec.argv.iter().for_each(|text| public(text));
        assert!(!exec.argv[0].is_empty() && !exec.timeout.is_zero());
    }
    let port = recipe.container.port;
    let variables = plan::variables(&recipe.variables, account, secrets.as_ref(), "service", port, &NAMES).unwrap();
    for (name, value) in &variables {
        assert!(!value.contains(ADMIN) && !value.contains(char::is_control), "{name}");
        assert!(name != "PATH" && !name.starts_with("LD_"), "{name}");
        let free = name.starts_with(&NAMES.variable_prefix());
        assert!(free || grants.variables.contains(name), "{name}");
    }
}

/// What everybody may see holds no password, and nothing that would end it early.
fn public(text: &str) {
    assert!(!text.contains(PASSWORD) && !text.contains(ADMIN) && !text.contains('\0'), "{text:?}");
}

fn unit(checked: &sandbar_core::check::Checked, secrets: Option<&Secrets>) -> sandbar_core::runtime::UnitPlan {
    let service = SERVICE.as_ref();
    let owner = Owner::agent(&AgentName::new("dev-1").unwrap());
    let note = Note {
        project: Some(ProjectName::new("shop").unwrap()),
        features: Vec::new(),
        superuser: false,
        box_network: false,
        known: None,
    };
    let images = BTreeMap::new();
    let make = Make {
        names: &NAMES,
        service,
        checked,
        secrets,
        whose: For::Owner(&owner),
        note: &note,
        generation: 1,
        images: &images,
        publish: false,
        folder: None,
    };
    plan::unit(&make).unwrap()
}

/// Some service, for what a plan takes from it beside the recipe.
static SERVICE: LazyLock<Arc<Service>> = LazyLock::new(|| {
    let Base { grants, recipe, .. } = BASES[0].clone();
    let descriptor = Descriptor {
        name: "fuzz".to_owned(),
        slug: "fuzz".to_owned(),
        version: "1".to_owned(),
        summary: String::new(),
        features: Vec::new(),
        settings: Vec::new(),
        more: Vec::new(),
    };
    let limits = Limits { memory_bytes: MEMORY, milli_cpus: 1000, pids: 256 };
    let names = Arc::new(NAMES.clone());
    let engine = Arc::new(Answering(descriptor, recipe));
    let (name, slug) = (ServiceName::new("fuzz").unwrap(), EngineSlug::new("fuzz").unwrap());
    let settings = BTreeMap::new();
    let made = Service::new(name, slug, engine, grants, &settings, limits, names);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    Arc::new(runtime.block_on(made).unwrap())
});
