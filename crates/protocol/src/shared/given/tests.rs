use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::{DiskHints, PartitionSize, Step};

fn json<T: DeserializeOwned>(rule: Rule, text: &str) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    read(rule, &mut reader).map_err(|error| error.to_string())
}

/// A type with a field of each kind that the formats have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct All {
    #[serde(rename = "text")]
    _text: Option<String>,
    #[serde(rename = "number")]
    _number: Option<u64>,
    #[serde(rename = "is")]
    _is: bool,
    #[serde(rename = "list")]
    _list: Vec<String>,
    #[serde(rename = "disk")]
    _disk: Option<DiskHints>,
    #[serde(rename = "size")]
    _size: Option<PartitionSize>,
    #[serde(rename = "environment")]
    _environment: BTreeMap<String, String>,
    #[serde(rename = "other")]
    _other: BTreeMap<String, String>,
    #[serde(rename = "content")]
    _content: Option<String>,
    #[serde(rename = "below")]
    _below: Option<Box<All>>,
    #[serde(rename = "step")]
    _step: Option<Step>,
}

#[test]
fn a_key_without_a_value_is_refused_with_its_path() {
    for (text, path) in [
        (r#"{"text": null}"#, "text"),
        (r#"{"text": ""}"#, "text"),
        (r#"{"text": " \t\n"}"#, "text"),
        (r#"{"text": "\u00a0\u200b\ufeff"}"#, "text"),
        (r#"{"text": "\u0000"}"#, "text"),
        (r#"{"number": null}"#, "number"),
        (r#"{"is": null}"#, "is"),
        (r#"{"list": null}"#, "list"),
        (r#"{"list": ["a", null]}"#, "list[1]"),
        (r#"{"list": ["a", " "]}"#, "list[1]"),
        (r#"{"size": null}"#, "size"),
        (r#"{"size": ""}"#, "size"),
        (r#"{"content": null}"#, "content"),
        (r#"{"environment": {"A": null}}"#, "environment[...]"),
        (r#"{"other": {"A": ""}}"#, "other[...]"),
        (r#"{"disk": null}"#, "disk"),
        (r#"{"disk": {}}"#, "disk"),
        (r#"{"disk": {"choose": "smallest", "serial": null}}"#, "disk.serial"),
        (r#"{"disk": {"choose": "largest", "serial": ""}}"#, "disk.serial"),
        (r#"{"disk": {"device": " "}}"#, "disk.device"),
        (r#"{"disk": {"size": null}}"#, "disk.size"),
        (r#"{"disk": {"skip": []}}"#, "disk.skip"),
        (r#"{"disk": {"skip": [null]}}"#, "disk.skip[0]"),
        (r#"{"disk": {"skip": [{"tran": ""}]}}"#, "disk.skip[0].tran"),
        (r#"{"below": {"below": {"text": null}}}"#, "below.below.text"),
        (r#"{"step": {"name": "a", "action": {"erase-disk": null}}}"#, "step.action.erase-disk"),
        (r#"{"step": {"name": "a", "action": {"erase-disk": {"disk": {}}}}}"#, "step.action.erase-disk.disk"),
        (
            r#"{"step": {"name": "a", "action": {"erase-disk": {"disk": {"choose": "all", "serial": null}}}}}"#,
            "step.action.erase-disk.disk.serial",
        ),
    ] {
        let error = json::<All>(Rule::Settings, text).expect_err(text);
        assert!(error.starts_with(&format!("{path}{NO_VALUE} at line 1 column ")), "{text}: {error}");
    }
    assert!(json::<All>(Rule::Settings, "null").expect_err("null").starts_with(NOTHING));
}

#[test]
fn what_is_a_value_is_passed_on() {
    for text in [
        "{}",
        r#"{"text": "a", "number": 0, "is": false, "list": [], "size": 1, "other": {}, "below": {}}"#,
        r#"{"text": "null", "list": ["~"], "size": "rest", "disk": {"choose": "all", "skip": [{"tran": "usb"}]}}"#,
        r#"{"content": "", "environment": {"A": ""}}"#,
        r#"{"step": {"name": "a", "action": {"reboot": {}}, "retries": 1}}"#,
        r#"{"step": {"name": "a", "action": {"run-in-target": {"command": ["a", ""]}}}}"#,
    ] {
        json::<All>(Rule::Settings, text).expect(text);
    }
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    for (text, expect) in [
        (r#"{"text": "a", "text": "b"}"#, "duplicate field `text`"),
        (r#"{"disk": {"serial": "a", "serial": "b"}}"#, "duplicate field `serial`"),
        (r#"{"environment": {"A": "a", "A": "b"}}"#, "environment has a key twice"),
        (r#"{"text": "a", "Text": "b"}"#, "unknown field `Text`"),
    ] {
        let error = json::<All>(Rule::Settings, text).expect_err(text);
        assert!(error.starts_with(expect), "{text}: {error}");
    }
}

#[test]
fn a_list_is_not_taken_for_the_fields_of_a_type() {
    for text in [
        "[]",
        r#"{"disk": []}"#,
        r#"{"disk": ["/dev/sda"]}"#,
        r#"{"disk": {"skip": [[]]}}"#,
        r#"{"step": ["a", {"reboot": {}}]}"#,
        r#"{"step": {"name": "a", "action": {"erase-disk": []}}}"#,
    ] {
        let error = json::<All>(Rule::Settings, text).expect_err(text);
        assert!(error.starts_with("invalid type: sequence, expected struct "), "{text}: {error}");
    }
}

#[test]
fn a_number_is_below_two_to_the_63() {
    json::<All>(Rule::Settings, r#"{"number": 9223372036854775807}"#).expect("the largest");
    let error = json::<All>(Rule::Settings, r#"{"number": 9223372036854775808}"#).expect_err("too large");
    assert!(error.contains("expected a number below 2^63"), "{error}");
}

#[test]
fn a_number_with_nothing_after_the_point_is_whole() {
    let hints = json::<DiskHints>(Rule::Settings, r#"{"min_size": 1e9, "size": 500.0}"#).expect("whole numbers");
    assert_eq!(hints.min_size, Some(1_000_000_000));
    assert_eq!(hints.size.map(|size| size.to_string()).as_deref(), Some("500"));
    assert_eq!(json::<i32>(Rule::Report, "-3.0").expect("below zero"), -3);
    assert_eq!(json::<f64>(Rule::Report, "3.0").expect("not a whole number by its type"), 3.0);
    for text in [r#"{"min_size": 1.5}"#, r#"{"min_size": -1.0}"#, r#"{"min_size": 1e300}"#] {
        json::<DiskHints>(Rule::Settings, text).expect_err(text);
    }
}

#[test]
fn a_change_removes_and_a_report_may_be_blank() {
    json::<All>(Rule::Change, r#"{"disk": {}}"#).expect("it removes hints");
    for text in [r#"{"disk": null}"#, r#"{"text": ""}"#, r#"{"disk": {"skip": []}}"#, r#"{"below": {"disk": {}}}"#] {
        json::<All>(Rule::Change, text).expect_err(text);
    }
    json::<All>(Rule::Report, r#"{"text": "", "list": [" "], "disk": {}}"#).expect("texts as they were found");
    for text in [r#"{"text": null}"#, r#"{"list": [null]}"#, r#"{"other": {"A": "", "A": ""}}"#] {
        json::<All>(Rule::Report, text).expect_err(text);
    }
}
