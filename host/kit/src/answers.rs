//! What can be told from an engine's answers alone.

use std::collections::BTreeSet;

use sandbar_core::catalog::Service;
use sandbar_core::check::{Grants, check};
use sandbar_core::engine::{EngineError, Recipe, Request};
use sandbar_core::error::listed;
use sandbar_core::name::{EngineSlug, ServiceName};
use sandbar_core::template::Placeholder;

use crate::report::{Report, Verdict};
use crate::wish::Wish;
use crate::{Subject, answered, grants};

const MIB: u64 = 1 << 20;

/// Memory limits that operators set, from the least that a host takes to what no machine has; one is no round number.
const MEMORY: [u64; 9] =
    [64 * MIB, 128 * MIB, 256 * MIB, 384 * MIB, 512 * MIB, 777_777_777, 4 << 30, 64 << 30, 1 << 40];

/// Values that nobody means, for every setting. None of them may break an engine; what is made of one that is taken is
/// checked like any other recipe.
const ODD_VALUES: [&str; 12] = [
    "",
    " ",
    "\n",
    "two\nlines",
    "'; $(id) \"`id`\\",
    "{",
    "}{password}{admin_password}",
    "-1",
    "99999999999999999999",
    "nul\0",
    "é\u{202e}\u{0}",
    concat!("../../../../../../../../../../../../../../../../", "a/very/long/path/that/nobody/has/or/ever/will/have"),
];

/// A feature that no engine has: too long to be one.
const NO_FEATURE: &str = "no-engine-has-a-feature-of-this-name";
/// A setting that no engine has.
const NO_SETTING: &str = "no-engine-has-a-setting-of-this-name";

/// Asks everything, and answers what an operator would have to grant for all of it.
pub async fn answers(subject: &Subject, report: &mut Report<'_>) -> Grants {
    let descriptor = subject.engine.descriptor();
    if descriptor != subject.elsewhere.descriptor() {
        report.add("describe", Verdict::Failed, DEPENDS);
    } else {
        let (features, settings) = (descriptor.features.len(), descriptor.settings.len());
        let detail =
            format!("{} {}: {features} features, {settings} settings", descriptor.name, descriptor.version.trim());
        report.add("describe", Verdict::Ok, detail);
    }
    let features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    let mut granted = Grants::default();
    let mut recipes = Vec::new();
    for wish in Wish::each(&features) {
        let result = recipe(subject, &wish, &mut granted, &mut recipes).await;
        report.settle(format!("recipe: {wish}"), result);
    }
    report.settle("feature: unknown", unknown_feature(subject, &features).await);
    report.settle("setting: unknown", unknown_setting(subject).await);
    for setting in &descriptor.settings {
        report.settle(format!("setting: {}", setting.name), bad_setting(subject, &setting.name).await);
    }
    report.settle("memory", memory(subject, &features).await);
    probe(&recipes, report);
    variables(&recipes, report);
    granted
}

/// Whether the recipes pass with what an operator in fact grants.
pub async fn granted(subject: &Subject, grants: &Grants, report: &mut Report<'_>) {
    let descriptor = subject.engine.descriptor();
    let features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    let mut missing = BTreeSet::new();
    for wish in Wish::each(&features).iter().flat_map(Wish::kinds) {
        let request = subject.request(&wish);
        if let Ok(recipe) = subject.engine.plan(&request).await
            && let Err(refusal) = check(recipe, &request, grants, &subject.names)
            && refusal.line.is_some()
        {
            missing.insert(refusal.to_string());
        }
    }
    let all: Vec<_> = missing.into_iter().collect();
    let result = if all.is_empty() { Ok("all that it asks for is granted") } else { Err(all.join("; ")) };
    report.settle("grants", result);
}

const DEPENDS: &str = "the answer depends on the clock or on random numbers, of which an engine must make no use";

/// One combination of features in every kind of sandbox, each asked three times.
async fn recipe(
    subject: &Subject,
    wish: &Wish,
    granted: &mut Grants,
    recipes: &mut Vec<(Wish, Recipe)>,
) -> Result<String, String> {
    let mut image = String::new();
    let mut refused = Vec::new();
    for wish in wish.kinds() {
        let at = |why: String| if wish.kind().is_empty() { why } else { format!("{}: {why}", wish.kind()) };
        let request = subject.request(&wish);
        let answer = subject.engine.plan(&request).await;
        if subject.engine.plan(&request).await != answer {
            return Err(at("asked the same thing twice, it answers differently".to_owned()));
        }
        if subject.elsewhere.plan(&request).await != answer {
            return Err(at(DEPENDS.to_owned()));
        }
        match answer {
            Ok(recipe) => {
                let checked = subject.check(&recipe, &request).map_err(at)?;
                if image.is_empty() {
                    image = format!("image {}", checked.image());
                }
                grants::add(granted, &recipe, &subject.names);
                recipes.push((wish, recipe));
            }
            // Whether it can be retained, or knows accounts without restrictions, is the engine's to say.
            Err(e) if answered(&e) && !wish.kind().is_empty() => refused.push(at(format!("refused, {e}"))),
            Err(e) => return Err(at(format!("there is no recipe: {e}"))),
        }
    }
    Ok(std::iter::once(image).chain(refused).collect::<Vec<_>>().join("; "))
}

async fn unknown_feature(subject: &Subject, features: &[String]) -> Result<String, String> {
    let mut among = features.to_vec();
    among.push(NO_FEATURE.to_owned());
    among.sort();
    for features in [vec![NO_FEATURE.to_owned()], among] {
        for wish in (Wish { features, ..Wish::default() }).kinds() {
            match subject.engine.plan(&subject.request(&wish)).await {
                Err(EngineError::UnsupportedFeature(named)) if named == NO_FEATURE => {}
                // A kind of sandbox that it refuses altogether.
                Err(EngineError::Other(_)) if !wish.kind().is_empty() => {}
                Err(e) => return Err(format!("it answers `{e}` and not that the feature cannot be had")),
                Ok(_) => {
                    return Err("it takes a feature that it does not have; the answer is `unsupported-feature`".into());
                }
            }
        }
    }
    Ok("refused".to_owned())
}

/// A host refuses it before the engine is asked. An engine that is asked nevertheless may say anything, but must not break.
async fn unknown_setting(subject: &Subject) -> Result<String, String> {
    let descriptor = subject.engine.descriptor();
    let chosen = [(NO_SETTING.to_owned(), "x".to_owned())].into();
    let (name, slug) = (ServiceName::new(&descriptor.name), EngineSlug::new(&descriptor.slug));
    let (name, slug) = (name.map_err(|e| e.to_string())?, slug.map_err(|e| e.to_string())?);
    let (engine, names) = (subject.engine.clone(), subject.names.clone());
    let Err(why) = Service::new(name, slug, engine, Grants::default(), &chosen, subject.limits, names).await else {
        return Err("the host takes it".to_owned());
    };
    let mut more = subject.request(&Wish::default());
    more.settings.push((NO_SETTING.to_owned(), "x".to_owned()));
    let none = Request { settings: Vec::new(), ..more.clone() };
    for (what, request) in [("with one", more), ("without any", none)] {
        if let Err(e @ EngineError::Broken(_)) = subject.engine.plan(&request).await {
            return Err(format!("asked {what}, {e}"));
        }
    }
    Ok(format!("the host refuses it: {why}"))
}

/// The odd values, one after another, in place of one setting.
async fn bad_setting(subject: &Subject, name: &str) -> Result<String, String> {
    let (mut by_engine, mut by_host, mut taken) = (0, 0, 0);
    for value in ODD_VALUES {
        let mut request = subject.request(&Wish::default());
        for setting in request.settings.iter_mut().filter(|s| s.0 == name) {
            value.clone_into(&mut setting.1);
        }
        match subject.engine.plan(&request).await {
            Ok(recipe) => match subject.check(&recipe, &request) {
                Ok(_) => taken += 1,
                Err(_) => by_host += 1,
            },
            Err(EngineError::BadSetting(named, _)) if named == name => by_engine += 1,
            Err(e) => {
                return Err(format!("for the value {value:?} it answers `{e}` and not `bad-setting` of `{name}`"));
            }
        }
    }
    Ok(format!(
        "{} odd values: {by_engine} refused by the engine, {by_host} by the host, {taken} taken",
        ODD_VALUES.len()
    ))
}

/// Every limit: what an operator usually has and more must do, and what is less may be refused.
async fn memory(subject: &Subject, features: &[String]) -> Result<String, String> {
    let wishes = Wish::each(features);
    let least = subject.limits.memory_bytes;
    let mut refused = None;
    for memory_bytes in MEMORY {
        for wish in wishes.iter().take(1).chain(wishes.last()).flat_map(Wish::kinds) {
            let request = Request { memory_bytes, ..subject.request(&wish) };
            let at = |why: String| format!("with {} MiB, {wish}: {why}", memory_bytes / MIB);
            match subject.engine.plan(&request).await {
                Ok(recipe) => drop(subject.check(&recipe, &request).map_err(at)?),
                Err(e) if answered(&e) && (memory_bytes < least || !wish.kind().is_empty()) => {
                    if wish.kind().is_empty() {
                        refused = Some(at(format!("refused, {e}")));
                    }
                }
                Err(e) => return Err(at(e.to_string())),
            }
        }
    }
    let all = format!("{} limits from {} MiB to {} GiB", MEMORY.len(), MEMORY[0] / MIB, MEMORY[MEMORY.len() - 1] >> 30);
    Ok(std::iter::once(all).chain(refused).collect::<Vec<_>>().join("; "))
}

/// Whether a probe can know what it says: that the service answers this account over its address.
fn probe(recipes: &[(Wish, Recipe)], report: &mut Report<'_>) {
    let mut judged = 0;
    for (wish, recipe) in recipes {
        let (container, ready) = (&recipe.container, &recipe.ready);
        let holds = |p: Placeholder| {
            let inherited = container.env.iter().map(|(_, value)| value);
            let own = ready.env.iter().map(|(_, value)| value).chain(&ready.argv);
            inherited.chain(own).any(|text| text.contains(&p.to_string()))
        };
        if container.port.is_some() && !holds(Placeholder::Address) {
            let why = "it makes no use of {address}: over the loopback many services answer before they are ready, or anybody";
            return report.add("probe", Verdict::Failed, format!("{wish}: {why}"));
        }
        if container.account.is_some() && !holds(Placeholder::Password) {
            let why = "it has no {password}, so it cannot tell whether this account gets in";
            return report.add("probe", Verdict::Failed, format!("{wish}: {why}"));
        }
        judged += usize::from(container.port.is_some());
    }
    match judged {
        0 => report.add("probe", Verdict::Skipped, "it serves on no port"),
        _ => report.add("probe", Verdict::Ok, "as the account, over the container's address"),
    }
}

/// Whether an agent gets all that it needs to connect.
fn variables(recipes: &[(Wish, Recipe)], report: &mut Report<'_>) {
    let mut needed = false;
    for (wish, recipe) in recipes {
        let account = recipe.container.account.as_ref();
        let needs = [
            (Placeholder::Host, recipe.container.port.is_some()),
            (Placeholder::Port, recipe.container.port.is_some()),
            (Placeholder::Password, account.is_some()),
            (Placeholder::User, account.is_some_and(|a| a.user.is_some())),
            (Placeholder::Database, account.is_some_and(|a| a.database.is_some())),
        ];
        needed |= needs.iter().any(|(_, needed)| *needed);
        let missing: Vec<_> = needs
            .into_iter()
            .filter(|(_, needed)| *needed)
            .map(|(placeholder, _)| placeholder.to_string())
            .filter(|text| !recipe.variables.iter().any(|v| v.value.contains(text)))
            .collect();
        if !missing.is_empty() {
            let why =
                format!("{wish}: no variable holds {}, so an agent does not learn it from them", listed(&missing));
            return report.add("variables", Verdict::Failed, why);
        }
    }
    let names = recipes.first().map(|(_, r)| r.variables.iter().map(|v| v.name.as_str()).collect::<Vec<_>>());
    match needed {
        true => report.add("variables", Verdict::Ok, names.unwrap_or_default().join(" ")),
        false => report.add("variables", Verdict::Skipped, "it serves on no port and has no account"),
    }
}
