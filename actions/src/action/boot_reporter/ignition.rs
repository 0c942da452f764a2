//! The boot reporter of a system that Ignition sets up. The config has the unit and its settings. The system fetches
//! the program from the server, because it is too large for a config, and checks it against the digest in the config.
//! The unit fetches the program, not Ignition, because Ignition would make the boot wait for the server.

use std::fs::File;
use std::time::Duration;

use serde_json::Value;
use slipway_protocol::node::boot_report::{places, program_of};
use slipway_protocol::{BootReporter, BootReporterConfig, Proxy};
use slipway_user_data::ignition::{Service, ServiceFile, add_service};

use crate::action::Done;
use crate::action::seed_cloud_init::ignition::{FLATCAR, Found, MODE};
use crate::error::{Error, TargetError};
use crate::fetch::{small, verify};
use crate::machine::{Machine, Request};
use crate::target::root::target_file;
use crate::text;

const SCRIPT: &str = include_str!("fetch.sh");
/// Empty configs, in old versions of the format that these systems have read for years.
const EMPTY: &str = r#"{"ignition": {"version": "3.0.0"}}"#;
const EMPTY_FLATCAR: &str = r#"{"ignition": {"version": "2.3.0"}}"#;
/// Seconds between two tries to fetch the program.
const PAUSE: u32 = 15;
/// The server's list of boot files: path, maximum size in bytes, and how long to retry.
const MANIFEST: &str = "boot/manifest.json";
const MAX_MANIFEST: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Adds the reporter to the config on the disk, or writes one if there is none.
pub(super) fn install(found: Found, inputs: &BootReporter, machine: &dyn Machine) -> Result<Done, Error> {
    let failed = |source| target_file("reading the program for", places::VAR, source);
    let program = File::open(&machine.setup().program).and_then(verify::sha256).map_err(failed)?;
    let sha256 = program.hex();
    let service = service(&super::settings(inputs, machine), sha256)?;
    let empty = if found.path == FLATCAR.1 { EMPTY_FLATCAR } else { EMPTY };
    let config = found.root.read(found.path)?.unwrap_or_else(|| empty.to_owned());
    let config = add_service(&config, &service).map_err(|source| TargetError::ReporterInIgnition {
        path: found.path.to_owned(),
        partition: found.name.clone(),
        source,
    })?;
    found.root.write(found.path, config.as_bytes(), MODE)?;
    found.root.sync()?;
    let warnings = not_served(inputs, sha256, machine).into_iter().collect();
    let summary = format!("added the boot reporter to the Ignition config /{} in {}", found.path, found.name);
    Ok(Done::go_on(summary, warnings))
}

/// The unit and its files. Files that everybody may read contain no secrets.
fn service(config: &BootReporterConfig, sha256: &str) -> Result<Service, Error> {
    let at = |name: &str| format!("/{}/{name}", places::VAR);
    let units = places::LINKS.iter().chain([&places::UNIT]).map(|place| format!("/{place}")).collect::<Vec<_>>();
    let script = SCRIPT
        .replace("@FOLDER@", places::VAR)
        .replace("@SHA256@", sha256)
        .replace("@UNITS@", &units.join(" "))
        .replace("@TRIES@", &(config.hours * 3600 / PAUSE).to_string())
        .replace("@PAUSE@", &PAUSE.to_string());
    let json = serde_json::to_string(config).map_err(|error| target_file("writing", places::CONFIG, error.into()))?;
    let file = |name: &str, mode, content| ServiceFile { path: at(name), mode, content };
    let files = vec![
        file(places::CONFIG, 0o600, json),
        file(places::FETCH_CA, 0o644, config.ca.clone()),
        file(places::FETCH_CURL, 0o600, curl(config)),
        file(places::FETCH, 0o755, script),
    ];
    let start = format!("/bin/sh {}", at(places::FETCH));
    Ok(Service { name: places::UNIT_NAME, unit: super::unit(places::VAR, &start), files })
}

/// Returns a config file for curl (curl(1), "--config").
fn curl(config: &BootReporterConfig) -> String {
    let url = format!("{}/boot/{}", config.url.trim_end_matches('/'), program_of(std::env::consts::ARCH));
    let mut lines = vec![
        ("url", url),
        ("cacert", format!("/{}/{}", places::VAR, places::FETCH_CA)),
        ("output", format!("/{}/{}", places::VAR, places::PROGRAM)),
    ];
    if let Some(Proxy { url, except }) = &config.machine.proxy() {
        lines.extend([("proxy", url.clone()), ("noproxy", except.clone())]);
    }
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let lines = lines.iter().map(|(name, value)| format!("{name} = {}\n", quoted(value))).collect::<String>();
    format!("{lines}fail\nsilent\nshow-error\nmax-time = 300\n")
}

/// Returns why the system will not find its program on the server, if that is known now.
fn not_served(inputs: &BootReporter, sha256: &str, machine: &dyn Machine) -> Option<String> {
    let url = format!("{}/{MANIFEST}", inputs.url.trim_end_matches('/'));
    let request = Request::new(&url, Some(&inputs.ca));
    let program = program_of(std::env::consts::ARCH);
    let must = "the system must fetch the reporter from the server";
    let manifest = match small::fetch(&request, MAX_MANIFEST, PATIENCE, machine, &mut |_| {}) {
        Ok(small) => small.bytes,
        Err(error) => {
            return Some(format!("{must}, but it is unknown whether the server has it: {}", text::chain(&error)));
        }
    };
    let reason = match served(&manifest, &program) {
        Some(served) if served == sha256 => return None,
        Some(_) => format!("the {program} in its boot files is of another version than this slipway"),
        None => format!("its boot files have no {program}"),
    };
    Some(format!(
        "{must}, which does not have it: {reason}; make the boot files with `slipway-server media build` of this \
         version"
    ))
}

/// Returns the digest of a boot file from the manifest of boot files (the server's API, `MediaManifest`).
fn served(manifest: &[u8], path: &str) -> Option<String> {
    let manifest: Value = serde_json::from_slice(manifest).ok()?;
    let asset = manifest.get("assets")?.as_array()?.iter().find(|asset| asset["path"] == path)?;
    Some(asset["sha256"].as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use slipway_protocol::MachineSettings;

    use super::*;

    #[test]
    fn the_digest_of_a_boot_file_is_in_the_manifest() {
        let manifest =
            r#"{"id": "1", "assets": [{"path": "a", "sha256": "00"}, {"path": "x86_64/slipway", "sha256": "0a"}]}"#;
        for (manifest, path, expect) in [
            (manifest, "x86_64/slipway", Some("0a")),
            (manifest, "aarch64/slipway", None),
            ("{}", "a", None),
            ("<html>", "a", None),
        ] {
            assert_eq!(served(manifest.as_bytes(), path).as_deref(), expect, "{manifest}");
        }
    }

    #[test]
    fn what_curl_is_told_cannot_be_broken_out_of() {
        let config = BootReporterConfig {
            url: "https://s.example/".to_owned(),
            token: "T".to_owned().into(),
            ca: String::new(),
            machine: MachineSettings {
                proxy: Some("http://p\"\\".to_owned()),
                no_proxy: Some("a,b".to_owned()),
                ..MachineSettings::default()
            },
            hours: 1,
            every: 600,
            agent: None,
        };
        let told = curl(&config);
        assert!(told.contains("\nproxy = \"http://p\\\"\\\\\"\nnoproxy = \"a,b\"\n"), "{told}");
        assert!(told.starts_with("url = \"https://s.example/boot/"), "{told}");
    }
}
