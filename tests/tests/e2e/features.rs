//! Features on the images that hold them, used as a test suite would: over the network, with real clients.

use postgres::{Client as Pg, NoTls};
use sandbar_tests::docker::docker;
use sandbar_tests::host::{FULL_PG, image, wait};
use sandbar_tests::{Answer, Options, TestHost};
use serde_json::{Value, json};

use crate::account::{command, env, in_database, redis_connection};

const LIGHT_PG: &str = "postgres:16-alpine";
const LIGHT_REDIS: &str = "redis:8-alpine";
const FULL_REDIS: &str = "redis/redis-stack-server:latest";

fn id_and_image(host: &TestHost, slug: &str) -> (String, String) {
    let shown = docker(["inspect", "--format", "{{.Id}} {{.Config.Image}}", &host.container(slug, "dev-1")]).unwrap();
    let (id, image) = shown.split_once(' ').unwrap();
    (id.to_owned(), image.to_owned())
}

/// The only value that a query answers.
fn value(client: &mut Pg, sql: &str) -> String {
    let rows = client.simple_query(sql).unwrap_or_else(|e| panic!("{sql}: {e:?}"));
    let row = rows.iter().find_map(|m| match m {
        postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("null").to_owned()),
        _ => None,
    });
    row.unwrap_or_else(|| panic!("{sql}: no row"))
}

#[test]
fn a_service_that_lacks_a_feature_is_remade_alone_on_the_full_image() {
    let host = TestHost::start_with(Options {
        publish: "loopback",
        shop: "extensions = { postgres = [\"pg_trgm\", \"citext\", \"pg_trgm\"], redis = [] }".to_owned(),
        ..Options::default()
    });
    let agent = host.developer("dev-1");
    let ask = |body: Value| agent.call("request_sandbox", &body).evidence().clone();
    let installed = |evidence: &Value| {
        let mut client = Pg::connect(&env(&evidence["postgres"])["DATABASE_URL"], NoTls).unwrap();
        let sql = "select json_agg(extname order by extname)::text from pg_extension where extname <> 'plpgsql'";
        serde_json::from_str::<Value>(&value(&mut client, sql)).unwrap()
    };
    // The standing set alone, in order; a service without features is the light image.
    let first = ask(json!({}));
    assert_eq!(first["postgres"]["available_extensions"], json!(["citext", "pg_trgm"]));
    assert_eq!(installed(&first), json!(["citext", "pg_trgm"]));
    assert_eq!(first["redis"]["available_extensions"], json!([]));
    let (pg, redis) = (id_and_image(&host, "pg"), id_and_image(&host, "redis"));
    assert_eq!((&pg.1, &redis.1), (&image(FULL_PG).unwrap(), &image(LIGHT_REDIS).unwrap()));

    // United with the call's: the one that lacks it is made anew, with credentials of its own.
    let second = ask(json!({ "services": ["postgres"], "extensions": { "postgres": ["uuid-ossp", "citext"] } }));
    assert_eq!(second["postgres"]["available_extensions"], json!(["citext", "pg_trgm", "uuid-ossp"]));
    assert_eq!(installed(&second), json!(["citext", "pg_trgm", "uuid-ossp"]));
    assert_ne!(second["postgres"]["password"], first["postgres"]["password"]);
    let remade = id_and_image(&host, "pg");
    assert_ne!(remade.0, pg.0);
    assert_eq!(id_and_image(&host, "redis"), redis, "the other one is the same container");

    // What is there is a hit, however it is asked for, and nothing is lost by asking for less.
    let subset = json!({ "extensions": { "postgres": ["uuid-ossp"], "redis": [] } });
    for body in [subset, json!({}), json!({ "extensions": { "postgres": ["pg_trgm", "pg_trgm", "citext"] } })] {
        let again = ask(body);
        assert_eq!(again["postgres"], second["postgres"]);
        assert_eq!(again["redis"], first["redis"]);
    }
    assert_eq!(id_and_image(&host, "pg"), remade);

    // And the other way round.
    let third = ask(json!({ "extensions": { "redis": ["search"] } }));
    assert_eq!(third["postgres"], second["postgres"]);
    assert_eq!(id_and_image(&host, "pg"), remade);
    assert_ne!(third["redis"]["password"], first["redis"]["password"]);
    assert_eq!(third["redis"]["available_extensions"], json!(["search"]));
    assert_eq!(id_and_image(&host, "redis").1, image(FULL_REDIS).unwrap());
    let mut both = [host.container("pg", "dev-1"), host.container("redis", "dev-1")];
    both.sort();
    wait("the old ones to go", || host.containers() == both);
}

#[test]
fn without_features_the_light_images_are_used() {
    let host = TestHost::start();
    let agent = host.developer("dev-1");
    agent.call("request_sandbox", &json!({ "extensions": { "postgres": [], "redis": [] } })).evidence();
    assert_eq!(id_and_image(&host, "pg").1, image(LIGHT_PG).unwrap());
    assert_eq!(id_and_image(&host, "redis").1, image(LIGHT_REDIS).unwrap());
}

/// Uses every feature of Postgres in the database of a connection, in tables of its own.
fn use_features(client: &mut Pg) {
    let database = value(client, "select current_database()");
    client
        .batch_execute(
            "create table vectors (id int primary key, v vector(3));
             insert into vectors select g, array[g, g % 7, g % 11]::real[]::vector from generate_series(1, 1000) g;
             create index on vectors using hnsw (v vector_l2_ops);
             create table places (name text, at geography(point));
             insert into places values ('origin', 'point(0 0)'), ('one degree', 'point(1 0)'), ('far', 'point(90 45)');
             create index on places using gist (at);
             create table names (name citext unique);
             insert into names values ('Herring'), ('crab');
             create table texts (words text, id uuid default uuid_generate_v4());
             insert into texts (words) values ('herring'), ('crab'), ('sea urchin');
             create index on texts using gin (words gin_trgm_ops);
             analyze; set enable_seqscan = off",
        )
        .unwrap_or_else(|e| panic!("{database}: {e:?}"));

    let nearest = "select id from vectors order by v <-> array[500, 500 % 7, 500 % 11]::real[]::vector limit 1";
    let plan = client.query(&format!("explain {nearest}"), &[]).unwrap();
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    assert!(plan.iter().any(|line| line.contains("Index Scan using vectors_v_idx")), "{database}: {plan:#?}");
    assert_eq!(value(client, nearest), "500", "{database}");

    // A degree on the equator of the ellipsoid that GPS measures by.
    let degree: f64 = value(
        client,
        "select st_distance(a.at, b.at) from places a, places b where (a.name, b.name) = ('origin', 'one degree')",
    )
    .parse()
    .unwrap();
    assert!((degree - 6_378_137.0_f64.to_radians()).abs() < 1.0, "{database}: {degree}");
    let near =
        "select string_agg(name, ' ') from places where name <> 'origin' and st_dwithin(at, 'point(0 0)', 200000)";
    assert_eq!(value(client, near), "one degree", "{database}");

    assert_eq!(value(client, "select name from names where name = 'hERRING'"), "Herring", "{database}");
    let again = client.batch_execute("insert into names values ('CRAB')").unwrap_err();
    assert_eq!(again.code(), Some(&postgres::error::SqlState::UNIQUE_VIOLATION), "{database}: {again}");

    let similar = "select words from texts where words % 'hering' order by similarity(words, 'hering') desc";
    assert_eq!(value(client, similar), "herring", "{database}");
    let uuids = "select count(distinct id) || ' ' || string_agg(distinct substr(id::text, 15, 1), '') from texts";
    assert_eq!(value(client, uuids), "3 4", "{database}: three of version 4");
}

#[test]
fn every_feature_of_postgres_works_in_every_database() {
    let host = TestHost::start_with(Options { services: vec!["postgres"], publish: "loopback", ..Options::default() });
    let all = json!(["citext", "pg_trgm", "postgis", "uuid-ossp", "vector"]);
    let asked = json!(["vector", "postgis", "pg_trgm", "citext", "uuid-ossp"]);
    let answer = host.developer("dev-1").call("request_sandbox", &json!({ "extensions": { "postgres": asked } }));
    let pg = &answer.evidence()["postgres"];
    assert_eq!(pg["available_extensions"], all);
    let url = env(pg)["DATABASE_URL"].clone();
    let mut own = Pg::connect(&url, NoTls).unwrap();
    own.batch_execute("create database suite").unwrap();
    let mut created = Pg::connect(&in_database(&url, "suite"), NoTls).unwrap();
    assert_eq!(value(&mut created, "select current_database()"), "suite");
    for client in [&mut own, &mut created] {
        use_features(client);
        // What a suite does between two runs; nothing of the first is left, and everything works anew.
        client.batch_execute("drop schema public cascade; create schema public").unwrap();
        assert_eq!(value(client, "select count(*) from pg_tables where schemaname = 'public'"), "0");
        use_features(client);
        // Installed, and nothing else that was not asked for.
        let sql = "select json_agg(extname order by extname)::text from pg_extension where extname <> 'plpgsql'";
        assert_eq!(serde_json::from_str::<Value>(&value(client, sql)).unwrap(), all);
    }
}

#[test]
fn search_finds_documents() {
    let host = TestHost::start_with(Options { services: vec!["redis"], publish: "loopback", ..Options::default() });
    let answer = host.developer("dev-1").call("request_sandbox", &json!({ "extensions": { "redis": ["search"] } }));
    let redis = &answer.evidence()["redis"];
    assert_eq!(redis["available_extensions"], json!(["search"]));
    let mut connection = redis_connection(redis);
    let mut run = |words: &[&str]| command(words).query::<redis::Value>(&mut connection);
    run(&["FT.CREATE", "books", "SCHEMA", "title", "TEXT", "year", "NUMERIC"]).unwrap();
    for (key, title, year) in [("b:1", "the sea urchin", "1990"), ("b:2", "the herring", "2001"), ("b:3", "x", "1990")]
    {
        // Indexed by itself in later versions, and by this command in the first.
        run(&["HSET", key, "title", title, "year", year]).unwrap();
        let added = run(&["FT.ADDHASH", "books", key, "1.0"]);
        assert!(added.is_ok() || format!("{added:?}").contains("unknown command"), "{added:?}");
    }
    let mut found = Vec::new();
    wait("the documents to be indexed", || {
        let answer = run(&["FT.SEARCH", "books", "@title:urchin @year:[1980 2000]", "NOCONTENT"]).unwrap();
        found = redis::from_redis_value::<Vec<redis::Value>>(answer).unwrap();
        found.len() > 1
    });
    assert_eq!(found, [redis::Value::Int(1), redis::Value::BulkString(b"b:1".to_vec())]);
}

/// A provision that failed since the image lacks a feature: named, retryable, and nothing is left.
fn lacks(host: &TestHost, answer: &Answer, feature: &str, image: &str) {
    assert_eq!((answer.status, answer.code()), (503, "invalid_state"), "{:#}", answer.body);
    assert_eq!(answer.body["error"]["retryable"], true);
    let message = answer.error("message");
    assert!(message.contains(&format!("`{feature}`")) && message.contains(&format!("`{image}`")), "{message}");
    assert_eq!(host.containers(), Vec::<String>::new());
}

#[test]
fn a_module_that_the_image_lacks_is_named() {
    // The light image in place of the full one: it has no module at all.
    let host = TestHost::start_with(Options {
        services: vec!["redis"],
        more: format!("[engines.redis]\nsettings = {{ full-image = {LIGHT_REDIS:?} }}\n"),
        ..Options::default()
    });
    let agent = host.developer("dev-1");
    for feature in ["json", "bloom", "search"] {
        let answer = agent.call("request_sandbox", &json!({ "extensions": { "redis": [feature] } }));
        lacks(&host, &answer, feature, LIGHT_REDIS);
        assert_eq!(answer.body["error"]["details"]["exit_code"], 1, "{:#}", answer.body);
        assert!(answer.error("message").contains(&format!("the module for {feature}")), "{:#}", answer.body);
    }
    // It blocks nothing else.
    agent.call("request_sandbox", &json!({})).evidence();
}

#[test]
fn an_extension_that_the_image_lacks_is_named() {
    let host = TestHost::start_with(Options {
        services: vec!["postgres", "redis"],
        more: format!("[engines.postgres]\nsettings = {{ full-image = {LIGHT_PG:?} }}\n"),
        ..Options::default()
    });
    let agent = host.developer("dev-1");
    let ask = |features: Value| agent.call("request_sandbox", &json!({ "extensions": { "postgres": features } }));
    let answer = ask(json!(["citext", "vector"]));
    lacks(&host, &answer, "vector", LIGHT_PG);
    assert_eq!(answer.body["error"]["details"]["step"], "setup `activate vector`");
    // What it does have can be had.
    let before = ask(json!(["citext"])).evidence().clone();
    assert_eq!(before["postgres"]["available_extensions"], json!(["citext"]));
    // A larger wish that fails takes nothing away.
    assert_eq!(ask(json!(["postgis"])).status, 503);
    let mut both = [host.container("pg", "dev-1"), host.container("redis", "dev-1")];
    both.sort();
    assert_eq!(host.containers(), both);
    assert_eq!(ask(json!([])).evidence(), &before);
}

#[test]
fn a_configured_feature_that_does_not_exist_is_refused_at_the_start() {
    for (shop, says) in [
        ("extensions = { postgres = [\"vector\", \"pgvector\"] }", ["`pgvector`", "`uuid-ossp`, `vector`"]),
        ("extensions = { postgres = [\"Vector\"] }", ["`Vector`", "`uuid-ossp`, `vector`"]),
        ("extensions = { redis = [\"vector\"] }", ["`vector`", "`bloom`, `json`, `search`"]),
        ("extensions = { kafka = [] }", ["`kafka`", "`mongo`, `postgres`, `redis`"]),
    ] {
        let host = TestHost::prepare(Options { shop: shop.to_owned(), ..Options::default() });
        let output = host.command().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{shop}: {said}");
        for word in ["[projects.shop] extensions."].iter().chain(&says) {
            assert!(said.contains(word), "{shop}: no {word} in {said}");
        }
    }
}

#[test]
fn no_spelling_gets_round_the_allowlist() {
    let host = TestHost::start_with(Options {
        docker: "host = \"unix:///nowhere/docker.sock\"\n".to_owned(),
        ..Options::default()
    });
    let agent = host.developer("dev-1");
    for other in
        ["pgvector", "Vector", "vector ", "", "plpython3u", "vector\"; drop database x; --", "vector\n", "véctor"]
    {
        let answer = agent.call("request_sandbox", &json!({ "extensions": { "postgres": ["vector", other] } }));
        assert_eq!((answer.status, answer.code()), (409, "invalid_state"), "{other:?}: {:#}", answer.body);
        let allowed = json!(["citext", "pg_trgm", "postgis", "uuid-ossp", "vector"]);
        assert_eq!(answer.body["error"]["allowed"], allowed, "{other:?}");
        let set = json!({ "project": "late", "services": ["postgres"], "extensions": { "postgres": [other] } });
        let answer = host.operator().call("set_project", &set);
        assert_eq!((answer.status, answer.code()), (400, "bad_request"), "{other:?}: {:#}", answer.body);
        assert!(answer.error("message").contains("`uuid-ossp`, `vector`"), "{:#}", answer.body);
    }
}
