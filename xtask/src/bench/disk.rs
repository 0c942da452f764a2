//! The benchmark disks: files behind loop devices, either as fast as the host's disk or stalling repeatedly.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;

use super::stalls::Stalls;
use crate::host::command::{command, run_quietly, stdout};

/// A kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// As fast as this host's disk.
    Fast,
    /// The same disk with repeated stalls.
    Slow,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Fast => "fast",
            Kind::Slow => "slow",
        })
    }
}

/// A disk backed by a file. Reads and writes bypass the page cache.
pub struct LoopDevice {
    /// Path of the device node, such as `/dev/loop0`.
    pub path: String,
    file: PathBuf,
    /// Dropped before the device is detached.
    stalls: Option<Stalls>,
}

impl LoopDevice {
    /// Creates a file of `size` bytes, with blocks that are reserved but not written, and a device on it.
    pub fn new(file: &Path, size: u64, kind: Kind) -> Result<Self> {
        run_quietly(command("fallocate", ["--length", &size.to_string()]).arg(file))?;
        let mut device = Self::of(file)?;
        if kind == Kind::Slow {
            device.stalls = Some(Stalls::begin(&device.path)?);
        }
        Ok(device)
    }

    /// Creates a file of `size` bytes that occupies only what is written to it, and a device on it.
    pub fn sparse(file: &Path, size: u64) -> Result<Self> {
        run_quietly(command("truncate", ["--size", &size.to_string()]).arg(file))?;
        Self::of(file)
    }

    fn of(file: &Path) -> Result<Self> {
        let path = stdout(command("losetup", ["--find", "--show", "--direct-io=on", "--partscan"]).arg(file))?;
        Ok(Self { path: path.trim().to_owned(), file: file.to_owned(), stalls: None })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.stalls = None;
        _ = run_quietly(&mut command("losetup", ["--detach", &self.path]));
        _ = fs::remove_file(&self.file);
    }
}
