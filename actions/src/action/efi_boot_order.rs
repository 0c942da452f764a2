//! `efi-boot-order`: makes the firmware start the installed system, by writing EFI variables directly.
//!
//! The machine must still start if the firmware has no room for variables, refuses them or forgets them. So the boot
//! loader is installed at the removable path before a variable is changed.

use std::fs;

use slipway_formats::efi::device_path::{HardDrive, Signature, guid_bytes};
use slipway_formats::efi::load_option::{LoadOption, LoaderPath};
use slipway_formats::efi::order::{self, Name};
use slipway_protocol::workflow::partition_types;
use slipway_protocol::{BootPosition, EfiBootOrder};

use crate::action::Done;
use crate::disk::open::{Access, OpenDisk};
use crate::disk::partitions::{self, Partition};
use crate::disk::{choose, previous_install};
use crate::error::{BootError, Error};
use crate::machine::{Candidate, Machine};
use crate::report::{Report, Tell};
use crate::target::efi::variables::{Variables, entry, global};
use crate::target::efi::{fallback, loader};
use crate::target::mount::{self, SearchLog};
use crate::target::os_release::OsRelease;
use crate::target::root::TargetRoot;
use crate::{target, text};

/// Folder of the boot loaders. Each vendor has a folder in it, apart from the removable path.
const PROGRAMS: &str = "EFI";

/// The program to start.
struct Found {
    esp: TargetRoot,
    partition: Partition,
    /// Path from the root of the partition, with slashes.
    path: String,
}

pub(crate) fn run(inputs: &EfiBootOrder, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    match change(inputs, machine, report) {
        Err(Error::Boot(BootError::NotUefi { .. })) if inputs.optional => {
            Ok(Done::left_out("skipped: this machine was not started by UEFI", Vec::new()))
        }
        Err(error) if inputs.optional && !matches!(error, Error::Cancelled | Error::Inputs { .. }) => {
            Ok(Done::left_out("the boot order could not be set", vec![text::chain(&error)]))
        }
        result => result,
    }
}

fn change(inputs: &EfiBootOrder, machine: &dyn Machine, report: Tell) -> Result<Done, Error> {
    let efi = machine.setup().efi.clone();
    if !efi.exists() {
        return Err(BootError::NotUefi { folder: efi.display().to_string() }.into());
    }
    let width = fs::read_to_string(efi.join("fw_platform_size")).unwrap_or_default();
    let architecture = loader::architecture(&width);
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let system = os_release(&disk);
    let found = find(&disk, inputs.loader.as_deref(), architecture, &system)?;
    machine.cancel().check()?;
    report(Report::Note(format!("the boot loader is /{} of {}", found.path, found.partition.describe(&disk))));

    let mut warnings = Vec::new();
    let removable = loader::removable_path(architecture);
    match fallback::install(&found.esp, &found.path, architecture).and_then(|new| found.esp.sync().map(|()| new)) {
        Ok(Some(new)) => {
            report(Report::Note(format!("also wrote the boot loader to /{new} for firmware that forgets boot entries")))
        }
        Ok(None) => {}
        Err(error) => warnings.push(format!(
            "could not write the boot loader to /{removable} too, for firmware that forgets boot entries: {}",
            text::chain(&error)
        )),
    }
    let has_fallback = found.esp.has(&removable);
    let changed = Variables::open(&efi.join("efivars")).and_then(|variables| {
        let order = Order { variables, disk: &disk, found: &found, system: &system };
        order.change(inputs, machine, &mut warnings)
    });
    match changed {
        Ok(summary) => Ok(Done::go_on(summary, warnings)),
        Err(error) if has_fallback => {
            let reason = text::chain(&error);
            warnings.push(format!(
                "the boot order was not changed completely, so the firmware may start the disk only with /{removable}: \
                 {reason}"
            ));
            Ok(Done::go_on(format!("the firmware may start {} with /{removable}", disk.path()), warnings))
        }
        Err(error) => Err(error),
    }
}

/// The os-release of the installed system; empty if no root file system is found.
fn os_release(disk: &OpenDisk) -> OsRelease {
    target::find_root(disk, &mut |_| {}).map(|target| OsRelease::of(&target.root)).unwrap_or_default()
}

/// Finds the program to start on the EFI system partitions of a disk.
fn find(disk: &OpenDisk, wanted: Option<&str>, architecture: &str, system: &OsRelease) -> Result<Found, Error> {
    let refused = |reason: String| Error::Boot(BootError::Loader { disk: disk.path().to_owned(), reason });
    let wanted = wanted.map(|path| path.replace('\\', "/").trim_start_matches('/').to_owned());
    let mut looked_at = SearchLog::default();
    for partition in partitions::read(disk)? {
        let name = partition.describe(disk);
        let file_system = mount::probe(disk, &partition)?.filter(|found| mount::is_mountable(found.kind));
        let is_esp = match partition.type_guid.as_deref() {
            Some(guid) => guid == partition_types::ESP,
            // An MBR partition has no type GUID here, so any FAT file system with programs is accepted.
            None => file_system.as_ref().is_some_and(|found| found.kind == "vfat"),
        };
        let Some(file_system) = file_system.filter(|_| is_esp) else {
            looked_at.note_miss(format!("{name} is not an EFI system partition with a file system"));
            continue;
        };
        let esp = match mount::mount(disk, &partition, file_system.kind) {
            Ok(esp) => esp,
            Err(error) => {
                looked_at.refused(&name, &error);
                continue;
            }
        };
        let path = match &wanted {
            Some(path) => esp.open_file(path).ok().map(|_| path.clone()),
            None => {
                let programs = programs(&esp)?;
                let chosen = loader::choose(&programs, architecture, system);
                let ambiguous = |several: Vec<&str>| {
                    refused(format!("{name} has several boot loaders, {}; name one in loader", several.join(" and ")))
                };
                chosen.map_err(ambiguous)?.map(str::to_owned)
            }
        };
        if let Some(path) = path {
            return Ok(Found { esp, partition, path });
        }
        let what = wanted.as_ref().map_or(format!("no boot loader for {architecture}"), |path| format!("no /{path}"));
        looked_at.note_miss(format!("{name} has {what}"));
    }
    Err(looked_at.not_found("a boot loader", disk))
}

/// Paths of the programs in the vendor folders.
fn programs(esp: &TargetRoot) -> Result<Vec<String>, Error> {
    let mut programs = Vec::new();
    for vendor in esp.directories(PROGRAMS)? {
        let names = esp.list(&format!("{PROGRAMS}/{vendor}"))?;
        let are_programs = names.into_iter().filter(|name| name.to_ascii_lowercase().ends_with(".efi"));
        programs.extend(are_programs.map(|name| format!("{PROGRAMS}/{vendor}/{name}")));
    }
    Ok(programs)
}

/// The boot order of the firmware, and the program to start.
struct Order<'a> {
    variables: Variables,
    disk: &'a OpenDisk,
    found: &'a Found,
    system: &'a OsRelease,
}

impl Order<'_> {
    /// Puts an entry for the program at its place in the boot order. Stale entries are removed first to make room, then
    /// the entry is written, and last the order. Until then, the machine starts as before.
    fn change(
        &self,
        inputs: &EfiBootOrder,
        machine: &dyn Machine,
        warnings: &mut Vec<String>,
    ) -> Result<String, Error> {
        let loader = self.loader()?;
        self.warn_of_copies(&loader.drive, machine, warnings);
        let note = self.variables.read(previous_install::VARIABLE).ok().flatten().unwrap_or_default();
        let note = String::from_utf8_lossy(&note);
        let own = choose::named(self.disk.path(), machine).ok().map(|own| own.disk);
        let identity = own.as_ref().and_then(previous_install::identity);
        let noted = identity.as_ref().map(|identity| previous_install::noted(&note, identity)).unwrap_or_default();
        let was_noted = noted.contains(&loader.drive.signature);
        let held = own.map(|own| machine.former_partitions(&own)).unwrap_or_default();
        let held = held.iter().filter_map(|guid| guid_bytes(guid)).map(Signature::Guid);
        let former = noted.into_iter().chain(held).collect();
        let gone = gone(former, machine).unwrap_or_else(|error| {
            let reason = text::chain(&error);
            warnings.push(format!(
                "entries of former installations were left, because not every disk can be read: {reason}"
            ));
            Vec::new()
        });
        let has = self.variables.entries()?;
        let plan = self.plan(&has, &loader, inputs, &gone)?;
        let old = has.options.get(&plan.number).and_then(Option::as_ref);
        if old.is_none() && was_noted && plan.passed_over.is_empty() {
            warnings
                .push("the firmware has forgotten the entry that was made before, or somebody removed it".to_owned());
        }
        warnings.extend(plan.passed_over.iter().filter_map(|number| {
            let option = has.options.get(number)?.as_ref()?;
            let (called, arguments) = (option.description(), option.arguments()?);
            Some(format!(
                "Boot{number:04X} ({called}) starts the same boot loader with {arguments:?}; it stays as it is and \
                 is not used: if it is of an earlier system, remove it in the firmware's setup"
            ))
        }));
        self.write(&has, &plan, inputs.position, warnings)?;
        if inputs.position == BootPosition::First {
            warnings.extend(self.another_is_next(&has, &plan));
        }
        self.remember(&note, identity.as_deref(), &gone);
        Ok(self.summary(&plan, &loader, inputs.position))
    }

    fn warn_of_copies(&self, drive: &HardDrive, machine: &dyn Machine, warnings: &mut Vec<String>) {
        for other in self.copies(drive, machine).unwrap_or_default() {
            warnings.push(format!(
                "{other} has a partition with the same GUID as {}, like a copy of the image: the firmware may start \
                 either; erase the one that should not be started",
                self.found.partition.describe(self.disk)
            ));
        }
    }

    fn plan(
        &self,
        has: &order::Entries,
        loader: &LoaderPath,
        inputs: &EfiBootOrder,
        gone: &[Signature],
    ) -> Result<order::Plan, Error> {
        let vendor = self.found.path.split('/').nth(1).filter(|folder| !folder.eq_ignore_ascii_case("BOOT"));
        let otherwise = self.system.name.as_deref().or(vendor).unwrap_or("Linux");
        let name = Name { given: inputs.label.as_deref(), otherwise };
        let none_free = || {
            Error::Boot(BootError::Loader {
                disk: self.disk.path().to_owned(),
                reason: "the firmware has 65536 entries: remove some in its setup".to_owned(),
            })
        };
        order::plan(has, loader, name, inputs.position, gone).ok_or_else(none_free)
    }

    fn write(
        &self,
        has: &order::Entries,
        plan: &order::Plan,
        position: BootPosition,
        warnings: &mut Vec<String>,
    ) -> Result<(), Error> {
        for number in &plan.removed {
            if let Err(error) = self.variables.remove(&entry(*number)) {
                warnings.push(format!("an entry of a former installation is still there: {}", text::chain(&error)));
            }
        }
        if has.options.get(&plan.number).and_then(Option::as_ref) != Some(&plan.option) {
            self.variables.write(&entry(plan.number), &plan.option.encode())?;
        }
        if has.order != plan.order {
            self.variables.write(&global("BootOrder"), &order::encode(&plan.order))?;
        }
        if position == BootPosition::Next {
            self.variables.write(&global("BootNext"), &plan.number.to_le_bytes())?;
        }
        Ok(())
    }

    /// Warns about an entry that somebody else has set to be started next time (`BootNext`). The entry stays, because
    /// it may be a firmware update.
    fn another_is_next(&self, has: &order::Entries, plan: &order::Plan) -> Option<String> {
        let next = *order::decode(&self.variables.read(&global("BootNext")).ok()??).first()?;
        // The firmware ignores a BootNext without an entry.
        let option = has.options.get(&next).filter(|_| next != plan.number && !plan.removed.contains(&next))?;
        let called = option.as_ref().map_or("unreadable".to_owned(), LoadOption::description);
        Some(format!(
            "Boot{next:04X} ({called}) is to be started once before it, because BootNext says so; somebody else set \
             that, for example for a firmware update"
        ))
    }

    fn summary(&self, plan: &order::Plan, loader: &LoaderPath, position: BootPosition) -> String {
        let [number, called] = [format!("Boot{:04X}", plan.number), plan.option.description()];
        let place = match position {
            BootPosition::First => format!("is the first of {} in the boot order", plan.order.len()),
            BootPosition::Next => "is what the machine starts next time".to_owned(),
        };
        let removed = match plan.removed.len() {
            0 => String::new(),
            count => format!("; removed {count} of former installations"),
        };
        let partition = self.found.partition.describe(self.disk);
        format!("{number} ({called}), {} on {partition}, {place}{removed}", loader.file)
    }

    /// Returns the path by which the firmware finds the program.
    fn loader(&self) -> Result<LoaderPath, Error> {
        let unknown = || {
            Error::Boot(BootError::Loader {
                disk: self.disk.path().to_owned(),
                reason: format!(
                    "{} cannot be told apart from other partitions, because the disk has no partition table with a \
                     signature",
                    self.found.partition.describe(self.disk)
                ),
            })
        };
        let drive = self.found.partition.hard_drive(u64::from(self.disk.logical_block())).ok_or_else(unknown)?;
        Ok(LoaderPath { drive, file: format!("\\{}", self.found.path.replace('/', "\\")) })
    }

    /// Returns the other disks with a partition that the firmware cannot tell from this one. Excludes the devices the
    /// disk is made of and other paths to the same disk.
    fn copies(&self, drive: &HardDrive, machine: &dyn Machine) -> Result<Vec<String>, Error> {
        let own = choose::named(self.disk.path(), machine)?;
        let is_other = |other: &Candidate| {
            other.disk.best_path() != own.disk.best_path() && !other.by_name_only && !own.by_name_only
        };
        let has_copy = |path: &str| -> Result<bool, Error> {
            let disk = OpenDisk::open(path, Access::Read)?;
            let block = u64::from(disk.logical_block());
            let partitions = partitions::read(&disk)?;
            Ok(partitions.iter().any(|other| other.hard_drive(block).is_some_and(|other| other.is_same(drive))))
        };
        let others = machine.disks()?.into_iter().filter(is_other).map(|other| other.disk.path);
        // A disk that cannot be read now cannot be started either.
        Ok(others.filter(|path| has_copy(path).unwrap_or_default()).collect())
    }

    /// Notes where the boot loader of this installation is, for the next installation. Without the note, the next
    /// installation leaves a stale entry.
    fn remember(&self, note: &str, identity: Option<&str>, gone: &[Signature]) {
        let is_gpt = self.found.partition.type_guid.is_some();
        let guid = self.found.partition.guid.as_deref().filter(|_| is_gpt);
        if let Some((identity, guid)) = identity.zip(guid) {
            let new = previous_install::with(note, identity, guid, gone);
            if new != note {
                _ = self.variables.write(previous_install::VARIABLE, new.as_bytes());
            }
        }
    }
}

/// Returns those of the partitions that are on no disk of the machine.
fn gone(mut partitions: Vec<Signature>, machine: &dyn Machine) -> Result<Vec<Signature>, Error> {
    if partitions.is_empty() {
        return Ok(partitions);
    }
    // Another path to a disk has the same partitions, or cannot be read because it is on standby.
    for candidate in machine.disks()?.iter().filter(|candidate| candidate.disk.other_path_to.is_none()) {
        let disk = OpenDisk::open(&candidate.disk.path, Access::Read)?;
        for partition in partitions::read(&disk)? {
            let drive = partition.hard_drive(u64::from(disk.logical_block()));
            partitions.retain(|noted| drive.as_ref().is_none_or(|drive| drive.signature != *noted));
        }
    }
    Ok(partitions)
}
