//! The operator's credentials for registries, from Docker's own configuration: `config.json` with `auths`, `credHelpers`
//! and `credsStore`. It is read at every pull, so a `docker login` counts at once, and nothing of it is kept.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::auth::DockerCredentials;
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::connect::Lookup;
use crate::{limits, reference};

/// The key under which Docker Hub's credentials are kept, for historical reasons.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// What a helper prints where it has nothing, with a failing exit code.
const NOTHING: &str = "credentials not found";

/// The user name by which a helper says that the secret is an identity token.
const TOKEN_USER: &str = "<token>";

/// Where credentials are looked for.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    /// Directory of `config.json`; none where there is no home.
    dir: Option<PathBuf>,
}

// No `Debug` for the three below: they hold secrets.

#[derive(Default, Deserialize)]
struct ConfigFile {
    #[serde(default)]
    auths: HashMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: HashMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

impl Credentials {
    /// `$DOCKER_CONFIG`, else `~/.docker`.
    pub(crate) fn new(lookup: Lookup<'_>) -> Self {
        let dir = lookup("DOCKER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| lookup("HOME").map(|home| PathBuf::from(home).join(".docker")));
        Self { dir }
    }

    /// The credentials for a registry, `None` where there are none. The error says in a sentence what is wrong with the
    /// configuration; it holds no secret.
    pub(crate) async fn find(&self, registry: &str) -> Result<Option<DockerCredentials>, String> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let path = dir.join("config.json");
        let bytes = match tokio::fs::read(&path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
        };
        // serde's message may quote a value, so only the place is passed on.
        let config: ConfigFile = serde_json::from_slice(&bytes).map_err(|error| {
            format!("{} is not understood, line {} column {}", path.display(), error.line(), error.column())
        })?;
        let key = if registry == reference::HUB { HUB_KEY } else { registry };
        // As for `docker pull`: a helper, where one is named, is asked instead of the file.
        let helper = config.helpers.get(key).or_else(|| config.helpers.get(registry)).unwrap_or(&config.store);
        if helper.is_empty() { from_file(&config, key) } else { from_helper(&program(helper)?, key).await }
    }
}

fn credentials(server: &str) -> DockerCredentials {
    DockerCredentials { serveraddress: Some(server.to_owned()), ..DockerCredentials::default() }
}

fn from_file(config: &ConfigFile, key: &str) -> Result<Option<DockerCredentials>, String> {
    let host = hostname(key);
    let entry = config.auths.get(key).or_else(|| {
        // Old entries are URLs.
        config.auths.iter().find(|(name, _)| hostname(name) == host).map(|(_, entry)| entry)
    });
    let Some(entry) = entry else { return Ok(None) };
    let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut found = credentials(key);
    found.username = set(&entry.username);
    found.password = set(&entry.password);
    found.identitytoken = set(&entry.identitytoken);
    found.registrytoken = set(&entry.registrytoken);
    if !entry.auth.is_empty() {
        let broken = || format!("the entry for {key} in Docker's configuration is broken");
        let bytes = STANDARD.decode(entry.auth.trim()).map_err(|_| broken())?;
        let text = String::from_utf8(bytes).map_err(|_| broken())?;
        let (user, password) = text.split_once(':').ok_or_else(broken)?;
        found.username = set(user);
        // Docker's own client pads some passwords with zero bytes and takes them off again.
        found.password = set(password.trim_end_matches('\0'));
    }
    let anything = found.username.is_some() || found.identitytoken.is_some() || found.registrytoken.is_some();
    Ok(anything.then_some(found))
}

/// The host of a key, which may be a URL.
fn hostname(key: &str) -> &str {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    rest.split('/').next().unwrap_or(rest)
}

/// The program behind a helper's name, which is found in the search path and therefore is no path itself.
fn program(helper: &str) -> Result<String, String> {
    if helper.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        Ok(format!("docker-credential-{helper}"))
    } else {
        Err(format!("`{}` is no name of a credential helper", helper.escape_debug()))
    }
}

async fn from_helper(program: &str, key: &str) -> Result<Option<DockerCredentials>, String> {
    let output = tokio::time::timeout(limits::HELPER, ask(program, key))
        .await
        .map_err(|_| format!("{program} did not answer within {:?}", limits::HELPER))?
        .map_err(|error| format!("{program} cannot be used: {error}"))?;
    if !output.status.success() {
        // The one failure that is an answer. Others are not quoted: nobody knows what a helper prints.
        let nothing = [&output.stdout, &output.stderr].iter().any(|text| {
            let text = String::from_utf8_lossy(text);
            text.contains(NOTHING)
        });
        return if nothing { Ok(None) } else { Err(format!("{program} failed for {key} ({})", output.status)) };
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&output.stdout).map_err(|_| format!("{program} answered something else than JSON"))?;
    let mut found = credentials(key);
    if answer.username == TOKEN_USER {
        found.identitytoken = Some(answer.secret);
    } else {
        found.username = Some(answer.username);
        found.password = Some(answer.secret);
    }
    Ok(Some(found))
}

async fn ask(program: &str, key: &str) -> std::io::Result<std::process::Output> {
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that does not read its input shows by its answer; the pipe that breaks then is no news.
        let _ = stdin.write_all(key.as_bytes()).await;
    }
    child.wait_with_output().await
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn with(config: &str) -> Self {
            let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
            assert!(std::fs::write(dir.path().join("config.json"), config).is_ok());
            Self(dir)
        }

        async fn find(&self, registry: &str) -> Result<Option<DockerCredentials>, String> {
            Credentials { dir: Some(self.0.path().to_owned()) }.find(registry).await
        }

        /// Asks a helper that is this script.
        async fn ask(&self, script: &str) -> Result<Option<DockerCredentials>, String> {
            let path = self.0.path().join("helper");
            // Written by a process of its own: a script that this one holds open for writing while another test forks
            // could not be run.
            let script = format!("printf '%s\\n' '#!/bin/sh' '{script}' > '{0}' && chmod +x '{0}'", path.display());
            assert!(
                std::process::Command::new("sh").args(["-c", &script]).status().is_ok_and(|status| status.success())
            );
            from_helper(&path.display().to_string(), "r.internal").await
        }
    }

    fn user(found: Result<Option<DockerCredentials>, String>) -> (String, String) {
        let Ok(Some(found)) = found else { panic!("there are credentials") };
        (found.username.unwrap_or_default(), found.password.unwrap_or_default())
    }

    #[tokio::test]
    async fn nothing_configured_is_no_error() {
        let Ok(dir) = tempfile::tempdir() else { panic!("no temporary directory") };
        let nowhere = Credentials { dir: Some(dir.path().join("none")) };
        assert_eq!(nowhere.find("r.internal").await, Ok(None));
        assert_eq!(Credentials { dir: None }.find("r.internal").await, Ok(None));
        assert_eq!(Home::with("{}").find("r.internal").await, Ok(None));
        // What `docker login` leaves in the file when a store keeps the secret.
        assert_eq!(Home::with(r#"{"auths": {"r.internal": {}}}"#).find("r.internal").await, Ok(None));
    }

    #[tokio::test]
    async fn entries_are_decoded() {
        let auth = STANDARD.encode("me:pass:word?>~");
        let home = Home::with(&format!(r#"{{"auths": {{"r.internal:5000": {{"auth": "{auth}"}}}}, "other": 1}}"#));
        assert_eq!(user(home.find("r.internal:5000").await), ("me".to_owned(), "pass:word?>~".to_owned()));
        assert_eq!(home.find("r.internal").await, Ok(None));
    }

    #[tokio::test]
    async fn the_hub_and_urls_are_found_by_their_host() {
        let auth = STANDARD.encode("me:secret");
        let home = Home::with(&format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{auth}"}},
                "https://old.internal/v2/": {{"username": "you", "password": "s", "identitytoken": "t"}}}}}}"#
        ));
        assert_eq!(user(home.find(reference::HUB).await).0, "me");
        let Ok(Some(old)) = home.find("old.internal").await else { panic!("there are credentials") };
        assert_eq!((old.username.as_deref(), old.identitytoken.as_deref()), (Some("you"), Some("t")));
        assert_eq!(old.serveraddress.as_deref(), Some("old.internal"));
    }

    #[tokio::test]
    async fn what_is_broken_is_said_without_the_secret() {
        let home = Home::with(r#"{"auths": {"r.internal": {"auth": "aHVudGVyMg=="}}}"#);
        let Err(text) = home.find("r.internal").await else { panic!("there is no colon in it") };
        assert!(text.contains("r.internal") && !text.contains("hunter2"), "{text}");
        let home = Home::with(r#"{"auths": {"r.internal": {"auth": 1234567}}}"#);
        let Err(text) = home.find("r.internal").await else { panic!("that is no string") };
        assert!(text.contains("line 1") && !text.contains("1234567"), "{text}");
    }

    #[tokio::test]
    async fn a_named_helper_is_asked_instead_of_the_file() {
        let auth = STANDARD.encode("me:secret");
        let home = Home::with(&format!(
            r#"{{"auths": {{"r.internal": {{"auth": "{auth}"}}}},
                "credHelpers": {{"r.internal": "sandbar-no-such-helper"}}, "credsStore": "a/b"}}"#
        ));
        let Err(text) = home.find("r.internal").await else { panic!("there is no such helper") };
        assert!(text.contains("docker-credential-sandbar-no-such-helper"), "{text}");
        let Err(text) = home.find("other.internal").await else { panic!("the store's name is a path") };
        assert!(text.contains("a/b"), "{text}");
    }

    #[tokio::test]
    async fn helpers_read_the_registry_and_answer_in_json() {
        let home = Home::with("{}");
        let found =
            home.ask(r#"[ "$1" = get ] || exit 3; read s; echo "{\"Username\":\"u\",\"Secret\":\"of $s\"}""#).await;
        assert_eq!(user(found), ("u".to_owned(), "of r.internal".to_owned()));
        let found = home.ask(r#"echo "{\"Username\":\"<token>\",\"Secret\":\"t\"}""#).await;
        assert!(
            found.is_ok_and(|c| c.is_some_and(|c| c.identitytoken.as_deref() == Some("t") && c.username.is_none()))
        );
    }

    #[tokio::test]
    async fn a_helper_that_has_nothing_is_no_error_and_one_that_fails_is() {
        let home = Home::with("{}");
        assert_eq!(home.ask("echo credentials not found in native keychain; exit 1").await, Ok(None));
        let Err(text) = home.ask("echo hunter2; exit 1").await else { panic!("it failed") };
        assert!(!text.contains("hunter2"), "{text}");
        let Err(text) = home.ask("echo hunter2").await else { panic!("that is no JSON") };
        assert!(!text.contains("hunter2"), "{text}");
    }
}
