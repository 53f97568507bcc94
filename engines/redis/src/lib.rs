//! Redis: a server behind a password, without a way to load code, replicate, or reconfigure it.
//!
//! The configuration is given on standard input by a shell line that reads the password from the environment, so that
//! it stands in no argument list and no file. The image's own entrypoint is not used: from version 8 on it loads every
//! module that the image holds.

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Step, Variable, export_engine,
};

/// What the agent's account may do: everything, but what would undo these rules, load code, take its data from another
/// server or send it to one, stop the server, or fork it (a copy of the data would not fit into the memory). Whole
/// commands are taken away and harmless parts of them given back, so that what a later version adds stays away. Every
/// name here is known from Redis 7.0 on; an unknown one would stop the server from starting.
const RULES: &str = "~* &* +@all \
    -acl +acl|whoami +acl|cat +acl|genpass -config +config|get +config|resetstat -module +module|list \
    -debug -pfdebug -pfselftest -script|debug -shutdown -failover -cluster -replicaof -slaveof -psync -sync -replconf \
    -migrate -restore-asking -save -bgsave -bgrewriteaof";

/// A module: the feature it stands for, the setting with its path, that path in the image of Redis Stack, and a command
/// of its own, which changes nothing, with its answer.
struct Module {
    feature: &'static str,
    summary: &'static str,
    setting: &'static str,
    path: &'static str,
    command: &'static [&'static str],
    answer: &'static str,
}

const MODULES: [Module; 3] = [
    Module {
        feature: "search",
        summary: "Queries and indexes (RediSearch)",
        setting: "search-module",
        path: "/opt/redis-stack/lib/redisearch.so",
        command: &["FT.SUGLEN", "a key that nobody has"],
        answer: "0",
    },
    Module {
        feature: "json",
        summary: "JSON documents (RedisJSON)",
        setting: "json-module",
        path: "/opt/redis-stack/lib/rejson.so",
        command: &["JSON.GET", "a key that nobody has"],
        answer: "",
    },
    Module {
        feature: "bloom",
        summary: "Bloom filters and other sketches (RedisBloom)",
        setting: "bloom-module",
        path: "/opt/redis-stack/lib/redisbloom.so",
        command: &["BF.EXISTS", "a key that nobody has", "x"],
        answer: "0",
    },
];

/// The engine.
pub struct Redis;

impl Engine for Redis {
    fn describe() -> Descriptor {
        let descriptor =
            Descriptor::new("redis", "redis", env!("CARGO_PKG_VERSION"), "Redis with a password of its own")
                .setting("image", "redis:8-alpine", "The image for a sandbox without features")
                .setting("full-image", "redis/redis-stack-server:latest", "The image that holds the modules")
                .setting("notify-keyspace-events", "", "Which keyspace events are published, such as KEA")
                .client(["redis-cli", "-h", "{address}", "-p", "{port}"], [("REDISCLI_AUTH", "{password}")]);
        MODULES.iter().fold(descriptor, |descriptor, module| {
            descriptor.feature(module.feature, module.summary).setting(
                module.setting,
                module.path,
                format!("Where the image holds the module for `{}`", module.feature),
            )
        })
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        let mut recipe =
            Recipe::new(container(&request)?, redis_cli(["ping"]).expect_stdout("PONG")).deadline_secs(15).variables([
                Variable::prefixed("REDIS_HOST", "{host}"),
                Variable::prefixed("REDIS_PORT", "{port}"),
                Variable::prefixed("REDIS_PASSWORD", "{password}"),
                // With the user's name, since redis-cli takes a URL without one for an empty name.
                Variable::plain("REDIS_URL", "redis://default:{password}@{host}:{port}/0"),
            ]);
        for feature in &request.features {
            let module = MODULES.iter().find(|module| module.feature == feature);
            let module = module.ok_or_else(|| Error::UnsupportedFeature(feature.clone()))?;
            let ask = redis_cli(module.command.iter().copied()).expect_stdout(module.answer);
            recipe = recipe.verify(Step::confirm(feature, ask));
        }
        Ok(recipe)
    }
}

export_engine!(Redis);

fn container(request: &Request) -> Result<Container, Error> {
    let (image, user) = match request.is_bare() {
        true => ("image", "redis"),
        // Redis Stack's image has no user of its own.
        false => ("full-image", "nobody"),
    };
    let container = Container::new(request.setting(image)?)
        .user(user)
        .entrypoint(["sh", "-c", &start(request)?])
        .env("ACCOUNT_PASSWORD", "{password}")
        .port(6379)
        .account(Account::password_only());
    Ok(if request.retained { container.data_dir("/data", request.memory_share(2)) } else { container })
}

/// The script that starts the server. `exec`, so that signals reach it; a hash of the password, because a server that
/// refuses its configuration quotes it.
fn start(request: &Request) -> Result<String, Error> {
    let mut config = vec![
        "port 6379".to_owned(),
        // It would keep out the network only where there is no password, and there is one.
        "protected-mode no".to_owned(),
        "save \"\"".to_owned(),
        "maxmemory-policy noeviction".to_owned(),
        // What clients have in flight comes on top of the data: the client with the most is let go, not the server.
        format!("maxmemory-clients {}", request.memory_share(8)),
        "enable-module-command no".to_owned(),
        "enable-debug-command no".to_owned(),
        "enable-protected-configs no".to_owned(),
        // A payload made by hand for RESTORE is looked through before it is believed.
        "sanitize-dump-payload yes".to_owned(),
    ];
    let events = request.setting("notify-keyspace-events")?;
    if !events.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(bad("notify-keyspace-events", "it consists of letters"));
    }
    config.push(format!("notify-keyspace-events \"{events}\""));
    if request.retained {
        // Rewriting the log forks, and the copy needs memory too.
        config.push(format!("maxmemory {}", request.memory_share(2)));
        config.extend(["appendonly yes", "dir /data/redis"].map(str::to_owned));
    } else {
        config.push(format!("maxmemory {}", request.memory_share(4) * 3));
        config.push("appendonly no".to_owned());
    }
    let mut before = Vec::new();
    if request.retained {
        before.push("mkdir -p /data/redis".to_owned());
    }
    for module in &MODULES {
        let path = request.setting(module.setting)?;
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)) {
            return Err(bad(module.setting, "it is an absolute path of plain characters"));
        }
        if request.wants(module.feature) {
            // The server would only say that it cannot load it.
            let feature = module.feature;
            before.push(format!(
                "test -f {path} || {{ echo 'the image has no {path}, the module for {feature}' >&2; exit 1; }}"
            ));
            config.push(format!("loadmodule {path}"));
        } else if request.retained {
            // Kept data may hold what it made when it was wanted, and could not be read without it.
            config.push(format!("$(test ! -f {path} || echo loadmodule {path})"));
        }
    }
    let (before, config) = (before.join("\n"), config.join("\n"));
    Ok(format!(
        r#"set -eu
: "${{ACCOUNT_PASSWORD:?}}"
hash=$(printf %s "$ACCOUNT_PASSWORD" | sha256sum)
{before}
exec redis-server - <<EOF
{config}
user default on #${{hash%% *}} {RULES}
EOF
"#
    ))
}

fn bad(setting: &str, why: &str) -> Error {
    Error::BadSetting((setting.to_owned(), why.to_owned()))
}

/// A command as the agent, over the container's own address. With `-e` an error is an exit code; without, it is only
/// text.
fn redis_cli<'a>(command: impl IntoIterator<Item = &'a str>) -> Command {
    let client = ["redis-cli", "-h", "{address}", "-p", "{port}", "--no-auth-warning", "-e"];
    Command::new(client.into_iter().chain(command)).env("REDISCLI_AUTH", "{password}")
}
