//! The header of a disk image of QEMU (QEMU, docs/interop/qcow2.txt, "Header" and "Additional fields").

use std::ops::Range;

/// Why an image with this header cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum HeaderError {
    /// The header contradicts itself or the format.
    #[error("reading the header of the qcow2 image: {reason}; check it with qemu-img check")]
    Invalid { reason: String },
    /// The image uses something slipway does not read.
    #[error("reading the header of the qcow2 image: {feature}; {remedy}")]
    Unsupported {
        feature: String,
        /// How to make an image that can be read.
        remedy: &'static str,
    },
    /// The file ends within the header.
    #[error(
        "reading the header of the qcow2 image: the file ends at byte {end}, before byte {needed}; fetch or make it \
         again"
    )]
    Truncated {
        end: u64,
        /// Size in bytes that the file would need to have.
        needed: u64,
    },
}

/// Bytes of the header that are read.
pub const HEADER_LEN: usize = 112;
/// Length of a header of version 2.
const V2_LEN: usize = 72;
/// Minimum length of a header of version 3.
const V3_LEN: usize = 104;
const COMPRESSION_TYPE: usize = 104;
/// Binary logarithms of the cluster sizes that QEMU reads, 512 bytes to 2 MiB.
const CLUSTER_BITS: Range<u32> = 9..22;
/// Most entries of the L1 table that are read: enough for 64 TiB in clusters of 64 KiB.
const MAX_L1: u64 = 1 << 17;
const CONVERT: &str = "use qemu-img convert -O qcow2 to make a supported image";

const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;

/// Compression method of compressed clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate, as of zlib but without its header.
    Deflate,
    /// zstd.
    Zstd,
}

/// A checked header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Version of the format: 2 or 3.
    pub version: u32,
    /// Binary logarithm of the cluster size.
    pub cluster_bits: u32,
    /// Size of the raw image in bytes.
    pub size: u64,
    /// Number of entries of the L1 table that map the raw image.
    pub l1_entries: usize,
    /// Range of those entries in the file, in bytes.
    pub l1: Range<u64>,
    /// Range of the refcount table in the file, in bytes.
    pub refcounts: Range<u64>,
    /// Compression method of compressed clusters.
    pub compression: Compression,
}

impl Header {
    /// Parses the first [`HEADER_LEN`] bytes of a file, or all of a shorter one. Fails if the image cannot be read.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let fields = Fields(bytes);
        if !bytes.starts_with(b"QFI\xFB") {
            return Err(refused("it does not begin like a qcow2 image"));
        }
        let version = fields.be32(4)?;
        let (compression, incompatible) = match version {
            2 => (Compression::Deflate, 0),
            3 => version_3(&fields)?,
            _ => return Err(unsupported(format!("it has version {version}, but only 2 and 3 are supported"), CONVERT)),
        };
        check_features(incompatible)?;
        if fields.be64(8)? != 0 {
            return Err(unsupported("it has a backing file".to_owned(), CONVERT));
        }
        if fields.be32(32)? != 0 {
            return Err(unsupported("it is encrypted".to_owned(), CONVERT));
        }
        let cluster_bits = fields.be32(20)?;
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(refused(format!("its clusters cannot have 2^{cluster_bits} bytes")));
        }
        let size = fields.be64(24)?;
        if size == 0 || size > i64::MAX as u64 {
            return Err(refused(format!("the raw image cannot have {size} bytes")));
        }
        let l1_entries = size.div_ceil(1 << (2 * cluster_bits - 3));
        if l1_entries > u64::from(fields.be32(36)?) {
            return Err(refused(format!("its L1 table is too short for {size} bytes")));
        }
        if l1_entries > MAX_L1 {
            let remedy = "use qemu-img convert -O qcow2 -o cluster_size=2M to make one with larger clusters";
            return Err(unsupported(format!("{size} bytes in clusters of {} are too many", 1 << cluster_bits), remedy));
        }
        let area = |name, start: u64, len: u64| match start.checked_add(len) {
            Some(end) if start > 0 && start.is_multiple_of(1 << cluster_bits) => Ok(start..end),
            _ => Err(refused(format!("its {name} cannot be at byte {start}"))),
        };
        let l1 = area("L1 table", fields.be64(40)?, l1_entries * 8)?;
        let refcounts = area("refcount table", fields.be64(48)?, u64::from(fields.be32(56)?) << cluster_bits)?;
        let l1_entries = l1_entries as usize;
        Ok(Self { version, cluster_bits, size, l1_entries, l1, refcounts, compression })
    }

    /// Bytes of a cluster.
    pub fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the raw image that an L2 table maps.
    pub fn l2_span(&self) -> u64 {
        1 << (2 * self.cluster_bits - 3)
    }

    /// Bytes of the raw image in the cluster that begins at byte `guest` of the raw image. The last cluster ends where
    /// the raw image does.
    pub fn len_at(&self, guest: u64) -> u64 {
        self.cluster().min(self.size - guest)
    }

    /// Number of entries in the L2 table of this L1 entry that map the raw image.
    pub fn l2_entries(&self, l1_index: usize) -> usize {
        let rest = self.size - l1_index as u64 * self.l2_span();
        rest.min(self.l2_span()).div_ceil(self.cluster()) as usize
    }
}

fn version_3(fields: &Fields<'_>) -> Result<(Compression, u64), HeaderError> {
    let incompatible = fields.be64(72)?;
    let len = fields.be32(100)? as usize;
    if len < V3_LEN || !len.is_multiple_of(8) {
        return Err(refused(format!("the header cannot have {len} bytes")));
    }
    let kind = if len > COMPRESSION_TYPE { u8::from_be_bytes(fields.bytes(COMPRESSION_TYPE)?) } else { 0 };
    let compression = match (incompatible & COMPRESSION != 0, kind) {
        (false, 0) => Compression::Deflate,
        (true, 1) => Compression::Zstd,
        (false, _) | (true, 0) => {
            return Err(refused(format!("its compression flag contradicts its compression type {kind}")));
        }
        (true, _) => {
            return Err(unsupported(
                format!("it has compression type {kind}, but only zlib and zstd are supported"),
                CONVERT,
            ));
        }
    };
    Ok((compression, incompatible))
}

fn check_features(incompatible: u64) -> Result<(), HeaderError> {
    const REPAIR: &str = "repair it with qemu-img check -r all";
    let known = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION | EXTENDED_L2;
    let (feature, remedy) = match incompatible {
        bits if bits & CORRUPT != 0 => ("it is marked as damaged", REPAIR),
        bits if bits & DIRTY != 0 => ("it was not closed", REPAIR),
        bits if bits & EXTERNAL_DATA != 0 => ("its data is in another file", CONVERT),
        bits if bits & EXTENDED_L2 != 0 => ("it has extended L2 entries", CONVERT),
        bits if bits & !known != 0 => ("it has an unknown feature", CONVERT),
        _ => return Ok(()),
    };
    Err(unsupported(feature.to_owned(), remedy))
}

fn refused(reason: impl Into<String>) -> HeaderError {
    HeaderError::Invalid { reason: reason.into() }
}

fn unsupported(feature: String, remedy: &'static str) -> HeaderError {
    HeaderError::Unsupported { feature, remedy }
}

/// Numbers in big-endian order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Result<[u8; N], HeaderError> {
        let found = self.0.get(at..).and_then(|rest| rest.first_chunk());
        let (end, needed) = (self.0.len() as u64, V2_LEN.max(at + N) as u64);
        found.copied().ok_or(HeaderError::Truncated { end, needed })
    }

    fn be32(&self, at: usize) -> Result<u32, HeaderError> {
        self.bytes(at).map(u32::from_be_bytes)
    }

    fn be64(&self, at: usize) -> Result<u64, HeaderError> {
        self.bytes(at).map(u64::from_be_bytes)
    }
}
