//! ext4, by e2fsprogs' own mke2fs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use slipway_protocol::MakeFileSystem;

use crate::open_disk::OpenDisk;
use crate::partitions::Partition;

/// Where the program is, in the boot image and on a running system.
const PROGRAMS: &[&str] = &["/usr/sbin/mke2fs", "/sbin/mke2fs"];
/// mke2fs counts in these when it is told so, whatever the blocks it makes.
const KIB: u64 = 1024;

/// Path of mke2fs, or why ext4 cannot be made.
pub(super) fn program() -> Result<PathBuf, String> {
    let found = PROGRAMS.iter().map(Path::new).find(|path| path.exists());
    found.map(Path::to_owned).ok_or_else(|| format!("there is no {}; install e2fsprogs", PROGRAMS[0]))
}

/// Makes ext4. The disk is given up before, because the program wants it for itself.
pub(super) fn make(
    program: &Path,
    disk: OpenDisk,
    partition: &Partition,
    inputs: &MakeFileSystem,
) -> Result<(), String> {
    let path = disk.path().to_owned();
    drop(disk);
    let mut command = Command::new(program);
    command.args(["-q", "-F", "-t", "ext4", "-E", &format!("offset={}", partition.bytes.start)]);
    for (option, value) in [("-L", &inputs.label), ("-U", &inputs.uuid)] {
        command.args(value.iter().flat_map(|value| [option, value.as_str()]));
    }
    command.arg("--").arg(&path).arg(format!("{}k", (partition.bytes.end - partition.bytes.start) / KIB));
    let output = command.env_clear().stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("starting {}: {error}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(format!("{} ended with {}: {}", program.display(), output.status, said.join("; ")))
}
