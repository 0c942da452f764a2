//! Reads answers of servers other than an image: headers, manifests, tokens. The first line of the input names the kind
//! of answer, and the rest is the answer.
#![no_main]

use serde_json::Value;
use slipway_formats::http::{challenge, resumed_total, retry_after};
use slipway_formats::oci;
use slipway_protocol::{Digest, OciReference};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let (kind, text) = input.split_once('\n').unwrap_or((input, ""));
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match kind {
        "content-range" => content_range(first, rest),
        "retry-after" => _ = retry_after(first, Some(rest), std::time::UNIX_EPOCH),
        "www-authenticate" => _ = challenge::parse(text),
        "manifest" => {
            let Ok(manifest) = serde_json::from_str(rest) else { return };
            _ = oci::blob(&manifest, Some(first).filter(|title| !title.is_empty())).map(|blob| check(&blob.digest));
        }
        "index" => {
            let Ok(Value::Array(index)) = serde_json::from_str(text) else { return };
            _ = oci::of_platform(&index, "amd64").map(|digest| check(&digest));
        }
        "token" => assert!(oci::token(text.as_bytes()).is_none_or(|token| !token.is_empty())),
        "reference" => reference(text),
        _ => {}
    }
});

/// Checks that the start of a resumed range is within the total size.
fn content_range(offset: &str, range: &str) {
    let Ok(offset) = offset.parse() else { return };
    if let Some(Some(total)) = resumed_total(offset, range, None, None).ok() {
        assert!(offset < total);
    }
}

/// Checks that a reference leads only to its registry.
fn reference(text: &str) {
    let Ok(reference) = text.parse::<OciReference>() else { return };
    for part in [&reference.registry, &reference.repository, &reference.version.to_string()] {
        assert!(!part.is_empty() && !part.contains(['?', '#', '%', '\\', ' ']), "{part}");
        assert!(part.split('/').all(|name| !matches!(name, "" | "." | "..")), "{part}");
    }
}

/// Checks that a printed digest parses to the same digest.
fn check(digest: &Digest) {
    assert_eq!(digest.to_string().parse().as_ref(), Ok(digest));
}
