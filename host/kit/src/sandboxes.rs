//! Real sandboxes of an engine's recipes: the core's own host makes them, for agents of its own, on whatever runtime it is
//! given. What the kit adds are questions that a host never asks: with a wrong password, from another container, about a
//! feature that is not there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbar_core::catalog::{Catalog, CatalogHandle, Service};
use sandbar_core::check::{Checked, Grants};
use sandbar_core::engine::{Account, Command, Step};
use sandbar_core::ensure::Limits;
use sandbar_core::error::Error;
use sandbar_core::folders::Folders;
use sandbar_core::health::State;
use sandbar_core::host::{BoxBudget, Host, Settings};
use sandbar_core::image::Image;
use sandbar_core::janitor::Pace;
use sandbar_core::name::{AgentName, EngineSlug, ProjectName, ServiceName};
use sandbar_core::people::People;
use sandbar_core::plan::{self, Secrets};
use sandbar_core::project::{Declared, Project};
use sandbar_core::runtime::{Runtime, RuntimeError};
use sandbar_core::sandbox::{Evidence, Serving};
use sandbar_core::secret::Secret;
use sandbar_core::store::Store;

use crate::Subject;
use crate::report::{Report, Verdict};
use crate::wish::Wish;

/// How long a host may take to look at what exists.
const START: Duration = Duration::from_secs(30);
/// An address to which no connection can be made, refused by the kernel at once.
const NOWHERE: &str = "255.255.255.255";
/// The role of the agents.
const ROLE: &str = "developer";
/// Who starts them.
const BY: &str = "kit";

/// Where sandboxes are made.
pub struct Place {
    /// What runs containers.
    pub runtime: Arc<dyn Runtime>,
    /// What keeps work folders, for boxes.
    pub folders: Option<Arc<dyn Folders>>,
    /// The operator's mapping: normalised image to what is run.
    pub images: BTreeMap<Image, String>,
    /// The features to make sandboxes with; all where there is nothing.
    pub features: Option<Vec<String>>,
}

/// Makes a sandbox with none of the features, each one and all, one for an account without restrictions and one that is
/// retained, looks at each, and removes everything, also where `stop` comes first.
pub async fn sandboxes(
    subject: &Subject,
    granted: Grants,
    place: &Place,
    stop: impl Future<Output = ()>,
    report: &mut Report<'_>,
) {
    let kit = match Kit::start(subject, granted, place).await {
        Ok(kit) => kit,
        Err(why) => return report.add("sandboxes", Verdict::Failed, why),
    };
    tokio::select! {
        () = kit.all(report) => {}
        () = stop => report.add("sandboxes", Verdict::Failed, "interrupted"),
    }
    let left = kit.end().await;
    report.settle("teardown", left);
}

/// A host with the one service, and what it stands on.
struct Kit<'a> {
    subject: &'a Subject,
    place: &'a Place,
    host: Arc<Host>,
    service: Arc<Service>,
    running: tokio::task::JoinHandle<()>,
}

/// A sandbox that serves.
struct Made {
    agent: AgentName,
    serving: Arc<Serving>,
    checked: Checked,
    address: String,
    evidence: Evidence,
    took: Duration,
}

impl Made {
    fn account(&self) -> Option<&Account> {
        self.serving.account.as_ref()
    }
}

/// The three projects: what a wish is for.
fn project(wish: &Wish) -> &'static str {
    match (wish.retained, wish.superuser) {
        (false, false) => "throwaway",
        (false, true) => "superuser",
        (true, _) => "retained",
    }
}

impl<'a> Kit<'a> {
    async fn start(subject: &'a Subject, granted: Grants, place: &'a Place) -> Result<Self, String> {
        let descriptor = subject.engine.descriptor();
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let service = Service::new(
            ServiceName::new(&descriptor.name).map_err(|e| text(&e))?,
            EngineSlug::new(&descriptor.slug).map_err(|e| text(&e))?,
            subject.engine.clone(),
            granted,
            &subject.settings,
            subject.limits,
            subject.names.clone(),
        );
        let service = Arc::new(service.await?);
        let catalog = Catalog { services: [(service.name.clone(), service.clone())].into(), broken: Vec::new() };
        let mut projects = Vec::new();
        for wish in Wish::default().kinds().iter().take(3) {
            let own = vec![service.name.clone()];
            let declared = Declared {
                retained: if wish.retained { own.clone() } else { Vec::new() },
                superuser: wish.superuser,
                services: own,
                ..Declared::default()
            };
            let name = ProjectName::new(project(wish)).map_err(|e| text(&e))?;
            projects.push(Project::declare(name, declared, &catalog).map_err(|e| format!("{e:?}"))?);
        }
        let settings = Settings {
            names: subject.names.clone(),
            enabled: true,
            enabled_by_environment: None,
            roles: [ROLE.to_owned()].into(),
            projects,
            limits: Limits { images: place.images.clone(), ..Limits::default() },
            pace: Pace::default(),
            keep_on_shutdown: false,
            box_budget: BoxBudget { one: 1 << 30, all: 1 << 30 },
            local_only: false,
        };
        let store = Arc::new(Store::memory().map_err(|e| text(&e))?);
        let people = People::new(store.clone(), Vec::new()).map_err(|e| text(&e))?;
        let catalog = CatalogHandle::new(catalog);
        let host = Host::new(settings, place.runtime.clone(), catalog, store, people, place.folders.clone())
            .map_err(|e| text(&e))?;
        place.runtime.ping().await.map_err(|e| format!("Docker is needed for this: {e}"))?;
        let running = tokio::spawn(host.clone().run());
        let mut state = host.health().subscribe();
        let up = tokio::time::timeout(START, state.wait_for(|s| *s == State::Up)).await.is_ok();
        let kit = Self { subject, place, host, service, running };
        if up { Ok(kit) } else { Err(kit.end().await.err().unwrap_or_else(|| "the host did not start".to_owned())) }
    }

    /// Removes everything, and looks whether anything is left.
    async fn end(self) -> Result<&'static str, String> {
        for known in self.host.people().agents() {
            self.let_go(&known.agent).await;
        }
        self.host.shut_down().await;
        self.running.abort();
        let labels = self.subject.names.base_labels();
        let labels: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let units = self.place.runtime.list(&labels).await.map_err(|e| e.to_string())?;
        let volumes = self.place.runtime.volumes(&labels).await.map_err(|e| e.to_string())?;
        let left: Vec<_> = units.into_iter().map(|u| u.name).chain(volumes).collect();
        if left.is_empty() { Ok("nothing is left") } else { Err(format!("it left {}", left.join(", "))) }
    }

    async fn all(&self, report: &mut Report<'_>) {
        let known = self.service.features();
        let chosen = self.place.features.clone().unwrap_or_else(|| known.clone());
        for feature in known.iter().filter(|f| !chosen.contains(f)) {
            report.add(
                format!("sandbox: `{feature}`"),
                Verdict::Skipped,
                "not one of the features that were asked for",
            );
        }
        let mut bare = None;
        for wish in Wish::each(&chosen) {
            let made = self.make(&wish).await;
            let looked = match &made {
                Ok(made) => self.look(made, &wish).await,
                Err(why) => Err(why.clone()),
            };
            report.settle(format!("sandbox: {wish}"), looked);
            match made {
                Ok(made) if wish.features.is_empty() => {
                    self.passwords(&made, report).await;
                    bare = Some(made);
                }
                Ok(made) => {
                    if let ([feature], Some(bare)) = (&*wish.features, &bare) {
                        report.settle(format!("verify: `{feature}`"), self.told_apart(feature, &made, bare).await);
                    }
                    self.let_go(&made.agent).await;
                }
                Err(_) => {}
            }
        }
        if let Some(bare) = &bare {
            self.neighbour(bare, report).await;
            self.let_go(&bare.agent).await;
        }
        self.superuser(report).await;
        self.retained(&chosen, report).await;
    }

    /// Has the host make what is wished for, for an agent of its own.
    async fn make(&self, wish: &Wish) -> Result<Made, String> {
        let agent =
            AgentName::new(format!("kit-{}", sandbar_core::secret::random_hex(6))).map_err(|e| e.to_string())?;
        let project = ProjectName::new(project(wish)).map_err(|e| e.to_string())?;
        self.host.people().register(&agent, ROLE, BY).map_err(told)?;
        self.host.begin_work(BY, std::slice::from_ref(&project), &agent, &project).await.map_err(told)?;
        let made = self.ask(&agent, wish).await;
        if made.is_err() {
            self.let_go(&agent).await;
        }
        made
    }

    /// Asks for the agent's sandbox, which the host makes or finds.
    async fn ask(&self, agent: &AgentName, wish: &Wish) -> Result<Made, String> {
        let begun = Instant::now();
        let features = [(self.service.name.to_string(), wish.features.iter().cloned().collect())].into();
        let evidence = self.host.request_sandbox(agent, None, &features, None).await.map_err(told)?;
        let took = begun.elapsed();
        let registry = self.host.registry();
        let lives = registry.owners_of(agent).into_iter().filter_map(|owner| registry.snapshot(&owner).live);
        let serving = lives.into_iter().find_map(|mut live| live.services.remove(&self.service.name));
        let serving = serving.ok_or("the host has no books of what it made")?;
        let checked = self.service.recipe(&wish.features, wish.retained, wish.superuser).await.map_err(told)?;
        let unit = self.place.runtime.inspect(&serving.id).await.map_err(told)?;
        let evidence =
            evidence.get(self.service.name.as_str()).cloned().ok_or("the host does not tell what it made")?;
        Ok(Made { agent: agent.clone(), address: unit.address.unwrap_or_default(), serving, checked, evidence, took })
    }

    async fn let_go(&self, agent: &AgentName) {
        // What could not be removed is found by the teardown.
        let _ = self.host.remove_agent(agent).await;
    }

    /// Looks at a sandbox that was just made: is the same one found again, do its steps of verification still hold, and does
    /// the agent get every variable?
    async fn look(&self, made: &Made, wish: &Wish) -> Result<String, String> {
        let again = self.ask(&made.agent, wish).await?;
        if again.evidence != made.evidence {
            return Err("asked again, the host had to make it anew".to_owned());
        }
        for step in &made.checked.recipe().verify {
            if !self.holds(&step.run, made, made.serving.secrets.as_ref(), made, Inherit::No).await? {
                return Err(format!("`{}` held once and does not hold again", step.name));
            }
        }
        let env = &made.evidence.env;
        let prefix = self.subject.names.variable_prefix();
        for variable in &made.serving.variables {
            let name = format!("{}{}", if variable.prefixed { &prefix } else { "" }, variable.name);
            let value = env.get(&name);
            if value.is_none_or(|value| value.is_empty() && !variable.value.is_empty()) {
                return Err(format!("the agent does not get the variable {name}"));
            }
        }
        let steps = made.checked.recipe().setup.len() + made.checked.recipe().verify.len();
        Ok(format!("made in {:.1} s, {steps} steps, {} variables", made.took.as_secs_f64(), env.len()))
    }

    /// Who gets in: the recipe's own probe, with other passwords in its environment.
    async fn passwords(&self, made: &Made, report: &mut Report<'_>) {
        if made.account().is_none() || made.serving.port.is_none() {
            return report.add("password", Verdict::Skipped, "it serves on no port, or has no account");
        }
        let right = made.serving.secrets.as_ref();
        for (name, secrets, expected) in [
            ("password: right", right.cloned(), true),
            ("password: wrong", made.account().map(Secrets::fresh), false),
            ("password: empty", made.account().map(empty), false),
        ] {
            let answer = self.holds(&made.checked.recipe().ready, made, secrets.as_ref(), made, Inherit::Yes).await;
            report.settle(name, answer.and_then(|held| expect(held, expected)));
        }
        let ready = &made.checked.recipe().ready;
        let elsewhere = self.holds_at(ready, made, right, made, NOWHERE, Inherit::Yes).await;
        let result = elsewhere.and_then(|held| match held {
            true => Err("the probe succeeds where there is nothing at {address}: it asks somewhere else".to_owned()),
            false => Ok("the probe fails where there is nothing at {address}"),
        });
        report.settle("address", result);
    }

    /// Who gets in from another container: one more sandbox of the service, from which the probe asks the first.
    async fn neighbour(&self, first: &Made, report: &mut Report<'_>) {
        if first.account().is_none() || first.serving.port.is_none() {
            return;
        }
        let made = self.make(&Wish::default()).await;
        let result = async {
            let other = &made.as_ref().map_err(Clone::clone)?;
            let ready = &first.checked.recipe().ready;
            for (whose, secrets, expected) in [
                ("its own", first.serving.secrets.clone(), true),
                ("another sandbox's", other.serving.secrets.clone(), false),
                ("an empty", first.account().map(empty), false),
            ] {
                let held = self.holds(ready, first, secrets.as_ref(), other, Inherit::Yes).await?;
                expect(held, expected).map_err(|why| format!("with {whose} password: {why}"))?;
            }
            Ok::<_, String>("from another container its own password is taken, another one and an empty one are not")
        };
        report.settle("neighbour", result.await);
        if let Ok(made) = &made {
            self.let_go(&made.agent).await;
        }
    }

    /// Whether the steps that confirm a feature fail where it was not activated. Otherwise they confirm nothing.
    async fn told_apart(&self, feature: &str, made: &Made, bare: &Made) -> Result<&'static str, String> {
        let of_feature = |step: &&Step| step.feature.as_deref() == Some(feature);
        for step in made.checked.recipe().verify.iter().filter(of_feature) {
            if !self.holds(&step.run, bare, bare.serving.secrets.as_ref(), bare, Inherit::No).await? {
                return Ok("confirmed where it was activated, and not where it was not");
            }
        }
        Err("its steps of verification succeed in a sandbox without it, so they confirm nothing".to_owned())
    }

    /// One for an account without restrictions, where that makes a difference.
    async fn superuser(&self, report: &mut Report<'_>) {
        let wish = Wish { superuser: true, ..Wish::default() };
        let name = format!("sandbox: {wish}");
        let ordinary = self.service.recipe(&[], false, false).await.ok();
        let recipe = match self.service.recipe(&[], false, true).await {
            Ok(recipe) => recipe,
            Err(e) => return report.add(name, Verdict::Skipped, format!("the engine refuses: {e}")),
        };
        if ordinary.is_some_and(|o| o.recipe() == recipe.recipe()) {
            return report.add(name, Verdict::Skipped, "the engine makes no difference");
        }
        let made = self.make(&wish).await;
        let looked = match &made {
            Ok(made) => self.look(made, &wish).await,
            Err(why) => Err(why.clone()),
        };
        report.settle(name, looked);
        if let Ok(made) = made {
            self.let_go(&made.agent).await;
        }
    }

    /// One that is retained: made, asleep and awake again, made anew around its data, deleted.
    async fn retained(&self, chosen: &[String], report: &mut Report<'_>) {
        let mut features = chosen.to_vec();
        features.sort();
        let wish = Wish { features, retained: true, superuser: false };
        let name = format!("sandbox: {wish}");
        if let Err(e) = self.service.recipe(&wish.features, true, false).await {
            return report.add(name, Verdict::Skipped, format!("the engine refuses: {e}"));
        }
        let made = match self.make(&wish).await {
            Ok(made) => made,
            Err(why) => return report.add(name, Verdict::Failed, why),
        };
        report.settle(name, self.look(&made, &wish).await);
        let same = |again: Made| match again.evidence.password == made.evidence.password {
            true => Ok(again),
            false => Err("the passwords are others".to_owned()),
        };
        let woken = async {
            self.host.release(&made.agent, "the kit lets it sleep").await;
            let again = same(self.ask(&made.agent, &wish).await?)?;
            Ok::<_, String>(format!("awake again in {:.1} s, with the same password", again.took.as_secs_f64()))
        };
        report.settle("retained: asleep", woken.await);
        let anew = async {
            self.place.runtime.remove(&made.serving.id, Duration::from_secs(5)).await.map_err(told)?;
            let again = same(self.ask(&made.agent, &wish).await?)?;
            if again.serving.id == made.serving.id {
                return Err("the container was not removed".to_owned());
            }
            self.look(&again, &wish).await?;
            Ok(format!("made anew around its data in {:.1} s, with the same password", again.took.as_secs_f64()))
        };
        report.settle("retained: anew", anew.await);
        self.let_go(&made.agent).await;
    }

    /// Whether a command of `made` is fulfilled, with these passwords, run in the container of `runner`.
    async fn holds(
        &self,
        command: &Command,
        made: &Made,
        secrets: Option<&Secrets>,
        runner: &Made,
        inherit: Inherit,
    ) -> Result<bool, String> {
        let address = if made.address.is_empty() { "none" } else { &made.address };
        self.holds_at(command, made, secrets, runner, address, inherit).await
    }

    async fn holds_at(
        &self,
        command: &Command,
        made: &Made,
        secrets: Option<&Secrets>,
        runner: &Made,
        address: &str,
        inherit: Inherit,
    ) -> Result<bool, String> {
        let mut command = command.clone();
        if let Inherit::Yes = inherit {
            // The variables of the container itself hold its password, and a command may take it from there. They are filled in
            // for this command too, so that it finds no other password than the one that is tried.
            let container = &made.checked.recipe().container.env;
            let own: Vec<_> = command.env.iter().map(|(name, _)| name.clone()).collect();
            let inherited = container.iter().filter(|(name, _)| !own.contains(name)).cloned();
            command.env.splice(0..0, inherited.collect::<Vec<_>>());
        }
        let plan =
            plan::exec(&command, &made.checked, secrets, address, self.subject.names.namespace()).map_err(told)?;
        match self.place.runtime.exec(&runner.serving.id, &plan).await {
            Ok(output) => Ok(plan::meets(&output, &command.expect)),
            // Nobody answered it in time: it was not fulfilled.
            Err(RuntimeError::Deadline(_)) => Ok(false),
            Err(e) => Err(format!("the command could not be run: {e}")),
        }
    }
}

/// Whether a command gets the variables of the container with the passwords that are tried.
#[derive(Clone, Copy)]
enum Inherit {
    Yes,
    No,
}

fn empty(account: &Account) -> Secrets {
    Secrets { password: Secret::new(""), admin: account.admin.then(|| Secret::new("")) }
}

fn expect(held: bool, expected: bool) -> Result<&'static str, String> {
    match (held, expected) {
        (true, true) => Ok("the probe succeeds"),
        (false, false) => Ok("the probe fails, as it must"),
        (false, true) => Err("the probe fails".to_owned()),
        (true, false) => {
            Err("the probe succeeds: the service lets anybody in, or the probe does not use its password".to_owned())
        }
    }
}

fn told(e: impl std::fmt::Display + 'static) -> String {
    let any: &dyn std::any::Any = &e;
    match any.downcast_ref::<Error>().and_then(|e| e.details.as_ref()).and_then(|d| d.log.last()) {
        Some(last) => format!("{e}; it said: {last}"),
        None => e.to_string(),
    }
}
