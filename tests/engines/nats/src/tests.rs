//! What the engine answers, looked at natively.

use sandbar_sdk::{Engine, Error, Recipe, Request, testing};

use crate::Nats;

fn plan(change: impl FnOnce(&mut Request)) -> Result<Recipe, Error> {
    let mut request = testing::request::<Nats>();
    change(&mut request);
    Nats::plan(request)
}

#[test]
fn keeps_the_contract() {
    testing::check::<Nats>();
}

#[test]
fn streams_are_kept_where_they_are_wanted() {
    let config = |recipe: &Recipe| recipe.container.files[0].content.clone();
    let bare = plan(|_| ()).expect("it can be had");
    assert!(!config(&bare).contains("jetstream") && bare.container.data.is_empty(), "{}", config(&bare));
    let streams = plan(|request| request.features = vec!["jetstream".to_owned()]).expect("it can be had");
    assert!(config(&streams).contains("jetstream {{ store_dir: /data/nats"), "{}", config(&streams));
    assert_eq!((streams.container.data[0].path.as_str(), streams.verify.len()), ("/data", 1));
}

#[test]
fn a_setting_is_checked() {
    let set = |value: &str| plan(|request| request.settings[1].1 = value.to_owned());
    assert!(set("4096").is_ok());
    for bad in ["0", "67108865", "1 }"] {
        assert!(matches!(set(bad), Err(Error::BadSetting((name, _))) if name == "max-payload"), "{bad}");
    }
}
