//! The ioctls rustix has no call for.
#![allow(unsafe_code, reason = "ioctls are not memory safe by type; everything unsafe of this crate is here")]

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Result;
use rustix::ioctl::{self, Ioctl, IoctlOutput, NoArg, Opcode, Setter};

/// `_IO(0x12, 95)` of linux/fs.h.
const BLKRRPART: Opcode = ioctl::opcode::none(0x12, 95);
/// `_IO(0x12, 127)` of linux/fs.h.
const BLKZEROOUT: Opcode = ioctl::opcode::none(0x12, 127);
/// linux/loop.h.
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// linux/loop.h, Linux 5.8.
const LOOP_CONFIGURE: Opcode = 0x4C0A;
/// Free the device when its last user is gone (linux/loop.h).
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// Has the kernel read the partition table again.
pub(crate) fn reread_partitions(disk: &File) -> Result<()> {
    // SAFETY: BLKRRPART takes no argument.
    unsafe { ioctl::ioctl(disk, NoArg::<BLKRRPART>::new()) }
}

/// Has the disk, or the kernel in its place, write zeros from `offset` on, both in bytes and multiples of 512.
pub(crate) fn zero_out(disk: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKZEROOUT reads two u64 from its argument.
    unsafe { ioctl::ioctl(disk, Setter::<BLKZEROOUT, [u64; 2]>::new([offset, len])) }
}

/// The number of a loop device that is free now; another process may take it first.
pub(crate) fn free_loop_device(control: &File) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers with its return value.
    unsafe { ioctl::ioctl(control, GetFree) }
}

struct GetFree;

// SAFETY: no memory is passed, and the output is the return value.
unsafe impl Ioctl for GetFree {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32> {
        Ok(u32::try_from(out).unwrap_or_default())
    }
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Binds a loop device to `len` bytes of a file from `offset` on, until its last user is gone.
pub(crate) fn configure_loop(device: &File, backing: &File, offset: u64, len: u64) -> Result<()> {
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset,
        size_limit: len,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(backing.as_raw_fd()).unwrap_or(u32::MAX);
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config, which LoopConfig mirrors; both files outlive the call.
    unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}
