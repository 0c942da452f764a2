//! Edits a document as text: drops entries of its root, and adds one.

use std::borrow::Cow;
use std::ops::Range;

use crate::block::Block;
use crate::document::{self, Document, Entry, Root};
use crate::lines::{self, Edit, splice};
use crate::refusal::Refusal;
use crate::tail::Tail;
use crate::{flow, jinja};

/// How a text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As YAML.
    Yaml,
    /// As a jinja template that is rendered to YAML.
    Jinja,
}

/// Selects `phone_home` blocks.
#[derive(Clone, Copy)]
pub(crate) enum Blocks<'a> {
    /// Every block.
    All,
    /// Blocks for whose `url` this returns true.
    To(&'a dyn Fn(&str) -> bool),
}

/// Why nothing can be added to a document.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// cloud-init does not understand the document either.
    Refused(Refusal),
    /// The document is valid, but has no place where an edit would change nothing else.
    NoPlace,
}

impl Reading {
    /// The text as YAML, with every byte at its place. `None` if the result of jinja cannot be known.
    fn yaml(self, source: &str) -> Option<Cow<'_, str>> {
        match self {
            Self::Yaml => Some(Cow::Borrowed(source)),
            Self::Jinja => jinja::masked(source).map(Cow::Owned),
        }
    }

    fn parse(self, source: &str) -> Result<Document, Unfit> {
        let yaml = self.yaml(source).ok_or(Unfit::NoPlace)?;
        document::parse(&yaml).map_err(|refusal| match self {
            Self::Yaml => Unfit::Refused(refusal),
            Self::Jinja => Unfit::NoPlace,
        })
    }
}

impl Blocks<'_> {
    fn drops(self, entry: &Entry, source: &str, reading: Reading) -> bool {
        let is_meant = match self {
            Self::All => true,
            Self::To(is_meant) => entry.field.as_deref().is_some_and(is_meant),
        };
        // A template statement may begin in one entry and end in another.
        let is_whole = reading == Reading::Yaml || !source[entry.bytes.clone()].contains("{%");
        entry.is_phone_home && is_meant && is_whole
    }
}

/// Puts the block into a cloud-config, instead of every `phone_home` in it.
pub(crate) fn inject(source: &str, block: &Block, reading: Reading) -> Result<String, Unfit> {
    let before = reading.parse(source)?;
    before.refuse_list(source).map_err(Unfit::Refused)?;
    if says_how_to_merge(source) {
        return Err(Unfit::NoPlace);
    }
    let drop: Vec<bool> = before.entries.iter().map(|entry| Blocks::All.drops(entry, source, reading)).collect();
    let (edited, at) = match (reading, &before.root) {
        (Reading::Yaml, Root::Braces) => {
            let edits = without(&before, &drop, source, Some(&block.json()));
            (splice(source, &edits), End::Front)
        }
        (Reading::Jinja, _) if !shows_its_end(source, &before) => return Err(Unfit::NoPlace),
        _ => {
            let code = |kept: &str, newline: &str| {
                let gap = if reading == Reading::Jinja && jinja::eats_line_break(kept) { newline } else { "" };
                format!("{gap}{}", block.lines(before.indent, newline))
            };
            with_lines(source, &before, &drop, &code)
        }
    };
    let is_ours = |entry: &Entry| entry.is_phone_home && entry.field.as_ref() == Some(&block.url);
    let is_unsure = lines::has_old_breaks(source) || (reading == Reading::Jinja && at == End::Front);
    let is_exact = !is_unsure
        && ((reading == Reading::Yaml && only_appends(source, &before, &drop, &edited, at, is_ours))
            || adds_only(&before, &drop, reading.parse(&edited), at, is_ours));
    if is_exact { Ok(edited) } else { Err(Unfit::NoPlace) }
}

/// Whether a text may have merge instructions (cloudinit/mergers/__init__.py). cloud-init may then ignore all its keys.
fn says_how_to_merge(source: &str) -> bool {
    source.contains("merge_") && (source.contains("merge_how") || source.contains("merge_type"))
}

/// Whether the end of a template is the end of its root, and its keys have the same column when rendered.
fn shows_its_end(source: &str, document: &Document) -> bool {
    let Range { start, end } = document.inside;
    let mut margin = source[start..].bytes().take(document.indent);
    document.root != Root::Braces
        && end == source.len()
        && margin.all(|byte| byte == b' ')
        && jinja::keeps_columns(source)
}

/// Adds an item at the end of the list. The new item replaces the last one if that is ours.
pub(crate) fn append_item(
    source: &str,
    before: &Document,
    item: &dyn Fn(usize, &str) -> String,
    is_ours: impl Fn(&Entry) -> bool,
) -> Result<String, Unfit> {
    if before.root == Root::Brackets {
        return Err(Unfit::NoPlace);
    }
    let last = before.entries.len().saturating_sub(1);
    let drop: Vec<bool> =
        before.entries.iter().enumerate().map(|(index, entry)| index == last && is_ours(entry)).collect();
    let (edited, at) = with_lines(source, before, &drop, &|_, newline| item(before.indent, newline));
    let is_exact = at == End::Back
        && !lines::has_old_breaks(source)
        && (only_appends(source, before, &drop, &edited, at, &is_ours)
            || adds_only(before, &drop, Reading::Yaml.parse(&edited), at, is_ours));
    if is_exact { Ok(edited) } else { Err(Unfit::NoPlace) }
}

/// Removes the blocks to drop; the result is empty if nothing is left. `None` if the text has no such block, or is not
/// YAML.
pub(crate) fn remove(source: &str, drop: Blocks, reading: Reading) -> Result<Option<String>, Refusal> {
    let Ok(before) = reading.parse(source) else { return Ok(None) };
    let drop: Vec<bool> = before.entries.iter().map(|entry| drop.drops(entry, source, reading)).collect();
    remove_entries(source, &before, &drop, reading)
}

/// Removes entries. The result is like that of [`remove`].
pub(crate) fn remove_entries(
    source: &str,
    before: &Document,
    drop: &[bool],
    reading: Reading,
) -> Result<Option<String>, Refusal> {
    let Some(first) = drop.iter().position(|drop| *drop) else { return Ok(None) };
    let edits = without(before, drop, source, None);
    let edited = splice(source, &edits);
    if !drop.contains(&false) && is_nothing(&edited) {
        return Ok(Some(String::new()));
    }
    let is_right = |edited: &String| leaves_only(before, drop, reading.parse(edited));
    let shorter = without_last_break(source, before, drop, &edited);
    let mut ways = shorter.into_iter().chain([edited]).chain(with_what_depends(source, before, drop, edits));
    let reason = "without this entry, other parts of the document would change their meaning; remove it by hand";
    let refusal = || Refusal::at_byte(source, before.entries[first].bytes.start, reason);
    ways.find(is_right).map(Some).ok_or_else(refusal)
}

/// The edited document without its last line break, if the original did not have one.
fn without_last_break(source: &str, before: &Document, drop: &[bool], edited: &str) -> Option<String> {
    let (entry, is_dropped) = before.entries.last().zip(drop.last())?;
    let kept = before.entries.iter().zip(drop).rfind(|(_, drop)| !**drop);
    // In PyYAML, the line break of a block scalar is part of the scalar.
    let is_in_scalar = kept.is_some_and(|(entry, _)| entry.ends_in_block_scalar);
    let was_open = *is_dropped && entry.bytes.end == source.len() && !lines::ends_with_break(source);
    (was_open && !is_in_scalar).then(|| lines::without_break(edited).to_owned())
}

/// Also removes what would get another meaning without the entries: blank lines after them, which would become part of
/// a block scalar before them; and, if no entry is left, the `...` at the end of the document, which needs a document
/// before it.
fn with_what_depends(source: &str, before: &Document, drop: &[bool], mut edits: Vec<Edit>) -> Option<String> {
    if before.root != Root::Mapping {
        return None;
    }
    if !drop.contains(&false) {
        let end = before.inside.end;
        let line = lines::lines(source, end..source.len()).next()?;
        let is_alone = source[line.clone()].trim_end() == "...";
        edits.push((if is_alone { line } else { end..end + 3 }, String::new()));
        return Some(splice(source, &edits));
    }
    for (range, _) in &mut edits {
        let is_blank = |line: &Range<usize>| source[line.clone()].trim().is_empty();
        let blank = lines::lines(source, range.end..before.inside.end).take_while(is_blank).last();
        range.end = blank.map_or(range.end, |line| line.end);
    }
    Some(splice(source, &edits))
}

/// The end of the root at which something was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Front,
    Back,
}

/// A document of lines without some entries, and with new lines. They come after the last entry, unless the text ends
/// inside a block scalar without a line break: the necessary break would become part of the scalar. `code` gets the
/// text before the new lines, and the line break to use.
fn with_lines(source: &str, document: &Document, drop: &[bool], code: &dyn Fn(&str, &str) -> String) -> (String, End) {
    let newline = lines::newline(source);
    let is_open = !lines::ends_with_break(source);
    let ends_in_scalar = document.entries.last().is_some_and(|entry| entry.ends_in_block_scalar);
    let Range { start, end } = document.inside;
    let mut edits = without(document, drop, source, None);
    if ends_in_scalar && is_open && drop.last() == Some(&false) {
        edits.insert(0, (start..start, code(&source[..start], newline)));
        return (splice(source, &edits), End::Front);
    }
    let mut edited = splice(&source[..end], &edits);
    if !lines::ends_with_break(&edited) && !edited.is_empty() {
        edited.push_str(newline);
    }
    let code = code(&edited, newline);
    edited.push_str(if is_open && end == source.len() { lines::without_break(&code) } else { &code });
    edited.push_str(&source[end..]);
    (edited, End::Back)
}

/// The edits that remove entries from a document. In braces, `code` is put before the other entries.
fn without(document: &Document, drop: &[bool], source: &str, code: Option<&str>) -> Vec<Edit> {
    if matches!(document.root, Root::Braces | Root::Brackets) {
        return flow::without(document, drop, source, code);
    }
    let dropped = document.entries.iter().zip(drop).filter(|(_, drop)| **drop);
    dropped.map(|(entry, _)| (entry.bytes.clone(), String::new())).collect()
}

/// Verifies an edit: every other entry has the same meaning as before, and one entry, ours, is new.
fn adds_only(
    before: &Document,
    drop: &[bool],
    after: Result<Document, Unfit>,
    at: End,
    is_ours: impl Fn(&Entry) -> bool,
) -> bool {
    let Ok(after) = after else { return false };
    let parts = match at {
        End::Front => after.entries.split_first(),
        End::Back => after.entries.split_last(),
    };
    parts.is_some_and(|(added, others)| is_ours(added) && same(before, drop, others))
}

/// Whether the last lines alone show that the edit adds only our entry.
fn only_appends(
    source: &str,
    before: &Document,
    drop: &[bool],
    edited: &str,
    at: End,
    is_ours: impl Fn(&Entry) -> bool,
) -> bool {
    if at != End::Back || drop.contains(&true) {
        return false;
    }
    let Some(tail) = Tail::of(source, before) else { return false };
    let after = Reading::Yaml.parse(&tail.text(edited));
    if !after.as_ref().is_ok_and(|after| after.root == before.root && after.indent == before.indent) {
        return false;
    }
    if tail.has_last_entry() {
        let others: Vec<bool> = (1..=before.entries.len()).map(|number| number < before.entries.len()).collect();
        return adds_only(before, &others, after, at, is_ours);
    }
    let Ok(last) = document::parse(&tail.text(source)) else { return false };
    last.entries.len() == 1 && adds_only(&last, &[false], after, at, is_ours)
}

fn leaves_only(before: &Document, drop: &[bool], after: Result<Document, Unfit>) -> bool {
    after.is_ok_and(|after| same(before, drop, &after.entries))
}

fn same(before: &Document, drop: &[bool], after: &[Entry]) -> bool {
    let kept = before.entries.iter().zip(drop).filter(|(_, drop)| !**drop).map(|(entry, _)| entry.meaning);
    kept.eq(after.iter().map(|entry| entry.meaning))
}

/// Whether a document has only its header and document markers left.
fn is_nothing(source: &str) -> bool {
    let marks = ["", "---", "...", "{}", "[]", "--- {}", "--- []"];
    let is_header = |line: &str| {
        let line = line.to_ascii_lowercase();
        matches!(line.as_str(), "#cloud-config" | "#cloud-config-archive" | "## template: jinja")
    };
    source.lines().map(str::trim).all(|line| marks.contains(&line) || is_header(line))
}
