//! Imports that lead somewhere.

use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let run = r#"(component (import "evil:host/run@1.0.0" (instance)) (instance $i)
        (export "sandbar:engine/engine@1.0.0" (instance $i)))"#;
    let http = r#"(component (import "wasi:http/outgoing-handler@0.2.0" (instance)) (instance $i)
        (export "sandbar:engine/engine@1.0.0" (instance $i)))"#;
    let function = r#"(component (import "shell" (func)) (instance $i)
        (export "sandbar:engine/engine@1.0.0" (instance $i)))"#;
    let missing = r#"(component (import "wasi:io/poll@0.2.0" (instance (export "no-such-thing" (func))))
        (instance $i) (export "sandbar:engine/engine@1.0.0" (instance $i)))"#;
    named([
        ("import-run", Source::Component(run)),
        ("import-http", Source::Component(http)),
        ("import-function", Source::Component(function)),
        ("import-missing", Source::Component(missing)),
    ])
}
