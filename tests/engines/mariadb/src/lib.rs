//! MariaDB, as somebody else would write its engine: on the SDK alone.
//!
//! The server is made and started by a shell line that reads the password from the environment and hands it on through
//! standard input, so that it stands in no argument list and no file. Its administrator is whoever comes over the Unix
//! socket as the server's own user, which is nobody from outside.

#[cfg(test)]
mod tests;

use sandbar_sdk::{
    Account, Command, Container, Descriptor, Engine, Error, Recipe, Request, Step, Variable, export_engine,
};

/// The engine.
pub struct Mariadb;

/// A new server's own tables take about 35 MB of the data's disk, which has half of the memory.
const LEAST_MEMORY: u64 = 192 << 20;
const MIB: u64 = 1 << 20;

impl Engine for Mariadb {
    fn describe() -> Descriptor {
        Descriptor::new(
            "mariadb",
            "maria",
            env!("CARGO_PKG_VERSION"),
            "MariaDB with an account and a database of its own",
        )
        .setting("image", "mariadb:11", "The image to run")
        .setting("collation", "utf8mb4_unicode_ci", "How new databases compare text")
        .feature("archive", "Tables that only grow and are compressed (ENGINE=ARCHIVE)")
        .feature("events", "Statements that run on a schedule (CREATE EVENT)")
    }

    fn plan(request: Request) -> Result<Recipe, Error> {
        if request.memory_bytes < LEAST_MEMORY {
            return Err(Error::Other(format!("MariaDB needs at least {} MiB of memory", LEAST_MEMORY / MIB)));
        }
        let container = Container::new(request.setting("image")?)
            .user("mysql")
            .entrypoint(["sh", "-c", &start(&request)?])
            .env("ACCOUNT_PASSWORD", "{password}")
            .data_dir("/var/lib/mysql", request.memory_share(2))
            .port(3306)
            .account(Account::user("sandbox").database("sandbox"));
        let mut recipe = Recipe::new(container, query("SELECT 1").expect_stdout("1")).deadline_secs(60).variables([
            Variable::prefixed("MARIADB_HOST", "{host}"),
            Variable::prefixed("MARIADB_PORT", "{port}"),
            Variable::prefixed("MARIADB_USER", "{user}"),
            Variable::prefixed("MARIADB_PASSWORD", "{password}"),
            Variable::prefixed("MARIADB_DATABASE", "{database}"),
            Variable::plain("MARIADB_URL", "mysql://{user}:{password}@{host}:{port}/{database}"),
        ]);
        for feature in &request.features {
            let confirmed = match feature.as_str() {
                "archive" => query("SELECT support FROM information_schema.engines WHERE engine = 'ARCHIVE'")
                    .expect_stdout("YES"),
                "events" => query("SELECT @@event_scheduler").expect_stdout("ON"),
                _ => return Err(Error::UnsupportedFeature(feature.clone())),
            };
            recipe = recipe.verify(Step::confirm(feature, confirmed));
        }
        Ok(recipe)
    }
}

export_engine!(Mariadb);

/// The script that makes the data where there is none, and starts the server. `exec`, so that signals reach it.
fn start(request: &Request) -> Result<String, Error> {
    let collation = request.setting("collation")?;
    if collation.is_empty() || !collation.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') {
        return Err(Error::BadSetting(("collation".to_owned(), "it is a name such as utf8mb4_unicode_ci".to_owned())));
    }
    // What has to be the same whenever the data is opened: a log of this size, and nothing beside it.
    let files = format!(
        "--no-defaults --innodb-undo-tablespaces=0 --innodb-log-file-size={}",
        request.memory_share(32).clamp(4 * MIB, 96 * MIB) / MIB * MIB
    );
    let mut options = vec![
        format!("--innodb-buffer-pool-size={}", request.memory_share(8)),
        format!("--collation-server={collation}"),
        "--bind-address=* --skip-name-resolve --socket=/tmp/mariadb.sock --pid-file=/tmp/mariadb.pid".to_owned(),
        "--aria-pagecache-buffer-size=8M --max-connections=100 --local-infile=OFF".to_owned(),
    ];
    // Kept tables may be of a kind that was wanted once.
    if request.wants("archive") || request.retained {
        options.push("--plugin-load-add=ha_archive".to_owned());
    }
    if request.wants("events") {
        options.push("--event-scheduler=ON".to_owned());
    }
    if !request.retained {
        options.push(
            "--innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF --innodb-flush-method=nosync".to_owned(),
        );
    }
    let options = options.join(" ");
    let grants = match request.superuser {
        true => "GRANT ALL PRIVILEGES ON *.* TO sandbox@'%' WITH GRANT OPTION;".to_owned(),
        // It may make databases of its own, and touch no table of the server's.
        false => [r"sandbox", r"sandbox\\_%"]
            .map(|of| format!(r"GRANT ALL PRIVILEGES ON \`{of}\`.* TO sandbox@'%' WITH GRANT OPTION;"))
            .join("\n"),
    };
    Ok(format!(
        r#"set -eu
: "${{ACCOUNT_PASSWORD:?}}"
umask 077
data=/var/lib/mysql/data
if [ ! -d $data ]; then
  # Only what is whole gets the name.
  rm -rf $data.new
  mariadb-install-db {files} --datadir=$data.new --skip-test-db --skip-name-resolve \
    --auth-root-authentication-method=socket --auth-root-socket-user=mysql >/tmp/install.log 2>&1 ||
    {{ cat /tmp/install.log >&2; exit 1; }}
  mv $data.new $data
fi
exec mariadbd {files} --datadir=$data {options} --init-file=/dev/stdin <<EOF
CREATE DATABASE IF NOT EXISTS sandbox;
CREATE USER IF NOT EXISTS sandbox@'%';
ALTER USER sandbox@'%' IDENTIFIED BY '$ACCOUNT_PASSWORD';
REVOKE ALL PRIVILEGES, GRANT OPTION FROM sandbox@'%';
{grants}
EOF
"#
    ))
}

/// A statement as the agent, over the container's own address, so without encryption.
fn query(statement: &str) -> Command {
    let client = ["mariadb", "--no-defaults", "--skip-ssl", "--connect-timeout=5", "-h", "{address}", "-P", "{port}"];
    let rest = ["-u", "{user}", "-D", "{database}", "--batch", "--skip-column-names", "-e", statement];
    Command::new(client.into_iter().chain(rest)).env("MYSQL_PWD", "{password}")
}
