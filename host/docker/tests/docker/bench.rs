//! What every test here stands on: a runtime with an installation of its own, plans to vary, the image, and the clearing
//! up.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bollard::Docker;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateImageOptions, InspectContainerOptions, ListContainersOptions, ListNetworksOptions, ListVolumesOptions,
    RemoveContainerOptions, RemoveVolumeOptions, TopOptions,
};
use futures_util::TryStreamExt as _;
use sandbar_core::progress::ProgressSink;
use sandbar_core::runtime::{
    DataKind, DataPlan, ExecOutput, ExecPlan, Exit, PutError, Result, Runtime as _, Unit, UnitPlan,
};
use sandbar_docker::{DockerOptions, DockerRuntime, PullLimits};
use tokio::sync::OnceCell;

/// The image: busybox with two volumes, one of them written with a final slash, and a folder that nobody may change.
pub(crate) const IMAGE: &str = "sandbar-standin/busybox:test";

/// An image with Debian's shell and programs, which `make setup` builds.
pub(crate) const DEBIAN: &str = "sandbar-standin/redis:8";

/// What a room starts with: it waits, and buries what others leave to it. Where it cannot start what it waits for, it begins
/// anew.
const FIRST: &str = "trap 'exec sh -c \"$0\" \"$0\"' EXIT\nwhile :; do sleep 600 & wait; done";

/// The label that marks a test's installation.
pub(crate) const INSTALLATION: &str = "sandbar-test.installation";

/// How long a condition may take to come true.
const PATIENCE: Duration = Duration::from_secs(20);

/// A runtime for one test.
pub(crate) struct Bench {
    pub(crate) runtime: DockerRuntime,
    pub(crate) docker: Docker,
    /// Installation, network and beginning of every name.
    pub(crate) id: String,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::at(None).await
    }

    /// One that reaches the daemon at another address than the test itself does.
    pub(crate) async fn at(host: Option<String>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = std::time::UNIX_EPOCH.elapsed().expect("the clock is past 1970").subsec_nanos();
        let id = format!("sbt-{:x}-{:x}-{}", std::process::id(), now, COUNT.fetch_add(1, Ordering::Relaxed));
        let docker = Docker::connect_with_local_defaults().expect("a Docker daemon is there");
        image(&docker).await;
        Self { runtime: runtime(host, &id), docker, id }
    }

    /// A second runtime of the same installation.
    pub(crate) fn another_host(&self) -> DockerRuntime {
        runtime(None, &self.id)
    }

    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}-{rest}", self.id)
    }

    /// A plan that runs a shell line.
    pub(crate) fn plan(&self, name: &str, line: &str) -> UnitPlan {
        UnitPlan {
            name: self.name(name),
            labels: [(INSTALLATION.to_owned(), self.id.clone()), ("sandbar-test.name".to_owned(), name.to_owned())]
                .into(),
            image: IMAGE.to_owned(),
            entrypoint: None,
            command: ["sh", "-c", line].map(str::to_owned).to_vec(),
            user: String::new(),
            env: vec![("PASSWORD".to_owned(), "0123456789abcdef0123456789abcdef".to_owned())],
            files: Vec::new(),
            data: vec![DataPlan { path: "/data".to_owned(), kind: DataKind::Tmpfs(1 << 20) }],
            folder: None,
            network: true,
            spare_tmpfs_bytes: 1 << 16,
            shm_bytes: 1 << 20,
            memory_bytes: 32 << 20,
            milli_cpus: 500,
            pids: 32,
            capabilities: Vec::new(),
            port: None,
            publish: false,
        }
    }

    /// A plan for what tenants run commands in: it has no network, and nothing that ended stays. `BB` goes before
    /// programs for which the image may have no link.
    pub(crate) fn room(&self, name: &str, image: &str) -> UnitPlan {
        UnitPlan {
            image: image.to_owned(),
            entrypoint: Some(["sh", "-c"].map(str::to_owned).to_vec()),
            command: vec![FIRST.to_owned(), FIRST.to_owned()],
            user: "1000".to_owned(),
            env: vec![("BB".to_owned(), if image == IMAGE { "busybox".to_owned() } else { String::new() })],
            network: false,
            memory_bytes: 64 << 20,
            milli_cpus: 1000,
            pids: 64,
            ..self.plan(name, "")
        }
    }

    /// The processes of a room but the first, as the daemon sees them. One that is dead and only waited for does
    /// not count.
    pub(crate) async fn processes(&self, unit: &Unit) -> Vec<String> {
        let options = TopOptions { ps_args: "-eo pid,stat,args".to_owned() };
        let top = self.docker.top_processes(&unit.id, Some(options)).await.expect("it runs");
        let rows = top.processes.unwrap_or_default().into_iter().filter(|row| !row[1].starts_with('Z'));
        let mut processes: Vec<_> = rows.map(|row| row[2].clone()).collect();
        // Nor does the guard that waits for the next command.
        processes.retain(|args| !args.contains("sleep 600") && !args.contains("waits for its order"));
        processes.sort_unstable();
        processes
    }

    pub(crate) async fn try_put(&self, plan: &UnitPlan) -> Result<Unit, PutError> {
        self.runtime.put(plan, &ProgressSink::silent()).await
    }

    pub(crate) async fn put(&self, plan: &UnitPlan) -> Unit {
        self.try_put(plan).await.expect("the plan can be carried out")
    }

    /// A unit that runs until it is removed, and at once on a signal.
    pub(crate) async fn sleeper(&self, name: &str) -> Unit {
        self.put(&self.plan(name, "exec sleep 600")).await
    }

    pub(crate) async fn exec(&self, unit: &Unit, line: &str) -> Result<ExecOutput> {
        self.runtime.exec(&unit.id, &command(line)).await
    }

    /// The end of a unit, for which a test does not wait for ever.
    pub(crate) async fn ended(&self, unit: &Unit) -> Result<Exit> {
        tokio::time::timeout(PATIENCE, self.runtime.ended(&unit.id)).await.expect("the unit ends")
    }

    pub(crate) async fn raw(&self, id: &str) -> ContainerInspectResponse {
        self.docker.inspect_container(id, None::<InspectContainerOptions>).await.expect("the container is there")
    }

    /// Every unit of this test's installation, as a listing tells of it, but for the image.
    pub(crate) async fn mine(&self) -> Vec<Unit> {
        let listed = self.runtime.list(&[(INSTALLATION, &self.id)]).await.expect("Docker lists");
        listed.into_iter().map(|unit| Unit { image: None, ..unit }).collect()
    }
}

/// A unit as a listing tells of it, which does not say since when it runs.
pub(crate) fn listed(unit: &Unit) -> Unit {
    Unit { run: None, ..unit.clone() }
}

fn runtime(host: Option<String>, id: &str) -> DockerRuntime {
    let options = DockerOptions {
        host,
        network: id.to_owned(),
        network_labels: [("sandbar-test.extra".to_owned(), "1".to_owned())].into(),
        installation: (INSTALLATION.to_owned(), id.to_owned()),
        pull: PullLimits::default(),
    };
    DockerRuntime::connect(options).expect("the options are fine")
}

impl Drop for Bench {
    fn drop(&mut self) {
        let (docker, id) = (self.docker.clone(), self.id.clone());
        // A thread of its own, as the test's runtime may be unwinding.
        let cleared = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(clear(&docker, &id));
        });
        assert!(cleared.join().is_ok() || std::thread::panicking(), "the test's containers could not be cleared up");
    }
}

async fn clear(docker: &Docker, id: &str) {
    let filters = Some(HashMap::from([("label".to_owned(), vec![format!("{INSTALLATION}={id}")])]));
    let options = ListContainersOptions { all: true, filters: filters.clone(), ..ListContainersOptions::default() };
    for container in docker.list_containers(Some(options)).await.expect("Docker lists") {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        let removed = docker.remove_container(&container.id.unwrap_or_default(), Some(options)).await;
        removed.expect("Docker removes");
    }
    let options = ListVolumesOptions { filters: filters.clone() };
    for volume in docker.list_volumes(Some(options)).await.expect("Docker lists").volumes.unwrap_or_default() {
        docker.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await.expect("Docker removes");
    }
    for network in docker.list_networks(Some(ListNetworksOptions { filters })).await.expect("Docker lists") {
        docker.remove_network(&network.id.unwrap_or_default()).await.expect("Docker removes");
    }
}

/// A command that runs a shell line.
pub(crate) fn command(line: &str) -> ExecPlan {
    ExecPlan {
        argv: ["sh", "-c", line].map(str::to_owned).to_vec(),
        env: Vec::new(),
        user: None,
        timeout: Duration::from_secs(10),
    }
}

/// Polls until there is an answer.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, poll: impl Fn() -> F) -> T {
    let answer = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(answer) = poll().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    answer.await.unwrap_or_else(|_| panic!("{what} did not come true within {PATIENCE:?}"))
}

/// Makes the image where it is not there yet.
async fn image(docker: &Docker) {
    static MADE: OnceCell<()> = OnceCell::const_new();
    let make = async {
        if docker.inspect_image(IMAGE).await.is_ok() {
            return;
        }
        let (repo, tag) = IMAGE.split_once(':').expect("the image has a tag");
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(repo.to_owned()),
            tag: Some(tag.to_owned()),
            changes: vec![
                r#"VOLUME ["/data/", "/cache"]"#.to_owned(),
                r#"CMD ["sleep", "600"]"#.to_owned(),
                "ENV FROM_IMAGE=yes".to_owned(),
            ],
            ..CreateImageOptions::default()
        };
        let body = bollard::body_full(tree().into());
        let made: Result<Vec<_>, _> = docker.create_image(Some(options), Some(body), None).try_collect().await;
        made.expect("Docker imports the image");
    };
    MADE.get_or_init(|| make).await;
}

/// The image's files, as a tar.
fn tree() -> Vec<u8> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let busybox = busybox.expect("busybox is there (apt-get install busybox-static)");
    let mut tar = tar::Builder::new(Vec::new());
    for (folder, mode, owner) in [("bin", 0o755, 0), ("etc", 0o755, 0), ("tmp", 0o1777, 0), ("kept", 0o750, 7)] {
        let mut header = entry(tar::EntryType::Directory, mode);
        header.set_uid(owner);
        tar.append_data(&mut header, folder, std::io::empty()).expect("a folder fits");
    }
    let bytes = std::fs::read(busybox).expect("busybox can be read");
    let mut header = entry(tar::EntryType::Regular, 0o755);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, "bin/busybox", bytes.as_slice()).expect("busybox fits");
    let tools = "sh cat dd echo env false grep head id kill ls mkdir nc printf seq sleep stat tail touch true yes";
    for tool in tools.split(' ') {
        let mut header = entry(tar::EntryType::Symlink, 0o777);
        tar.append_link(&mut header, format!("bin/{tool}"), "busybox").expect("a link fits");
    }
    tar.into_inner().expect("the tar is whole")
}

fn entry(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(946_684_800);
    header
}
