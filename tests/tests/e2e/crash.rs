//! A host that is killed between any two steps, and what the next start makes of it.

use std::collections::BTreeSet;

use sandbar_core::crash::{PLACES, VARIABLE};
use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image, wait};
use sandbar_tests::{Client, Options, TestHost};
use serde_json::{Value, json};

/// What is under way when the host is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// An agent asks for the first time.
    Request,
    /// An agent asks for what cannot be confirmed.
    Fail,
    /// An agent asks whose container was stopped.
    Remake,
    /// An agent gives its sandbox back.
    Release,
    /// Its orchestrator ends its work.
    EndWork,
    /// Its orchestrator begins work on another project.
    BeginOther,
    /// The operator removes it.
    Remove,
    /// Its orchestrator registers another one.
    Register,
    /// The janitor finds what nobody owns.
    Sweep,
    /// A host starts and finds something half made.
    Start,
}

use Act::{BeginOther, EndWork, Fail, Register, Release, Remake, Remove, Request, Start, Sweep};

const MAKING: [(Act, &str); 9] = [
    (Request, "name looked up"),
    (Request, "network made"),
    (Request, "created"),
    (Request, "filled"),
    (Request, "started"),
    (Request, "confirmed"),
    (Request, "committed"),
    (Fail, "discarded"),
    (Remake, "predecessor let go"),
];

const LETTING_GO: [(Act, &str); 9] = [
    (Release, "release decided"),
    (Release, "renamed to leave"),
    (Release, "removed"),
    (EndWork, "work deleted"),
    (EndWork, "release decided"),
    (EndWork, "renamed to leave"),
    (BeginOther, "work written"),
    (Remove, "agent deleted"),
    (Register, "agent written"),
];

const BY_ITSELF: [(Act, &str); 6] = [
    (Sweep, "sweep decided"),
    (Sweep, "renamed to leave"),
    (Sweep, "removed"),
    (Start, "looked at what is there"),
    (Start, "renamed to leave"),
    (Start, "removed"),
];

#[test]
fn every_place_is_tried() {
    let here = MAKING.iter().chain(&LETTING_GO).chain(&BY_ITSELF).map(|(_, place)| *place);
    let tried: BTreeSet<_> = here.chain(crate::pool::PLACES).collect();
    assert_eq!(tried, PLACES.into());
}

#[test]
fn a_kill_while_making_leaves_nothing_half_made() {
    kill_at_each(&MAKING);
}

#[test]
fn a_kill_while_letting_go_leaves_nothing_half_gone() {
    kill_at_each(&LETTING_GO);
}

#[test]
fn a_kill_while_sweeping_or_starting_loses_nothing() {
    kill_at_each(&BY_ITSELF);
}

fn kill_at_each(cases: &[(Act, &'static str)]) {
    let mut options = fixture("");
    options.more.push_str("[janitor]\nevery_secs = 1\ngrace_secs = 1\n");
    let mut host = TestHost::start_with(Options { keep_on_shutdown: true, ..options });
    let stays = host.developer("stays");
    let kept = stays.call("request_sandbox", &json!({})).evidence().clone();
    for (n, (act, place)) in cases.iter().enumerate() {
        eprintln!("killed at `{place}` of {act:?}");
        let agent = format!("dev-{n}");
        let token = host.developer(&agent).token().unwrap().to_owned();
        kill_at(&mut host, *act, place, &agent, &token);
        // Whoever has nothing to do with it finds what it had.
        assert_eq!(again(&host, &stays).call("request_sandbox", &json!({})).evidence(), &kept, "{act:?} {place}");
        host.operator().call("remove_agent", &json!({ "agent": agent }));
        wait("its removal", || names(&host) == [host.container("fix", "stays")].into());
    }
    again(&host, &stays).call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    docker(["network", "rm", &host.network()]).unwrap();
}

/// The same caller, at the host's present address.
fn again(host: &TestHost, client: &Client) -> Client {
    host.nobody().with_token(client.token().unwrap())
}

fn names(host: &TestHost) -> BTreeSet<String> {
    host.containers().into_iter().collect()
}

fn kill_at(host: &mut TestHost, act: Act, place: &str, agent: &str, token: &str) {
    let mine = host.container("fix", agent);
    let had = act != Request && act != Fail && act != Register && act != Sweep && act != Start;
    let mut before = Value::Null;
    if had {
        before = host.nobody().with_token(token).call("request_sandbox", &json!({})).evidence().clone();
    }
    host.down().unwrap();
    if act == Start {
        stray(host, "making-half");
    }
    host.set_env(VARIABLE, place);
    // A host that is to die while it starts may not get up.
    let up = host.up();
    assert!(up.is_ok() || act == Start, "{up:?}");
    if act == Remake {
        docker(["stop", "--time", "0", &mine]).unwrap();
    }
    let client = host.nobody().with_token(token);
    let call = |client: &Client, verb: &str, body: Value| drop(client.try_send(verb, &body.to_string()));
    match act {
        Request | Remake => call(&client, "request_sandbox", json!({})),
        Fail => call(&client, "request_sandbox", json!({ "extensions": { "fixture": ["bad"] } })),
        Release => call(&client, "release_sandbox", json!({})),
        EndWork => call(&host.orchestrator(), "end_work", json!({ "agent": agent, "outcome": "done" })),
        BeginOther => call(&host.orchestrator(), "begin_work", json!({ "agent": agent, "project": "shop-two" })),
        Remove => call(&host.operator(), "remove_agent", json!({ "agent": agent })),
        Register => call(&host.orchestrator(), "register_agent", json!({ "agent": "new", "role": "developer" })),
        Sweep => stray(host, "nobodys"),
        Start => {}
    }
    host.wait_until_killed().unwrap();
    host.unset_env(VARIABLE);

    // Whatever has its final name then, and whose agent still works on that project, is kept; all else goes.
    let id = docker(["inspect", "--format", "{{.Id}}", &mine]).ok();
    let works_on = !matches!(act, EndWork | BeginOther | Remove);
    let kept = id.filter(|_| works_on);
    let mut expected: BTreeSet<_> = [host.container("fix", "stays")].into();
    expected.extend(kept.is_some().then(|| mine.clone()));
    host.up().unwrap();
    wait(&format!("what is there after `{place}` of {act:?}"), || names(host) == expected);

    let client = host.nobody().with_token(token);
    match act {
        Remove => assert_eq!(client.send("sandbox_status", "{}").status, 401),
        EndWork => assert!(client.call("request_sandbox", &json!({})).error("message").contains("works on no project")),
        _ => {
            let after = client.call("request_sandbox", &json!({})).evidence().clone();
            let now = docker(["inspect", "--format", "{{.Id}}", &mine]).unwrap();
            if let Some(kept) = kept {
                assert_eq!(now, kept, "{act:?} {place}: the next call is a hit");
                assert!(before.is_null() || after == before, "{act:?} {place}: with the same credentials");
            } else if had {
                assert_ne!(after, before, "{act:?} {place}");
            }
        }
    }
    if act == Register {
        // The answer with the token is lost; the operator makes another one.
        let answer = host.operator().call("rotate_token", &json!({ "agent": "new" }));
        assert!(answer.evidence()["token"].is_string());
    }
}

/// Something of this installation that nobody owns.
fn stray(host: &TestHost, name: &str) {
    let name = format!("{}-{name}", host.namespace);
    let installation = format!("{}.installation={}", host.namespace, host.installation);
    let sandbox = format!("{}.sandbox=1", host.namespace);
    let image = image("redis:8-alpine").unwrap();
    docker(["create", "--name", &name, "--label", &installation, "--label", &sandbox, &image]).unwrap();
}
