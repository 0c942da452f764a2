//! Requests to USB devices (Linux, include/uapi/linux/usbdevice_fs.h).

use std::ffi::c_void;
use std::fs::File;

use rustix::io::Result;
use rustix::ioctl::{Updater, ioctl, opcode};

/// `struct usbdevfs_ctrltransfer`.
#[repr(C)]
struct Control {
    request_type: u8,
    request: u8,
    value: u16,
    index: u16,
    length: u16,
    timeout_ms: u32,
    data: *mut c_void,
}

/// `bmRequestType` of a class request to a port of a hub, with data from the hub (USB 2.0, 11.24.2).
const FROM_PORT: u8 = 0xA3;
const GET_STATUS: u8 = 0;
const TIMEOUT_MS: u32 = 1000;
/// `USBDEVFS_CONTROL`.
const CONTROL: rustix::ioctl::Opcode = opcode::read_write::<Control>(b'U', 0);

/// Reads `wPortStatus` of a hub's port, numbered from 1 (USB 2.0, 11.24.2.7.1; USB 3.2, 10.16.2.6.1). `hub` is the
/// hub's file in /dev/bus/usb, open for reading and writing. A suspended hub is woken.
pub(crate) fn port_status(hub: &File, port: u16) -> Result<u16> {
    let mut answer = [0u8; 4];
    let mut control = Control {
        request_type: FROM_PORT,
        request: GET_STATUS,
        value: 0,
        index: port,
        length: answer.len() as u16,
        timeout_ms: TIMEOUT_MS,
        data: answer.as_mut_ptr().cast(),
    };
    // SAFETY: the opcode reads the structure, and the kernel writes at most `length` bytes to `data`, which is as long
    // and outlives the call.
    unsafe { ioctl(hub, Updater::<CONTROL, _>::new(&mut control)) }?;
    Ok(u16::from_le_bytes([answer[0], answer[1]]))
}
