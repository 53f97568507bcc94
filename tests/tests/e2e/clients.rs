//! Programs that know nothing of this project: clients for Python and somebody else's test suite, with a service's variables.

use std::process::Command;

use sandbar_tests::host::{cache, sources};
use serde_json::{Value, json};

use crate::user::User;

/// How many tests of Alembic need a database that is there, and how many of those PostgreSQL has what they are about. They are
/// those of the version that `tests/suites/ensure.sh` names.
const ALEMBIC: (usize, usize) = (519, 280);

#[test]
fn clients_for_python_need_nothing_but_the_variables() {
    let user = User::new();
    let evidence: Value = serde_json::from_str(&user.good(&["up", "postgres", "redis", "mongo", "--json"])).unwrap();
    let services = evidence.as_object().unwrap().values();
    let variables = services.flat_map(|service| service["env"].as_object().unwrap());
    let mut python = Command::new(cache().join("suites/venv/bin/python"));
    python.arg(sources().join("suites/clients.py")).env_clear();
    python.envs(variables.map(|(name, value)| (name, value.as_str().unwrap())));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!({
        "postgres": ["sandbox", "psycopg"], "redis": { "from": "redis-py" }, "mongo": [1, 2],
    });
    assert_eq!(answers, expected);
}

#[test]
fn the_test_suite_of_alembic_passes_in_services_of_its_own() {
    let user = User::new();
    let [inside, venv, suite] =
        [sources().join("suites/inside.sh"), cache().join("suites/venv"), cache().join("suites/alembic")]
            .map(|path| path.display().to_string());
    let line = format!("exec '{inside}' '{venv}' '{suite}' --backend-only tests");
    let output = user.run(&["up", "postgres", "--exec", &line]);
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().last().unwrap_or_default();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    let count = |what: &str| {
        let words: Vec<_> = last.split_whitespace().collect();
        words.windows(2).find(|pair| pair[1].trim_end_matches(',') == what).and_then(|pair| pair[0].parse().ok())
    };
    let (passed, skipped) = ALEMBIC;
    assert_eq!((count("passed"), count("skipped")), (Some(passed), Some(skipped)), "{last}");
    assert_eq!((count("failed"), count("error")), (None, None::<usize>), "{last}");
    assert_eq!(user.rows(), [] as [Value; 0]);
}
