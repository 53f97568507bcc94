//! `sandbar sweep`: removes what an installation left whose state directory is lost.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use sandbar_core::name::{Installation, Names};
use sandbar_core::runtime::Runtime as _;

use crate::config::Config;
use crate::serve;
use crate::state::StateDir;

/// Removes every container of that installation and its network, and says which; with `dry_run` it only says.
///
/// # Errors
/// When a host of that installation runs here, Docker cannot be asked, or something could not be removed.
pub(crate) async fn sweep(config_path: &Path, installation: &str, dry_run: bool) -> Result<()> {
    let config = Config::read(config_path)?;
    let installation = Installation::new(installation)?;
    // Held while sweeping, so that no host of it starts meanwhile.
    let held = if config.host.state_dir.exists() { Some(StateDir::open(&config.host.state_dir)) } else { None };
    if let Some(Err(e)) = &held
        && StateDir::belongs_to(&config.host.state_dir, config.host.installation.as_ref(), &installation)
    {
        bail!("{e:#}; stop it, or have it release what it made");
    }
    let names = Arc::new(Names::new(config.host.namespace.clone(), installation));
    let runtime = serve::docker(&config, &names)?;
    let base = names.base_labels();
    let labels: Vec<_> = base.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut failed = 0;
    let units = runtime.list(&labels).await?;
    for unit in &units {
        if dry_run {
            println!("would remove {}", unit.name);
        } else if let Err(e) = runtime.remove(&unit.id, Duration::ZERO).await {
            failed += 1;
            eprintln!("{}: {e}", unit.name);
        } else {
            println!("removed {}", unit.name);
        }
    }
    if units.is_empty() {
        println!("the installation {} has no containers", names.installation());
    }
    if failed > 0 {
        bail!("{failed} of {} containers are still there", units.len());
    }
    let networks = runtime.own_networks().await?;
    if !dry_run {
        runtime.retire().await?;
    }
    let left = if dry_run { Vec::new() } else { runtime.own_networks().await? };
    for network in networks {
        if dry_run {
            println!("would remove the network {network}");
        } else if left.contains(&network) {
            println!("the network {network} stays: another installation uses it");
        } else {
            println!("removed the network {network}");
        }
    }
    Ok(())
}
