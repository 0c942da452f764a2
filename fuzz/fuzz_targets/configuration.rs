//! A configuration that a machine accepts is the same mapping to another YAML reader. The machine accepts everything
//! the other reader accepts, except what a configuration does not need.
#![no_main]

use std::collections::BTreeMap;

use slipway_installer::config::from_yaml;

/// Anchors, aliases, tags, merge keys, and the end of a document, after which the other reader accepts anything.
const REFUSED: [&str; 5] = ["&", "*", "!", "<<", "..."];

fn begins_like_a_number(key: &str) -> bool {
    key.strip_prefix(['+', '-']).unwrap_or(key).starts_with(|c: char| c.is_ascii_digit())
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    // Comments would count against a limit if they were emitted as events.
    let options = serde_saphyr::options! { emit_comments: false, with_snippet: false };
    // slipway reads a null document as an empty mapping.
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
