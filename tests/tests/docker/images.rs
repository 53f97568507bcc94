//! Images: looked for first, pulled once for all who wait, with the operator's credentials and mapping. Against a real
//! registry, and against one that does everything wrong that a registry can.

use std::os::unix::fs::PermissionsExt;
use std::thread;
use std::time::Duration;

use sandbar_tests::docker::docker;
use sandbar_tests::host::{fixture, wait};
use sandbar_tests::registry::{Account, Act, Fake, Image, Part, Real, pulled_from};
use sandbar_tests::{Answer, Client, Options, TestHost};
use serde_json::{Value, json};

/// The fixture engine on an image that it is granted.
fn running(image: &str) -> Options {
    let mut options = fixture(&format!("image = {image:?}"));
    options.more.push_str(&format!("grant.images = [{image:?}]\n"));
    options.sandbox.push_str("pull_ahead = false\n");
    // Reports of progress are in the log at this level, and nowhere else yet.
    options.env.push(("RUST_LOG".to_owned(), "info,sandbar_core::ensure=debug".to_owned()));
    options
}

fn request(agent: &Client) -> Answer {
    agent.call("request_sandbox", &json!({}))
}

/// What the log says about an agent's pull.
fn pull_reports(host: &TestHost, agent: &str) -> Vec<String> {
    let log = host.log();
    let fields = log.iter().map(|line| &line["fields"]);
    let reports = fields.filter(|f| f["message"] == "progress" && f["step"] == "pull" && f["agent"] == agent);
    reports.map(|f| f["detail"].as_str().unwrap().to_owned()).collect()
}

fn waits_for_pull(host: &TestHost, agent: &str) {
    wait(&format!("{agent} waits for a pull"), || !pull_reports(host, agent).is_empty());
}

/// Which image the container of an agent is made from.
fn runs(host: &TestHost, agent: &str) -> String {
    docker(["inspect", "--format", "{{.Config.Image}}", &host.container("fix", agent)]).unwrap()
}

/// That an answer is a failed pull of this image for this reason, and that nothing is left of it.
fn failed(answer: &Answer, host: &TestHost, agent: &Client, image: &str, why: &[&str]) {
    assert_eq!((answer.status, answer.code()), (503, "invalid_state"), "{:#}", answer.body);
    let error = &answer.body["error"];
    assert!(error["retryable"] == true && answer.retry_after.is_some(), "{:#}", answer.body);
    assert_eq!((&error["details"]["service"], &error["details"]["step"]), (&json!("fixture"), &json!("pull")));
    for word in [image].iter().chain(why) {
        assert!(answer.error("message").contains(word), "`{word}` is not in: {error:#}");
    }
    assert_eq!(host.containers(), Vec::<String>::new());
    assert_eq!(agent.call("sandbox_status", &json!({})).evidence()["state"], "absent");
    let address = image.split('/').next().unwrap();
    assert_eq!(pulled_from(address).unwrap(), Vec::<String>::new());
}

/// That a registry which does this fails a pull for this reason, one after the other, and that a call succeeds once it
/// does as it should.
fn fails(registry: &Fake, options: Options, cases: &[(Part, Act, &[&str])]) {
    let host = TestHost::start_with(options);
    let agent = host.developer("dev-1");
    for (part, act, why) in cases {
        registry.set(*part, *act);
        failed(&request(&agent), &host, &agent, &registry.image(), why);
        if (*part, *act) == (Part::Layer, Act::Cut) {
            // Docker does not go on with it: it would have tried again five seconds after the first time.
            let asked = registry.asked(*part);
            thread::sleep(Duration::from_secs(3));
            assert_eq!(registry.asked(*part), asked);
        }
        registry.set(*part, Act::Serve);
    }
    request(&agent).evidence();
    assert_eq!(runs(&host, "dev-1"), registry.image());
    assert_eq!(pulled_from(registry.address()).unwrap(), [registry.image()]);
}

#[test]
fn an_image_is_pulled_where_it_is_missing_and_only_then() {
    let mut registry = Real::open();
    let image = registry.push("team/thing:1", &Image::unique());
    let host = TestHost::start_with(running(&image));
    request(&host.developer("dev-1")).evidence();
    assert_eq!(runs(&host, "dev-1"), image);
    assert!(!pull_reports(&host, "dev-1").is_empty());
    // From here on a pull would fail.
    registry.stop();
    request(&host.developer("dev-2")).evidence();
    assert_eq!(pull_reports(&host, "dev-2"), Vec::<String>::new());
}

#[test]
fn the_mapping_says_what_is_run_instead() {
    let mut registry = Real::open();
    let image = registry.push("mirror/redis:8", &Image::unique());
    // What the engine asks for, and is granted, is its usual image.
    let mut host = TestHost::prepare(fixture(""));
    let usual = "\"redis:8-alpine\"";
    let config = std::fs::read_to_string(host.config()).unwrap();
    let lines = config.lines().filter(|line| !line.starts_with(usual)).chain([""]).collect::<Vec<_>>().join("\n");
    // The mapping of this machine's stand-ins is the last table.
    std::fs::write(host.config(), format!("{lines}{usual} = {image:?}\n")).unwrap();
    host.up().unwrap();
    let agent = host.developer("dev-1");
    request(&agent).evidence();
    assert_eq!(runs(&host, "dev-1"), image);
    // It is the image that is run that cannot be had, so it is the one to be named.
    agent.call("release_sandbox", &json!({})).evidence();
    host.wait_until_empty();
    docker(["image", "rm", &image]).unwrap();
    registry.stop();
    failed(&request(&agent), &host, &agent, &image, &["refused"]);
}

/// A password that has every printable character, in two orders, since bcrypt looks at the first 72 bytes alone; and a
/// user that has all but the colon. The hashes are crypt(3)'s.
fn every_printable_character() -> [Account; 2] {
    let all: String = (' '..='~').collect();
    // Neither a space nor a `#` may come first in the registry's file.
    let user: String = "! ".chars().chain(('"'..='~').filter(|c| *c != ':')).collect();
    [
        Account {
            user: user.clone(),
            bcrypt: "$2y$04$abcdefghijklmnopqrstuuX1jVgqw1c7j34DLscchnE48bmgpzajW",
            password: all.clone(),
        },
        Account {
            user,
            bcrypt: "$2y$04$abcdefghijklmnopqrstuuUjZVqVWyavTV5ZLIC8O0xB5o1QORb26",
            password: all.chars().rev().collect(),
        },
    ]
}

/// Docker's configuration for one host.
struct Login(tempfile::TempDir);

impl Login {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, config: &Value) {
        std::fs::write(self.0.path().join("config.json"), config.to_string()).unwrap();
    }

    /// A helper that answers this and notes what it was asked; the first folder of the search path is its own.
    fn helper(&self, name: &str, answer: &Value) {
        let at = |name: &str| self.0.path().join(name);
        std::fs::write(at("answer"), answer.to_string()).unwrap();
        let script = "#!/bin/sh\ncd \"$(dirname \"$0\")\" && read -r of; echo \"$1 $of\" >asked && cat answer\n";
        let path = at(&format!("docker-credential-{name}"));
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A host with this configuration that logs everything it can.
    fn host(&self, image: &str) -> TestHost {
        let dir = self.0.path().display().to_string();
        let path = format!("{dir}:{}", std::env::var("PATH").unwrap());
        let mut options = running(image);
        options.env.extend([("RUST_LOG", "trace"), ("DOCKER_CONFIG", &dir), ("PATH", &path)].map(owned));
        TestHost::start_with(options)
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// That a secret, or a telling part of one, is nowhere in the log.
fn is_not_logged(host: &TestHost, secret: &str) {
    let log = host.log();
    assert!(log.len() > 10, "there is a log");
    let line = log.iter().map(Value::to_string).find(|line| line.contains(secret));
    assert_eq!(line, None, "`{secret}` is in the log");
}

/// A part of such a password that looks the same in JSON, and that nothing else has in it.
fn telling(password: &str) -> &str {
    let middle = password.find('=').unwrap();
    &password[middle - 3..=middle + 3]
}

#[test]
fn a_password_of_any_characters_opens_a_registry() {
    for account in every_printable_character() {
        let registry = Real::of(account.clone());
        let image = registry.push("team/thing:1", &Image::unique());
        let login = Login::new();
        login.write(&json!({ "auths": { registry.address(): { "auth": account.base64() } } }));
        let host = login.host(&image);
        request(&host.developer("dev-1")).evidence();
        assert_eq!(runs(&host, "dev-1"), image);
        is_not_logged(&host, telling(&account.password));
        is_not_logged(&host, &account.base64()[20..40]);
    }
}

#[test]
fn a_credential_helper_is_asked_for_it() {
    for account in every_printable_character() {
        let registry = Real::of(account.clone());
        let image = registry.push("team/thing:1", &Image::unique());
        let login = Login::new();
        login.helper("test", &json!({ "Username": account.user, "Secret": account.password }));
        // The entry is wrong, and not looked at where a helper is named.
        login.write(&json!({
            "auths": { registry.address(): { "username": "nobody", "password": "nothing" } },
            "credHelpers": { registry.address(): "test" },
        }));
        let host = login.host(&image);
        request(&host.developer("dev-1")).evidence();
        let asked = std::fs::read_to_string(login.0.path().join("asked")).unwrap();
        assert_eq!(asked.trim(), format!("get {}", registry.address()));
        is_not_logged(&host, telling(&account.password));
    }
}

#[test]
fn what_is_wrong_with_credentials_is_told_and_they_are_not() {
    let [account, _] = every_printable_character();
    let registry = Real::of(account.clone());
    let image = registry.push("team/thing:1", &Image::unique());
    let login = Login::new();
    let host = login.host(&image);
    let agent = host.developer("dev-1");
    let auths = |user: &str, password: &str| json!({ "auths": { registry.address(): { "username": user, "password": password } } });
    // Nobody has logged in.
    failed(&request(&agent), &host, &agent, &image, &["refused", "no basic auth credentials"]);

    let secret = "correct-horse-battery-staple";
    login.write(&auths(&account.user, secret));
    let answer = request(&agent);
    failed(&answer, &host, &agent, &image, &["refused", "unauthorized"]);
    assert!(!answer.body.to_string().contains(secret), "{:#}", answer.body);

    login.write(&json!({ "credHelpers": { registry.address(): "that-is-not-there" } }));
    failed(&request(&agent), &host, &agent, &image, &["docker-credential-that-is-not-there cannot be used"]);

    login.helper("broken", &json!({ "Username": account.user, "Password": secret }));
    login.write(&json!({ "credHelpers": { registry.address(): "broken" } }));
    let answer = request(&agent);
    failed(&answer, &host, &agent, &image, &["docker-credential-broken answered something else"]);
    assert!(!answer.body.to_string().contains(secret), "{:#}", answer.body);

    is_not_logged(&host, secret);
    // A login counts at once.
    login.write(&auths(&account.user, &account.password));
    request(&agent).evidence();
}

const TOO_MANY: Act = Act::Error(429, "TOOMANYREQUESTS", "the limit of pulls is reached");

#[test]
fn what_a_registry_answers_is_told() {
    let registry = Fake::start();
    let (broken, unknown, denied) = (
        Act::Error(503, "UNAVAILABLE", ""),
        Act::Error(404, "MANIFEST_UNKNOWN", "manifest unknown"),
        Act::Error(403, "DENIED", "not for you"),
    );
    let cases: [(_, _, &[_]); 5] = [
        (Part::Manifest, TOO_MANY, &["toomanyrequests", "the limit of pulls is reached"]),
        // Which must not pass for Docker being away.
        (Part::Manifest, broken, &["unexpected HTTP status: 503"]),
        (Part::Manifest, unknown, &["not found", "manifest unknown"]),
        (Part::Manifest, denied, &["refused", "denied", "not for you"]),
        (Part::Manifest, Act::Cut, &["unexpected EOF"]),
    ];
    fails(&registry, running(&registry.image()), &cases);
}

#[test]
fn an_error_within_a_good_answer_is_a_failure() {
    let registry = Fake::start();
    // Docker has answered 200 and begun to report when it asks for these. The layer's go first: without a config Docker
    // may still have got the layer.
    let cases: [(_, _, &[_]); 4] = [
        (Part::Layer, TOO_MANY, &["toomanyrequests", "the limit of pulls is reached"]),
        (Part::Layer, Act::Short, &["verification failed"]),
        (Part::Config, Act::Error(404, "BLOB_UNKNOWN", "blob unknown to registry"), &["unknown blob"]),
        (Part::Config, Act::Cut, &["unexpected EOF"]),
    ];
    fails(&registry, running(&registry.image()), &cases);
}

#[test]
fn a_layer_that_is_cut_off_is_tried_again_until_the_time_is_up() {
    let registry = Fake::start();
    let options = Options { docker: "pull_timeout_secs = 4".to_owned(), ..running(&registry.image()) };
    fails(&registry, options, &[(Part::Layer, Act::Cut, &["not done within 4s", "Retrying"])]);
}

#[test]
fn a_registry_that_stalls_is_given_up() {
    let registry = Fake::start();
    let options = Options { docker: "pull_stall_secs = 5".to_owned(), ..running(&registry.image()) };
    let cases: [(_, _, &[_]); 2] = [
        (Part::Manifest, Act::Stall, &["stalled: nothing came for 5s", "not said anything"]),
        (Part::Layer, Act::Stall, &["stalled: nothing came for 5s", "Downloading", "bytes"]),
    ];
    fails(&registry, options, &cases);
}

#[test]
fn an_image_is_pulled_before_anybody_asks() {
    let registry = Fake::start();
    registry.set(Part::Manifest, TOO_MANY);
    let mut options = running(&registry.image());
    options.sandbox.clear();
    let host = TestHost::start_with(options);
    wait("the registry to be asked", || registry.asked(Part::Manifest) == 1);
    // Which failed, and stands in nobody's way.
    registry.set(Part::Manifest, Act::Serve);
    request(&host.developer("dev-1")).evidence();
    assert_eq!(registry.asked(Part::Manifest), 2);
}

#[test]
fn one_pull_serves_all_who_wait_whatever_comes_of_it() {
    let registry = Fake::start();
    let host = TestHost::start_with(running(&registry.image()));
    let names = ["dev-1", "dev-2", "dev-3"];
    let agents = names.map(|name| host.developer(name));
    let together = |then: Act| -> Vec<Answer> {
        registry.set(Part::Manifest, Act::Hold);
        let before = names.map(|name| pull_reports(&host, name).len());
        thread::scope(|scope| {
            // One of them asks twice at once.
            let callers = agents.iter().chain(&agents[..1]).map(|agent| scope.spawn(|| request(agent)));
            let callers: Vec<_> = callers.collect();
            wait("all wait for a pull", || {
                names.iter().zip(before).all(|(name, before)| pull_reports(&host, name).len() > before)
            });
            wait("the registry was asked", || registry.waiting() > 0);
            registry.set(Part::Manifest, then);
            callers.into_iter().map(|caller| caller.join().unwrap()).collect()
        })
    };
    let answers = together(TOO_MANY);
    for answer in &answers {
        failed(answer, &host, &agents[0], &registry.image(), &["the limit of pulls is reached"]);
        assert_eq!(answer.body["error"], answers[0].body["error"]);
    }
    assert_eq!(registry.asked(Part::Manifest), 1);
    let answers = together(Act::Serve);
    assert_eq!(registry.asked(Part::Manifest), 2);
    assert_eq!(answers[0].evidence(), answers[3].evidence());
    for (answer, name) in answers.iter().zip(names) {
        assert_eq!(answer.evidence()["fixture"]["host"], host.container("fix", name));
    }
}

#[test]
fn who_leaves_does_not_take_the_pull_away_from_others() {
    let registry = Fake::start();
    registry.set(Part::Layer, Act::Hold);
    let host = TestHost::start_with(running(&registry.image()));
    let (first, second) = (host.developer("dev-1"), host.developer("dev-2"));
    thread::scope(|scope| {
        let leaver = scope.spawn(|| request(&first));
        waits_for_pull(&host, "dev-1");
        let stayer = scope.spawn(|| request(&second));
        waits_for_pull(&host, "dev-2");
        wait("the layer is asked for", || registry.waiting() == 1);
        first.call("release_sandbox", &json!({})).evidence();
        assert_eq!(leaver.join().unwrap().body["error"]["details"]["reason"], "released");
        assert_eq!(first.call("sandbox_status", &json!({})).evidence()["state"], "absent");
        registry.set(Part::Layer, Act::Serve);
        stayer.join().unwrap().evidence();
    });
    assert_eq!((registry.asked(Part::Manifest), registry.asked(Part::Layer)), (1, 1));
    assert_eq!(host.containers(), [host.container("fix", "dev-2")]);
}

#[test]
fn what_docker_does_is_reported_to_each_who_waits() {
    let registry = Fake::start();
    registry.set(Part::Layer, Act::Hold);
    let host = TestHost::start_with(running(&registry.image()));
    let (first, second) = (host.developer("dev-1"), host.developer("dev-2"));
    thread::scope(|scope| {
        let callers = [scope.spawn(|| request(&first)), scope.spawn(|| request(&second))];
        let told = format!("{}: Pulling fs layer", registry.image());
        for agent in ["dev-1", "dev-2"] {
            wait("the layer is reported", || pull_reports(&host, agent).contains(&told));
        }
        registry.set(Part::Layer, Act::Serve);
        for caller in callers {
            caller.join().unwrap().evidence();
        }
    });
}
