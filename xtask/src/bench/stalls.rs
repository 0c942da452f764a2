//! Makes a disk stall: the kernel throttles the requests of a control group's processes to a device (blk-throttle;
//! kernel documentation, admin-guide/cgroup-v1/blkio-controller and admin-guide/cgroup-v2, "IO").

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::files;
use crate::lab::power_cut::Dice;

/// Shortest and longest time for which the disk works, in milliseconds.
const WORKS: [u64; 2] = [10, 60];
/// Shortest and longest time for which the disk stalls, in milliseconds.
const STALLS: [u64; 2] = [10, 80];
/// Bytes per second during a stall. The kernel does not accept 0; this rate lets through one or two requests.
const STALLED: u64 = 1 << 20;
/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Whether this host can throttle a disk.
pub fn are_possible() -> bool {
    let cgroups = Path::new(CGROUPS);
    has_blkio(cgroups) || has_io(cgroups)
}

/// Whether cgroup version 1 has the controller blkio.
fn has_blkio(cgroups: &Path) -> bool {
    cgroups.join("blkio/blkio.throttle.write_bps_device").exists()
}

/// Whether cgroup version 2 has the controller io.
fn has_io(cgroups: &Path) -> bool {
    let controllers = fs::read_to_string(cgroups.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|controller| controller == "io")
}

/// Makes a device stall until dropped. The pattern of stalls is the same each time, whoever writes to the device.
pub struct Stalls {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// Starts the stalls of a device, beginning with a stall. `device` is a path such as `/dev/loop0`.
    pub fn begin(device: &str) -> Result<Self> {
        let throttle = Throttle::new(device, Path::new(CGROUPS))?;
        throttle.limit(Some(STALLED))?;
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let mut dice = Dice::new(0, 0);
            let mut time =
                |[least, most]: [u64; 2]| Duration::from_millis(least + dice.below((most - least) as usize) as u64);
            let (mut next, mut is_stalled) = (Instant::now(), true);
            loop {
                // If the thread wakes late, the next period is shorter, so that all runs stall for the same time in
                // total.
                next += time(if is_stalled { STALLS } else { WORKS });
                let ended = stopped.recv_timeout(next.saturating_duration_since(Instant::now()));
                is_stalled = !is_stalled && ended == Err(RecvTimeoutError::Timeout);
                _ = throttle.limit(is_stalled.then_some(STALLED));
                if ended != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        Ok(Self { stop: Some(stop), thread: Some(thread::spawn(work)) })
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.stop = None;
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Limits of one device.
struct Throttle {
    /// Major and minor number, such as `7:0`.
    device: String,
    files: Vec<PathBuf>,
    is_v2: bool,
}

impl Throttle {
    /// Finds the files that throttle the device for this process and its children. In version 2, moves the process to
    /// its own group for that, because the root group has no limits.
    fn new(device: &str, cgroups: &Path) -> Result<Self> {
        let name = device.trim_start_matches("/dev/");
        let numbers = format!("/sys/block/{name}/dev");
        let device = fs::read_to_string(&numbers).with_context(|| format!("reading {numbers}"))?.trim().to_owned();
        let own = fs::read_to_string("/proc/self/cgroup").context("reading /proc/self/cgroup")?;
        let v1 = cgroups.join("blkio");
        if has_blkio(cgroups) {
            // The kernel writes back cached pages on behalf of the root group.
            let mut groups = vec![v1.clone()];
            groups.extend(blkio_group(&own).map(|group| v1.join(group)).filter(|group| *group != v1 && group.exists()));
            let files = ["read", "write"].map(|what| format!("blkio.throttle.{what}_bps_device"));
            let files = groups.iter().flat_map(|group| files.each_ref().map(|file| group.join(file))).collect();
            return Ok(Self { device, files, is_v2: false });
        }
        if !has_io(cgroups) {
            bail!(
                "making a slow disk: {} has neither the controller blkio (version 1) nor io (version 2); \
                 leave the slow disk out with --disk fast",
                cgroups.display()
            );
        }
        let group = cgroups.join("slipway-bench");
        put(&cgroups.join("cgroup.subtree_control"), "+io")?;
        files::create_dir(&group)?;
        put(&group.join("cgroup.procs"), &std::process::id().to_string())?;
        Ok(Self { device, files: vec![group.join("io.max")], is_v2: true })
    }

    /// Limits reads and writes to this many bytes per second each. `None` removes the limit.
    fn limit(&self, rate: Option<u64>) -> Result<()> {
        let line = match (self.is_v2, rate) {
            (false, rate) => format!("{} {}", self.device, rate.unwrap_or(0)),
            (true, Some(rate)) => format!("{} rbps={rate} wbps={rate}", self.device),
            (true, None) => format!("{} rbps=max wbps=max", self.device),
        };
        self.files.iter().try_for_each(|file| put(file, &line))
    }
}

/// Finds the group of a process in the hierarchy of blkio, relative to its root. `own` is /proc/PID/cgroup
/// (cgroups(7)).
fn blkio_group(own: &str) -> Option<&str> {
    own.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|controller| controller == "blkio").then(|| group.trim_start_matches('/'))
    })
}

/// Writes to an existing file with a single write call.
fn put(file: &Path, text: &str) -> Result<()> {
    let written = OpenOptions::new().write(true).open(file).and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("making a slow disk: writing {text:?} to {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::disk::{Kind, LoopDevice};
    use crate::host::packages;

    #[test]
    fn a_slow_disk_is_held_back_again_and_again_until_it_is_gone() {
        if !packages::is_root().unwrap() || !are_possible() {
            eprintln!("not checked: a slow disk needs root and a control group that can hold it back");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = LoopDevice::new(&folder.path().join("disk"), 1 << 20, Kind::Slow).unwrap();
        let throttle = Throttle::new(&disk.path, Path::new(CGROUPS)).unwrap();
        let (start, rate) = (format!("{} ", throttle.device), STALLED.to_string());
        let is_held_back = || {
            let limits = fs::read_to_string(&throttle.files[0]).unwrap();
            limits.lines().any(|line| line.starts_with(&start) && line.contains(&rate))
        };
        for expect in [true, false, true, false] {
            let since = Instant::now();
            while is_held_back() != expect {
                assert!(since.elapsed() < Duration::from_secs(10), "held back: {}", !expect);
                thread::sleep(Duration::from_millis(1));
            }
        }
        drop(disk);
        assert!(!is_held_back());
    }

    #[test]
    fn the_group_of_blkio_is_found_among_others() {
        assert_eq!(blkio_group("9:cpu,cpuacct:/a\n7:blkio:/user.slice\n0::/b\n"), Some("user.slice"));
        assert_eq!(blkio_group("7:net_cls,blkio:/\n"), Some(""));
        assert_eq!(blkio_group("0::/user.slice\n"), None);
    }
}
