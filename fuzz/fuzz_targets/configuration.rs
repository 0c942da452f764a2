//! What a machine takes for its configuration is the same mapping to another reader of YAML; and it takes what that one does, but for what
//! a configuration has no use for.
#![no_main]

use std::collections::BTreeMap;

use slipway_installer::config::from_yaml;

/// Anchors, aliases, tags, merged mappings, and the end of a document, behind which the other reader takes anything.
const REFUSED: [&str; 5] = ["&", "*", "!", "<<", "..."];

fn begins_like_a_number(key: &str) -> bool {
    key.strip_prefix(['+', '-']).unwrap_or(key).starts_with(|c: char| c.is_ascii_digit())
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    // As events they would be bounded.
    let options = serde_saphyr::options! { emit_comments: false, with_snippet: false };
    // A document that is null is an empty mapping to us.
    let theirs: Result<Option<BTreeMap<String, String>>, _> = serde_saphyr::from_str_with_options(text, options);
    match (from_yaml("a file", text), theirs.map(Option::unwrap_or_default)) {
        (Ok(ours), theirs) => assert_eq!(Some(ours.values), theirs.ok()),
        (Err(refusal), Ok(theirs)) => assert!(
            REFUSED.iter().any(|part| text.contains(part)) || theirs.keys().any(|key| begins_like_a_number(key)),
            "{refusal:?}"
        ),
        (Err(_), Err(_)) => {}
    }
});
