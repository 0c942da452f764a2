//! Physical volumes of LVM2, with the metadata of their group (lvm2, lib/label/label.h, lib/format_text/layout.h; the
//! text as lvm(8) programs write it, read by lib/format_text/import_vsn1.c).

use std::fmt::Write as _;
use std::ops::Range;

use slipway_protocol::workflow::raid_lvm;

use crate::disk::probe::lvm_crc;
use crate::text;

const SECTOR: u64 = 512;
/// Size of an extent in bytes, LVM's default.
pub(super) const EXTENT: u64 = 4 << 20;
/// Bytes before the first extent. They hold the label and, from the second page on, the metadata area.
pub(super) const HEAD: u64 = 1 << 20;
const AREA: u64 = 4096;
/// Offset of the metadata text in the area, in bytes. The area's header comes before it.
const TEXT: u64 = 512;
const LABEL_SECTOR: u64 = 1;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";
/// Maximum bytes of the text. The area is a ring buffer, in which LVM keeps the old text while it writes the new.
const MAX_TEXT: u64 = (HEAD - AREA - TEXT) / 2;
const LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
const SOFTWARE: &str = "slipway";

/// ID of a group, a physical volume or a volume: letters and digits.
pub(super) type Id = [u8; 32];

/// A volume group to create.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) id: Id,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) physical: Vec<Physical>,
    pub(super) volumes: Vec<Volume>,
}

/// A physical volume of a group.
#[derive(Clone, Debug)]
pub(super) struct Physical {
    pub(super) id: Id,
    /// Size in bytes.
    pub(super) size: u64,
}

/// A linear volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) id: Id,
    pub(super) segments: Vec<Segment>,
}

/// Consecutive extents of a physical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) physical: usize,
    pub(super) extents: Range<u64>,
}

impl Segment {
    /// Byte range on the physical volume.
    pub(super) fn bytes(&self) -> Range<u64> {
        HEAD + self.extents.start * EXTENT..HEAD + self.extents.end * EXTENT
    }

    fn count(&self) -> u64 {
        self.extents.end - self.extents.start
    }
}

/// Makes an ID from random bytes.
pub(super) fn id(random: [u8; 32]) -> Id {
    random.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()])
}

/// Number of extents that fit into `size` bytes.
fn extents(size: u64) -> u64 {
    size.saturating_sub(HEAD) / EXTENT
}

/// Allocates the segments of volumes with these sizes in bytes, one after the other over the physical volumes. `None`
/// as a size means the space that the others leave. The error is why they do not fit.
pub(super) fn allocate(sizes: &[Option<u64>], physical: &[u64]) -> Result<Vec<Vec<Segment>>, String> {
    let room: u64 = physical.iter().map(|size| extents(*size)).sum();
    let wanted = sizes.iter().flatten().fold(0_u64, |sum, size| sum.saturating_add(size.div_ceil(EXTENT)));
    let left = room.saturating_sub(wanted);
    let needs_rest = sizes.contains(&None);
    if room == 0 || wanted > room || (needs_rest && left == 0) {
        let rest = if needs_rest { " and some space for the rest" } else { "" };
        let [wanted, room] = [wanted, room].map(|extents| text::size(extents.saturating_mul(EXTENT)));
        return Err(format!("its volumes need {wanted}{rest}, but there is room for {room}; make them smaller"));
    }
    let mut free: Vec<Range<u64>> = physical.iter().map(|size| 0..extents(*size)).collect();
    let mut take = |size: &Option<u64>| {
        let mut needed = size.map_or(left, |size| size.div_ceil(EXTENT));
        let mut taken = Vec::new();
        for (physical, free) in free.iter_mut().enumerate() {
            let end = free.start + needed.min(free.end - free.start);
            if end > free.start {
                taken.push(Segment { physical, extents: free.start..end });
                needed -= end - free.start;
                free.start = end;
            }
        }
        taken
    };
    Ok(sizes.iter().map(&mut take).collect())
}

impl Group {
    /// Returns the device mapper name of a volume.
    pub(super) fn mapping_name(&self, volume: &Volume) -> String {
        raid_lvm::mapping_name(&self.name, &volume.name)
    }

    /// Returns the device mapper UUID of a volume, by which the LVM programs recognise their volumes.
    pub(super) fn mapping_uuid(&self, volume: &Volume) -> String {
        format!("LVM-{}{}", String::from_utf8_lossy(&self.id), String::from_utf8_lossy(&volume.id))
    }

    /// Returns the first bytes of a physical volume: label, area header and metadata. Fails if the metadata is too
    /// long.
    pub(super) fn head(&self, index: usize) -> Result<Vec<u8>, String> {
        let text = self.text();
        if text.len() as u64 > MAX_TEXT {
            return Err("the description of its volumes is too long; make fewer volumes".to_owned());
        }
        let mut head = vec![0; HEAD as usize];
        let label = (LABEL_SECTOR * SECTOR) as usize;
        head[label..label + SECTOR as usize].copy_from_slice(&self.label(index));
        let area = AREA as usize;
        head[area..area + TEXT as usize].copy_from_slice(&area_header(&text));
        let start = area + TEXT as usize;
        head[start..start + text.len()].copy_from_slice(&text);
        Ok(head)
    }

    /// Makes the label: `label_header` (label.h), then `pv_header` with its lists of data areas and metadata areas,
    /// each ended by an empty entry, and `pv_header_extension` (layout.h).
    fn label(&self, index: usize) -> [u8; SECTOR as usize] {
        const PV_HEADER: usize = 32;
        const USED: u32 = 1;
        let mut label = [0; SECTOR as usize];
        let mut put = |offset: usize, bytes: &[u8]| label[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, b"LABELONE");
        put(8, &LABEL_SECTOR.to_le_bytes());
        put(20, &(PV_HEADER as u32).to_le_bytes());
        put(24, b"LVM2 001");
        put(PV_HEADER, &self.physical[index].id);
        let data = [HEAD, 0];
        let areas = [AREA, HEAD - AREA];
        let words = [self.physical[index].size].into_iter().chain(data).chain([0, 0]).chain(areas).chain([0, 0]);
        let mut at = PV_HEADER + 32;
        for word in words {
            put(at, &word.to_le_bytes());
            at += 8;
        }
        // Version 2 of the extension, as lvm2 writes it since 2.02.144, without a boot loader area.
        put(at, &2_u32.to_le_bytes());
        put(at + 4, &USED.to_le_bytes());
        let sum = lvm_crc(&label[20..]);
        label[16..20].copy_from_slice(&sum.to_le_bytes());
        label
    }

    /// Writes the metadata text, with its terminating zero byte.
    fn text(&self) -> Vec<u8> {
        let mut text = format!("{} {{\nid = \"{}\"\nseqno = 1\nformat = \"lvm2\"\n", self.name, dashed(&self.id));
        text.push_str("status = [\"RESIZEABLE\", \"READ\", \"WRITE\"]\nflags = []\n");
        _ = writeln!(text, "extent_size = {}\nmax_lv = 0\nmax_pv = 0\nmetadata_copies = 0\n", EXTENT / SECTOR);
        text.push_str("physical_volumes {\n\n");
        for (index, physical) in self.physical.iter().enumerate() {
            let (size, count) = (physical.size / SECTOR, extents(physical.size));
            _ = writeln!(
                text,
                "pv{index} {{\nid = \"{}\"\nstatus = [\"ALLOCATABLE\"]\nflags = []",
                dashed(&physical.id)
            );
            _ = writeln!(text, "dev_size = {size}\npe_start = {}\npe_count = {count}\n}}\n", HEAD / SECTOR);
        }
        text.push_str("}\n\n");
        if !self.volumes.is_empty() {
            text.push_str("logical_volumes {\n\n");
            self.volumes.iter().for_each(|volume| self.describe(volume, &mut text));
            text.push_str("}\n\n");
        }
        _ = writeln!(text, "}}\ncontents = \"Text Format Volume Group\"\nversion = 1\n");
        _ = writeln!(text, "description = \"\"\ncreation_host = \"{SOFTWARE}\"\ncreation_time = {}\n", self.created);
        text.push('\0');
        text.into_bytes()
    }

    fn describe(&self, volume: &Volume, text: &mut String) {
        _ = writeln!(text, "{} {{\nid = \"{}\"", volume.name, dashed(&volume.id));
        text.push_str("status = [\"READ\", \"WRITE\", \"VISIBLE\"]\nflags = []\n");
        _ = writeln!(text, "creation_time = {}\ncreation_host = \"{SOFTWARE}\"", self.created);
        _ = writeln!(text, "segment_count = {}\n", volume.segments.len());
        let mut start = 0;
        for (number, segment) in (1..).zip(&volume.segments) {
            let count = segment.count();
            _ = writeln!(
                text,
                "segment{number} {{\nstart_extent = {start}\nextent_count = {count}\ntype = \"striped\""
            );
            let stripe = format!("\"pv{}\", {}", segment.physical, segment.extents.start);
            _ = writeln!(text, "stripe_count = 1\nstripes = [\n{stripe}\n]\n}}");
            start += count;
        }
        text.push_str("}\n\n");
    }
}

/// Makes the area header (layout.h, struct `mda_header`) with one `raw_locn`.
fn area_header(text: &[u8]) -> [u8; TEXT as usize] {
    let mut header = [0; TEXT as usize];
    let mut put = |offset: usize, bytes: &[u8]| header[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(4, AREA_MAGIC);
    put(20, &1_u32.to_le_bytes());
    put(24, &AREA.to_le_bytes());
    put(32, &(HEAD - AREA).to_le_bytes());
    put(40, &TEXT.to_le_bytes());
    put(48, &(text.len() as u64).to_le_bytes());
    put(56, &lvm_crc(text).to_le_bytes());
    let sum = lvm_crc(&header[4..]);
    header[..4].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Formats an ID as LVM prints it, in groups of 6, 4, 4, 4, 4, 4 and 6.
fn dashed(id: &Id) -> String {
    let mut text = String::with_capacity(38);
    for (at, letter) in id.iter().enumerate() {
        if (6..=26).contains(&at) && (at - 6).is_multiple_of(4) {
            text.push('-');
        }
        text.push(char::from(*letter));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_one_behind_the_other_over_all_that_is_there_and_fit_or_are_refused() {
        const FOUR: u64 = HEAD + 4 * EXTENT;
        type Volumes<'a> = &'a [&'a [(usize, u64, u64)]];
        let check = |sizes: &[Option<u64>], physical: &[u64], expect: Option<Volumes>| {
            let found = allocate(sizes, physical);
            let segment = |&(physical, start, end): &(usize, u64, u64)| Segment { physical, extents: start..end };
            let expect = expect.map(|volumes| volumes.iter().map(|all| all.iter().map(segment).collect()).collect());
            assert_eq!(found.clone().ok(), expect, "{sizes:?} on {physical:?}: {found:?}");
        };
        check(&[Some(EXTENT), Some(1)], &[FOUR], Some(&[&[(0, 0, 1)], &[(0, 1, 2)]]));
        check(&[Some(EXTENT + 1), None], &[FOUR + 5], Some(&[&[(0, 0, 2)], &[(0, 2, 4)]]));
        check(&[Some(3 * EXTENT), None], &[FOUR, 0, FOUR], Some(&[&[(0, 0, 3)], &[(0, 3, 4), (2, 0, 4)]]));
        check(&[], &[FOUR], Some(&[]));
        check(&[Some(5 * EXTENT)], &[FOUR], None);
        check(&[Some(4 * EXTENT), None], &[FOUR], None);
        check(&[Some(u64::MAX), Some(u64::MAX)], &[FOUR], None);
        check(&[], &[HEAD], None);
    }
}
