//! From a plan and the image's own declarations to the body of Docker's create call. Pure; adds nothing that is not in the
//! plan but what keeps a container small, quiet and without anonymous volumes.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountBindOptionsPropagationEnum,
    MountType, MountVolumeOptions, PortBinding, RestartPolicy, RestartPolicyNameEnum,
};
use sandbar_core::runtime::{DataKind, FolderPlan, Result, RuntimeError, UnitPlan};

use crate::convert::LOOPBACK;
use crate::files;
use crate::reference::identifier;

/// Docker's word for no network but the loopback.
pub(crate) const NO_NETWORK: &str = "none";

/// Two files of half a megabyte rather than one of a whole: Docker empties the last one when it is full, and with a single
/// one the end of the log would be gone just when it matters.
const LOG_FILES: [(&str, &str); 2] = [("max-size", "512k"), ("max-file", "2")];

/// The body for a plan. `volumes` are those that the image declares.
pub(crate) fn body(plan: &UnitPlan, volumes: &[String], network: &str) -> Result<ContainerCreateBody> {
    let places = places(plan, volumes)?;
    hidden_files(plan, &places)?;
    let published = plan.port.filter(|_| plan.publish).map(|port| format!("{port}/tcp"));
    if published.is_some() && !plan.network {
        return Err(RuntimeError::Refused(format!("{} has no network in which a port could be published", plan.name)));
    }
    let (mut tmpfs, mut mounts) = (HashMap::new(), Vec::new());
    for (path, place) in &places {
        match place {
            Place::Tmpfs(bytes) => drop(tmpfs.insert(path.clone(), tmpfs_options(*bytes))),
            Place::Volume(name) => mounts.push(volume(path, name, plan)),
            Place::Folder(from) => mounts.push(folder(path, from)),
        }
    }
    let host_config = HostConfig {
        memory: Some(number(plan.memory_bytes, "memory")?),
        // Memory and swap together, so this is no swap.
        memory_swap: Some(number(plan.memory_bytes, "memory")?),
        nano_cpus: Some(number(plan.milli_cpus.saturating_mul(1_000_000), "cpus")?),
        pids_limit: Some(i64::from(plan.pids)),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(plan.capabilities.clone()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(LOG_FILES.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()),
        }),
        shm_size: Some(number(plan.shm_bytes, "shm")?),
        tmpfs: Some(tmpfs),
        mounts: Some(mounts),
        network_mode: Some(if plan.network { network } else { NO_NETWORK }.to_owned()),
        port_bindings: published.clone().map(|port| {
            // Docker chooses the port where the binding asks for 0.
            let binding = PortBinding { host_ip: Some(LOOPBACK.to_owned()), host_port: Some("0".to_owned()) };
            HashMap::from([(port, Some(vec![binding]))])
        }),
        publish_all_ports: Some(false),
        privileged: Some(false),
        init: Some(false),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        ..HostConfig::default()
    };
    Ok(ContainerCreateBody {
        image: Some(plan.image.clone()),
        labels: Some(plan.labels.clone().into_iter().collect()),
        entrypoint: plan.entrypoint.clone(),
        cmd: (!plan.command.is_empty()).then(|| plan.command.clone()),
        user: (!plan.user.is_empty()).then(|| plan.user.clone()),
        env: Some(plan.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        working_dir: plan.folder.as_ref().map(|folder| mount_point(&folder.path)).transpose()?,
        exposed_ports: published.map(|port| vec![port]),
        host_config: Some(host_config),
        ..ContainerCreateBody::default()
    })
}

/// What is mounted at a place.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Tmpfs(u64),
    Volume(&'a str),
    Folder(&'a str),
}

/// The mounts: the plan's own, and a tmpfs over each volume of the image that has none. Docker makes an anonymous volume for
/// each declared volume unless something is mounted at exactly its path, and compares paths in their clean form.
fn places<'a>(plan: &'a UnitPlan, volumes: &[String]) -> Result<BTreeMap<String, Place<'a>>> {
    let mut places = BTreeMap::new();
    for data in &plan.data {
        let place = match &data.kind {
            DataKind::Tmpfs(bytes) => Place::Tmpfs(*bytes),
            DataKind::Volume(name) => Place::Volume(identifier(name)?),
        };
        add(&mut places, mount_point(&data.path)?, place)?;
    }
    if let Some(folder) = &plan.folder {
        add(&mut places, mount_point(&folder.path)?, Place::Folder(source(folder)?))?;
    }
    for volume in volumes {
        places.entry(mount_point(volume)?).or_insert(Place::Tmpfs(plan.spare_tmpfs_bytes));
    }
    if let Some((path, _)) = places.iter().find(|(_, place)| **place == Place::Tmpfs(0)) {
        // To the kernel it would be one without a limit.
        return Err(RuntimeError::Refused(format!("the tmpfs at `{path}` has no size")));
    }
    if let Some((folder, _)) = places.iter().find(|(_, place)| matches!(place, Place::Folder(_)))
        && let Some(hides) = places.keys().find(|path| *path != folder && files::is_below(path, folder))
    {
        // What is written there would be neither seen in the folder nor kept, and Docker would make the place for it in the
        // folder, wherever a link that stands there leads.
        return Err(RuntimeError::Refused(format!(
            "the data or the image's volume at `{hides}` would hide a part of the folder at `{folder}`"
        )));
    }
    Ok(places)
}

fn add<'a>(places: &mut BTreeMap<String, Place<'a>>, path: String, place: Place<'a>) -> Result<()> {
    let refused = RuntimeError::Refused(format!("two things cannot be mounted at `{path}`"));
    places.insert(path, place).map_or(Ok(()), |_| Err(refused))
}

/// The paths of the plan's volumes, clean, with their names.
pub(crate) fn volumes(plan: &UnitPlan) -> Result<Vec<(String, &str)>> {
    let volumes = plan.data.iter().filter_map(|data| match &data.kind {
        DataKind::Volume(name) => Some((&data.path, name)),
        DataKind::Tmpfs(_) => None,
    });
    volumes.map(|(path, name)| Ok((mount_point(path)?, identifier(name)?))).collect()
}

fn source(folder: &FolderPlan) -> Result<&str> {
    let clean = files::clean(&folder.from).is_some_and(|clean| clean != "/" && folder.from.starts_with('/'));
    let refused = || RuntimeError::Refused(format!("`{}` is no folder to mount", folder.from.escape_debug()));
    clean.then_some(folder.from.as_str()).ok_or_else(refused)
}

fn volume(path: &str, name: &str, plan: &UnitPlan) -> Mount {
    Mount {
        target: Some(path.to_owned()),
        source: Some(name.to_owned()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            // It is there already; should somebody remove it before Docker takes it up, the next one is labelled too.
            labels: Some(plan.labels.clone().into_iter().collect()),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Just this folder: nothing that is mounted below it comes along, and what is mounted later goes neither way.
fn folder(path: &str, from: &str) -> Mount {
    Mount {
        target: Some(path.to_owned()),
        source: Some(from.to_owned()),
        typ: Some(MountType::BIND),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::PRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn mount_point(path: &str) -> Result<String> {
    // A colon ends the path in Docker's own notation, a comma an option in the kernel's.
    files::clean(path)
        .filter(|clean| clean != "/" && !clean.contains([':', ',']))
        .ok_or_else(|| RuntimeError::Refused(format!("nothing can be mounted at `{}`", path.escape_debug())))
}

/// Writable by all, as the data folders of images belong to users that the host does not know, and sticky. `noexec` is
/// Docker's own default, and nothing that belongs there is run from there.
fn tmpfs_options(bytes: u64) -> String {
    format!("rw,noexec,nosuid,nodev,mode=1777,size={bytes}")
}

/// Files go in before the start. One below a tmpfs would never be seen, and one below a volume or the folder would change
/// what is kept there.
fn hidden_files(plan: &UnitPlan, places: &BTreeMap<String, Place<'_>>) -> Result<()> {
    for file in &plan.files {
        let path = files::clean(&file.path).unwrap_or_default();
        if let Some(mount) = places.keys().find(|mount| files::is_below(&path, mount)) {
            return Err(RuntimeError::Refused(format!("the file `{path}` would lie in the mount at `{mount}`")));
        }
    }
    Ok(())
}

fn number(value: u64, of: &str) -> Result<i64> {
    i64::try_from(value).map_err(|_| RuntimeError::Refused(format!("{value} is too much for {of}")))
}

#[cfg(test)]
mod tests {
    use sandbar_core::runtime::{DataPlan, FilePlan};

    use super::*;

    fn plan() -> UnitPlan {
        UnitPlan {
            name: "sandbar-making-1".to_owned(),
            labels: [("k".to_owned(), "v".to_owned())].into(),
            image: "redis:8".to_owned(),
            entrypoint: None,
            command: Vec::new(),
            user: String::new(),
            env: vec![("A".to_owned(), "b=c".to_owned())],
            files: Vec::new(),
            data: vec![DataPlan { path: "/data".to_owned(), kind: DataKind::Tmpfs(1 << 20) }],
            folder: None,
            network: true,
            spare_tmpfs_bytes: 4096,
            shm_bytes: 8192,
            memory_bytes: 512 << 20,
            milli_cpus: 1500,
            pids: 256,
            capabilities: vec!["CHOWN".to_owned()],
            port: Some(6379),
            publish: false,
        }
    }

    fn host(plan: &UnitPlan, volumes: &[&str]) -> HostConfig {
        let volumes: Vec<String> = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        let Ok(body) = body(plan, &volumes, "net") else { panic!("the plan is fine") };
        body.host_config.unwrap_or_default()
    }

    #[test]
    fn limits_are_docker_s_numbers() {
        let host = host(&plan(), &[]);
        assert_eq!((host.memory, host.memory_swap), (Some(512 << 20), Some(512 << 20)));
        assert_eq!((host.nano_cpus, host.pids_limit, host.shm_size), (Some(1_500_000_000), Some(256), Some(8192)));
        assert_eq!(host.cap_drop, Some(vec!["ALL".to_owned()]));
        assert_eq!(host.cap_add, Some(vec!["CHOWN".to_owned()]));
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".to_owned()]));
        assert_eq!(host.network_mode.as_deref(), Some("net"));
        assert_eq!(host.oom_score_adj, None);
    }

    #[test]
    fn every_declared_volume_is_covered_once() {
        let tmpfs = host(&plan(), &["/data/", "conf", "/data/sub"]).tmpfs.unwrap_or_default();
        let mut paths: Vec<_> = tmpfs.keys().map(String::as_str).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["/conf", "/data", "/data/sub"]);
        assert!(tmpfs["/data"].ends_with("size=1048576") && tmpfs["/conf"].ends_with("size=4096"));
        assert!(tmpfs["/conf"].contains("noexec"));
    }

    #[test]
    fn a_mount_without_a_size_or_at_no_place_is_refused() {
        let mut sizeless = plan();
        sizeless.spare_tmpfs_bytes = 0;
        assert!(body(&sizeless, &[], "net").is_ok());
        assert!(body(&sizeless, &["/v".to_owned()], "net").is_err());
        for path in ["/", "/a:ro", "/a,size=1", ".."] {
            assert!(matches!(body(&plan(), &[path.to_owned()], "net"), Err(RuntimeError::Refused(_))), "{path}");
        }
    }

    fn with_folder(path: &str) -> UnitPlan {
        let folder = FolderPlan { from: "/srv/boxes/1".to_owned(), path: path.to_owned() };
        UnitPlan { folder: Some(folder), ..plan() }
    }

    #[test]
    fn volumes_and_the_folder_are_mounted_and_cover_the_image_s_own() {
        let mut kept = with_folder("/work/");
        kept.data[0].kind = DataKind::Volume("v-1".to_owned());
        let Ok(made) = body(&kept, &["/data".to_owned(), "/work".to_owned()], "net") else { panic!("it is fine") };
        assert_eq!(made.working_dir.as_deref(), Some("/work"));
        let host = made.host_config.unwrap_or_default();
        assert_eq!(host.tmpfs, Some(HashMap::new()));
        let mounts = host.mounts.unwrap_or_default();
        let seen = mounts.iter().map(|mount| (mount.typ, mount.source.as_deref(), mount.target.as_deref()));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [
                (Some(MountType::VOLUME), Some("v-1"), Some("/data")),
                (Some(MountType::BIND), Some("/srv/boxes/1"), Some("/work")),
            ]
        );
        let options = mounts[0].volume_options.clone().unwrap_or_default();
        assert_eq!((options.no_copy, options.labels), (Some(true), Some([("k".to_owned(), "v".to_owned())].into())));
    }

    #[test]
    fn what_would_hide_a_part_of_the_folder_is_refused() {
        let refused = |plan: &UnitPlan, volumes: &[String]| matches!(body(plan, volumes, "net"), Err(RuntimeError::Refused(text)) if text.contains("/work"));
        assert!(refused(&with_folder("/work"), &["/work/cache".to_owned()]));
        assert!(!refused(&with_folder("/work"), &["/workshop".to_owned()]));
        // Above it is another matter: the folder is mounted there in turn.
        assert!(!refused(&with_folder("/work/here"), &["/work".to_owned()]));
        let mut plan = with_folder("/work");
        for path in ["/work", "/work/data"] {
            plan.data[0].path = path.to_owned();
            assert!(refused(&plan, &[]), "{path}");
        }
    }

    #[test]
    fn a_folder_from_nowhere_is_refused() {
        for from in ["", "relative", "/", "/a/../b"] {
            let mut plan = with_folder("/work");
            plan.folder = Some(FolderPlan { from: from.to_owned(), path: "/work".to_owned() });
            assert!(matches!(body(&plan, &[], "net"), Err(RuntimeError::Refused(_))), "{from}");
        }
    }

    #[test]
    fn without_a_network_nothing_is_published() {
        let mut plan = plan();
        plan.network = false;
        assert_eq!(host(&plan, &[]).network_mode.as_deref(), Some("none"));
        plan.publish = true;
        assert!(matches!(body(&plan, &[], "net"), Err(RuntimeError::Refused(_))));
    }

    #[test]
    fn a_file_that_a_mount_would_hide_is_refused() {
        let mut hidden = plan();
        hidden.files = vec![FilePlan { path: "/data//x".to_owned(), mode: 0o644, content: String::new() }];
        assert!(matches!(body(&hidden, &[], "net"), Err(RuntimeError::Refused(text)) if text.contains("/data/x")));
        hidden.files[0].path = "/database".to_owned();
        assert!(body(&hidden, &[], "net").is_ok());
    }

    #[test]
    fn a_port_is_published_only_on_the_loopback_and_only_when_asked() {
        assert_eq!(host(&plan(), &[]).port_bindings, None);
        let mut published = plan();
        published.publish = true;
        let bindings = host(&published, &[]).port_bindings.unwrap_or_default();
        let Some(Some(binding)) = bindings.get("6379/tcp") else { panic!("it is published") };
        assert_eq!((binding[0].host_ip.as_deref(), binding[0].host_port.as_deref()), (Some("127.0.0.1"), Some("0")));
        published.port = None;
        assert_eq!(host(&published, &[]).port_bindings, None);
    }

    #[test]
    fn the_image_s_own_command_and_user_stay_where_the_plan_has_none() {
        let Ok(made) = body(&plan(), &[], "net") else { panic!("the plan is fine") };
        assert_eq!((&made.cmd, &made.user, &made.entrypoint), (&None, &None, &None));
        assert_eq!(made.env, Some(vec!["A=b=c".to_owned()]));
    }
}
