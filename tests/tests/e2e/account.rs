//! What the account that an agent gets can do, and what it cannot: over the network, with real clients.

use std::time::{Duration, Instant};

use postgres::{Client as Pg, NoTls};
use sandbar_tests::docker::{docker, run_beside};
use sandbar_tests::host::{image, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

fn loopback() -> TestHost {
    TestHost::start_with(Options { publish: "loopback", ..Options::default() })
}

fn env(evidence: &Value) -> std::collections::BTreeMap<String, String> {
    serde_json::from_value(evidence["env"].clone()).unwrap()
}

fn refusal(client: &mut Pg, sql: &str) -> String {
    match client.batch_execute(sql) {
        Ok(()) => panic!("`{sql}` was allowed"),
        Err(e) => e.as_db_error().map_or_else(|| e.to_string(), |e| e.message().to_owned()),
    }
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

#[test]
fn postgres_gives_no_superuser_and_a_test_suite_works() {
    let host = loopback();
    let answer = host.developer("dev-1").call("request_sandbox", &json!({ "services": ["postgres"] }));
    let pg = &answer.evidence()["postgres"];
    let url = env(pg)["DATABASE_URL"].clone();
    let mut client = Pg::connect(&url, NoTls).unwrap();
    let row = client.query_one("select rolsuper, rolcreatedb from pg_roles where rolname = current_user", &[]).unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, bool>(1)), (false, true));

    client.batch_execute("create database another").unwrap();
    client
        .batch_execute("create schema s; create table s.t (x int); drop schema public cascade; create schema public")
        .unwrap();
    client.batch_execute("create role suite login password 'x'").unwrap();

    assert!(refusal(&mut client, "alter role sandbox superuser").contains("permission denied"));
    assert!(refusal(&mut client, "create extension file_fdw").contains("permission denied"));
    assert!(refusal(&mut client, "copy (select 1) to program 'true'").contains("permission denied"));
    assert!(refusal(&mut client, "select pg_read_file('/etc/passwd')").contains("permission denied"));
    assert!(refusal(&mut client, "set role postgres").contains("permission denied"));

    // Wrong, empty and the administrator's: refused over the network.
    let with = |user: &str, password: &str| {
        let port = pg["port"].as_u64().unwrap();
        Pg::connect(&format!("host=127.0.0.1 port={port} user={user} password='{password}' dbname=sandbox"), NoTls)
    };
    assert!(with("sandbox", pg["password"].as_str().unwrap()).is_ok());
    assert!(with("sandbox", "wrong").is_err());
    assert!(with("sandbox", "").is_err());
    assert!(with("postgres", "").is_err());
}

#[test]
fn redis_refuses_what_would_undo_its_rules() {
    let host = loopback();
    let answer = host.developer("dev-1").call("request_sandbox", &json!({ "services": ["redis"] }));
    let redis = &answer.evidence()["redis"];
    let mut connection = redis::Client::open(env(redis)["REDIS_URL"].as_str()).unwrap().get_connection().unwrap();
    let mut run = |line: &str| {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|w| {
            command.arg(w);
        });
        command.query::<redis::Value>(&mut connection).map_err(|e| e.to_string())
    };
    assert!(run("SET k v").is_ok());
    assert!(run("FLUSHALL").is_ok());
    for line in [
        "MODULE LOAD /x.so",
        "REPLICAOF 127.0.0.1 1",
        "SHUTDOWN NOSAVE",
        "DEBUG SLEEP 0",
        "CONFIG SET dir /tmp",
        "CONFIG REWRITE",
        "ACL SETUSER default +@all",
        "FAILOVER",
    ] {
        let error = run(line).expect_err(line);
        assert!(error.contains("permission") || error.contains("not allowed"), "{line}: {error}");
    }
    for url in [format!("redis://:wrong@127.0.0.1:{}", redis["port"]), format!("redis://127.0.0.1:{}", redis["port"])] {
        let mut open = redis::Client::open(url.as_str()).unwrap();
        let pong = open.get_connection().and_then(|mut c| redis::cmd("PING").query::<String>(&mut c));
        assert!(pong.is_err(), "{url}");
        let _ = &mut open;
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
