//! What is ready before anybody asks.

use std::collections::BTreeSet;
use std::fs;

use sandbar_core::crash::VARIABLE;
use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image, wait};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

/// The places at which a host is killed here.
pub(crate) const PLACES: [&str; 2] = ["made ahead", "hand-out noted"];

fn pooled(pool: &str) -> Options {
    let options = fixture("");
    Options { more: format!("{}[pool]\n{pool}\n", options.more), ..options }
}

fn id(container: &str) -> String {
    docker(["inspect", "--format", "{{.Id}}", container]).unwrap()
}

/// The id of a container, if it is there at all.
fn ids(container: &str) -> BTreeSet<String> {
    docker(["inspect", "--format", "{{.Id}}", container]).into_iter().collect()
}

/// The ids of what is ready, once there are so many.
fn ready(host: &TestHost, n: usize) -> BTreeSet<String> {
    let names = || host.containers().into_iter().filter(|c| c.contains("-pool-")).collect::<Vec<_>>();
    let others = || host.containers().iter().any(|c| c.contains("-making-") || c.contains("-leaving-"));
    wait(&format!("{n} containers that are ready"), || names().len() == n && !others());
    names().iter().map(|name| id(name)).collect()
}

fn ask(agent: &Client) -> Value {
    agent.call("request_sandbox", &json!({})).evidence().clone()
}

/// The same caller, at the host's present address.
fn again(host: &TestHost, client: &Client) -> Client {
    host.nobody().with_token(client.token().unwrap())
}

#[test]
fn what_is_ready_is_handed_out_once_and_made_again_behind() {
    let host = TestHost::start_with(Options {
        services: vec!["postgres", "redis"],
        more: "[pool]\npostgres = 1\nredis = 1\n\"postgres+citext\" = 1\n".to_owned(),
        ..Options::default()
    });
    let first = ready(&host, 3);
    let agent = host.developer("dev-1");
    let evidence = ask(&agent);
    let mine = ["pg", "redis"].map(|slug| id(&host.container(slug, "dev-1")));
    assert!(mine.iter().all(|id| first.contains(id)), "nothing was made for it");
    // With the account that it was made with.
    let auth = format!("REDISCLI_AUTH={}", evidence["redis"]["password"].as_str().unwrap());
    let redis = host.container("redis", "dev-1");
    assert_eq!(docker(["exec", "-e", &auth, &redis, "redis-cli", "-h", &redis, "set", "a", "1"]).unwrap(), "OK");
    let password = format!("PGPASSWORD={}", evidence["postgres"]["password"].as_str().unwrap());
    let pg = host.container("pg", "dev-1");
    let asked = ["psql", "-h", &pg, "-U", "sandbox", "-d", "sandbox", "-Atc", "select 1"];
    assert_eq!(docker(["exec", "-e", &password, &pg].into_iter().chain(asked)).unwrap(), "1");

    // Behind it others are made, and a second call is a hit on what it has.
    let second = ready(&host, 3);
    assert!(second.is_disjoint(&mine.clone().into()));
    assert_eq!(ask(&agent), evidence);
    agent.call("release_sandbox", &json!({})).evidence();
    assert_eq!(ready(&host, 3), second, "what was given back is not ready again");
    let other = host.developer("dev-2");
    let theirs = ask(&other);
    assert_ne!(theirs["redis"]["password"], evidence["redis"]["password"]);
    assert!(second.contains(&id(&host.container("redis", "dev-2"))));
}

#[test]
fn only_exactly_what_is_asked_for_is_handed_out() {
    let host = TestHost::start_with(pooled("fixture = 1\n\"fixture+good\" = 1"));
    let before = ready(&host, 2);
    let with = |agent: &Client, features: Value| {
        agent.call("request_sandbox", &json!({ "extensions": { "fixture": features } })).evidence().clone()
    };
    let agent = host.developer("dev-1");
    let evidence = with(&agent, json!(["good"]));
    assert_eq!(evidence["fixture"]["available_extensions"], json!(["good"]));
    let handed = id(&host.container("fix", "dev-1"));
    assert!(before.contains(&handed));
    // What it has with a feature it keeps, so a call without any is a hit.
    let now = ready(&host, 2);
    assert_eq!(ask(&agent), evidence);
    assert_eq!(ready(&host, 2), now);
}

#[test]
fn an_account_without_restrictions_is_another_kind() {
    let host = TestHost::start_with(Options { shop: "superuser = true\n".to_owned(), ..pooled("fixture = 1") });
    let before = ready(&host, 1);
    ask(&host.developer("dev-1"));
    assert!(!before.contains(&id(&host.container("fix", "dev-1"))));
    assert_eq!(ready(&host, 1), before);
}

#[test]
fn a_restart_and_a_kill_find_it_again() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..pooled("fixture = 1") });
    ready(&host, 1);
    let agent = host.developer("dev-1");
    let evidence = ask(&agent);
    let mine = id(&host.container("fix", "dev-1"));
    let waiting = ready(&host, 1);
    for kill in [false, true] {
        if kill {
            host.kill()
        } else {
            host.down().unwrap()
        }
        host.up().unwrap();
        assert_eq!(ask(&again(&host, &agent)), evidence, "kill: {kill}");
        assert_eq!(id(&host.container("fix", "dev-1")), mine);
        assert_eq!(ready(&host, 1), waiting, "kill: {kill}");
    }
    // Made differently from how it would be made now, it is of no use.
    host.down().unwrap();
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text.replacen("settings = {  }", "memory = \"128m\"", 1)).unwrap();
    host.up().unwrap();
    wait("it to go", || host.containers().iter().all(|name| ids(name).is_disjoint(&waiting)));
    ready(&host, 1);
    again(&host, &agent).call("release_sandbox", &json!({})).evidence();
    host.operator().call("set_switch", &json!({ "enabled": false })).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn a_kill_around_a_hand_out_leaves_nothing_that_nobody_has() {
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..pooled("fixture = 1") });
    let agent = host.developer("dev-1");
    for place in PLACES {
        ready(&host, 1);
        host.down().unwrap();
        host.set_env(VARIABLE, place);
        host.up().unwrap();
        drop(again(&host, &agent).try_send("request_sandbox", "{}"));
        host.wait_until_killed().unwrap();
        host.unset_env(VARIABLE);
        // Who was to get it and has not got it asks again; one is theirs then, and one is ready.
        host.up().unwrap();
        let agent = again(&host, &agent);
        let evidence = ask(&agent);
        ready(&host, 1);
        assert_eq!(ask(&agent), evidence, "{place}");
        assert_eq!(host.containers().len(), 2, "{place}");
        agent.call("release_sandbox", &json!({})).evidence();
    }
    host.operator().call("set_switch", &json!({ "enabled": false })).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

#[test]
fn what_ended_or_was_changed_is_replaced() {
    let host = TestHost::start_with(pooled("fixture = 2"));
    let before = ready(&host, 2);
    let gone = before.first().unwrap();
    docker(["kill", gone]).unwrap();
    wait("what ended to go", || !host.containers().iter().any(|name| ids(name).contains(gone)));
    assert!(ready(&host, 2).contains(before.last().unwrap()));
    // The operator changes what is made.
    let before = ready(&host, 2);
    let text = fs::read_to_string(host.config()).unwrap();
    fs::write(host.config(), text.replacen("settings = {  }", "settings = { run = \"exec sleep 7200\" }", 1)).unwrap();
    wait("both to go", || host.containers().iter().all(|name| ids(name).is_disjoint(&before)));
    let agent = host.developer("dev-1");
    let now = ready(&host, 2);
    ask(&agent);
    assert!(now.contains(&id(&host.container("fix", "dev-1"))));
}

/// The reference of an image may mean another one by the time somebody asks.
#[test]
fn another_image_of_the_same_name_is_another_kind() {
    let host = TestHost::prepare(pooled("fixture = 1"));
    let tag = format!("{}-image:1", host.namespace);
    let tagged = image("redis:8-alpine").unwrap();
    docker(["tag", &tagged, &tag]).unwrap();
    let text = fs::read_to_string(host.config()).unwrap();
    let from = format!("\"redis:8-alpine\" = \"{tagged}\"");
    assert!(text.contains(&from), "{text}");
    fs::write(host.config(), text.replacen(&from, &format!("\"redis:8-alpine\" = {tag:?}"), 1)).unwrap();
    let mut host = host;
    host.up().unwrap();
    let before = ready(&host, 1);
    let layered = format!("{}-layered", host.namespace);
    docker(["create", "--name", &layered, &tagged]).unwrap();
    docker(["commit", &layered, &tag]).unwrap();
    docker(["rm", &layered]).unwrap();
    let agent = host.developer("dev-1");
    ask(&agent);
    let mine = host.container("fix", "dev-1");
    assert!(!before.contains(&id(&mine)));
    let running = docker(["inspect", "--format", "{{.Image}}", &mine]).unwrap();
    assert_eq!(running, docker(["image", "inspect", "--format", "{{.Id}}", &tag]).unwrap());
    drop(host);
    docker(["rmi", &tag]).unwrap();
}

#[test]
fn with_the_switch_off_nothing_is_kept_ready() {
    let host = TestHost::start_with(pooled("fixture = 1"));
    ready(&host, 1);
    host.operator().call("set_switch", &json!({ "enabled": false })).evidence();
    host.wait_until_empty();
    host.operator().call("set_switch", &json!({ "enabled": true })).evidence();
    ready(&host, 1);
}

#[test]
fn what_cannot_be_kept_ready_is_refused_with_its_line() {
    let host = TestHost::prepare(Options {
        more: "[pool]\nnothing = 1\n\"postgres+plpython\" = 1\nbox = 1\n\"postgres+citext+vector\" = 1\n\
               \"postgres+vector+citext\" = 1\nredis = 500\n"
            .to_owned(),
        ..Options::default()
    });
    let output = host.subcommand("check").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success());
    for words in [
        "there is no service `nothing`",
        "`postgres` has no feature `plpython`",
        "`box` is a box",
        "it stands there twice",
        "`[sandbox] max_live` is 200",
    ] {
        assert!(said.contains(words), "{words} is not in: {said}");
    }
}
