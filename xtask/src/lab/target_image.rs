//! Target images: small real Debians that boot by UEFI, for the demo and the tests of whole machines.
//!
//! mmdebstrap makes the root file system from this machine's package mirror, with the recipes in `xtask/target-image/`.
//! The disk image is assembled part by part in a file, without loop devices or mounts.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use slipway_parts::Arch;

use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::debian::{self, Sources};
use crate::host::{files, packages, translation, workspace};

mod system;

pub use system::System;
use system::{COMMON, USUAL_INITRAMFS};

const MIB: u64 = 1 << 20;
/// Size of the root file system in bytes: the system, and free space to run before the file system has grown.
const ROOT: u64 = 894 * MIB;
/// Size of the large image's root file system, about that of a typical system.
const LARGE_ROOT: u64 = 2942 * MIB;
/// Additional packages of the large image: servers and compilers.
const LARGE_PACKAGES: &[&str] =
    &["build-essential", "git", "nginx", "openjdk-17-jre-headless", "postgresql", "python3-numpy", "vim"];
/// Offset of the first partition, and space after the last one for the backup partition table, in bytes.
const ALIGNMENT: u64 = MIB;
/// Size of a boot partition in bytes: the boot loader, and room for three kernels.
const BOOT_SIZE: u64 = 128 * MIB;

/// An image in the cache with its properties.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetImage {
    /// Path of the image, compressed with zstd. In `image.json` beside the image it is only the file name.
    pub path: PathBuf,
    /// Size of the uncompressed image in bytes.
    pub raw_size: u64,
    /// Size of the compressed file in bytes.
    pub size: u64,
    /// SHA-256 of the compressed file, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of the uncompressed image, in hexadecimal.
    pub raw_sha256: String,
}

/// Builds an image, or finds it in the cache. The image is rebuilt when recipe, release or mirror change. To get newer
/// packages, remove the folder `target-image` from the cache.
pub fn build(system: System) -> Result<TargetImage> {
    let sources = debian::sources()?;
    let key = key("target-image-2", system, &sources)?;
    let folder = cache::keyed("target-image", key, |folder| {
        packages::ensure(packages::TARGET_IMAGE)?;
        if system.arch() == Arch::Aarch64 {
            translation::ensure()?;
        }
        eprintln!(
            "building a Debian {} for {} to install, with {}: a few minutes (kept for the next time)",
            sources.suite,
            system.arch().debian(),
            system.recipe()
        );
        let raw = folder.join("image.raw");
        disk(&raw, system, ROOT, system.packages(), &sources)?;
        let image = compress(&raw, folder, "image.raw.zst")?;
        fs::remove_file(&raw).with_context(|| format!("removing {}", raw.display()))?;
        let text = serde_json::to_string_pretty(&image)?;
        fs::write(folder.join("image.json"), text).context("writing image.json")
    })?;
    let path = folder.join("image.json");
    let text = files::read(&path)?;
    let image: TargetImage = serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
    Ok(TargetImage { path: folder.join(&image.path), ..image })
}

impl TargetImage {
    /// Unpacks the image to a sparse file.
    pub fn unpack(&self, to: &Path) -> Result<()> {
        run_quietly(
            command("zstd", ["--decompress", "--sparse", "--force", "--quiet"]).arg(&self.path).arg("-o").arg(to),
        )
    }
}

/// Builds the large raw image for benchmarks, or finds it in the cache. It is rebuilt when [`build`] would rebuild.
pub fn build_large() -> Result<PathBuf> {
    let sources = debian::sources()?;
    let key = key("large-image-2", System::SystemdBoot, &sources)?.with("packages", LARGE_PACKAGES.join(" "));
    let folder = cache::keyed("large-image", key, |folder| {
        packages::ensure(packages::TARGET_IMAGE)?;
        eprintln!("building the benchmark image: Debian {}, a few minutes (kept for the next time)", sources.suite);
        disk(&folder.join("image.raw"), System::SystemdBoot, LARGE_ROOT, LARGE_PACKAGES, &sources)
    })?;
    Ok(folder.join("image.raw"))
}

/// Computes the cache key of an image.
fn key(name: &str, system: System, sources: &Sources) -> Result<Key> {
    let key = Key::new(name).with("sources", &sources.list);
    let key = key.with_path(&recipe(COMMON))?.with("system", system.recipe()).with_path(&recipe(system.recipe()))?;
    let key = key.with("arch", system.arch().name());
    Ok(if system.packages().is_empty() { key } else { key.with("packages", system.packages().join(" ")) })
}

fn recipe(name: &str) -> PathBuf {
    workspace::root().join("xtask/target-image").join(name)
}

/// Makes a disk with a Debian that has these packages in addition to the recipe's.
fn disk(raw: &Path, system: System, root_size: u64, packages: &[&str], sources: &Sources) -> Result<()> {
    let folder = raw.parent().context("finding the folder of the image")?;
    let root = bootstrap(folder, system, packages, sources)?;
    assemble(raw, system, root_size, &root)?;
    fs::remove_file(&root).with_context(|| format!("removing {}", root.display()))
}

/// Makes the root file system, and returns the path of its tar file.
fn bootstrap(folder: &Path, system: System, more: &[&str], sources: &Sources) -> Result<PathBuf> {
    let list = folder.join("sources.list");
    files::write(&list, &sources.list)?;
    let recipes = system.recipes().map(recipe);
    let mut packages: Vec<String> = more.iter().map(|package| (*package).to_owned()).collect();
    for recipe in &recipes {
        let file = recipe.join("packages.txt");
        let text = files::read_text(&file)?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let is_replaced = |package: &str| package == USUAL_INITRAMFS && system.has_dracut();
        // The kernel package has the architecture in its name.
        let of_arch = |package: &str| package.replace(Arch::X86_64.debian(), system.arch().debian());
        packages.extend(lines.filter(|package| !is_replaced(package)).map(of_arch));
    }
    let root = folder.join("root.tar");
    let mut mmdebstrap = command("mmdebstrap", ["--variant=minbase", "--quiet"]);
    mmdebstrap.arg(format!("--architectures={}", system.arch().debian()));
    mmdebstrap.arg(format!("--include={}", packages.join(",")));
    for filter in ["exclude=/usr/share/doc/*", "include=/usr/share/doc/*/copyright", "exclude=/usr/share/man/*"] {
        mmdebstrap.arg(format!("--dpkgopt=path-{filter}"));
    }
    mmdebstrap.arg("--dpkgopt=path-exclude=/usr/share/locale/*");
    // Hooks that mmdebstrap runs with the new root as $1.
    let files = recipes.iter().map(|recipe| format!("sync-in '{}' /", recipe.join("root").display()));
    let set_up = recipes.iter().flat_map(|recipe| {
        [
            format!("copy-in '{}' /tmp", recipe.join("setup.sh").display()),
            "chroot \"$1\" sh /tmp/setup.sh".to_owned(),
            "rm \"$1/tmp/setup.sh\"".to_owned(),
        ]
    });
    for hook in files.chain(set_up) {
        mmdebstrap.arg(format!("--customize-hook={hook}"));
    }
    run_quietly(mmdebstrap.arg(&sources.suite).arg(&root).arg(&list))?;
    Ok(root)
}

/// Writes partition table and file systems to a sparse file.
fn assemble(raw: &Path, system: System, root_size: u64, root: &Path) -> Result<()> {
    let boot = system.boot_file_systems();
    let starts = (0..).map(|index| ALIGNMENT + index * BOOT_SIZE);
    let root_start = ALIGNMENT + boot.len() as u64 * BOOT_SIZE;
    let disk = File::create(raw).and_then(|file| file.set_len(root_start + root_size + ALIGNMENT));
    disk.with_context(|| format!("creating {}", raw.display()))?;
    let mut sgdisk = command("sgdisk", ["--set-alignment=2048"]);
    let root_partition = (root_start, root_size, system.root_type(), "root");
    let partitions = boot.iter().zip(starts.clone()).map(|(boot, start)| (start, BOOT_SIZE, boot.r#type, boot.label));
    for (number, (start, size, r#type, name)) in (1..).zip(partitions.chain([root_partition])) {
        sgdisk.arg(format!("--new={number}:{}:+{}K", start / 512, size / 1024));
        sgdisk.arg(format!("--typecode={number}:{}", r#type)).arg(format!("--change-name={number}:{name}"));
    }
    run_quietly(sgdisk.arg(raw))?;

    // Clusters of 1 KiB, because FAT32, which the UEFI specification requires (section 13.3), has at least 65,525
    // clusters.
    for (boot, start) in boot.iter().zip(starts.clone()).filter(|(boot, _)| boot.kind == "vfat") {
        let offset = format!("--offset={}", start / 512);
        let mut mkfs = command("mkfs.vfat", ["-F", "32", "-s", "2", "-n", boot.label, &offset]);
        run_quietly(mkfs.arg(raw).arg((BOOT_SIZE / 1024).to_string()))?;
    }

    // Needs root, or root in a new user namespace, to set owners and to create device nodes.
    let script = "
        archive=$1 tree=$2 top=$3 disk=$4 start=$5 size=$6 boot=$7
        shift 7
        tar --directory=\"$tree\" --extract --preserve-permissions --numeric-owner --exclude='./dev/*' \
            --file=\"$archive\" \"$top\"
        while [ $# -gt 0 ]; do
            mv \"$tree/$top/$1\" \"$tree.boot\"
            mkdir \"$tree/$top/$1\"
            case $3 in
                vfat) mcopy -s -i \"$disk@@$2\" \"$tree.boot\"/* :: ;;
                ext4) mkfs.ext4 -q -d \"$tree.boot\" -L \"$4\" -E \"offset=$2\" \"$disk\" \"${boot}k\" ;;
            esac
            rm -r \"$tree.boot\"
            shift 4
        done
        mkfs.ext4 -q -d \"$tree/$top\" -L root -E \"offset=$start\" \"$disk\" \"${size}k\"
        rm -r \"$tree\"";
    let tree = raw.with_extension("tree");
    fs::create_dir(&tree).with_context(|| format!("creating {}", tree.display()))?;
    let mut shell = command("unshare", ["--mount"]);
    if stdout(&mut command("id", ["-u"]))?.trim() != "0" {
        shell.args(["--map-auto", "--map-root-user"]);
    }
    shell.args(["sh", "-euc", script, "sh"]).arg(root).arg(&tree).arg(system.top()).arg(raw);
    shell.args([root_start, root_size / 1024, BOOT_SIZE / 1024].map(|number| number.to_string()));
    for (boot, start) in boot.iter().zip(starts) {
        shell.args([boot.place, &start.to_string(), boot.kind, boot.label]);
    }
    run_quietly(&mut shell)
}

/// Compresses a file and computes both digests.
fn compress(raw: &Path, folder: &Path, name: &str) -> Result<TargetImage> {
    let to = &folder.join(name);
    let input = File::open(raw).with_context(|| format!("opening {}", raw.display()))?;
    let output = File::create(to).with_context(|| format!("creating {}", to.display()))?;
    let mut zstd = Command::new("zstd");
    let zstd = zstd.args(["-3", "-T0", "--quiet"]).stdin(Stdio::piped()).stdout(output);
    let mut zstd = zstd.spawn().context("starting zstd")?;
    let stdin = zstd.stdin.take().context("starting zstd")?;
    let (raw_size, raw_sha256) = digest(input, stdin)?;
    let status = zstd.wait().context("waiting for zstd")?;
    ensure!(status.success(), "running zstd: {status}");
    let written = File::open(to).with_context(|| format!("opening {}", to.display()))?;
    let (size, sha256) = digest(written, std::io::sink())?;
    Ok(TargetImage { path: name.into(), raw_size, size, sha256, raw_sha256 })
}

/// Copies `from` to `to`. Returns the number of bytes and their SHA-256 in hexadecimal.
fn digest(mut from: impl Read, mut to: impl Write) -> Result<(u64, String)> {
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let count = from.read(&mut buffer).context("reading the image")?;
        if count == 0 {
            return Ok((size, base16ct::lower::encode_string(&hash.finalize())));
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count]).context("writing the image")?;
        size += count as u64;
    }
}
