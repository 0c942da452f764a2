//! Device paths of boot loaders (UEFI specification 2.10, 10.3): a partition, and a file on it.

/// Type and subtype of a node.
type Kind = (u8, u8);

/// The node types that are read (10.3.5.1, 10.3.5.4, 10.3.1).
const HARD_DRIVE: Kind = (4, 1);
const FILE_PATH: Kind = (4, 4);
const END: Kind = (0x7F, 0xFF);
/// Bytes before the content of a node: type, subtype, and length of the whole node.
const HEADER: usize = 4;
/// Bytes of a hard drive node.
const HARD_DRIVE_LEN: usize = 42;
/// Most nodes of one path that are read; real paths have fewer than ten.
const MAX_NODES: usize = 64;
/// Most bytes of a file path that are read.
const MAX_FILE: usize = 4096;

/// A partition, with the fields by which firmware finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardDrive {
    /// Number in the partition table, from 1.
    pub number: u32,
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Identifies the partition.
    pub signature: Signature,
}

/// Identifies a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// GUID of the partition in its table.
    Guid([u8; 16]),
    /// Signature of the disk, in an MBR.
    Mbr(u32),
}

/// A file on a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderPath {
    /// The partition.
    pub drive: HardDrive,
    /// Path from the root of the file system, with backslashes.
    pub file: String,
}

impl HardDrive {
    /// Whether both are the same partition, even if it has moved or grown. All partitions of a disk with an MBR have
    /// the same signature, so the number counts there too.
    pub fn is_same(&self, other: &Self) -> bool {
        let same_number = matches!(self.signature, Signature::Guid(_)) || self.number == other.number;
        self.signature == other.signature && same_number
    }
}

impl LoaderPath {
    /// Whether both are the same file on the same partition. FAT ignores case.
    pub fn is_same(&self, other: &Self) -> bool {
        self.drive.is_same(&other.drive) && self.file.eq_ignore_ascii_case(&other.file)
    }
}

/// The first file on a partition in a device path, after any other nodes. None if the path leads elsewhere, such as to
/// a network card, or is damaged.
pub fn loader(path: &[u8]) -> Option<LoaderPath> {
    let mut rest = path;
    let mut drive = None;
    let mut file = String::new();
    for _ in 0..MAX_NODES {
        let (kind, content, after) = node(rest)?;
        match kind {
            HARD_DRIVE => drive = hard_drive(content),
            // Adjacent file path nodes form one path (10.3.5.4).
            FILE_PATH if file.len() + content.len() <= MAX_FILE => file.push_str(&text(content)?),
            FILE_PATH => return None,
            _ if kind.0 == END.0 => return drive.filter(|_| !file.is_empty()).map(|drive| LoaderPath { drive, file }),
            _ => {}
        }
        rest = after;
    }
    None
}

/// Encodes the short-form path of a loader (UEFI specification 2.10, 3.1.2): partition, file, end.
pub fn encode(path: &LoaderPath) -> Vec<u8> {
    let drive = &path.drive;
    let (signature, table, kind) = match drive.signature {
        Signature::Guid(guid) => (guid, 2, 2),
        Signature::Mbr(signature) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&signature.to_le_bytes());
            (bytes, 1, 1)
        }
    };
    let mut content = Vec::with_capacity(HARD_DRIVE_LEN);
    content.extend(drive.number.to_le_bytes());
    content.extend(drive.start.to_le_bytes());
    content.extend(drive.blocks.to_le_bytes());
    content.extend(signature);
    content.extend([table, kind]);
    let mut encoded = Vec::new();
    push(&mut encoded, HARD_DRIVE, &content);
    let file: Vec<u8> = path.file.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    push(&mut encoded, FILE_PATH, &file);
    push(&mut encoded, END, &[]);
    encoded
}

fn push(path: &mut Vec<u8>, kind: Kind, content: &[u8]) {
    // The content is a partition, or a path whose length the caller has limited to far below 64 KiB.
    let len = (HEADER + content.len()) as u16;
    path.extend([kind.0, kind.1]);
    path.extend(len.to_le_bytes());
    path.extend(content);
}

/// Splits off the first node of a path. Returns type and subtype, content, and the rest of the path.
fn node(path: &[u8]) -> Option<(Kind, &[u8], &[u8])> {
    let (header, _) = path.split_first_chunk::<HEADER>()?;
    let len = usize::from(u16::from_le_bytes([header[2], header[3]]));
    let (node, after) = path.split_at_checked(len)?;
    Some(((header[0], header[1]), node.get(HEADER..)?, after))
}

fn hard_drive(content: &[u8]) -> Option<HardDrive> {
    let content: &[u8; HARD_DRIVE_LEN - HEADER] = content.try_into().ok()?;
    let long = |at: usize| Some(u64::from_le_bytes(*content.get(at..)?.first_chunk()?));
    let guid = content.get(20..)?.first_chunk::<16>()?;
    let signature = match content.last() {
        Some(2) => Signature::Guid(*guid),
        Some(1) => Signature::Mbr(long(20)? as u32),
        _ => return None,
    };
    Some(HardDrive { number: long(0)? as u32, start: long(4)?, blocks: long(12)?, signature })
}

/// UCS-2 text up to its end or the first zero.
fn text(content: &[u8]) -> Option<String> {
    String::from_utf16(&utf16_units(content).take_while(|unit| *unit != 0).collect::<Vec<u16>>()).ok()
}

/// Little-endian two-byte numbers, as used by firmware for text and for `BootOrder`.
pub(super) fn utf16_units(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit))
}

/// A GUID as text, in lower case.
pub fn guid_text(bytes: &[u8; 16]) -> String {
    let mut bytes = *bytes;
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    let mut text = String::with_capacity(36);
    for (index, digit) in digits.chars().enumerate() {
        if matches!(index, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

/// The bytes of a GUID. Its first three fields are little-endian (UEFI specification 2.10, appendix A).
pub fn guid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_guid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let mut bytes = u128::from_str_radix(&digits, 16).ok().filter(|_| is_guid)?.to_be_bytes();
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HD(1,GPT,A3F1C2D4-0011-2233-4455-66778899AABB,0x800,0x40000)/File(\EFI\debian\shimx64.efi), as bytes from
    /// efibootmgr.
    const DEBIAN: &str = "04012a00 01000000 0008000000000000 0000040000000000 d4c2f1a3110033224455667788 99aabb 02 02\
                          04043400 5c004500460049005c00640065006200690061006e005c00\
                          7300680069006d007800360034002e0065006600690000007fff0400";

    fn bytes(hex: &str) -> Vec<u8> {
        base16ct::lower::decode_vec(hex.replace(' ', "")).unwrap()
    }

    fn debian() -> LoaderPath {
        let signature = Signature::Guid(guid_bytes("a3f1c2d4-0011-2233-4455-66778899aabb").unwrap());
        let drive = HardDrive { number: 1, start: 0x800, blocks: 0x40000, signature };
        LoaderPath { drive, file: "\\EFI\\debian\\shimx64.efi".to_owned() }
    }

    #[test]
    fn a_loader_is_the_bytes_firmware_has() {
        assert_eq!(encode(&debian()), bytes(DEBIAN));
        assert_eq!(loader(&bytes(DEBIAN)), Some(debian()));
        let mbr = HardDrive { signature: Signature::Mbr(0x1234_5678), ..debian().drive };
        let mbr = LoaderPath { drive: mbr, ..debian() };
        assert_eq!(loader(&encode(&mbr)), Some(mbr));
    }

    #[test]
    fn a_full_path_leads_to_the_same_loader() {
        // The same path with PciRoot(0x0)/Pci(0x3,0x0) before it, and with the file in two nodes.
        let mut full = bytes("02010c00d041030a00000000 010106000003");
        let short = bytes(DEBIAN);
        full.extend(&short[..HARD_DRIVE_LEN]);
        full.extend(bytes("04041000 5c004500460049005c000000"));
        full.extend(bytes("04040e00 78002e0065006600 0000"));
        full.extend(bytes("7fff0400"));
        let found = loader(&full).unwrap();
        assert_eq!((found.drive, found.file.as_str()), (debian().drive, "\\EFI\\x.ef"));
    }

    #[test]
    fn what_leads_elsewhere_or_is_damaged_is_no_loader() {
        // PciRoot(0x0)/Pci(0x2,0x0)/MAC(525400123456,0x1)/IPv4(...): a network card.
        let mac =
            bytes(&format!("02010c00d041030a00000000 010106000002 030b2500525400123456{}01 7fff0400", "00".repeat(26)));
        assert_eq!(loader(&mac), None);
        let whole = bytes(DEBIAN);
        for cut in 0..whole.len() {
            assert_eq!(loader(&whole[..cut]), None, "cut at {cut}");
        }
        // A node of length zero must not cause an endless loop.
        assert_eq!(loader(&bytes("04010000 04010000")), None);
        assert_eq!(loader(&bytes("040103000000")), None);
        assert_eq!(loader(&[]), None);
    }

    #[test]
    fn a_partition_is_the_same_by_what_it_is_known_by() {
        let (own, mut other) = (debian(), debian());
        other.drive.start = 1;
        other.file = "\\efi\\DEBIAN\\shimx64.efi".to_owned();
        assert!(own.is_same(&other));
        other.drive.number = 2;
        assert!(own.is_same(&other), "a GUID says it all");
        let mbr = |number| HardDrive { number, signature: Signature::Mbr(7), ..debian().drive };
        assert!(mbr(1).is_same(&mbr(1)) && !mbr(1).is_same(&mbr(2)));
    }
}
