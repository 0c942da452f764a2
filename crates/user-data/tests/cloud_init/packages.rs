//! Debian's cloud-init from its package. It is unpacked but not installed, because an installed cloud-init would
//! configure the host at its next boot.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with cloud-init and the Python packages it needs.
pub fn packages() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cloud-init");
    let found = folder.join("root/usr/lib/python3/dist-packages");
    let stamp = folder.join("complete");
    // Several test programs use this folder.
    let lock = File::create(folder.with_extension("lock")).expect("a file");
    lock.lock().expect("a lock");
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
