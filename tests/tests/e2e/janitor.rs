//! The sweep, with a pace that a test can wait for.

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, image, wait};
use sandbar_tests::{Options, TestHost};
use serde_json::json;

fn swift(settings: &str) -> TestHost {
    let mut options = fixture(settings);
    options.more.push_str("[janitor]\nevery_secs = 1\ngrace_secs = 1\nlease_secs = 2\n");
    TestHost::start_with(options)
}

/// Starts a container that does nothing, and answers its id.
fn idle(name: &str, labels: &[String]) -> String {
    let mut args: Vec<String> = ["run", "--detach", "--name", name].map(str::to_owned).into();
    args.extend(labels.iter().flat_map(|l| ["--label".to_owned(), l.clone()]));
    args.extend(["--entrypoint", "sleep", &image("redis:8-alpine").unwrap(), "600"].map(str::to_owned));
    docker(args).unwrap()
}

#[test]
fn an_owner_whose_lease_ran_out_is_swept() {
    let host = swift("");
    host.developer("dev-1").call("request_sandbox", &json!({})).evidence();
    host.wait_until_empty();
}

#[test]
fn an_owner_lives_while_its_container_runs() {
    let host = swift("");
    for (agent, labels) in [("named", vec![]), ("labelled", vec![format!("{}.agent=labelled", host.namespace)])] {
        let name = if labels.is_empty() {
            format!("{}-agent-{agent}", host.namespace)
        } else {
            format!("{}-x", host.namespace)
        };
        let id = idle(&name, &labels);
        host.developer(agent).call("request_sandbox", &json!({})).evidence();
        // Another owner goes: so a sweep has looked, and left this one alone.
        host.developer("witness").call("request_sandbox", &json!({})).evidence();
        wait("the witness to be swept", || !host.containers().contains(&host.container("fix", "witness")));
        assert!(host.containers().contains(&host.container("fix", agent)), "{agent}");
        docker(["rm", "--force", &id]).unwrap();
        wait("it to be swept too", || !host.containers().contains(&host.container("fix", agent)));
        host.operator().call("remove_agent", &json!({ "agent": "witness" })).evidence();
    }
}

#[test]
fn strays_of_this_installation_go_and_nobody_elses() {
    let host = swift("");
    let label = |installation: &str| {
        vec![format!("{}.installation={installation}", host.namespace), format!("{}.sandbox=1", host.namespace)]
    };
    let foreign = idle(&format!("{}-foreign", host.namespace), &label("somebody-else"));
    let stray = idle(&format!("{}-stray", host.namespace), &label(&host.installation));
    wait("the stray to go", || docker(["inspect", &stray]).is_err());
    docker(["inspect", &foreign]).expect("the foreign one stays");
    docker(["rm", "--force", &foreign]).unwrap();
}

#[test]
fn what_is_being_made_is_left_alone() {
    let host = swift("probe = \"test -e /tmp/go\", deadline-ms = \"120000\"");
    let agent = host.developer("dev-1");
    let asking = std::thread::spawn(move || agent.call("request_sandbox", &json!({})));
    wait("a container in the making", || !host.containers().is_empty());
    let making = host.containers().remove(0);
    // Several sweeps later (a stray's end shows that they happened) it is still there.
    for round in 0..2 {
        let labels =
            [format!("{}.installation={}", host.namespace, host.installation), format!("{}.sandbox=1", host.namespace)];
        let stray = idle(&format!("{}-stray-{round}", host.namespace), &labels);
        wait("the stray to go", || docker(["inspect", &stray]).is_err());
    }
    docker(["exec", &making, "touch", "/tmp/go"]).unwrap();
    asking.join().unwrap().evidence();
}

#[test]
fn a_renewed_lease_is_a_fresh_one() {
    let mut options = fixture("");
    options.more.push_str("[janitor]\nevery_secs = 1\ngrace_secs = 1\nlease_secs = 4\n");
    let host = TestHost::start_with(Options { ..options });
    let agent = host.developer("dev-1");
    let first = agent.call("request_sandbox", &json!({}));
    host.developer("witness").call("request_sandbox", &json!({})).evidence();
    // Renewed until the other one's lease has run out and it was swept: without renewing this one would be gone too.
    wait("the witness to be swept", || {
        let renewed = agent.call("renew_sandbox", &json!({}));
        assert_eq!(renewed.evidence()["state"], "live");
        assert!(renewed.body["lease_expires_at"].as_str() >= first.body["lease_expires_at"].as_str());
        !host.containers().contains(&host.container("fix", "witness"))
    });
    wait("only this one", || host.containers() == [host.container("fix", "dev-1")]);
}

/// A host that acts on reports alone: its sweep is far away.
fn reported(respawn_secs: u32) -> TestHost {
    let mut options = fixture("");
    options.more.push_str(&format!("[janitor]\nevery_secs = 3600\nrespawn_secs = {respawn_secs}\n"));
    TestHost::start_with(options)
}

#[test]
fn an_agent_whose_container_ended_is_released_without_a_sweep() {
    let host = reported(2);
    let name = format!("{}-agent-named", host.namespace);
    let ids =
        [idle(&name, &[]), idle(&format!("{}-x", host.namespace), &[format!("{}.agent=labelled", host.namespace)])];
    for agent in ["named", "labelled", "other"] {
        host.developer(agent).call("request_sandbox", &json!({})).evidence();
    }
    for id in ids {
        docker(["rm", "--force", &id]).unwrap();
    }
    wait("the two to go", || host.containers() == [host.container("fix", "other")]);
}

#[test]
fn an_agent_that_comes_back_keeps_its_sandbox() {
    let host = reported(10);
    let named = |agent: &str| format!("{}-agent-{agent}", host.namespace);
    let agents = ["respawns", "restarts", "calls", "witness"];
    let clients = agents.map(|agent| {
        idle(&named(agent), &[]);
        let client = host.developer(agent);
        client.call("request_sandbox", &json!({})).evidence();
        client
    });
    // One of the second that runs under a name of its own, and another of the first, which takes its name.
    idle(&format!("{}-y", host.namespace), &[format!("{}.agent=restarts", host.namespace)]);
    docker(["rm", "--force", &named("respawns")]).unwrap();
    idle(&named("respawns"), &[]);
    docker(["rm", "--force"].into_iter().map(str::to_owned).chain(agents[1..].iter().map(|a| named(a)))).unwrap();
    wait("the witness to go", || {
        clients[2].call("sandbox_status", &json!({})).evidence();
        !host.containers().contains(&host.container("fix", "witness"))
    });
    for agent in ["respawns", "restarts", "calls"] {
        assert!(host.containers().contains(&host.container("fix", agent)), "{agent}");
    }
    docker(["rm", "--force", &named("respawns"), &format!("{}-y", host.namespace)]).unwrap();
    wait("the two to go", || host.containers() == [host.container("fix", "calls")]);
}

#[test]
fn what_is_being_made_for_an_agent_whose_container_ended_goes() {
    let mut options = fixture("probe = \"exit 1\", deadline-ms = \"120000\"");
    options.more.push_str("[janitor]\nevery_secs = 3600\nrespawn_secs = 1\n");
    let host = TestHost::start_with(options);
    let id = idle(&format!("{}-agent-dev-1", host.namespace), &[]);
    let agent = host.developer("dev-1");
    let asking = std::thread::spawn(move || agent.call("request_sandbox", &json!({})));
    wait("a container in the making", || !host.containers().is_empty());
    docker(["rm", "--force", &id]).unwrap();
    assert_eq!(asking.join().unwrap().code(), "invalid_state");
    host.wait_until_empty();
}

#[test]
fn an_agent_that_dies_while_it_waits_is_released_too() {
    let mut options = fixture("probe = \"test -e /tmp/go\", deadline-ms = \"120000\"");
    options.more.push_str("[janitor]\nevery_secs = 3600\nrespawn_secs = 2\n");
    let host = TestHost::start_with(options);
    let id = idle(&format!("{}-agent-dev-1", host.namespace), &[]);
    let agent = host.developer("dev-1");
    let asking = std::thread::spawn(move || agent.call("request_sandbox", &json!({})));
    wait("a container in the making", || !host.containers().is_empty());
    let making = host.containers().remove(0);
    docker(["rm", "--force", &id]).unwrap();
    // Its call is answered after its death, which is no sign of life.
    docker(["exec", &making, "touch", "/tmp/go"]).unwrap();
    asking.join().unwrap().evidence();
    host.wait_until_empty();
}
