//! `sandbar check`: what a host with this configuration would do and would refuse, without starting one. It needs neither
//! Docker nor the state directory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use sandbar_core::catalog::{Broken, Catalog, Service};
use sandbar_core::name::{Installation, Names, ServiceName};
use toml::de::{DeTable, DeValue};

use crate::config::{self, Config, Read, Refused};
use crate::engines::Engines;
use crate::settings::{self, Problem};

/// What was found.
pub(crate) struct Report {
    /// For people.
    pub(crate) text: String,
    /// How many things have to be changed.
    pub(crate) problems: usize,
}

/// Looks at a configuration. What one stage refuses is taken out for the next ones, so that all of them are heard.
///
/// # Errors
/// When the file cannot be read at all.
pub(crate) async fn check(path: &Path) -> Result<Report> {
    let text = config::text(path)?;
    let Read { mut config, refused } = config::read(&text, path)?;
    let mut lines: Vec<_> = refused.iter().map(|r| (r.place(&text), "error", r.to_string())).collect();
    let mut problems = refused.len();
    let mut rest = String::new();
    // Without TOML there is nothing to look at.
    if let Ok(places) = DeTable::parse(&text) {
        let found = look(&mut config, &refused).await?;
        problems += found.problems.len();
        for (kind, found) in [("error", found.problems), ("note", found.notes)] {
            let place = |at: &str| place(&text, places.get_ref(), at);
            lines.extend(found.iter().map(|found| (place(&found.at), kind, found.to_string())));
        }
        rest = found.rest;
    }
    lines.sort_unstable();
    let mut report = String::new();
    for ((line, column), kind, found) in lines {
        writeln!(report, "{}:{line}:{column}: {kind}: {found}", path.display())?;
    }
    Ok(Report { text: report + &rest, problems })
}

struct Found {
    problems: Vec<Problem>,
    notes: Vec<Problem>,
    /// What counts, and what each engine may do.
    rest: String,
}

async fn look(config: &mut Config, refused: &[Refused]) -> Result<Found> {
    // An engine whose table was not understood as a whole is judged when it is.
    let half_read = |name: &ServiceName| {
        refused.iter().any(|r| r.keys.iter().take(2).map(String::as_str).eq(["engines", name.as_str()]))
    };
    let spoilt: Vec<_> = config.engines.extract_if(.., |name, _| half_read(name)).map(|(name, _)| name).collect();
    let names = Arc::new(Names::new(config.host.namespace.clone(), Installation::new("check")?));
    let plugins = sandbar_plugin::Host::new(None, sandbar_plugin::Limits::default())?;
    let mut catalog = Engines::new(config, names.clone(), plugins).load(&config.engines, &config.plugins).await;

    let mut problems = Vec::new();
    let mut notes = settings::notes(config, &[]);
    for broken in &catalog.broken {
        let found = Problem::new(format!("[engines.{}]", broken.name), &broken.why);
        if broken.pending { &mut notes } else { &mut problems }.push(found);
    }
    // Projects may name it.
    let told = |name: ServiceName| Broken { name: name.to_string(), why: String::new(), pending: false };
    catalog.broken.extend(spoilt.into_iter().map(told));
    problems.extend(settings::people(config).err().into_iter().flat_map(|found| found.0));
    let mut enabled = config.sandbox.enabled;
    match settings::settings(config, names.clone(), &catalog) {
        Ok(settings) => {
            enabled = settings.enabled_by_environment.unwrap_or(enabled);
            for project in &settings.projects {
                notes.extend(shared_variables(project, &catalog).await);
            }
        }
        Err(found) => problems.extend(found.0),
    }
    let mut rest = effective(config, &names, enabled)?;
    rest.extend(catalog.services.values().map(|service| allowed(service)));
    Ok(Found { problems, notes, rest })
}

/// Keys that have no default, and what is done without them.
const UNSET: [(&str, &str, &str); 3] = [
    ("docker", "host", "DOCKER_HOST, then the usual sockets"),
    ("host", "installation", "a random one, kept in the state directory"),
    ("host", "operator_token", "no operator can call"),
];

/// What counts, as it could be written: every key but those of engines, which are told service by service. Values that may be
/// secret are not shown.
fn effective(config: &Config, names: &Names, enabled: bool) -> Result<String> {
    let mut tables = toml::Table::try_from(config)?;
    tables.remove("engines");
    let mut text = "\n# What counts, with the defaults; engines are below.\n".to_owned();
    for (name, table) in &mut tables {
        let Some(table) = table.as_table_mut() else { continue };
        match name.as_str() {
            "docker" => drop(table.entry("network").or_insert_with(|| names.network().into())),
            "sandbox" => drop(table.insert("enabled".to_owned(), enabled.into())),
            "retention" => *table = toml::Table::try_from(settings::retention(&config.retention))?,
            "projects" => table.iter_mut().for_each(|(_, project)| hide(project)),
            _ => {}
        }
        let alone = toml::Table::from_iter([(name.clone(), toml::Value::Table(table.clone()))]);
        text.push('\n');
        for (_, key, instead) in UNSET.iter().filter(|(of, key, _)| of == name && !table.contains_key(*key)) {
            writeln!(text, "# {key} is left out: {instead}")?;
        }
        text.push_str(&toml::to_string(&alone)?);
    }
    Ok(text)
}

/// Takes what is written out in a gate's variables away.
fn hide(project: &mut toml::Value) {
    let gate = project.get_mut("gate_env").and_then(toml::Value::as_table_mut);
    for (_, value) in gate.into_iter().flatten().filter(|(_, value)| value.is_str()) {
        *value = "***".into();
    }
}

/// Where two services of a project would set the same variable.
async fn shared_variables(project: &sandbar_core::project::Project, catalog: &Catalog) -> Vec<Problem> {
    let mut first = BTreeMap::new();
    let mut notes = Vec::new();
    for service in project.services.iter().filter_map(|name| catalog.services.get(name)) {
        let features = project.extensions.get(&service.name).cloned().unwrap_or_default();
        let Ok(checked) = service.recipe(&features, false, false).await else { continue };
        for variable in &checked.recipe().variables {
            let name = (variable.name.clone(), variable.prefixed);
            let setter = first.entry(name).or_insert_with(|| service.name.clone());
            if *setter != service.name {
                let why = format!(
                    "`{}` and `{}` both set `{}`; what an agent gets is `{setter}`'s, which is named first",
                    setter, service.name, variable.name
                );
                notes.push(Problem::new(format!("[projects.{}] services", project.name), why));
            }
        }
    }
    notes
}

/// What an engine is allowed.
pub(crate) fn allowed(service: &Service) -> String {
    let list = |values: Vec<String>| if values.is_empty() { "none".to_owned() } else { values.join(", ") };
    let grants = &service.grants;
    let limits = &service.limits;
    let cpus = f64::from(u32::try_from(limits.milli_cpus).unwrap_or(u32::MAX)) / 1000.0;
    let rows = [
        ("images", list(grants.images.iter().map(ToString::to_string).collect())),
        ("capabilities", list(grants.capabilities.clone())),
        ("data", list(grants.data_dirs.clone())),
        ("variables", list(grants.variables.clone())),
        ("features", list(service.features())),
        ("settings", list(service.settings.iter().map(|(name, value)| format!("{name} = {value:?}")).collect())),
        ("limits", format!("{} MiB memory, {cpus} CPUs, {} processes", limits.memory_bytes >> 20, limits.pids)),
    ];
    let descriptor = service.engine.descriptor();
    let mut text = format!(
        "\nservice {} ({}): {} {}, sha256 {}\n",
        service.name,
        service.slug,
        descriptor.name,
        descriptor.version,
        service.engine.hash()
    );
    for (name, value) in rows {
        text.push_str(&format!("  {name:<12}  {value}\n"));
    }
    text
}

/// Line and column, both from 1, of what is named like `[projects.shop] services`: of the key, else of the nearest table
/// around it that is written, else of the beginning.
fn place(text: &str, root: &DeTable<'_>, at: &str) -> (usize, usize) {
    let (table, key) = at.strip_prefix('[').and_then(|rest| rest.split_once(']')).unwrap_or(("", at));
    let key = key.trim().split(' ').next().unwrap_or_default();
    // A quoted key is one name, whatever is in it.
    let keys =
        key.strip_prefix('"').map_or_else(|| key.split('.').collect(), |quoted| vec![quoted.trim_end_matches('"')]);
    let names = table.split('.').chain(keys).filter(|name| !name.is_empty());
    let (mut offset, mut inside) = (0, root);
    for name in names {
        let Some((written, value)) = inside.iter().find(|(written, _)| written.get_ref().as_ref() == name) else {
            break;
        };
        offset = written.span().start;
        let DeValue::Table(below) = value.get_ref() else { break };
        inside = below;
    }
    config::place(text, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_key_or_what_is_around_it() {
        let text = "# ä\n[projects.shop]\nservices = []\n[images]\n\"a.b:1\" = \"c\"\n[retention]\n  max_live = 0\n";
        let places = DeTable::parse(text).unwrap();
        let of = |at: &str| place(text, places.get_ref(), at);
        assert_eq!(of("[projects.shop] services"), (3, 1));
        assert_eq!(of("[projects.shop] extensions"), (2, 11));
        assert_eq!(of("[projects.shop] services.postgres"), (3, 1));
        assert_eq!(of("[images] \"a.b:1\""), (5, 1));
        assert_eq!(of("[retention] max_live"), (7, 3));
        assert_eq!(of("[engines.x]"), (1, 1));
        assert_eq!(of("SANDBAR_ENABLED"), (1, 1));
    }
}
