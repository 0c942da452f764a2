//! `slipway disks`: what it lists, how hints change that, and its exit status.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};

/// Runs `slipway disks`. Returns exit status, standard output and standard error.
fn disks(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_slipway")).arg("disks").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_disk_that_hints_lead_to_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("disk");
    File::create(&path).unwrap().set_len(40 << 20).unwrap();
    let (status, listed, _) = disks(&["--json", "--hint", &format!("device={}", path.display())]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let chosen: Vec<&Value> = listed.as_array().unwrap().iter().filter(|row| row["chosen"] == true).collect();
    assert_eq!((status, chosen.len()), (Some(0), 1), "{listed}");
    assert_eq!((&chosen[0]["disk"]["path"], &chosen[0]["disk"]["size"]), (&json!(path), &json!(40 << 20)));
}

#[test]
fn hints_that_lead_to_no_disk_are_an_error_that_lists_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("disk");
    File::create(&path).unwrap().set_len(40 << 20).unwrap();
    let (path, device) = (path.display().to_string(), format!("device={}", path.display()));
    let (status, table, error) = disks(&["--hint", &device, "--hint", "serial=S1"]);
    let row = table.lines().find(|row| row.starts_with(&path)).unwrap();
    assert!(table.starts_with("PATH ") && row.contains(" no: "), "{table}");
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains(&path) && error.contains("S1"), "{error}");

    let (status, table, error) = disks(&["--hint", "device=/dev/none"]);
    assert_eq!((status, table.as_str()), (Some(1), ""));
    assert!(error.contains("looking for /dev/none"), "{error}");
}

#[test]
fn without_hints_there_is_nothing_to_fail() {
    let (status, table, _) = disks(&[]);
    assert_eq!(status, Some(0));
    assert!(table.starts_with("PATH ") && !table.contains("MATCH"), "{table}");
}
