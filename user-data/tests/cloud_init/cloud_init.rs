//! What Debian's cloud-init makes of user-data.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::packages::packages;

/// cloud-init's result for each user-data: `config`, `schema`, `parts`, and `error` if it failed.
pub fn process(user_data: &[&[u8]]) -> Vec<Value> {
    run(user_data, &[])
}

/// [`process`] without the schema check.
pub fn process_unchecked(user_data: &[&[u8]]) -> Vec<Value> {
    run(user_data, &["unchecked"])
}

fn run(user_data: &[&[u8]], arguments: &[&str]) -> Vec<Value> {
    let encoded: Vec<String> = user_data.iter().map(|bytes| STANDARD.encode(bytes)).collect();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cloud_init/process.py");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(program).args(arguments).env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(serde_json::to_string(&encoded).expect("JSON").as_bytes()).expect("python3 reads");
    drop(stdin);
    let output = child.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "process.py: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}
