//! What the engine answers, looked at natively.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use sandbar_sdk::{Engine, Error, Request, testing};

use crate::WorkBox;

fn with(settings: &[(&str, &str)]) -> Request {
    let mut request = testing::request::<WorkBox>();
    for (name, value) in settings {
        request.settings.iter_mut().find(|(key, _)| key == name).unwrap().1 = (*value).to_owned();
    }
    request
}

#[test]
fn keeps_the_contract() {
    testing::check::<WorkBox>();
}

#[test]
fn one_component_is_two_kinds_of_boxes() {
    for (image, folder, user) in [("debian:12-slim", "/sandbox", "1000:1000"), ("node:22", "/home/node", "node")] {
        let recipe = WorkBox::plan(with(&[("image", image), ("work-folder", folder), ("user", user)])).unwrap();
        let container = recipe.container;
        assert_eq!((container.image.as_str(), container.user.as_str()), (image, user));
        assert_eq!(container.work_folder.as_deref(), Some(folder));
        assert_eq!(container.env, [("HOME".to_owned(), folder.to_owned())]);
        assert!(container.port.is_none() && container.account.is_none() && container.data.is_empty());
        assert_eq!(recipe.ready.argv.last().map(String::as_str), Some(folder));
        assert!(recipe.variables.is_empty());
    }
}

#[test]
fn it_has_no_features() {
    let request = Request { features: vec!["vector".to_owned()], ..with(&[]) };
    assert_eq!(WorkBox::plan(request), Err(Error::UnsupportedFeature("vector".to_owned())));
}
