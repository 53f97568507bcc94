//! From a checked recipe to things a runtime can do: fills the placeholders in, and adds what is the host's to add:
//! labels, limits, and the variables in which it finds its own secrets again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::catalog::{Limits, Service};
use crate::check::Checked;
use crate::engine::{Account, Command, DataDir, Expectation, Pairs, Variable};
use crate::folders::Folder;
use crate::image::Image;
use crate::name::{Names, ProjectName};
use crate::owner::{For, Owner};
use crate::runtime::{DataKind, DataPlan, ExecOutput, ExecPlan, FilePlan, FolderPlan, Labels, UnitPlan};
use crate::secret::Secret;
use crate::template::{self, Placeholder, TemplateError, Values};

/// The passwords of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets {
    /// The agent's.
    pub password: Secret,
    /// The administrator's, where the recipe has one.
    pub admin: Option<Secret>,
}

impl Secrets {
    /// Fresh ones for an account.
    pub fn fresh(account: &Account) -> Self {
        Self { password: Secret::password(), admin: account.admin.then(Secret::password) }
    }

    /// All of them, for redaction.
    pub fn all(&self) -> Vec<&Secret> {
        std::iter::once(&self.password).chain(&self.admin).collect()
    }
}

/// What the host notes on a container beside its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The project it was made for, where somebody asked for it.
    pub project: Option<ProjectName>,
    /// The features it was made with: sorted.
    pub features: Vec<String>,
    /// Whether its account is without restrictions.
    pub superuser: bool,
    /// Whether it is in the sandbox network, if it is a box. Everything else is.
    pub box_network: bool,
    /// The passwords that its data knows already. Not noted on it.
    pub known: Option<Secrets>,
}

/// Label keys, without the namespace. They are read back on adoption.
pub mod label {
    /// Whose it is.
    pub const OWNER: &str = "sandbox.owner";
    /// On an agent's own container: which agent it is.
    pub const AGENT: &str = "agent";
    /// The service's name.
    pub const SERVICE: &str = "service";
    /// The project it was made for.
    pub const PROJECT: &str = "project";
    /// Features, joined by commas.
    pub const FEATURES: &str = "features";
    /// `1` where its account is without restrictions.
    pub const SUPERUSER: &str = "superuser";
    /// The name of its work folder.
    pub const FOLDER: &str = "folder";
    /// On what was made before anybody asked for it: everything that it must have in common with what is asked for.
    pub const SHAPE: &str = "shape";
    /// Hash of the engine that described it.
    pub const ENGINE: &str = "engine";
    /// Hash of the settings it was made with.
    pub const SETTINGS: &str = "settings";
    /// Counts what this host has made; tells a container from its successor of the same name.
    pub const GENERATION: &str = "generation";
}

/// Everything that decides about one container.
pub struct Make<'a> {
    /// Names.
    pub names: &'a Names,
    /// The service.
    pub service: &'a Service,
    /// Its checked recipe.
    pub checked: &'a Checked,
    /// Its passwords.
    pub secrets: Option<&'a Secrets>,
    /// Whom it is made for.
    pub whose: For<'a>,
    /// What is noted on it.
    pub note: &'a Note,
    /// Its generation.
    pub generation: u64,
    /// The operator's mapping: normalised image to what is run.
    pub images: &'a BTreeMap<Image, String>,
    /// Whether its port is published on the loopback.
    pub publish: bool,
    /// The name of its work folder and where that is on this machine.
    pub folder: Option<(&'a Folder, &'a str)>,
}

/// Why a checked recipe could not be filled in: a fault of the host.
pub type FillError = TemplateError;

/// The plan of a container.
///
/// # Errors
/// Only where `checked` was not checked for what it is used for.
pub fn unit(make: &Make<'_>) -> Result<UnitPlan, FillError> {
    let c = &make.checked.recipe().container;
    let names = make.names;
    let port = c.port.map(|p| p.to_string());
    let values = inside(c.account.as_ref(), make.secrets, port.as_deref(), None, names.namespace());
    let mut env = pairs(&c.env, template::IN_ENVIRONMENT, &values)?;
    if let Some(secrets) = make.secrets {
        env.push((names.password_variable(), secrets.password.reveal().to_owned()));
        if let Some(admin) = &secrets.admin {
            env.push((names.admin_password_variable(), admin.reveal().to_owned()));
        }
    }
    let files = c.files.iter().map(|f| {
        let content = template::fill(&f.content, template::IN_FILE, &values)?;
        Ok(FilePlan { path: f.path.clone(), mode: f.mode, content })
    });
    let Limits { memory_bytes, milli_cpus, pids } = make.service.limits;
    Ok(UnitPlan {
        name: names.making(),
        labels: labels(make),
        image: image(make.checked, make.images).to_owned(),
        entrypoint: c.entrypoint.clone(),
        command: c.command.clone(),
        user: c.user.clone(),
        env,
        files: files.collect::<Result<_, _>>()?,
        data: c.data.iter().map(|d| DataPlan { path: d.path.clone(), kind: data_kind(make, d) }).collect(),
        folder: make.folder.map(|(f, from)| FolderPlan { from: from.to_owned(), path: f.inside.clone() }),
        network: c.work_folder.is_none() || make.note.box_network,
        spare_tmpfs_bytes: memory_bytes / 16,
        shm_bytes: if c.shm_bytes == 0 { memory_bytes / 8 } else { c.shm_bytes },
        memory_bytes,
        milli_cpus,
        pids,
        capabilities: c.capabilities.clone(),
        port: c.port,
        publish: make.publish,
    })
}

/// The image that is run, after the operator's mapping.
pub fn image<'a>(checked: &'a Checked, images: &'a BTreeMap<Image, String>) -> &'a str {
    let image = checked.image();
    Image::parse(image).ok().and_then(|i| images.get(&i)).map_or(image, String::as_str)
}

fn data_kind(make: &Make<'_>, dir: &DataDir) -> DataKind {
    if make.whose.retains() {
        let container = make.whose.container(make.names, &make.service.slug);
        DataKind::Volume(make.names.volume(&container, &dir.path))
    } else {
        DataKind::Tmpfs(dir.tmpfs_bytes)
    }
}

fn labels(make: &Make<'_>) -> Labels {
    let mut labels = make.whose.labels(make.names);
    let mut add = |key: &str, value: String| labels.insert(make.names.label(key), value);
    add(label::SERVICE, make.service.name.to_string());
    // Where a key says whose it is, nobody learns more from it.
    if let (For::Owner(Owner { keyed: None, .. }), Some(project)) = (make.whose, &make.note.project) {
        add(label::PROJECT, project.to_string());
    }
    if let Some((folder, _)) = make.folder {
        add(label::FOLDER, folder.name.clone());
    }
    add(label::FEATURES, make.note.features.join(","));
    add(label::SUPERUSER, if make.note.superuser { "1" } else { "0" }.to_owned());
    add(label::ENGINE, make.service.engine.hash().to_owned());
    add(label::SETTINGS, make.service.settings_hash());
    add(label::GENERATION, make.generation.to_string());
    labels
}

/// The values that hold inside a container.
fn inside<'a>(
    account: Option<&'a Account>,
    secrets: Option<&'a Secrets>,
    port: Option<&'a str>,
    address: Option<&'a str>,
    namespace: &'a str,
) -> Values<'a> {
    Values {
        user: account.and_then(|a| a.user.as_deref()),
        password: secrets.map(|s| s.password.reveal()),
        admin_password: secrets.and_then(|s| s.admin.as_ref()).map(Secret::reveal),
        database: account.and_then(|a| a.database.as_deref()),
        host: None,
        port,
        address,
        namespace: Some(namespace),
    }
}

fn pairs(pairs: &Pairs, allowed: &[Placeholder], values: &Values<'_>) -> Result<Vec<(String, String)>, FillError> {
    pairs.iter().map(|(k, v)| Ok((k.clone(), template::fill(v, allowed, values)?))).collect()
}

/// A command of a recipe for the container at `address`.
///
/// # Errors
/// Only where `checked` was not checked for what it is used for.
pub fn exec(
    command: &Command,
    checked: &Checked,
    secrets: Option<&Secrets>,
    address: &str,
    namespace: &str,
) -> Result<ExecPlan, FillError> {
    let c = &checked.recipe().container;
    let port = c.port.map(|p| p.to_string());
    let values = inside(c.account.as_ref(), secrets, port.as_deref(), Some(address), namespace);
    Ok(ExecPlan {
        argv: command.argv.iter().map(|a| template::fill(a, template::IN_ARGV, &values)).collect::<Result<_, _>>()?,
        env: pairs(&command.env, template::IN_EXEC_ENVIRONMENT, &values)?,
        user: command.user.clone(),
        timeout: Duration::from_millis(command.timeout_ms.into()),
    })
}

/// Whether a command's answer is what its recipe expects.
pub fn meets(output: &ExecOutput, expect: &Expectation) -> bool {
    output.code == 0
        && match expect {
            Expectation::ExitZero => true,
            Expectation::StdoutIs(text) => output.stdout.trim() == text.trim(),
            Expectation::StdoutHasLines(lines) => {
                lines.iter().all(|line| output.stdout.lines().any(|l| l.trim() == line.trim()))
            }
        }
}

/// What the agent gets: names with the host's prefix where the recipe asks for it, values filled in. `host` and `port`
/// are where the agent reaches the service.
///
/// # Errors
/// Only where the variables were not checked.
pub fn variables(
    variables: &[Variable],
    account: Option<&Account>,
    secrets: Option<&Secrets>,
    host: &str,
    port: Option<u16>,
    names: &Names,
) -> Result<Vec<(String, String)>, FillError> {
    let port = port.map(|p| p.to_string());
    let values = Values {
        host: Some(host),
        admin_password: None,
        ..inside(account, secrets, port.as_deref(), None, names.namespace())
    };
    let prefix = names.variable_prefix();
    variables
        .iter()
        .map(|v| {
            let name = if v.prefixed { format!("{prefix}{}", v.name) } else { v.name.clone() };
            Ok((name, template::fill(&v.value, template::IN_VARIABLE, &values)?))
        })
        .collect()
}
