//! Describes what is wrong with a request without repeating any of its content. Answers are also logged, and a value
//! may be a secret or text aimed at the reader of the log.

use serde_json::error::Category;
use slipway_protocol::shared::given;

/// Says what is wrong with a JSON body, and where.
pub fn of_json(error: &serde_json::Error) -> String {
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = error.to_string();
    match error.classify() {
        // The parser's own sentences, which repeat no value.
        Category::Io | Category::Syntax | Category::Eof => said,
        Category::Data => format!("{}{place}", without_values(said.strip_suffix(&place).unwrap_or(&said))),
    }
}

/// Says what is wrong with a URL's query, from axum's error message.
pub fn of_query(said: &str) -> String {
    let said = said.strip_prefix("Failed to deserialize query string: ").unwrap_or(said);
    // If a value is wrong, the message starts with our field's name.
    match said.split_once(": ").filter(|(name, _)| is_name(name)) {
        Some((name, said)) => format!("{name}: {}", without_values(said)),
        None => without_values(said),
    }
}

/// Says that a query parameter has no value.
pub fn of_blank(name: &str) -> String {
    format!("{}{}", if is_name(name) { name } else { "a parameter" }, given::NO_VALUE)
}

fn is_name(text: &str) -> bool {
    text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Removes submitted values from a message of serde (its `Error` trait). The expected values come from our types and
/// are kept.
fn without_values(said: &str) -> String {
    // Only our own fields can be missing or duplicate.
    if said.starts_with("missing field `") || said.starts_with("duplicate field `") || given::is_own(said) {
        return said.to_owned();
    }
    let kinds = [
        ("unknown field `", "a field is not known"),
        ("unknown variant `", "a name is not known"),
        ("invalid type: ", "a value has the wrong type"),
        ("invalid value: ", "a value is invalid"),
        ("invalid length ", "a list has the wrong length"),
    ];
    let Some((_, words)) = kinds.iter().find(|(start, _)| said.starts_with(start)) else {
        return "a value is invalid".to_owned();
    };
    // The last occurrence, because the value itself may contain these words.
    match said.rsplit_once(", expected ") {
        Some((_, expected)) => format!("{words}, expected {expected}"),
        None => (*words).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use slipway_protocol::{Digest, RunState};

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        _count: u32,
        _state: Option<RunState>,
        _digest: Option<Digest>,
    }

    #[test]
    fn what_is_wrong_is_told_without_what_was_submitted() {
        let check = |body: &str, expect: &str| {
            let mut reader = serde_json::Deserializer::from_str(body);
            let error = given::read::<Body, _>(given::Rule::Settings, &mut reader).expect_err(body);
            assert_eq!(of_json(&error), expect, "{body}");
        };
        let fields = "one of `_count`, `_state`, `_digest`";
        check("{\n\"X\": 1}", &format!("a field is not known, expected {fields} at line 2 column 3"));
        let trap = "{\"X`, expected Y\": 1}";
        check(trap, &format!("a field is not known, expected {fields} at line 1 column 17"));
        check("{}", "missing field `_count` at line 1 column 2");
        check("{\"_count\": \"X\"}", "a value has the wrong type, expected u32 at line 1 column 14");
        check("{\"_count\": -1}", "a value is invalid, expected u32 at line 1 column 13");
        check("{\"_count\": 1, \"_count\": 1}", "duplicate field `_count` at line 1 column 22");
        let states = "one of `pending`, `running`, `succeeded`, `failed`";
        let body = "{\"_count\": 1, \"_state\": \"X\"}";
        check(body, &format!("a name is not known, expected {states} at line 1 column 28"));
        let digest = "{\"_count\": 1, \"_digest\": \"X\"}";
        check(digest, "a value is invalid at line 1 column 29");
        let none = "_digest has no value: leave the key out, or give it one";
        check("{\"_count\": 1, \"_digest\": null}", &format!("{none} at line 1 column 30"));
        check("{\"_count\": X}", "expected value at line 1 column 12");
        check("{", "EOF while parsing an object at line 1 column 1");
    }

    #[test]
    fn a_parameter_without_a_value_is_named_if_it_can_be_ours() {
        assert!(of_blank("name").starts_with("name has no value"));
        assert!(of_blank("N").starts_with("a parameter has no value"));
    }

    #[test]
    fn a_query_is_told_about_in_the_same_way() {
        let check = |said: &str, expect: &str| {
            assert_eq!(of_query(&format!("Failed to deserialize query string: {said}")), expect);
        };
        check("wait: invalid digit found in string", "wait: a value is invalid");
        check("missing field `boot_id`", "missing field `boot_id`");
        check("kind: unknown variant `X: Y`, expected `a` or `b`", "kind: a name is not known, expected `a` or `b`");
        check("X Y: unknown field `Z`", "a value is invalid");
    }
}
