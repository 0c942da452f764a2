//! The pack of drivers that the boot image has no room for. The server serves the pack and its index as boot files. The
//! index says where each driver is in the pack. The boot image has the digest of the index, and the index has the
//! digest of each piece, so a machine trusts both as much as its boot image.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Name of the index in the folder of an architecture's boot files. It is a [`RareDrivers`] in JSON.
pub const INDEX: &str = "rare-drivers.json";
/// Name of the pack, in the same folder: the pieces one after another, each compressed with zstd.
pub const PACK: &str = "rare-drivers.pack";
/// The file of the boot image with the digest of the index: SHA-256 in hexadecimal.
pub const DIGEST_FILE: &str = "etc/slipway/rare-drivers.sha256";

/// The largest index, in bytes.
pub const MAX_INDEX_BYTES: u64 = 4 << 20;
/// The largest piece of the pack, in compressed bytes.
pub const MAX_PIECE_BYTES: u64 = 8 << 20;
/// The largest driver or firmware file, in bytes.
pub const MAX_FILE_BYTES: u64 = 32 << 20;

/// The index of the pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RareDrivers {
    /// Release of the kernel that the drivers are for, as `uname -r` prints it.
    pub release: String,
    /// The modules by name, with `_` where file names have `-`. The modules that a module needs are in this map too.
    pub modules: BTreeMap<String, RareModule>,
    /// Firmware by its path below `/lib/firmware`.
    pub firmware: BTreeMap<String, Piece>,
}

/// A kernel module of the pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RareModule {
    /// Where the module's file is in the pack.
    pub piece: Piece,
    /// The modules that must be loaded before this one, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Patterns of the modaliases of the devices that the module drives. Empty if only other modules need this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The firmware files in the pack that the module may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub firmware: Vec<String>,
}

/// A compressed file in the pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// The offset of the piece's first byte in the pack.
    pub offset: u64,
    /// The compressed size in bytes.
    pub size: u64,
    /// SHA-256 of the compressed bytes, in hexadecimal.
    pub sha256: String,
    /// The size of the file in bytes, after decompression.
    pub unpacked: u64,
}

/// Why an index cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum RareDriversError {
    /// The index is for another kernel.
    #[error("it is for kernel {of_index:?}, but this machine runs {running:?}")]
    Release { of_index: String, running: String },
    /// A name is not valid, for example because it leads out of its folder.
    #[error("{0:?} is not a name of a module or firmware file")]
    Name(String),
    /// A module needs a module or firmware file that the index does not have.
    #[error("module {module} needs {missing}, which is not in the index")]
    Missing { module: String, missing: String },
    /// A piece is empty or too large, or its end is beyond the largest offset (2^64 - 1).
    #[error("{name} has {} bytes, and {} when unpacked: at most {MAX_PIECE_BYTES} and {MAX_FILE_BYTES} are \
             accepted", piece.size, piece.unpacked)]
    Size { name: String, piece: Piece },
}

impl RareDrivers {
    /// Fails unless a machine whose kernel has the release `running` can use the index. An accepted index has plain
    /// names, bounded sizes and everything that its modules need.
    pub fn check(&self, running: &str) -> Result<(), RareDriversError> {
        if self.release != running {
            return Err(RareDriversError::Release { of_index: self.release.clone(), running: running.to_owned() });
        }
        for (name, module) in &self.modules {
            if !is_module(name) {
                return Err(RareDriversError::Name(name.clone()));
            }
            let no_module = module.needs.iter().find(|needed| !self.modules.contains_key(*needed));
            let no_firmware = module.firmware.iter().find(|file| !self.firmware.contains_key(*file));
            if let Some(missing) = no_module.or(no_firmware) {
                return Err(RareDriversError::Missing { module: name.clone(), missing: missing.clone() });
            }
        }
        if let Some(name) = self.firmware.keys().find(|name| !is_firmware(name)) {
            return Err(RareDriversError::Name(name.clone()));
        }
        let modules = self.modules.iter().map(|(name, module)| (name, &module.piece));
        match modules.chain(&self.firmware).find(|(_, piece)| !piece.is_bounded()) {
            Some((name, piece)) => Err(RareDriversError::Size { name: name.clone(), piece: piece.clone() }),
            None => Ok(()),
        }
    }

    /// Returns the modules to load for the named drivers, each after the modules that it needs, without loaded modules.
    pub fn in_order(&self, drivers: &[&str], is_loaded: impl Fn(&str) -> bool) -> Vec<(&str, &RareModule)> {
        let mut known = BTreeSet::new();
        let wanted = drivers.iter().filter_map(|driver| self.modules.get_key_value(*driver));
        let names = wanted.flat_map(|(name, module)| module.needs.iter().chain([name]));
        let new = names.filter(|name| known.insert(name.as_str()) && !is_loaded(name));
        new.filter_map(|name| Some((name.as_str(), self.modules.get(name)?))).collect()
    }
}

impl Piece {
    fn is_bounded(&self) -> bool {
        let sizes = (1..=MAX_PIECE_BYTES).contains(&self.size) && self.unpacked <= MAX_FILE_BYTES;
        sizes && self.offset.checked_add(self.size).is_some()
    }
}

fn is_module(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Whether a text is a relative path of plain names.
fn is_firmware(name: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    (1..=255).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()) && name.split('/').all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RELEASE: &str = "6.1.0-1-amd64";

    fn piece() -> Piece {
        Piece { offset: 7, size: 100, sha256: "00".repeat(32), unpacked: 200 }
    }

    fn module(needs: &[&str], firmware: &[&str]) -> RareModule {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        RareModule { piece: piece(), needs: owned(needs), aliases: Vec::new(), firmware: owned(firmware) }
    }

    fn index() -> RareDrivers {
        let modules = [
            ("spi", module(&[], &[])),
            ("esp", module(&["spi"], &[])),
            ("am53c974", module(&["spi", "esp"], &[])),
            ("e100", module(&[], &["e100/a.bin"])),
        ];
        RareDrivers {
            release: RELEASE.to_owned(),
            modules: modules.into_iter().map(|(name, module)| (name.to_owned(), module)).collect(),
            firmware: BTreeMap::from([("e100/a.bin".to_owned(), piece())]),
        }
    }

    #[test]
    fn a_whole_index_is_taken() {
        assert_eq!(index().check(RELEASE), Ok(()));
    }

    type Change = fn(&mut RareDrivers);

    #[test]
    fn an_index_that_would_do_harm_is_refused_with_a_sentence() {
        let cases: [(Change, &str); 11] = [
            (
                |index| index.release = "6.1.0-2-amd64".to_owned(),
                "it is for kernel \"6.1.0-2-amd64\", but this machine",
            ),
            (|index| drop(index.modules.insert("../a".to_owned(), RareModule::default())), "\"../a\" is not a name"),
            (|index| drop(index.modules.insert(String::new(), RareModule::default())), "\"\" is not a name"),
            (|index| drop(index.modules.insert("a".repeat(65), RareModule::default())), "is not a name"),
            (|index| drop(index.firmware.insert("e100/../../etc/a".to_owned(), piece())), "is not a name"),
            (|index| drop(index.firmware.insert("/etc/a".to_owned(), piece())), "is not a name"),
            (|index| drop(index.modules.remove("spi")), "module am53c974 needs spi, which is not in the index"),
            (|index| index.firmware.clear(), "module e100 needs e100/a.bin, which is not in the index"),
            (
                |index| drop(index.firmware.insert("b".to_owned(), Piece::default())),
                "b has 0 bytes, and 0 when unpacked",
            ),
            (
                |index| drop(index.firmware.insert("b".to_owned(), Piece { size: MAX_PIECE_BYTES + 1, ..piece() })),
                "b has 8388609 bytes",
            ),
            (
                |index| drop(index.firmware.insert("b".to_owned(), Piece { offset: u64::MAX, ..piece() })),
                "b has 100 bytes",
            ),
        ];
        for (change, expect) in cases {
            let mut index = index();
            change(&mut index);
            let said = index.check(RELEASE).map_err(|error| error.to_string());
            assert!(said.as_ref().is_err_and(|said| said.contains(expect)), "{said:?}, but expected {expect}");
        }
    }

    #[test]
    fn modules_come_once_and_after_what_they_need() {
        let order = |drivers: &[&str], loaded: &[&str]| -> Vec<String> {
            let index = index();
            let order = index.in_order(drivers, |name| loaded.contains(&name));
            order.into_iter().map(|(name, _)| name.to_owned()).collect()
        };
        assert_eq!(order(&["am53c974"], &[]), ["spi", "esp", "am53c974"]);
        assert_eq!(order(&["am53c974"], &["spi"]), ["esp", "am53c974"]);
        assert_eq!(order(&["esp", "am53c974", "e100"], &[]), ["spi", "esp", "am53c974", "e100"]);
        assert_eq!(order(&["e100", "unknown"], &["e100"]), Vec::<String>::new());
    }
}
