//! `sandbar schema`: the verbs as OpenAPI 3.1 and the configuration as JSON Schema, from the types that they are read into and
//! answered from.

use sandbar_core::verb::VERBS;
use serde_json::{Map, Value, json};

use crate::config::Config;

/// Every verb and page.
pub(crate) fn api() -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for verb in VERBS {
        let who = verb.callers.iter().map(|kind| kind.plural()).collect::<Vec<_>>().join(" and ");
        let schema = format!("{}.answer", verb.name);
        let answer = json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } });
        schemas.insert(schema, verb.answers().into());
        let mut takes = Map::from_iter([("application/json".to_owned(), json!({ "schema": verb.takes() }))]);
        if verb.carries_file {
            takes.insert("application/octet-stream".to_owned(), json!({}));
        }
        let mut good = answer.clone();
        if verb.answers_file {
            good["application/octet-stream"] = json!({});
        }
        let post = json!({
            "operationId": verb.name,
            "summary": verb.summary,
            "description": format!("For {who}."),
            "requestBody": { "content": takes },
            "responses": {
                "200": { "description": "It was done.", "content": good },
                "default": { "description": "It was not: `error` says why, and what to do.", "content": answer },
            },
        });
        paths.insert(format!("/v1/do/{}", verb.name), json!({ "post": post }));
    }
    for (path, what, kind) in [
        ("/healthz", "Whether the process answers.", "text/plain"),
        ("/readyz", "Whether requests are taken, and what each engine does.", "application/json"),
        ("/metrics", "What is counted and measured, in Prometheus' text format.", "text/plain"),
    ] {
        let get = json!({ "summary": what, "security": [], "responses": {
            "200": { "description": what, "content": { kind: {} } },
        } });
        paths.insert(path.to_owned(), json!({ "get": get }));
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Sandbar", "version": env!("CARGO_PKG_VERSION") },
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": { "schemas": schemas, "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } } },
    })
}

/// The configuration.
pub(crate) fn config() -> Value {
    schemars::schema_for!(Config).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_page_that_is_kept_is_that_of_the_types() {
        let kept: Value = serde_json::from_str(include_str!("../../../docs/api.json")).unwrap();
        assert!(kept == api(), "`sandbar schema api > docs/api.json` writes it anew");
    }
    #[test]
    fn the_configuration_that_is_kept_is_that_of_the_types() {
        let kept: Value = serde_json::from_str(include_str!("../../../docs/config.schema.json")).unwrap();
        assert!(kept == config(), "`sandbar schema config > docs/config.schema.json` writes it anew");
    }

    /// What stands in the schema at a path of keys; `*` is a name of the operator's.
    fn inside<'a>(root: &'a Value, path: &[&str]) -> &'a Value {
        let follow = |mut at: &'a Value| {
            while let Some(name) = at["$ref"].as_str() {
                at = &root["$defs"][name.rsplit('/').next().unwrap()];
            }
            at
        };
        path.iter().fold(root, |at, key| {
            let below = match *key {
                // A map whose keys have a pattern, or any.
                "*" => at["patternProperties"]
                    .as_object()
                    .map_or(&at["additionalProperties"], |p| p.values().next().unwrap()),
                key => &at["properties"][key],
            };
            follow(below)
        })
    }

    #[test]
    fn the_schema_and_the_parser_know_the_same_keys_and_defaults() {
        let schema = config();
        let named = |s: &Value| s["properties"].as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
        let tables = [
            "",
            "host",
            "orchestrators.*",
            "docker",
            "sandbox",
            "plugins",
            "engines.*",
            "engines.*.grant",
            "projects.*",
            "agents.*",
            "janitor",
            "retention",
            "boxes",
            "privacy",
            "host.operator_token",
        ];
        for table in tables {
            let path: Vec<_> = table.split('.').filter(|key| !key.is_empty()).collect();
            let header = if table.is_empty() { String::new() } else { format!("[{}]", table.replace('*', "x")) };
            // It names all that it would have taken.
            let error = Config::parse(&format!("{header}\nno-such-key = 1\n"), Path::new("x")).unwrap_err().to_string();
            let line = error.lines().find(|line| line.contains("`no-such-key`")).unwrap_or_else(|| panic!("{error}"));
            let taken =
                line.split_once("expected ").unwrap().1.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            let of_token = ["anyOf", "oneOf"].iter().find_map(|any| inside(&schema, &path)[any].as_array()?.first());
            let at = of_token.map_or_else(|| inside(&schema, &path), |first| inside_ref(&schema, first));
            assert_eq!(named(at), taken, "{table}");
            assert_eq!(at["additionalProperties"], false, "{table}");
            // Every key says what it means.
            for (key, property) in at["properties"].as_object().unwrap() {
                let told = &inside_ref(&schema, property)["description"];
                assert!(property["description"].is_string() || told.is_string(), "{table} {key}");
            }
        }
        assert_eq!(inside(&schema, &["docker"])["properties"]["pull_timeout_secs"]["default"], 300);
        assert_eq!(inside(&schema, &["sandbox"])["properties"]["memory"]["default"], "512m");
    }

    fn inside_ref<'a>(root: &'a Value, at: &'a Value) -> &'a Value {
        at["$ref"].as_str().map_or(at, |name| &root["$defs"][name.rsplit('/').next().unwrap()])
    }

    #[test]
    fn every_configuration_in_the_documents_can_be_read() {
        let mut count = 0;
        for (name, page) in [
            ("README.md", include_str!("../../../README.md")),
            ("engines.md", include_str!("../../../docs/engines.md")),
            ("operators.md", include_str!("../../../docs/operators.md")),
        ] {
            for block in page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()) {
                Config::parse(block, Path::new(name)).unwrap_or_else(|e| panic!("{e}\n{block}"));
                count += 1;
            }
        }
        assert!(count >= 2, "{count}");
    }
}
