//! What the engine answers, looked at natively.

use sandbar_sdk::{Engine, Error, Recipe, Request, testing};

use crate::Mariadb;

fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Mariadb>();
    change(&mut request);
    Mariadb::plan(request)
}

fn script(change: impl FnOnce(&mut Request)) -> String {
    plan(change).expect("it can be had").container.entrypoint.expect("it has its own")[2].clone()
}

#[test]
fn keeps_the_contract() {
    testing::check::<Mariadb>();
}

#[test]
fn the_account_reaches_its_own_databases_unless_more_is_asked_for() {
    let (usual, superuser) = (script(|_| ()), script(|request| request.superuser = true));
    assert!(usual.contains(r"ON \`sandbox\\_%\`.* TO") && !usual.contains("ON *.*"), "{usual}");
    assert!(superuser.contains("ON *.* TO"), "{superuser}");
}

#[test]
fn features_are_options_of_the_server() {
    assert!(!script(|_| ()).contains("ha_archive") && !script(|_| ()).contains("event-scheduler"));
    let wants = |feature: &str| script(|request| request.features = vec![feature.to_owned()]);
    assert!(wants("archive").contains("--plugin-load-add=ha_archive"));
    assert!(wants("events").contains("--event-scheduler=ON"));
    assert!(script(|request| request.retained = true).contains("ha_archive"), "kept tables may need it");
}

#[test]
fn a_setting_is_checked() {
    let set = |value: &str| plan(|request| request.settings[1].1 = value.to_owned());
    assert!(set("latin1_swedish_ci").is_ok());
    assert!(matches!(set("x --skip-grant-tables"), Err(Error::BadSetting((name, _))) if name == "collation"));
}
