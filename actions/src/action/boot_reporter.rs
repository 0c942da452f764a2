//! `boot-reporter`: installs this program in the installed system, with a systemd unit that runs it to report the
//! system's boots. It removes itself when the system runs.

use std::fs::File;
use std::io;

use rustix::fs::{StatVfsMountFlags, fstatvfs};
use rustix::io::Errno;
use slipway_protocol::boot_report::places;
use slipway_protocol::{BootReporter, BootReporterConfig};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::Access;
use crate::error::{Error, TargetError};
use crate::machine::Machine;
use crate::report::Tell;
use crate::target::root::{Attributes, TargetRoot, target_file};
use crate::target::{self, Target};

const UNIT: &str = include_str!("boot_reporter/slipway-report.service");
/// Target of the symbolic link, as `systemctl enable` makes it.
const LINK_TO: &str = "/etc/systemd/system/slipway-report.service";
const SYSTEMD: &[&str] = &["usr/lib/systemd/systemd", "lib/systemd/systemd"];
const SELINUX: &str = "etc/selinux/config";
/// SELinux types that the policies of Fedora and Red Hat assign to these paths. With an enforced policy, a file without
/// its type may not be executed or read.
const LABELS: &[(&str, &str)] = &[
    ("usr/local/lib/slipway", "lib_t"),
    (places::PROGRAM, "bin_t"),
    (places::CONFIG, "lib_t"),
    (places::UNIT, "systemd_unit_file_t"),
    (places::LINK, "systemd_unit_file_t"),
];

pub(crate) fn run(inputs: &BootReporter, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let Target { root, name: partition, warnings, .. } = target::find_root(&disk, report)?;
    if let Some(reason) = unfit(&root)? {
        return Err(TargetError::BootReporter { partition, reason }.into());
    }
    machine.cancel().check()?;
    let done = install(inputs, machine, &root);
    match done {
        Err(Error::Target(TargetError::File { source, .. })) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Err(TargetError::BootReporter { partition, reason: READ_ONLY }.into())
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Done::go_on(format!("installed the boot reporter in {partition}"), warnings)),
    }
}

const READ_ONLY: &str = "its root file system is read-only; include the reporter in the image, or leave the step out";

/// Why the reporter cannot work in a system; `None` if it can.
fn unfit(root: &TargetRoot) -> Result<Option<&'static str>, Error> {
    let look = |errno: Errno| target_file("looking at", "", errno.into());
    let flags = root.directory().and_then(fstatvfs).map_err(look)?.f_flag;
    if flags.contains(StatVfsMountFlags::RDONLY) {
        return Ok(Some(READ_ONLY));
    }
    let has_systemd = SYSTEMD.iter().any(|path| root.exists(path));
    Ok((!has_systemd).then_some("it does not use systemd, and only systemd can start the reporter; leave the step out"))
}

/// Installs all files. The link that enables the unit at boot comes last.
fn install(inputs: &BootReporter, machine: &dyn Machine, root: &TargetRoot) -> Result<(), Error> {
    put_program(machine, root)?;
    let config = BootReporterConfig {
        url: inputs.url.clone(),
        token: inputs.token.clone(),
        ca: inputs.ca.clone(),
        proxy: machine.setup().proxy.clone(),
        hours: inputs.hours,
        every: inputs.every,
    };
    let config = serde_json::to_vec(&config).map_err(|error| target_file("writing", places::CONFIG, error.into()))?;
    root.write(places::CONFIG, &config, 0o600)?;
    root.write(places::UNIT, UNIT.as_bytes(), 0o644)?;
    root.link(places::LINK, LINK_TO)?;
    if root.read(SELINUX)?.is_some_and(|config| has_labels(&config)) {
        for (path, kind) in LABELS {
            root.label(path, &format!("system_u:object_r:{kind}:s0"))?;
        }
    }
    root.sync()
}

fn put_program(machine: &dyn Machine, root: &TargetRoot) -> Result<(), Error> {
    let failed = |source| target_file("writing", places::PROGRAM, source);
    let mut program = File::open(&machine.setup().program).map_err(failed)?;
    let new = root.begin(places::PROGRAM, 0o755)?;
    io::copy(&mut program, &mut new.file()).map_err(failed)?;
    new.finish(Some(Attributes { uid: 0, gid: 0, mode: 0o755 })).map_err(failed)
}

/// Whether a system with this SELinux configuration uses file labels (selinux(8)).
fn has_labels(config: &str) -> bool {
    let mode = config.lines().filter_map(|line| line.trim().strip_prefix("SELINUX=")).next_back();
    mode.is_some_and(|mode| matches!(mode.trim(), "enforcing" | "permissive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_matter_where_selinux_is_on() {
        for (config, expect) in [
            ("", false),
            ("# SELINUX=enforcing\nSELINUX=disabled\nSELINUXTYPE=targeted\n", false),
            ("SELINUX=enforcing\nSELINUXTYPE=targeted\n", true),
            ("SELINUX=permissive", true),
        ] {
            assert_eq!(has_labels(config), expect, "{config}");
        }
    }

    #[test]
    fn the_unit_starts_what_is_put_there_and_may_take_it_away() {
        assert!(UNIT.contains(&format!("ExecStart=-/{} report\n", places::PROGRAM)));
        assert_eq!(LINK_TO.strip_prefix('/'), Some(places::UNIT));
        for place in [places::PROGRAM, places::CONFIG, places::UNIT, places::LINK] {
            let is_writable = |folder: &str| format!("/{place}").starts_with(&format!("{folder}/"));
            let folders = UNIT.lines().find_map(|line| line.strip_prefix("ReadWritePaths=")).unwrap();
            assert!(folders.split(' ').any(is_writable), "{place}");
        }
    }
}
