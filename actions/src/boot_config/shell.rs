//! Variables in files that a shell reads, whose values are kernel command lines.

use slipway_protocol::KernelArgs;

use super::command_line::{EXPANSION, Language, changed};
use super::{Edit, with_line};

/// Stands for a backquote that the shell acts on, as [`EXPANSION`] stands for such a dollar sign.
const COMMAND: char = '\u{FDD1}';

/// A line that gives a variable its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Index of the line.
    pub(super) line: usize,
    /// What stands before the value.
    start: String,
    /// The value without its quotes. What the shell would put something in place of is marked.
    pub(super) value: String,
    /// What stands after the value.
    end: String,
    /// Whether it adds to the value that the variable had before.
    adds: bool,
    /// Whether that value is a part of it.
    pub(super) goes_on: bool,
}

impl Assignment {
    /// One that is not there yet.
    pub(super) fn new(variable: &str) -> Self {
        let (start, value, end) = (format!("{variable}="), String::new(), String::new());
        Self { line: 0, start, value, end, adds: false, goes_on: false }
    }

    /// The line with another value.
    pub(super) fn with(&self, value: &str) -> String {
        let space = if self.adds { " " } else { "" };
        format!("{}{}{}", self.start, quoted(&format!("{space}{value}")), self.end)
    }
}

/// The lines that give a variable its value, or what in them is not understood. Of the shell only this is: assignments on one
/// line each, with whatever quotes.
pub(super) fn assignments(text: &str, variable: &str) -> Result<Vec<Assignment>, String> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let content = content.strip_prefix("export ").map_or(content, str::trim_start);
        let Some(rest) = content.strip_prefix(variable) else { continue };
        let (adds, Some(right)) = (rest.starts_with("+="), rest.strip_prefix("+=").or(rest.strip_prefix('='))) else {
            continue;
        };
        let refused = |reason: &str| {
            format!("line {}: the value of {variable} {reason}; write it as {variable}=\"...\" on one line", index + 1)
        };
        let (value, end) = unquoted(right).map_err(refused)?;
        let comment = end.trim_start();
        if !(comment.is_empty() || comment.starts_with('#') && comment.len() < end.len()) {
            return Err(refused("is followed by something else"));
        }
        let own = [format!("{EXPANSION}{variable}"), format!("{EXPANSION}{{{variable}")];
        let goes_on = adds || own.iter().any(|own| value.contains(own));
        let start = line[..line.len() - right.len()].to_owned();
        found.push(Assignment { line: index, start, value, end: end.to_owned(), adds, goes_on });
    }
    Ok(found)
}

/// The value of an assignment and what follows it.
fn unquoted(text: &str) -> Result<(String, &str), &'static str> {
    if text.contains([EXPANSION, COMMAND]) {
        return Err("has a character that is none");
    }
    let mut value = String::new();
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => match chars.next() {
                Some((_, c)) if quote.is_none() || "$`\"\\".contains(c) => value.push(c),
                Some((_, c)) => value.extend(['\\', c]),
                None => return Err("goes on on the next line"),
            },
            ('$', None | Some('"')) => value.push(EXPANSION),
            ('`', None | Some('"')) => value.push(COMMAND),
            (c, None) if c.is_whitespace() || ";&|<>()".contains(c) => return Ok((value, &text[at..])),
            (c, _) => value.push(c),
        }
    }
    match quote {
        Some(_) => Err("has a quote that is not closed"),
        None => Ok((value, "")),
    }
}

/// A value in double quotes.
fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            EXPANSION => text.push('$'),
            COMMAND => text.push('`'),
            '"' | '\\' | '$' | '`' => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
    text + "\""
}

/// A file that sets a variable to the arguments of kernels to come, and means `default` where it does not set it.
pub(crate) fn shell_default(text: &str, wanted: &KernelArgs, variable: &str, default: &str) -> Edit {
    let found = match assignments(text, variable) {
        Ok(found) => found,
        Err(reason) => return Edit::Refused(reason),
    };
    let value = found.last().map_or(default, |assignment| &assignment.value);
    let edited = match changed(&[value], wanted, Language::Kernel) {
        Ok(edited) => edited.concat(),
        Err(reason) => return Edit::Refused(reason),
    };
    match found.last() {
        _ if edited == value => Edit::Edited(text.to_owned()),
        Some(assignment) => Edit::Edited(with_lines(text, vec![(assignment.line, assignment.with(&edited))])),
        None => Edit::Edited(with_line(text, &Assignment::new(variable).with(&edited))),
    }
}

/// The text with other lines at some indexes.
pub(super) fn with_lines(text: &str, mut lines: Vec<(usize, String)>) -> String {
    lines.sort_by_key(|(index, _)| *index);
    let mut lines = lines.into_iter().peekable();
    let mut edited = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match lines.next_if(|(at, _)| *at == index) {
            Some((_, new)) => {
                edited.push_str(&new);
                edited.push_str(&line[line.trim_end_matches(['\r', '\n']).len()..]);
            }
            None => edited.push_str(line),
        }
    }
    edited
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_refused, check_text, delete};
    use std::process::Command;

    fn edit(text: &str, wanted: &KernelArgs) -> Edit {
        shell_default(text, wanted, "V", "ro quiet")
    }

    #[test]
    fn quoting_is_what_the_shell_takes_it_for() {
        for value in
            ["a", "'a b'", "\"a b\"", "a'b c'\"d\"", "a\\ b", "'$x'", "\"\\$x \\\"\\` \\\\ \\y\\\"\"", "''", "'a\"b\"'"]
        {
            let text = format!("V={value} # c\n");
            let Edit::Edited(edited) = edit(&text, &append(&["new=\"x y\"", "p=$z"])) else { panic!("{text}") };
            let shell = |text: &str| {
                let output =
                    Command::new("/bin/sh").args(["-c", &format!("{text}\nprintf %s \"$V\"")]).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            };
            let expect = format!("{} new=\"x y\" p=$z", shell(&text));
            assert_eq!(shell(&edited), expect.trim_start(), "{edited}");
            assert!(edited.ends_with(" # c\n"), "{edited}");
        }
    }

    #[test]
    fn a_variable_is_set_where_it_was_or_at_the_end() {
        let check = |text, wanted: &KernelArgs, expect| check_text(&edit, text, wanted, expect);
        check("V=a\nV=b\n", &append(&["c"]), "V=a\nV=\"b c\"\n");
        check("W=1\nexport V=\"a\"", &append(&["c"]), "W=1\nexport V=\"a c\"");
        check("V=\"$x `y`\"\r\n", &append(&["c"]), "V=\"$x `y` c\"\r\n");
        check("", &append(&["c"]), "V=\"ro quiet c\"\n");
        check("#V=\"c\"\n", &delete(&["quiet"]), "#V=\"c\"\nV=\"ro\"\n");
        check("VV=1\n", &delete(&["c"]), "VV=1\n");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let check = |text, expect| check_refused(&edit, text, expect);
        check("\n\nV=\"quiet\n", "line 3: the value of V has a quote that is not closed");
        check("V=$(cat /x)\n", "line 1: the value of V is followed by something else");
        check("V=a; W=b\n", "line 1: the value of V is followed by something else");
        check("V=a\\\n", "line 1: the value of V goes on on the next line");
        check("V='\u{FDD0}'\n", "line 1: the value of V has a character that is none");
    }
}
