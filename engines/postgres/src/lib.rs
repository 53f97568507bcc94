//! PostgreSQL: a server with one account and one database, tuned for data that nobody will miss.
//!
//! The account is no superuser unless the project asks for one. Extensions from outside of Postgres's own trusted set
//! are installed by the administrator, whose password the agent never gets and who is refused over the network.

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Step, Variable, export_engine, literal,
};

const MIB: u64 = 1 << 20;

/// Below this an empty cluster with its extensions would hardly fit.
const MIN_MEMORY: u64 = 256 * MIB;

/// The smallest there is: the log's disk holds a whole number of them.
const WAL_SEGMENT_MIB: u64 = 1;

const DATA: &str = "/var/lib/postgresql/data";

/// Starts the server, and before that makes cluster and account where they are not there yet.
const INIT: &str = "/docker-entrypoint-initdb.d/50-account.sh";

/// Every feature is an extension of the same name.
const FEATURES: [(&str, &str); 5] = [
    ("vector", "Vectors and nearest neighbours (pgvector)"),
    ("postgis", "Geography and geometry (PostGIS)"),
    ("pg_trgm", "Similarity of texts by trigrams"),
    ("citext", "Text that ignores case"),
    ("uuid-ossp", "Functions that make UUIDs"),
];

/// The engine.
pub struct Postgres;

impl Engine for Postgres {
    fn describe() -> Descriptor {
        let summary = "PostgreSQL with an account and a database of its own";
        let descriptor = Descriptor::new("postgres", "pg", env!("CARGO_PKG_VERSION"), summary)
            .setting("image", "postgres:16-alpine", "The image for a sandbox without features")
            .setting("full-image", "{namespace}-sandbox-pg:latest", "The image that holds all extensions")
            .client(
                ["psql", "-h", "{address}", "-p", "{port}", "-U", "{user}", "-d", "{database}"],
                [("PGPASSWORD", "{password}")],
            );
        FEATURES.iter().fold(descriptor, |descriptor, (name, summary)| descriptor.feature(*name, *summary))
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        if request.memory_bytes < MIN_MEMORY {
            return Err(Error::Other(format!("PostgreSQL needs at least {} MiB of memory", MIN_MEMORY / MIB)));
        }
        let mut recipe = Recipe::new(container(&request)?, as_account("select 1").expect_stdout("1"))
            .deadline_secs(60)
            .variables(variables());
        if request.retained {
            // The init script ran when the volume was new, and the project may have changed its mind since.
            let sql = format!("ALTER ROLE \"{{user}}\" {}", kind(&request));
            recipe = recipe.setup(Step::new("set the rights of the account", as_admin(["-c", &sql])));
        }
        for feature in &request.features {
            if !FEATURES.iter().any(|(name, _)| name == feature) {
                return Err(Error::UnsupportedFeature(feature.clone()));
            }
            recipe = recipe.setup(Step::activate(feature, activate(feature))).verify(Step::confirm(
                feature,
                as_account(&format!("select extname from pg_catalog.pg_extension where extname = '{feature}'"))
                    .expect_stdout(feature),
            ));
        }
        Ok(recipe)
    }
}

export_engine!(Postgres);

fn container(request: &Request) -> Result<Container, Error> {
    let container = Container::new(request.setting(if request.is_bare() { "image" } else { "full-image" })?)
        // Started as root the image would need capabilities to change to this user.
        .user("postgres")
        .entrypoint([INIT])
        .command(server(request))
        .env("PGDATA", "/var/lib/postgresql/data/pgdata")
        .env("POSTGRES_USER", "postgres")
        .env("POSTGRES_PASSWORD", "{admin_password}")
        .env("ACCOUNT_USER", "{user}")
        .env("ACCOUNT_DATABASE", "{database}")
        .env("ACCOUNT_PASSWORD", "{password}")
        .env("ACCOUNT_KIND", kind(request))
        .file(INIT, 0o755, literal(include_str!("init.sh")))
        .shm(request.memory_share(8))
        .port(5432)
        .account(Account::user("sandbox").database("sandbox").with_admin());
    // The image trusts whoever comes over the loopback unless told otherwise.
    let initdb = "--auth=scram-sha-256";
    Ok(if request.retained {
        container.env("POSTGRES_INITDB_ARGS", initdb).data_dir(DATA, request.memory_share(2))
    } else {
        // The log has a disk of its own: where it finds none left, the server stops and cannot start again, while a
        // table that cannot grow is an ordinary error.
        container
            .env("POSTGRES_INITDB_ARGS", format!("{initdb} --no-sync --wal-segsize={WAL_SEGMENT_MIB}"))
            .env("POSTGRES_INITDB_WALDIR", "/var/lib/postgresql/wal/pg_wal")
            .data_dir(DATA, request.memory_share(16) * 5)
            .data_dir("/var/lib/postgresql/wal", request.memory_share(16) * 3)
    })
}

/// The server's command line. What stands here an agent cannot change, not even a superuser with `ALTER SYSTEM`.
fn server(request: &Request) -> Vec<String> {
    let share = |parts| request.memory_share(parts) / MIB;
    let mut settings = vec![
        "listen_addresses=*".to_owned(),
        // For every role and database, those that the agent creates included.
        r#"search_path="$user", public, extensions"#.to_owned(),
        format!("maintenance_work_mem={}MB", share(16)),
        "jit=off".to_owned(),
    ];
    if request.retained {
        settings.push(format!("shared_buffers={}MB", share(16)));
    } else {
        settings.extend(["fsync=off", "synchronous_commit=off", "full_page_writes=off"].map(str::to_owned));
        // Nobody replicates. What is loaded into a new table need not be logged then, and a checkpoint writes no file of
        // its own, which the server would not survive on a full disk.
        settings.extend(["wal_level=minimal", "max_wal_senders=0", "max_replication_slots=0"].map(str::to_owned));
        // A checkpoint begins when a twelfth of the log's disk is used. The rest is for what as many as may connect write
        // until it is over, which is soon: there is little to write, and it takes no pauses.
        settings.push(format!("shared_buffers={}MB", share(32)));
        settings.extend([format!("max_wal_size={}MB", share(64)), format!("min_wal_size={}MB", share(64))]);
        settings.extend(["checkpoint_completion_target=0", "checkpoint_warning=0"].map(str::to_owned));
    }
    let flags = settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]);
    std::iter::once("postgres".to_owned()).chain(flags).collect()
}

fn kind(request: &Request) -> &'static str {
    if request.superuser { "SUPERUSER" } else { "NOSUPERUSER" }
}

/// A statement as the agent's account, over the container's own address: the socket answers while the account is still
/// being made.
fn as_account(sql: &str) -> Command {
    Command::new(["psql", "-X", "-h", "{address}", "-p", "{port}", "-U", "{user}", "-d", "{database}", "-tAc", sql])
        .env("PGPASSWORD", "{password}")
        .env("PGCONNECT_TIMEOUT", "5")
}

/// psql as the administrator, over the socket.
fn as_admin<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    let psql = ["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "template1"];
    Command::new(psql.into_iter().chain(args))
        .env("PGPASSWORD", "{admin_password}")
        // What an agent left in its database or set for it must not decide what a superuser's names mean.
        .env("PGOPTIONS", "-c search_path=pg_catalog -c client_min_messages=warning")
}

/// Installs an extension in the account's database, and in `template1` for those that it will create.
fn activate(feature: &str) -> Command {
    // In a kept database the schema may have been replaced. An extension's script would run what it finds there as
    // superuser, so somebody else's schema is refused.
    let sql = format!(
        "CREATE SCHEMA IF NOT EXISTS extensions; GRANT USAGE ON SCHEMA extensions TO PUBLIC; \
         DO $$ BEGIN IF (SELECT nspowner FROM pg_namespace WHERE nspname = 'extensions') <> 10 \
         THEN RAISE 'the schema extensions is not the administrator''s'; END IF; END $$; \
         CREATE EXTENSION IF NOT EXISTS \"{feature}\" SCHEMA extensions"
    );
    as_admin(["-c", &sql, "-c", "\\connect {database}", "-c", &sql]).timeout_ms(30_000)
}

/// What the agent gets.
fn variables() -> [Variable; 11] {
    [
        Variable::prefixed("DB_HOST", "{host}"),
        Variable::prefixed("DB_PORT", "{port}"),
        Variable::prefixed("DB_USER", "{user}"),
        Variable::prefixed("DB_PASSWORD", "{password}"),
        Variable::prefixed("DB_ADMIN_DB", "{database}"),
        Variable::plain("DATABASE_URL", "postgresql://{user}:{password}@{host}:{port}/{database}"),
        Variable::plain("PGHOST", "{host}"),
        Variable::plain("PGPORT", "{port}"),
        Variable::plain("PGUSER", "{user}"),
        Variable::plain("PGPASSWORD", "{password}"),
        Variable::plain("PGDATABASE", "{database}"),
    ]
}
