//! A box: a container that does nothing by itself, with a work folder in which a tenant runs commands and keeps files.
//! Image, folder and user are the operator's; one component serves as many tables as there are kinds of boxes.

#[cfg(test)]
mod tests;

use sandbar_sdk::{Command, Container, Descriptor, Engine, Error, Recipe, Request, export_engine};

/// Waits, and with that buries the children that other processes leave to it: the dead count as processes until then, and a
/// box is soon full of them. (Not every shell can have the kernel do it.) What it waits for may be killed by the tenant, and in
/// a box that is full it cannot start another, which ends a shell; then it begins anew in its own place.
const IDLE: &str = "trap 'exec sh -c \"$0\" \"$0\"' EXIT\nwhile :; do sleep 2147483647 & wait; done";

/// The engine.
pub struct WorkBox;

impl Engine for WorkBox {
    fn describe() -> Descriptor {
        let summary = "A box with a work folder, for commands and files";
        Descriptor::new("box", "box", env!("CARGO_PKG_VERSION"), summary)
            .setting("image", "debian:12-slim", "The image; it has a shell, sleep and cat")
            .setting("work-folder", "/sandbox", "The folder in which commands run and files are kept")
            .setting("user", "1000:1000", "The user who runs commands and owns the files: a name or numbers")
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        if let Some(feature) = request.features.first() {
            return Err(Error::UnsupportedFeature(feature.clone()));
        }
        let folder = request.setting("work-folder")?;
        let container = Container::new(request.setting("image")?)
            .entrypoint(["sh", "-c", IDLE, IDLE])
            .user(request.setting("user")?)
            .env("HOME", folder)
            .work_folder(folder);
        // The folder is given to the user once the box runs, so this is true only after that.
        let ready = Command::new(["sh", "-c", "test -w \"$0\" && cd \"$0\"", folder]);
        Ok(Recipe::new(container, ready).deadline_secs(15))
    }
}

export_engine!(WorkBox);
