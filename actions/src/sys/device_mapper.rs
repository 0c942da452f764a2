//! The device mapper (linux/dm-ioctl.h).

use std::fs::File;

use rustix::io::{Errno, Result};
use rustix::ioctl::{self, Opcode, Updater};

/// `_IOWR(0xfd, 4, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_REMOVE: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 4);
/// `_IOWR(0xfd, 3, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_CREATE: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 3);
/// `_IOWR(0xfd, 6, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_DEV_SUSPEND: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 6);
/// `_IOWR(0xfd, 9, struct dm_ioctl)` of linux/dm-ioctl.h.
const DM_TABLE_LOAD: Opcode = ioctl::opcode::read_write::<DmIoctl>(0xfd, 9);

/// `struct dm_ioctl` of linux/dm-ioctl.h.
#[repr(C)]
struct DmIoctl {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    /// Open count, flags, event, padding and device number.
    unused: [u64; 3],
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

impl DmIoctl {
    /// The argument for the mapping with this name. The last bytes of name and uuid stay zero as terminators.
    fn of(name: &str, uuid: &str) -> Result<Self> {
        let mut argument = Self {
            // The oldest version of this major version. Every kernel since 2.6 accepts it.
            version: [4, 0, 0],
            data_size: size_of::<Self>() as u32,
            data_start: size_of::<Self>() as u32,
            target_count: 0,
            unused: [0; 3],
            name: [0; 128],
            uuid: [0; 129],
            data: [0; 7],
        };
        copy_text(&mut argument.name, name)?;
        copy_text(&mut argument.uuid, uuid)?;
        Ok(argument)
    }
}

/// Copies a text into a field that must end with a zero.
fn copy_text(room: &mut [u8], text: &str) -> Result<()> {
    let len = room.len() - 1;
    room[..len].get_mut(..text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(text.as_bytes());
    Ok(())
}

/// Removes a device-mapper mapping by name. `control` is /dev/mapper/control.
pub(crate) fn remove(control: &File, name: &str) -> Result<()> {
    let mut argument = DmIoctl::of(name, "")?;
    // SAFETY: DM_DEV_REMOVE takes a struct dm_ioctl, which DmIoctl mirrors, and writes at most its data_size.
    unsafe { ioctl::ioctl(control, Updater::<DM_DEV_REMOVE, DmIoctl>::new(&mut argument)) }
}

/// A part of a mapping that maps to a part of a device, in sectors of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinearTarget {
    /// Start in the mapping.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Major and minor number of the device.
    pub(crate) device: (u32, u32),
    /// Start on the device.
    pub(crate) offset: u64,
}

/// Size of the target table in bytes, for some 200 targets.
const TABLE_ROOM: usize = 16384;

/// `struct dm_ioctl` of linux/dm-ioctl.h with room for `struct dm_target_spec`.
#[repr(C)]
struct Table {
    header: DmIoctl,
    targets: [u8; TABLE_ROOM],
}

/// Creates and activates a device-mapper mapping. `control` is /dev/mapper/control. If it fails, nothing is left of it.
pub(crate) fn start(control: &File, name: &str, uuid: &str, targets: &[LinearTarget]) -> Result<()> {
    let mut table = Table { header: DmIoctl::of(name, "")?, targets: [0; TABLE_ROOM] };
    table.header.data_size = size_of::<Table>() as u32;
    table.header.target_count = u32::try_from(targets.len()).map_err(|_| Errno::TOOBIG)?;
    fill_table(&mut table.targets, targets)?;
    let mut create = DmIoctl::of(name, uuid)?;
    // SAFETY: DM_DEV_CREATE takes a struct dm_ioctl, which DmIoctl mirrors, and writes at most its data_size.
    unsafe { ioctl::ioctl(control, Updater::<DM_DEV_CREATE, DmIoctl>::new(&mut create))? };
    let mut resume = DmIoctl::of(name, "")?;
    // SAFETY: DM_TABLE_LOAD takes a struct dm_ioctl, with which Table begins, and reads targets and writes answers at
    // most up to its data_size, which is that of Table.
    let loaded = unsafe { ioctl::ioctl(control, Updater::<DM_TABLE_LOAD, Table>::new(&mut table)) };
    let started = loaded.and_then(|()| {
        // SAFETY: DM_DEV_SUSPEND, which resumes without the flag to suspend, takes a struct dm_ioctl, which DmIoctl
        // mirrors, and writes at most its data_size.
        unsafe { ioctl::ioctl(control, Updater::<DM_DEV_SUSPEND, DmIoctl>::new(&mut resume)) }
    });
    if started.is_err() {
        _ = remove(control, name);
    }
    started
}

/// Writes a `struct dm_target_spec` for each target, followed by its parameters as text, at multiples of 8 bytes.
fn fill_table(room: &mut [u8], targets: &[LinearTarget]) -> Result<()> {
    const SPEC: usize = 40;
    let mut rest = room;
    for target in targets {
        let parameters = format!("{}:{} {}\0", target.device.0, target.device.1, target.offset);
        let len = (SPEC + parameters.len()).next_multiple_of(8);
        let (spec, after) = rest.split_at_mut_checked(len).ok_or(Errno::TOOBIG)?;
        spec[..8].copy_from_slice(&target.start.to_ne_bytes());
        spec[8..16].copy_from_slice(&target.len.to_ne_bytes());
        spec[20..24].copy_from_slice(&(len as u32).to_ne_bytes());
        spec[24..30].copy_from_slice(b"linear");
        spec[SPEC..SPEC + parameters.len()].copy_from_slice(parameters.as_bytes());
        rest = after;
    }
    Ok(())
}

const _: () = assert!(size_of::<DmIoctl>() == 312);
