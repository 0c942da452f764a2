//! Prebuilt parts: everything in a boot image that is the same for every site.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::arch::Arch;

/// The description of a folder of parts: an [`About`] in JSON. [`About::files`] has the digests of the other files.
pub const ABOUT: &str = "parts.json";
/// The kernel, an EFI program.
pub const VMLINUZ: &str = "vmlinuz";
/// The compressed initramfs with program, drivers and firmware.
pub const INITRAMFS: &str = "initramfs";
/// systemd's stub for unified kernel images.
pub const STUB: &str = "stub.efi";
/// The program in the initramfs, which installed systems may fetch.
pub const PROGRAM: &str = "slipway";
/// The index of the drivers for which the initramfs has no room.
pub const RARE_INDEX: &str = "rare-drivers.json";
/// The drivers for which the initramfs has no room, compressed one by one.
pub const RARE_PACK: &str = "rare-drivers.pack";

/// Version of the format of [`ABOUT`].
const FORMAT: u32 = 2;

/// Parts for one architecture, with one kernel.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The description of the parts.
    pub about: About,
    /// SHA-256 of the file [`ABOUT`], in hexadecimal.
    pub digest: String,
    /// The kernel.
    pub vmlinuz: Vec<u8>,
    /// The compressed initramfs with program, drivers and firmware.
    pub initramfs: Vec<u8>,
    /// systemd's stub for unified kernel images.
    pub stub: Vec<u8>,
    /// The program in the initramfs. None for parts of earlier versions.
    pub program: Option<Vec<u8>>,
    /// The drivers for which the initramfs has no room, if any. The initramfs has the digest of their index.
    pub rare_drivers: Option<RareDrivers>,
}

/// Drivers that machines fetch when they need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RareDrivers {
    /// The index, in JSON.
    pub index: Vec<u8>,
    /// The drivers, compressed one by one.
    pub pack: Vec<u8>,
}

/// The description of a folder of parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    format: u32,
    /// Version of slipway.
    pub version: String,
    /// Architecture.
    pub arch: Arch,
    /// Name of the kernel, such as `generic`.
    pub kernel: String,
    /// Release of the kernel, as `uname -r` prints it.
    pub release: String,
    /// Date of the sources, in seconds since 1970. Every file of a medium has this date.
    pub date: u64,
    /// SHA-256 of each file, in hexadecimal.
    pub files: BTreeMap<String, String>,
    /// The software in the parts.
    pub components: Vec<Component>,
}

/// Software that is part of a boot image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    /// Name of the software.
    pub name: String,
    /// Version of the software.
    pub version: String,
    /// Who made the package: `Debian`, or `crates.io`, or `slipway`.
    pub supplier: String,
    /// Licence of the software, as an SPDX expression. None if no such expression is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
}

/// Why parts cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum PartsError {
    /// A file cannot be read.
    #[error("reading {} of the parts of the boot image", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The description is not JSON, or of another version.
    #[error("reading the parts of the boot image: {} is not a description of parts that this version \
             reads", path.display())]
    Description { path: PathBuf, source: serde_json::Error },
    /// The description has another format.
    #[error(
        "reading the parts of the boot image: {} has format {found}, but this version reads format {FORMAT}: install \
         the parts of this version", path.display()
    )]
    Format { path: PathBuf, found: u32 },
    /// A file does not have the digest in the description.
    #[error(
        "reading the parts of the boot image: {} does not have the digest that {ABOUT} names: it is damaged, or of \
         another version; install the parts again", path.display()
    )]
    Digest { path: PathBuf },
}

impl Parts {
    /// Reads and checks the parts in a folder.
    pub fn open(folder: &Path) -> Result<Self, PartsError> {
        let path = folder.join(ABOUT);
        let text = read(&path)?;
        let about: About =
            serde_json::from_slice(&text).map_err(|source| PartsError::Description { path: path.clone(), source })?;
        if about.format != FORMAT {
            return Err(PartsError::Format { path, found: about.format });
        }
        let part = |name: &str| {
            let path = folder.join(name);
            let bytes = read(&path)?;
            match about.files.get(name) == Some(&sha256(&bytes)) {
                true => Ok(bytes),
                false => Err(PartsError::Digest { path }),
            }
        };
        let (vmlinuz, initramfs, stub) = (part(VMLINUZ)?, part(INITRAMFS)?, part(STUB)?);
        let rare_drivers = match about.files.contains_key(RARE_INDEX) {
            true => Some(RareDrivers { index: part(RARE_INDEX)?, pack: part(RARE_PACK)? }),
            false => None,
        };
        let program = about.files.contains_key(PROGRAM).then(|| part(PROGRAM)).transpose()?;
        Ok(Self { about, digest: sha256(&text), vmlinuz, initramfs, stub, program, rare_drivers })
    }

    /// Makes parts of files that were just built. Computes the digests from the bytes.
    pub fn new(mut about: About, vmlinuz: Vec<u8>, initramfs: Vec<u8>, stub: Vec<u8>) -> Self {
        for (name, bytes) in [(VMLINUZ, &vmlinuz), (INITRAMFS, &initramfs), (STUB, &stub)] {
            about.files.insert(name.to_owned(), sha256(bytes));
        }
        let digest = sha256(&about.to_json());
        Self { about, digest, vmlinuz, initramfs, stub, program: None, rare_drivers: None }
    }

    /// Returns the same parts, with the program of their initramfs as a file.
    pub fn with_program(mut self, program: Vec<u8>) -> Self {
        self.about.files.insert(PROGRAM.to_owned(), sha256(&program));
        let digest = sha256(&self.about.to_json());
        Self { digest, program: Some(program), ..self }
    }

    /// Returns the same parts, with drivers for which their initramfs has no room.
    pub fn with_rare_drivers(mut self, rare: RareDrivers) -> Self {
        for (name, bytes) in rare.files() {
            self.about.files.insert(name.to_owned(), sha256(bytes));
        }
        let digest = sha256(&self.about.to_json());
        Self { digest, rare_drivers: Some(rare), ..self }
    }

    /// Returns name and content of each file in a folder with these parts.
    pub fn files(&self) -> Vec<(&'static str, std::borrow::Cow<'_, [u8]>)> {
        let rare = self.rare_drivers.iter().flat_map(RareDrivers::files);
        let others = [(VMLINUZ, &self.vmlinuz[..]), (INITRAMFS, &self.initramfs[..]), (STUB, &self.stub[..])];
        let program = self.program.iter().map(|program| (PROGRAM, &program[..]));
        let files = others.into_iter().chain(program).chain(rare).map(|(name, bytes)| (name, bytes.into()));
        [(ABOUT, self.about.to_json().into())].into_iter().chain(files).collect()
    }
}

impl RareDrivers {
    /// Returns the files, with the names that they also have among the boot files.
    pub fn files(&self) -> [(&'static str, &[u8]); 2] {
        [(RARE_INDEX, &self.index), (RARE_PACK, &self.pack)]
    }
}

impl About {
    /// Makes a description without files.
    pub fn new(arch: Arch, kernel: &str, release: &str, date: u64, mut components: Vec<Component>) -> Self {
        components.sort();
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            arch,
            kernel: kernel.to_owned(),
            release: release.to_owned(),
            date,
            files: BTreeMap::new(),
            components,
        }
    }

    fn to_json(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).unwrap_or_default();
        json.push(b'\n');
        json
    }
}

/// Returns the SHA-256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    base16ct::lower::encode_string(&Sha256::digest(bytes))
}

fn read(path: &Path) -> Result<Vec<u8>, PartsError> {
    fs::read(path).map_err(|source| PartsError::Read { path: path.to_owned(), source })
}
