//! What the engine answers, looked at natively.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sandbar_sdk::{Engine, Error, Expectation, Recipe, Request, testing};

use crate::Mongo;

fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Mongo>();
    change(&mut request);
    Mongo::plan(request)
}

#[test]
fn keeps_the_contract() {
    testing::check::<Mongo>();
}

#[test]
fn the_service() {
    let recipe = plan(|_| ()).unwrap();
    let container = &recipe.container;
    assert_eq!((container.image.as_str(), container.user.as_str()), ("mongo:8", "mongodb"));
    assert!(container.capabilities.is_empty());
    assert_eq!(
        container.command.join(" "),
        "mongod --auth --bind_ip_all --dbpath /data/db/mongo/data --maxConns 150 \
         --wiredTigerEngineConfigString cache_size=96MB,log=(file_max=8MB) \
         --setParameter diagnosticDataCollectionEnabled=false --setParameter indexBuildMinAvailableDiskSpaceMB=0 \
         --syncdelay 5"
    );
    assert_eq!((recipe.deadline_ms, container.port), (60_000, Some(27017)));
    let account = container.account.as_ref().unwrap();
    assert_eq!((account.user.as_deref(), account.database.as_deref()), (Some("sandbox"), Some("admin")));
    assert!(!account.admin && recipe.setup.is_empty() && recipe.verify.is_empty());
}

#[test]
fn the_password_is_read_from_environments() {
    let recipe = plan(|_| ()).unwrap();
    let container = &recipe.container;
    let password = ("ACCOUNT_PASSWORD".to_owned(), "{password}".to_owned());
    assert!(container.env.contains(&password) && recipe.ready.env.contains(&password));
    // The image would hand on what it finds in variables of its own as an argument.
    assert!(!container.env.iter().any(|(name, _)| name.starts_with("MONGO_INITDB_")));
    let file = container.files.iter().find(|file| file.path.ends_with("/50-account.js")).unwrap();
    assert!(file.path.starts_with("/docker-entrypoint-initdb.d/") && file.content.contains("roles: ['root']"));
    assert!(file.content.contains("process.env.ACCOUNT_PASSWORD"));
    assert_eq!(recipe.ready.argv[..5], ["mongosh", "--quiet", "--norc", "--nodb", "--eval"]);
    assert!(recipe.ready.env.contains(&("ADDRESS".to_owned(), "{address}".to_owned())));
    assert_eq!(recipe.ready.expect, Expectation::StdoutIs("ready".to_owned()));
}

#[test]
fn the_agent_gets_a_url_that_drivers_take() {
    let recipe = plan(|_| ()).unwrap();
    let names: Vec<_> = recipe.variables.iter().map(|variable| (variable.name.as_str(), variable.prefixed)).collect();
    let prefixed = ["MONGO_HOST", "MONGO_PORT", "MONGO_USER", "MONGO_PASSWORD", "MONGO_AUTH_DB"];
    assert_eq!(names[..5], prefixed.map(|name| (name, true)));
    assert_eq!(names[5..], [("MONGODB_URI", false)]);
    assert_eq!(recipe.variables[5].value, "mongodb://{user}:{password}@{host}:{port}/?authSource={database}");
}

#[test]
fn memory_is_shared_out() {
    let recipe = plan(|request| request.memory_bytes = 1 << 30).unwrap();
    let sizes: Vec<_> = recipe.container.data.iter().map(|data| (data.path.as_str(), data.tmpfs_bytes >> 20)).collect();
    assert_eq!(sizes, [("/data/db/mongo", 384)]);
    assert!(recipe.container.command.contains(&"cache_size=192MB,log=(file_max=8MB)".to_owned()));
    assert!(matches!(plan(|request| request.memory_bytes = 256 << 20), Err(Error::Other(_))));
}

#[test]
fn what_is_kept_has_the_disk_that_it_needs() {
    let command = plan(|request| request.retained = true).unwrap().container.command;
    assert!(command.contains(&"cache_size=96MB".to_owned()));
    assert!(!command.iter().any(|argument| argument.contains("DiskSpace") || argument == "--syncdelay"));
}

#[test]
fn the_image_is_a_setting_and_there_are_no_features() {
    let recipe = plan(|request| request.settings[0].1 = "registry.internal/mongo:8.2".to_owned()).unwrap();
    assert_eq!(recipe.container.image, "registry.internal/mongo:8.2");
    let error = plan(|request| request.features = vec!["search".to_owned()]).unwrap_err();
    assert_eq!(error, Error::UnsupportedFeature("search".to_owned()));
}
