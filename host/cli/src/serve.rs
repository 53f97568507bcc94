//! `sandbar serve`: joins the crates to a running host.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit};
use sandbar_core::catalog::CatalogHandle;
use sandbar_core::folders::Folders;
use sandbar_core::host::Host;
use sandbar_core::name::Names;
use sandbar_core::people::People;
use sandbar_core::runtime::RuntimeError;
use sandbar_core::store::{Store, StoreError};
use sandbar_docker::{DockerOptions, DockerRuntime};
use sandbar_files::LocalFolders;
use sandbar_server::{AllowedHosts, Bounds, Listener};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::config::{self, Config, Listen, Unusable};
use crate::reload::Reloader;
use crate::settings;
use crate::state::StateDir;

/// The work folders of boxes.
fn folders(config: &Config) -> Result<Arc<dyn Folders>> {
    let artifacts = config.host.state_dir.join("artifacts");
    let folders = LocalFolders::open(&config.boxes.dir, &artifacts);
    Ok(Arc::new(folders.with_context(|| format!("[boxes] dir: {}", config.boxes.dir.display()))?))
}

/// The Docker of the configuration, for what has these names.
///
/// # Errors
/// For options that can never work.
pub(crate) fn docker(config: &Config, names: &Names) -> Result<DockerRuntime> {
    let connected = DockerRuntime::connect(DockerOptions {
        host: config.docker.host.clone(),
        network: config.docker.network.clone().unwrap_or_else(|| names.network()),
        network_labels: names.base_labels(),
        installation: (names.label("installation"), names.installation().to_owned()),
        pull: config.docker.pull_limits(),
    });
    connected.map_err(|e| match e {
        RuntimeError::Refused(why) => Unusable(format!("[docker] {why}")).into(),
        other => other.into(),
    })
}

/// Says what can be meant, and often is not.
fn warn(config: &Config, store: &Store) -> Result<(), StoreError> {
    let declared: Vec<_> = store.projects()?.into_iter().map(|(name, _)| name).collect();
    for note in settings::notes(config, &declared) {
        tracing::warn!("{note}");
    }
    Ok(())
}

/// Listens on a socket in the file system. One that was left there by a host that was killed is replaced.
fn socket(path: &Path) -> Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(anyhow!("somebody listens there already"));
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => return Err(anyhow!("something else is there already")),
        Err(_) => {}
    }
    // From the first moment on: whoever may connect may try tokens.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(before);
    Ok(listener?)
}

/// Serves until a signal says to end.
///
/// # Errors
/// When the host cannot start.
pub(crate) async fn serve(config_path: &Path) -> Result<()> {
    // From the first moment on: it asks for a reload, and not for the end, which it would mean otherwise.
    let hangup = signal(SignalKind::hangup())?;
    let text = config::text(config_path)?;
    let config = Config::parse(&text, config_path)?;
    let state = StateDir::open(&config.host.state_dir)?;
    let installation = state.installation(config.host.installation.as_ref())?;
    let names = Arc::new(Names::new(config.host.namespace.clone(), installation));

    let plugins = sandbar_plugin::Host::new(Some(state.compile_cache()?), sandbar_plugin::Limits::default())?;
    let runtime = Arc::new(docker(&config, &names)?);

    let folders =
        if sandbar_core::runtime::Runtime::caps(runtime.as_ref()).local { Some(folders(&config)?) } else { None };
    let store = state.store()?;
    let people = People::new(store.clone(), settings::people(&config)?)?;
    let path = std::path::absolute(config_path)?;
    let (reloader, catalog) = Reloader::start(path, &text, &config, names.clone(), plugins).await?;
    let settings = settings::settings(&config, names, &catalog)?;
    warn(&config, &store)?;
    let catalog = CatalogHandle::new(catalog);
    let host = Host::new(settings, runtime, catalog.clone(), store, people, folders)?;

    // Before it says that it listens: whoever reads that may end it at once.
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
    for listen in &config.host.listen {
        listeners.push(match listen {
            Listen::Address(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
                let address = listener.local_addr()?;
                tracing::info!(%address, "listening");
                addresses.push(address);
                Listener::Tcp(listener)
            }
            Listen::Socket(path) => {
                let listener = socket(path).with_context(|| format!("listening on {}", path.display()))?;
                tracing::info!(path = %path.display(), "listening");
                Listener::Unix(listener)
            }
        });
    }
    let (down_tx, down) = watch::channel(false);
    let run = tokio::spawn(host.clone().run());
    let reload = tokio::spawn(reloader.watch(catalog, hangup));
    let server = tokio::spawn(sandbar_server::serve(
        host.clone(),
        listeners,
        AllowedHosts::new(&addresses, &config.host.allowed_hosts),
        Bounds::for_descriptors(getrlimit(Resource::Nofile).current),
        down,
    ));
    tokio::pin!(server);

    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        ended = &mut server => return ended.context("the server failed"),
    }
    tracing::info!("going down");
    reload.abort();
    // New calls get the retryable guard while the running ones finish; then the doors close.
    host.shut_down().await;
    down_tx.send_replace(true);
    server.await?;
    run.abort();
    for listen in &config.host.listen {
        if let Listen::Socket(path) = listen {
            let _ = std::fs::remove_file(path);
        }
    }
    drop(state);
    Ok(())
}
