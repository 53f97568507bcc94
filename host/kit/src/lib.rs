//! The conformance kit: asks an engine everything that a host may ask of it, and says line by line what of the answers
//! keeps to the contract and what does not. [`answers`] needs nothing but the engine. [`sandboxes`] makes real ones of its
//! recipes, through the core's own host and whatever runtime it is given.
//!
//! It judges by the core's own check and provisions by the core's own code, so that there is no second opinion about what an
//! engine may do. Knows no Docker, files, HTTP or WebAssembly.

pub mod answers;
mod grants;
mod report;
pub mod sandboxes;
mod wish;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandbar_core::catalog::Limits;
use sandbar_core::check::{Checked, Grants, check};
use sandbar_core::engine::{EngineError, Pairs, Recipe, Request, SharedEngine};
use sandbar_core::name::Names;

pub use report::{Check, Report, Verdict};
pub use wish::Wish;

/// An engine to be tested, and how it is asked.
pub struct Subject {
    /// The engine.
    pub engine: SharedEngine,
    /// The same one where clocks show something else and random numbers are others.
    pub elsewhere: SharedEngine,
    /// Settings other than their defaults.
    pub settings: BTreeMap<String, String>,
    /// Resources of its containers.
    pub limits: Limits,
    /// Names of everything that is made.
    pub names: Arc<Names>,
}

impl Subject {
    /// Every setting of the descriptor with its value.
    fn settings(&self) -> Pairs {
        let all = self.engine.descriptor().settings.iter();
        all.map(|s| (s.name.clone(), self.settings.get(&s.name).unwrap_or(&s.default).clone())).collect()
    }

    /// The question that a wish is.
    fn request(&self, wish: &Wish) -> Request {
        Request {
            features: wish.features.clone(),
            retained: wish.retained,
            superuser: wish.superuser,
            memory_bytes: self.limits.memory_bytes,
            settings: self.settings(),
        }
    }

    /// What an operator would have to grant for all that it answers.
    pub async fn asks_for(&self) -> Grants {
        let features: Vec<_> = self.engine.descriptor().features.iter().map(|f| f.name.clone()).collect();
        let mut grants = Grants::default();
        for wish in Wish::each(&features).iter().flat_map(Wish::kinds) {
            // What is refused asks for nothing.
            if let Ok(recipe) = self.engine.plan(&self.request(&wish)).await {
                grants::add(&mut grants, &recipe, &self.names);
            }
        }
        grants
    }

    /// The host's own check of an answer, by an operator who grants all that it asks for.
    fn check(&self, recipe: &Recipe, request: &Request) -> Result<Checked, String> {
        let mut grants = Grants::default();
        grants::add(&mut grants, recipe, &self.names);
        check(recipe.clone(), request, &grants, &self.names).map_err(|refusal| refusal.to_string())
    }
}

/// Whether an engine says no in a way that the contract knows, rather than not at all.
fn answered(error: &EngineError) -> bool {
    !matches!(error, EngineError::Broken(_))
}
