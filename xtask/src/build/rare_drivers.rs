//! Makes the pack of drivers that do not fit into the initramfs, listed in `initramfs/rare-drivers.txt`, and its index.
//! Machines fetch the pieces they need from the pack.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use slipway_parts::sha256;
use slipway_protocol::node::rare_drivers::{Piece, RareDrivers, RareModule};

use crate::build::firmware_files;
use crate::build::kernel::Kernel;
use crate::build::modules::{self, DRIVERS, RARE_DRIVERS, Selection};
use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly};
use crate::host::{files, workspace};

/// Builds the pack of a kernel, or finds it in the cache. `None` if the kernel has no such drivers. The same kernel and
/// lists give the same bytes.
pub fn build(kernel: &Kernel) -> Result<Option<slipway_parts::RareDrivers>> {
    let key = Key::new("rare-drivers-1")
        .with("kernel", kernel.root.as_os_str().as_encoded_bytes())
        .with("release", &kernel.release)
        .with_path(&workspace::root().join("initramfs"))?;
    let folder = cache::keyed("rare-drivers", key, |folder| {
        let (index, pack) = make(kernel, folder)?;
        files::write(&folder.join(slipway_parts::RARE_PACK), pack)?;
        let mut index = serde_json::to_vec(&index).context("writing the index of rare drivers")?;
        index.push(b'\n');
        files::write(&folder.join(slipway_parts::RARE_INDEX), index)
    })?;
    let pack = files::read(&folder.join(slipway_parts::RARE_PACK))?;
    let index = files::read(&folder.join(slipway_parts::RARE_INDEX))?;
    Ok((!pack.is_empty()).then_some(slipway_parts::RareDrivers { index, pack }))
}

/// Selects the modules in the pack: those for PCI devices and all their dependencies. Also returns the devices' aliases
/// by module. Dependencies that are also in the initramfs are included, because a machine with little memory deletes
/// modules it does not use.
pub fn selection(kernel: &Kernel) -> Result<(BTreeMap<String, Vec<String>>, Selection)> {
    let (image, rare) = (modules::select(kernel, DRIVERS)?, modules::select(kernel, RARE_DRIVERS)?);
    let alias = files::read_text(&kernel.modules().join("modules.alias"))?;
    let mut aliases: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pattern, module) in alias.lines().filter_map(|line| line.strip_prefix("alias ")?.split_once(' ')) {
        if pattern.starts_with("pci:") {
            aliases.entry(modules::name_of(module)).or_default().push(pattern.to_owned());
        }
    }
    let needs = needs(kernel)?;
    let drivers: Vec<&String> =
        rare.files.difference(&image.files).filter(|file| aliases.contains_key(&modules::name_of(file))).collect();
    aliases.retain(|module, _| drivers.iter().any(|file| modules::name_of(file) == *module));
    let with_needs = drivers.into_iter().flat_map(|file| needs.get(file).into_iter().flatten().chain([file]));
    Ok((aliases, Selection { files: with_needs.cloned().collect(), absent: Vec::new() }))
}

/// Returns the files that each module file needs, in load order. modules.dep lists them in the reverse order.
fn needs(kernel: &Kernel) -> Result<BTreeMap<String, Vec<String>>> {
    let dep = files::read_text(&kernel.modules().join("modules.dep"))?;
    let lines = dep.lines().filter_map(|line| line.split_once(':'));
    Ok(lines
        .map(|(file, needs)| (file.to_owned(), needs.split_whitespace().rev().map(str::to_owned).collect()))
        .collect())
}

fn make(kernel: &Kernel, folder: &Path) -> Result<(RareDrivers, Vec<u8>)> {
    let ((aliases, selection), needs) = (selection(kernel)?, needs(kernel)?);
    let mut writer = Writer { folder, pack: Vec::new(), known: BTreeMap::new() };
    let mut index = RareDrivers { release: kernel.release.clone(), ..RareDrivers::default() };
    for file in &selection.files {
        let piece = writer.add(&files::read(&kernel.modules().join(file))?)?;
        let names = |files: &[String]| files.iter().map(|file| modules::name_of(file)).collect();
        let name = modules::name_of(file);
        let aliases = aliases.get(&name).cloned().unwrap_or_default();
        let needs = needs.get(file).map(|files| names(files)).unwrap_or_default();
        index.modules.insert(name, RareModule { piece, needs, aliases, firmware: Vec::new() });
    }
    let mut of_module: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (named, content) in firmware_files::contents(kernel, &selection)? {
        let piece = writer.add(&content)?;
        index.firmware.insert(named.file.clone(), piece);
        of_module.entry(modules::name_of(&named.module)).or_default().insert(named.file);
    }
    for (module, files) in of_module {
        if let Some(module) = index.modules.get_mut(&module) {
            module.firmware = files.into_iter().collect();
        }
    }
    index.check(&kernel.release).context("making the index of rare drivers")?;
    Ok((index, writer.pack))
}

/// A pack being written.
struct Writer<'a> {
    /// Folder for temporary files.
    folder: &'a Path,
    pack: Vec<u8>,
    /// Pieces by the digest of their content, because firmware files often have several names.
    known: BTreeMap<String, Piece>,
}

impl Writer<'_> {
    fn add(&mut self, content: &[u8]) -> Result<Piece> {
        let digest = sha256(content);
        if let Some(piece) = self.known.get(&digest) {
            return Ok(piece.clone());
        }
        let plain = self.folder.join("plain");
        files::write(&plain, content)?;
        let packed = self.folder.join("packed");
        // One thread, because zstd's output may depend on the number of threads.
        let options = ["-19", "--single-thread", "--quiet", "--force", "--rm"];
        run_quietly(command("zstd", options).arg(&plain).arg("-o").arg(&packed))?;
        let packed_bytes = files::read(&packed)?;
        fs::remove_file(&packed).with_context(|| format!("removing {}", packed.display()))?;
        let piece = Piece {
            offset: self.pack.len() as u64,
            size: packed_bytes.len() as u64,
            sha256: sha256(&packed_bytes),
            unpacked: content.len() as u64,
        };
        self.pack.extend(packed_bytes);
        self.known.insert(digest, piece.clone());
        Ok(piece)
    }
}
