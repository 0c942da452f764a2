//! Programs that a test runs beside its machines, with their output in files of one folder. They end on drop.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::bench::LIMIT;

/// A folder, and running programs.
pub struct Programs {
    folder: TempDir,
    children: Vec<Child>,
}

impl Programs {
    /// Makes an empty folder. No program runs yet.
    pub fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()?, children: Vec::new() })
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a program, whose output goes to the file `log`.
    pub fn start(&mut self, mut program: Command, log: &str) -> Result<()> {
        let log = File::create(self.path(log))?;
        let started = program.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        self.children.push(started.with_context(|| format!("starting {:?}", program.get_program()))?);
        Ok(())
    }

    /// Reads a file of the folder.
    pub fn read(&self, name: &str) -> Result<String> {
        std::fs::read_to_string(self.path(name)).with_context(|| format!("reading {name}"))
    }

    /// Waits until a file of the folder has this text.
    pub fn wait_for(&self, name: &str, wanted: &str) -> Result<()> {
        let start = Instant::now();
        loop {
            let said = self.read(name)?;
            if said.contains(wanted) {
                return Ok(());
            }
            ensure!(start.elapsed() <= LIMIT, "waiting for {wanted:?}:\n{said}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Both calls fail only if the program has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
