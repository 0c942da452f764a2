//! Judges user-data of one kind, or the content of a part, as cloud-init would read it (cloudinit/handlers/).

use serde_json::Value;

use crate::kind::{Kind, Whole};
use crate::refusal::Refusal;
use crate::{document, jinja, lines};

const JSON_PATCH: &str = "#cloud-config-jsonp";
const BOOTHOOK: &str = "#cloud-boothook";
/// Operations of a JSON patch (RFC 6902, section 4).
const OPERATIONS: [&str; 6] = ["add", "remove", "replace", "move", "copy", "test"];

/// Refuses content of this kind that cloud-init would drop. An archive is not opened: see [`crate::archive`].
pub(crate) fn judge(content: &str, kind: Kind) -> Result<(), Refusal> {
    match kind {
        Kind::CloudConfig => document::parse(content)?.refuse_list(content),
        Kind::Jinja => jinja::is_cloud_config(content).map(drop),
        Kind::Whole(Whole::JsonPatch) => judge_json_patch(content),
        Kind::Whole(Whole::Include) => judge_include(content),
        Kind::Whole(Whole::Script) => judge_script(content, 0),
        Kind::Whole(Whole::Boothook) => judge_boothook(content),
        Kind::Whole(Whole::PartHandler) | Kind::Empty | Kind::Archive => Ok(()),
    }
}

/// Refuses a script that Linux could not start: one without `#!` and the whole path of a program (execve(2)).
/// cloud-init starts scripts without a shell.
fn judge_script(content: &str, at: usize) -> Result<(), Refusal> {
    let start = content[at..].trim_start_matches(lines::is_python_space);
    let begin = content.len() - start.len();
    let rest = start.strip_prefix("#!");
    if rest.is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with('/')) && begin == at {
        return Ok(());
    }
    let is_config = rest.is_some_and(|rest| rest.to_ascii_lowercase().starts_with("cloud-config"));
    let mistake = match is_config {
        true => "the header of a cloud-config is \"#cloud-config\", without an exclamation mark",
        false if rest.is_some() && begin > at => "a script begins with \"#!\", without white space before it",
        false => "a script begins with \"#!\" and the whole path of a program, such as #!/bin/sh",
    };
    Err(Refusal::at_byte(content, begin, mistake))
}

/// Refuses a boothook whose script could not be started. cloud-init strips the header of the boothook, and the white
/// space after the header.
fn judge_boothook(content: &str) -> Result<(), Refusal> {
    let script = content.strip_prefix(BOOTHOOK).unwrap_or(content).trim_start_matches(lines::is_python_space);
    judge_script(content, content.len() - script.len())
}

/// Refuses what the library of JSON patches does not take (cloudinit/handlers/cloud_config.py, `_merge_patch`).
fn judge_json_patch(content: &str) -> Result<(), Refusal> {
    let text = content.trim_start_matches(lines::is_python_space);
    let patch = text.strip_prefix(JSON_PATCH).unwrap_or(text);
    let at = content.len() - patch.len();
    let patch: Value = serde_json::from_str(patch).map_err(|error| {
        let line = lines::lines(content, at..content.len()).nth(error.line().saturating_sub(1));
        let start = line.map_or(content.len(), |line| line.start);
        let column = error.column().saturating_sub(1);
        let at = content[start..].char_indices().nth(column).map_or(content.len(), |(at, _)| start + at);
        Refusal::at_byte(content, at, "this is not JSON; a JSON patch is a list of operations")
    })?;
    let is_operation = |operation: &Value| {
        let name = operation["op"].as_str().unwrap_or_default();
        OPERATIONS.contains(&name) && operation["path"].is_string()
    };
    match patch.as_array() {
        Some(operations) if operations.iter().all(is_operation) => Ok(()),
        _ => {
            let reason = "a JSON patch is a list of operations, each with op and path; cloud-init drops this one";
            Err(Refusal::at_byte(content, at, reason))
        }
    }
}

/// Refuses a line that cloud-init would fetch and cannot: it then drops all user-data (cloudinit/user_data.py,
/// `_do_include`).
fn judge_include(content: &str) -> Result<(), Refusal> {
    for line in lines::lines(content, 0..content.len()) {
        let text = content[line.clone()].trim();
        let lower = text.to_ascii_lowercase();
        let header = ["#include-once", "#include"].into_iter().find(|header| lower.starts_with(header));
        let url = header.map_or(text, |header| text[header.len()..].trim());
        let is_url = url.starts_with('/') || url.contains("://");
        if !(url.is_empty() || url.starts_with('#') || is_url) {
            let reason =
                "this is not a URL, but cloud-init fetches each line below #include: write https://... or a path";
            return Err(Refusal::at_byte(content, line.end - content[line].trim_start().len(), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str, kind: Whole, expect: Result<(), &str>) {
        let found = judge(content, Kind::Whole(kind)).map_err(|refusal| refusal.to_string());
        match (&found, expect) {
            (Ok(()), Ok(())) => {}
            (Err(found), Err(expect)) if found.starts_with(expect) => {}
            _ => panic!("{content:?}: {found:?}, not {expect:?}"),
        }
    }

    #[test]
    fn a_json_patch_is_a_list_of_operations() {
        let kind = Whole::JsonPatch;
        check(" #cloud-config-jsonp\n[{\"op\": \"add\", \"path\": \"/a\", \"value\": 1}]\n", kind, Ok(()));
        check("[]", kind, Ok(()));
        check("#cloud-config-jsonp\n[{\"op\": 1,}]\n", kind, Err("line 2, column 11: this is not JSON"));
        check("#cloud-config-jsonp\n", kind, Err("line "));
        for wrong in ["{}", "[1]", "[{\"op\": \"add\"}]", "[{\"op\": \"put\", \"path\": \"/a\"}]"] {
            check(&format!("#cloud-config-jsonp\n{wrong}"), kind, Err("line 1, column 20: a JSON patch is a list"));
        }
    }

    #[test]
    fn a_script_names_its_program_by_the_whole_path() {
        let kind = Whole::Script;
        for right in ["#!/bin/sh\n", "#! /usr/bin/env python3\r\n"] {
            check(right, kind, Ok(()));
            check(&format!("#cloud-boothook\n\n{right}"), Whole::Boothook, Ok(()));
            check(right, Whole::Boothook, Ok(()));
        }
        for wrong in ["#!\ntrue\n", "#!bash\n", "#! sh /bin/x\n", "echo a\n"] {
            check(wrong, kind, Err("line 1, column 1: a script begins with \"#!\" and the whole path"));
            let boothook = format!("#cloud-boothook\n{wrong}");
            check(&boothook, Whole::Boothook, Err("line 2, column 1: a script begins with \"#!\" and the whole path"));
        }
        check(
            "\n#!/bin/sh\n",
            kind,
            Err("line 2, column 1: a script begins with \"#!\", without white space before it"),
        );
        check("\n#!cloud-config\na: 1\n", kind, Err("line 2, column 1: the header of a cloud-config is"));
    }

    #[test]
    fn what_is_included_is_a_url() {
        let kind = Whole::Include;
        check("#include\n# of the site\n\nhttps://a/b\n/etc/motd\n#include-once file:///x\n", kind, Ok(()));
        check("#include\n  site.yaml\n", kind, Err("line 2, column 3: this is not a URL"));
        check("#include packages: [nginx]\n", kind, Err("line 1, column 1: this is not a URL"));
    }
}
