//! `sandbar schema api`: the verbs as OpenAPI 3.1, from the types that they are read into and answered from.

use sandbar_core::verb::VERBS;
use serde_json::{Map, Value, json};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_that_is_kept_is_that_of_the_types() {
        let kept: Value = serde_json::from_str(include_str!("../../../docs/api.json")).unwrap();
        assert!(kept == api(), "`sandbar schema api > docs/api.json` writes it anew");
    }
}
