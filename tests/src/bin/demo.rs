//! `make demo`: starts a host, plays an orchestrator and an agent, and tells what happens. Leaves nothing behind.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sandbar_tests::docker::run_beside;
use sandbar_tests::host::image;
use sandbar_tests::{Answer, Options, TestHost};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let started = Instant::now();
    let mut host = TestHost::start_with(Options {
        namespace: Some("demo"),
        services: vec!["postgres", "redis", "mongo"],
        ..Options::default()
    });
    let told = tell(&host);
    let left = host.finish()?;
    told?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    step("The host ends. Nothing is left: no container, no network, no volume.");
    println!("\n{} All of it took {:.1} s.\n", paint("32", "✓"), started.elapsed().as_secs_f32());
    Ok(())
}

fn tell(host: &TestHost) -> Result<()> {
    title("Sandbar: an agent asks for its databases and gets them");
    step(&format!("A host serves on {}. Its engines are WebAssembly components:", host.base()));
    let page = host.nobody().get("/readyz");
    for (name, engine) in page.body["engines"].as_object().context("engines are listed")? {
        note(&format!("{name:9} {} (sha256 {}…)", engine["state"].as_str().unwrap_or("?"), short(&engine["sha256"])));
    }

    let token = host.orchestrator().call("register_agent", &json!({ "agent": "be-dev-1", "role": "developer" }));
    let agent = host.nobody().with_token(token.evidence()["token"].as_str().context("a token")?);
    step("The agent asks before it has any work:");
    show("request_sandbox", &agent.call("request_sandbox", &json!({})));

    step("Its orchestrator binds it to the project `shop`, and it asks again:");
    host.orchestrator().call("begin_work", &json!({ "agent": "be-dev-1", "project": "shop" })).evidence();
    let asked = Instant::now();
    let answer = agent.call("request_sandbox", &json!({}));
    let took = asked.elapsed();
    let evidence = answer.evidence();
    for (service, given) in evidence.as_object().context("evidence by service")? {
        note(&format!(
            "{service:9} {}:{}  user {}  password {}…",
            given["host"].as_str().unwrap_or("?"),
            given["port"],
            given["user"].as_str().unwrap_or("none"),
            short(&given["password"]),
        ));
        let names: Vec<_> = given["env"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        note(&format!("          variables {}", names.join(" ")));
    }
    note(&format!("all made at once in {:.2} s", took.as_secs_f32()));

    step("It uses Postgres over the network, from a container beside it, with psql and nothing but these variables:");
    let env = |service: &str| -> Result<BTreeMap<String, String>> {
        Ok(serde_json::from_value(evidence[service]["env"].clone())?)
    };
    let sql = "create table fish (name text, legs int); insert into fish values ('herring', 0), ('crab', 10)";
    let (pg, pg_image) = (env("postgres")?, image("postgres:16-alpine")?);
    run_beside(&host.network(), &pg_image, &pg, &["psql", "-XqAtc", sql])?;
    note(sql);
    let query = "select name from fish where legs > 0";
    let found = run_beside(&host.network(), &pg_image, &pg, &["psql", "-XqAtc", query])?;
    note(&format!("{query}  ->  {found}"));
    ensure!(found == "crab", "psql answered {found:?}");

    step("And Redis, with redis-cli:");
    let (redis, redis_image) = (env("redis")?, image("redis:8-alpine")?);
    let cli = |line: &str| {
        let script = format!("redis-cli -u \"$REDIS_URL\" --no-auth-warning {line}");
        run_beside(&host.network(), &redis_image, &redis, &["sh", "-c", &script])
    };
    note(&format!("set tide low  ->  {}", cli("set tide low")?));
    let tide = cli("get tide")?;
    note(&format!("get tide      ->  {tide}"));
    ensure!(tide == "low", "redis-cli answered {tide:?}");

    step("And Mongo, with mongosh:");
    let (mongo, mongo_image) = (env("mongo")?, image("mongo:8")?);
    let script = "db.getSiblingDB('reef').fish.insertOne({ name: 'crab', legs: 10 }); \
                  print(db.getSiblingDB('reef').fish.findOne({ legs: { $gt: 0 } }).name)";
    let shell = format!("mongosh --quiet \"$MONGODB_URI\" --eval \"{}\"", script.replace('$', "\\$"));
    let found = run_beside(&host.network(), &mongo_image, &mongo, &["sh", "-c", &shell])?;
    note("insertOne({ name: 'crab', legs: 10 })");
    note(&format!("findOne({{ legs: {{ $gt: 0 }} }}).name  ->  {found}"));
    ensure!(found == "crab", "mongosh answered {found:?}");

    step("Asking again costs one look at Docker, and answers the same credentials:");
    let asked = Instant::now();
    ensure!(agent.call("request_sandbox", &json!({})).evidence() == evidence, "other credentials");
    note(&format!("{:.1} ms", asked.elapsed().as_secs_f32() * 1000.0));

    step("It wants more than it may:");
    show("kafka", &agent.call("request_sandbox", &json!({ "services": ["kafka"] })));
    let script = "psql -XqAtc \"copy (select 1) to program 'id'\" 2>&1 || true";
    note(&format!(
        "psql  ->  {}",
        run_beside(&host.network(), &pg_image, &pg, &["sh", "-c", script])?.lines().next().unwrap_or("")
    ));

    step("It gives them back:");
    let released = agent.call("release_sandbox", &json!({}));
    note(&released.evidence().to_string());
    Ok(())
}

fn short(value: &Value) -> &str {
    let text = value.as_str().unwrap_or("?");
    text.get(..6).unwrap_or(text)
}

fn show(what: &str, answer: &Answer) {
    note(&format!("{what}  ->  {} {}: {}", answer.status, answer.code(), answer.error("message")));
    note(&format!("{:width$}      {}", "", answer.error("remediate"), width = what.len()));
}

fn paint(colour: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
}

fn title(text: &str) {
    println!("\n{}\n", paint("1", text));
}

fn step(text: &str) {
    println!("{} {text}", paint("36", "▸"));
}

fn note(text: &str) {
    println!("    {text}");
}
