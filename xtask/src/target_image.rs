//! The target image: a small real Debian that boots by UEFI, for the demo and the tests of whole machines.
//!
//! mmdebstrap makes the root file system from the machine's own package mirror; `xtask/target-image/` holds the recipe. The
//! disk is put together in a file, part by part at its offset, without loop devices or mounts.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cache::{self, Key, hex};
use crate::command::{command, run_quietly, stdout};
use crate::{host, workspace};

const MIB: u64 = 1 << 20;
/// Size of the whole disk: what the system takes, and room to run before it has grown.
const DISK: u64 = 1024 * MIB;
/// The same of the image that benchmarks write, which is as large as what people install.
const LARGE_DISK: u64 = 3072 * MIB;
/// What that has beside the packages of the other: other people's servers and compilers.
const LARGE_PACKAGES: &[&str] =
    &["build-essential", "git", "nginx", "openjdk-17-jre-headless", "postgresql", "python3-numpy", "vim"];
/// The EFI system partition: the boot loader, and room for three kernels.
const ESP_START: u64 = MIB;
const ESP_SIZE: u64 = 128 * MIB;
/// The root file system, up to the backup partition table.
const ROOT_START: u64 = ESP_START + ESP_SIZE;
/// "Root Partition (amd64/x86_64)" of the Discoverable Partitions Specification.
const ROOT_TYPE: &str = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709";

/// The image in the cache, and what is to be known about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetImage {
    /// The image, compressed by zstd. In `image.json` beside it, its name.
    pub path: PathBuf,
    /// Bytes of the image on the disk.
    pub raw_size: u64,
    /// Bytes of the compressed file.
    pub size: u64,
    /// SHA-256 of the compressed file, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of the image on the disk, in hexadecimal.
    pub raw_sha256: String,
}

/// Builds the image, or finds it in the cache. It stays there until recipe, release or mirror change: new versions of its
/// packages alone are no reason, so remove the folder `target-image` of the cache to get them.
pub fn build() -> Result<TargetImage> {
    let recipe = workspace::root().join("xtask/target-image");
    let sources = apt_sources()?;
    let key = Key::new("target-image-1").with("sources", &sources.list).with_path(&recipe)?;
    let folder = cache::keyed("target-image", key, |folder| {
        host::ensure(host::TARGET_IMAGE)?;
        eprintln!("building the target image: Debian {}, a few minutes", sources.suite);
        let raw = folder.join("image.raw");
        disk(&raw, DISK, &[], &recipe, &sources)?;
        let image = compress(&raw, folder, "image.raw.zst")?;
        fs::remove_file(&raw).with_context(|| format!("removing {}", raw.display()))?;
        let text = serde_json::to_string_pretty(&image)?;
        fs::write(folder.join("image.json"), text).context("writing image.json")
    })?;
    let path = folder.join("image.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
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

/// Builds the raw image that benchmarks write, or finds it in the cache, under the same rule.
pub fn build_large() -> Result<PathBuf> {
    let recipe = workspace::root().join("xtask/target-image");
    let sources = apt_sources()?;
    let key = Key::new("large-image-1").with("sources", &sources.list).with_path(&recipe)?;
    let key = key.with("packages", LARGE_PACKAGES.join(" "));
    let folder = cache::keyed("large-image", key, |folder| {
        host::ensure(host::TARGET_IMAGE)?;
        eprintln!("building the image to measure with: Debian {}, some minutes", sources.suite);
        disk(&folder.join("image.raw"), LARGE_DISK, LARGE_PACKAGES, &recipe, &sources)
    })?;
    Ok(folder.join("image.raw"))
}

/// Makes a disk with a Debian of these packages beside the recipe's own.
fn disk(raw: &Path, size: u64, packages: &[&str], recipe: &Path, sources: &Sources) -> Result<()> {
    let folder = raw.parent().context("finding the folder of the image")?;
    let root = bootstrap(folder, packages, recipe, sources)?;
    assemble(raw, size, &root, folder)?;
    fs::remove_file(&root).with_context(|| format!("removing {}", root.display()))
}

/// Where packages come from.
struct Sources {
    suite: String,
    /// Lines as in sources.list(5).
    list: String,
}

/// The entries of Debian's own archive among those of the host.
fn apt_sources() -> Result<Sources> {
    let query = || {
        let line = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(RELEASE) $(COMPONENT)";
        stdout(&mut command("apt-get", ["indextargets", "--format", line, "Created-By: Packages", "Origin: Debian"]))
    };
    let mut list = query()?;
    if list.trim().is_empty() {
        host::refresh_lists()?;
        list = query()?;
    }
    // The plain suite is the shortest: bookworm, beside bookworm-updates and bookworm-security.
    let suites = list.lines().filter_map(|line| line.split_whitespace().nth(3));
    let suite =
        suites.min_by_key(|suite| suite.len()).context("looking for Debian's archive: apt knows none")?.to_owned();
    Ok(Sources { suite, list })
}

/// The root file system as a tar file.
fn bootstrap(folder: &Path, more: &[&str], recipe: &Path, sources: &Sources) -> Result<PathBuf> {
    let list = folder.join("sources.list");
    fs::write(&list, &sources.list).with_context(|| format!("writing {}", list.display()))?;
    let packages = recipe.join("packages.txt");
    let packages = fs::read_to_string(&packages).with_context(|| format!("reading {}", packages.display()))?;
    let packages = packages.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let packages: Vec<&str> = packages.chain(more.iter().copied()).collect();
    let root = folder.join("root.tar");
    let mut mmdebstrap = command("mmdebstrap", ["--variant=minbase", "--quiet"]);
    mmdebstrap.arg(format!("--include={}", packages.join(",")));
    for filter in ["exclude=/usr/share/doc/*", "include=/usr/share/doc/*/copyright", "exclude=/usr/share/man/*"] {
        mmdebstrap.arg(format!("--dpkgopt=path-{filter}"));
    }
    mmdebstrap.arg("--dpkgopt=path-exclude=/usr/share/locale/*");
    // Run with the new root as $1.
    for hook in [
        format!("sync-in '{}' /", recipe.join("root").display()),
        format!("copy-in '{}' /tmp", recipe.join("setup.sh").display()),
        "chroot \"$1\" sh /tmp/setup.sh".to_owned(),
        "rm \"$1/tmp/setup.sh\"".to_owned(),
    ] {
        mmdebstrap.arg(format!("--customize-hook={hook}"));
    }
    run_quietly(mmdebstrap.arg(&sources.suite).arg(&root).arg(&list))?;
    Ok(root)
}

/// Puts partition table and file systems into a sparse file.
fn assemble(raw: &Path, size: u64, root: &Path, folder: &Path) -> Result<()> {
    let root_size = size - ROOT_START - MIB;
    let disk = File::create(raw).and_then(|file| file.set_len(size));
    disk.with_context(|| format!("creating {}", raw.display()))?;
    let partitions = [
        format!("--new=1:{}:+{}K", ESP_START / 512, ESP_SIZE / 1024),
        "--typecode=1:EF00".to_owned(),
        "--change-name=1:ESP".to_owned(),
        format!("--new=2:{}:+{}K", ROOT_START / 512, root_size / 1024),
        format!("--typecode=2:{ROOT_TYPE}"),
        "--change-name=2:root".to_owned(),
    ];
    run_quietly(command("sgdisk", ["--set-alignment=2048"]).args(&partitions).arg(raw))?;

    // Clusters of 1 KiB: FAT32, which the UEFI specification asks for (section 13.3), has no fewer than 65,525 of them.
    let esp = format!("--offset={}", ESP_START / 512);
    run_quietly(
        command("mkfs.vfat", ["-F", "32", "-s", "2", "-n", "ESP", &esp]).arg(raw).arg((ESP_SIZE / 1024).to_string()),
    )?;

    // Owners, and what only root may create, as root or as root of a user namespace of our own.
    let script = "
        tar --directory=\"$2\" --extract --preserve-permissions --numeric-owner --exclude='./dev/*' --file=\"$1\"
        mv \"$2/boot/efi\" \"$2.esp\"
        mkdir \"$2/boot/efi\"
        mcopy -s -i \"$3@@$4\" \"$2.esp\"/* ::
        mkfs.ext4 -q -d \"$2\" -L root -E \"offset=$5\" \"$3\" \"$6k\"
        rm -r \"$2\" \"$2.esp\"";
    let tree = folder.join("root");
    fs::create_dir(&tree).with_context(|| format!("creating {}", tree.display()))?;
    let mut shell = command("unshare", ["--mount"]);
    if stdout(&mut command("id", ["-u"]))?.trim() != "0" {
        shell.args(["--map-auto", "--map-root-user"]);
    }
    shell.args(["sh", "-euc", script, "sh"]).arg(root).arg(&tree).arg(raw);
    run_quietly(shell.args([ESP_START, ROOT_START, root_size / 1024].map(|number| number.to_string())))
}

/// Compresses a file and takes both digests on the way.
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
    if !status.success() {
        bail!("running zstd: {status}");
    }
    let written = File::open(to).with_context(|| format!("opening {}", to.display()))?;
    let (size, sha256) = digest(written, std::io::sink())?;
    Ok(TargetImage { path: name.into(), raw_size, size, sha256, raw_sha256 })
}

/// Copies, and returns the number of bytes and their SHA-256.
fn digest(mut from: impl Read, mut to: impl Write) -> Result<(u64, String)> {
    let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let count = from.read(&mut buffer).context("reading the image")?;
        if count == 0 {
            return Ok((size, hex(&hash.finalize())));
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count]).context("writing the image")?;
        size += count as u64;
    }
}
