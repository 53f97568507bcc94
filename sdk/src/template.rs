//! Templates: text in which the host fills in placeholders. This crate never fills one in.

/// Makes text that means itself in a template, by writing each brace twice.
///
/// ```
/// assert_eq!(sandbar_sdk::literal(r#"{"a": 1}"#), r#"{{"a": 1}}"#);
/// ```
#[must_use]
pub fn literal(text: &str) -> String {
    text.replace('{', "{{").replace('}', "}}")
}

/// The placeholders of a template, in order.
///
/// # Errors
///
/// One line that says what is wrong: a brace that neither belongs to a placeholder nor is written twice.
pub(crate) fn placeholders(template: &str) -> Result<Vec<&str>, String> {
    let mut found = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let from = &rest[at..];
        rest = if from.starts_with("{{") || from.starts_with("}}") {
            &from[2..]
        } else if let Some((name, after)) = from.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            found.push(name);
            after
        } else {
            return Err(format!("a brace stands alone in `{template}`"));
        };
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn finds_placeholders_and_skips_doubled_braces() {
        assert_eq!(placeholders("{{a}}{user}x{port}").unwrap(), ["user", "port"]);
        assert_eq!(placeholders("${{HOME}}").unwrap(), Vec::<&str>::new());
        assert_eq!(placeholders(&literal("{user} } {{")).unwrap(), Vec::<&str>::new());
    }

    #[test]
    fn refuses_a_lone_brace() {
        for bad in ["{", "}", "a{b", "a}b", "{user}}"] {
            assert!(placeholders(bad).is_err(), "{bad}");
        }
    }
}
