//! Members of Linux software RAID arrays: superblock version 1 (Linux, uapi/linux/raid/md_p.h, struct
//! `mdp_superblock_1`), at the end (1.0) or near the start (1.2).

use std::ops::Range;

use slipway_protocol::RaidLevel;

const SECTOR: u64 = 512;
const MAGIC: u32 = 0xA92B_4EFC;
/// With this in place of a host name, an array belongs to any host that sees it (mdadm(8), `--homehost`).
const ANY_HOST: &str = "any";
/// Chunk size in bytes, of levels with striping.
const CHUNK: u64 = 512 << 10;
/// Offset of a version 1.2 superblock, in bytes.
const NEAR_START: u64 = 4096;
/// Limits of the space before the data, for a bitmap and for reshaping, in bytes. Within the limits, the space is about
/// a 1024th of the member, as mdadm makes it.
const HEADROOM: Range<u64> = (1 << 20)..(128 << 20);
/// Space between the data and a superblock at the end, for a bitmap, in bytes.
const TAILROOM: u64 = 64 << 10;
/// Minimum data size of a member, in bytes.
const MIN_DATA: u64 = 1 << 20;
/// Layout of raid5 and raid6: parity goes from the last disk to the first, and data begins after it (Linux,
/// drivers/md/raid5.h, `ALGORITHM_LEFT_SYMMETRIC`).
const LEFT_SYMMETRIC: u32 = 2;
/// Number of devices that the superblock has room for. The superblock then has 1 KiB, as mdadm makes it.
const MAX_DEVICES: usize = 384;
const DEVICES: usize = 256;
/// Role of a slot without a device.
const SPARE: u16 = 0xFFFF;
/// Value of `resync_offset` if the whole array is in sync.
const IN_SYNC: u64 = u64::MAX;
/// Layout of raid10: two near copies (md(4), "RAID10").
const NEAR_2: u32 = 0x102;

/// An array to create.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) name: String,
    pub(super) level: RaidLevel,
    pub(super) uuid: [u8; 16],
    /// Seconds since 1970.
    pub(super) created: u64,
    /// Number of members.
    pub(super) members: usize,
    /// Whether the superblock is at the end. A member then looks like its contents.
    pub(super) at_end: bool,
    /// Byte range of the array's data on each member.
    pub(super) data: Range<u64>,
}

impl Array {
    /// Minor version of the superblock.
    pub(super) fn minor_version(&self) -> i32 {
        if self.at_end { 0 } else { 2 }
    }

    /// Capacity of the array in bytes.
    pub(super) fn capacity(&self) -> u64 {
        let each = self.data.end - self.data.start;
        match self.level {
            RaidLevel::Raid0 => each * self.members as u64,
            RaidLevel::Raid1 => each,
            RaidLevel::Raid5 => each * (self.members as u64 - 1),
            RaidLevel::Raid6 => each * (self.members as u64 - 2),
            RaidLevel::Raid10 => each / CHUNK * self.members as u64 / 2 * CHUNK,
        }
    }

    /// Returns the offset of the superblock in bytes on a member of `len` bytes.
    pub(super) fn superblock_at(&self, len: u64) -> u64 {
        if self.at_end { end_superblock(len) } else { NEAR_START }
    }

    /// Makes the superblock of a member of `len` bytes, with role `index` and its own UUID. An array with copies or
    /// parity is not in sync, because its members differ where nothing was written. The kernel synchronises them as
    /// soon as it starts the array.
    pub(super) fn superblock(&self, index: usize, len: u64, uuid: &[u8; 16]) -> Vec<u8> {
        let (level, layout, in_sync) = match self.level {
            RaidLevel::Raid0 => (0_u32, 0, IN_SYNC),
            RaidLevel::Raid1 => (1, 0, 0),
            RaidLevel::Raid5 => (5, LEFT_SYMMETRIC, 0),
            RaidLevel::Raid6 => (6, LEFT_SYMMETRIC, 0),
            RaidLevel::Raid10 => (10, NEAR_2, 0),
        };
        let is_spread = self.level != RaidLevel::Raid1;
        let each = (self.data.end - self.data.start) / SECTOR;
        let mut block = vec![0; DEVICES + 2 * MAX_DEVICES];
        let mut put = |offset: usize, bytes: &[u8]| block[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(4, &1_u32.to_le_bytes());
        put(16, &self.uuid);
        let name = format!("{ANY_HOST}:{}", self.name);
        put(32, &name.as_bytes()[..name.len().min(32)]);
        put(64, &self.created.to_le_bytes());
        put(72, &level.to_le_bytes());
        put(76, &layout.to_le_bytes());
        // In raid0, each member has its own size.
        put(80, &if self.level == RaidLevel::Raid0 { 0 } else { each }.to_le_bytes());
        put(88, &if is_spread { (CHUNK / SECTOR) as u32 } else { 0 }.to_le_bytes());
        put(92, &(self.members as u32).to_le_bytes());
        put(128, &(self.data.start / SECTOR).to_le_bytes());
        put(136, &each.to_le_bytes());
        put(144, &(self.superblock_at(len) / SECTOR).to_le_bytes());
        put(160, &(index as u32).to_le_bytes());
        put(168, uuid);
        put(192, &self.created.to_le_bytes());
        put(208, &in_sync.to_le_bytes());
        put(220, &(MAX_DEVICES as u32).to_le_bytes());
        for device in 0..MAX_DEVICES {
            let role = if device < self.members { device as u16 } else { SPARE };
            put(DEVICES + 2 * device, &role.to_le_bytes());
        }
        let checksum = checksum(&block);
        block[216..220].copy_from_slice(&checksum.to_le_bytes());
        block
    }
}

/// Returns the byte range of the array's data on each member; `least` is the size of the smallest member. The error is
/// why the array is not possible.
pub(super) fn data(level: RaidLevel, least: u64, at_end: bool, members: usize) -> Result<Range<u64>, String> {
    let (fewest, most) = match level {
        RaidLevel::Raid0 | RaidLevel::Raid1 | RaidLevel::Raid10 => (2, MAX_DEVICES),
        RaidLevel::Raid5 => (3, MAX_DEVICES),
        // Linux, crypto/async_tx/async_pq.c, `MAX_DISKS`.
        RaidLevel::Raid6 => (4, 255),
    };
    if !(fewest..=most).contains(&members) {
        let level = level.name();
        return Err(format!("{level} needs {fewest} to {most} disks, but {members} are chosen"));
    }
    let (start, end) = match at_end {
        true => (0, end_superblock(least).saturating_sub(TAILROOM) / TAILROOM * TAILROOM),
        false => (headroom(least), least / CHUNK * CHUNK),
    };
    if end < start + MIN_DATA {
        return Err(format!("its smallest partition has {least} bytes, which is too small; give it 4 MiB"));
    }
    Ok(start..end)
}

fn headroom(len: u64) -> u64 {
    let mut room = HEADROOM.end;
    while room > HEADROOM.start && room > len >> 10 {
        room /= 2;
    }
    room
}

/// Returns the offset in bytes of a version 1.0 superblock: at least 8 KiB before the end, at a multiple of 4 KiB.
fn end_superblock(len: u64) -> u64 {
    (len / SECTOR).saturating_sub(16) / 8 * 8 * SECTOR
}

/// Returns the sum of all words plus the carries beyond 32 bits, with the checksum field zero (Linux, drivers/md/md.c,
/// `calc_sb_1_csum`).
fn checksum(block: &[u8]) -> u32 {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let sum: u64 = block.chunks(4).map(word).sum();
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_room_for_its_superblock_and_for_growing() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        let check = |least, at_end, expect: Option<Range<u64>>| {
            assert_eq!(data(RaidLevel::Raid1, least, at_end, 2).ok(), expect)
        };
        check(4 * MIB, false, Some(MIB..4 * MIB));
        check(GIB, false, Some(MIB..GIB));
        check(100 * GIB, false, Some(64 * MIB..100 * GIB));
        check(4096 * GIB, false, Some(128 * MIB..4096 * GIB));
        check(MIB, false, None);
        check(0, true, None);
        check(512 * MIB, true, Some(0..512 * MIB - 128 * 1024));
        for (level, fewest, most) in [
            (RaidLevel::Raid0, 2, MAX_DEVICES),
            (RaidLevel::Raid1, 2, MAX_DEVICES),
            (RaidLevel::Raid10, 2, MAX_DEVICES),
            (RaidLevel::Raid5, 3, MAX_DEVICES),
            (RaidLevel::Raid6, 4, 255),
        ] {
            let fits = |members| data(level, GIB, false, members).is_ok();
            assert!(fits(fewest) && fits(most) && !fits(fewest - 1) && !fits(most + 1), "{}", level.name());
        }
        for len in [2 * MIB, 3 * MIB + 512, GIB] {
            let (data, superblock) = (data(RaidLevel::Raid1, len, true, 2).expect("data"), end_superblock(len));
            assert!(data.end <= superblock && superblock + 8192 <= len && superblock % 4096 == 0, "{len}");
        }
    }
}
