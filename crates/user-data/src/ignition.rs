//! Ignition configs (Ignition documentation, configuration specifications 2.x and 3.x): JSON for the setup of systems
//! without cloud-init.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use slipway_protocol::{PhoneHome, SeedCloudInit};

use crate::block::url_problem;
use crate::refusal::Refusal;

pub use service::{Service, ServiceFile, add_service};

mod judge;
mod service;
mod types;
mod validations;

/// Additions to the operator's config.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    /// The host name. A config that writes /etc/hostname keeps its own.
    pub hostname: Option<&'a str>,
    /// SSH public keys for the user `core`.
    pub ssh_keys: &'a [String],
    /// Where the system reports that it is running.
    pub phone_home: Option<&'a PhoneHome>,
    /// CA certificates in PEM to trust for the report, instead of the system's.
    pub ca: Option<&'a str>,
    /// The `instance_id` in the report.
    pub instance_id: &'a str,
}

impl<'a> Additions<'a> {
    /// What a seed adds to its own config.
    pub fn of(seed: &'a SeedCloudInit) -> Self {
        Self {
            hostname: seed.hostname.as_deref(),
            ssh_keys: &seed.ssh_keys,
            phone_home: seed.phone_home.as_ref(),
            ca: seed.ca.as_deref(),
            instance_id: &seed.instance_id,
        }
    }
}

/// Most bytes of a config. Parsed, it takes many times as much memory.
const MAX_BYTES: usize = 4 << 20;
const USER: &str = "core";
const HOSTNAME: &str = "/etc/hostname";
const CA: &str = "/etc/slipway/phone-home.pem";
/// Holds the URL, which is secret: anybody can read units.
const CURL_CONFIG: &str = "/etc/slipway/phone-home.curl";
const UNIT: &str = "slipway-phone-home.service";
/// Default number of tries, as in cloud-init.
const TRIES: u32 = 10;

/// Adds the additions to the config. Without any, the config stays the same, byte for byte.
///
/// A config is refused if it is not of specification 2 or 3, if it is of 3 and Ignition would refuse it, or if
/// something has to be added to a version before 2.1.
pub fn complete(config: &str, additions: &Additions) -> Result<String, Refusal> {
    let mut root = parse(config)?;
    let version = version(&root)?;
    if version.0 == 3 {
        judge::judge(&root)?;
        types::judge(&root)?;
        validations::judge(&root)?;
    }
    let Additions { hostname, ssh_keys, phone_home, .. } = additions;
    if hostname.is_none() && ssh_keys.is_empty() && phone_home.is_none() {
        return Ok(config.to_owned());
    }
    if version < (2, 1) {
        return Err(refusal(
            "slipway must add something to the config, but its version is before 2.1.0; use a later version",
        ));
    }
    keep_what_replaces(&mut root, version)?;
    if let Some(hostname) = hostname.filter(|_| !writes(&root, HOSTNAME)) {
        add_file(&mut root, version, HOSTNAME, 0o644, &format!("{hostname}\n"))?;
    }
    if !ssh_keys.is_empty() {
        add_keys(&mut root, ssh_keys)?;
    }
    if let Some(phone_home) = phone_home {
        add_phone_home(&mut root, version, phone_home, additions)?;
    }
    Ok(format!("{root}\n"))
}

fn parse(config: &str) -> Result<Value, Refusal> {
    if config.len() > MAX_BYTES {
        return Err(refusal(format!("the config has more than {} MiB", MAX_BYTES >> 20)));
    }
    serde_json::from_str(config).map_err(|error| Refusal {
        line: error.line().max(1),
        column: error.column().max(1),
        reason: "the Ignition config is not JSON from here on; convert a Butane config with Butane, and begin a \
                 cloud-config with \"#cloud-config\""
            .to_owned(),
    })
}

/// Major and minor version of the specification.
fn version(root: &Value) -> Result<(u32, u32), Refusal> {
    let Some(version) = root.pointer("/ignition/version").and_then(Value::as_str) else {
        return Err(refusal("the config has no ignition.version, which Ignition requires"));
    };
    let mut numbers = version.split(['.', '-']).map(str::parse);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(major @ 2..=3)), Some(Ok(minor)), Some(Ok(_))) => Ok((major, minor)),
        _ => Err(refusal(format!("ignition.version is {version:?}, but only 2.x.0 and 3.x.0 are supported"))),
    }
}

/// Changes a `replace` to a `merge`. A config that replaces this one would drop everything in it, including the
/// additions. Only the settings for fetching the other config are kept, because the rest had no effect before
/// (Ignition, internal/exec/config_fetcher.go, `RenderConfig`).
fn keep_what_replaces(root: &mut Value, version: (u32, u32)) -> Result<(), Refusal> {
    let replace = root.pointer("/ignition/config/replace").filter(|replace| !replace.is_null()).cloned();
    let Some(replace) = replace else { return Ok(()) };
    // In version 3, a `replace` without a source has no effect.
    if version.0 == 3 && replace["source"].is_null() {
        return Ok(());
    }
    if version.0 == 2 {
        let reason = "ignition.config.replace would remove what slipway adds to the config: use \
                      ignition.config.append, or specification 3";
        return Err(refusal(reason));
    }
    let mut ignition = root["ignition"].take();
    ignition["config"] = json!({ "merge": [replace] });
    *root = json!({ "ignition": ignition });
    Ok(())
}

/// Whether the config itself has an entry for a path.
fn writes(root: &Value, path: &str) -> bool {
    let entries = ["files", "links", "directories"].into_iter().filter_map(|kind| root["storage"][kind].as_array());
    entries.flatten().any(|entry| entry["path"] == path)
}

fn add_file(root: &mut Value, version: (u32, u32), path: &str, mode: u32, content: &str) -> Result<(), Refusal> {
    let source = format!("data:;base64,{}", STANDARD.encode(content));
    let mut file = json!({ "path": path, "mode": mode, "contents": { "source": source } });
    match version.0 {
        2 => file["filesystem"] = json!("root"),
        _ => file["overwrite"] = json!(true),
    }
    let files = list(object(root, "storage")?, "files")?;
    files.retain(|file| file["path"] != path);
    files.push(file);
    Ok(())
}

fn add_keys(root: &mut Value, keys: &[String]) -> Result<(), Refusal> {
    let users = list(object(root, "passwd")?, "users")?;
    let core = match users.iter().position(|user| user["name"] == USER) {
        Some(index) => index,
        None => {
            users.push(json!({ "name": USER }));
            users.len() - 1
        }
    };
    let Some(core) = users.get_mut(core).and_then(Value::as_object_mut) else { return Ok(()) };
    let known = list(core, "sshAuthorizedKeys")?;
    for key in keys {
        // Ignition rejects duplicate keys.
        if !known.iter().any(|known| known == key) {
            known.push(json!(key));
        }
    }
    Ok(())
}

/// Adds a unit that posts once. Its secrets are in separate files.
fn add_phone_home(
    root: &mut Value,
    version: (u32, u32),
    phone_home: &PhoneHome,
    additions: &Additions,
) -> Result<(), Refusal> {
    if let Some(problem) = url_problem(&phone_home.url) {
        return Err(refusal(format!("the system cannot report to the URL of phone_home: {problem}")));
    }
    let retries = phone_home.tries.unwrap_or(TRIES).saturating_sub(1);
    let mut config = format!("url = {}\n", curl_quoted(&phone_home.url));
    config.push_str(&format!("data-urlencode = {}\n", curl_quoted(&format!("instance_id={}", additions.instance_id))));
    config.push_str(&format!(
        "retry = {retries}\nretry-delay = 3\nretry-all-errors\nmax-time = 30\nfail\nsilent\nshow-error\n"
    ));
    if let Some(ca) = additions.ca {
        config.push_str(&format!("cacert = {}\n", curl_quoted(CA)));
        add_file(root, version, CA, 0o644, ca)?;
    }
    add_file(root, version, CURL_CONFIG, 0o600, &config)?;
    let units = list(object(root, "systemd")?, "units")?;
    units.retain(|unit| unit["name"] != UNIT);
    units.push(json!({ "name": UNIT, "enabled": true, "contents": unit() }));
    Ok(())
}

/// Makes the unit that reports once: after a report, the system deletes the file that another report would need. The
/// unit is not a oneshot, so that nothing waits for it.
///
/// Host keys are posted under cloud-init's names, with the content of their files (cloudinit/config/cc_phone_home.py).
/// Fedora makes the keys at the first boot through the units of sshd-keygen.target, others in sshd-keygen.service.
/// systemd replaces two dollars by one (systemd.service(5), "Command lines").
fn unit() -> String {
    let keys = "for kind in rsa ecdsa ed25519; do key=/etc/ssh/ssh_host_\"$$kind\"_key.pub; \
                [ -s \"$$key\" ] && set -- \"$$@\" --data-urlencode pub_key_\"$$kind\"@\"$$key\"; done";
    let post = format!("curl --config {CURL_CONFIG} --data-urlencode hostname=%H \"$$@\" --output /dev/null");
    format!(
        "[Unit]\nDescription=Tell slipway that the system is up\nWants=network-online.target\n\
         After=network-online.target sshd-keygen.target sshd-keygen.service\nConditionPathExists={CURL_CONFIG}\n\n\
         [Service]\nExecStart=/bin/sh -c '{keys}; {post} && rm -f {CURL_CONFIG}'\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// A quoted value in a curl config file (curl(1), "--config").
fn curl_quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// Returns the object with this name in another object, and makes it if it is missing.
fn object<'a>(root: &'a mut Value, name: &str) -> Result<&'a mut Map<String, Value>, Refusal> {
    let wrong = || refusal(format!("{name} in the config is not an object"));
    let value = root.as_object_mut().ok_or_else(wrong)?.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!({});
    }
    value.as_object_mut().ok_or_else(wrong)
}

/// Returns the list with this name in an object, and makes it if it is missing. Its items are objects or texts.
fn list<'a>(object: &'a mut Map<String, Value>, name: &str) -> Result<&'a mut Vec<Value>, Refusal> {
    let value = object.entry(name).or_insert(Value::Null);
    if value.is_null() {
        *value = json!([]);
    }
    value.as_array_mut().ok_or_else(|| refusal(format!("{name} in the config is not a list")))
}

fn refusal(reason: impl Into<String>) -> Refusal {
    Refusal { line: 1, column: 1, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA";

    fn completed(config: &str, additions: &Additions) -> Value {
        serde_json::from_str(&complete(config, additions).expect(config)).expect("JSON")
    }

    fn content(file: &Value) -> String {
        let source = file["contents"]["source"].as_str().expect("a source");
        let bytes = STANDARD.decode(source.strip_prefix("data:;base64,").expect("base64")).expect("base64");
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn without_additions_the_config_stays_byte_for_byte() {
        let config = "\n { \"ignition\" : {\"version\":\"3.4.0\"}, \"x\": 1.10, \"x\": 2 }";
        assert_eq!(complete(config, &Additions::default()).as_deref(), Ok(config));
    }

    #[test]
    fn what_is_no_config_is_refused_with_its_place() {
        let deep = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
        let large = format!("{{\"ignition\": {{\"version\": \"3.4.0\"}}}}{}", " ".repeat(MAX_BYTES));
        for (config, line, reason) in [
            ("{\n\"ignition\": }", 2, "is not JSON from here on"),
            ("{} x", 1, "is not JSON from here on"),
            (deep.as_str(), 1, "is not JSON from here on"),
            (large.as_str(), 1, "more than 4 MiB"),
            ("{}", 1, "no ignition.version"),
            ("{\"ignition\": {\"version\": 3}}", 1, "no ignition.version"),
            ("{\"ignitionVersion\": 1}", 1, "no ignition.version"),
            ("{\"ignition\": {\"version\": \"4.0.0\"}}", 1, "\"4.0.0\""),
            ("{\"ignition\": {\"version\": \"3\"}}", 1, "\"3\""),
        ] {
            let found = complete(config, &Additions::default()).expect_err("refused");
            assert!(found.line == line && found.reason.contains(reason), "{found}");
        }
        let named = Additions { hostname: Some("web1"), ..Additions::default() };
        for (config, reason) in [
            ("{\"ignition\": {\"version\": \"2.0.0\"}}", "before 2.1.0"),
            ("{\"ignition\": {\"version\": \"3.0.0\"}, \"storage\": []}", "storage in the config is not an object"),
            (
                "{\"ignition\": {\"version\": \"3.0.0\"}, \"storage\": {\"files\": 1}}",
                "files in the config is not a list",
            ),
        ] {
            let found = complete(config, &named).expect_err("refused");
            assert!(found.reason.contains(reason), "{found}");
        }
    }

    #[test]
    fn what_is_added_stands_beside_what_was_there() {
        let config = json!({
            "ignition": {"version": "3.4.0"},
            "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": [KEY]}, {"name": "me"}]},
            "storage": {"files": [{"path": "/etc/motd"}], "links": null},
            "systemd": {"units": [{"name": "a.service"}, {"name": UNIT, "enabled": false}]},
            "more": [1, {"b": null}],
        });
        let keys = [KEY.to_owned(), format!("{KEY} \u{e4}\"")];
        let phone_home = PhoneHome { url: "https://s.example/p\"\\".to_owned(), tries: Some(3) };
        let additions = Additions {
            hostname: Some("web1"),
            ssh_keys: &keys,
            phone_home: Some(&phone_home),
            ca: Some("PEM\n"),
            instance_id: "i\"1",
        };
        let found = completed(&config.to_string(), &additions);
        assert_eq!((&found["more"], &found["ignition"]), (&config["more"], &config["ignition"]));
        assert_eq!(found["passwd"]["users"], json!([{"name": "core", "sshAuthorizedKeys": keys}, {"name": "me"}]));
        let files = found["storage"]["files"].as_array().expect("files");
        let listed: Vec<_> = files.iter().map(|file| (file["path"].as_str().expect("a path"), &file["mode"])).collect();
        let (open, secret) = (json!(0o644), json!(0o600));
        let expect = [("/etc/motd", &Value::Null), (HOSTNAME, &open), (CA, &open), (CURL_CONFIG, &secret)];
        assert_eq!(listed, expect);
        assert_eq!((content(&files[1]), content(&files[2])), ("web1\n".to_owned(), "PEM\n".to_owned()));
        assert_eq!(files[1]["overwrite"], true);
        let curl = content(&files[3]);
        let expect = "url = \"https://s.example/p\\\"\\\\\"\ndata-urlencode = \"instance_id=i\\\"1\"\nretry = 2\n";
        assert!(curl.starts_with(expect) && curl.contains("cacert = "), "{curl}");
        let units = found["systemd"]["units"].as_array().expect("units");
        assert_eq!((units.len(), &units[1]["name"], &units[1]["enabled"]), (2, &json!(UNIT), &json!(true)));
        let unit = units[1]["contents"].as_str().expect("a unit");
        assert!(!unit.contains("s.example"), "the URL is not in the unit: {unit}");
        assert!(unit.contains("\nAfter=network-online.target sshd-keygen.target "), "{unit}");
        assert_eq!(completed(&found.to_string(), &additions), found, "a second time changes nothing");
    }

    #[test]
    fn a_config_that_replaces_this_one_leaves_what_is_added() {
        let other =
            json!({"source": "https://s.example/c", "verification": {"hash": format!("sha512-{}", "0".repeat(128))}});
        let config = |version: &str, replace: &Value| {
            json!({
                "ignition": {
                    "version": version,
                    "timeouts": {"httpTotal": 5},
                    "config": {"replace": replace, "merge": [{"source": "data:,x"}]},
                },
                "storage": {"files": [{"path": "/etc/hostname"}]},
            })
        };
        let named = Additions { hostname: Some("web1"), ..Additions::default() };
        let found = completed(&config("3.0.0", &other).to_string(), &named);
        let expect = json!({"version": "3.0.0", "timeouts": {"httpTotal": 5}, "config": {"merge": [other]}});
        assert_eq!(found["ignition"], expect);
        assert_eq!(content(&found["storage"]["files"][0]), "web1\n", "the file that is replaced is none");
        let found = complete(&config("2.3.0", &other).to_string(), &named).expect_err("it would be lost");
        assert!(found.reason.contains("use ignition.config.append"), "{found}");
        for as_it_is in [config("2.3.0", &Value::Null), config("3.0.0", &json!({})), config("3.0.0", &Value::Null)] {
            assert_eq!(completed(&as_it_is.to_string(), &named), as_it_is);
        }
        let untouched = config("3.0.0", &other).to_string();
        assert_eq!(complete(&untouched, &Additions::default()), Ok(untouched));
    }

    #[test]
    fn the_older_specification_has_its_own_words() {
        let config = "{\"ignition\": {\"version\": \"2.3.0\"}}";
        let found = completed(config, &Additions { hostname: Some("web1"), ..Additions::default() });
        let file = &found["storage"]["files"][0];
        assert_eq!((&file["filesystem"], &file["overwrite"]), (&json!("root"), &Value::Null));
        let own = "{\"ignition\": {\"version\": \"3.0.0\"}, \"storage\": {\"links\": [{\"path\": \"/etc/hostname\", \
                   \"target\": \"n\"}]}}";
        let found = completed(own, &Additions { hostname: Some("web1"), ..Additions::default() });
        assert_eq!(found, serde_json::from_str::<Value>(own).expect("JSON"), "the operator's own stays");
    }
}
