//! Engines of which the host knows nothing: a component and a table are all that it takes.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use sandbar_tests::docker::{docker, run_beside};
use sandbar_tests::host::{image, sources, third_party};
use sandbar_tests::{Options, TestHost};
use serde_json::{Value, json};

use crate::account::env;
use crate::authors::{engine, text};
use crate::reload::{engines, wait_for};

/// A client of NATS.
struct Nats(BufReader<TcpStream>);

impl Nats {
    /// Connects with a password, and answers what the server says to that.
    fn connect(address: &str, user: &str, password: &str) -> (Self, String) {
        let stream = TcpStream::connect((address, 4222)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut client = Self(BufReader::new(stream));
        assert!(client.line().starts_with("INFO "));
        let say = json!({ "verbose": false, "pedantic": false, "user": user, "pass": password });
        client.say(&format!("CONNECT {say}\r\nPING\r\n"));
        let answer = client.line();
        (client, answer)
    }

    fn say(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next message on what was subscribed to.
    fn message(&mut self) -> String {
        loop {
            match self.line() {
                line if line.starts_with("MSG ") => return self.line(),
                line if line == "PING" => self.say("PONG\r\n"),
                line => assert!(line == "PONG" || line == "+OK", "{line}"),
            }
        }
    }

    fn publish(&mut self, subject: &str, reply: &str, body: &str) {
        self.say(&format!("PUB {subject} {reply} {}\r\n{body}\r\n", body.len()));
    }

    /// Asks the server's own interface.
    fn ask(&mut self, subject: &str, body: &Value) -> Value {
        self.publish(subject, "answers", &body.to_string());
        serde_json::from_str(&self.message()).unwrap()
    }
}

#[test]
fn engines_that_are_dropped_in_serve_beside_the_shipped_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = TestHost::prepare(Options {
        services: vec!["mariadb", "nats", "redis"],
        shop: "extensions = { mariadb = [\"archive\", \"events\"], nats = [\"jetstream\"] }".to_owned(),
        engines: dir.path().to_owned(),
        ..Options::default()
    });
    for file in ["redis.wasm", "engines.lock"] {
        fs::copy(Options::default().engines.join(file), dir.path().join(file)).unwrap();
    }
    let config = host.config().display().to_string();
    for name in ["mariadb", "nats"] {
        let component = dir.path().join(format!("{name}.wasm"));
        fs::copy(third_party(name), &component).unwrap();
        let added = engine(&["add", &component.display().to_string(), "--config", &config]);
        assert!(added.status.success(), "{}", text(&added.stderr));
    }
    host.up().unwrap();
    let agent = host.developer("dev-1");
    let evidence = agent.call("request_sandbox", &json!({})).evidence().clone();
    assert_eq!(evidence["mariadb"]["available_extensions"], json!(["archive", "events"]));
    assert_eq!(host.containers(), ["maria", "nats", "redis"].map(|slug| host.container(slug, "dev-1")));

    // As an agent would: from a container of its own, with the variables of its evidence.
    let variables = env(&evidence["mariadb"]);
    let prefix = format!("{}_TEST_MARIADB", host.namespace.to_uppercase());
    let sql = "CREATE TABLE kept (text VARCHAR(20)) ENGINE=ARCHIVE; INSERT INTO kept VALUES ('once'); SELECT text FROM kept; \
               SELECT engine FROM information_schema.tables WHERE table_name = 'kept'; \
               CREATE DATABASE sandbox_two; \
               CREATE EVENT later ON SCHEDULE EVERY 1 HOUR DO DELETE FROM sandbox_two.none; \
               SELECT status FROM information_schema.events";
    let query = |password: &str, sql: &str| {
        let script = format!(
            "MYSQL_PWD={password} exec mariadb --no-defaults --skip-ssl -h \"${prefix}_HOST\" -P \"${prefix}_PORT\" \
             -u \"${prefix}_USER\" -D \"${prefix}_DATABASE\" -NBe \"$0\""
        );
        run_beside(&host.network(), &image("mariadb:11").unwrap(), &variables, &["sh", "-c", &script, sql])
    };
    let own = format!("\"${prefix}_PASSWORD\"");
    assert_eq!(query(&own, sql).unwrap(), "once\nARCHIVE\nENABLED");
    for other in ["wrong", "''"] {
        assert!(query(other, "SELECT 1").unwrap_err().to_string().contains("Access denied"), "{other}");
    }
    // Nothing of the server's own is within its reach.
    for sql in ["SELECT * FROM mysql.global_priv", "INSTALL SONAME 'ha_blackhole'", "CREATE USER x", "SHUTDOWN"] {
        assert!(query(&own, sql).unwrap_err().to_string().contains("denied"), "{sql}");
    }

    let network = format!("{{{{(index .NetworkSettings.Networks {:?}).IPAddress}}}}", host.network());
    let address = docker(["inspect", "--format", &network, &host.container("nats", "dev-1")]).unwrap();
    let field = |key: &str| evidence["nats"][key].as_str().unwrap_or_default().to_owned();
    for (password, answer) in [
        (field("password"), "PONG"),
        ("wrong".to_owned(), "-ERR 'Authorization"),
        (String::new(), "-ERR 'Authorization"),
    ] {
        let (_, said) = Nats::connect(&address, &field("user"), &password);
        assert!(said.starts_with(answer), "{password}: {said}");
    }
    let (mut client, _) = Nats::connect(&address, &field("user"), &field("password"));
    client.say("SUB answers 1\r\n");
    let made = client.ask("$JS.API.STREAM.CREATE.orders", &json!({ "name": "orders", "subjects": ["orders.*"] }));
    assert_eq!(made["config"]["storage"], "file", "{made}");
    // Nobody listens when it is said.
    assert_eq!(client.ask("orders.new", &json!("first"))["seq"], 1);
    let kept = client.ask("$JS.API.STREAM.INFO.orders", &json!({}));
    assert_eq!(kept["state"]["messages"], 1, "{kept}");

    assert_eq!(agent.call("release_sandbox", &json!({})).evidence()["released"], json!(["mariadb", "nats", "redis"]));
    host.wait_until_empty();
    // The others are none the poorer when they go.
    for name in ["mariadb", "nats"] {
        fs::remove_file(dir.path().join(format!("{name}.wasm"))).unwrap();
    }
    wait_for(&host, "nats", "it to be missed", |e| e["state"] == "failed");
    assert_eq!(engines(&host)["redis"]["state"], "serving");
}

/// Every file below a directory.
fn files(dir: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn the_host_has_no_word_of_them() {
    let mut all = Vec::new();
    files(&sources().join("../host"), &mut all);
    let sources: Vec<_> = all.iter().filter(|f| f.extension().is_some_and(|e| e == "rs" || e == "toml")).collect();
    assert!(sources.len() > 80, "{}", sources.len());
    for file in sources {
        let text = fs::read_to_string(file).unwrap().to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric());
        assert!(words.into_iter().all(|word| !["mariadb", "nats", "jetstream"].contains(&word)), "{}", file.display());
    }
}
