//! `sandbar engine inspect`: what a component is. As much as possible is read from its bytes alone, so that something is said
//! also about what cannot be loaded.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use sandbar_core::engine::{Descriptor, Engine as _, Request};
use sandbar_kit::Wish;
use sandbar_plugin::{Artifact, LoadReason, LoadedEngine, MAX_COMPONENT_BYTES};
use serde_json::{Map, Value, json};

use super::{advice, plugins, scratch};

/// What to look at.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The component.
    component: PathBuf,
    /// Answer as JSON.
    #[arg(long)]
    json: bool,
}

/// What is known, in the order in which it is said.
type Facts = Vec<(&'static str, Value)>;

/// What is asked of an engine that was loaded: as an operator would who says nothing.
const MEMORY_BYTES: u64 = 512 << 20;

/// Prints what the component is. Answers whether it can be loaded.
///
/// # Errors
/// What it is and what to do, where it cannot be loaded: everything that can be said has been printed by then.
pub(crate) async fn inspect(args: &Args) -> Result<bool> {
    let file = args.component.as_path();
    let mut facts = vec![("file", json!(file.display().to_string()))];
    let problem = match look(file, &mut facts).await {
        Ok(()) => None,
        Err(reason) => Some(advice(file, &reason)),
    };
    if args.json {
        facts.push(("problem", json!(problem)));
        let all: Map<_, _> = facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(problem.is_none());
    }
    for (name, value) in &facts {
        print(name, value);
    }
    match problem {
        Some(problem) => bail!("{problem}"),
        None => Ok(true),
    }
}

async fn look(file: &Path, facts: &mut Facts) -> Result<(), LoadReason> {
    let artifact = match Artifact::read(file, None) {
        Ok(artifact) => artifact,
        Err(e) => {
            raw(file, facts);
            return Err(e.reason);
        }
    };
    let sizes = artifact.sizes();
    let mut add = |name, value| facts.push((name, value));
    add("size", json!({ "bytes": sizes.whole, "code": sizes.code, "data": sizes.data, "custom": sizes.custom }));
    add("sha256", json!(artifact.hash()));
    add("contract", json!(artifact.contract_versions()));
    add("imports", json!(artifact.imports()));
    artifact.admissible()?;
    let failed = |e: &dyn std::fmt::Display| LoadReason::Compile(e.to_string());
    let cache = scratch().map_err(|e| failed(&e))?;
    let engine = plugins(cache.path()).map_err(|e| failed(&e))?.load_artifact(artifact).await?;
    describe(engine.descriptor(), facts);
    let images = images(&engine).await;
    facts.push(("images", images));
    Ok(())
}

/// Size and hash of what is no component.
fn raw(file: &Path, facts: &mut Facts) {
    let small = |m: &std::fs::Metadata| m.is_file() && m.len() <= MAX_COMPONENT_BYTES;
    if std::fs::metadata(file).is_ok_and(|m| small(&m))
        && let Ok(bytes) = std::fs::read(file)
    {
        facts.push(("size", json!({ "bytes": bytes.len() })));
        facts.push(("sha256", json!(sandbar_sdk_build::component::sha256(&bytes))));
    }
}

fn describe(descriptor: &Descriptor, facts: &mut Facts) {
    let Descriptor { name, slug, version, summary, features, settings, more } = descriptor;
    let mut add = |name, value| facts.push((name, value));
    add("name", json!(name));
    add("slug", json!(slug));
    add("version", json!(version));
    add("summary", json!(summary));
    let features = features.iter().map(|f| json!({ "name": f.name, "summary": f.summary }));
    add("features", features.collect());
    let settings = settings.iter().map(|s| json!({ "name": s.name, "default": s.default, "summary": s.summary }));
    add("settings", settings.collect());
    // What this host knows no key of is for another one.
    if let Some((_, client)) = more.iter().find(|(key, _)| key == "client") {
        add("client", json!(client));
    }
}

/// Every image of its recipes with the defaults, as the engine writes them; or why it gives none.
async fn images(engine: &LoadedEngine) -> Value {
    let descriptor = engine.descriptor();
    let features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    let settings: Vec<_> = descriptor.settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
    let mut images = BTreeSet::new();
    for Wish { features, retained, superuser } in Wish::each(&features).iter().flat_map(Wish::kinds) {
        let bare = features.is_empty() && !retained && !superuser;
        let request = Request { features, retained, superuser, memory_bytes: MEMORY_BYTES, settings: settings.clone() };
        match engine.plan(&request).await {
            Ok(recipe) => drop(images.insert(recipe.container.image)),
            Err(e) if bare => return json!(format!("none: asked for the service without features, it says: {e}")),
            Err(_) => {}
        }
    }
    json!(images)
}

/// A line for each fact, and one for each part of it where there are several.
fn print(name: &str, value: &Value) {
    let line = |name: &str, text: &str| println!("{name:<10} {}", sandbar_core::error::bounded(text, 300));
    match value {
        Value::String(text) => line(name, text),
        Value::Array(items) if items.is_empty() => line(name, "none"),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let text = match item {
                    Value::Object(of) => {
                        let part = |key: &str| of.get(key).and_then(Value::as_str);
                        let default = part("default").map(|d| format!(" = {d:?}")).unwrap_or_default();
                        format!(
                            "{}{default}: {}",
                            part("name").unwrap_or_default(),
                            part("summary").unwrap_or_default()
                        )
                    }
                    item => item.as_str().unwrap_or_default().to_owned(),
                };
                line(if index == 0 { name } else { "" }, &text);
            }
        }
        Value::Object(parts) => {
            let count = |key: &str| parts.get(key).and_then(Value::as_u64);
            let rest = ["code", "data", "custom"].into_iter().filter_map(|k| Some(format!(", {k} {}", count(k)?)));
            line(name, &format!("{} bytes{}", count("bytes").unwrap_or_default(), rest.collect::<String>()));
        }
        other => line(name, &other.to_string()),
    }
}
