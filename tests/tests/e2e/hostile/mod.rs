//! Engines that mean harm, in a real host beside a good one: each costs one clear error, for whoever looks, as often as it is
//! asked, and the good one serves meanwhile.

mod attack;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use sandbar_core::secret::sha256_hex;
use sandbar_tests::host::sandbar;
use sandbar_tests::{Answer, Client, Options, TestHost};
use serde_json::{Value, json};

use table::End::{Harmless, Load};
use table::{ANSWERS, Case, DEEDS, DESCRIPTIONS, cases, texts};

#[test]
fn every_one_of_them_is_tried() {
    let tables = [&DEEDS[..], &ANSWERS, &DESCRIPTIONS].into_iter().flat_map(cases);
    let tried: BTreeSet<_> = tables.chain(texts()).map(|case| case.name).collect();
    let all: BTreeSet<_> = sandbar_hostile::all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(tried, all);
}

const ATTACKED: &str = "orchestrator-of-the-attacked";

/// A host with a good engine and these, each with a project of its own that asks for what provokes it.
fn host(cases: &[Case]) -> TestHost {
    let mut host = prepare(cases);
    host.up().unwrap();
    host
}

fn prepare(cases: &[Case]) -> TestHost {
    let host = TestHost::prepare(Options {
        services: vec!["redis"],
        env: vec![("TEST_ATTACKED".to_owned(), ATTACKED.to_owned())],
        more: more(cases),
        ..Options::default()
    });
    write(&host, cases);
    host
}

fn write(host: &TestHost, cases: &[Case]) {
    for (name, component) in components(cases) {
        fs::write(host.dir.path().join(format!("{name}.wasm")), component).unwrap();
    }
}

fn components(cases: &[Case]) -> BTreeMap<String, Vec<u8>> {
    let wanted: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    let all = sandbar_hostile::all().into_iter().filter(|(name, _)| wanted.contains(name));
    all.map(|(name, source)| (name, source.build())).collect()
}

/// The tables of engines.
fn engines(cases: &[Case]) -> String {
    let table = |(name, component): (String, Vec<u8>)| {
        let hash = sha256_hex(&component);
        format!(
            "[engines.{name}]\ncomponent = \"{name}.wasm\"\nsha256 = \"{hash}\"\n\
             grant = {{ images = [\"redis:*\"], data_dirs = [\"/data\"], variables = [\"CACHE_URL\"] }}\n"
        )
    };
    components(cases).into_iter().map(table).collect()
}

fn more(cases: &[Case]) -> String {
    let names: Vec<_> = cases.iter().map(|case| &case.name).collect();
    let project = |name: &&String| format!("[projects.{name}]\nservices = [{name:?}]\nsuperuser = true\n");
    let projects: String = names.iter().map(project).collect();
    let orchestrator =
        format!("[orchestrators.attacked]\ntoken = {{ env = \"TEST_ATTACKED\" }}\nprojects = {names:?}\n");
    format!("{}{projects}{orchestrator}", engines(cases))
}

/// Somebody who works on the project of an engine.
fn victim(host: &TestHost, name: &str) -> Client {
    worker(host, &format!("on-{}", &sha256_hex(name)[..16]), name)
}

fn worker(host: &TestHost, agent: &str, project: &str) -> Client {
    let attacked = host.nobody().with_token(ATTACKED);
    let answer = attacked.call("register_agent", &json!({ "agent": agent, "role": "developer" }));
    attacked.call("begin_work", &json!({ "agent": agent, "project": project })).evidence();
    host.nobody().with_token(answer.evidence()["token"].as_str().unwrap())
}

/// Expects one line for a person that holds these words.
fn says(said: &str, name: &str, words: &[&str]) {
    for word in words {
        assert!(said.contains(word), "{name}: no {word:?} in: {said}");
    }
    assert!(said.chars().count() < 700, "{name}: {} characters: {said}", said.chars().count());
    assert!(!said.contains(|c: char| c.is_control() || c == '\u{202e}'), "{name}: {said:?}");
}

/// Expects that the error of an answer names the engine too.
fn told(answer: &Answer, name: &str, words: &[&str]) {
    assert_eq!(answer.code(), "invalid_state", "{name}: {:#}", answer.body);
    says(answer.error("message"), name, words);
    says(answer.error("message"), name, &[&format!("`{name}`")]);
}

/// Whether an engine whose rule is another one was ended by its deadline: on a busy machine anything may take that long.
fn late(answer: &Answer, case: &Case) -> bool {
    !case.is_slow() && answer.error("message").contains("it took longer than")
}

/// Asks until the machine is not too busy for an answer; how often that may be is bounded.
fn ask(victim: &Client, case: &Case, body: &Value) -> Answer {
    let answers = std::iter::repeat_with(|| victim.call("request_sandbox", body));
    let answer = answers.take(50).find(|answer| !late(answer, case));
    answer.unwrap_or_else(|| panic!("{}: it is always late", case.name))
}

/// What everybody sees of these engines, on one host.
fn are_what_the_table_says(cases: &[Case]) {
    let mut host = prepare(cases);
    // Both wait for the same deadlines, so they do it at the same time.
    let check = host.subcommand("check").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    host.up().unwrap();
    let good = host.developer("good");
    let evidence = good.call("request_sandbox", &json!({})).evidence().clone();
    let page = host.nobody().get("/readyz");
    let check = check.wait_with_output().unwrap();
    let check = String::from_utf8([check.stdout, check.stderr].concat()).unwrap();
    for case in cases {
        let Case { name, end, words } = case;
        let state = &page.body["engines"][name];
        let checked = check.lines().find(|line| line.contains(&format!("[engines.{name}]: ")));
        let victim = victim(&host, name);
        if *end == Load {
            assert_eq!(state["state"], "failed", "{name}: {state}");
            says(state["why"].as_str().unwrap(), name, words);
            says(checked.unwrap_or_else(|| panic!("{name} is not in {check}")), name, words);
            let answer = victim.call("request_sandbox", &json!({}));
            told(&answer, name, words);
            continue;
        }
        assert_eq!(state["state"], "serving", "{name}: {state}");
        assert_eq!(checked, None, "{name}");
        let explain = || ask(&victim, case, &json!({ "explain": true }));
        let first = explain();
        if *end == Harmless {
            assert_eq!(first.evidence()[name]["image"], words[0]);
            assert!((1..100).all(|_| explain().evidence() == first.evidence()), "{name}");
            continue;
        }
        told(&first, name, words);
        // What takes its whole deadline is asked less often.
        for turn in 1..if case.is_slow() { 4 } else { 100 } {
            assert_eq!(explain().error("message"), first.error("message"), "{name}, {turn}");
        }
        told(&ask(&victim, case, &json!({})), name, words);
        // Between them all the good one gives what it gave.
        assert_eq!(good.call("request_sandbox", &json!({})).evidence(), &evidence);
    }
    assert_eq!(host.containers(), [host.container("redis", "good")], "nothing was made for any of them");
}

#[test]
fn what_they_do_ends_in_one_error_a_call() {
    are_what_the_table_says(&cases(&DEEDS));
}

#[test]
fn what_they_answer_is_refused_by_its_rule() {
    are_what_the_table_says(&[&ANSWERS[..], &DESCRIPTIONS].into_iter().flat_map(cases).collect::<Vec<_>>());
}

#[test]
fn nul_is_nowhere_and_a_newline_only_where_lines_are() {
    are_what_the_table_says(&texts());
}

#[test]
fn the_kit_finds_out_what_depends_on_time_and_chance() {
    let dir = tempfile::tempdir().unwrap();
    for (name, found) in [
        ("chance-clock", "the answer depends on the clock or on random numbers"),
        ("chance-date", "the answer depends on the clock or on random numbers"),
        ("chance-random", "the answer depends on the clock or on random numbers"),
        ("loop-later", "it took longer than 1s"),
    ] {
        let file = dir.path().join(format!("{name}.wasm"));
        fs::write(&file, sandbar_hostile::engine(name).build()).unwrap();
        let output = Command::new(sandbar()).args(["engine", "test"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{name}: {said}");
        assert!(said.lines().any(|line| line.contains("FAILED") && line.contains(found)), "{name}: {said}");
    }
}
