//! The head of the screen: a pure function from what is known to lines.
//!
//! Texts come from servers and machines. They are made safe here, and cut to what there is room for. Letters beyond
//! ASCII become `?`: not every console has them, and their width is not known.

use std::time::Duration;

use slipway_installer::screen::{Doing, State, Step};
use slipway_installer::server::link::Link;
use slipway_protocol::Progress;
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::{self, size as bytes};

use super::terminal::{Charset, Size};
use super::{code, digits};

/// The smallest terminal with a head. On a smaller one there is only the log.
const SMALLEST: Size = Size { columns: 30, rows: 8 };
/// Fewest rows that the log keeps, beside a claim code with its QR code.
const LEAST_LOG: usize = 3;
/// Rows that the log should keep beside a claim code.
const SOME_LOG: usize = 5;
/// Quiet zone of a QR code in modules: as the standard asks for, and as readers can do with.
const QUIET: usize = 4;
const NARROW_QUIET: usize = 2;
/// Columns between the text and the QR code, and the least that the text needs.
const GAP: usize = 2;
/// Columns before the text.
const MARGIN: usize = 1;
const NARROWEST_TEXT: usize = 40;
/// Columns of a label.
const LABEL: usize = 9;
/// Rows of a terminal on which a claim code is drawn twice as large.
const TALL: usize = 35;
/// Most rows of a reason.
const REASON_ROWS: usize = 7;

/// What is to be shown.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub state: State,
    /// The network that reaches the server.
    pub link: Option<Link>,
    /// The keys for the whole log, if the terminal has any.
    pub log_key: Option<&'static str>,
}

/// How a text stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Plain,
    Faint,
    Bright,
    Good,
    Warning,
    Bad,
    Title,
}

impl Look {
    /// Returns the parameters of SGR (ECMA-48, section 8.3.117).
    fn parameters(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Faint => "0;36",
            Self::Bright => "0;97;40",
            Self::Good => "0;92",
            Self::Warning => "0;93",
            Self::Bad => "0;91",
            Self::Title => "0;97;44",
        }
    }
}

/// A line of the head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(Look, String)>);

impl Line {
    fn of(look: Look, text: impl Into<String>) -> Self {
        Self(vec![(look, text.into())])
    }

    /// A line with a label before its text.
    fn labelled(label: &str, text: impl Into<String>) -> Self {
        Self(vec![(Look::Faint, format!("{label:<LABEL$}")), (Look::Plain, text.into())])
    }

    /// Cuts or fills the line to a width, so that nothing of an earlier line stays.
    fn fit(mut self, width: usize) -> Self {
        let mut left = width;
        for (_, text) in &mut self.0 {
            *text = text.chars().take(left).collect();
            left -= text.chars().count();
        }
        self.0.push((Look::Plain, " ".repeat(left)));
        self
    }

    /// The line without its looks.
    #[cfg(test)]
    pub fn text(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// The line with control sequences for its looks.
    pub fn in_colours(&self) -> String {
        self.0.iter().map(|(look, text)| format!("\x1b[{}m{text}", look.parameters())).collect()
    }
}

/// A line, and how soon it is left out where there is little room. 0 never is.
struct Row(u8, Line);

/// Returns the lines of the head. Empty if the terminal is too small for any.
pub fn draw(view: &View, size: Size, charset: Charset) -> Vec<Line> {
    if size.columns < SMALLEST.columns || size.rows < SMALLEST.rows {
        return Vec::new();
    }
    let is_held = matches!(view.state.doing, Doing::Held { .. });
    // A log says nothing new while somebody is waited for.
    let most = if is_held { size.rows - LEAST_LOG } else { size.rows * 3 / 5 };
    let picture = picture(view, size, charset, most);
    let picture_width = picture.first().map_or(0, |row| row.chars().count());
    let width = if picture.is_empty() { size.columns } else { size.columns - picture_width - GAP };
    // Title and separator are not beside the picture.
    let room = (most.max(6) - 2).max(picture.len());
    let mut rows = about(view, width - MARGIN);
    rows.extend(doing(&view.state, Size { columns: width - MARGIN, ..size }, charset));
    let rows = fit(rows, room);
    let mut lines = vec![title(view, size.columns)];
    for at in 0..rows.len().max(picture.len()) {
        let mut line = Line::of(Look::Plain, " ".repeat(MARGIN));
        line.0.extend(rows.get(at).cloned().unwrap_or_default().0);
        if let Some(row) = picture.get(at) {
            line = line.fit(width + GAP);
            line.0.push((Look::Bright, row.clone()));
        }
        lines.push(line.fit(size.columns));
    }
    lines.push(separator(view, size.columns, charset));
    lines
}

/// Leaves rows out until the others have room.
fn fit(mut rows: Vec<Row>, room: usize) -> Vec<Line> {
    while rows.len() > room {
        let (at, rank) =
            rows.iter().enumerate().map(|(at, row)| (at, row.0)).max_by_key(|(_, rank)| *rank).unwrap_or_default();
        if rank == 0 {
            rows.truncate(room);
        } else {
            rows.remove(at);
        }
    }
    rows.into_iter().map(|row| row.1).collect()
}

/// Returns the rows of the QR code, or none if it has no room.
fn picture(view: &View, size: Size, charset: Charset, most: usize) -> Vec<String> {
    let Some(page) = view.state.page.as_ref().filter(|_| charset == Charset::Blocks) else { return Vec::new() };
    let drawn = [(QUIET, SOME_LOG), (NARROW_QUIET, LEAST_LOG)].into_iter().find_map(|(quiet, log)| {
        let rows = code::rows(page, quiet)?;
        let width = rows.first()?.chars().count();
        let has_room = rows.len() + 2 <= most.min(size.rows - log) && width + GAP + NARROWEST_TEXT <= size.columns;
        has_room.then_some(rows)
    });
    drawn.unwrap_or_default()
}

fn title(view: &View, columns: usize) -> Line {
    let state = &view.state;
    let name = match (&state.name, &state.serial) {
        (Some(name), _) => text(name, 64),
        (None, Some(serial)) => format!("serial number {}", text(serial, 64)),
        (None, None) => "a machine without a name".to_owned(),
    };
    let version = concat!("slipway ", env!("CARGO_PKG_VERSION"), " ");
    let left = format!(" {name} ");
    let between = columns.saturating_sub(left.chars().count() + version.len());
    Line(vec![(Look::Title, left), (Look::Title, format!("{}{version}", " ".repeat(between)))]).fit(columns)
}

fn separator(view: &View, columns: usize, charset: Charset) -> Line {
    let dash = if charset == Charset::Blocks { "─" } else { "-" };
    let words = match view.log_key {
        Some(key) => format!(" log, all of it with {key} "),
        None => " log ".to_owned(),
    };
    let after = columns.saturating_sub(words.len() + 2);
    Line(vec![(Look::Faint, dash.repeat(2)), (Look::Faint, words), (Look::Faint, dash.repeat(after))]).fit(columns)
}

/// What the machine is, and how it reaches its server.
fn about(view: &View, width: usize) -> Vec<Row> {
    let state = &view.state;
    let mut rows = Vec::new();
    if let (Some(_), Some(serial)) = (&state.name, &state.serial) {
        rows.push(Row(5, Line::labelled("serial", text(serial, 64))));
    }
    rows.push(match &view.link {
        Some(link) => {
            let mut address = format!("{} on {}", text(&link.address, 50), text(&link.interface, 15));
            let gateway = link.gateway.as_ref().map(|gateway| format!(", gateway {}", text(gateway, 45)));
            if let Some(gateway) = gateway.filter(|gateway| LABEL + address.len() + gateway.len() <= width) {
                address += &gateway;
            }
            Row(3, Line::labelled("address", address))
        }
        None => Row(
            3,
            Line(vec![
                (Look::Faint, format!("{:<LABEL$}", "address")),
                (Look::Warning, "none yet that reaches the server".to_owned()),
            ]),
        ),
    });
    if let Some(server) = &state.server {
        rows.push(Row(4, Line::labelled("server", text(server.trim_end_matches('/'), 200))));
    }
    rows.push(Row(6, Line::default()));
    rows
}

/// What the machine does, and what the person can do.
fn doing(state: &State, size: Size, charset: Charset) -> Vec<Row> {
    let width = size.columns;
    let mut rows = Vec::new();
    match &state.doing {
        Doing::Starting => rows.extend(said(0, Look::Bright, "Looks at its hardware, and for its server.", width, 2)),
        Doing::Enrolling => rows.extend(said(0, Look::Bright, "Asks the server to let it in.", width, 2)),
        Doing::Held { code } => {
            rows.extend(said(0, Look::Bright, "Waits to be let in. Claim code:", width, 2));
            rows.push(Row(7, Line::default()));
            rows.extend(claim(code, size, charset));
            rows.push(Row(7, Line::default()));
            let release = format!("slipway-server node release {}", text(code, 20));
            rows.extend(said(2, Look::Plain, "Enter it on the server's page, or run:", width, 2));
            rows.extend(said(2, Look::Good, &release, width, 2));
        }
        Doing::Idle => rows.extend(said(0, Look::Bright, "Waits for work.", width, 1)),
        Doing::Step(step) => rows.extend(step_rows(step, width, charset)),
        Doing::Failed { step, reason } => {
            let what = match step {
                Some((number, of, name)) => format!("Step {number}/{of} {} failed.", text(name, 60)),
                None => "The run failed.".to_owned(),
            };
            rows.extend(said(0, Look::Bad, &what, width, 2));
            rows.extend(said(1, Look::Plain, reason, width, REASON_ROWS));
            let name = state.name.as_ref().map(|name| format!(" {}", text(name, 64))).unwrap_or_default();
            let next = format!(
                "The machine stays up. Mend the cause, and start another run on the server's page, or with: \
                 slipway-server run start{name}"
            );
            rows.push(Row(7, Line::default()));
            rows.extend(said(2, Look::Warning, &next, width, 3));
        }
        Doing::Broken { reason } => {
            rows.extend(said(0, Look::Bad, "Cannot go on.", width, 1));
            rows.extend(said(1, Look::Plain, reason, width, REASON_ROWS));
        }
        Doing::Done => rows.extend(said(0, Look::Good, "The run is done. Waits for work.", width, 2)),
        Doing::Leaving => {
            rows.extend(said(0, Look::Good, "Done. The installed system starts next.", width, 2));
        }
    }
    if state.has_system && matches!(state.doing, Doing::Held { .. } | Doing::Idle) {
        let hint = "Came back? Remove the boot medium to start the system that is on a disk, or put that disk first in \
                    the boot order.";
        rows.push(Row(7, Line::default()));
        rows.extend(said(2, Look::Warning, hint, width, 4));
    }
    if let Some(trouble) = &state.trouble {
        rows.push(Row(7, Line::default()));
        rows.extend(said(1, Look::Bad, &format!("The server cannot be used; trying again: {trouble}"), width, 4));
    }
    rows
}

/// A claim code in the largest letters that there is room for.
fn claim(code: &str, size: Size, charset: Charset) -> Vec<Row> {
    let code = text(code, 20);
    let fits = |rows: &Vec<String>| rows.first().is_some_and(|row| row.chars().count() <= size.columns);
    let double = (size.rows >= TALL).then(|| digits::double(&code, charset)).filter(fits);
    let large = double.or_else(|| Some(digits::rows(&code, charset)).filter(fits));
    let lines = large.unwrap_or_else(|| vec![code]);
    lines.into_iter().map(|line| Row(0, Line::of(Look::Bright, line))).collect()
}

fn step_rows(step: &Step, width: usize, charset: Charset) -> Vec<Row> {
    let attempt = if step.attempt > 1 { format!(", attempt {}", step.attempt) } else { String::new() };
    let mut rows =
        said(0, Look::Bright, &format!("Step {}/{} {}{attempt}", step.number, step.of, text(&step.name, 60)), width, 2);
    if let Some(progress) = &step.progress {
        if let Some((done, total)) = fraction(progress) {
            rows.push(Row(0, bar(done, total, width, charset)));
        }
        rows.extend(said(1, Look::Plain, &amounts(progress), width, 2));
    }
    if let Some(note) = &step.note {
        rows.extend(said(2, Look::Faint, note, width, 2));
    }
    if let Some(earlier) = &step.earlier {
        rows.extend(said(2, Look::Warning, &format!("Tried before: {earlier}"), width, 3));
    }
    rows
}

/// Returns the part that is done and the whole, if the whole is known.
fn fraction(progress: &Progress) -> Option<(u64, u64)> {
    let of_bytes = progress.total.map(|total| (progress.bytes, total));
    let (done, total) = of_bytes.or(progress.fetch_total.map(|total| (progress.fetched, total)))?;
    (total > 0).then_some((done.min(total), total))
}

fn bar(done: u64, total: u64, width: usize, charset: Charset) -> Line {
    let (full, empty) = if charset == Charset::Blocks { ("█", "─") } else { ("#", "-") };
    let part = |of: usize| usize::try_from(u128::from(done) * of as u128 / u128::from(total.max(1))).unwrap_or(of);
    let cells = width.saturating_sub(6).min(60);
    let filled = part(cells);
    Line(vec![
        (Look::Good, full.repeat(filled)),
        (Look::Faint, empty.repeat(cells - filled)),
        (Look::Bright, format!(" {:>3}%", part(100))),
    ])
}

fn amounts(progress: &Progress) -> String {
    let mut words = match (progress.total, progress.fetch_total) {
        (Some(total), _) => format!("{} of {}", bytes(progress.bytes), bytes(total)),
        (None, Some(total)) => {
            format!("{} done, {} of {} transferred", bytes(progress.bytes), bytes(progress.fetched), bytes(total))
        }
        (None, None) => bytes(progress.bytes),
    };
    if progress.rate > 0 {
        words += &format!(", {}/s", bytes(progress.rate));
    }
    if let Some(left) = progress.seconds_left {
        words += &format!(", {} left", duration::words(Duration::from_secs(left)));
    }
    if let Some(stage) = progress.waiting_for {
        words += &format!("; waits for {}", stage.in_words());
    }
    words
}

/// Breaks a sentence into at most `most` lines between words. What has no room is left out, which three dots say.
fn said(rank: u8, look: Look, sentence: &str, width: usize, most: usize) -> Vec<Row> {
    let sentence = text(sentence, width.saturating_mul(most));
    let mut lines: Vec<String> = Vec::new();
    let mut rest = sentence.trim();
    while !rest.is_empty() {
        if lines.len() == most {
            if let Some(last) = lines.last_mut() {
                last.truncate(width.saturating_sub(3));
                last.push_str("...");
            }
            break;
        }
        // All of it is ASCII, so that a byte is a column.
        let end = match rest.len() <= width {
            true => rest.len(),
            false => rest.get(..=width).and_then(|start| start.rfind(' ')).filter(|at| *at > 0).unwrap_or(width),
        };
        let (line, after) = rest.split_at(end);
        lines.push(line.to_owned());
        rest = after.trim_start();
    }
    lines.into_iter().map(|line| Row(rank, Line::of(look, line))).collect()
}

/// Returns a text in visible ASCII, with at most `most` characters.
fn text(text: &str, most: usize) -> String {
    let safe = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    printable::line(text).chars().map(safe).take(most).collect()
}
