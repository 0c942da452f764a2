//! `boot-reporter`: installs this program in the installed system, with a systemd unit that runs it to report the
//! system's boots. The reporter removes itself from the running system when it is done.

mod home;
mod ignition;
mod ostree;

use std::fs::File;
use std::io;

use slipway_protocol::node::boot_report::places;
use slipway_protocol::{BootReporter, BootReporterConfig, MachineSettings};

use crate::action::Done;
use crate::disk::choose;
use crate::disk::open::Access;
use crate::error::{Error, TargetError};
use crate::machine::Machine;
use crate::report::Tell;
use crate::target::layout::Folder;
use crate::target::root::{Attributes, TargetRoot, target_file};
use crate::text;
use home::{Files, Home};

const UNIT: &str = include_str!("boot_reporter/slipway-report.service");
/// Target of the symbolic links that enable the unit, as `systemctl enable` makes them.
const LINK_TO: &str = "/etc/systemd/system/slipway-report.service";
const SELINUX: &str = "etc/selinux/config";
const READ_ONLY: &str = "its root file system is read-only; include the reporter in the image, or leave the step out";
const NO_SYSTEMD: &str = "it does not use systemd, and only systemd can start the reporter; leave the step out";

pub(crate) fn run(inputs: &BootReporter, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    match install(inputs, machine, report) {
        Err(error) if inputs.optional && !matches!(error, Error::Cancelled | Error::Inputs { .. }) => {
            let summary = "the boot reporter could not be installed, so the system will not report its boots";
            Ok(Done::left_out(summary, vec![text::chain(&error)]))
        }
        result => result,
    }
}

fn install(inputs: &BootReporter, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let home = home::find(&disk, report)?;
    machine.cancel().check()?;
    let Files { etc, store, folder, name, warnings, _mount } = match home {
        Home::Files(files) => files,
        Home::Ignition(found) => return ignition::install(found, inputs, machine),
    };
    match write(inputs, machine, &etc, &store, folder) {
        Err(Error::Target(TargetError::File { source, .. })) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Err(TargetError::BootReporter { partition: name, reason: READ_ONLY.to_owned() }.into())
        }
        Err(error) => Err(error),
        Ok(()) => Ok(Done::go_on(format!("installed the boot reporter in {name}"), warnings)),
    }
}

/// Writes all files. The links that enable the unit at boot come last.
fn write(
    inputs: &BootReporter,
    machine: &dyn Machine,
    etc: &TargetRoot,
    Folder { root: store, path, .. }: &Folder,
    folder: &str,
) -> Result<(), Error> {
    let at = |name: &str| format!("{path}/{name}");
    let (program, config) = (at(places::PROGRAM), at(places::CONFIG));
    put_program(machine, store, &program)?;
    let settings = serde_json::to_vec(&settings(inputs, machine));
    store.write(&config, &settings.map_err(|error| target_file("writing", &config, error.into()))?, 0o600)?;
    store.sync()?;
    let start = format!("/{folder}/{} report", places::PROGRAM);
    etc.write(places::UNIT, unit(folder, &start).as_bytes(), 0o644)?;
    places::LINKS.iter().try_for_each(|link| etc.link(link, LINK_TO))?;
    if etc.read(SELINUX)?.is_some_and(|config| has_labels(&config)) {
        let label = |root: &TargetRoot, path: &str, kind| root.label(path, &format!("system_u:object_r:{kind}:s0"));
        // Under an enforced SELinux policy, a file without the right type may not be executed or read. The policies of
        // Fedora and Red Hat assign these types to the paths, except for a program in /var.
        label(store, &program, "bin_t")?;
        if folder == places::USR_LOCAL {
            label(store, path, "lib_t")?;
            label(store, &config, "lib_t")?;
        }
        for path in places::LINKS.iter().chain([&places::UNIT]) {
            label(etc, path, "systemd_unit_file_t")?;
        }
    }
    store.sync()?;
    etc.sync()
}

/// Returns the text of the unit. `folder` is the program's folder, and `start` the command line.
fn unit(folder: &str, start: &str) -> String {
    let parent = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
    UNIT.replace("@START@", start).replace("@PARENT@", &format!("/{parent}"))
}

fn settings(inputs: &BootReporter, machine: &dyn Machine) -> BootReporterConfig {
    let setup = machine.setup();
    let MachineSettings { proxy, no_proxy, .. } = MachineSettings::with_proxy(setup.proxy.clone());
    BootReporterConfig {
        url: inputs.url.clone(),
        token: inputs.token.clone(),
        ca: inputs.ca.clone(),
        machine: MachineSettings { token: None, proxy, no_proxy, ..setup.settings.clone() },
        hours: inputs.hours,
        every: inputs.every,
        agent: inputs.agent.clone(),
    }
}

fn put_program(machine: &dyn Machine, root: &TargetRoot, path: &str) -> Result<(), Error> {
    let failed = |source| target_file("writing", path, source);
    let mut program = File::open(&machine.setup().program).map_err(failed)?;
    let new = root.begin(path, 0o755)?;
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
        assert_eq!(LINK_TO.strip_prefix('/'), Some(places::UNIT));
        for folder in places::FOLDERS {
            let unit = unit(folder, &format!("/{folder}/slipway report"));
            assert!(
                unit.contains(&format!("ExecStart=-/{folder}/slipway report\n")) && !unit.contains("@PARENT@"),
                "{unit}"
            );
            let writable = unit.lines().find_map(|line| line.strip_prefix("ReadWritePaths=")).unwrap();
            for place in [folder, places::UNIT] {
                let parents = writable.split(' ').map(|parent| format!("{parent}/"));
                assert!(parents.into_iter().any(|parent| format!("/{place}").starts_with(&parent)), "{place}");
            }
        }
        let wanted = UNIT.lines().find_map(|line| line.strip_prefix("WantedBy=")).unwrap();
        let links: Vec<String> = wanted
            .split(' ')
            .map(|target| format!("etc/systemd/system/{target}.wants/slipway-report.service"))
            .collect();
        assert_eq!(links, places::LINKS, "what a preset enables is what the action does");
    }
}
