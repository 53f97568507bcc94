//! Fixtures for unit tests.

use std::sync::Arc;

use crate::check::Grants;
use crate::engine::*;
use crate::image::ImagePattern;
use crate::name::{Installation, Names, Namespace};

pub(crate) fn names() -> Names {
    Names::new(Namespace::new("sandbar").unwrap(), Installation::new("test").unwrap())
}

pub(crate) fn request(features: &[&str]) -> Request {
    Request {
        features: features.iter().map(|f| (*f).to_owned()).collect(),
        retained: false,
        superuser: false,
        memory_bytes: 512 << 20,
        settings: vec![],
    }
}

pub(crate) fn grants() -> Grants {
    Grants {
        images: vec![ImagePattern::parse("db:*").unwrap()],
        capabilities: vec![],
        data_dirs: vec!["/data".into()],
        variables: vec!["DATABASE_URL".into()],
    }
}

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        env: vec![("PW".into(), "{password}".into())],
        user: None,
        expect: Expectation::ExitZero,
        timeout_ms: 1000,
    }
}

pub(crate) fn recipe() -> Recipe {
    Recipe {
        container: Container {
            image: "db:1".into(),
            entrypoint: None,
            command: vec![],
            user: "db".into(),
            env: vec![("DB_PASSWORD".into(), "{password}".into())],
            files: vec![File { path: "/init.sh".into(), mode: 0o755, content: "echo {user}".into() }],
            data: vec![DataDir { path: "/data".into(), tmpfs_bytes: 64 << 20 }],
            work_folder: None,
            shm_bytes: 0,
            capabilities: vec![],
            port: Some(1234),
            account: Some(Account { user: Some("u".into()), database: Some("d".into()), admin: false }),
            more: vec![],
        },
        ready: command(&["probe", "{address}"]),
        deadline_ms: 5_000,
        setup: vec![],
        verify: vec![],
        variables: vec![
            Variable { name: "DB_PASSWORD".into(), value: "{password}".into(), prefixed: true },
            Variable {
                name: "DATABASE_URL".into(),
                value: "db://{user}:{password}@{host}:{port}/{database}".into(),
                prefixed: false,
            },
        ],
    }
}

#[expect(dead_code, reason = "kept for tests of the catalog")]
pub(crate) fn shared(engine: impl Engine + 'static) -> SharedEngine {
    Arc::new(engine)
}
