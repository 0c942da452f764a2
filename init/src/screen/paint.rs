//! Draws a head on a terminal (ECMA-48, and DECSTBM, DECSC and DECRC of the VT100), and leaves the rest to the log.
//!
//! The kernel prints at the cursor at any time. So the cursor is always in the part that scrolls: each line of the head
//! is one write that moves the cursor and moves it back. The kernel's virtual terminals do a write as a whole. On a
//! serial line a message may come in between; then the head is drawn again.

use std::io::Write;

use anyhow::Result;

use super::head::Line;
use super::log::Log;
use super::terminal::Size;

/// What a terminal shows.
#[derive(Default)]
pub struct Painter {
    size: Size,
    lines: Vec<String>,
}

impl Painter {
    /// Draws the lines that differ from those on the terminal. With `again`, all of them.
    pub fn paint(&mut self, out: &mut impl Write, head: &[Line], size: Size, log: &Log, again: bool) -> Result<()> {
        let lines: Vec<String> = head.iter().map(Line::in_colours).collect();
        let is_other = size != self.size || lines.len() != self.lines.len();
        if is_other {
            self.divide(out, lines.len(), size, log)?;
        } else if again {
            write!(out, "\x1b7\x1b[{};{}r\x1b8", lines.len() + 1, size.rows)?;
        }
        for (row, line) in lines.iter().enumerate() {
            if is_other || again || self.lines.get(row) != Some(line) {
                write(out, &format!("\x1b7\x1b[{};1H{line}\x1b[0m\x1b8", row + 1))?;
            }
        }
        (self.size, self.lines) = (size, lines);
        Ok(())
    }

    /// Empties the terminal, and makes only the rows below the head scroll. They have the end of the log.
    fn divide(&self, out: &mut impl Write, head: usize, size: Size, log: &Log) -> Result<()> {
        let top = head + 1;
        write(out, &format!("\x1b[0m\x1b[r\x1b[2J\x1b[{top};{}r\x1b[{top};1H\x1b[?25l", size.rows))?;
        for line in log.tail(size.rows.saturating_sub(top)) {
            let line: String = line.chars().take(size.columns).collect();
            write(out, &format!("{line}\r\n"))?;
        }
        Ok(())
    }

    /// Makes the terminal as it was: all of it scrolls.
    pub fn leave(&self, out: &mut impl Write) -> Result<()> {
        if self.lines.is_empty() {
            return Ok(());
        }
        write(out, &format!("\x1b[r\x1b[{};1H\x1b[?25h", self.size.rows))
    }
}

/// Writes text at once, so that the kernel cannot print in the middle of it.
fn write(out: &mut impl Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())?;
    Ok(())
}
