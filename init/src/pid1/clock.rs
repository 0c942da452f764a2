//! Sets the clock before the server can be asked: never earlier than the build of this program.

use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};

use super::kmsg::{Kmsg, Level};

/// Sets the clock to the build time if it is behind. The kernel has already read the RTC. A machine with an empty
/// battery starts in 1970, when no certificate is valid.
pub fn never_before_build(log: &Kmsg) {
    let built = slipway_installer::server::clock::build_time();
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    if now >= built {
        return;
    }
    match clock_settime(ClockId::Realtime, Timespec { tv_sec: built, tv_nsec: 0 }) {
        Ok(()) => log.write(
            Level::Warning,
            &format!("the clock was {} s before the build time; set it to the build time", built - now),
        ),
        Err(error) => log.write(Level::Error, &format!("setting the clock: {error}")),
    }
}
