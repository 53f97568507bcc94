//! Accounts, users, capabilities and keys that a host must not take.

use crate::text::Text;
use crate::{Engines, Source, named};

pub(super) fn engines() -> Engines {
    let user = |name: &str| -> Source {
        let name = name.to_owned();
        Text::with(|r| r.container.account.as_mut().unwrap().user = Some(name)).into()
    };
    let database = |name: &str| -> Source {
        let name = name.to_owned();
        Text::with(|r| r.container.account.as_mut().unwrap().database = Some(name)).into()
    };
    let capability = |name: &str| -> Source { Text::with(|r| r.container.capabilities.push(name.to_owned())).into() };
    named([
        ("account-sql", user("x'; drop table users; --")),
        ("account-empty", user("")),
        ("account-long", user(&"x".repeat(100_000))),
        ("account-database", database("$(id)")),
        ("account-process", Text::with(|r| r.container.user = "root; id".to_owned()).into()),
        ("account-process-long", Text::with(|r| r.container.user = "x".repeat(100_000)).into()),
        ("account-capability", capability("SYS_ADMIN")),
        ("account-capability-text", capability("\u{1b}[31m\n")),
        ("account-capability-long", capability(&"X".repeat(100_000))),
        ("account-port", Text::with(|r| r.container.port = Some(0)).into()),
        ("account-shm", Text::with(|r| r.container.shm_bytes = u64::MAX).into()),
        ("account-more", Text::with(|r| r.container.more.push(("privileged".to_owned(), "1".to_owned()))).into()),
        ("account-more-long", Text::with(|r| r.container.more.push(("x".repeat(100_000), String::new()))).into()),
    ])
}
