//! Reads one document of YAML as PyYAML, the parser of cloud-init, does: what PyYAML refuses is refused here, with its
//! place.

use granit_parser::{Event, Span, options};

use crate::events::{Events, Stopped, refuse, start};
use crate::pyyaml::{self, Nodes, Tabs};
use crate::quotes;
use crate::refusal::Refusal;

/// What a document has around its nodes.
pub(crate) struct Frame {
    /// Offset of the `...` that ends the document, or the length of the text.
    pub(crate) end: usize,
    /// Offset of the first quoted scalar whose lines were joined for the parser.
    pub(crate) joined: Option<usize>,
}

/// Reads a document. `take` gets the start of the stream and every node, with its place in the source.
///
/// The stream may start several times: if quoted scalars continue where the parser does not allow it, the document is
/// read again with their lines joined, and the earlier events are dropped.
pub(crate) fn read(source: &str, take: &mut dyn FnMut(&Event, &Span) -> Result<(), Refusal>) -> Result<Frame, Refusal> {
    pyyaml::refuse_unprintable(source)?;
    let mut text = quotes::Text::new(source);
    loop {
        match read_once(source, &text, take) {
            Ok(frame) => return Ok(frame),
            Err(Stop::Refused(refusal)) => return Err(refusal),
            Err(Stop::InQuotes { from, at, refusal }) => {
                if !text.join(from, at) {
                    return Err(refusal);
                }
            }
        }
    }
}

/// Why a document is not read.
enum Stop {
    Refused(Refusal),
    /// A quoted scalar continues in a column that PyYAML allows and the parser does not. It begins after `from` and is
    /// still open at `at`.
    InQuotes {
        from: usize,
        at: usize,
        refusal: Refusal,
    },
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Reads a text that equals the source, except that the lines of some quoted scalars are joined.
fn read_once(
    source: &str,
    text: &quotes::Text,
    take: &mut dyn FnMut(&Event, &Span) -> Result<(), Refusal>,
) -> Result<Frame, Stop> {
    // With the parser's feature `comments`, comments would be events, and the parser holds at most 96 of them in a row.
    let options = options! { emit_comments: false, emit_anchor_events: true };
    let mut tabs = Tabs::new(source);
    let mut nodes = Nodes::new(source, &text.joined);
    let (mut documents, mut from) = (0, 0);
    let mut end = source.len();
    let mut events = Events::new(&text.text, options);
    while let Some(next) = events.next() {
        let (event, span) = next.map_err(|refusal| match events.stopped {
            Some(Stopped { at, in_quotes }) => {
                let refusal = Refusal::at_byte(source, at, refusal.reason);
                if in_quotes { Stop::InQuotes { from, at, refusal } } else { Stop::Refused(refusal) }
            }
            None => Stop::Refused(refusal),
        })?;
        from = from.max(span.end.byte_offset().unwrap_or_default());
        tabs.refuse(&event, &span)?;
        nodes.refuse(&event, &span)?;
        match event {
            Event::StreamEnd | Event::Anchor(..) => {}
            Event::DocumentStart(..) => {
                documents += 1;
                if documents == 1 {
                    pyyaml::refuse_end_before_document(source, start(&span))?;
                }
                if documents == 2 {
                    return Err(refuse(source, &span, "a second document starts; cloud-init reads only one").into());
                }
            }
            Event::DocumentEnd => {
                if source.get(start(&span)..).is_some_and(|rest| rest.starts_with("...")) {
                    end = start(&span);
                }
            }
            event => take(&event, &span)?,
        }
    }
    if documents == 0 {
        pyyaml::refuse_end_before_document(source, source.len())?;
    }
    nodes.refuse_lines_joined_elsewhere()?;
    Ok(Frame { end, joined: text.joined.first().map(|joined| joined.start) })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// The beginning of a quoted scalar is found without the parser. The parser has to agree.
    #[test]
    fn lines_joined_elsewhere_than_in_a_text_in_quotes_are_refused() {
        let source = "a: b 'c\nd: \"e\"\n";
        let check = |joined: Range<usize>, is_read: bool| {
            let text = quotes::Text { text: source.into(), joined: vec![joined] };
            assert_eq!(read_once(source, &text, &mut |_, _| Ok(())).is_ok(), is_read, "{:?}", text.joined);
        };
        check(11..14, true);
        check(5..11, false);
        check(10..14, false);
    }
}
