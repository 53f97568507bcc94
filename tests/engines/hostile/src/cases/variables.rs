//! Variables that are not an engine's to set, for the agent and in the container.

use sandbar_core::engine::Variable;

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let agent = |name: &str, value: &str| -> Source {
        let (name, value) = (name.to_owned(), value.to_owned());
        Text::with(|r| r.variables.push(Variable { name, value, prefixed: false })).into()
    };
    let container =
        |name: &str| -> Source { Text::with(|r| r.container.env.push((name.to_owned(), String::new()))).into() };
    let many = (0..33).map(|i| Variable { name: format!("N{i}"), value: String::new(), prefixed: true });
    named([
        ("variable-path", agent("PATH", "/evil")),
        ("variable-preload", agent("LD_PRELOAD", "/evil.so")),
        ("variable-not-granted", agent("HOME", "/evil")),
        ("variable-lower", agent("path", "/evil")),
        ("variable-equals", agent("A=B", "/evil")),
        ("variable-empty", agent("", "/evil")),
        ("variable-long", agent(&"A".repeat(100_000), "/evil")),
        ("variable-twice", agent("CACHE_URL", "/evil")),
        ("variable-admin", Text::with(|r| r.variables[0].value = "{admin_password}".to_owned()).into()),
        ("variable-many", Text::with(|r| r.variables.extend(many)).into()),
        ("variable-in-container", container("A=B")),
        ("variable-in-container-twice", container("ACCOUNT_PASSWORD")),
        ("variable-in-container-long", container(&"A".repeat(100_000))),
        ("variable-of-the-probe", Text::with(|r| r.ready.env.push(("X Y".to_owned(), String::new()))).into()),
    ])
}
