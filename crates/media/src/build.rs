//! Makes boot files from parts and a configuration.

use std::io;

use base16ct::lower::encode_string as hex;
use sha2::{Digest as _, Sha256};
use slipway_formats::fat::{self, File, Volume};
use slipway_parts::{Arch, Parts, RareDrivers, cpio, sha256};
use slipway_protocol::node::boot_report::program_of;
use slipway_protocol::{MachineSettings, SettingError};
use slipway_secure_boot::{ImageError, SigningKey, authenticode};

use crate::config::{Config, to_yaml};
use crate::kind::Kind;
use crate::machine_settings;
use crate::manifest::{self, AssetInfo, MANIFEST, Manifest, PartsUsed, Range, SBOM, Signer};
use crate::{gpt, iso, measurements, network, uki};

/// Label of the file system and, in lower case, name of the partition. slipway leaves a disk with this label alone,
/// unless a step names the disk.
const LABEL: &str = "SLIPWAY";
/// Offset of the partition on a disk, in bytes.
const DISK_START: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The input of a build.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The machines' configuration.
    pub config: &'a Config,
    /// The prebuilt parts, one entry for each architecture.
    pub parts: &'a [Parts],
    /// Kinds of boot files to make.
    pub kinds: &'a [Kind],
    /// Signs the boot files for Secure Boot. None leaves them unsigned.
    pub signer: Option<&'a SigningKey>,
}

/// Writes a file, given its path below the folder of the build, and its content in pieces.
pub type Sink<'a> = dyn FnMut(&str, &[&[u8]]) -> io::Result<()> + 'a;

/// Why boot files cannot be made.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum BuildError {
    /// A value of the configuration is wrong.
    #[error(transparent)]
    Config(#[from] SettingError),
    /// No parts, or two for one architecture.
    #[error("making boot files: {0}")]
    Parts(&'static str),
    /// The unified kernel image cannot be made.
    #[error(transparent)]
    Uki(#[from] uki::UkiError),
    /// The unified kernel image cannot be signed.
    #[error("signing the unified kernel image for {}", arch.name())]
    Sign { arch: Arch, source: ImageError },
    /// A file for the network cannot be signed.
    #[error(transparent)]
    SignFile(#[from] network::SignFileError),
    /// The files are too large for one medium.
    #[error("making a boot medium: the files do not fit into a FAT16 file system")]
    Medium(#[source] fat::NoRoom),
    /// A file cannot be written.
    #[error("writing the boot file {path}")]
    Write {
        /// The file's path below the folder of the build.
        path: String,
        source: io::Error,
    },
}

/// Returns the id of a build: SHA-256 of all inputs, truncated to 16 hexadecimal digits.
pub fn id(inputs: &Inputs) -> String {
    let mut hasher = Sha256::new();
    let mut add = |text: &str| {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    };
    add(env!("CARGO_PKG_VERSION"));
    add(&to_yaml(&inputs.config.settings));
    for kind in Kind::ALL.into_iter().filter(|kind| inputs.kinds.contains(kind)) {
        add(kind.name());
    }
    for parts in inputs.parts {
        add(&parts.digest);
        add(&inputs.config.cmdline(parts.about.arch));
    }
    add(&inputs.signer.map_or(String::new(), |signer| hex(&signer.certificate().sha256())));
    hex(&hasher.finalize()).chars().take(16).collect()
}

/// Makes boot files, then the manifest.
pub fn build(inputs: &Inputs, sink: &mut Sink) -> Result<Manifest, BuildError> {
    let Inputs { config, parts, kinds, signer } = *inputs;
    config.check(kinds)?;
    check(parts)?;
    let mut build = Build { sink, assets: Vec::new() };
    let (id, mut programs) = (id(inputs), Vec::new());
    for parts in parts {
        let (arch, initramfs) = (parts.about.arch, initramfs(config, parts, &id));
        let mut program = unified(config, parts, &initramfs)?;
        if let Some(signer) = signer {
            program = authenticode::sign(program, signer).map_err(|source| BuildError::Sign { arch, source })?;
        }
        // Machines and their installed systems fetch these files from the server, however the machine was booted.
        if let Some(program) = &parts.program {
            build.write(&program_of(arch.name()), &[program], None)?;
        }
        for (name, content) in parts.rare_drivers.iter().flat_map(RareDrivers::files) {
            build.write(&format!("{}/{name}", arch.name()), &[content], None)?;
        }
        if kinds.contains(&Kind::Network) {
            for (name, content) in network::files(&parts.vmlinuz, &initramfs, &program, signer)? {
                build.write(&format!("{}/{name}", arch.name()), &[&content], None)?;
            }
        }
        programs.push((arch, program));
    }
    if kinds.contains(&Kind::Stick) {
        medium("slipway.img", Layout::Disk, &id, &programs, &mut build)?;
    }
    if kinds.contains(&Kind::Disc) {
        medium("slipway.iso", Layout::Disc, &id, &programs, &mut build)?;
    }
    build.write(SBOM, &[&manifest::sbom(&id, parts)], None)?;
    let used = |parts: &Parts| PartsUsed {
        arch: parts.about.arch,
        kernel: parts.about.kernel.clone(),
        release: parts.about.release.clone(),
        version: parts.about.version.clone(),
        sha256: parts.digest.clone(),
        cmdline: config.cmdline(parts.about.arch),
    };
    let settings = &config.settings;
    let manifest = Manifest {
        id,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server: settings.server.clone(),
        ca_sha256: sha256(settings.ca.as_bytes()),
        has_token: settings.machine.token.is_some(),
        require: settings.require,
        metadata: settings.metadata.clone(),
        signed_by: signer.map(|signer| Signer {
            subject: signer.certificate().subject().to_owned(),
            certificate_sha256: hex(&signer.certificate().sha256()),
        }),
        parts: parts.iter().map(used).collect(),
        measurements: measurements::of(&programs),
        assets: std::mem::take(&mut build.assets),
    };
    build.write(MANIFEST, &[&manifest.to_json()], None).map(|()| manifest)
}

fn check(parts: &[Parts]) -> Result<(), BuildError> {
    let archs: std::collections::BTreeSet<Arch> = parts.iter().map(|parts| parts.about.arch).collect();
    match (parts.len(), archs.len()) {
        (0, _) => Err(BuildError::Parts("there are no parts")),
        (all, different) if all != different => Err(BuildError::Parts("there are two kernels for one architecture")),
        _ => Ok(()),
    }
}

/// Writes files, and keeps their digests for the manifest.
struct Build<'a, 'b> {
    sink: &'a mut Sink<'b>,
    assets: Vec<AssetInfo>,
}

impl Build<'_, '_> {
    fn write(&mut self, path: &str, pieces: &[&[u8]], machine_settings: Option<Range>) -> Result<(), BuildError> {
        let mut hasher = Sha256::new();
        pieces.iter().for_each(|piece| hasher.update(piece));
        let size = pieces.iter().map(|piece| piece.len() as u64).sum();
        (self.sink)(path, pieces).map_err(|source| BuildError::Write { path: path.to_owned(), source })?;
        self.assets.push(AssetInfo { path: path.to_owned(), size, sha256: hex(&hasher.finalize()), machine_settings });
        Ok(())
    }
}

/// Returns the initramfs, followed by an archive with the configuration, which the kernel unpacks over it.
fn initramfs(config: &Config, parts: &Parts, build: &str) -> Vec<u8> {
    let padding = &ZEROS[..cpio::padding(parts.initramfs.len())];
    [&parts.initramfs[..], padding, &config.archive(build, &parts.about)].concat()
}

fn unified(config: &Config, parts: &Parts, initramfs: &[u8]) -> Result<Vec<u8>, uki::UkiError> {
    let cmdline = config.cmdline(parts.about.arch);
    let sections: [(&str, &[u8]); 5] = [
        (".osrel", b"ID=slipway\nNAME=slipway\nPRETTY_NAME=slipway\n"),
        (".cmdline", cmdline.as_bytes()),
        (".uname", parts.about.release.as_bytes()),
        (".linux", &parts.vmlinuz),
        (".initrd", initramfs),
    ];
    uki::assemble(&parts.stub, &sections)
}

/// The layout of a medium around its partition.
#[derive(Clone, Copy)]
enum Layout {
    Disk,
    Disc,
}

impl Layout {
    /// Returns the offset of the partition, in bytes.
    fn start(self) -> u64 {
        match self {
            Self::Disk => DISK_START,
            Self::Disc => iso::PARTITION * iso::SECTOR,
        }
    }

    /// Returns the size of the medium in bytes, for a partition of `partition` bytes.
    fn len(self, partition: u64) -> u64 {
        match self {
            Self::Disk => (DISK_START + partition + gpt::TAIL_SECTORS * gpt::SECTOR).next_multiple_of(1 << 20),
            Self::Disc => iso::sectors(partition) * iso::SECTOR,
        }
    }
}

/// Writes the image of a medium. Its EFI system partition holds the programs and reserves space for one machine's
/// settings.
fn medium(
    path: &str,
    layout: Layout,
    id: &str,
    programs: &[(Arch, Vec<u8>)],
    build: &mut Build,
) -> Result<(), BuildError> {
    let settings = machine_settings::to_bytes(&MachineSettings::default())?;
    let mut files = vec![File { path: machine_settings::PATH, content: &settings }];
    files.extend(programs.iter().map(|(arch, program)| File { path: arch.removable(), content: program }));
    let len = fat::fat16_len(&files);
    let (start, end) = (layout.start(), layout.len(len));
    let volume = Volume {
        kind: fat::Kind::Fat16,
        sector: gpt::SECTOR,
        len,
        hidden: start / gpt::SECTOR,
        id: Sha256::digest(id).first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)),
        label: LABEL,
        files: &files,
    };
    let volume = volume.make().map_err(BuildError::Medium)?;
    let table = gpt::Table {
        disk: end / gpt::SECTOR,
        first: start / gpt::SECTOR,
        len: len / gpt::SECTOR,
        name: "slipway",
        disk_guid: guid(id, "disk"),
        partition_guid: guid(id, "partition"),
    };
    let mut head = match layout {
        Layout::Disk => table.head(),
        Layout::Disc => iso::head(LABEL, len, &table),
    };
    head.resize(start as usize, 0);
    let tail = table.tail();
    let mut pieces = vec![&head[..]];
    pieces.extend(volume.pieces());
    let mut gap = end - pieces.iter().chain([&&tail[..]]).map(|piece| piece.len() as u64).sum::<u64>();
    while gap > 0 {
        let piece = &ZEROS[..gap.min(ZEROS.len() as u64) as usize];
        gap -= piece.len() as u64;
        pieces.push(piece);
    }
    pieces.push(&tail);
    let offset = start + volume.offsets().first().copied().unwrap_or_default();
    build.write(path, &pieces, Some(Range { offset, length: machine_settings::LEN as u64 }))
}

/// Returns a GUID as stored on disk, derived from the id of the build (RFC 9562, section 5.8).
fn guid(id: &str, what: &str) -> [u8; 16] {
    let hash = Sha256::digest(format!("{id} {what}"));
    let mut guid = hash.first_chunk::<16>().copied().unwrap_or_default();
    // The third field is in little-endian order.
    guid[7] = guid[7] & 0x0F | 0x80;
    guid[8] = guid[8] & 0x3F | 0x80;
    guid
}
