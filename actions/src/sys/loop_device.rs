//! Loop devices (linux/loop.h).

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::io::Result;
use rustix::ioctl::{self, NoArg, Opcode, Setter};

use super::Returning;

/// linux/loop.h.
const LOOP_CLR_FD: Opcode = 0x4C01;
/// linux/loop.h.
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// linux/loop.h, Linux 5.8.
const LOOP_CONFIGURE: Opcode = 0x4C0A;
/// Free the device when its last user is gone (linux/loop.h).
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// Returns the number of a free loop device. Another process may take the device first.
pub(crate) fn free_number(control: &File) -> Result<u32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers with its return value.
    unsafe { ioctl::ioctl(control, Returning::<()> { opcode: LOOP_CTL_GET_FREE, argument: None }) }
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
    /// Numbers of the devices and the inode.
    devices: [u64; 3],
    offset: u64,
    size_limit: u64,
    /// Number, type of encryption and length of its key.
    numbers: [u32; 3],
    flags: u32,
    /// Names, key and initial values of encryption.
    names: [u64; 22],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Binds a loop device to `len` bytes of a file from `offset` on, until its last user is gone.
pub(crate) fn configure(device: &File, backing: &File, offset: u64, len: u64) -> Result<()> {
    let (devices, numbers, names) = ([0; 3], [0; 3], [0; 22]);
    let info = LoopInfo { devices, offset, size_limit: len, numbers, flags: LO_FLAGS_AUTOCLEAR, names };
    let fd = u32::try_from(backing.as_raw_fd()).unwrap_or(u32::MAX);
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads a struct loop_config, which LoopConfig mirrors; both files outlive the call.
    unsafe { ioctl::ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

/// Unbinds a loop device from its file, at once or when its last user is gone.
pub(crate) fn clear(device: &File) -> Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument.
    unsafe { ioctl::ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}
