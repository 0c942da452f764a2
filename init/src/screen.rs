//! `slipway screen`: what the machine does, for the person in front of it, with the log below.
//!
//! It is a process of its own: what it draws may be long or strange, and a terminal may block, and neither may hold up
//! PID 1 or the installer. It reads files that those write. The log below the head is the kernel's own output, which
//! the terminal scrolls in the rest of the screen. So a panic of the kernel needs nothing from here to be seen.
//!
//! Each terminal has a thread. `/dev/tty2` has the whole log.

mod code;
mod digits;
mod head;
mod log;
mod paint;
mod serial;
mod terminal;
#[cfg(test)]
mod tests;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use rustix::fs::OFlags;
use rustix::termios::{self, OptionalActions};
use slipway_actions::redirect_kernel_messages;
use slipway_installer::drivers::command_line;
use slipway_installer::screen;
use slipway_installer::server::link;
use tracing::{info, warn};

use self::head::View;
use self::log::Log;
use self::paint::Painter;
use self::terminal::{Charset, Size};

/// Word of the kernel's command line that chooses the screen.
const KEY: &str = "slipway.screen=";
/// The kernel's consoles, separated by blanks (Documentation/ABI/testing/sysfs-tty).
const CONSOLES: &str = "/sys/class/tty/console/active";
/// Name of the console that is whichever virtual terminal is shown.
const GRAPHICAL: &str = "tty0";
/// The virtual terminals with the screen and with the whole log.
const SCREEN: (&str, u8) = ("/dev/tty1", 1);
const WHOLE_LOG: &str = "/dev/tty2";
/// Interval between two looks at what is to be shown.
const LOOK: Duration = Duration::from_millis(200);
/// A driver that takes over the display may empty it, so all is drawn again at this interval.
const AGAIN: Duration = Duration::from_secs(10);
/// How long terminals may take to become what they were.
const FAREWELL: Duration = Duration::from_millis(300);

/// What is shown where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Nothing but the kernel's log, everywhere.
    Off,
    /// The screen on the graphical console, and the kernel's log on serial lines.
    Plain,
    /// The screen on the graphical console, and on serial lines with a terminal that answers.
    Asked,
    /// The screen everywhere, whether a terminal answers or not.
    Full,
}

/// Draws until PID 1 stops this process.
pub fn run() -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    let wanted = wanted(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default());
    if wanted != Wanted::Off {
        let consoles = std::fs::read_to_string(CONSOLES).with_context(|| format!("reading {CONSOLES}"))?;
        let log = Log::follow().context("reading /dev/kmsg")?;
        for console in consoles.split_whitespace() {
            let (log, stop, name) = (log.clone(), Arc::clone(&stop), console.to_owned());
            let draw = move || match name.as_str() {
                GRAPHICAL => graphical(&log, &stop),
                _ => serial::draw(&Path::new("/dev").join(&name), wanted, &log, &stop),
            };
            let name = console.to_owned();
            let thread = thread::Builder::new().name(name.clone()).spawn(move || {
                if let Err(error) = draw() {
                    warn!("drawing on {name}: {error:#}; it shows the log alone");
                }
            });
            threads.push(thread.context("starting a thread")?);
        }
    }
    // PID 1 blocked the signal before it started this process.
    let mut end = SigSet::empty();
    end.add(Signal::SIGTERM);
    end.wait().context("waiting for SIGTERM")?;
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + FAREWELL;
    while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reads the choice from the kernel's command line. The last one counts.
fn wanted(command_line: &str) -> Wanted {
    match command_line::words(command_line).filter_map(|word| word.strip_prefix(KEY)).last() {
        None => Wanted::Asked,
        Some("off") => Wanted::Off,
        Some("plain") => Wanted::Plain,
        Some("full") => Wanted::Full,
        Some(other) => {
            warn!("{KEY}{other:?} on the kernel command line is not off, plain or full; it is ignored");
            Wanted::Asked
        }
    }
}

/// Draws on the graphical console.
fn graphical(log: &Log, stop: &AtomicBool) -> Result<()> {
    let mut terminal = open(Path::new(SCREEN.0))?;
    // Otherwise the kernel prints on whichever terminal is shown, between the lines of the whole log too.
    redirect_kernel_messages(&terminal, SCREEN.1).context("redirecting the kernel's messages")?;
    let whole = log.clone();
    thread::Builder::new()
        .name("whole-log".to_owned())
        .spawn(move || whole_log(&whole))
        .context("starting a thread")?;
    let mut painter = Painter::default();
    let mut drawn = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let size = termios::tcgetwinsize(&terminal).context("asking for the size")?;
        let size = Size { columns: size.ws_col.into(), rows: size.ws_row.into() };
        let again = drawn.elapsed() >= AGAIN;
        if again {
            drawn = Instant::now();
        }
        let view = View { log_key: Some("Alt+F2"), ..look() };
        painter.paint(&mut terminal, &head::draw(&view, size, Charset::Blocks), size, log, again)?;
        thread::sleep(LOOK);
    }
    painter.leave(&mut terminal)
}

/// Copies the log, from the kernel's first message, to the terminal for it.
fn whole_log(log: &Log) {
    let copy = || -> Result<()> {
        let mut terminal = open(Path::new(WHOLE_LOG))?;
        let mut next = 0;
        loop {
            let (lines, after) = log.since(next);
            for line in lines {
                terminal.write_all(format!("{line}\r\n").as_bytes())?;
            }
            next = after;
            thread::sleep(LOOK);
        }
    };
    if let Err(error) = copy() {
        info!("writing the log to {WHOLE_LOG}: {error:#}");
    }
}

/// Opens a terminal and makes it pass on bytes as they are, in both directions.
fn open(path: &Path) -> Result<File> {
    let flags = OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags.bits().cast_signed()).open(path);
    let terminal = opened.with_context(|| format!("opening {}", path.display()))?;
    // Opening does not wait for a carrier, but writes wait for the line.
    let flags = rustix::fs::fcntl_getfl(&terminal)?;
    rustix::fs::fcntl_setfl(&terminal, flags - OFlags::NONBLOCK)?;
    let mut settings = termios::tcgetattr(&terminal).with_context(|| format!("asking {}", path.display()))?;
    settings.make_raw();
    termios::tcsetattr(&terminal, OptionalActions::Now, &settings)
        .with_context(|| format!("setting {}", path.display()))?;
    Ok(terminal)
}

/// Gathers what is to be shown. What is not known yet is left out.
fn look() -> View {
    let json = |path| std::fs::read(path).unwrap_or_default();
    View {
        state: serde_json::from_slice(&json(screen::PATH)).unwrap_or_default(),
        link: serde_json::from_slice(&json(link::PATH)).ok(),
        log_key: None,
    }
}
