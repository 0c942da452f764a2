//! The virtual terminals of the graphical console (ioctl_console(2)).

use std::fs::File;

use rustix::io::Result;
use rustix::ioctl::{self, Opcode, Setter};

/// asm-generic/ioctls.h.
const TIOCLINUX: Opcode = 0x541C;
/// linux/tiocl.h.
const TIOCL_SETKMSGREDIRECT: u8 = 11;

/// Makes the kernel print its messages on the virtual terminal with this number, whichever is shown. `terminal` is any
/// virtual terminal.
pub fn redirect_kernel_messages(terminal: &File, number: u8) -> Result<()> {
    // SAFETY: this subcode of TIOCLINUX reads two bytes, itself and the number, and they live on the stack.
    unsafe { ioctl::ioctl(terminal, Setter::<TIOCLINUX, [u8; 2]>::new([TIOCL_SETKMSGREDIRECT, number])) }
}
