//! System calls and ioctls for which rustix has no safe function, in one file per driver or part of the kernel.
#![allow(unsafe_code, reason = "ioctls are not memory safe by type; everything unsafe of this crate is here and below")]

use std::ffi::c_void;

use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::thread::UnshareFlags;

pub(crate) mod block;
pub(crate) mod console;
#[allow(clippy::indexing_slicing, reason = "it fills an argument of its own making")]
pub(crate) mod device_mapper;
pub(crate) mod file_system;
pub(crate) mod kexec;
pub(crate) mod loop_device;
pub(crate) mod md;
pub(crate) mod nvme;
pub(crate) mod scsi;
pub(crate) mod swap;
pub(crate) mod usb;

/// Moves the calling thread, or the processes it starts, into new namespaces (unshare(2)).
pub(crate) fn unshare(namespaces: UnshareFlags) -> Result<()> {
    // `UnshareFlags::FILES` is masked out, because it would give the thread its own descriptors. The other flags do not
    // affect other threads.
    let namespaces = namespaces & (UnshareFlags::NEWNS | UnshareFlags::NEWPID);
    // SAFETY: the flags are of namespaces alone, so that every descriptor stays shared by all threads.
    unsafe { rustix::thread::unshare_unsafe(namespaces) }
}

/// An ioctl with a meaningful return value.
struct Returning<T> {
    opcode: Opcode,
    argument: Option<T>,
}

// SAFETY: the modules below pass an opcode together with the type it reads and writes, or no argument where it takes
// none.
unsafe impl<T> Ioctl for Returning<T> {
    type Output = u32;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut().map_or(std::ptr::null_mut(), |argument| std::ptr::from_mut(argument).cast())
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32> {
        Ok(u32::try_from(out).unwrap_or_default())
    }
}
