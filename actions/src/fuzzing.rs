//! Readers of what comes from outside, for the targets in `fuzz/` and nobody else.

use std::io::Read;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde_json::Value;
use slipway_protocol::{Digest, KernelArgs};

use crate::boot_config::{self, Edit, For};
use crate::boot_entry::{bls, extlinux, grub};
use crate::efi::load_option::LoadOption;
use crate::error::Error;
use crate::fetch::{challenge, headers, oci};
use crate::open_disk::{Access, OpenDisk};
use crate::partitions;
use crate::pe::Sections;
pub use crate::stream::in_memory::decode;
use crate::unpack_archive::staging::Staging;
use crate::unpack_archive::{self, Unpacked};

/// Bytes at the beginning of an image that are held back from the disk.
const HEAD: u64 = 1 << 20;

/// Numbers and bytes of the partitions of a disk.
pub fn partitions(disk: &str) -> Result<Vec<(u32, Range<u64>)>, Error> {
    let disk = OpenDisk::open(disk, Access::Read)?;
    Ok(partitions::read(&disk)?.into_iter().map(|partition| (partition.number, partition.bytes)).collect())
}

/// Fits the table on a disk to its size, as that of an image is which was written to it.
pub fn fit(disk: &str, grow: bool) -> Result<(), Error> {
    let disk = OpenDisk::open(disk, Access::Write)?;
    let mut head = vec![0; disk.size().min(HEAD) as usize];
    disk.read_at(&mut head, 0)?;
    if let (_, Some(backup)) = partitions::fit(&mut head, &disk, grow)? {
        backup.write_entries(&disk)?;
        disk.write_at(&head, 0)?;
        backup.write_header(&disk)?;
    }
    Ok(())
}

/// Unpacks an archive in a directory; returns the number of its entries.
pub fn unpack(archive: &mut dyn Read, directory: OwnedFd, keeps_owners: bool) -> Result<u64, Error> {
    let mut staging = Staging::new(directory, keeps_owners, false);
    let Unpacked { entries, .. } = unpack_archive::read_entries(archive, &mut staging)?;
    Ok(entries)
}

/// The size a `Content-Range` gives, if it goes on at an offset.
pub fn content_range(offset: u64, range: &str) -> Option<Option<u64>> {
    headers::resumed_total(offset, range, None, None).ok()
}

/// What a `Retry-After` asks for.
pub fn retry_after(text: &str, date: Option<&str>) -> Option<Duration> {
    headers::retry_after(text, date)
}

/// The realm a `WWW-Authenticate` leads to; empty where there is none.
pub fn challenge(header: &str) -> Option<String> {
    match challenge::parse(header)? {
        challenge::Challenge::Basic => Some(String::new()),
        challenge::Challenge::Bearer { realm, .. } => Some(realm),
    }
}

/// Digest and size of the image in a manifest.
pub fn image_in_manifest(json: &[u8], title: Option<&str>) -> Option<(Digest, u64)> {
    let blob = oci::blob(&serde_json::from_slice(json).ok()?, title).ok()?;
    Some((blob.digest, blob.size))
}

/// Digest of the manifest for an architecture in an index.
pub fn manifest_in_index(json: &[u8], architecture: &str) -> Option<Digest> {
    let index: Value = serde_json::from_slice(json).ok()?;
    oci::of_platform(index.get("manifests")?.as_array()?, architecture).ok()
}

/// The token a token server gives out.
pub fn token(json: &[u8]) -> Option<String> {
    oci::token(json)
}

/// A file with kernel command lines.
#[derive(Clone, Copy, Debug)]
pub enum BootFile {
    /// An entry of the Boot Loader Specification.
    Entry,
    /// /etc/kernel/cmdline.
    KernelCmdline,
    /// GRUB's menu.
    GrubConfig,
    /// What GRUB's menu falls back to for entries.
    Kernelopts,
    /// GRUB's environment.
    GrubEnv,
    /// /etc/default/grub.
    GrubDefaults,
    /// The menu of EXTLINUX.
    Extlinux,
    /// /etc/default/u-boot.
    UBoot,
}

/// The file with the changes; none where it has no command line or is refused.
pub fn edit_boot_file(kind: BootFile, text: &str, wanted: &KernelArgs) -> Option<String> {
    let edit = match kind {
        BootFile::Entry => boot_config::bls_entry(text, wanted, false),
        BootFile::KernelCmdline => boot_config::kernel_cmdline(text, wanted),
        BootFile::GrubConfig => boot_config::grub_config(text, wanted, For::Normal),
        BootFile::Kernelopts => boot_config::kernelopts_of_config(text, wanted),
        BootFile::GrubEnv => boot_config::grub_env(text, wanted),
        BootFile::GrubDefaults => return boot_config::grub_defaults(&[text], wanted, For::Normal).ok()?.pop(),
        BootFile::Extlinux => boot_config::extlinux(text, wanted, For::Normal),
        BootFile::UBoot => boot_config::shell_default(text, wanted, "U_BOOT_PARAMETERS", "ro quiet"),
    };
    match edit {
        Edit::Edited(text) => Some(text),
        Edit::NoCommandLine | Edit::Refused(_) => None,
    }
}

/// Whether the first bytes of a file are those of a unified kernel image.
pub fn is_unified_kernel_image(head: &[u8]) -> bool {
    Sections::read(head).is_some_and(|sections| sections.has_kernel())
}

/// A load option that is read and written again, and whether it leads to a file on a partition.
pub fn load_option(bytes: &[u8]) -> Option<(Vec<u8>, bool)> {
    let option = LoadOption::decode(bytes)?;
    Some((option.encode(), option.loader().is_some()))
}

/// The same option as an entry for the loader it leads to, and whether that one leads there.
pub fn renewed_option(bytes: &[u8]) -> Option<bool> {
    let option = LoadOption::decode(bytes)?;
    let loader = option.loader()?;
    Some(LoadOption::new("new", &loader).loader()? == loader && option.renewed(None, &loader).loader()? == loader)
}

/// Reads a text as every kind of boot loader's configuration; the command lines it would start kernels with.
pub fn boot_entries(text: &str) -> Vec<String> {
    let variables = grub::environment(text);
    let entry = bls::parse("entry.conf", text, &variables).map(|entry| entry.start);
    let bls = match entry {
        Some(bls::Start::Kernel(boot)) => Some(boot),
        _ => None,
    };
    let patterns: Vec<String> = bls::default_pattern(text).into_iter().collect();
    _ = bls::default(&mut [bls::MenuEntry::default()], &patterns);
    let found = [bls, grub::default(text, variables), extlinux::default(text, "boot")];
    found.into_iter().flatten().map(|boot| boot.cmdline).collect()
}

/// Places of the sections of a PE file.
pub fn sections(head: &[u8]) -> Option<Vec<(u64, u64)>> {
    Some(Sections::read(head)?.list.iter().map(|section| (section.offset, section.len)).collect())
}
