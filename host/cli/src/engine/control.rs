//! The smallest engine there can be, as the yardstick of `sandbar engine bench`.

use anyhow::Result;
use sandbar_plugin::Artifact;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// Its code: `control.wat`.
const MODULE: &str = include_str!("control.wat");
/// The contract.
const CONTRACT: &str = include_str!("../../../../wit/sandbox-engine.wit");

/// Makes it.
///
/// # Errors
/// Never, as a test sees to.
pub(crate) fn control() -> Result<Artifact> {
    let mut resolve = Resolve::default();
    let package = resolve.push_str("sandbox-engine.wit", CONTRACT).map_err(|e| anyhow::anyhow!("{e:#}"))?;
    let world = resolve.select_world(&[package], Some("sandbox-engine"))?;
    let mut module = wat::parse_str(MODULE)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let component = ComponentEncoder::default().validate(true).module(&module)?.encode()?;
    Ok(Artifact::from_bytes(component)?)
}

#[cfg(test)]
mod tests {
    use sandbar_core::engine::{Engine as _, Request};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn it_is_an_engine_and_takes_any_question() {
        let host = sandbar_plugin::Host::new(None, sandbar_plugin::Limits::default()).unwrap();
        let engine = host.load_artifact(control().unwrap()).await.unwrap();
        assert_eq!(engine.descriptor().name, "control");
        let long = vec![("name".to_owned(), "value".repeat(200)); 32];
        let features = vec!["feature".to_owned(); 32];
        let request = Request { features, retained: true, superuser: true, memory_bytes: 1 << 40, settings: long };
        assert_eq!(engine.plan(&request).await.unwrap().container.image, "");
    }
}
