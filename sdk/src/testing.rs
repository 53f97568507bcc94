//! For the unit tests of an engine: requests as a host makes them, and the rules that every recipe must keep.
//!
//! The host checks recipes again, and more of them, against what an operator has granted; a recipe that passes here may
//! still ask for something that nobody grants it. Nothing here ends up in a component.

use std::collections::BTreeSet;

use crate::template::placeholders;
use crate::{Command, Container, Descriptor, Engine, Recipe, Request, Step};

/// What may stand in most of a container's templates.
const NAMES: &[&str] = &["user", "database", "port", "namespace"];

/// What may stand in a command's arguments.
const ARGUMENTS: &[&str] = &["address", "port", "user", "database"];

/// Asks for the bare, throwaway service with 512 MiB and every setting's default. Its fields are public: change them to
/// ask for something else.
#[must_use]
pub fn request<E: Engine>() -> Request {
    let settings = E::describe().settings.into_iter().map(|setting| (setting.name, setting.default)).collect();
    Request { features: Vec::new(), retained: false, superuser: false, memory_bytes: 512 << 20, settings }
}

/// Asks the engine for everything that a host may ask of it with the default settings, and checks the answers.
///
/// # Panics
///
/// With everything that breaks the contract, one line each.
pub fn check<E: Engine>() {
    let descriptor = E::describe();
    let mut problems = describe_problems(&descriptor);
    if E::describe() != descriptor {
        problems.insert("`describe` does not always answer the same".to_owned());
    }
    let all: BTreeSet<String> = descriptor.features.iter().map(|feature| feature.name.clone()).collect();
    let alone = all.iter().map(|name| vec![name.clone()]);
    let wishes: Vec<Vec<String>> = [Vec::new(), all.iter().cloned().collect()].into_iter().chain(alone).collect();
    for features in wishes {
        for (retained, superuser) in [(false, false), (false, true), (true, false), (true, true)] {
            let request = Request { features: features.clone(), retained, superuser, ..request::<E>() };
            let Ok(recipe) = E::plan(request.clone()) else { continue };
            problems.extend(recipe_problems(&request, &recipe));
            if E::plan(request) != Ok(recipe) {
                problems.insert("`plan` does not always answer the same".to_owned());
            }
        }
    }
    if let Err(error) = E::plan(request::<E>()) {
        problems.insert(format!("the bare service cannot be had: {error:?}"));
    }
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "the engine breaks the contract:\n{}", problems.join("\n"));
}

/// What a descriptor does that the contract does not allow.
fn describe_problems(descriptor: &Descriptor) -> BTreeSet<String> {
    let mut rules = Rules::default();
    rules.name("the name", &descriptor.name, 32, "-");
    rules.name("the slug", &descriptor.slug, 8, "");
    rules.at_most("features", descriptor.features.len(), 32);
    rules.at_most("settings", descriptor.settings.len(), 32);
    for feature in &descriptor.features {
        rules.name("a feature", &feature.name, 32, "_-");
        rules.line("a feature's summary", &feature.summary);
    }
    for setting in &descriptor.settings {
        rules.name("a setting", &setting.name, 32, "_-");
        rules.line("a setting's summary", &setting.summary);
    }
    rules.unique("feature", descriptor.features.iter().map(|feature| feature.name.as_str()));
    rules.unique("setting", descriptor.settings.iter().map(|setting| setting.name.as_str()));
    rules.line("the summary", &descriptor.summary);
    rules.broken
}

/// What a recipe does that the contract does not allow.
fn recipe_problems(request: &Request, recipe: &Recipe) -> BTreeSet<String> {
    let mut rules = Rules { absent: absent(&recipe.container), ..Rules::default() };
    rules.container(request, &recipe.container);
    rules.command("the probe", &recipe.ready);
    rules.within("deadline-ms", recipe.deadline_ms, 1_000, 300_000);
    rules.at_most("steps of setup", recipe.setup.len(), 32);
    rules.at_most("steps of verify", recipe.verify.len(), 32);
    rules.at_most("variables", recipe.variables.len(), 32);
    for step in recipe.setup.iter().chain(&recipe.verify) {
        rules.step(request, step);
    }
    for feature in &request.features {
        rules.that(
            recipe.verify.iter().any(|step| step.feature.as_ref() == Some(feature)),
            format!("no step of verify confirms the feature `{feature}`"),
        );
    }
    for prefixed in [true, false] {
        let those = recipe.variables.iter().filter(|variable| variable.prefixed == prefixed);
        rules.unique("variable", those.map(|variable| variable.name.as_str()));
    }
    for variable in &recipe.variables {
        let fits = variable.name.len() <= 64
            && variable.name.starts_with(|c: char| c.is_ascii_uppercase())
            && variable.name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
        rules.that(fits, format!("`{}` is no name of a variable", variable.name));
        let allowed = ["user", "password", "database", "host", "port", "namespace"];
        rules.template(&format!("the variable {}", variable.name), &variable.value, &allowed);
    }
    rules.broken
}

/// The placeholders for which a container gives the host nothing to fill in.
fn absent(container: &Container) -> Vec<&'static str> {
    let account = container.account.as_ref();
    let given = [
        ("user", account.is_some_and(|account| account.user.is_some())),
        ("database", account.is_some_and(|account| account.database.is_some())),
        ("password", account.is_some()),
        ("admin_password", account.is_some_and(|account| account.admin)),
        ("port", container.port.is_some()),
    ];
    given.into_iter().filter(|(_, given)| !given).map(|(name, _)| name).collect()
}

/// Collects what is broken.
#[derive(Default)]
struct Rules {
    broken: BTreeSet<String>,
    /// Placeholders that stand for nothing in this recipe.
    absent: Vec<&'static str>,
}

impl Rules {
    fn that(&mut self, kept: bool, otherwise: String) {
        if !kept {
            self.broken.insert(otherwise);
        }
    }

    fn name(&mut self, what: &str, name: &str, length: usize, more: &str) {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
        let kept = (1..=length).contains(&name.len()) && name.chars().all(fits);
        self.that(kept, format!("{what}, `{name}`, has a character that it may not have, or too many of them"));
    }

    fn line(&mut self, what: &str, text: &str) {
        self.that(!text.contains(char::is_control), format!("{what} is more than one line"));
    }

    fn at_most(&mut self, what: &str, count: usize, most: usize) {
        self.that(count <= most, format!("there are more than {most} {what}"));
    }

    fn within(&mut self, what: &str, value: u32, least: u32, most: u32) {
        self.that((least..=most).contains(&value), format!("{what} is {value}; the host allows {least} to {most}"));
    }

    fn unique<'a>(&mut self, what: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for name in names {
            self.that(seen.insert(name), format!("the {what} `{name}` appears twice"));
        }
    }

    fn template(&mut self, what: &str, template: &str, allowed: &[&str]) {
        match placeholders(template) {
            Err(why) => self.that(false, format!("{what}: {why}")),
            Ok(found) => {
                for name in found {
                    self.that(allowed.contains(&name), format!("{what} may not hold {{{name}}}"));
                    let there = !self.absent.contains(&name);
                    self.that(there, format!("{what} holds {{{name}}}, but the container has no such thing"));
                }
            }
        }
    }

    fn path(&mut self, what: &str, path: &str) {
        let kept = path.starts_with('/') && !path.split('/').any(|part| part == "." || part == "..");
        self.that(kept, format!("{what}, `{path}`, is no absolute path"));
    }

    fn container(&mut self, request: &Request, container: &Container) {
        self.template("the image", &container.image, &["namespace"]);
        let allowed = ["user", "password", "admin_password", "database", "port", "namespace"];
        for (name, value) in &container.env {
            self.template(&format!("the container's {name}"), value, &allowed);
        }
        self.unique("container's variable", container.env.iter().map(|(name, _)| name.as_str()));
        self.at_most("files", container.files.len(), 16);
        self.at_most("data directories", container.data.len(), 4);
        let size: usize = container.files.iter().map(|file| file.content.len()).sum();
        self.that(size <= 256 << 10, "the files have more than 256 KiB".to_owned());
        for file in &container.files {
            self.path("a file", &file.path);
            self.that(file.mode <= 0o777, format!("the mode of {} is more than 0o777", file.path));
            self.template(&file.path, &file.content, NAMES);
            let hidden = container.data.iter().any(|data| file.path.starts_with(&format!("{}/", data.path)));
            self.that(!hidden, format!("{} is under a data directory", file.path));
        }
        for data in &container.data {
            self.path("a data directory", &data.path);
        }
        let tmpfs = container.data.iter().fold(0_u64, |sum, data| sum.saturating_add(data.tmpfs_bytes));
        self.that(
            tmpfs <= request.memory_share(2),
            "the data directories take more than half of the memory".to_owned(),
        );
        let shm = container.shm_bytes <= request.memory_share(8);
        self.that(shm, "/dev/shm takes more than an eighth of the memory".to_owned());
        self.that(container.more.is_empty(), "this version knows no key in the container's `more`".to_owned());
    }

    fn command(&mut self, what: &str, command: &Command) {
        self.that(!command.argv.is_empty(), format!("{what} has no program"));
        for argument in &command.argv {
            self.template(&format!("an argument of {what}"), argument, ARGUMENTS);
        }
        let allowed = ["user", "password", "admin_password", "database", "address", "port", "namespace"];
        for (name, value) in &command.env {
            self.template(&format!("the {name} of {what}"), value, &allowed);
        }
        self.unique("command's variable", command.env.iter().map(|(name, _)| name.as_str()));
        self.within(&format!("the timeout of {what}"), command.timeout_ms, 100, 60_000);
    }

    fn step(&mut self, request: &Request, step: &Step) {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || " _.-".contains(c);
        let kept = (1..=64).contains(&step.name.len()) && step.name.chars().all(fits);
        self.that(kept, format!("a step may not be called `{}`", step.name));
        let wanted = step.feature.as_ref().is_none_or(|feature| request.wants(feature));
        self.that(wanted, format!("`{}` is about a feature that nobody asked for", step.name));
        self.command(&format!("`{}`", step.name), &step.run);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::{Account, Error, Variable};

    struct Good;

    impl Engine for Good {
        fn describe() -> Descriptor {
            Descriptor::new("good", "good", "1", "Good").feature("more", "More").setting("image", "good:1", "Which")
        }

        fn plan(request: Request) -> Result<Recipe, Error> {
            let container = Container::new(request.setting("image")?)
                .env("PASSWORD", "{password}")
                .account(Account::password_only());
            let recipe = Recipe::new(container, Command::new(["ask", "{address}"]).env("PASSWORD", "{password}"));
            Ok(request.features.iter().fold(recipe, |recipe, feature| {
                recipe.verify(Step::confirm(feature, Command::new(["confirm", feature])))
            }))
        }
    }

    #[test]
    fn a_good_engine_passes() {
        check::<Good>();
    }

    #[test]
    fn each_rule_is_checked() {
        let good = || Good::plan(request::<Good>()).unwrap();
        let broken = |change: fn(&mut Recipe)| {
            let mut recipe = good();
            change(&mut recipe);
            recipe_problems(&request::<Good>(), &recipe).into_iter().collect::<Vec<_>>().join("; ")
        };
        assert_eq!(broken(|_| ()), "");
        assert_eq!(
            broken(|recipe| recipe.ready.argv.push("{password}".to_owned())),
            "an argument of the probe may not hold {password}"
        );
        assert_eq!(
            broken(|recipe| recipe.ready.argv.push("{user}".to_owned())),
            "an argument of the probe holds {user}, but the container has no such thing"
        );
        assert_eq!(
            broken(|recipe| recipe.container.image = "{x".to_owned()),
            "the image: a brace stands alone in `{x`"
        );
        assert_eq!(
            broken(|recipe| recipe.variables.push(Variable::plain("url", "{admin_password}"))),
            "`url` is no name of a variable; the variable url holds {admin_password}, but the container has no such \
             thing; the variable url may not hold {admin_password}"
        );
        assert_eq!(
            broken(|recipe| recipe.container = recipe.container.clone().data_dir("/d", 1 << 40).file("/d/f", 0o644, "")),
            "/d/f is under a data directory; the data directories take more than half of the memory"
        );
        assert_eq!(
            broken(|recipe| recipe.verify.push(Step::confirm("more", Command::new(["x"]).timeout_ms(1)))),
            "`confirm more` is about a feature that nobody asked for; \
             the timeout of `confirm more` is 1; the host allows 100 to 60000"
        );
        let asked = Request { features: vec!["more".to_owned()], ..request::<Good>() };
        assert_eq!(
            recipe_problems(&asked, &good()).into_iter().collect::<Vec<_>>(),
            ["no step of verify confirms the feature `more`"]
        );
    }
}
