//! Named volumes, for what outlives a container. Uses and removes only those with this installation's label.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::{Volume, VolumeCreateRequest};
use bollard::query_parameters::{
    ContainerArchiveInfoOptions, ListVolumesOptions, RemoveVolumeOptions, UploadToContainerOptions,
};
use sandbar_core::runtime::{Labels, Result, RuntimeError};

use crate::errors::within;
use crate::reference::identifier;
use crate::{files, limits};

/// The mode of a volume's folder as Docker makes it.
const FRESH: u32 = 0o755;

/// The mode that it gets, as a tmpfs has it: images run as users that the host does not know, without the capability to
/// take a folder over.
const OPEN: u32 = 0o1777;

/// Sees to it that a volume is there and ours. Asked to make one that there is, Docker answers that one as it is.
pub(crate) async fn ensure(
    docker: &Docker,
    name: &str,
    labels: &Labels,
    installation: &(String, String),
) -> Result<()> {
    let request = VolumeCreateRequest {
        name: Some(identifier(name)?.to_owned()),
        labels: Some(labels.clone().into_iter().collect()),
        ..VolumeCreateRequest::default()
    };
    let volume = within(limits::CREATE, docker.create_volume(request)).await?;
    check(&volume, installation)
}

fn check(volume: &Volume, installation: &(String, String)) -> Result<()> {
    match volume.labels.get(&installation.0) == Some(&installation.1) {
        true => Ok(()),
        false => Err(RuntimeError::Refused(format!(
            "the volume {} is not of this installation and is left alone",
            volume.name
        ))),
    }
}

/// Lets everybody write to the volume at a path of a container that is made and not started, unless somebody has given it
/// another mode already. Looked at each time and not only when it was made: between the two this host may have ended.
pub(crate) async fn open(docker: &Docker, id: &str, path: &str) -> Result<()> {
    let options = ContainerArchiveInfoOptions { path: path.to_owned() };
    let found = within(limits::LOOK, docker.get_container_archive_info(id, Some(options))).await?;
    // Docker tells the mode in Go's notation, whose permissions are the usual ones and whose other bits lie above.
    if found.file_mode & 0o777 != FRESH {
        return Ok(());
    }
    let options = UploadToContainerOptions {
        path: "/".to_owned(),
        no_overwrite_dir_non_dir: Some("1".to_owned()),
        ..UploadToContainerOptions::default()
    };
    // Docker mounts the volumes for an upload, and gives a folder that is there what its entry says.
    let archive = bollard::body_full(files::folder(path, OPEN)?.into());
    Ok(within(limits::CREATE, docker.upload_to_container(id, Some(options), archive)).await?)
}

/// The names of the volumes with these labels.
pub(crate) async fn list(docker: &Docker, labels: &[(&str, &str)]) -> Result<Vec<String>> {
    let wanted = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let options = ListVolumesOptions { filters: Some(HashMap::from([("label".to_owned(), wanted)])) };
    let found = within(limits::LIST, docker.list_volumes(Some(options))).await?.volumes.unwrap_or_default();
    // As with containers, it does not rest on how a daemon reads a filter.
    let has = |volume: &Volume| {
        labels.iter().all(|(name, value)| volume.labels.get(*name).map(String::as_str) == Some(*value))
    };
    Ok(found.into_iter().filter(has).map(|volume| volume.name).collect())
}

/// Removes a volume. `Ok` means that it is gone.
pub(crate) async fn remove(docker: &Docker, name: &str, installation: &(String, String)) -> Result<()> {
    match within(limits::LOOK, docker.inspect_volume(identifier(name)?)).await {
        Ok(volume) => check(&volume, installation)?,
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match within(limits::REMOVE, docker.remove_volume(name, None::<RemoveVolumeOptions>)).await {
        Err(error) if error.is_not_found() => Ok(()),
        other => Ok(other?),
    }
}
