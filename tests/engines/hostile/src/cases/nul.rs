//! NUL and newline, in every text that an engine answers: where C or a shell reads on, they end one thing and begin another.
//! Programs, what they read, and what they say may have lines; nothing may hold NUL.

use sandbar_core::engine::{Descriptor, Expectation, Feature, Recipe, Setting};

use crate::text::Text;
use crate::{Engines, Source};

/// Where a recipe has a text, and whether it may have lines.
type Field = (&'static str, bool, fn(&mut Recipe) -> &mut String);

const RECIPE: [Field; 26] = [
    ("image", false, |r| &mut r.container.image),
    ("entrypoint", true, |r| &mut r.container.entrypoint.as_mut().unwrap()[2]),
    ("command", true, |r| &mut r.container.command[0]),
    ("user", false, |r| &mut r.container.user),
    ("env-name", false, |r| &mut r.container.env[0].0),
    ("env-value", true, |r| &mut r.container.env[0].1),
    ("file-path", false, |r| &mut r.container.files[0].path),
    ("file-content", true, |r| &mut r.container.files[0].content),
    ("data-path", false, |r| &mut r.container.data[0].path),
    ("work-folder", false, |r| r.container.work_folder.get_or_insert_with(|| "/work".to_owned())),
    ("capability", false, |r| {
        r.container.capabilities.push("CHOWN".to_owned());
        &mut r.container.capabilities[0]
    }),
    ("account-user", false, |r| r.container.account.as_mut().unwrap().user.as_mut().unwrap()),
    ("account-database", false, |r| r.container.account.as_mut().unwrap().database.as_mut().unwrap()),
    ("more-key", false, |r| {
        r.container.more.push(("key".to_owned(), String::new()));
        &mut r.container.more[0].0
    }),
    ("probe", true, |r| &mut r.ready.argv[0]),
    ("probe-env-name", false, |r| &mut r.ready.env[0].0),
    ("probe-env-value", true, |r| &mut r.ready.env[0].1),
    ("probe-user", false, |r| r.ready.user.as_mut().unwrap()),
    ("probe-output", true, |r| match &mut r.ready.expect {
        Expectation::StdoutIs(text) => text,
        _ => unreachable!("it expects a text"),
    }),
    ("probe-lines", true, |r| {
        r.ready.expect = Expectation::StdoutHasLines(vec!["PONG".to_owned()]);
        match &mut r.ready.expect {
            Expectation::StdoutHasLines(lines) => &mut lines[0],
            _ => unreachable!("it expects lines"),
        }
    }),
    ("step-name", false, |r| &mut r.setup[0].name),
    ("step-feature", false, |r| r.setup[0].feature.get_or_insert_with(|| "one".to_owned())),
    ("step", true, |r| &mut r.setup[0].run.argv[0]),
    ("verify", true, |r| &mut r.verify[0].run.argv[0]),
    ("variable-name", false, |r| &mut r.variables[0].name),
    ("variable-value", false, |r| &mut r.variables[0].value),
];

/// Where a description has one; none of them may have lines.
type Described = (&'static str, fn(&mut Descriptor) -> &mut String);

const DESCRIPTOR: [Described; 9] = [
    ("name", |d| &mut d.name),
    ("slug", |d| &mut d.slug),
    ("version", |d| &mut d.version),
    ("summary", |d| &mut d.summary),
    ("feature", |d| &mut feature(d).name),
    ("feature-summary", |d| &mut feature(d).summary),
    ("setting", |d| &mut setting(d).name),
    ("setting-default", |d| &mut setting(d).default),
    ("setting-summary", |d| &mut setting(d).summary),
];

fn feature(d: &mut Descriptor) -> &mut Feature {
    d.features.push(Feature { name: "one".to_owned(), summary: "One.".to_owned() });
    &mut d.features[0]
}

fn setting(d: &mut Descriptor) -> &mut Setting {
    d.settings.push(Setting { name: "one".to_owned(), default: String::new(), summary: "One.".to_owned() });
    &mut d.settings[0]
}

pub(super) fn engines() -> Engines {
    let mut all = Engines::new();
    for (kind, c) in [("nul", '\0'), ("line", '\n')] {
        for (field, lines, text) in RECIPE {
            // `lines-in-…` is what may have them.
            let kind = if lines && kind == "line" { "lines" } else { kind };
            all.push((format!("{kind}-in-{field}"), Text::with(|r| text(r).push(c)).into()));
        }
        for (field, text) in DESCRIPTOR {
            let source: Source = Text::described(|d| text(d).push(c)).into();
            all.push((format!("{kind}-in-describe-{field}"), source));
        }
    }
    all
}
