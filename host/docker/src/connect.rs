//! Finds the daemon and makes the client for it. Nothing is connected until the first call, and what cannot be found then
//! is looked for again at the next: the host starts while Docker is away and notices when it comes.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::OnceLock;

use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use sandbar_core::runtime::{Result, RuntimeError};
use tokio::net::UnixStream;

use crate::errors::within;
use crate::limits;

/// Reads a variable of the environment; a function, so that tests need not change the real one.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's own environment. Empty counts as not set, as for Docker's own client.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where the daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// At this socket.
    Unix(String),
    /// At this `host:port`.
    Tcp(String),
    /// At the first of these sockets that can be used.
    Search(Vec<String>),
}

impl Target {
    /// Decides by the setting, then `DOCKER_HOST`, then the usual places.
    pub(crate) fn find(setting: Option<&str>, lookup: Lookup<'_>) -> Result<Self> {
        if let Some(host) = setting {
            return Self::parse(host).map_err(|e| crate::named("`host`", &e));
        }
        let Some(host) = lookup("DOCKER_HOST") else { return Ok(Self::Search(usual_sockets(lookup))) };
        let target = Self::parse(&host).map_err(|e| crate::named("DOCKER_HOST", &e))?;
        // Going on without the TLS that somebody asked for would put the daemon's keys on the wire.
        if matches!(target, Self::Tcp(_)) && lookup("DOCKER_TLS_VERIFY").is_some() {
            return Err(RuntimeError::Refused(
                "DOCKER_TLS_VERIFY is set, and TLS to Docker is not supported: forward its socket over SSH instead"
                    .to_owned(),
            ));
        }
        Ok(target)
    }

    fn parse(host: &str) -> Result<Self> {
        let refused = |why: &str| {
            let host = host.escape_debug();
            RuntimeError::Refused(format!("`{host}` is no address of Docker: {why}"))
        };
        if let Some(path) = host.strip_prefix("unix://") {
            return match path.starts_with('/') {
                true => Ok(Self::Unix(path.to_owned())),
                false => Err(refused("the path of a socket is absolute, as in unix:///var/run/docker.sock")),
            };
        }
        let Some(address) = host.strip_prefix("tcp://").or_else(|| host.strip_prefix("http://")) else {
            return Err(refused("it begins with unix://, tcp:// or http://"));
        };
        let address = address.trim_end_matches('/');
        if address.is_empty() || address.contains(['/', '?', '#', '@']) || address.contains(char::is_whitespace) {
            return Err(refused("after the scheme stand a host and a port, and nothing else"));
        }
        // An IPv6 address has colons of its own, inside its brackets.
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        Ok(Self::Tcp(if has_port { address.to_owned() } else { format!("{address}:2375") }))
    }

    /// Whether it is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        !matches!(self, Self::Tcp(_))
    }
}

fn usual_sockets(lookup: Lookup<'_>) -> Vec<String> {
    let (runtime, home) = (lookup("XDG_RUNTIME_DIR"), lookup("HOME"));
    let below =
        |dir: &Option<String>, rest: &str| dir.as_ref().map(|dir| format!("{}/{rest}", dir.trim_end_matches('/')));
    [
        Some("/var/run/docker.sock".to_owned()),
        below(&runtime, "docker.sock"),
        below(&home, ".docker/run/docker.sock"),
        below(&runtime, "podman/podman.sock"),
        Some("/run/podman/podman.sock".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The way to the daemon.
#[derive(Debug)]
pub(crate) struct Connection {
    target: Target,
    /// Set once and then kept: a second daemon that comes up beside the first must not take over half the calls.
    docker: OnceLock<Docker>,
}

impl Connection {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, docker: OnceLock::new() }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// The client. Opens no connection by itself, but needs the socket to be there the first time.
    pub(crate) async fn client(&self) -> Result<Docker> {
        if let Some(docker) = self.docker.get() {
            return Ok(docker.clone());
        }
        let made = match &self.target {
            Target::Unix(path) => unix(path),
            Target::Tcp(address) => Docker::connect_with_http(address, limits::CLIENT.as_secs(), API_DEFAULT_VERSION),
            Target::Search(sockets) => unix(&usable(sockets).await?),
        };
        let made = made.map_err(crate::errors::CallError::from)?.with_request_modifier(with_url_safe_auth);
        Ok(self.docker.get_or_init(|| made).clone())
    }

    /// The client, if the daemon answers. One that hangs is as good as away.
    pub(crate) async fn answering(&self) -> Result<Docker> {
        let docker = self.client().await?;
        ping(&docker).await?;
        Ok(docker)
    }
}

/// Asks the daemon whether it is there.
pub(crate) async fn ping(docker: &Docker) -> Result<()> {
    match within(limits::PING, docker.ping()).await.map_err(RuntimeError::from) {
        Ok(_) => Ok(()),
        Err(RuntimeError::Deadline(limit)) => {
            Err(RuntimeError::Unreachable(format!("it does not answer within {} s", limit.as_secs())))
        }
        Err(error) => Err(error),
    }
}

fn unix(path: &str) -> Result<Docker, bollard::errors::Error> {
    Docker::connect_with_unix(path, limits::CLIENT.as_secs(), API_DEFAULT_VERSION)
}

/// The first socket at which a daemon listens or has listened. One that we may not use is passed over: who has a daemon
/// of their own often cannot use the system's.
async fn usable(sockets: &[String]) -> Result<String> {
    let mut tried = Vec::new();
    for path in sockets {
        let attempt = tokio::time::timeout(limits::PING, UnixStream::connect(Path::new(path))).await;
        match attempt.map(|connected| connected.map_err(|error| error.kind())) {
            Ok(Err(ErrorKind::NotFound | ErrorKind::NotADirectory)) => tried.push(format!("{path} (not there)")),
            Ok(Err(ErrorKind::PermissionDenied)) => tried.push(format!("{path} (no permission)")),
            // Refused means a daemon that is away; it is still the one.
            _ => return Ok(path.clone()),
        }
    }
    Err(RuntimeError::Unreachable(format!("no socket of Docker or Podman: {}", tried.join(", "))))
}

/// Registries' credentials travel in a header that Docker reads as URL-safe base64, while bollard writes the other
/// alphabet; Docker then takes what it cannot read for "no credentials" and says nothing. The two alphabets differ in two
/// characters, which passwords with `?`, `>`, `~` or letters beyond ASCII bring about.
fn with_url_safe_auth(mut request: BollardRequest) -> BollardRequest {
    if let Some(value) = request.headers_mut().get_mut("x-registry-auth")
        && let Ok(text) = value.to_str()
        && let Ok(safe) = text.replace('+', "-").replace('/', "_").parse()
    {
        *value = safe;
        value.set_sensitive(true);
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn the_setting_goes_before_the_environment() {
        let lookup = |name: &str| (name == "DOCKER_HOST").then(|| "tcp://10.0.0.1:2375".to_owned());
        assert_eq!(Target::find(Some("unix:///a.sock"), &lookup), Ok(Target::Unix("/a.sock".to_owned())));
        assert_eq!(Target::find(None, &lookup), Ok(Target::Tcp("10.0.0.1:2375".to_owned())));
    }

    #[test]
    fn addresses_get_docker_s_port() {
        for (host, address) in [
            ("tcp://a", "a:2375"),
            ("http://a:80/", "a:80"),
            ("tcp://[::1]", "[::1]:2375"),
            ("tcp://[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(Target::find(Some(host), &none), Ok(Target::Tcp(address.to_owned())));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for host in
            ["", "unix://", "unix://a.sock", "ssh://a", "https://a", "/var/run/docker.sock", "tcp://a/b", "tcp://"]
        {
            assert!(matches!(Target::find(Some(host), &none), Err(RuntimeError::Refused(_))), "{host}");
        }
    }

    #[test]
    fn tls_that_was_asked_for_is_not_left_out() {
        let lookup = |name: &str| match name {
            "DOCKER_HOST" => Some("tcp://10.0.0.1:2376".to_owned()),
            "DOCKER_TLS_VERIFY" => Some("1".to_owned()),
            _ => None,
        };
        assert!(matches!(Target::find(None, &lookup), Err(RuntimeError::Refused(_))));
    }

    #[test]
    fn the_usual_places_are_rootless_and_podman_s_too() {
        let lookup = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/1000".to_owned()),
            "HOME" => Some("/home/a".to_owned()),
            _ => None,
        };
        let Ok(Target::Search(sockets)) = Target::find(None, &lookup) else { panic!("nothing is set") };
        assert_eq!(
            sockets,
            [
                "/var/run/docker.sock",
                "/run/user/1000/docker.sock",
                "/home/a/.docker/run/docker.sock",
                "/run/user/1000/podman/podman.sock",
                "/run/podman/podman.sock",
            ]
        );
    }

    #[test]
    fn credentials_go_out_in_the_alphabet_that_docker_reads() {
        let mut request = BollardRequest::new(bollard::body_full(bytes::Bytes::new()));
        assert!(!with_url_safe_auth(request).headers().contains_key("x-registry-auth"));
        request = BollardRequest::new(bollard::body_full(bytes::Bytes::new()));
        let Ok(value) = "a+b/c==".parse() else { panic!("that is a header's value") };
        request.headers_mut().insert("x-registry-auth", value);
        let request = with_url_safe_auth(request);
        let Some(value) = request.headers().get("x-registry-auth") else { panic!("it is kept") };
        assert!(value == "a-b_c==" && value.is_sensitive());
    }

    #[tokio::test]
    async fn the_first_socket_with_a_daemon_is_used_also_one_that_is_away() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
        let at = |name: &str| dir.path().join(name).display().to_string();
        assert!(matches!(usable(&[at("none")]).await, Err(RuntimeError::Unreachable(_))));
        // A listener that is gone leaves its socket behind.
        drop(std::os::unix::net::UnixListener::bind(at("stale")));
        assert_eq!(usable(&[at("none"), at("stale")]).await, Ok(at("stale")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_hangs_is_away() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
        let path = dir.path().join("d.sock").display().to_string();
        let Ok(_listener) = std::os::unix::net::UnixListener::bind(&path) else { panic!("the socket is free") };
        let answer = Connection::new(Target::Unix(path)).answering().await;
        assert!(matches!(answer, Err(RuntimeError::Unreachable(why)) if why == "it does not answer within 5 s"));
    }

    #[tokio::test]
    async fn a_socket_that_appears_later_is_found() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
        let path = dir.path().join("d.sock").display().to_string();
        let connection = Connection::new(Target::Unix(path.clone()));
        assert!(matches!(connection.client().await, Err(RuntimeError::Unreachable(_))));
        let listener = std::os::unix::net::UnixListener::bind(&path);
        assert!(listener.is_ok() && connection.client().await.is_ok());
    }
}
