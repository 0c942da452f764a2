//! Selects the kernel modules of the initramfs: those named in `initramfs/drivers.txt` and all their dependencies.
//!
//! The index files are depmod's, in their text form (modules.dep(5), modprobe.d(5) for `softdep` and `alias`).

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::build::kernel::{self, Kernel};
use crate::host::{files, workspace};

/// The list of modules in the initramfs.
pub const DRIVERS: &str = "drivers.txt";
/// The list of modules for which the initramfs has no room.
pub const RARE_DRIVERS: &str = "rare-drivers.txt";

/// depmod's index of a kernel.
pub struct Index<'a> {
    /// Each module's file and the files it needs, including indirect dependencies.
    needs: BTreeMap<&'a str, Vec<&'a str>>,
    /// Soft dependencies: a module, and the names of modules it works better with.
    soft: Vec<(&'a str, Vec<&'a str>)>,
    /// Other names of modules, each with its module. Aliases that are hardware patterns are left out.
    aliases: Vec<(&'a str, &'a str)>,
    built_in: BTreeSet<String>,
}

/// The modules selected by a driver list.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// Module files by their path below `/lib/modules/VERSION/`.
    pub files: BTreeSet<String>,
    /// Lines that match nothing in this kernel.
    pub absent: Vec<String>,
}

/// Selects the modules of a list in the folder `initramfs`, with all their dependencies.
pub fn select(kernel: &Kernel, list: &str) -> Result<Selection> {
    let drivers = files::read_text(&workspace::root().join("initramfs").join(list))?;
    // Debian's releases of kernels for virtual machines contain this word.
    let name = if kernel.release.contains("-cloud-") { kernel::CLOUD } else { kernel::GENERIC };
    let index = |name: &str| files::read_text(&kernel.modules().join(name));
    let (dep, softdep) = (index("modules.dep")?, index("modules.softdep")?);
    let (alias, builtin) = (index("modules.alias")?, index("modules.builtin")?);
    Ok(Index::parse(&dep, &softdep, &alias, &builtin).select(&drivers, name))
}

impl<'a> Index<'a> {
    /// Reads `modules.dep`, `modules.softdep`, `modules.alias` and `modules.builtin`.
    pub fn parse(dep: &'a str, softdep: &'a str, alias: &'a str, builtin: &'a str) -> Self {
        let needs =
            |line: &'a str| line.split_once(':').map(|(file, needs)| (file, needs.split_whitespace().collect()));
        let soft = |line: &'a str| {
            let mut words = line.strip_prefix("softdep ")?.split_whitespace();
            Some((words.next()?, words.filter(|word| !matches!(*word, "pre:" | "post:")).collect()))
        };
        let alias_line = |line: &'a str| {
            let (name, module) = line.strip_prefix("alias ")?.split_once(' ')?;
            (!name.contains([':', '*'])).then_some((name, module))
        };
        Self {
            needs: dep.lines().filter_map(needs).collect(),
            soft: softdep.lines().filter_map(soft).collect(),
            aliases: alias.lines().filter_map(alias_line).collect(),
            built_in: builtin.lines().map(name_of).collect(),
        }
    }

    /// Selects the modules of a driver list, with all their dependencies, for a kernel of `initramfs/kernels.txt`.
    pub fn select(&self, drivers: &str, kernel: &str) -> Selection {
        let mut selection = Selection { files: BTreeSet::new(), absent: Vec::new() };
        for line in drivers.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let Some(entry) = words.next() else { continue };
            if words.next().is_some_and(|only| only != kernel) {
                continue;
            }
            let found: Vec<&str> = match entry.ends_with('/') {
                true => self.needs.keys().copied().filter(|file| file.starts_with(entry)).collect(),
                false => self.files_of(entry),
            };
            if found.is_empty() && !self.built_in.contains(&spelled(entry)) {
                selection.absent.push(entry.to_owned());
            }
            found.into_iter().for_each(|file| self.add(file, &mut selection.files));
        }
        selection
    }

    /// Finds the files of the modules with this name or alias.
    fn files_of(&self, name: &str) -> Vec<&'a str> {
        let mut names = BTreeSet::from([spelled(name)]);
        names.extend(self.aliases.iter().filter(|(alias, _)| *alias == name).map(|(_, module)| spelled(module)));
        self.needs.keys().copied().filter(|file| names.contains(&name_of(file))).collect()
    }

    fn add(&self, file: &str, files: &mut BTreeSet<String>) {
        if !files.insert(file.to_owned()) {
            return;
        }
        self.needs.get(file).into_iter().flatten().for_each(|needed| self.add(needed, files));
        let name = name_of(file);
        for (_, others) in self.soft.iter().filter(|(module, _)| spelled(module) == name) {
            others.iter().flat_map(|other| self.files_of(other)).for_each(|other| self.add(other, files));
        }
    }
}

/// Returns the module name of a file, in the kernel's spelling.
pub fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    spelled(name.split(".ko").next().unwrap_or(name))
}

/// Writes a module name as the kernel does, with `_`. Lists may have `-` instead.
fn spelled(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/fs/btrfs/btrfs.ko: kernel/lib/xor.ko\nkernel/lib/xor.ko:\n\
                       kernel/fs/nls/nls_iso8859-1.ko:\n\
        kernel/crypto/crc32c_generic.ko:\nkernel/net/intel/igb/igb.ko: kernel/net/dca.ko\n\
        kernel/net/intel/ice/ice.ko:\n\
        kernel/net/dca.ko:\nkernel/net/other.ko:\n";
    const SOFTDEP: &str = "# comment\nsoftdep btrfs pre: crypto-crc32c pre: sha256\n";
    const ALIAS: &str = "alias pci:v00008086d* igb\nalias crypto-crc32c crc32c_generic\n";
    const BUILTIN: &str = "kernel/drivers/nvme/host/nvme.ko\n";

    fn check(drivers: &str, files: &[&str], absent: &[&str]) {
        let found = Index::parse(DEP, SOFTDEP, ALIAS, BUILTIN).select(drivers, "generic");
        let found_files: Vec<&str> = found.files.iter().map(String::as_str).collect();
        assert_eq!((found_files.as_slice(), found.absent), (files, absent.iter().map(|s| (*s).to_owned()).collect()));
    }

    #[test]
    fn modules_come_with_what_they_need() {
        check("btrfs", &["kernel/crypto/crc32c_generic.ko", "kernel/fs/btrfs/btrfs.ko", "kernel/lib/xor.ko"], &[]);
        check(
            "kernel/net/intel/ # all of them",
            &["kernel/net/dca.ko", "kernel/net/intel/ice/ice.ko", "kernel/net/intel/igb/igb.ko"],
            &[],
        );
    }

    #[test]
    fn a_line_for_another_kernel_selects_nothing() {
        check("nls_iso8859_1 cloud\nnowhere cloud\nice generic # here", &["kernel/net/intel/ice/ice.ko"], &[]);
    }

    #[test]
    fn names_are_found_in_either_spelling() {
        check("nls-iso8859_1", &["kernel/fs/nls/nls_iso8859-1.ko"], &[]);
    }

    #[test]
    fn what_is_built_in_is_no_loss_and_what_is_absent_is_named() {
        check("# comment\n\nnvme\nahci\nkernel/nowhere/\n", &[], &["ahci", "kernel/nowhere/"]);
    }
}
