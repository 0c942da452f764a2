//! Sends the log with its fields to the journal if standard error is connected to it, else to standard error as text or
//! JSON. Values cannot start a new line of text, and cannot control a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use slipway_protocol::shared::printable;
use tracing::field::{Field, Visit};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Prefix of our own fields in the journal.
const PREFIX: &str = "SLIPWAY";

/// How log lines are written to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Time, level and message, then the fields as KEY=VALUE.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging. If no format is given, the log goes to the journal if standard error is connected to it.
pub fn start(filter: EnvFilter, format: Option<Format>) {
    let lines = tracing_subscriber::fmt().with_env_filter(filter.clone()).with_writer(|| Escaping(io::stderr()));
    match (format, journal(format)) {
        (_, Some(journal)) => tracing_subscriber::registry().with(filter).with(journal).init(),
        (Some(Format::Json), None) => lines.json().init(),
        (Some(Format::Text) | None, None) => {
            lines.fmt_fields(Fields).with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).init();
        }
    }
}

/// Connects to the journal. `None` if a format was given, standard error is not connected to the journal, or the
/// journal does not answer.
fn journal(format: Option<Format>) -> Option<tracing_journald::Layer> {
    let stderr = rustix::fs::fstat(io::stderr()).ok()?;
    let stream = std::env::var("JOURNAL_STREAM").ok()?;
    let is_wanted =
        format.is_none() && slipway_protocol::shared::journal::is_stream(&stream, stderr.st_dev, stderr.st_ino);
    let layer = is_wanted.then(tracing_journald::layer)?.ok()?;
    let priorities = tracing_journald::PriorityMappings {
        info: tracing_journald::Priority::Informational,
        debug: tracing_journald::Priority::Debug,
        ..tracing_journald::PriorityMappings::new()
    };
    Some(layer.with_field_prefix(Some(PREFIX.to_owned())).with_priority_mappings(priorities))
}

/// Writes JSON and escapes all control characters, because JSON itself requires that only for some.
struct Escaping<W>(W);

impl<W: Write> Write for Escaping<W> {
    /// Receives a whole line at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(printable::json(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Formats fields as text: the message, then KEY=VALUE. Values that could be misread are quoted.
struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut line = Line { writer, written: Ok(()), separator: "" };
        fields.record(&mut line);
        line.written
    }
}

struct Line<'writer> {
    writer: Writer<'writer>,
    written: fmt::Result,
    separator: &'static str,
}

impl Line<'_> {
    fn add(&mut self, field: &Field, value: &str) {
        let separator = std::mem::replace(&mut self.separator, " ");
        let is_several = value.is_empty() || value.contains(|c: char| c.is_whitespace() || matches!(c, '"' | '='));
        let added = match field.name() {
            "message" => write!(self.writer, "{separator}{}", printable::line(value)),
            name if is_several => write!(self.writer, "{separator}{name}=\"{}\"", quoted(value)),
            name => write!(self.writer, "{separator}{name}={}", printable::line(value)),
        };
        self.written = self.written.and(added);
    }
}

fn quoted(value: &str) -> String {
    printable::line(&value.replace('\\', "\\\\").replace('"', "\\\"")).into_owned()
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What a subscriber wrote for one event.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a lock").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt().without_time().with_target(false).fmt_fields(Fields).with_ansi(false);
        tracing::subscriber::with_default(lines.with_writer(move || writer.clone()).finish(), || {
            let hostile = "a\nb\u{1b}[2J code=\"x\"\u{202e}";
            let state = Some(1);
            tracing::info!(node = "web1", error = hostile, reason = %hostile, ?state, n = 3, "said {hostile}");
        });
        let line = String::from_utf8(written.0.lock().expect("a lock").clone()).expect("text");
        let value = r#""a\nb\u{1b}[2J code=\"x\"\u{202e}""#;
        let said = r#"said a\nb\u{1b}[2J code="x"\u{202e}"#;
        assert_eq!(line, format!(" INFO {said} node=web1 error={value} reason={value} state=Some(1) n=3\n"));
    }

    #[test]
    fn an_event_in_json_has_nothing_that_a_terminal_obeys() {
        let mut written = Vec::new();
        Escaping(&mut written).write_all("{\"a\":\"\u{7f}\u{9b}\u{202e}é\"}\n".as_bytes()).expect("written");
        assert_eq!(written, "{\"a\":\"\\u007f\\u009b\\u202eé\"}\n".as_bytes());
    }
}
