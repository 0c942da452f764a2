//! What `cargo xtask cache` lists and removes.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::Result;

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn cache(home: &Path, arguments: &[&str]) -> Result<String> {
    let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = xtask.arg("cache").args(arguments).env("XDG_CACHE_HOME", home).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn what_was_not_used_for_days_is_removed_and_the_rest_stays() -> Result<()> {
    let home = tempfile::tempdir()?;
    let root = home.path().join("slipway");
    let (old, new) = (root.join("binary").join(KEY), root.join("binary").join(KEY.replace('0', "1")));
    let (corpus, building) = (root.join("fuzz-corpus"), root.join("kernel").join(KEY));
    for folder in [&old, &new, &corpus, &building] {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("file"), [1; 100_000])?;
    }
    let lock = File::create(building.with_extension("lock"))?;
    lock.lock()?;
    for folder in [&old, &corpus, &building] {
        File::open(folder)?.set_modified(SystemTime::now() - Duration::from_secs(20 * 24 * 60 * 60))?;
    }

    let listed = cache(home.path(), &[])?;
    let line = |name: &str| listed.lines().find(|line| line.contains(name)).unwrap_or_default().to_owned();
    assert!(line(&format!("binary/{KEY}")).contains(" KiB  20 days ago"), "{listed}");
    assert!(line(&KEY.replace('0', "1")).contains(" now "), "{listed}");
    assert!(!listed.contains(".lock"), "{listed}");

    let removed = cache(home.path(), &["--remove-unused"])?;
    assert!(!old.exists() && new.exists(), "{removed}");
    assert!(corpus.exists(), "what fuzzing found is gone: {removed}");
    assert!(building.exists(), "what another process builds is gone: {removed}");
    cache(home.path(), &["--remove-unused", "0"])?;
    assert!(!new.exists() && corpus.exists());
    Ok(())
}
