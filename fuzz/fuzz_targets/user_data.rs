//! User-data that takes a block keeps its meaning to a YAML reader and has the block. Removing the block restores the
//! bytes. `cloud_config` tests the meaning to cloud-init's parser, and crates/user-data/tests/cloud_init tests it with
//! cloud-init itself.
#![no_main]

use serde_json::{Map, Value, json};
use slipway_user_data::{Block, Post, check, inject, remove};

const URL: &str = "https://s.example/p";

/// Beginnings of the kinds of user-data of which removing the block restores every byte.
const COME_BACK: &[&[u8]] = &[b"#cloud-config\n", b"#!", b"#include", b"#cloud-boothook"];

fn mapping(user_data: &[u8]) -> Option<Map<String, Value>> {
    serde_saphyr::from_str(std::str::from_utf8(user_data).ok()?).ok()
}

fn has(user_data: &[u8], text: &[u8]) -> bool {
    user_data.windows(text.len()).any(|bytes| bytes.eq_ignore_ascii_case(text))
}

libfuzzer_sys::fuzz_target!(|user_data: &[u8]| {
    let block = Block { url: URL.to_owned(), post: Post::All, tries: Some(3) };
    let injected = inject(user_data, &block);
    assert_eq!(injected.is_ok(), check(user_data).is_ok());
    let Ok(injected) = injected else {
        _ = remove(user_data, URL);
        return;
    };
    assert!(check(&injected).is_ok());
    if injected.starts_with(b"#cloud-config\n")
        && let (Some(mut before), Some(after)) = (mapping(user_data), mapping(&injected))
    {
        before.insert("phone_home".to_owned(), json!({"url": URL, "post": "all", "tries": 3}));
        assert_eq!(before, after);
    }
    let had_one = has(user_data, b"phone_home") || has(user_data, b"mime-version:");
    match remove(&injected, URL) {
        Ok(removed) if COME_BACK.iter().any(|head| user_data.starts_with(head)) && !had_one => {
            assert!(removed == user_data || removed.is_empty());
        }
        _ => {}
    }
});
