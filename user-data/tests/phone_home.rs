//! What `phone_home` injection makes of every sort of user-data.

use slipway_protocol::PhoneHome;
use slipway_user_data::{inject_phone_home, quoted};

const BLOCK: &str = "phone_home:\n  url: \"https://s.example/v1/phone-home/t\"\n  post: all\n  tries: 20\n";

fn phone_home() -> PhoneHome {
    PhoneHome { url: "https://s.example/v1/phone-home/t".to_owned(), tries: Some(20) }
}

/// `BLOCK` in `expect` stands for the block.
fn check(user_data: &str, expect: &str) {
    let found = inject_phone_home(user_data, &phone_home()).map_err(|refusal| format!("{user_data:?}: {refusal}"));
    assert_eq!(found, Ok(expect.replace("BLOCK", BLOCK)), "from {user_data:?}");
    let again = found.and_then(|text| inject_phone_home(&text, &phone_home()).map_err(|refusal| refusal.to_string()));
    assert_eq!(again.map(|text| text.matches("phone_home").count()), Ok(1 + expect.matches("phone_home").count()));
}

fn check_refused(user_data: &str, expect: &str) {
    let found = inject_phone_home(user_data, &phone_home()).map_err(|refusal| refusal.to_string());
    match found {
        Err(found) => assert!(found.starts_with(expect), "{user_data:?} was refused with {found:?}, not {expect:?}"),
        Ok(found) => panic!("{user_data:?} became {found:?}"),
    }
}

#[test]
fn nothing_becomes_the_header_and_the_block() {
    check("", "#cloud-config\nBLOCK");
    check(" \n\n", "#cloud-config\nBLOCK");
}

#[test]
fn the_block_is_appended_and_the_rest_stays() {
    check("#cloud-config\n", "#cloud-config\nBLOCK");
    check("#cloud-config", "#cloud-config\nBLOCK");
    check("#Cloud-Config\na: 1\n", "#Cloud-Config\na: 1\nBLOCK");
    check("\n #cloud-config\na: 1\n", "\n #cloud-config\na: 1\nBLOCK");
    check(
        "#cloud-config\n# b\nz: 1 # c\n\na:\n- 1\n- x: {p: q}\n",
        "#cloud-config\n# b\nz: 1 # c\n\na:\n- 1\n- x: {p: q}\nBLOCK",
    );
    check("#cloud-config\na: 1", "#cloud-config\na: 1\nBLOCK");
    check("#cloud-config\n---\na: 1\n...\n", "#cloud-config\n---\na: 1\nBLOCK...\n");
    check("#cloud-config\n---\n", "#cloud-config\n---\nBLOCK");
    check("#cloud-config\na: ü \"\u{1f980}\"\nphone_home: 1\nb: é\n", "#cloud-config\na: ü \"\u{1f980}\"\nb: é\nBLOCK");
}

#[test]
fn every_top_level_phone_home_is_replaced() {
    for old in [
        "phone_home:\n  url: http://old/$INSTANCE_ID/\n  post:\n  - pub_key_rsa\n",
        "phone_home:\n",
        "phone_home: null\n",
        "phone_home: off # not now\n",
        "phone_home: [1, 2,\n  3]\n",
        "phone_home: {url: x,\n  post: all}\n",
        "\"phone_home\":\n  url: x\n",
        "'phone_home': >\n  one\n  # still text\n\n  two\n",
        "phone_home:\n- a\n-\n",
        "phone_home: a\nphone_home: b\n",
    ] {
        check(&format!("#cloud-config\na: 1\n{old}# of b\nb: 2\n"), "#cloud-config\na: 1\n# of b\nb: 2\nBLOCK");
        check(&format!("#cloud-config\n{old}"), "#cloud-config\nBLOCK");
        check(&format!("#cloud-config\na: 1\n{}", old.trim_end()), "#cloud-config\na: 1\nBLOCK");
    }
}

#[test]
fn what_only_looks_like_a_phone_home_stays() {
    check("#cloud-config\na:\n  phone_home: 1\n", "#cloud-config\na:\n  phone_home: 1\nBLOCK");
    check("#cloud-config\na: |\n  phone_home: 1\nb: 2\n", "#cloud-config\na: |\n  phone_home: 1\nb: 2\nBLOCK");
    check("#cloud-config\n# phone_home: 1\na: 1\n", "#cloud-config\n# phone_home: 1\na: 1\nBLOCK");
    check("#cloud-config\nphone_homes: 1\n", "#cloud-config\nphone_homes: 1\nBLOCK");
}

#[test]
fn line_ends_and_indentation_follow_the_document() {
    let crlf = BLOCK.replace('\n', "\r\n");
    check_exact("#cloud-config\r\na: 1\r\nphone_home: x\r\n", &format!("#cloud-config\r\na: 1\r\n{crlf}"));
    check_exact("#cloud-config\r\na: 1", &format!("#cloud-config\r\na: 1\r\n{crlf}"));
    let indented = format!("  {}\n", BLOCK.trim_end().replace('\n', "\n  "));
    check_exact("#cloud-config\n  a: 1\n", &format!("#cloud-config\n  a: 1\n{indented}"));
}

fn check_exact(user_data: &str, expect: &str) {
    assert_eq!(
        inject_phone_home(user_data, &phone_home()).map_err(|refusal| refusal.to_string()),
        Ok(expect.to_owned())
    );
}

#[test]
fn a_block_scalar_without_a_last_line_break_keeps_its_value() {
    check("#cloud-config\nb: 1\na: |\n  text", "#cloud-config\nBLOCKb: 1\na: |\n  text");
    check("#cloud-config\nphone_home: 1\na: |\n  text", "#cloud-config\nBLOCKa: |\n  text");
    check("#cloud-config\na: |+\n  text\n\n", "#cloud-config\na: |+\n  text\n\nBLOCK");
}

#[test]
fn a_document_without_tries_leaves_them_to_cloud_init() {
    let phone_home = PhoneHome { url: "https://s.example/".to_owned(), tries: None };
    let expect = "#cloud-config\nphone_home:\n  url: \"https://s.example/\"\n  post: all\n";
    assert_eq!(inject_phone_home("", &phone_home).as_deref(), Ok(expect));
}

#[test]
fn other_kinds_are_refused_with_their_name() {
    check_refused("#!/bin/sh\ntrue\n", "line 1, column 1: the user-data is a script");
    check_refused("\n  #!/bin/sh\n", "line 2, column 3: the user-data is a script");
    check_refused("## template: jinja\n#cloud-config\n", "line 1, column 1: the user-data is a jinja template");
    check_refused(
        "Content-Type: multipart/mixed\nMIME-Version: 1.0\n",
        "line 1, column 1: the user-data is a MIME message",
    );
    check_refused("#include\nhttps://x\n", "line 1, column 1: the user-data is a list of URLs");
    check_refused("#cloud-config-archive\n- a\n", "line 1, column 1: the user-data is a cloud-config archive");
    check_refused("#cloud-boothook\n", "line 1, column 1: the user-data is a boothook");
    check_refused("a: 1\n", "line 1, column 1: the user-data is nothing cloud-init recognises");
}

#[test]
fn a_root_that_cannot_take_a_key_is_refused_with_its_place() {
    check_refused("#cloud-config\n{a: 1}\n", "line 2, column 1: the root of the document is a mapping in braces");
    check_refused("#cloud-config\n\n- a\n", "line 3, column 1: the root of the document is a list");
    check_refused("#cloud-config\nhello\n", "line 2, column 1: the root of the document is a scalar");
    check_refused("#cloud-config\na: 1\n---\nb: 1\n", "line 3, column 1: a second document starts");
    check_refused("#cloud-config\na: [1\nb: 2\n", "line 3, column 2: this is not YAML");
    check_refused("#cloud-config\nphone_home: &x 1\na: *x\n", "line 2, column 1: another part of the document depends");
}

#[test]
fn quoted_text_survives_yaml() {
    assert_eq!(quoted("plain: # 'x'"), "\"plain: # 'x'\"");
    assert_eq!(quoted("a\"b\\c\nd\te\u{7}\u{85}"), "\"a\\\"b\\\\c\\nd\\te\\u0007\\u0085\"");
}
