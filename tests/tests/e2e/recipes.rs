//! What each shipped engine answers, as one table: the recipes of the built components, for no feature, each one and
//! all, throwaway and retained, with and without superuser.

use std::fmt::Write as _;
use std::path::Path;

use sandbar_core::engine::{Descriptor, Engine as _, EngineError, Recipe, Request};
use sandbar_tests::Options;
use sandbar_tests::host::sources;

/// A question and its answer.
pub(crate) type Answer = (Request, Result<Recipe, EngineError>);

/// What a component says about itself, and what it answers.
pub(crate) fn answers(component: &Path) -> (Descriptor, Vec<Answer>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let plugins = sandbar_plugin::Host::new(None, sandbar_plugin::Limits::default()).unwrap();
    let engine = runtime.block_on(plugins.load(component, None)).unwrap();
    let descriptor = engine.descriptor();
    let settings: Vec<_> = descriptor.settings.iter().map(|s| (s.name.clone(), s.default.clone())).collect();
    let mut features: Vec<_> = descriptor.features.iter().map(|f| f.name.clone()).collect();
    features.sort();
    let mut sets = vec![vec![], features.clone()];
    sets.extend(features.iter().map(|f| vec![f.clone()]));

    let mut answers = Vec::new();
    for features in sets {
        let cases: &[(bool, bool)] =
            if features.is_empty() { &[(false, false), (true, false), (false, true)] } else { &[(false, false)] };
        for &(retained, superuser) in cases {
            let settings = settings.clone();
            let request =
                Request { features: features.clone(), retained, superuser, memory_bytes: 512 << 20, settings };
            let answer = runtime.block_on(engine.plan(&request));
            let again = runtime.block_on(engine.plan(&request));
            assert_eq!(answer, again, "the same question, another answer");
            answers.push((request, answer));
        }
    }
    (descriptor.clone(), answers)
}

#[test]
fn every_answer_is_known() {
    for name in ["postgres", "redis", "mongo"] {
        let (descriptor, answers) = answers(&Options::default().engines.join(format!("{name}.wasm")));
        let mut table = format!("{descriptor:#?}\n");
        for (Request { features, retained, superuser, .. }, answer) in answers {
            write!(table, "\n== features {features:?}, retained {retained}, superuser {superuser}\n{answer:#?}\n")
                .unwrap();
        }
        // Run with UPDATE_EXPECT=1 to write what is answered now.
        expect_test::expect_file![sources().join(format!("snapshots/{name}.txt"))].assert_eq(&table);
    }
}
