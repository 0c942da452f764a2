//! What ds-identify makes of an image. It decides when the system starts whether cloud-init runs at all, and writes the
//! list of data sources that counts (cloud-init, tools/ds-identify).

use super::{File, LIST, NO_CLOUD, NONE};

/// What ds-identify decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// ds-identify leaves the choice to cloud-init.
    None,
    /// cloud-init uses these data sources.
    Sources(Vec<String>),
    /// cloud-init does not run.
    Disabled,
}

/// The decision of ds-identify, and the file and line behind it.
pub(super) struct Decided<'a> {
    pub(super) decision: Decision,
    pub(super) by: Option<(&'a str, usize)>,
}

/// Decides for a system that has a NoCloud seed and nothing else that is found. `files` are in the order of their
/// names.
pub(super) fn decide<'a>(files: &'a [File], config: Option<&'a File>, kernel: &Arguments<'a>) -> Decided<'a> {
    let (mut policy, mut source) = (None, None);
    for (name, key, value, line) in config.into_iter().flat_map(pairs) {
        match key {
            "policy" => policy = Some((value, Some((name, line)))),
            "datasource" => source = Some((value, Some((name, line)))),
            _ => {}
        }
    }
    policy = kernel.policy.map(|(value, by)| (value.to_owned(), Some(by))).or(policy);
    source = kernel.source.map(|(value, by)| (value.to_owned(), Some(by))).or(source);
    // The last mode counts. Words that are not a mode are skipped.
    let modes = ["enabled", "disabled", "search", "report"];
    let mode = policy.as_ref().and_then(|(policy, _)| policy.split(',').rfind(|word| modes.contains(word)));
    let by_policy = policy.as_ref().and_then(|(_, by)| *by);
    match mode {
        Some("disabled") => return Decided { decision: Decision::Disabled, by: by_policy },
        Some("enabled") => return Decided { decision: Decision::None, by: by_policy },
        _ => {}
    }
    let is_report = mode == Some("report");
    let sources = |words: Vec<String>, by| {
        let decision = if is_report { Decision::None } else { Decision::Sources(words) };
        Decided { decision, by }
    };
    if let Some((source, by)) = source.filter(|(source, _)| !source.is_empty()) {
        return sources(vec![source], by);
    }
    let (words, by) = listed(files);
    match &*words.iter().map(String::as_str).collect::<Vec<_>>() {
        [] => sources(vec![NO_CLOUD.to_owned()], by),
        [_] | [_, NONE] => sources(words, by),
        several if several.contains(&NO_CLOUD) => sources(vec![NO_CLOUD.to_owned()], by),
        // ds-identify looks for each of them, and finds none.
        _ if is_report => Decided { decision: Decision::None, by },
        _ => Decided { decision: Decision::Disabled, by },
    }
}

/// The words of the last `datasource_list` in one line, and where that is. Other ways to write the list are not seen.
fn listed(files: &[File]) -> (Vec<String>, Option<(&str, usize)>) {
    let found = files.iter().flat_map(|file| {
        let value = |line: &str| {
            let line = line.trim().split('#').next().unwrap_or_default().to_owned();
            let value = line.strip_prefix(LIST)?.strip_prefix(':')?;
            (value.is_empty() || value.starts_with(' ')).then(|| value.to_owned())
        };
        let numbered = file.text.lines().zip(1..);
        numbered.filter_map(move |(line, number)| Some((value(line)?, (&*file.path, number))))
    });
    let Some((value, by)) = found.last() else { return (Vec::new(), None) };
    let value = value.strip_prefix(' ').unwrap_or(&value);
    let value = value.strip_prefix('[').unwrap_or(value);
    let value = value.strip_suffix(']').unwrap_or(value);
    let words = value.split(',').map(|word| unquoted(word.trim()));
    (words.flat_map(str::split_whitespace).map(str::to_owned).collect(), Some(by))
}

/// The keys and values of ds-identify's configuration, each with its file and line.
fn pairs(file: &File) -> impl Iterator<Item = (&str, &str, String, usize)> {
    file.text.lines().zip(1..).filter_map(|(line, number)| {
        let (key, value) = line.split('#').next()?.split_once(':')?;
        let words = value.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((&*file.path, key.trim(), unquoted(&words).to_owned(), number))
    })
}

fn unquoted(text: &str) -> &str {
    ['"', '\''].iter().find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(text)
}

/// What the kernel's command line says to ds-identify, and where.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arguments<'a> {
    pub(super) policy: Option<(&'a str, (&'a str, usize))>,
    pub(super) source: Option<(&'a str, (&'a str, usize))>,
}
