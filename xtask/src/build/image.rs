//! The parts of boot images, which are the same for every site. `slipway-server media` makes boot files from them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use slipway_parts::cpio::{Archive, Entry, Node};
use slipway_parts::{About, Arch, Component, Parts};

use crate::build::kernel::Kernel;
use crate::build::modules::{self, Selection};
use crate::build::{binary, components, firmware_files, kernel, mkfs, rare_drivers};
use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly};
use crate::host::{debian, files, workspace};

/// What the parts of boot images are built from.
#[derive(Clone, Debug)]
pub struct PartsConfig {
    /// Processor architecture of the programs and the kernel.
    pub arch: Arch,
    /// The static binary `slipway`.
    pub binary: PathBuf,
    /// The folder with mke2fs and mkfs.xfs.
    pub mkfs: PathBuf,
    /// The kernel and its modules.
    pub kernel: Kernel,
    /// Name of the kernel in `initramfs/kernels.txt`.
    pub kernel_name: String,
    /// Date of every file in the image, in seconds since 1970.
    pub date: u64,
}

/// Paths of the boot files for network boot.
#[derive(Clone, Debug)]
pub struct ImagePaths {
    /// Kernel image.
    pub vmlinuz: PathBuf,
    /// Initramfs of programs, modules and configuration.
    pub initramfs: PathBuf,
    /// Unified kernel image, `slipway.efi`.
    pub uki: PathBuf,
}

/// Fetches the UEFI stub of unified kernel images, because the host's is too old. Returns its path.
fn stub(arch: Arch) -> Result<PathBuf> {
    let root = debian::unpacked_for(&debian::STUB, arch)?;
    Ok(root.join(format!("usr/lib/systemd/boot/efi/linux{}.efi.stub", arch.efi())))
}

/// Returns the default date of an image in seconds since 1970: the last change to its sources.
fn source_date() -> Result<u64> {
    let mut sources = workspace::folders_of("slipway")?;
    sources.push(workspace::root().join("initramfs"));
    workspace::source_date(&sources)
}

/// Builds the inputs of the parts, or finds them in the cache. `kernel` is a name in `initramfs/kernels.txt`.
pub fn config(kernel: &str, arch: Arch) -> Result<PartsConfig> {
    Ok(PartsConfig {
        arch,
        binary: binary::build(arch, None)?,
        mkfs: mkfs::build(arch)?,
        kernel: kernel::fetch(Some(kernel), arch)?,
        kernel_name: kernel.to_owned(),
        date: source_date()?,
    })
}

/// Returns the folder of parts, built or from the cache, with a subfolder for each architecture and kernel. The same
/// configuration gives the same bytes.
pub fn build_parts(config: &PartsConfig) -> Result<PathBuf> {
    let (arch, release) = (config.arch, &config.kernel.release);
    let common = common_archive(config)?;
    let components = files::read(&common.join(COMPONENTS))?;
    let mut components: Vec<Component> = serde_json::from_slice(&components).context("reading components")?;
    components.push(components::stub(arch)?);
    let about = About::new(arch, &config.kernel_name, release, config.date, components);
    let (vmlinuz, archive) = (files::read(&config.kernel.vmlinuz())?, files::read(&common.join(COMMON_ARCHIVE))?);
    let mut parts =
        Parts::new(about, vmlinuz, archive, files::read(&stub(arch)?)?).with_program(files::read(&config.binary)?);
    if let Some(rare) = rare_drivers::build(&config.kernel)? {
        parts = parts.with_rare_drivers(rare);
    }
    let key = Key::new("parts-1").with("parts", &parts.digest);
    cache::keyed("parts", key, |folder| {
        let folder = folder.join(format!("{}-{}", arch.name(), config.kernel_name));
        files::create_dir(&folder)?;
        for (name, content) in parts.files() {
            let path = folder.join(name);
            files::write(&path, content)?;
        }
        Ok(())
    })
}

impl ImagePaths {
    /// Returns the paths of the boot files in a folder that `slipway-server media build` wrote.
    pub fn below(out: &Path, arch: &str) -> Self {
        let file = |name: &str| out.join(arch).join(name);
        Self { vmlinuz: file("vmlinuz"), initramfs: file("initramfs"), uki: file("slipway.efi") }
    }
}

/// Builds the compressed initramfs of programs and modules and the list of its components, or finds them in the cache.
/// Returns their folder.
fn common_archive(config: &PartsConfig) -> Result<PathBuf> {
    let sources = workspace::root().join("initramfs");
    let key = Key::new("initramfs-4")
        .with("date", config.date.to_string())
        .with("kernel", config.kernel.root.as_os_str().as_encoded_bytes())
        .with("release", &config.kernel.release)
        .with_path(&config.binary)?
        .with_path(&config.mkfs)?
        .with_path(&sources)?;
    cache::keyed("initramfs", key, |folder| {
        write_common_archive(config, folder)?;
        let path = folder.join(COMPONENTS);
        let components =
            serde_json::to_vec(&components::of(&config.kernel, config.arch)?).context("writing components")?;
        files::write(&path, components)
    })
}

/// Names of the compressed initramfs and of the list of its components.
const COMMON_ARCHIVE: &str = "common.cpio.zst";
const COMPONENTS: &str = "components.json";

/// Builds the compressed initramfs of programs and modules in `folder`, without the cache. Returns its path.
pub fn write_common_archive(config: &PartsConfig, folder: &Path) -> Result<PathBuf> {
    let sources = workspace::root().join("initramfs");
    let mut archive = manifest(&files::read_text(&sources.join("manifest.txt"))?, config)?;
    let selection = modules::select(&config.kernel, modules::DRIVERS)?;
    add_modules(&mut archive, &config.kernel, &selection)?;
    firmware_files::add(&mut archive, &config.kernel, &selection)?;
    if let Some(rare) = rare_drivers::build(&config.kernel)? {
        // The machine checks what it fetches against this digest, so the pack is trusted as far as the initramfs is.
        let digest = format!("{}\n", slipway_parts::sha256(&rare.index));
        archive.add_file(slipway_protocol::node::rare_drivers::DIGEST_FILE, 0o644, digest.into_bytes());
    }
    let plain = folder.join("common.cpio");
    files::write(&plain, archive.to_bytes(config.date))?;
    // One thread, because zstd's output may depend on the number of threads.
    let finished = folder.join(COMMON_ARCHIVE);
    run_quietly(command("zstd", ["-19", "--single-thread", "--quiet", "--rm"]).arg(&plain).arg("-o").arg(&finished))?;
    Ok(finished)
}

/// Reads the entries of a gen_init_cpio list (usr/gen_init_cpio.c in the kernel's sources).
fn manifest(text: &str, config: &PartsConfig) -> Result<Archive> {
    let mut archive = Archive::default();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let octal =
            |mode| u32::from_str_radix(mode, 8).with_context(|| format!("manifest.txt:{}: mode {mode:?}", number + 1));
        let (path, mode, node) = match words[..] {
            [] => continue,
            [word, ..] if word.starts_with('#') => continue,
            ["dir", path, mode, "0", "0"] => (path, mode, Node::Directory),
            ["slink", path, target, mode, "0", "0"] => (path, mode, Node::Symlink(target.to_owned())),
            ["nod", path, mode, "0", "0", "c", major, minor] => {
                (path, mode, Node::CharDevice(major.parse()?, minor.parse()?))
            }
            ["file", path, "${SLIPWAY}", mode, "0", "0"] => (path, mode, Node::File(files::read(&config.binary)?)),
            ["file", path, "${MKE2FS}", mode, "0", "0"] => {
                (path, mode, Node::File(files::read(&config.mkfs.join(mkfs::MKE2FS))?))
            }
            ["file", path, "${MKFS_XFS}", mode, "0", "0"] => {
                (path, mode, Node::File(files::read(&config.mkfs.join(mkfs::MKFS_XFS))?))
            }
            _ => bail!("manifest.txt:{}: {line:?} is not a dir, nod, slink or file entry owned by root", number + 1),
        };
        archive.add(path, Entry { node, mode: octal(mode)? });
    }
    Ok(archive)
}

/// Returns the entries of the driver list that this kernel lacks.
pub fn absent_drivers(kernel: &Kernel) -> Result<Vec<String>> {
    Ok(modules::select(kernel, modules::DRIVERS)?.absent)
}

/// Adds modules, and a depmod index of these modules only.
fn add_modules(archive: &mut Archive, kernel: &Kernel, selection: &Selection) -> Result<()> {
    let modules = kernel.modules();
    let staging = tempfile::tempdir().context("creating a temporary folder")?;
    let below = Path::new("lib/modules").join(&kernel.release);
    let own = ["modules.order", "modules.builtin", "modules.builtin.modinfo"].map(str::to_owned);
    for file in selection.files.iter().chain(&own) {
        let to = staging.path().join(&below).join(file);
        let folder = to.parent().unwrap_or(staging.path());
        files::create_dir(folder)?;
        fs::copy(modules.join(file), &to).with_context(|| format!("copying {file}"))?;
    }
    run_quietly(command("depmod", ["--basedir"]).arg(staging.path()).arg(&kernel.release))?;
    let indexes = ["modules.dep", "modules.alias", "modules.softdep", "modules.builtin"].map(str::to_owned);
    for file in selection.files.iter().chain(&indexes) {
        let path = below.join(file);
        archive.add_file(&path.to_string_lossy(), 0o644, files::read(&staging.path().join(&path))?);
    }
    Ok(())
}
