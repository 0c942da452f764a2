//! Where log lines go. If standard error is connected to the journal, they go to the journal with their fields.
//! Otherwise they go to standard error, and for PID 1 they are marked with their level (sd-daemon(3)). If there is no
//! kernel log to read, they also go to the log book that is sent to the server.

use std::fmt;
use std::io::IsTerminal;

use clap::ValueEnum;
use serde_json::{Map, Value};
use slipway_installer::report::log_book::LogBook;
use slipway_protocol::Failure;
use slipway_protocol::shared::{journal, printable};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines are written to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Level and message, then the fields as KEY=VALUE
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging. PID 1 sets `SLIPWAY_LOG=kmsg` to get marked lines; any other value is a filter such as
/// `warn,slipway_actions=debug`. If `format` is `None`, the log goes to the journal if standard error is connected to
/// the journal.
pub fn start(book: Option<LogBook>, format: Option<Format>) {
    let wanted = std::env::var("SLIPWAY_LOG").unwrap_or_default();
    let marked = wanted == "kmsg";
    // Our crates are named slipway and slipway_*. Of other crates only warnings and errors are logged.
    let ours = || Targets::new().with_default(LevelFilter::WARN).with_target("slipway", LevelFilter::INFO);
    let filter = if marked || wanted.is_empty() { ours() } else { wanted.parse().unwrap_or_else(|_| ours()) };
    let format = if marked { Some(Format::Text) } else { format };
    let journal = if format.is_none() { to_journal() } else { None };
    let lines = journal.is_none().then(|| {
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
        lines.event_format(Lines { marked, is_json: format == Some(Format::Json) })
    });
    // Fails only if logging was already started.
    let _ = tracing_subscriber::registry().with(book.map(Book)).with(lines).with(journal).with(filter).try_init();
}

/// Connects to the journal. `None` if standard error is not connected to it, or if the journal does not answer.
fn to_journal() -> Option<tracing_journald::Layer> {
    let stderr = rustix::fs::fstat(std::io::stderr()).ok()?;
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let layer = journal::is_stream(&stream, stderr.st_dev, stderr.st_ino).then(tracing_journald::layer)?.ok()?;
    let priorities = tracing_journald::PriorityMappings {
        info: tracing_journald::Priority::Informational,
        debug: tracing_journald::Priority::Debug,
        ..tracing_journald::PriorityMappings::new()
    };
    Some(layer.with_field_prefix(Some("SLIPWAY".to_owned())).with_priority_mappings(priorities))
}

/// Prints the error with which a command ended.
pub fn fatal(error: &anyhow::Error) {
    let marked = std::env::var("SLIPWAY_LOG").is_ok_and(|value| value == "kmsg");
    let prefix = if marked { "<3>" } else { "slipway: " };
    let advice = advice(error).map(|advice| format!("; {advice}")).unwrap_or_default();
    eprintln!("{prefix}{}{advice}", printable::line(&Failure::of(&**error).in_one_line()));
}

/// Returns advice for an error caused by missing rights, unless the error's message already has it.
pub fn advice(error: &anyhow::Error) -> Option<&'static str> {
    let is_denied = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::PermissionDenied;
    let is_root = || rustix::process::geteuid().is_root();
    let is_said = || format!("{error:#}").contains("as root");
    let found = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_denied);
    (found && !is_root() && !is_said()).then_some("run slipway as root, or as a user with the needed rights")
}

/// Whether standard error is a terminal.
pub fn has_audience() -> bool {
    std::io::stderr().is_terminal()
}

/// Copies each line to the log book.
struct Book(LogBook);

impl<S: Subscriber> Layer<S> for Book {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.add_line(&printable::line(&format!("{} {}", event.metadata().level(), Text::of(event))));
    }
}

struct Lines {
    marked: bool,
    is_json: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        if self.is_json {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let line =
                serde_json::json!({ "level": level.as_str(), "target": event.metadata().target(), "fields": fields.0 });
            return writeln!(writer, "{}", printable::json(&line.to_string()));
        }
        match (self.marked, level) {
            (true, level) => write!(writer, "<{}>", priority(level))?,
            (false, Level::ERROR) => write!(writer, "error: ")?,
            (false, Level::WARN) => write!(writer, "warning: ")?,
            (false, _) => {}
        }
        // A line break would start a new record without a level.
        writeln!(writer, "{}", printable::line(&Text::of(event)))
    }
}

/// Returns the severity number as in syslog(3).
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

impl Text {
    fn of(event: &Event<'_>) -> String {
        let mut text = Self::default();
        event.record(&mut text);
        text.0
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.0.insert_str(0, &format!("{value:?}"));
        } else {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }
}

/// The fields of a log event, by name.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}
