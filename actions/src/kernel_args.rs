//! `kernel-args`: adds arguments to the installed system's kernel command line, wherever its boot loader keeps it.

use slipway_protocol::{KernelArgs, workflow};

use crate::boot_config::{self, Edit};
use crate::error::Error;
use crate::machine::Machine;
use crate::mount::{self, LookedAt};
use crate::open_disk::Access;
use crate::partitions;
use crate::target_root::TargetRoot;
use crate::{Done, Report, choose};

/// Boot Loader Specification, Type #1 entries: on an ESP or XBOOTLDR partition, or on a root without either.
const ENTRY_DIRS: &[&str] = &["loader/entries", "boot/loader/entries"];
/// grub-mkconfig's output, with /boot on its own partition and without.
const GRUB_CONFIGS: &[&str] = &["grub/grub.cfg", "grub2/grub.cfg", "boot/grub/grub.cfg", "boot/grub2/grub.cfg"];
/// What kernel-install(8) puts into the entries of kernels to come.
const KERNEL_CMDLINE: &str = "etc/kernel/cmdline";
/// What grub-mkconfig puts into a grub.cfg to come; files in the folder come after it and may set the same variable.
const GRUB_DEFAULT: &str = "etc/default/grub";
const GRUB_DEFAULT_DIR: &str = "etc/default/grub.d";

pub(crate) fn run(inputs: &KernelArgs, machine: &dyn Machine, report: &mut dyn FnMut(Report)) -> Result<Done, Error> {
    for argument in &inputs.append {
        if let Some(reason) = workflow::kernel_argument_problem(argument) {
            return Err(Error::KernelArgument { argument: argument.clone(), reason });
        }
    }
    let disk = choose::open(&inputs.disk, Access::Read, machine, report)?;
    let mut found = Found::default();
    let mut looked_at = LookedAt::default();
    for partition in partitions::read(&disk)? {
        let name = partition.describe(&disk);
        let Some(file_system) = mount::probe(&disk, &partition)?.filter(|fs| mount::is_mountable(fs.kind)) else {
            looked_at.in_vain(format!("{name} has no file system that can be mounted"));
            continue;
        };
        machine.cancel().check()?;
        let root = match mount::mount(&disk, &partition, file_system.kind) {
            Ok(root) => root,
            Err(error) => {
                looked_at.refused(&name, &error);
                continue;
            }
        };
        found.edit(&root, &inputs.append)?;
        root.sync()?;
        looked_at.in_vain(format!("{name} ({}) has no boot entries", file_system.kind));
    }
    if found.entries == 0 {
        return Err(looked_at.not_found("a boot loader's configuration", &disk));
    }
    let mut warnings = looked_at.refusals;
    if found.templates == 0 {
        let reason = "neither /etc/kernel/cmdline nor /etc/default/grub exists";
        warnings.push(format!("a kernel installed later will not get the arguments: {reason}"));
    }
    let summary = match (inputs.append.as_slice(), found.changed) {
        ([], _) => "there is no argument to add".to_owned(),
        (arguments, 0) => format!("{} was there in all of {} boot files", arguments.join(" "), found.entries),
        (arguments, changed) => format!("added {} to {changed} files", arguments.join(" ")),
    };
    Ok(Done::go_on(summary, warnings))
}

/// Files found on the way.
#[derive(Debug, Default)]
struct Found {
    /// Files a boot loader reads.
    entries: usize,
    /// Files that the entries of later kernels are made from.
    templates: usize,
    /// Files that had to be changed.
    changed: usize,
}

impl Found {
    fn edit(&mut self, root: &TargetRoot, arguments: &[String]) -> Result<(), Error> {
        for dir in ENTRY_DIRS {
            for name in root.list(dir)?.iter().filter(|name| name.ends_with(".conf")) {
                self.entries += self.edit_file(root, &format!("{dir}/{name}"), arguments, boot_config::bls_entry)?;
            }
        }
        for path in GRUB_CONFIGS {
            self.entries += self.edit_file(root, path, arguments, boot_config::grub_config)?;
        }
        self.templates += self.edit_file(root, KERNEL_CMDLINE, arguments, boot_config::kernel_cmdline)?;
        self.templates += self.edit_file(root, GRUB_DEFAULT, arguments, boot_config::grub_default)?;
        for name in root.list(GRUB_DEFAULT_DIR)?.iter().filter(|name| name.ends_with(".cfg")) {
            self.edit_file(root, &format!("{GRUB_DEFAULT_DIR}/{name}"), arguments, boot_config::grub_default_part)?;
        }
        Ok(())
    }

    /// Edits a file if it exists and has a kernel command line. Returns 1 if so.
    fn edit_file(
        &mut self,
        root: &TargetRoot,
        path: &str,
        arguments: &[String],
        edit: fn(&str, &[String]) -> Edit,
    ) -> Result<usize, Error> {
        let Some(text) = root.read(path)? else { return Ok(0) };
        match edit(&text, arguments) {
            Edit::NoCommandLine => Ok(0),
            Edit::Refused { line, reason } => Err(Error::BootConfig { path: path.to_owned(), line, reason }),
            Edit::Edited(edited) => {
                if edited != text {
                    root.rewrite(path, edited.as_bytes())?;
                    self.changed += 1;
                }
                Ok(1)
            }
        }
    }
}
