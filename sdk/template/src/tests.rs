//! What the engine answers, looked at natively: `cargo test`.

use sandbar_sdk::{Engine, Error, Recipe, Request, testing};

use crate::Template;

/// The answer to the plain question with a change.
fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Template>();
    change(&mut request);
    Template::plan(request)
}

#[test]
fn keeps_the_contract() {
    testing::check::<Template>();
}

#[test]
fn a_feature_is_activated_and_confirmed() {
    let recipe = plan(|request| request.features = vec!["counters".to_owned()]).expect("it has this feature");
    assert_eq!((recipe.setup.len(), recipe.verify.len()), (1, 1));
    let error = plan(|request| request.features = vec!["other".to_owned()]).expect_err("it has no such feature");
    assert_eq!(error, Error::UnsupportedFeature("other".to_owned()));
}

#[test]
fn a_setting_is_checked() {
    let set = |value: &str| {
        plan(|request| {
            let setting = request.settings.iter_mut().find(|(name, _)| name == "when-full");
            setting.expect("the descriptor names it").1 = value.to_owned();
        })
    };
    let script = |recipe: Recipe| recipe.container.entrypoint.expect("it has its own")[2].clone();
    assert!(script(set("allkeys-lru").expect("one of them")).contains("maxmemory-policy allkeys-lru\n"));
    assert!(matches!(set("x\nport 1"), Err(Error::BadSetting((name, _))) if name == "when-full"));
}
