//! `sandbar engine test`: the conformance kit on a component, as a table of results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use sandbar_core::catalog::Limits;
use sandbar_core::check::Grants;
use sandbar_core::folders::Folders;
use sandbar_core::image::Image;
use sandbar_core::name::{Installation, Names, Namespace};
use sandbar_core::runtime::{Runtime as _, RuntimeError};
use sandbar_core::secret::random_hex;
use sandbar_docker::{DockerOptions, DockerRuntime, PullLimits};
use sandbar_files::LocalFolders;
use sandbar_kit::sandboxes::{Place, sandboxes};
use sandbar_kit::{Check, Report, Subject, Verdict, answers};
use sandbar_plugin::{Artifact, LoadReason};
use serde_json::json;

use super::{advice, known_features, pair, plugins, scratch};
use crate::config::Bytes;
use crate::engines;

/// What to test, and how far.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The component.
    component: PathBuf,
    /// Make real sandboxes too, in Docker.
    #[arg(long)]
    docker: bool,
    /// The features to make sandboxes with [default: all of them].
    #[arg(long, value_delimiter = ',', requires = "docker")]
    features: Option<Vec<String>>,
    /// A setting of the engine, in place of its default.
    #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
    /// What is run in place of which image: a TOML file with a table `[images]`, such as a host's configuration.
    #[arg(long, value_name = "FILE", requires = "docker")]
    images: Option<PathBuf>,
    /// The memory limit of its containers.
    #[arg(long, value_name = "SIZE", default_value = "512m", value_parser = memory)]
    memory: Bytes,
    /// The prefix of every name made in Docker.
    #[arg(long, default_value = "sandbar", value_parser = namespace)]
    namespace: Namespace,
    /// Docker's address [default: DOCKER_HOST, then the usual sockets].
    #[arg(long, value_name = "URL", requires = "docker")]
    docker_host: Option<String>,
    /// Answer as JSON.
    #[arg(long)]
    json: bool,
}

fn memory(text: &str) -> Result<Bytes, &'static str> {
    Bytes::parse(text).ok_or("a size is a number of bytes or a text such as 512m")
}

fn namespace(text: &str) -> Result<Namespace, sandbar_core::name::BadName> {
    Namespace::new(text)
}

/// Tests a component and prints what was found out. Answers whether nothing failed.
///
/// # Errors
/// Where nothing could be tested: an option that cannot be used.
pub(crate) async fn test(args: &Args) -> Result<bool> {
    let images = args.images.as_deref().map(images).transpose()?.unwrap_or_default();
    let mut tell = |check: &Check| {
        if !args.json {
            println!("{}", row(check));
        }
    };
    let mut report = Report::new(&mut tell);
    let grants = match load(args).await {
        Ok((subject, contract)) => {
            report.add("load", Verdict::Ok, contract);
            known(args, &subject)?;
            let granted = answers::answers(&subject, &mut report).await;
            locked(args, &subject, &mut report).await;
            if args.docker {
                in_docker(args, &subject, granted.clone(), images, &mut report).await?;
            }
            granted
        }
        Err(why) => {
            report.add("load", Verdict::Failed, why);
            Grants::default()
        }
    };
    if args.json {
        let grants = json!({
            "images": grants.images.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "capabilities": grants.capabilities,
            "data_dirs": grants.data_dirs,
            "variables": grants.variables,
        });
        let file = args.component.display().to_string();
        let all = json!({ "file": file, "passed": report.passed(), "checks": report.checks(), "asks_for": grants });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        let count = |verdict| report.count(verdict);
        let (ok, failed, skipped) = (count(Verdict::Ok), count(Verdict::Failed), count(Verdict::Skipped));
        println!("{ok} ok, {failed} failed, {skipped} skipped");
    }
    Ok(report.passed())
}

fn row(check: &Check) -> String {
    let verdict = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "skipped",
    };
    format!("{:<36} {verdict:<8} {}", check.name, check.detail).trim_end().to_owned()
}

/// The engine, here and where time and chance are others, and the version of the contract it speaks.
async fn load(args: &Args) -> Result<(Subject, String)> {
    let file = args.component.as_path();
    let failed = |reason: LoadReason| anyhow!("{}", advice(file, &reason));
    let artifact = Artifact::read(file, None).map_err(|e| failed(e.reason))?;
    let contract = artifact.admissible().map_err(failed)?;
    let imports = artifact.imports().len();
    // Compiled once, and taken from there the second time.
    let cache = scratch()?;
    let host = plugins(cache.path())?;
    let engine = host.load_artifact(artifact.clone()).await.map_err(failed)?;
    let elsewhere = host.elsewhere().load_artifact(artifact).await.map_err(failed)?;
    let installation = Installation::new(format!("kit-{}", random_hex(8)))?;
    let subject = Subject {
        engine,
        elsewhere,
        settings: args.settings.iter().cloned().collect(),
        limits: Limits { memory_bytes: args.memory.0, milli_cpus: 1000, pids: 256 },
        names: Arc::new(Names::new(args.namespace.clone(), installation)),
    };
    Ok((subject, format!("contract {contract}, {imports} imports")))
}

/// Whether the options name what the engine has.
fn known(args: &Args, subject: &Subject) -> Result<()> {
    let descriptor = subject.engine.descriptor();
    let features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    known_features(args.features.as_deref().unwrap_or_default(), &features).context("--features")?;
    let settings: Vec<_> = descriptor.settings.iter().map(|s| &s.name).collect();
    match args.settings.iter().find(|(name, _)| !settings.contains(&name)) {
        Some((unknown, _)) => {
            bail!("--setting: it has no setting `{unknown}`; it has {}", sandbar_core::error::listed(&settings))
        }
        None => Ok(()),
    }
}

/// Whether the lock file beside the component grants what it asks for.
async fn locked(args: &Args, subject: &Subject, report: &mut Report<'_>) {
    let skip = |why: &str| (Verdict::Skipped, why.to_owned());
    let (verdict, detail) = match engines::locked(&args.component) {
        Err(e) => (Verdict::Failed, format!("{e:#}")),
        Ok(None) => skip("there is no lock file with an entry for it; `sandbar engine build` writes one"),
        Ok(Some(pin)) if !pin.sha256.eq_ignore_ascii_case(subject.engine.hash()) => {
            (Verdict::Failed, "the lock file beside it pins other bytes; build it again".to_owned())
        }
        Ok(Some(_)) if !args.settings.is_empty() => skip("with other settings it asks for other things"),
        Ok(Some(pin)) => match engines::grants(&Default::default(), Some(&pin), &subject.names) {
            Ok(grants) => return answers::granted(subject, &grants, report).await,
            Err(why) => (Verdict::Failed, format!("the lock file beside it: {why}")),
        },
    };
    report.add("grants", verdict, detail);
}

/// The operator's mapping in a file.
fn images(file: &Path) -> Result<BTreeMap<Image, String>> {
    #[derive(serde::Deserialize)]
    struct Table {
        #[serde(default)]
        images: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("--images: {}", file.display()))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("--images: {}", file.display()))?;
    let mapped = table.images.into_iter().map(|(from, to)| Image::parse(&to).and(Image::parse(&from)).map(|i| (i, to)));
    mapped.collect::<Result<_, _>>().with_context(|| format!("--images: {}", file.display()))
}

async fn in_docker(
    args: &Args,
    subject: &Subject,
    granted: Grants,
    images: BTreeMap<Image, String>,
    report: &mut Report<'_>,
) -> Result<()> {
    let names = &subject.names;
    let docker = DockerRuntime::connect(DockerOptions {
        host: args.docker_host.clone(),
        // One of its own, which goes when the last container has gone.
        network: format!("{}-{}", names.namespace(), names.installation()),
        network_labels: names.base_labels(),
        installation: (names.label("installation"), names.installation().to_owned()),
        pull: PullLimits::default(),
    });
    let docker = Arc::new(docker.map_err(|e| match e {
        RuntimeError::Refused(why) => anyhow!("--docker: {why}"),
        other => anyhow!("--docker: {other}"),
    })?);
    let state = scratch()?;
    let folders: Option<Arc<dyn Folders>> = match docker.caps().local {
        true => Some(Arc::new(LocalFolders::open(&state.path().join("boxes"), &state.path().join("artifacts"))?)),
        false => None,
    };
    let place = Place { runtime: docker.clone(), folders, images, features: args.features.clone() };
    let stop = async {
        // Where that cannot be listened for, the process just ends.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    sandboxes(subject, granted, &place, stop, report).await;
    match docker.own_networks().await {
        Ok(left) if left.is_empty() => {}
        Ok(left) => report.add("teardown: network", Verdict::Failed, format!("it left {}", left.join(", "))),
        // Said before.
        Err(RuntimeError::Unreachable(_)) => {}
        Err(e) => report.add("teardown: network", Verdict::Failed, e),
    }
    Ok(())
}
