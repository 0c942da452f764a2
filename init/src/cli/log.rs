//! Where log lines go: to standard error, marked with their level for PID 1 (sd-daemon(3)), and to the log book that is
//! sent to the server when there is no kernel log to read.

use std::fmt;
use std::io::IsTerminal;

use slipway_installer::log_book::LogBook;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging. PID 1 sets `SLIPWAY_LOG=kmsg` to get marked lines. Any other value is a filter such as
/// `warn,slipway_actions=debug`.
pub fn start(book: Option<LogBook>) {
    let wanted = std::env::var("SLIPWAY_LOG").unwrap_or_default();
    let marked = wanted == "kmsg";
    // Our crates are named slipway and slipway_*. Other crates log only warnings and errors.
    let ours = || Targets::new().with_default(LevelFilter::WARN).with_target("slipway", LevelFilter::INFO);
    let filter = if marked || wanted.is_empty() { ours() } else { wanted.parse().unwrap_or_else(|_| ours()) };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .event_format(Lines { marked, book });
    // Fails only if logging was started before.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
}

/// Prints the error a command ended with.
pub fn fatal(error: &anyhow::Error) {
    let marked = std::env::var("SLIPWAY_LOG").is_ok_and(|value| value == "kmsg");
    let prefix = if marked { "<3>" } else { "slipway: " };
    eprintln!("{prefix}{}", super::shown(&format!("{error:#}")));
}

/// Whether standard error is a terminal.
pub fn has_audience() -> bool {
    std::io::stderr().is_terminal()
}

struct Lines {
    marked: bool,
    book: Option<LogBook>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        let level = *event.metadata().level();
        if let Some(book) = &self.book {
            book.add_line(&format!("{level} {}", text.0));
        }
        match (self.marked, level) {
            (true, level) => write!(writer, "<{}>", priority(level))?,
            (false, Level::ERROR) => write!(writer, "error: ")?,
            (false, Level::WARN) => write!(writer, "warning: ")?,
            (false, _) => {}
        }
        // A line break would start a new record without the level.
        writeln!(writer, "{}", text.0.replace('\n', " "))
    }
}

/// The number in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}
