//! Placeholders where none may be, and braces that are none.

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let probe = |argument: &str| -> Source { Text::with(|r| r.ready.argv.push(argument.to_owned())).into() };
    let env = |value: &str| -> Source { Text::with(|r| r.container.env[0].1 = value.to_owned()).into() };
    let file = |content: &str| -> Source { Text::with(|r| r.container.files[0].content = content.to_owned()).into() };
    named([
        ("placeholder-argument", probe("{password}")),
        ("placeholder-argument-admin", probe("{admin_password}")),
        ("placeholder-file", file("{password}")),
        ("placeholder-step", Text::with(|r| r.verify[0].run.argv[0] = "{password}".to_owned()).into()),
        ("placeholder-address", env("{address}")),
        ("placeholder-host", env("{host}")),
        ("placeholder-admin", env("{admin_password}")),
        ("placeholder-unknown", env("{evil}")),
        ("placeholder-open", env("{password")),
        ("placeholder-close", env("}")),
        ("placeholder-nested", env("{pass{password}word}")),
        ("placeholder-terminal", env("{\n\u{1b}[31m\u{202e}}")),
    ])
}
