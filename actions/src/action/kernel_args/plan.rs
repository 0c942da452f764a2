//! What has to be written for the command lines to be as they should.

use slipway_formats::boot_config::{Edit, EntryScope};
use slipway_protocol::KernelArgs;

use crate::error::{BootError, Error};
use crate::target::volume::Volume;
use crate::text;

mod boot_files;
mod templates;

/// Bytes that are held of all boot files together.
const MAX_HELD: usize = 8 << 20;

/// A file and what it will be.
#[derive(Debug)]
struct Change {
    /// Index of the file system.
    volume: usize,
    path: String,
    /// Nothing if it has to go.
    content: Option<Vec<u8>>,
    is_new: bool,
}

/// Files a boot loader reads, and those that later ones are made from.
#[derive(Debug, Default)]
struct Family {
    entries: usize,
    templates: usize,
}

/// What has to be written, and what was found on the way.
#[derive(Debug, Default)]
pub(super) struct Plan {
    changes: Vec<Change>,
    /// What gets what is added.
    to: EntryScope,
    grub: Family,
    specified: Family,
    menus: Family,
    /// The file that says what the arguments of a menu to come are, where it is none of those that are edited.
    overruled_by: Option<String>,
    images: usize,
    /// File systems that make entries for their kernels.
    systems: usize,
    /// Command lines and the files they are in, as they will be.
    texts: Vec<String>,
    /// Bytes of these and of the changes.
    held: usize,
    /// GRUB's environment or its menu has the arguments of entries.
    has_kernelopts: bool,
    /// GRUB reads the entries of the Boot Loader Specification, and runs their options as a command.
    grub_reads_entries: bool,
    /// Command line of the last entry that says where the root is.
    newest: Option<String>,
}

impl Plan {
    /// Reads everything and writes nothing.
    pub(super) fn make(volumes: &[Volume], wanted: &KernelArgs, to: EntryScope) -> Result<Self, Error> {
        let systems = volumes.iter().filter(|volume| templates::has_kernel_install(volume)).count();
        let mut plan = Self { systems, to, ..Self::default() };
        for (index, volume) in volumes.iter().enumerate() {
            plan.grub_menus(index, volume, wanted)?;
        }
        for (index, volume) in volumes.iter().enumerate() {
            plan.specified_entries(index, volume, wanted)?;
            plan.menus(index, volume, wanted)?;
            plan.unified_images(index, volume, wanted)?;
        }
        for (index, volume) in volumes.iter().enumerate() {
            plan.templates(index, volume, wanted)?;
        }
        Ok(plan)
    }

    /// Files a boot loader reads.
    pub(super) fn entries(&self) -> usize {
        self.grub.entries + self.specified.entries + self.menus.entries + self.images
    }

    /// Files that are not as they should be.
    pub(super) fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Whether some boot entry will have an argument, whatever quotes are around it there.
    pub(super) fn has(&self, argument: &str) -> bool {
        let plain = |text: &str| text.replace(['"', '\''], "");
        let argument = plain(argument);
        let has = |text: &String| match argument.contains(char::is_whitespace) {
            true => plain(text).contains(&argument),
            false => plain(text).split_whitespace().any(|word| word == argument),
        };
        self.texts.iter().any(has)
    }

    /// What will not last.
    pub(super) fn warnings(&self) -> Vec<String> {
        let overruled = self.overruled_by.as_ref().map(|path| format!("/{path} says what they are; add them there"));
        let families = [
            (&self.grub, "GRUB's menu", "/etc/default/grub does not exist"),
            (&self.specified, "the entry", "/etc/kernel/cmdline does not exist"),
            (&self.menus, "the menu", overruled.as_deref().unwrap_or("what makes it is not known")),
        ];
        let is_lost = |family: &Family| family.entries > 0 && family.templates == 0;
        families
            .iter()
            .filter(|(family, _, _)| is_lost(family))
            .map(|(_, what, why)| format!("{what} of a kernel installed later will not have the arguments: {why}"))
            .collect()
    }

    /// Writes what has to be written.
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

    /// Notes what a file will be.
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

    /// Counts what is held in memory on account of a file.
    fn hold(&mut self, path: &str, bytes: usize) -> Result<(), Error> {
        self.held += bytes;
        if self.held <= MAX_HELD {
            return Ok(());
        }
        let limit = text::size(MAX_HELD as u64);
        Err(refused(
            path,
            format!("with it the boot files take up more than {limit}: take away those that nothing reads"),
        ))
    }
}

/// The text after an edit, and whether there is a command line in it.
fn resolved(path: &str, text: &str, edit: Edit) -> Result<(String, bool), Error> {
    match edit {
        Edit::Edited(edited) => Ok((edited, true)),
        Edit::NoCommandLine => Ok((text.to_owned(), false)),
        Edit::Refused(reason) => Err(refused(path, reason)),
    }
}

/// The error that a file cannot be edited.
pub(super) fn refused(path: &str, reason: String) -> Error {
    Error::Boot(BootError::Config { path: path.to_owned(), reason })
}
