//! The core's types and the generated ones, into each other. Field by field and without a judgement, except that texts
//! in an engine's own errors are made one line: they go to people as they are.

use sandbar_core::engine as core;

use crate::bindings::exports::sandbar::engine::engine as wit;
use crate::explain::one_line;

/// The question, as the guest gets it.
pub(crate) fn request(request: &core::Request) -> wit::Request {
    wit::Request {
        features: request.features.clone(),
        retained: request.retained,
        superuser: request.superuser,
        memory_bytes: request.memory_bytes,
        settings: request.settings.clone(),
    }
}

/// What the engine says it is.
pub(crate) fn descriptor(descriptor: wit::Descriptor) -> core::Descriptor {
    let wit::Descriptor { name, slug, version, summary, features, settings, more } = descriptor;
    core::Descriptor {
        name,
        slug,
        version,
        summary,
        features: features.into_iter().map(|wit::Feature { name, summary }| core::Feature { name, summary }).collect(),
        settings: settings
            .into_iter()
            .map(|wit::Setting { name, default, summary }| core::Setting { name, default, summary })
            .collect(),
        more,
    }
}

/// The recipe.
pub(crate) fn recipe(recipe: wit::Recipe) -> core::Recipe {
    let wit::Recipe { container: unit, ready, deadline_ms, setup, verify, variables } = recipe;
    core::Recipe {
        container: container(unit),
        ready: command(ready),
        deadline_ms,
        setup: setup.into_iter().map(step).collect(),
        verify: verify.into_iter().map(step).collect(),
        variables: variables
            .into_iter()
            .map(|wit::Variable { name, value, prefixed }| core::Variable { name, value, prefixed })
            .collect(),
    }
}

/// The engine's own refusal.
pub(crate) fn error(error: wit::Error) -> core::EngineError {
    match error {
        wit::Error::UnsupportedFeature(feature) => core::EngineError::UnsupportedFeature(one_line(&feature)),
        wit::Error::BadSetting((name, why)) => core::EngineError::BadSetting(one_line(&name), one_line(&why)),
        wit::Error::Other(why) => {
            let why = one_line(&why);
            core::EngineError::Other(if why.is_empty() {
                "the engine refuses and does not say why".to_owned()
            } else {
                why
            })
        }
    }
}

fn container(container: wit::Container) -> core::Container {
    let wit::Container {
        image,
        entrypoint,
        command,
        user,
        env,
        files,
        data,
        work_folder,
        shm_bytes,
        capabilities,
        port,
        account,
        more,
    } = container;
    core::Container {
        image,
        entrypoint,
        command,
        user,
        env,
        files: files.into_iter().map(|wit::File { path, mode, content }| core::File { path, mode, content }).collect(),
        data: data.into_iter().map(|wit::DataDir { path, tmpfs_bytes }| core::DataDir { path, tmpfs_bytes }).collect(),
        work_folder,
        shm_bytes,
        capabilities,
        port,
        account: account.map(|wit::Account { user, database, admin }| core::Account { user, database, admin }),
        more,
    }
}

fn command(command: wit::Command) -> core::Command {
    let wit::Command { argv, env, user, expect, timeout_ms } = command;
    let expect = match expect {
        wit::Expectation::ExitZero => core::Expectation::ExitZero,
        wit::Expectation::StdoutIs(text) => core::Expectation::StdoutIs(text),
        wit::Expectation::StdoutHasLines(lines) => core::Expectation::StdoutHasLines(lines),
    };
    core::Command { argv, env, user, expect, timeout_ms }
}

fn step(step: wit::Step) -> core::Step {
    let wit::Step { name, feature, run } = step;
    core::Step { name, feature, run: command(run) }
}
