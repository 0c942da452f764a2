//! Debian's cloud-init, as it comes in its package. It is unpacked and not installed: installed, it would take hold of the
//! host at its next boot.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// What cloud-init makes of each user-data: `config`, `schema`, `parts`, and `error` if it failed.
pub fn process(user_data: &[&[u8]]) -> Vec<Value> {
    let encoded: Vec<String> = user_data.iter().map(|bytes| STANDARD.encode(bytes)).collect();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cloud_init/process.py");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(program).env("PYTHONPATH", packages()).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(serde_json::to_string(&encoded).expect("JSON").as_bytes()).expect("python3 reads");
    drop(stdin);
    let output = child.wait_with_output().expect("python3 ends");
    assert!(output.status.success(), "process.py: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The folder with cloud-init and the Python packages it needs.
fn packages() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cloud-init");
    let found = folder.join("root/usr/lib/python3/dist-packages");
    let stamp = folder.join("complete");
    if !stamp.exists() {
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let omit = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"];
        let omit = omit.map(|relation| format!("--no-{relation}"));
        let listed = run(Command::new("apt-cache").args(["depends", "--recurse"]).args(omit).arg("cloud-init"));
        let mut names: Vec<&str> =
            listed.lines().filter(|name| name.starts_with("python3-") || *name == "cloud-init").collect();
        names.sort_unstable();
        names.dedup();
        run(Command::new("apt-get").args(["--quiet", "download"]).args(names).current_dir(&folder));
        for file in fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if file.extension().is_some_and(|extension| extension == "deb") {
                run(Command::new("dpkg-deb").arg("--extract").arg(file).arg(folder.join("root")));
            }
        }
        fs::write(stamp, "").expect("a file");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}: {said} (are the package lists there? apt-get update)",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}
