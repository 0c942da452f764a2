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
    serde_json::from_slice(&ask("process.py", arguments, &serde_json::to_string(&encoded).expect("JSON")))
        .expect("JSON")
}

/// cloud-init's result for each network configuration: see network.py.
pub fn network(configs: &[&str]) -> Vec<String> {
    serde_json::from_slice(&ask("network.py", &[], &serde_json::to_string(configs).expect("JSON"))).expect("JSON")
}

/// Runs a program of this folder with an input. Returns its output.
fn ask(program: &str, arguments: &[&str], input: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cloud_init").join(program);
    let mut python = Command::new("/usr/bin/python3");
    python.arg(path).args(arguments).env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input.as_bytes()).expect("python3 reads");
    drop(stdin);
    let output = child.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "{program}: {}", output.status);
    output.stdout
}
