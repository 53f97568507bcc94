//! A key-value store with a password of its own. It is complete as it stands: make of it what you want to serve.
//!
//! An engine is asked two things: what it is ([`Engine::describe`]), and how a sandbox is made ([`Engine::plan`]). It does
//! nothing itself and sees no password. It writes placeholders, which the host fills in: `{password}`, `{host}`, `{port}`,
//! `{address}`, …

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Step, Variable, export_engine,
};

/// A library of functions, as an example of something that is activated in a server that runs.
const COUNTERS: &str = "#!lua name=counters
redis.register_function('count', function(keys) return redis.call('INCR', keys[1]) end)";

/// What may be done where the memory is full.
const POLICIES: [&str; 3] = ["noeviction", "allkeys-lru", "allkeys-lfu"];

/// The engine.
pub struct Template;

impl Engine for Template {
    fn describe() -> Descriptor {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        Descriptor::new(name, "template", version, "A key-value store with a password of its own")
            .setting("image", "redis:8-alpine", "The image to run")
            .setting("when-full", "noeviction", "What is done where the memory is full")
            .feature("counters", "A function `count` that counts up a key")
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        if request.retained {
            return Err(Error::Other("nothing is kept here, so it cannot be retained".to_owned()));
        }
        // As the agent's account and over the container's own address: the loopback may answer too early, or anybody.
        let ready = client(["ping"]).expect_stdout("PONG");
        let mut recipe = Recipe::new(container(&request)?, ready).deadline_secs(15).variables([
            // The host writes its own prefix before the names of these.
            Variable::prefixed("TEMPLATE_HOST", "{host}"),
            Variable::prefixed("TEMPLATE_PORT", "{port}"),
            Variable::prefixed("TEMPLATE_PASSWORD", "{password}"),
            // A variable of just this name has to be granted: see Cargo.toml.
            Variable::plain("TEMPLATE_URL", "redis://default:{password}@{host}:{port}/0"),
        ]);
        for feature in &request.features {
            // Activated once, and confirmed then and whenever a host finds the container again.
            recipe = match feature.as_str() {
                "counters" => recipe
                    .setup(Step::activate(feature, client(["function", "load", "replace", COUNTERS])))
                    .verify(Step::confirm(feature, client(["function", "list"]).expect_lines(["counters"]))),
                _ => return Err(Error::UnsupportedFeature(feature.clone())),
            };
        }
        Ok(recipe)
    }
}

export_engine!(Template);

fn container(request: &Request) -> Result<Container, Error> {
    let policy = request.setting("when-full")?;
    if !POLICIES.contains(&policy) {
        return Err(Error::BadSetting(("when-full".to_owned(), format!("it is one of {}", POLICIES.join(", ")))));
    }
    // The shell reads the password from the environment, so that it stands in no argument list and no file.
    let start = format!(
        r#"exec redis-server - <<EOF
port 6379
protected-mode no
save ""
maxmemory {}
maxmemory-policy {policy}
requirepass $ACCOUNT_PASSWORD
EOF
"#,
        request.memory_share(2)
    );
    Ok(Container::new(request.setting("image")?)
        .user("redis")
        .entrypoint(["sh", "-c", &start])
        .env("ACCOUNT_PASSWORD", "{password}")
        .port(6379)
        .account(Account::password_only()))
}

/// A command of the service's own client, which every image of it has.
fn client<'a>(command: impl IntoIterator<Item = &'a str>) -> Command {
    let client = ["redis-cli", "-h", "{address}", "-p", "{port}", "--no-auth-warning", "-e"];
    Command::new(client.into_iter().chain(command)).env("REDISCLI_AUTH", "{password}")
}
