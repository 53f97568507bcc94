//! Debian's `docker-registry`, as a process of its own with a directory of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::image::{Blob, Image};
use super::{forget, pulled_from};

/// A user of a registry.
#[derive(Debug, Clone)]
pub struct Account {
    /// Name, without a colon.
    pub user: String,
    /// Password.
    pub password: String,
    /// The password's bcrypt hash, the one form that the registry reads.
    pub bcrypt: &'static str,
}

impl Account {
    /// User and password as Docker's configuration and HTTP's basic authentication write them.
    pub fn base64(&self) -> String {
        STANDARD.encode(format!("{}:{}", self.user, self.password))
    }
}

/// A running registry. Dropping it ends it, and removes what was pulled from it.
pub struct Real {
    child: Child,
    address: String,
    account: Option<Account>,
    _dir: tempfile::TempDir,
}

impl Real {
    /// One that anybody may use.
    ///
    /// # Panics
    /// When it does not start.
    pub fn open() -> Self {
        Self::start(None).expect("a registry starts")
    }

    /// One that only this user may use.
    ///
    /// # Panics
    /// When it does not start.
    pub fn of(account: Account) -> Self {
        Self::start(Some(account)).expect("a registry starts")
    }

    fn start(account: Option<Account>) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("sandbar-registry-").tempdir()?;
        let at = |name: &str| dir.path().join(name).display().to_string();
        let mut config = format!(
            "version: 0.1\nlog: {{ accesslog: {{ disabled: true }} }}\n\
             storage: {{ filesystem: {{ rootdirectory: {:?} }} }}\nhttp: {{ addr: \"127.0.0.1:0\" }}\n",
            at("storage")
        );
        if let Some(account) = &account {
            std::fs::write(at("htpasswd"), format!("{}:{}\n", account.user, account.bcrypt))?;
            config.push_str(&format!("auth: {{ htpasswd: {{ realm: test, path: {:?} }} }}\n", at("htpasswd")));
        }
        std::fs::write(at("config.yml"), config)?;
        let mut command = Command::new(program());
        command.args(["serve", &at("config.yml")]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("docker-registry is missing: run `make setup`")?;
        let stderr = child.stderr.take().context("its standard error is piped")?;
        // From here on dropping ends it.
        let mut registry = Self { child, address: String::new(), account, _dir: dir };
        let mut log = BufReader::new(stderr).lines().map_while(Result::ok);
        let mut said = Vec::new();
        for line in log.by_ref() {
            if let Some((_, port)) = line.split_once("listening on 127.0.0.1:") {
                let digits: String = port.chars().take_while(char::is_ascii_digit).collect();
                // By a name, as registries are written.
                registry.address = format!("localhost:{digits}");
                break;
            }
            said.push(line);
        }
        if registry.address.is_empty() {
            bail!("the registry did not say where it listens:\n{}", said.join("\n"));
        }
        // It would stop at a pipe that is full.
        std::thread::spawn(move || log.for_each(drop));
        Ok(registry)
    }

    /// Its address, as image names begin with it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Ends it before its time. What was pulled stays until it is dropped.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Puts an image in under a name such as `team/thing:1`; answers the name by which Docker pulls it. Docker itself has
    /// no part in this, and so none of the image.
    ///
    /// # Panics
    /// When the registry does not take it.
    pub fn push(&self, name: &str, image: &Image) -> String {
        self.try_push(name, image).expect("the registry takes the image");
        let pulled = pulled_from(&self.address).expect("Docker answers");
        let full = format!("{}/{name}", self.address);
        assert!(!pulled.contains(&full), "Docker has {full} before it was pulled");
        full
    }

    fn try_push(&self, name: &str, image: &Image) -> Result<()> {
        let (repository, tag) = name.split_once(':').context("a name has a tag")?;
        let at = |rest: &str| format!("http://{}/v2/{repository}/{rest}", self.address);
        for blob in [&image.layer, &image.config] {
            let upload = self.request("POST", &at("blobs/uploads/"), None)?;
            let upload = upload.headers().get("location").context("it says where to")?.to_str()?;
            let sign = if upload.contains('?') { '&' } else { '?' };
            self.request("PUT", &format!("{upload}{sign}digest={}", blob.digest), Some(blob))?;
        }
        self.request("PUT", &at(&format!("manifests/{tag}")), Some(&image.manifest))?;
        Ok(())
    }

    fn request(&self, method: &str, url: &str, blob: Option<&Blob>) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        if let Some(account) = &self.account {
            request = request.header("authorization", format!("Basic {}", account.base64()));
        }
        if let Some(blob) = blob {
            let is_manifest = blob.media_type.contains("manifest");
            let media_type = if is_manifest { blob.media_type } else { "application/octet-stream" };
            request = request.header("content-type", media_type);
        }
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent.run(request.body(blob.map(|b| b.bytes.clone()).unwrap_or_default())?)?;
        let status = answer.status();
        ensure!(status.is_success(), "{method} {url}: {status} {}", answer.body_mut().read_to_string()?);
        Ok(answer)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.stop();
        forget(&self.address);
    }
}

/// In the search path, else where `tests/registry/ensure.sh` puts it.
fn program() -> PathBuf {
    const NAME: &str = "docker-registry";
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|dir| dir.join(NAME)).find(|path| path.exists());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home).unwrap_or_default();
    found.unwrap_or_else(|| cache.join("sandbar").join(NAME))
}
