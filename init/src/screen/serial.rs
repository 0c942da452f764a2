//! The screen on a serial line, if a terminal is at its other end.
//!
//! A terminal answers a question for the position of its cursor (DSR 6 and CPR, ECMA-48, sections 8.3.14 and 8.3.35).
//! Who does not answer keeps a log of the line, or is not there: the line then has the kernel's log as always. It is
//! asked at the start, whenever somebody types, and while the screen is shown.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios;

use super::head;
use super::log::Log;
use super::paint::Painter;
use super::terminal::{Charset, Size};
use super::{LOOK, Wanted, look, open};

/// How long a terminal may take to answer. A BMC passes a line on through a network.
const ANSWER: Duration = Duration::from_secs(2);
/// While the screen is shown, it is asked again at this interval, because somebody may have closed the terminal.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// Asks where the cursor is. It is all that a log of the line gets.
const CURSOR: &[u8] = b"\x1b[6n";
/// Moves the cursor to the last column of the last row, asks where it is, and moves it back.
const SIZE: &[u8] = b"\x1b7\x1b[r\x1b[999;999H\x1b[6n\x1b8";
/// Asks where the cursor is after a character that has three bytes in UTF-8 and one column, and erases it.
const BLOCK: &[u8] = "\x1b7\x1b[1;1H█\x1b[6n\x1b[1;1H\x1b[K\x1b8".as_bytes();
/// The size of a terminal that does not say.
const USUAL: Size = Size { columns: 80, rows: 24 };
/// Least time between two complete drawings because of messages in between.
const HEAL_AFTER: Duration = Duration::from_secs(1);

/// Draws on a serial line until it is to stop.
pub fn draw(path: &Path, wanted: Wanted, log: &Log, stop: &AtomicBool) -> Result<()> {
    if wanted == Wanted::Plain {
        return Ok(());
    }
    let mut line = open(path)?;
    let is_stopped = || stop.load(Ordering::Relaxed);
    while !is_stopped() {
        match (ask(&mut line)?, wanted) {
            (Some((size, charset)), _) => show(&mut line, size, charset, wanted, log, &is_stopped)?,
            (None, Wanted::Full) => show(&mut line, USUAL, Charset::Ascii, wanted, log, &is_stopped)?,
            (None, _) => {
                // Nothing is drawn. Somebody who connects later types something.
                while !is_stopped() && !has_input(&line, LOOK)? {}
            }
        }
    }
    Ok(())
}

/// Shows the screen until nobody is there any more.
fn show(
    line: &mut File,
    size: Size,
    charset: Charset,
    wanted: Wanted,
    log: &Log,
    is_stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let mut painter = Painter::default();
    let (mut asked, mut healed, mut messages) = (Instant::now(), Instant::now(), log.count());
    while !is_stopped() && (wanted == Wanted::Full || asked.elapsed() < ASK_AGAIN) {
        // A message may have been printed between two parts of a line of the head.
        let is_torn = log.count() != messages && healed.elapsed() >= HEAL_AFTER;
        if is_torn {
            (healed, messages) = (Instant::now(), log.count());
        }
        painter.paint(line, &head::draw(&look(), size, charset), size, log, is_torn)?;
        termios::tcdrain(&*line).context("waiting for the line")?;
        if has_input(line, LOOK)? {
            // Somebody may have opened another terminal.
            match ask(line)? {
                Some(found) if found == (size, charset) => painter = Painter::default(),
                None if wanted == Wanted::Full => painter = Painter::default(),
                _ => break,
            }
            asked = Instant::now();
        }
        if asked.elapsed() >= ASK_AGAIN && ask(line)? == Some((size, charset)) {
            asked = Instant::now();
        }
    }
    painter.leave(line)
}

/// Asks a terminal for its size and its characters. `None` if no terminal answers in time.
fn ask(line: &mut File) -> Result<Option<(Size, Charset)>> {
    // What was typed before is no answer.
    while has_input(line, Duration::ZERO)? {
        read(line)?;
    }
    if question(line, CURSOR)?.is_none() {
        return Ok(None);
    }
    let Some((rows, columns)) = question(line, SIZE)? else { return Ok(None) };
    let charset = match question(line, BLOCK)? {
        Some((_, 2)) => Charset::Blocks,
        _ => Charset::Ascii,
    };
    Ok(Some((Size { columns, rows }, charset)))
}

/// Returns the row and column that a terminal answers.
fn question(line: &mut File, question: &[u8]) -> Result<Option<(usize, usize)>> {
    line.write_all(question).context("writing")?;
    let (deadline, mut said) = (Instant::now() + ANSWER, Vec::new());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !has_input(line, left)? {
            return Ok(None);
        }
        said.extend(read(line)?);
        if let Some(position) = position(&said) {
            return Ok(Some(position));
        }
    }
}

/// Reads row and column from an answer: `ESC [ ROW ; COLUMN R`.
pub(super) fn position(said: &[u8]) -> Option<(usize, usize)> {
    let text = String::from_utf8_lossy(said);
    let (row, column) = text.rsplit_once("\x1b[")?.1.split_once('R')?.0.split_once(';')?;
    // A terminal larger than any display is a mistake or an attack on memory.
    let number = |text: &str| text.parse().ok().filter(|number| (1..=500).contains(number));
    Some((number(row)?, number(column)?))
}

fn has_input(line: &File, limit: Duration) -> Result<bool> {
    let timeout = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let mut fds = [PollFd::from_borrowed_fd(line.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("waiting for input"),
    }
}

fn read(line: &mut File) -> Result<Vec<u8>> {
    let mut buffer = [0; 256];
    let length = line.read(&mut buffer).context("reading")?;
    // At its end, a line is ready for input forever.
    anyhow::ensure!(length > 0, "reading: the line was hung up");
    Ok(buffer.get(..length).unwrap_or_default().to_vec())
}
