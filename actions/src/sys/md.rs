//! Arrays of the md driver (linux/raid/md_u.h).

use std::ffi::c_int;
use std::fs::File;

use rustix::fs::{major, minor};
use rustix::io::Result;
use rustix::ioctl::{self, NoArg, Opcode, Setter};

/// `_IOW(MD_MAJOR, 0x21, mdu_disk_info_t)` of linux/raid/md_u.h.
const ADD_NEW_DISK: Opcode = ioctl::opcode::write::<Disk>(9, 0x21);
/// `_IOW(MD_MAJOR, 0x23, mdu_array_info_t)` of linux/raid/md_u.h.
const SET_ARRAY_INFO: Opcode = ioctl::opcode::write::<Array>(9, 0x23);
/// `_IOW(MD_MAJOR, 0x30, mdu_param_t)` of linux/raid/md_u.h.
const RUN_ARRAY: Opcode = ioctl::opcode::write::<[c_int; 3]>(9, 0x30);
/// `_IO(MD_MAJOR, 0x32)` of linux/raid/md_u.h.
const STOP_ARRAY: Opcode = ioctl::opcode::none(9, 0x32);

/// `mdu_array_info_t` of linux/raid/md_u.h.
#[repr(C)]
struct Array {
    major_version: c_int,
    minor_version: c_int,
    others: [c_int; 16],
}

/// `mdu_disk_info_t` of linux/raid/md_u.h.
#[repr(C)]
struct Disk {
    number: c_int,
    major: c_int,
    minor: c_int,
    role: c_int,
    state: c_int,
}

/// Tells a new md array that its members have superblocks of version 1 with this minor version.
pub(crate) fn prepare(array: &File, minor_version: c_int) -> Result<()> {
    // The number of members is left out, because the superblocks have all information.
    let argument = Array { major_version: 1, minor_version, others: [0; 16] };
    // SAFETY: SET_ARRAY_INFO reads a mdu_array_info_t, which Array mirrors.
    unsafe { ioctl::ioctl(array, Setter::<SET_ARRAY_INFO, Array>::new(argument)) }
}

/// Adds a device with a superblock to an array, by its device number.
pub(crate) fn add(array: &File, device: u64) -> Result<()> {
    let [major, minor] = [major(device), minor(device)].map(u32::cast_signed);
    let argument = Disk { number: 0, major, minor, role: 0, state: 0 };
    // SAFETY: ADD_NEW_DISK reads a mdu_disk_info_t, which Disk mirrors.
    unsafe { ioctl::ioctl(array, Setter::<ADD_NEW_DISK, Disk>::new(argument)) }
}

/// Starts an array whose members were added.
pub(crate) fn run(array: &File) -> Result<()> {
    // SAFETY: RUN_ARRAY reads at most a mdu_param_t, which has three ints.
    unsafe { ioctl::ioctl(array, Setter::<RUN_ARRAY, [c_int; 3]>::new([0; 3])) }
}

/// Stops an md array.
pub(crate) fn stop(array: &File) -> Result<()> {
    // SAFETY: STOP_ARRAY takes no argument.
    unsafe { ioctl::ioctl(array, NoArg::<STOP_ARRAY>::new()) }
}

const _: () = assert!(size_of::<Array>() == 72 && size_of::<Disk>() == 20);
