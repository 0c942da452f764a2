//! NVMe disks (linux/nvme_ioctl.h).

use std::fs::File;

use rustix::io::Result;
use rustix::ioctl::{self, Opcode};

use super::Returning;

/// `_IO('N', 0x40)` of linux/nvme_ioctl.h.
const NVME_IOCTL_ID: Opcode = ioctl::opcode::none(b'N', 0x40);
/// `_IOWR('N', 0x41, struct nvme_admin_cmd)` of linux/nvme_ioctl.h.
const NVME_IOCTL_ADMIN_CMD: Opcode = ioctl::opcode::read_write::<Passthru>(b'N', 0x41);

/// Returns the number that an NVMe namespace has on its controller.
pub(crate) fn namespace(disk: &File) -> Result<u32> {
    // SAFETY: NVME_IOCTL_ID takes no argument and answers with its return value.
    unsafe { ioctl::ioctl(disk, Returning::<()> { opcode: NVME_IOCTL_ID, argument: None }) }
}

/// An NVMe admin command (NVM Express Base Specification 2.0, 3.3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admin {
    pub(crate) opcode: u8,
    pub(crate) namespace: u32,
    /// Command dwords 10 and 11.
    pub(crate) words: [u32; 2],
    /// How long the kernel waits for the disk, in milliseconds; 0 for the kernel's default.
    pub(crate) timeout: u32,
}

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct Passthru {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    words: [u32; 6],
    timeout: u32,
    result: u32,
}

/// Makes an NVMe controller run an admin command, which fills `data` if it returns data. Returns the status field of
/// the completion, 0 for success (NVM Express Base Specification 2.0, 3.3.3.2.1).
pub(crate) fn admin(disk: &File, command: Admin, data: &mut [u8]) -> Result<u32> {
    let [word_10, word_11] = command.words;
    let argument = Passthru {
        opcode: command.opcode,
        namespace: command.namespace,
        address: data.as_mut_ptr().expose_provenance() as u64,
        data_len: u32::try_from(data.len()).unwrap_or_default(),
        words: [word_10, word_11, 0, 0, 0, 0],
        timeout: command.timeout,
        ..Passthru::default()
    };
    // SAFETY: NVME_IOCTL_ADMIN_CMD takes a struct nvme_admin_cmd, which Passthru mirrors, and reads or writes at most
    // data_len bytes at its address, which is our memory, outlives the call, and is not accessed by anything else.
    unsafe { ioctl::ioctl(disk, Returning { opcode: NVME_IOCTL_ADMIN_CMD, argument: Some(argument) }) }
}

const _: () = assert!(size_of::<Passthru>() == 72);
