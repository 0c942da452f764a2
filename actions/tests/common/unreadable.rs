//! A disk with one unreadable sector. QEMU's storage daemon exports it as a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::disk_image::{can_mount, run};

/// The file that stands for the disk. It exists until this is dropped.
pub struct Unreadable {
    pub path: PathBuf,
    pid: PathBuf,
}

impl Unreadable {
    /// A disk that stores its content in another file. The sector becomes unreadable after this number of flushes.
    /// None, with a message, where that is not possible here.
    pub fn new(backing: &Path, sector: usize, flushes: usize) -> Option<Self> {
        let (path, pid) = (backing.with_extension("shown"), backing.with_extension("pid"));
        File::create(&path).unwrap();
        let mut faulty = format!(
            "driver=blkdebug,node-name=faulty,image=file,inject-error.0.iotype=read,inject-error.0.errno=5,\
             inject-error.0.sector={sector},"
        );
        // One state for each flush. The rule takes effect in the last state.
        faulty.push_str(&match flushes {
            0 => "inject-error.0.event=none".to_owned(),
            _ => format!("inject-error.0.event=flush_to_disk,inject-error.0.state={flushes}"),
        });
        for state in 1..=flushes {
            let (rule, next) = (format!("set-state.{}", state - 1), state + 1);
            faulty.push_str(&format!(",{rule}.event=flush_to_disk,{rule}.state={state},{rule}.new_state={next}"));
        }
        let mut daemon = Command::new("qemu-storage-daemon");
        // The daemon detaches once the file can be used.
        daemon.arg("--daemonize").arg("--pidfile").arg(&pid);
        daemon.arg("--blockdev").arg(format!("driver=file,node-name=file,filename={}", backing.display()));
        daemon.args(["--blockdev", &faulty, "--blockdev", "driver=raw,node-name=disk,file=faulty"]);
        let export = format!("type=fuse,id=disk,node-name=disk,writable=on,mountpoint={}", path.display());
        let is_shown = can_mount() && daemon.args(["--export", &export]).status().is_ok_and(|status| status.success());
        if !is_shown {
            eprintln!("not checked: qemu-storage-daemon cannot show a disk as a file here");
        }
        is_shown.then_some(Self { path, pid })
    }
}

impl Drop for Unreadable {
    fn drop(&mut self) {
        run(Command::new("umount").arg("--lazy").arg(&self.path));
        run(Command::new("kill").arg(fs::read_to_string(&self.pid).unwrap().trim()));
    }
}
