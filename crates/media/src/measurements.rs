//! Predicts the values of TPM registers after a boot from these files.
//!
//! Firmware measures each program that it loads into register 4, by its Authenticode digest (TCG PC Client Platform
//! Firmware Profile, section 3.3.4.5). The stub measures the sections of the unified kernel image into register 11, and
//! input from outside the image into registers 12 and 13 (systemd-stub(7), "TPM PCR Notes").

use base16ct::lower::encode_string as hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use slipway_formats::pe::Sections;
use slipway_parts::Arch;
use slipway_protocol::MachineSettings;
use slipway_secure_boot::authenticode;

use crate::machine_settings;

/// The sections that the stub measures, in this order. It measures the name with a final zero, then the content.
pub const MEASURED: [&str; 6] = [".linux", ".osrel", ".cmdline", ".initrd", ".uname", ".sbat"];
/// The version of systemd whose stub behaves as described above, and the text before the version in a stub. Other
/// versions measure other sections, or let firmware load, and so measure, the kernel.
const STUB: u32 = 262;
const STUB_NAME: &[u8] = b"#### LoaderInfo: systemd-stub ";
/// Events in register 4 that are not programs: the texts of EV_EFI_ACTION, the text of EV_OMIT_BOOT_DEVICE_EVENTS, and
/// the four zeros of a separator (TCG profile, section 10.4.4, table 27).
pub const NO_PROGRAMS: [&[u8]; 4] = [CALLING, b"Returning from EFI Application from Boot Option", OMITTED, SEPARATOR];
const CALLING: &[u8] = b"Calling EFI Application from Boot Option";
const OMITTED: &[u8] = b"BOOT ATTEMPTS OMITTED";
const SEPARATOR: &[u8] = &[0; 4];

/// What the boot files of one architecture leave in the SHA-256 bank. Digests and values are in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Measurements {
    /// Architecture.
    pub arch: Arch,
    /// The Authenticode digest of the unified kernel image, which firmware measures into register 4.
    pub program: String,
    /// The Authenticode digest of the kernel. The stub does not load it through the firmware, so firmware measures the
    /// kernel only if another program starts it. Absent if the kernel is not an EFI program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The sections of the image that the stub measures into register 11, in its order.
    pub sections: Vec<SectionDigest>,
    /// Register 4 if firmware starts the image by its first boot option. Firmware that tries other programs first gives
    /// another value, so only [`Self::program`] is compared.
    pub pcr4: String,
    /// Register 11.
    pub pcr11: String,
}

/// A section of a unified kernel image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SectionDigest {
    /// Name of the section.
    pub name: String,
    /// SHA-256 of the content.
    pub sha256: String,
}

/// The measurements of an image cannot be predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The image is not a unified kernel image.
    #[error("predicting the measurements of a unified kernel image: it cannot be read")]
    Unreadable,
    /// The image's stub is of another version, which may measure other sections.
    #[error("predicting the measurements of a unified kernel image: its stub is not from systemd {STUB}")]
    Stub,
}

impl Measurements {
    /// Predicts the measurements of a unified kernel image, signed or not.
    ///
    /// # Errors
    /// If it cannot be read, or its stub is of an unknown version.
    pub fn predict(arch: Arch, image: &[u8]) -> Result<Self, MeasureError> {
        let program = authenticode::digest(image).map_err(|_| MeasureError::Unreadable)?;
        let found = Sections::read(image).ok_or(MeasureError::Unreadable)?;
        let content = |name: &str| {
            let section = found.first(name)?;
            let start = usize::try_from(section.offset).ok()?;
            image.get(start..start.checked_add(usize::try_from(section.len).ok()?)?)
        };
        let told = content(".sdmagic").and_then(|text| text.strip_prefix(STUB_NAME)).ok_or(MeasureError::Stub)?;
        let version: String = told.iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
        if version.parse() != Ok(STUB) {
            return Err(MeasureError::Stub);
        }
        let kernel = content(".linux").ok_or(MeasureError::Unreadable)?;
        let kernel = authenticode::digest(kernel).ok();
        let measured: Vec<(&str, [u8; 32])> =
            MEASURED.into_iter().filter_map(|name| Some((name, sha256(content(name)?)))).collect();
        let pcr11 = measured.iter().flat_map(|(name, digest)| [name_digest(name), *digest]);
        let pcr4 = [sha256(CALLING), sha256(SEPARATOR), program];
        Ok(Self {
            arch,
            pcr4: hex(&extended(pcr4)),
            pcr11: hex(&extended(pcr11)),
            program: hex(&program),
            kernel: kernel.map(|digest| hex(&digest)),
            sections: measured
                .iter()
                .map(|(name, digest)| SectionDigest { name: (*name).to_owned(), sha256: hex(digest) })
                .collect(),
        })
    }
}

/// Returns the measurements of these programs. Leaves out programs whose measurements cannot be predicted.
pub fn of(programs: &[(Arch, Vec<u8>)]) -> Vec<Measurements> {
    programs.iter().filter_map(|(arch, program)| Measurements::predict(*arch, program).ok()).collect()
}

/// Returns the digest that the stub extends register 12 with if a medium has these settings. It covers the archive in
/// which the stub passes the settings to the kernel (cpio "newc"; systemd's src/boot/efi/cpio.c). None if the settings
/// are invalid.
pub fn measured(settings: &MachineSettings) -> Option<[u8; 32]> {
    let file = machine_settings::to_bytes(settings).ok()?;
    let name = machine_settings::PATH.rsplit('/').next().unwrap_or_default();
    let mut archive = Vec::new();
    let folder = ".extra/global_credentials";
    let entries: [(&str, u32, &[u8]); 3] =
        [(".extra", 0o040_555, &[]), (folder, 0o040_500, &[]), (&format!("{folder}/{name}"), 0o100_400, &file)];
    for (index, (path, mode, content)) in entries.into_iter().enumerate() {
        // Number, mode, owner, group, links, time, length, four numbers of devices, length of the name, checksum.
        let fields = [index + 1, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, path.len() + 1, 0];
        archive.extend(b"070701");
        fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
        archive.extend(path.bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(4), 0);
    }
    // The last entry has one link, and the length of its name, 11, as a capital `B`.
    archive.extend(format!("070701{}1{}B{}TRAILER!!!\0\0\0\0", "0".repeat(39), "0".repeat(55), "0".repeat(8)).bytes());
    Some(sha256(&archive))
}

/// Returns the digest of the event that names a section. The event for the section's content follows it.
pub fn name_digest(name: &str) -> [u8; 32] {
    sha256(format!("{name}\0").as_bytes())
}

/// Returns the SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns the value of a register that starts with zeros and is extended with these digests.
fn extended(digests: impl IntoIterator<Item = [u8; 32]>) -> [u8; 32] {
    digests.into_iter().fold([0; 32], |value, digest| sha256(&[value, digest].concat()))
}
