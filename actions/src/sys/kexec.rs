//! Starting a kernel from the running kernel (linux/kexec.h).

use std::ffi::{CStr, c_long, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

unsafe extern "C" {
    /// syscall(2), for kexec_file_load(2), which rustix and some C libraries do not have.
    fn syscall(number: c_long, ...) -> c_long;
}

/// `__NR_kexec_file_load` of asm/unistd_64.h, and of asm-generic/unistd.h.
const KEXEC_FILE_LOAD: c_long = if cfg!(target_arch = "x86_64") { 320 } else { 294 };
/// linux/kexec.h.
const KEXEC_FILE_UNLOAD: c_ulong = 1;
const KEXEC_FILE_NO_INITRAMFS: c_ulong = 4;

/// Loads a kernel into memory. reboot(2) starts it on request.
pub(crate) fn load(kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
    let (initrd, flags) = match initrd {
        Some(initrd) => (initrd.as_raw_fd(), 0),
        None => (-1, KEXEC_FILE_NO_INITRAMFS),
    };
    call(kernel.as_raw_fd(), initrd, Some(cmdline), flags)
}

/// Removes the kernel that is loaded.
pub(crate) fn unload() -> io::Result<()> {
    call(-1, -1, None, KEXEC_FILE_UNLOAD)
}

fn call(kernel: RawFd, initrd: RawFd, cmdline: Option<&CStr>, flags: c_ulong) -> io::Result<()> {
    let cmdline_len = cmdline.map_or(0, |cmdline| cmdline.count_bytes() as c_ulong + 1);
    // SAFETY: kexec_file_load takes two descriptors, which outlive the call, and reads cmdline_len bytes, which is the
    // string with the zero that ends it, or nothing; every argument is as wide as a register.
    let done = unsafe {
        syscall(
            KEXEC_FILE_LOAD,
            c_long::from(kernel),
            c_long::from(initrd),
            cmdline_len,
            cmdline.map_or(std::ptr::null(), CStr::as_ptr),
            flags,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
