//! MongoDB: a server with one account, which may do everything.
//!
//! The account is the server's root. That is an accepted exception from what the other engines keep to: suites make
//! databases, users and roles, and whoever may manage the users of every database can give itself all the rest. The
//! container is the bound: nobody gets in without a login, and no one else's data is there.
//!
//! The account is made by an init script rather than by the variables that the image has for it: for those its entrypoint
//! puts the password into an argument list.
//!
//! MongoDB knows no quota. Where the disk is full the server stops, and the sandbox is made anew at the next call; the
//! options here only see to it that data is what fills it. Versions before 8 do not know all of them.

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Variable, export_engine, literal,
};

const MIB: u64 = 1 << 20;

/// Below this the server alone would fill what is left beside its cache and its disk.
const MIN_MEMORY: u64 = 384 * MIB;

/// Below the image's own volume and not that volume itself, which nobody but its owner may write to in the image: before
/// 1.1.8, runc gives a tmpfs the mode of the folder that it covers.
const DATA: &str = "/data/db/mongo";

/// Each connection is a thread, and where no thread can be made the server itself may fail. With the threads that it has
/// for itself this stays below the 256 processes that a host allows unless told otherwise.
const MAX_CONNECTIONS: &str = "150";

/// The image's own entrypoint, once there is a folder for it: the server makes none, and the one above belongs to root.
const START: &str = "mkdir -p -m 0700 /data/db/mongo/data && exec docker-entrypoint.sh \"$@\"";

/// How a person's client logs in. An address would have to be put in brackets where it is one of IPv6; here the loopback will
/// do, since the server is the container's own and asks for the login there too.
const CLIENT: &str = "db=connect('mongodb://'+process.env.ACCOUNT_USER+':'+process.env.ACCOUNT_PASSWORD\
    +'@127.0.0.1:'+process.env.PORT+'/?authSource=admin')";

/// The engine.
pub struct Mongo;

impl Engine for Mongo {
    fn describe() -> Descriptor {
        Descriptor::new("mongo", "mongo", env!("CARGO_PKG_VERSION"), "MongoDB with an account of its own")
            .setting("image", "mongo:8", "The image to run")
            .client(
                ["mongosh", "--quiet", "--nodb", "--shell", "--eval", CLIENT],
                [("ACCOUNT_USER", "{user}"), ("ACCOUNT_PASSWORD", "{password}"), ("PORT", "{port}")],
            )
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        if let Some(feature) = request.features.first() {
            return Err(Error::UnsupportedFeature(feature.clone()));
        }
        if request.memory_bytes < MIN_MEMORY {
            return Err(Error::Other(format!("MongoDB needs at least {} MiB of memory", MIN_MEMORY / MIB)));
        }
        Ok(Recipe::new(container(&request)?, probe()).deadline_secs(60).variables([
            Variable::prefixed("MONGO_HOST", "{host}"),
            Variable::prefixed("MONGO_PORT", "{port}"),
            Variable::prefixed("MONGO_USER", "{user}"),
            Variable::prefixed("MONGO_PASSWORD", "{password}"),
            Variable::prefixed("MONGO_AUTH_DB", "{database}"),
            Variable::plain("MONGODB_URI", "mongodb://{user}:{password}@{host}:{port}/?authSource={database}"),
        ]))
    }
}

export_engine!(Mongo);

fn container(request: &Request) -> Result<Container, Error> {
    Ok(Container::new(request.setting("image")?)
        // Started as root the image would need capabilities to change to this user.
        .user("mongodb")
        .entrypoint(["sh", "-c", START, "sh"])
        .command(server(request))
        // The image's own is the folder of its data.
        .env("HOME", "/tmp")
        .env("ACCOUNT_USER", "{user}")
        .env("ACCOUNT_PASSWORD", "{password}")
        .file("/docker-entrypoint-initdb.d/50-account.js", 0o644, literal(include_str!("account.js")))
        .file("/etc/mongosh.conf", 0o644, literal(include_str!("mongosh.conf")))
        .data_dir(DATA, request.memory_share(8) * 3)
        .port(27017)
        .account(Account::user("sandbox").database("admin")))
}

/// The server's command line. Of the memory, three eighths are the disk and three sixteenths the cache, which is enough
/// for the largest document (16 MiB) to be less than a fifth of it; the rest is the server's own.
fn server(request: &Request) -> Vec<String> {
    // As text for the storage, since the option for it begins at 256 MiB.
    let mut storage = format!("cache_size={}MB", request.memory_share(16) * 3 / MIB);
    if !request.retained {
        // Three files of 100 MiB are allocated for the journal unless told otherwise.
        storage.push_str(",log=(file_max=8MB)");
    }
    let mut arguments = vec!["mongod", "--auth", "--bind_ip_all", "--dbpath", "/data/db/mongo/data"];
    arguments.extend(["--maxConns", MAX_CONNECTIONS, "--wiredTigerEngineConfigString", &storage]);
    arguments.extend(["--setParameter", "diagnosticDataCollectionEnabled=false"]);
    if !request.retained {
        // It makes no index where less than 500 MiB are free, and here the whole disk has less.
        arguments.extend(["--setParameter", "indexBuildMinAvailableDiskSpaceMB=0"]);
        // The journal is kept until then, a minute unless told otherwise.
        arguments.extend(["--syncdelay", "5"]);
    }
    arguments.into_iter().map(str::to_owned).collect()
}

/// Logs in as the account, over the container's own address: while the server is still being set up it listens on the
/// loopback alone and asks for no login.
fn probe() -> Command {
    Command::new(["mongosh", "--quiet", "--norc", "--nodb", "--eval", &literal(include_str!("probe.js"))])
        .env("ACCOUNT_USER", "{user}")
        .env("ACCOUNT_PASSWORD", "{password}")
        .env("ADDRESS", "{address}")
        .env("PORT", "{port}")
        .expect_stdout("ready")
        .timeout_ms(15_000)
}
