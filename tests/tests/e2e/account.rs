//! What the account that an agent gets can do, and what it cannot: over the network, with real clients.

use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client as Pg, NoTls};
use sandbar_tests::docker::{docker, run_beside};
use sandbar_tests::host::{image, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

fn loopback() -> TestHost {
    TestHost::start_with(Options { publish: "loopback", ..Options::default() })
}

/// The variables that an agent gets for a service.
pub(crate) fn env(evidence: &Value) -> std::collections::BTreeMap<String, String> {
    serde_json::from_value(evidence["env"].clone()).unwrap()
}

/// The URL of another database of the same server.
pub(crate) fn in_database(url: &str, database: &str) -> String {
    format!("{}/{database}", url.rsplit_once('/').unwrap().0)
}

/// Expects that a statement is refused for lack of a right, and for nothing else.
fn forbidden(client: &mut Pg, sql: &str) {
    match client.batch_execute(sql) {
        Ok(()) => panic!("`{sql}` was allowed"),
        Err(e) => assert_eq!(e.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "`{sql}`: {e:?}"),
    }
}

/// A Redis command from its words.
pub(crate) fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| {
        command.arg(*word);
    });
    command
}

/// A connection to the Redis of a host that publishes on the loopback.
pub(crate) fn redis_connection(evidence: &Value) -> redis::Connection {
    redis::Client::open(env(evidence)["REDIS_URL"].as_str()).unwrap().get_connection().unwrap()
}

#[test]
fn both_services_work_by_name_from_a_sibling_container() {
    let host = TestHost::start();
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let evidence = answer.evidence();
    let (pg, redis) = (&evidence["postgres"], &evidence["redis"]);
    assert_eq!(pg["host"], host.container("pg", "dev-1"));
    assert_eq!((&pg["port"], &pg["user"], &pg["database"]), (&json!(5432), &json!("sandbox"), &json!("sandbox")));
    assert_eq!((&redis["port"], &redis["user"], &redis["database"]), (&json!(6379), &json!(null), &json!(null)));
    for service in [pg, redis] {
        let password = service["password"].as_str().unwrap();
        assert!(password.len() == 32 && password.bytes().all(|b| b.is_ascii_hexdigit()), "{password}");
        assert_eq!(service["available_extensions"], json!([]));
    }

    let (pg_image, redis_image) = (image("postgres:16-alpine").unwrap(), image("redis:8-alpine").unwrap());
    // psql reads PGHOST and its kin from the environment: nothing but the evidence is used.
    let psql = |sql: &str| run_beside(&host.network(), &pg_image, &env(pg), &["psql", "-XtAc", sql]).unwrap();
    psql("create table t (id int primary key, name text); insert into t values (1, 'kept')");
    assert_eq!(psql("select name from t where id = 1"), "kept");

    let cli = [
        "sh",
        "-c",
        "redis-cli -u \"$REDIS_URL\" --no-auth-warning set k v && redis-cli -u \"$REDIS_URL\" --no-auth-warning get k",
    ];
    assert_eq!(run_beside(&host.network(), &redis_image, &env(redis), &cli).unwrap(), "OK\nv");
}

#[test]
fn the_variables_are_those_of_the_spec() {
    let host = loopback();
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let evidence = answer.evidence();
    let prefix = format!("{}_TEST_", host.namespace.to_uppercase());
    let names =
        |service: &str| env(&evidence[service]).into_keys().map(|k| k.replace(&prefix, "*")).collect::<Vec<_>>();
    assert_eq!(
        names("postgres"),
        [
            "DATABASE_URL",
            "PGDATABASE",
            "PGHOST",
            "PGPASSWORD",
            "PGPORT",
            "PGUSER",
            "*DB_ADMIN_DB",
            "*DB_HOST",
            "*DB_PASSWORD",
            "*DB_PORT",
            "*DB_USER"
        ]
    );
    assert_eq!(names("redis"), ["REDIS_URL", "*REDIS_HOST", "*REDIS_PASSWORD", "*REDIS_PORT"]);
    // Published on the loopback, the evidence says so, in every variable.
    let pg = &evidence["postgres"];
    assert_eq!(pg["host"], "127.0.0.1");
    assert_ne!(pg["port"], 5432);
    let url = env(pg)["DATABASE_URL"].clone();
    assert!(url.contains(&format!("@127.0.0.1:{}/sandbox", pg["port"])), "{url}");
    assert_eq!(Pg::connect(&url, NoTls).unwrap().query_one("select 1", &[]).unwrap().get::<_, i32>(0), 1);
}

/// What no account may do, whatever the image holds. `{me}` is the role that tries.
const ESCAPES: [&str; 38] = [
    "create extension plpython3u",
    "create extension plperlu",
    "create extension file_fdw",
    "create extension dblink",
    "create extension pageinspect",
    "create language plpython3u",
    "create function f() returns int language c as 'libc.so.6', 'getpid'",
    "create function f() returns int language internal as 'pg_backend_pid'",
    "load '/tmp/library.so'",
    "copy (select 1) to program 'cat > /dev/null'",
    "create temp table t (x text); copy t from program 'id'",
    "create temp table t (x text); copy t from '/etc/passwd'",
    "copy (select 1) to '/tmp/x'",
    "select pg_read_file('/etc/passwd')",
    "select pg_read_binary_file('postgresql.conf')",
    "select pg_ls_dir('/')",
    "select pg_stat_file('/etc/passwd')",
    "select lo_import('/etc/passwd')",
    "select lo_export(lo_create(0), '/tmp/x')",
    "select rolpassword from pg_authid",
    "alter system set log_statement = 'all'",
    "set session_preload_libraries = 'x'",
    "select pg_create_physical_replication_slot('x')",
    "alter role {me} superuser",
    "alter role {me} replication",
    "alter role {me} bypassrls",
    "alter role postgres password 'x'",
    "alter role postgres rename to y",
    "set role postgres",
    "set session authorization postgres",
    "create role x superuser",
    "create role x replication",
    "create role x in role pg_execute_server_program",
    "grant pg_execute_server_program to {me}",
    "grant pg_read_server_files, pg_write_server_files to {me}",
    "grant postgres to {me}",
    "drop database template1",
    "create event trigger e on ddl_command_start execute function suppress_redundant_updates_trigger()",
];

fn cannot_escape(client: &mut Pg, me: &str) {
    for sql in ESCAPES {
        // What came before the refused statement is undone with it.
        forbidden(client, &sql.replace("{me}", me));
    }
}

/// Where features live, and the template of new databases: both are the administrator's.
fn cannot_change_features(client: &mut Pg) {
    for sql in [
        "create table extensions.t (x int)",
        "create function extensions.f() returns int language sql as 'select 1'",
        "create or replace function extensions.uuid_generate_v4() returns uuid language sql as 'select null::uuid'",
        "alter function extensions.uuid_generate_v4() owner to sandbox",
        "alter function extensions.uuid_generate_v4() rename to x",
        "drop function extensions.uuid_generate_v4()",
        "insert into extensions.spatial_ref_sys (srid) values (1)",
        "alter extension vector update",
        "drop extension vector",
        "alter schema extensions owner to sandbox",
        "alter schema extensions rename to other",
        "drop schema extensions cascade",
    ] {
        forbidden(client, sql);
    }
}

#[test]
fn postgres_gives_no_superuser_and_a_test_suite_works() {
    let host = loopback();
    // The image with everything that is to be refused.
    let body = json!({ "services": ["postgres"], "extensions": { "postgres": ["vector", "postgis", "uuid-ossp"] } });
    let answer = host.developer("dev-1").call("request_sandbox", &body);
    let pg = &answer.evidence()["postgres"];
    let url = env(pg)["DATABASE_URL"].clone();
    let mut client = Pg::connect(&url, NoTls).unwrap();
    let row = client.query_one("select rolsuper, rolcreatedb from pg_roles where rolname = current_user", &[]).unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, bool>(1)), (false, true));
    let sql = "select count(*) from pg_available_extensions \
               where name in ('plpython3u', 'plperlu', 'file_fdw', 'dblink', 'vector')";
    assert_eq!(client.query_one(sql, &[]).unwrap().get::<_, i64>(0), 5, "the image holds them");

    client.batch_execute("create database another").unwrap();
    client.batch_execute("create database plain template template0").unwrap();
    client
        .batch_execute("create schema s; create table s.t (x int); drop schema public cascade; create schema public")
        .unwrap();
    client.batch_execute("create role suite login createdb createrole password 'x'").unwrap();
    client.batch_execute("create database theirs owner suite").unwrap();

    cannot_escape(&mut client, "sandbox");
    cannot_escape(&mut client, "suite");
    cannot_change_features(&mut client);
    for database in ["another", "plain"] {
        let mut there = Pg::connect(&in_database(&url, database), NoTls).unwrap();
        assert_eq!(there.query_one("select current_database()", &[]).unwrap().get::<_, String>(0), database);
        cannot_escape(&mut there, "sandbox");
        if database == "another" {
            cannot_change_features(&mut there);
        }
        // What Postgres itself marks as trusted can be had.
        there.batch_execute("create extension hstore").unwrap();
    }
    client.batch_execute("set role suite").unwrap();
    cannot_escape(&mut client, "suite");
    client.batch_execute("reset role").unwrap();
    // A role of the agent's own making, logged in as itself.
    let port = pg["port"].as_u64().unwrap();
    let login = |user: &str, password: &str, database: &str| {
        Pg::connect(&format!("host=127.0.0.1 port={port} user={user} password='{password}' dbname={database}"), NoTls)
    };
    cannot_escape(&mut login("suite", "x", "theirs").unwrap(), "suite");

    let mut template = login("sandbox", pg["password"].as_str().unwrap(), "template1").unwrap();
    cannot_change_features(&mut template);
    for sql in [
        "create schema s",
        "create table public.t (x int)",
        "create extension hstore",
        "alter database template1 is_template false",
        "alter database template1 owner to sandbox",
        "alter database template1 set search_path = public",
    ] {
        forbidden(&mut template, sql);
    }

    // Wrong and empty passwords, and the administrator with any: refused over the network.
    let own = pg["password"].as_str().unwrap();
    let refused = |user: &str, password: &str| {
        let Err(e) = login(user, password, "sandbox") else { panic!("{user} came in with {password:?}") };
        e.as_db_error().map_or_else(|| e.to_string(), |e| e.message().to_owned())
    };
    login("sandbox", own, "sandbox").unwrap();
    assert!(refused("sandbox", "wrong").contains("password authentication failed"));
    assert!(refused("sandbox", "").contains("password"));
    for password in ["", "wrong", own] {
        let why = refused("postgres", password);
        // Not even asked for a password; an empty one does not get that far.
        assert!(why.contains("pg_hba.conf rejects connection"), "{password:?}: {why}");
    }
}

#[test]
fn a_project_may_have_superusers_and_it_is_logged() {
    let host = TestHost::start_with(Options {
        services: vec!["postgres"],
        publish: "loopback",
        shop: "superuser = true\nextensions = { postgres = [\"vector\"] }".to_owned(),
        ..Options::default()
    });
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let pg = &answer.evidence()["postgres"];
    let mut client = Pg::connect(&env(pg)["DATABASE_URL"], NoTls).unwrap();
    client.batch_execute("create extension plpython3u; copy (select 1) to program 'cat > /dev/null'").unwrap();
    let superuser = |message: &str| {
        let of = |l: &Value| l["fields"]["agent"] == "dev-1" || l["fields"]["project"] == "shop";
        let line = host.log().into_iter().find(|l| l["fields"]["message"] == message && of(l));
        line.filter(|l| l["target"] == "audit").unwrap_or_else(|| panic!("no audit line `{message}`"))
    };
    assert_eq!(superuser("its accounts are superusers: nothing contains them")["level"], "WARN");
    assert_eq!(superuser("made")["fields"]["superuser"], true);
    // The administrator still does not come over the network.
    let port = pg["port"].as_u64().unwrap();
    client.batch_execute("alter role postgres password 'known'").unwrap();
    let administrator = format!("host=127.0.0.1 port={port} user=postgres password=known dbname=sandbox");
    assert!(Pg::connect(&administrator, NoTls).is_err());
}

#[test]
fn a_full_disk_is_an_ordinary_error() {
    let host = TestHost::start_with(Options { services: vec!["postgres"], publish: "loopback", ..Options::default() });
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({}));
    let url = env(&answer.evidence()["postgres"])["DATABASE_URL"].clone();
    let mut client = Pg::connect(&url, NoTls).unwrap();
    client.batch_execute("create table kept (x int); insert into kept values (7)").unwrap();
    // Many at once, so that the log fills as fast as it can, until each has met the end of the disk.
    let clients = (0..24).map(|n| {
        client.batch_execute(&format!("create table big{n} (x text)")).unwrap();
        (n, Pg::connect(&url, NoTls).unwrap())
    });
    let writers: Vec<_> = clients
        .collect::<Vec<_>>()
        .into_iter()
        .map(|(n, mut client)| {
            std::thread::spawn(move || {
                let insert =
                    format!("insert into big{n} select repeat(md5(g::text), 60) from generate_series(1, 5000) g");
                let error = (0..1000).find_map(|_| client.batch_execute(&insert).err()).expect("the disk ends");
                // The same connection goes on.
                let seven = client.query_one("select x from kept", &[]).map(|row| row.get::<_, i32>(0));
                (error.code().cloned(), format!("{error:?}"), seven.ok())
            })
        })
        .collect();
    for writer in writers {
        let (code, text, seven) = writer.join().unwrap();
        assert_eq!((code, seven), (Some(SqlState::DISK_FULL), Some(7)), "{text}");
    }
    // Down to the last page, and then a checkpoint, which comes by itself sooner or later.
    let error = (0..1000).find_map(|_| client.batch_execute("insert into kept select generate_series(1, 200)").err());
    assert_eq!(error.expect("the disk ends").code(), Some(&SqlState::DISK_FULL));
    let container = host.container("pg", "dev-1");
    let checkpoint = "PGPASSWORD=$POSTGRES_PASSWORD psql -XU postgres -d sandbox -c checkpoint";
    docker(["exec", "--user", "postgres", &container, "sh", "-c", checkpoint]).unwrap();
    let shown = "{{.State.Running}} {{.State.OOMKilled}} {{.RestartCount}}";
    assert_eq!(docker(["inspect", "--format", shown, &container]).unwrap(), "true false 0");
    // With room again it takes writes again, and it is still the sandbox that the agent was given.
    let tables = (0..24).map(|n| format!("big{n}")).collect::<Vec<_>>().join(", ");
    client.batch_execute(&format!("drop table {tables}")).unwrap();
    client.batch_execute("insert into kept values (8)").unwrap();
    assert_eq!(agent.call("request_sandbox", &json!({})).evidence(), answer.evidence());
}

#[test]
fn a_full_memory_is_an_ordinary_error() {
    let host = TestHost::start_with(Options { services: vec!["redis"], publish: "loopback", ..Options::default() });
    let agent = host.developer("dev-1");
    let answer = agent.call("request_sandbox", &json!({}));
    let mut connection = redis_connection(&answer.evidence()["redis"]);
    let value = "x".repeat(4 << 20);
    let error = (0..1000)
        .find_map(|n| redis::cmd("SET").arg(format!("k{n}")).arg(&value).query::<()>(&mut connection).err())
        .expect("the memory ends");
    assert_eq!(error.code(), Some("OOM"), "{error}");
    let kept: usize = redis::cmd("STRLEN").arg("k0").query(&mut connection).unwrap();
    assert_eq!(kept, value.len());
    redis::cmd("FLUSHALL").query::<()>(&mut connection).unwrap();
    redis::cmd("SET").arg("k").arg("v").query::<()>(&mut connection).unwrap();
    let shown = "{{.State.Running}} {{.State.OOMKilled}}";
    assert_eq!(docker(["inspect", "--format", shown, &host.container("redis", "dev-1")]).unwrap(), "true false");
    assert_eq!(agent.call("request_sandbox", &json!({})).evidence(), answer.evidence());
}

/// What would undo the rules, load code, move the data to another server or from one, or stop the server.
const UNDOING: [&str; 32] = [
    "MODULE LOAD /opt/redis-stack/lib/redisearch.so",
    "MODULE LOADEX /opt/redis-stack/lib/redisearch.so",
    "MODULE UNLOAD ft",
    "REPLICAOF 127.0.0.1 1",
    "SLAVEOF 127.0.0.1 1",
    "PSYNC ? -1",
    "SYNC",
    "REPLCONF listening-port 1",
    "FAILOVER",
    "CLUSTER RESET",
    "MIGRATE 127.0.0.1 1 k 0 1",
    "SHUTDOWN NOSAVE",
    "DEBUG SLEEP 0",
    "DEBUG SET-ACTIVE-EXPIRE 1",
    "SCRIPT DEBUG YES",
    "CONFIG SET dir /tmp",
    "CONFIG SET dbfilename x.so",
    "CONFIG SET requirepass x",
    "CONFIG SET maxmemory 0",
    "CONFIG SET enable-module-command yes",
    "CONFIG REWRITE",
    "SAVE",
    "BGSAVE",
    "BGREWRITEAOF",
    "RESTORE-ASKING k 0 x",
    "ACL SETUSER default +@all",
    "ACL SETUSER other on nopass ~* +@all",
    "ACL DELUSER default",
    "ACL LOAD",
    "ACL SAVE",
    "ACL LIST",
    "ACL GETUSER default",
];

#[test]
fn redis_refuses_what_would_undo_its_rules() {
    let host = loopback();
    let agent = host.developer("dev-1");
    // With a module there is more in the image, and more commands.
    for features in [json!([]), json!(["search"])] {
        let body = json!({ "services": ["redis"], "extensions": { "redis": features } });
        let answer = agent.call("request_sandbox", &body);
        let redis = &answer.evidence()["redis"];
        assert_eq!(redis["available_extensions"], features);
        let mut connection = redis_connection(redis);
        let mut run = |words: &[&str]| command(words).query::<redis::Value>(&mut connection).map_err(|e| e.to_string());
        let refused = |what: &str, answer: Result<redis::Value, String>| {
            let error = answer.expect_err(what);
            assert!(error.contains("permission") || error.contains("not allowed"), "{what}: {error}");
        };
        assert!(run(&["SET", "k", "v"]).is_ok());
        let library = "#!lua name=lib\nredis.register_function('f', function(k, a) return redis.call(unpack(a)) end)";
        run(&["FUNCTION", "LOAD", "REPLACE", library]).unwrap();
        // The ways round work for what is allowed, so that a refusal says something about the command.
        assert!(run(&["EVAL", "return redis.call(unpack(ARGV))", "0", "GET", "k"]).is_ok());
        assert!(run(&["FCALL", "f", "0", "GET", "k"]).is_ok());
        for line in UNDOING {
            let words: Vec<&str> = line.split(' ').collect();
            refused(line, run(&words));
            let round = |start: &[&'static str]| [start, &words].concat();
            refused(&format!("EVAL {line}"), run(&round(&["EVAL", "return redis.call(unpack(ARGV))", "0"])));
            refused(&format!("pcall {line}"), run(&round(&["EVAL", "return redis.pcall(unpack(ARGV))", "0"])));
            refused(&format!("FCALL {line}"), run(&round(&["FCALL", "f", "0"])));
        }
        let role = format!("{:?}", run(&["ROLE"]).unwrap());
        assert!(role.contains("master"), "{role}");
        assert!(run(&["FLUSHALL"]).is_ok());

        let port = &redis["port"];
        for url in [format!("redis://:wrong@127.0.0.1:{port}"), format!("redis://127.0.0.1:{port}")] {
            let open = redis::Client::open(url.as_str()).unwrap();
            let pong = open.get_connection().and_then(|mut c| redis::cmd("PING").query::<String>(&mut c));
            assert!(pong.is_err(), "{url}");
        }
    }
}

#[test]
fn mongo_keeps_documents_for_who_has_the_password() {
    let host = TestHost::start_with(Options { services: vec!["mongo"], ..Options::default() });
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let mongo = &answer.evidence()["mongo"];
    assert_eq!(mongo["host"], host.container("mongo", "dev-1"));
    assert_eq!(
        (&mongo["port"], &mongo["user"], &mongo["database"]),
        (&json!(27017), &json!("sandbox"), &json!("admin"))
    );
    let prefix = format!("{}_TEST_", host.namespace.to_uppercase());
    let names: Vec<_> = env(mongo).into_keys().map(|k| k.replace(&prefix, "*")).collect();
    assert_eq!(
        names,
        ["MONGODB_URI", "*MONGO_AUTH_DB", "*MONGO_HOST", "*MONGO_PASSWORD", "*MONGO_PORT", "*MONGO_USER"]
    );

    // A real client in a container beside it, with nothing but the evidence's variables.
    let image = image("mongo:8").unwrap();
    let shell = |env: &std::collections::BTreeMap<String, String>, script: &str| {
        let line = format!("mongosh --quiet \"$MONGODB_URI\" --eval \"{script}\"");
        run_beside(&host.network(), &image, env, &["sh", "-c", &line])
    };
    let script = "const c = db.getSiblingDB('suite').things; c.insertOne({ name: 'kept' }); print(c.findOne({ name: 'kept' }).name)";
    assert_eq!(shell(&env(mongo), script).unwrap(), "kept");

    let password = mongo["password"].as_str().unwrap();
    for wrong in ["wrong", ""] {
        let mut env = env(mongo);
        let uri = env["MONGODB_URI"].replace(&format!(":{password}@"), &format!(":{wrong}@"));
        env.insert("MONGODB_URI".to_owned(), uri);
        assert!(shell(&env, "print(db.getSiblingDB('suite').things.countDocuments())").is_err(), "{wrong:?}");
    }
    let mut nobody = env(mongo);
    nobody.insert("MONGODB_URI".to_owned(), format!("mongodb://{}:27017/", host.container("mongo", "dev-1")));
    assert!(shell(&nobody, "print(db.getSiblingDB('suite').things.countDocuments())").is_err());
    let top = docker(["top", &host.container("mongo", "dev-1"), "-ef"]).unwrap();
    assert!(!top.contains(password), "{top}");
}

#[test]
fn the_account_is_no_superuser_from_the_first_moment_on() {
    let host = TestHost::start_with(Options { services: vec!["postgres"], ..Options::default() });
    let agent = host.developer("dev-1");
    let asking = std::thread::spawn(move || agent.call("request_sandbox", &json!({})));
    // Long before the answer, the account is tried from inside the container, as soon as it exists at all.
    let mut making = None;
    wait("a container in the making", || {
        making = host.containers().into_iter().find(|c| c.contains("-making-"));
        making.is_some()
    });
    let making = making.unwrap();
    let sql = "select rolsuper from pg_roles where rolname = 'sandbox'";
    let mut seen = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while !asking.is_finished() && Instant::now() < until {
        if let Ok(out) = docker(["exec", "-u", "postgres", &making, "psql", "-U", "postgres", "-XtAc", sql]) {
            seen.push(out);
        }
    }
    asking.join().unwrap().evidence();
    assert!(seen.iter().all(|s| s.is_empty() || s == "f"), "{seen:?}");
}

#[test]
fn no_argument_list_and_no_log_shows_a_password() {
    let host = TestHost::start();
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let passwords: Vec<_> =
        ["postgres", "redis"].map(|s| answer.evidence()[s]["password"].as_str().unwrap().to_owned()).into();
    for slug in ["pg", "redis"] {
        let container = host.container(slug, "dev-1");
        let shown = [docker(["top", &container, "-ef"]).unwrap(), docker(["logs", &container]).unwrap()];
        let labels =
            docker(["inspect", "--format", "{{json .Config.Labels}} {{json .Args}} {{json .Path}}", &container])
                .unwrap();
        for password in &passwords {
            assert!(shown.iter().all(|s| !s.contains(password)), "{shown:?}");
            assert!(!labels.contains(password), "{labels}");
        }
    }
    let log = format!("{:?}", host.log());
    assert!(passwords.iter().all(|p| !log.contains(p)), "a password is in the host's log");
}

#[test]
fn containers_have_limits_and_no_capabilities() {
    let host = TestHost::start();
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    for slug in ["pg", "redis"] {
        let format = "{{.HostConfig.Memory}} {{.HostConfig.MemorySwap}} {{.HostConfig.NanoCpus}} {{.HostConfig.PidsLimit}} \
                      {{.HostConfig.CapDrop}} {{.HostConfig.CapAdd}} {{.HostConfig.SecurityOpt}} {{.HostConfig.Privileged}} \
                      {{len .Mounts}}";
        let shown = docker(["inspect", "--format", format, &host.container(slug, "dev-1")]).unwrap();
        assert_eq!(shown, "536870912 536870912 1000000000 256 [ALL] [] [no-new-privileges] false 0", "{slug}");
    }
}

/// An image that somebody made on top of the usual one, with a file that its entrypoint runs when a cluster is made.
struct OnTop(String);

impl OnTop {
    fn with_file(name: &str, content: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), content).unwrap();
        let container = docker(["create", &image("postgres:16-alpine").unwrap()]).unwrap();
        let to = format!("{container}:/docker-entrypoint-initdb.d/{name}");
        let copied = docker(["cp", folder.path().join("file").to_str().unwrap(), &to]);
        let on_top = Self(format!("sandbar-standin/postgres-on-top:{}", std::process::id()));
        let made = copied.and_then(|_| docker(["commit", &container, &on_top.0]));
        docker(["rm", "--volumes", &container]).unwrap();
        made.unwrap();
        on_top
    }
}

impl Drop for OnTop {
    fn drop(&mut self) {
        let _ = docker(["image", "rm", &self.0]);
    }
}

#[test]
fn what_an_image_runs_when_a_cluster_is_made_runs_beside_the_account() {
    let on_top =
        OnTop::with_file("60-of-the-image.sql", "\\connect sandbox\nCREATE TABLE of_the_image AS SELECT 7 AS n;");
    let image = &on_top.0;
    let host = TestHost::start_with(Options {
        publish: "loopback",
        services: vec!["postgres"],
        more: format!(
            "[engines.postgres]\nsettings = {{ image = {image:?}, full-image = {image:?} }}\ngrant.images = [{image:?}]\n"
        ),
        ..Options::default()
    });
    let answer = host.developer("dev-1").call("request_sandbox", &json!({}));
    let mut client = Pg::connect(&env(&answer.evidence()["postgres"])["DATABASE_URL"], NoTls).unwrap();
    let count = "SELECT count(*) FROM pg_class WHERE relname = 'of_the_image'";
    assert_eq!(client.query_one(count, &[]).unwrap().get::<_, i64>(0), 1);
    forbidden(&mut client, "INSERT INTO of_the_image VALUES (8)");
}
