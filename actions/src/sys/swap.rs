//! Swap space.

use std::ffi::{CStr, c_char, c_int};
use std::io;

unsafe extern "C" {
    /// swapoff(2), which rustix does not have.
    fn swapoff(path: *const c_char) -> c_int;
}

/// Makes the kernel stop using a device or file as swap.
pub(crate) fn stop(path: &CStr) -> io::Result<()> {
    // SAFETY: swapoff reads a string that ends with a zero, which a CStr is.
    match unsafe { swapoff(path.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
