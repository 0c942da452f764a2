//! What servers say beside an image: headers, manifests, tokens. The first line says which, and the rest is read.
#![no_main]

use slipway_actions::fuzzing;
use slipway_protocol::{Digest, OciReference};

libfuzzer_sys::fuzz_target!(|input: &str| {
    let (kind, text) = input.split_once('\n').unwrap_or((input, ""));
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    match kind {
        "content-range" => content_range(first, rest),
        "retry-after" => _ = fuzzing::retry_after(first, Some(rest)),
        "www-authenticate" => _ = fuzzing::challenge(text),
        "manifest" => {
            _ = fuzzing::image_in_manifest(rest.as_bytes(), Some(first).filter(|title| !title.is_empty()))
                .map(|(digest, _)| check(&digest));
        }
        "index" => _ = fuzzing::manifest_in_index(text.as_bytes(), "amd64").map(|digest| check(&digest)),
        "token" => assert!(fuzzing::token(text.as_bytes()).is_none_or(|token| !token.is_empty())),
        "reference" => reference(text),
        _ => {}
    }
});

/// A range that is gone on with is not beyond the end of what it is a range of.
fn content_range(offset: &str, range: &str) {
    let Ok(offset) = offset.parse() else { return };
    if let Some(Some(total)) = fuzzing::content_range(offset, range) {
        assert!(offset < total);
    }
}

/// A reference leads to its registry and nowhere else.
fn reference(text: &str) {
    let Ok(reference) = text.parse::<OciReference>() else { return };
    for part in [&reference.registry, &reference.repository, &reference.version.to_string()] {
        assert!(!part.is_empty() && !part.contains(['?', '#', '%', '\\', ' ']), "{part}");
        assert!(part.split('/').all(|name| !matches!(name, "" | "." | "..")), "{part}");
    }
}

/// A digest says again what it was read from.
fn check(digest: &Digest) {
    assert_eq!(digest.to_string().parse().as_ref(), Ok(digest));
}
