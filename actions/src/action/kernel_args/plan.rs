//! The files to write so that the command lines become as wanted.

use slipway_formats::boot_config::places::BootFiles;
use slipway_formats::boot_config::{Edit, EntryScope};
use slipway_protocol::KernelArgs;

use super::refused;
use crate::error::Error;
use crate::target::volume::Volume;
use crate::text;

mod boot_files;
mod templates;

/// Maximum bytes of all boot files held in memory.
const MAX_HELD: usize = 8 << 20;

/// A file and its new content.
#[derive(Debug)]
struct Change {
    /// Index of the file system.
    volume: usize,
    path: String,
    /// `None` if the file is to be removed.
    content: Option<Vec<u8>>,
    is_new: bool,
}

/// Numbers of the files that a boot loader reads, and of the templates for later files.
#[derive(Debug, Default)]
struct Family {
    entries: usize,
    templates: usize,
}

/// The changes to make, and what was found on the way.
#[derive(Debug, Default)]
pub(super) struct Plan {
    changes: Vec<Change>,
    /// Which entries get the added arguments.
    to: EntryScope,
    grub: Family,
    specified: Family,
    menus: Family,
    /// The program that writes the menus, and where it reads the arguments from.
    menu_maker: Option<&'static (&'static str, &'static str)>,
    images: usize,
    /// Number of file systems that make their own boot entries.
    systems: usize,
    /// Command lines and the contents of their files, after the change.
    texts: Vec<String>,
    /// Bytes of the texts and of the changes.
    held: usize,
    /// Whether GRUB's environment or menu holds the arguments of entries, in the variable `kernelopts`.
    has_kernelopts: bool,
    /// Whether GRUB reads entries of the Boot Loader Specification, and runs their options as a command.
    grub_reads_entries: bool,
    /// Files of loaders that are not edited, each with its loader.
    others: Vec<String>,
    /// Command line of the last entry that has a root argument.
    newest: Option<String>,
}

impl Plan {
    /// Plans the changes. Reads all boot files and templates, and writes nothing.
    pub(super) fn make(volumes: &[Volume], wanted: &KernelArgs, to: EntryScope) -> Result<Self, Error> {
        let systems = volumes.iter().filter(|volume| templates::has_kernel_install(volume)).count();
        let mut plan = Self { systems, to, ..Self::default() };
        for (index, volume) in volumes.iter().enumerate() {
            plan.grub_menus(index, volume, wanted)?;
        }
        for (index, volume) in volumes.iter().enumerate() {
            plan.bls_entries(index, volume, wanted)?;
            plan.menus(index, volume, wanted)?;
            plan.xen_configs(index, volume, wanted)?;
            plan.unified_images(index, volume, wanted)?;
            let others = volume.other_loaders()?;
            plan.others.extend(others.iter().map(|(path, loader)| format!("/{path} of {} ({loader})", volume.name)));
        }
        for (index, volume) in volumes.iter().enumerate() {
            plan.templates(index, volume, wanted)?;
        }
        Ok(plan)
    }

    /// Number of files a boot loader reads.
    pub(super) fn entries(&self) -> usize {
        self.grub.entries + self.specified.entries + self.menus.entries + self.images
    }

    /// Number of files to change.
    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Whether some boot entry will have an argument, ignoring quotes.
    pub(super) fn has(&self, argument: &str) -> bool {
        let plain = |text: &str| text.replace(['"', '\'', '\\'], "");
        let argument = plain(argument);
        let has = |text: &String| match argument.contains(char::is_whitespace) {
            true => plain(text).contains(&argument),
            false => plain(text).split_whitespace().any(|word| word == argument),
        };
        self.texts.iter().any(has)
    }

    /// Files of loaders that are not edited.
    pub(super) fn others(&self) -> &[String] {
        &self.others
    }

    /// Warnings about changes that will not last, and about files that are not changed.
    pub(super) fn warnings(&self) -> Vec<String> {
        let maker = self.menu_maker.map_or_else(
            || "the program that writes it is not known".to_owned(),
            |(program, setting)| format!("/{program} writes it from {setting}; add them there too"),
        );
        let families = [
            (&self.grub, "GRUB's menu for a kernel installed later will", "/etc/default/grub does not exist"),
            (&self.specified, "the entry for a kernel installed later will", "/etc/kernel/cmdline does not exist"),
            // The program that writes the menu may take the arguments from another file, which was edited.
            (&self.menus, "the menu for a kernel installed later may", maker.as_str()),
        ];
        let is_lost = |family: &Family| family.entries > 0 && family.templates == 0;
        let others = self.others.iter().map(|file| {
            format!("{file} has kernel arguments too, which this step cannot change: use write-file or run-in-target")
        });
        let lost = families
            .iter()
            .filter(|(family, _, _)| is_lost(family))
            .map(|(_, what, why)| format!("{what} not have the arguments: {why}"));
        lost.chain(others).collect()
    }

    /// Writes the changes.
    pub(super) fn carry_out(&self, volumes: &[Volume]) -> Result<(), Error> {
        for change in &self.changes {
            let Some(volume) = volumes.get(change.volume) else { continue };
            match &change.content {
                Some(content) if change.is_new => volume.root.write(&change.path, content, 0o644)?,
                Some(content) => volume.root.rewrite(&change.path, content)?,
                None => volume.root.remove(&change.path)?,
            }
        }
        volumes.iter().try_for_each(|volume| volume.root.sync())
    }

    /// Records the new content of a file.
    fn note(
        &mut self,
        volume: usize,
        path: String,
        old: Option<String>,
        new: String,
        is_read_at_boot: bool,
    ) -> Result<(), Error> {
        let changes = old.as_ref() != Some(&new);
        self.hold(&path, new.len() * (usize::from(is_read_at_boot) + usize::from(changes)))?;
        if is_read_at_boot {
            self.texts.push(new.clone());
        }
        if changes {
            self.changes.push(Change { volume, path, content: Some(new.into_bytes()), is_new: old.is_none() });
        }
        Ok(())
    }

    /// Counts the bytes held in memory for a file.
    fn hold(&mut self, path: &str, bytes: usize) -> Result<(), Error> {
        self.held += bytes;
        if self.held <= MAX_HELD {
            return Ok(());
        }
        let limit = text::size(MAX_HELD as u64);
        Err(refused(
            path,
            format!("with this file, the boot files take up more than {limit}: remove those that nothing reads"),
        ))
    }
}

/// Returns the text after an edit, and whether the text has a command line.
fn resolved(path: &str, text: &str, edit: Edit) -> Result<(String, bool), Error> {
    match edit {
        Edit::Edited(edited) => Ok((edited, true)),
        Edit::NoCommandLine => Ok((text.to_owned(), false)),
        Edit::Refused(reason) => Err(refused(path, reason)),
    }
}
