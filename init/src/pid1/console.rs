//! Standard input, output and error of PID 1.

use rustix::fs::{Mode, OFlags};

/// Makes sure that descriptors 0, 1 and 2 are open: on the console if there is one, else on /dev/null. The kernel opens
/// /dev/console for PID 1 only if the image contains the node. The next opened file would get a free descriptor.
pub fn open() {
    open_on("/dev/null");
    open_on("/dev/console");
}

fn open_on(path: &str) {
    if let Ok(console) = rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()) {
        // dup2 cannot fail on an open descriptor. Without a console nothing can be done.
        let _ = rustix::stdio::dup2_stdin(&console);
        let _ = rustix::stdio::dup2_stdout(&console);
        let _ = rustix::stdio::dup2_stderr(&console);
    }
}
