//! The log of measurements at boot. TCG PC Client Platform Firmware Profile, section 10: the crypto-agile format, whose
//! numbers are little-endian.
//!
//! Linux provides it as `binary_bios_measurements`. It lists what the firmware measured, and what boot loaders, the
//! kernel's boot stub and unified kernel images measured through the firmware, including events after the log was first
//! read (the table of final events), which Linux appends. Later extensions that bypass the firmware are not in it.

use std::collections::BTreeMap;

use ring::digest::{Context, SHA256};
use slipway_protocol::node::attestation::QUOTED_PCRS;

use crate::wire::{self, EV_NO_ACTION, Reader, SPEC_ID};

/// The types of events that are measured, with their names.
const NAMES: &[(u32, &str)] = &[
    (0x0000_0000, "EV_PREBOOT_CERT"),
    (0x0000_0001, "EV_POST_CODE"),
    (0x0000_0004, "EV_SEPARATOR"),
    (0x0000_0005, "EV_ACTION"),
    (0x0000_0006, "EV_EVENT_TAG"),
    (0x0000_0007, "EV_S_CRTM_CONTENTS"),
    (0x0000_0008, "EV_S_CRTM_VERSION"),
    (0x0000_0009, "EV_CPU_MICROCODE"),
    (0x0000_000a, "EV_PLATFORM_CONFIG_FLAGS"),
    (0x0000_000b, "EV_TABLE_OF_DEVICES"),
    (0x0000_000c, "EV_COMPACT_HASH"),
    (0x0000_000d, "EV_IPL"),
    (0x0000_000e, "EV_IPL_PARTITION_DATA"),
    (0x0000_000f, "EV_NONHOST_CODE"),
    (0x0000_0010, "EV_NONHOST_CONFIG"),
    (0x0000_0011, "EV_NONHOST_INFO"),
    (0x0000_0012, "EV_OMIT_BOOT_DEVICE_EVENTS"),
    (0x0000_0013, "EV_POST_CODE2"),
    (0x8000_0001, "EV_EFI_VARIABLE_DRIVER_CONFIG"),
    (0x8000_0002, "EV_EFI_VARIABLE_BOOT"),
    (0x8000_0003, "EV_EFI_BOOT_SERVICES_APPLICATION"),
    (0x8000_0004, "EV_EFI_BOOT_SERVICES_DRIVER"),
    (0x8000_0005, "EV_EFI_RUNTIME_SERVICES_DRIVER"),
    (0x8000_0006, "EV_EFI_GPT_EVENT"),
    (0x8000_0007, "EV_EFI_ACTION"),
    (0x8000_0008, "EV_EFI_PLATFORM_FIRMWARE_BLOB"),
    (0x8000_0009, "EV_EFI_HANDOFF_TABLES"),
    (0x8000_000a, "EV_EFI_PLATFORM_FIRMWARE_BLOB2"),
    (0x8000_000b, "EV_EFI_HANDOFF_TABLES2"),
    (0x8000_000c, "EV_EFI_VARIABLE_BOOT2"),
    (0x8000_000d, "EV_EFI_GPT_EVENT2"),
    (0x8000_0010, "EV_EFI_HCRTM_EVENT"),
    (0x8000_00e0, "EV_EFI_VARIABLE_AUTHORITY"),
    (0x8000_00e1, "EV_EFI_SPDM_FIRMWARE_BLOB"),
    (0x8000_00e2, "EV_EFI_SPDM_FIRMWARE_CONFIG"),
];

/// Prefix of the event that gives the initial value of PCR 0, before one byte with the locality (section 10.4.5.3).
const STARTUP_LOCALITY: &[u8] = b"StartupLocality\0";
/// The last register of a TPM.
const LAST_PCR: u32 = 23;

/// A measurement into one of [`QUOTED_PCRS`], without its description in the log, which is not proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The register that was extended.
    pub pcr: u8,
    /// Type of the event in the profile.
    pub kind: u32,
    /// SHA-256 digest that the register was extended with.
    pub sha256: [u8; 32],
}

/// The events of [`QUOTED_PCRS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    /// The events in the order of measurement.
    pub events: Vec<Event>,
    /// Last byte of the initial value of PCR 0.
    locality: u8,
}

impl Event {
    /// The name of the [type](Self::kind) in the profile, if it has one.
    pub fn kind_name(&self) -> Option<&'static str> {
        NAMES.iter().find(|(kind, _)| *kind == self.kind).map(|(_, name)| *name)
    }
}

impl EventLog {
    /// Reads a log.
    ///
    /// # Errors
    /// If the log is not valid: the reason.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut rest = Reader(bytes);
        let algorithms = header(&mut rest)?;
        let mut log = Self::default();
        while !rest.is_empty() {
            log.read_event(&mut rest, &algorithms)?;
        }
        Ok(log)
    }

    /// Reads a TCG_PCR_EVENT2.
    fn read_event(&mut self, rest: &mut Reader<'_>, algorithms: &BTreeMap<u16, u16>) -> Result<(), &'static str> {
        const SHORT: &str = "its last event is truncated";
        let (pcr, kind) = (rest.le32().ok_or(SHORT)?, rest.le32().ok_or(SHORT)?);
        let digests = rest.le32().ok_or(SHORT)?;
        let mut sha256 = None;
        // Bounded, because the input ends: each digest takes up some of its bytes.
        for _ in 0..digests {
            let algorithm = rest.le16().ok_or(SHORT)?;
            let size = algorithms
                .get(&algorithm)
                .ok_or("an event has a digest whose algorithm is not listed in the first event")?;
            let digest = rest.bytes((*size).into()).ok_or(SHORT)?;
            if algorithm == wire::SHA256 {
                sha256 = digest.try_into().ok();
            }
        }
        let size = rest.le32().ok_or(SHORT)?;
        let data = usize::try_from(size).ok().and_then(|size| rest.bytes(size)).ok_or(SHORT)?;
        if kind == EV_NO_ACTION {
            if let Some([locality, ..]) = data.strip_prefix(STARTUP_LOCALITY) {
                self.locality = *locality;
            }
            return Ok(());
        }
        if pcr > LAST_PCR {
            return Err("an event names a register that does not exist");
        }
        let sha256 = sha256.ok_or("an event has no SHA-256 digest")?;
        let quoted = QUOTED_PCRS.iter().find(|quoted| u32::from(**quoted) == pcr);
        self.events.extend(quoted.map(|pcr| Event { pcr: *pcr, kind, sha256 }));
        Ok(())
    }

    /// The values of [`QUOTED_PCRS`] after the events. A register starts with zeros, PCR 0 with the locality in its
    /// last byte.
    pub fn replay(&self) -> BTreeMap<u8, [u8; 32]> {
        let mut pcrs = BTreeMap::from(QUOTED_PCRS.map(|pcr| (pcr, [0; 32])));
        if let Some([.., last]) = pcrs.get_mut(&0) {
            *last = self.locality;
        }
        for event in &self.events {
            if let Some(value) = pcrs.get_mut(&event.pcr) {
                let mut extended = Context::new(&SHA256);
                extended.update(value);
                extended.update(&event.sha256);
                value.copy_from_slice(extended.finish().as_ref());
            }
        }
        pcrs
    }
}

/// Reads the first event (a TCG_PCR_EVENT with a TCG_EfiSpecIDEvent). Returns the sizes of digests in bytes, by
/// algorithm.
fn header(rest: &mut Reader<'_>) -> Result<BTreeMap<u16, u16>, &'static str> {
    const OTHER: &str = "it does not begin with the header of a crypto-agile log (TCG_EfiSpecIDEvent)";
    let mut algorithms_of = || {
        // The register, the type and a digest of SHA-1.
        let (_pcr, kind, _digest) = (rest.le32()?, rest.le32()?, rest.bytes(20)?);
        let size = rest.le32()?;
        let mut data = Reader(rest.bytes(usize::try_from(size).ok()?)?);
        if kind != EV_NO_ACTION || data.bytes(SPEC_ID.len())? != SPEC_ID {
            return None;
        }
        // The class of the platform, the version of the profile and the size of a pointer.
        data.bytes(8)?;
        let count = data.le32()?;
        let mut algorithms = BTreeMap::new();
        // Bounded, because the input ends: each algorithm takes up some of its bytes.
        for _ in 0..count {
            algorithms.insert(data.le16()?, data.le16()?);
        }
        Some(algorithms)
    };
    let algorithms = algorithms_of().ok_or(OTHER)?;
    if algorithms.get(&wire::SHA256) != Some(&32) {
        return Err("it has no SHA-256 digests");
    }
    Ok(algorithms)
}
