//! Adds one of slipway's services to a config: its unit and the files that it needs.

use serde_json::{Value, json};

use super::{add_file, keep_what_replaces, list, object, parse, refusal, version};
use crate::refusal::Refusal;

/// A file of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFile {
    /// Absolute path.
    pub path: String,
    /// Permission bits.
    pub mode: u32,
    /// Text.
    pub content: String,
}

/// A service that each boot starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name of the unit.
    pub name: &'static str,
    /// Text of the unit. An earlier version of the unit is recognised by its first `Description=`.
    pub unit: String,
    /// Files, which are in folders of the service's own.
    pub files: Vec<ServiceFile>,
}

/// Adds a service to the config, or replaces an earlier one that is the same except for its content.
///
/// A config is refused as by [`complete`](super::complete), and if it has a unit or a file of the same name that is not
/// slipway's.
pub fn add_service(config: &str, service: &Service) -> Result<String, Refusal> {
    let mut root = parse(config)?;
    let version = version(&root)?;
    if version < (2, 1) {
        return Err(refusal(
            "slipway must add something to the config, but its version is before 2.1.0; use a later version",
        ));
    }
    keep_what_replaces(&mut root, version)?;
    if !has_ours(&root, service)? {
        refuse_files(&root, service)?;
    }
    for ServiceFile { path, mode, content } in &service.files {
        add_file(&mut root, version, path, *mode, content)?;
    }
    let units = list(object(&mut root, "systemd")?, "units")?;
    units.retain(|unit| unit["name"] != service.name);
    units.push(json!({ "name": service.name, "enabled": true, "contents": service.unit }));
    Ok(format!("{root}\n"))
}

/// Whether the config has the unit of an earlier run. A unit of somebody else is refused.
fn has_ours(root: &Value, service: &Service) -> Result<bool, Refusal> {
    let units = root.pointer("/systemd/units").and_then(Value::as_array);
    let Some(unit) = units.and_then(|units| units.iter().find(|unit| unit["name"] == service.name)) else {
        return Ok(false);
    };
    let description = |text: &str| text.lines().find(|line| line.starts_with("Description=")).map(str::to_owned);
    let is_ours = unit["contents"].as_str().is_some_and(|text| description(text) == description(&service.unit));
    if is_ours {
        return Ok(true);
    }
    Err(refusal(format!("the config has a unit {} of its own: give it another name", service.name)))
}

/// Refuses a config with an entry at the path of a file, or with a file at a folder above it.
fn refuse_files(root: &Value, service: &Service) -> Result<(), Refusal> {
    let entries = |kind| root["storage"][kind].as_array().into_iter().flatten();
    for file in &service.files {
        let is_in_the_way = |entry: &&Value, or_above: bool| {
            let path = entry["path"].as_str().unwrap_or_default().trim_end_matches('/');
            let rest = file.path.strip_prefix(path).filter(|_| !path.is_empty());
            rest.is_some_and(|rest| rest.is_empty() || or_above && rest.starts_with('/'))
        };
        let found = entries("files").find(|entry| is_in_the_way(entry, true));
        let found = found.or_else(|| entries("directories").find(|entry| is_in_the_way(entry, false)));
        // A link above may lead to a folder, such as a link for the whole of /var or /opt, so it is not refused.
        let found = found.or_else(|| entries("links").find(|entry| is_in_the_way(entry, false)));
        if let Some(path) = found.and_then(|entry| entry["path"].as_str()) {
            return Err(refusal(format!(
                "the config writes {path}, where slipway must write {}: leave it out",
                file.path
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(unit: &str) -> Service {
        let file = |name: &str, mode, content: &str| ServiceFile {
            path: format!("/var/lib/slipway/{name}"),
            mode,
            content: content.to_owned(),
        };
        let files = vec![file("report.json", 0o600, "{}\n"), file("fetch.sh", 0o755, "exit\n")];
        Service { name: "slipway-report.service", unit: format!("[Unit]\nDescription=Ours\n{unit}"), files }
    }

    fn added(config: &Value, service: &Service) -> Value {
        serde_json::from_str(&add_service(&config.to_string(), service).expect("added")).expect("JSON")
    }

    #[test]
    fn a_service_stands_beside_what_was_there_and_replaces_an_earlier_one() {
        for version in ["2.3.0", "3.0.0", "3.4.0"] {
            let config = json!({
                "ignition": {"version": version},
                "storage": {"files": [{"path": "/etc/motd"}], "directories": [{"path": "/var/lib/slipway"}]},
                "systemd": {"units": [{"name": "a.service"}]},
                "more": 1,
            });
            let once = added(&config, &service("A=1\n"));
            assert_eq!((&once["more"], &once["ignition"]), (&config["more"], &config["ignition"]));
            assert_eq!(once["storage"]["files"].as_array().map(Vec::len), Some(3));
            assert_eq!(once["systemd"]["units"][0], config["systemd"]["units"][0]);
            let unit = &once["systemd"]["units"][1];
            assert_eq!((&unit["name"], &unit["enabled"]), (&json!("slipway-report.service"), &json!(true)));
            assert_eq!(added(&once, &service("A=1\n")), once, "a second time changes nothing");
            let newer = added(&once, &service("A=2\n"));
            assert_eq!(newer["systemd"]["units"].as_array().map(Vec::len), Some(2));
            assert!(newer["systemd"]["units"][1]["contents"].as_str().is_some_and(|text| text.contains("A=2")));
        }
    }

    #[test]
    fn what_the_operator_has_there_is_refused_by_name() {
        let check = |more: Value, reason: &str| {
            let mut config = json!({"ignition": {"version": "3.0.0"}});
            config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let found = add_service(&config.to_string(), &service("")).expect_err("refused");
            assert!(found.reason.contains(reason), "{found}");
        };
        let unit = "a unit slipway-report.service of its own";
        check(json!({"systemd": {"units": [{"name": "slipway-report.service", "contents": "[Unit]\n"}]}}), unit);
        check(json!({"systemd": {"units": [{"name": "slipway-report.service", "mask": true}]}}), unit);
        let storage = |kind: &str, path: &str| json!({"storage": {kind: [{"path": path}]}});
        check(storage("files", "/var/lib/slipway/report.json"), "writes /var/lib/slipway/report.json");
        check(storage("links", "/var/lib/slipway/fetch.sh"), "writes /var/lib/slipway/fetch.sh");
        check(storage("files", "/var/lib/slipway"), "writes /var/lib/slipway,");
        check(json!({"ignition": {"version": "2.0.0"}}), "before 2.1.0");
        check(json!({"ignition": {"version": "2.3.0", "config": {"replace": {"source": "x"}}}}), "config.replace");
    }
}
