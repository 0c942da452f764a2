//! The boot image: kernel, initramfs, and both in one EFI program.
//!
//! The initramfs is two archives in a row, which the kernel unpacks in turn
//! (Documentation/driver-api/early-userspace/buffer-format.rst): a compressed one that is the same for every server,
//! and a small uncompressed one with the configuration. So an image for another server or token takes milliseconds.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cache::{self, Key};
use crate::command::{command, run_quietly};
use crate::cpio::{self, Archive, Entry, Node};
use crate::kernel::Kernel;
use crate::modules::{Index, Selection};
use crate::{mkfs, uki, workspace};

/// The inputs of an image.
#[derive(Clone, Debug)]
pub struct ImageConfig {
    /// The static binary.
    pub binary: PathBuf,
    /// The folder with mke2fs and mkfs.xfs.
    pub mkfs: PathBuf,
    /// The kernel.
    pub kernel: Kernel,
    /// HTTPS URL of the server.
    pub server_url: String,
    /// CAs that may sign the server's certificate: certificates in PEM (RFC 7468).
    pub ca: String,
    /// Bootstrap token in the image.
    pub token: Option<String>,
    /// Command line of the unified kernel image.
    pub cmdline: String,
    /// Date of every file in the image, in seconds since 1970.
    pub date: u64,
}

/// Paths of the parts of an image.
#[derive(Clone, Debug)]
pub struct ImagePaths {
    /// The kernel.
    pub vmlinuz: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// The unified kernel image.
    pub uki: PathBuf,
}

/// The usual consoles. The kernel's messages go to all of them, PID 1's output to the last.
pub const CMDLINE: &str = "console=tty0 console=ttyS0,115200";

/// Path of systemd-boot-efi's stub.
const STUB: &str = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub";

/// Default date of an image: that of the last change to its sources.
pub fn source_date() -> Result<u64> {
    let mut sources = workspace::folders_of("slipway")?;
    sources.push(workspace::root().join("initramfs"));
    workspace::source_date(&sources)
}

/// Builds the image in a folder. The same configuration gives the same bytes.
pub fn build_image(config: &ImageConfig, out: &Path) -> Result<ImagePaths> {
    let mut initramfs = common_archive(config)?;
    cpio::pad(&mut initramfs);
    initramfs.extend(config_archive(config)?.to_bytes(config.date));

    let vmlinuz = read(&config.kernel.vmlinuz())?;
    let release = &config.kernel.release;
    let sections: [(&str, &[u8]); 5] = [
        (".osrel", b"ID=slipway\nNAME=slipway\nPRETTY_NAME=slipway\n"),
        (".cmdline", config.cmdline.as_bytes()),
        (".uname", release.as_bytes()),
        (".linux", &vmlinuz),
        (".initrd", &initramfs),
    ];
    let uki = uki::assemble(&read(Path::new(STUB))?, &sections)?;

    fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let paths =
        ImagePaths { vmlinuz: out.join("vmlinuz"), initramfs: out.join("initramfs"), uki: out.join("slipway.efi") };
    for (path, bytes) in [(&paths.vmlinuz, &vmlinuz), (&paths.initramfs, &initramfs), (&paths.uki, &uki)] {
        fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(paths)
}

/// The compressed archive with programs and modules, from the cache or built.
fn common_archive(config: &ImageConfig) -> Result<Vec<u8>> {
    let sources = workspace::root().join("initramfs");
    let key = Key::new("initramfs-1")
        .with("date", config.date.to_string())
        .with("kernel", config.kernel.root.as_os_str().as_encoded_bytes())
        .with("release", &config.kernel.release)
        .with_path(&config.binary)?
        .with_path(&config.mkfs)?
        .with_path(&sources)?;
    let folder = cache::keyed("initramfs", key, |folder| write_common_archive(config, folder).map(drop))?;
    read(&folder.join(COMMON_ARCHIVE))
}

/// Name of the compressed archive in its folder.
const COMMON_ARCHIVE: &str = "common.cpio.zst";

/// Builds the archive with programs and modules, even if it is in the cache, and returns its path in the folder.
pub fn write_common_archive(config: &ImageConfig, folder: &Path) -> Result<PathBuf> {
    let sources = workspace::root().join("initramfs");
    let mut archive = manifest(&read_text(&sources.join("manifest.txt"))?, config)?;
    add_modules(&mut archive, &config.kernel, &read_text(&sources.join("drivers.txt"))?)?;
    let plain = folder.join("common.cpio");
    fs::write(&plain, archive.to_bytes(config.date)).with_context(|| format!("writing {}", plain.display()))?;
    // One thread, because zstd does not promise the same output with more.
    let finished = folder.join(COMMON_ARCHIVE);
    run_quietly(command("zstd", ["-19", "--single-thread", "--quiet", "--rm"]).arg(&plain).arg("-o").arg(&finished))?;
    Ok(finished)
}

/// Whether this is a valid server URL for machines: `https://`, a host name or address, and an optional port.
pub fn check_server_url(url: &str) -> Result<()> {
    let refuse =
        |why: &str| bail!("checking the server's URL {url:?}: {why}; write it as https://install.example:8443");
    let Some(rest) = url.strip_prefix("https://") else { return refuse("it does not begin with https://") };
    let host_and_port = rest.strip_suffix('/').unwrap_or(rest);
    // An IPv6 address contains colons, so it is in brackets (RFC 3986, section 3.2.2).
    let (host, port) = match host_and_port.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) if host.parse::<Ipv6Addr>().is_ok() => {
            (host, port.strip_prefix(':').or((!port.is_empty()).then_some(port)))
        }
        _ => match host_and_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_and_port, None),
        },
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    if host.is_empty() || !(host.chars().all(is_name) || host.parse::<Ipv6Addr>().is_ok()) {
        return refuse("it has no host");
    }
    match port {
        Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
            refuse("the part after the host is not a valid port")
        }
        _ => Ok(()),
    }
}

/// Whether this contains a certificate in PEM (RFC 7468).
pub fn check_ca(pem: &str) -> Result<()> {
    if !pem.contains("-----BEGIN CERTIFICATE-----") {
        bail!("reading the CA: it contains no certificate in PEM; `slipway-server ca` prints the server's CA");
    }
    Ok(())
}

/// The archive with `/etc/slipway`.
fn config_archive(config: &ImageConfig) -> Result<Archive> {
    check_server_url(&config.server_url)?;
    check_ca(&config.ca)?;
    // JSON strings are valid YAML strings (YAML 1.2.2, section 1.2).
    let mut yaml = format!("server: {}\n", serde_json::to_string(&config.server_url)?);
    if let Some(token) = &config.token {
        yaml.push_str(&format!("token: {}\n", serde_json::to_string(token)?));
    }
    yaml.push_str("ca: |\n");
    for line in config.ca.trim().lines() {
        yaml.push_str(&format!("  {}\n", line.trim()));
    }
    let mut archive = Archive::default();
    archive.add_file("/etc/slipway/config.yaml", 0o600, yaml.into_bytes());
    Ok(archive)
}

/// The entries of a gen_init_cpio list.
fn manifest(text: &str, config: &ImageConfig) -> Result<Archive> {
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
            ["file", path, "${SLIPWAY}", mode, "0", "0"] => (path, mode, Node::File(read(&config.binary)?)),
            ["file", path, "${MKE2FS}", mode, "0", "0"] => {
                (path, mode, Node::File(read(&config.mkfs.join(mkfs::MKE2FS))?))
            }
            ["file", path, "${MKFS_XFS}", mode, "0", "0"] => {
                (path, mode, Node::File(read(&config.mkfs.join(mkfs::MKFS_XFS))?))
            }
            _ => bail!("manifest.txt:{}: {line:?} is not a dir, nod, slink or file that root owns", number + 1),
        };
        archive.add(path, Entry { node, mode: octal(mode)? });
    }
    Ok(archive)
}

/// Entries of the driver list that the kernel does not have.
pub fn absent_drivers(kernel: &Kernel) -> Result<Vec<String>> {
    Ok(select(kernel, &read_text(&workspace::root().join("initramfs/drivers.txt"))?)?.absent)
}

fn select(kernel: &Kernel, drivers: &str) -> Result<Selection> {
    let index = |name: &str| read_text(&kernel.modules().join(name));
    let (dep, softdep) = (index("modules.dep")?, index("modules.softdep")?);
    let (alias, builtin) = (index("modules.alias")?, index("modules.builtin")?);
    Ok(Index::parse(&dep, &softdep, &alias, &builtin).select(drivers))
}

/// Adds the modules of a driver list, and a depmod index of only those.
fn add_modules(archive: &mut Archive, kernel: &Kernel, drivers: &str) -> Result<()> {
    let modules = kernel.modules();
    let selection = select(kernel, drivers)?;
    let staging = tempfile::tempdir().context("creating a temporary folder")?;
    let below = Path::new("lib/modules").join(&kernel.release);
    let own = ["modules.order", "modules.builtin", "modules.builtin.modinfo"].map(str::to_owned);
    for file in selection.files.iter().chain(&own) {
        let to = staging.path().join(&below).join(file);
        let folder = to.parent().unwrap_or(staging.path());
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        fs::copy(modules.join(file), &to).with_context(|| format!("copying {file}"))?;
    }
    run_quietly(command("depmod", ["--basedir"]).arg(staging.path()).arg(&kernel.release))?;
    let indexes = ["modules.dep", "modules.alias", "modules.softdep", "modules.builtin"].map(str::to_owned);
    for file in selection.files.iter().chain(&indexes) {
        let path = below.join(file);
        archive.add_file(&path.to_string_lossy(), 0o644, read(&staging.path().join(&path))?);
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}
