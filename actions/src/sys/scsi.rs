//! SCSI disks, and other disks that accept SCSI commands (scsi/sg.h).

use std::ffi::{c_int, c_void};
use std::fs::File;

use rustix::io::Result;
use rustix::ioctl::{self, Opcode, Updater};

/// scsi/sg.h.
const SG_IO: Opcode = 0x2285;

/// The data of a SCSI command.
#[derive(Debug)]
pub(crate) enum Data<'a> {
    None,
    /// Filled by the disk.
    In(&'a mut [u8]),
    /// Sent to the disk.
    Out(&'a [u8]),
}

/// How a SCSI command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// Status of the disk (SAM-5, 5.3.1), 0 for GOOD.
    pub(crate) status: u8,
    /// Status of the host adapter and its driver, 0 for success.
    pub(crate) transport: u16,
    /// Sense data (SPC-4, 4.5).
    pub(crate) sense: [u8; 32],
}

/// `struct sg_io_hdr` of scsi/sg.h.
#[repr(C)]
struct SgIo {
    interface: c_int,
    direction: c_int,
    command_len: u8,
    sense_room: u8,
    vectors: u16,
    data_len: u32,
    data: *mut c_void,
    command: *const u8,
    sense: *mut u8,
    timeout: u32,
    flags: u32,
    pack_id: c_int,
    user: *mut c_void,
    status: u8,
    /// Masked status, message status and length of the sense data.
    others: [u8; 3],
    host_status: u16,
    driver_status: u16,
    /// Residual count, duration and information.
    rest: [u32; 3],
}

/// Makes a SCSI disk run a command of 16 bytes. `timeout` is in milliseconds.
pub(crate) fn command(disk: &File, command: &[u8; 16], data: Data<'_>, timeout: u32) -> Result<Status> {
    // `SG_DXFER_NONE`, `SG_DXFER_FROM_DEV` and `SG_DXFER_TO_DEV` of scsi/sg.h.
    let (direction, data, len) = match data {
        Data::None => (-1, std::ptr::null_mut(), 0),
        Data::In(buffer) => (-3, buffer.as_mut_ptr().cast(), buffer.len()),
        Data::Out(buffer) => (-2, buffer.as_ptr().cast_mut().cast(), buffer.len()),
    };
    let mut sense = [0; 32];
    let mut header = SgIo {
        interface: c_int::from(b'S'),
        direction,
        command_len: 16,
        sense_room: 32,
        vectors: 0,
        data_len: u32::try_from(len).unwrap_or_default(),
        data,
        command: command.as_ptr(),
        sense: sense.as_mut_ptr(),
        timeout,
        flags: 0,
        pack_id: 0,
        user: std::ptr::null_mut(),
        status: 0,
        others: [0; 3],
        host_status: 0,
        driver_status: 0,
        rest: [0; 3],
    };
    // SAFETY: SG_IO takes a struct sg_io_hdr, which SgIo mirrors. Its pointers are to a command of command_len bytes,
    // room for sense_room bytes, and data_len bytes that are only written in the direction from the disk; all outlive
    // the call.
    unsafe { ioctl::ioctl(disk, Updater::<SG_IO, SgIo>::new(&mut header))? };
    // The driver's "there is sense data" (0x08) is not an error by itself.
    let transport = header.host_status | (header.driver_status & !0x08);
    Ok(Status { status: header.status, transport, sense })
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SgIo>() == 88);
