//! Judges a config of specification 3 as Ignition does before it changes anything (Ignition, config/v3_x/types and
//! config/shared/validations). A system whose config Ignition refuses stops in its emergency shell.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::refusal;
use crate::refusal::Refusal;

/// The lists: section, name, the key that no two items may share, and what shares it. Files, directories and links are
/// all paths.
const LISTS: &[(&str, &str, &str, &str)] = &[
    ("storage", "files", "path", "paths"),
    ("storage", "directories", "path", "paths"),
    ("storage", "links", "path", "paths"),
    ("storage", "disks", "device", "disks"),
    ("storage", "filesystems", "device", "filesystems"),
    ("storage", "raid", "name", "raid"),
    ("storage", "luks", "name", "luks"),
    ("systemd", "units", "name", "units"),
    ("passwd", "users", "name", "users"),
    ("passwd", "groups", "name", "groups"),
];
/// Schemes of the URLs from which Ignition fetches.
const SCHEMES: &[&str] = &["http", "https", "tftp", "s3", "arn", "gs", "data"];
/// Hexadecimal digits of the digests that Ignition knows.
const DIGESTS: &[(&str, usize)] = &[("sha512-", 128), ("sha256-", 64)];
const LARGEST_MODE: u64 = 0o7777;

pub(super) type Judged = Result<(), Refusal>;

/// Refuses a config that Ignition would refuse, or could not carry out.
pub(super) fn judge(root: &Value) -> Judged {
    let mut shared: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (section, list, key, share) in LISTS {
        for (place, item) in items(root, section, list)? {
            let Some(name) = item[*key].as_str().filter(|name| !name.is_empty()) else {
                return wrong(&place, format!("needs {key:?}, a text"));
            };
            if *key == "path" {
                judge_path(&place, name)?;
            }
            if !shared.entry(share).or_default().insert(name) {
                return wrong(&place, format!("has the {key} {name:?} again: give each once"));
            }
        }
    }
    for (place, file) in items(root, "storage", "files")? {
        judge_file(&place, file)?;
        let inside = format!("{}/", file["path"].as_str().unwrap_or_default());
        let paths = shared.get("paths").into_iter().flatten();
        if let Some(inner) = paths.into_iter().find(|path| path.starts_with(&inside)) {
            return wrong(&place, format!("is a file, but {inner:?} would be in it as in a folder"));
        }
    }
    Ok(())
}

/// The items of a list in a section, each with its place in words.
fn items<'a>(root: &'a Value, section: &str, list: &str) -> Result<Vec<(String, &'a Value)>, Refusal> {
    let place = format!("{section}.{list}");
    match (&root[section], &root[section][list]) {
        (Value::Null, _) | (Value::Object(_), Value::Null) => Ok(Vec::new()),
        (Value::Object(_), Value::Array(items)) => {
            let items = items.iter().enumerate().map(|(index, item)| (format!("{place}[{index}]"), item));
            match items.clone().find(|(_, item)| !item.is_object()) {
                Some((place, _)) => Err(refusal(format!("{place} in the config is not an object"))),
                None => Ok(items.collect()),
            }
        }
        (Value::Object(_), _) => Err(refusal(format!("{place} in the config is not a list"))),
        _ => Err(refusal(format!("{section} in the config is not an object"))),
    }
}

/// Refuses a path that is not absolute, or not as short as it can be.
fn judge_path(place: &str, path: &str) -> Judged {
    let is_short = |rest: &str| rest.is_empty() || rest.split('/').all(|name| !matches!(name, "" | "." | ".."));
    match path.strip_prefix('/') {
        Some(rest) if is_short(rest) => Ok(()),
        Some(_) => wrong(place, format!("has the path {path:?}: leave out \".\", \"..\" and further slashes")),
        None => wrong(place, format!("has the path {path:?}, which does not begin with a slash")),
    }
}

fn judge_file(place: &str, file: &Value) -> Judged {
    if !file["mode"].is_null() && file["mode"].as_u64().is_none_or(|mode| mode > LARGEST_MODE) {
        return wrong(place, "needs its \"mode\" as a decimal number up to 4095; 0644 in octal is 420");
    }
    judge_resource(&format!("{place}.contents"), &file["contents"])?;
    let pieces = file["append"].as_array().into_iter().flatten().enumerate();
    pieces.into_iter().try_for_each(|(index, piece)| judge_resource(&format!("{place}.append[{index}]"), piece))
}

/// Judges what Ignition fetches: its source, and its digest.
pub(super) fn judge_resource(place: &str, resource: &Value) -> Judged {
    match (resource, &resource["source"]) {
        (Value::Null, _) | (Value::Object(_), Value::Null) => {}
        (Value::Object(_), Value::String(source)) => {
            judge_source(place, source)?;
            judge_headers(place, source, &resource["httpHeaders"])?;
        }
        (Value::Object(_), _) => return wrong(place, "needs its \"source\" as a text"),
        _ => return wrong(place, "is not an object"),
    }
    if !matches!(resource["compression"].as_str(), None | Some("" | "gzip")) {
        return wrong(place, "needs \"gzip\" as its compression, or none");
    }
    let hash = &resource["verification"]["hash"];
    let is_digest = |text: &str| {
        DIGESTS.iter().any(|(kind, digits)| {
            text.strip_prefix(kind)
                .is_some_and(|hex| hex.len() == *digits && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        })
    };
    match hash.is_null() || hash.as_str().is_some_and(is_digest) {
        true => Ok(()),
        false => wrong(place, "needs its \"hash\" as sha512- or sha256- and the digest in hexadecimal"),
    }
}

fn judge_headers(place: &str, source: &str, headers: &Value) -> Judged {
    let names = headers.as_array().into_iter().flatten().filter_map(|header| header["name"].as_str());
    let mut seen = BTreeSet::new();
    for name in names {
        if !source.starts_with("http://") && !source.starts_with("https://") {
            return wrong(place, "has headers, which only http and https have");
        }
        if !seen.insert(name) {
            return wrong(place, format!("has the header {name:?} twice"));
        }
    }
    Ok(())
}

fn judge_source(place: &str, source: &str) -> Judged {
    if source.is_empty() {
        return Ok(());
    }
    let Some((scheme, rest)) = source.split_once(':').filter(|(scheme, _)| SCHEMES.contains(scheme)) else {
        return wrong(place, format!("needs a source that begins with one of: {}", SCHEMES.join(", ")));
    };
    if scheme != "data" {
        return Ok(());
    }
    // RFC 2397: the kind of the data, a comma, the data.
    let Some((kind, data)) = rest.split_once(',') else {
        return wrong(place, "has a data URL without a comma before its data");
    };
    let is_whole = !kind.ends_with(";base64") || data.contains('%') || STANDARD.decode(data).is_ok();
    if is_whole { Ok(()) } else { wrong(place, "has a data URL whose base64 is damaged") }
}

pub(super) fn wrong(place: &str, problem: impl std::fmt::Display) -> Judged {
    Err(refusal(format!("{place} in the config {problem}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(config: Value, expect: &str) {
        let found = judge(&config).err().map(|refusal| refusal.reason).unwrap_or_default();
        assert!(found.starts_with(expect) && found.is_empty() == expect.is_empty(), "{config}: {found}");
    }

    fn check_files(files: Value, expect: &str) {
        check(json!({"storage": {"files": files}}), expect);
    }

    #[test]
    fn what_is_listed_is_there_once() {
        check(json!({}), "");
        check(json!({"storage": null, "systemd": {"units": null}, "passwd": {"users": [{"name": "core"}]}}), "");
        check_files(json!([{"path": "/a"}, {"path": "/b"}]), "");
        check_files(
            json!([{"path": "/a"}, {"path": "/a"}]),
            "storage.files[1] in the config has the path \"/a\" again",
        );
        let link = json!({"storage": {"files": [{"path": "/a"}], "links": [{"path": "/a", "target": "/b"}]}});
        check(link, "storage.links[0] in the config has the path \"/a\" again");
        for (section, list, key) in
            [("systemd", "units", "name"), ("passwd", "users", "name"), ("storage", "disks", "device")]
        {
            let twice = json!({section: {list: [{key: "/x"}, {key: "/x"}]}});
            check(twice, &format!("{section}.{list}[1] in the config has the {key} \"/x\" again"));
            check(json!({section: {list: [{}]}}), &format!("{section}.{list}[0] in the config needs {key:?}"));
            check(json!({section: {list: [1]}}), &format!("{section}.{list}[0] in the config is not an object"));
            check(json!({section: {list: {key: "/x"}}}), &format!("{section}.{list} in the config is not a list"));
            check(json!({section: []}), &format!("{section} in the config is not an object"));
        }
    }

    #[test]
    fn paths_are_such_that_all_of_them_can_be_made() {
        check_files(json!([{"path": "/a/b"}, {"path": "/a/bc/d"}]), "");
        check(json!({"storage": {"files": [{"path": "/a/b"}], "directories": [{"path": "/a"}]}}), "");
        for path in ["etc/a", "/etc//a", "/etc/../a", "/etc/a/", "/./a"] {
            check_files(json!([{"path": path}]), &format!("storage.files[0] in the config has the path {path:?}"));
        }
        let inside = "storage.files[0] in the config is a file, but \"/foo/bar/baz\" would be in it";
        check_files(json!([{"path": "/foo/bar"}, {"path": "/foo/bar/baz"}]), inside);
        for list in ["directories", "links"] {
            check(json!({"storage": {"files": [{"path": "/foo/bar"}], list: [{"path": "/foo/bar/baz"}]}}), inside);
        }
    }

    #[test]
    fn contents_come_from_where_ignition_fetches() {
        let check_contents = |contents: Value, expect: &str| {
            check_files(json!([{"path": "/a", "contents": contents}]), expect);
        };
        for source in ["data:,x%20y", "data:;base64,eA==", "https://s/x", "s3://b/k", "arn:aws:s3:::b/k", ""] {
            check_contents(json!({"source": source, "compression": "gzip"}), "");
        }
        let place = "storage.files[0].contents in the config ";
        for (contents, expect) in [
            (json!({"source": "x"}), "needs a source that begins with one of: http, "),
            (json!({"source": "file:///x"}), "needs a source that begins"),
            (json!({"source": "data:x"}), "has a data URL without a comma"),
            (json!({"source": "data:;base64,e"}), "has a data URL whose base64 is damaged"),
            (json!({"source": 1}), "needs its \"source\" as a text"),
            (json!("x"), "is not an object"),
            (json!({"verification": {"hash": "sha512-00"}}), "needs its \"hash\" as sha512-"),
            (json!({"verification": {"hash": format!("sha1-{}", "0".repeat(40))}}), "needs its \"hash\" as sha512-"),
        ] {
            check_contents(contents, &format!("{place}{expect}"));
        }
        check_contents(json!({"verification": {"hash": format!("sha256-{}", "0".repeat(64))}}), "");
        check_files(json!([{"path": "/a", "append": [{"source": "x"}]}]), "storage.files[0].append[0] in the config ");
        check_files(json!([{"path": "/a", "mode": 420}]), "");
        for mode in [json!("0644"), json!(4096), json!(-1), json!(1.5)] {
            check_files(json!([{"path": "/a", "mode": mode}]), "storage.files[0] in the config needs its \"mode\"");
        }
    }
}
