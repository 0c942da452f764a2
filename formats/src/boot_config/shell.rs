//! Variables in shell files whose values are kernel command lines.

use slipway_protocol::KernelArgs;

use super::command_line::{EXPANSION, Language, changed};
use super::{Edit, with_line};
use blocks::Blocks;

mod blocks;

/// Put around the number of a substitution, as [`EXPANSION`] stands for the dollar sign of a plain variable. What the
/// shell inserts counts as one word, whatever it contains.
const SUBSTITUTION: [char; 2] = ['\u{FDD1}', '\u{FDD2}'];
/// Characters that give a dollar sign before them a special meaning.
const SPECIAL: &str = "({[@*#?-!";

/// A line that assigns a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Index of the line.
    pub(super) line: usize,
    /// Text before the value.
    start: String,
    /// The value without its quotes. Text that the shell would replace is marked.
    pub(super) value: String,
    /// The substitutions in the value, as written.
    substitutions: Vec<String>,
    /// Text after the value.
    end: String,
    /// Whether it appends to the previous value of the variable.
    adds: bool,
    /// Whether the previous value becomes part of it, in any way.
    pub(super) goes_on: bool,
}

impl Assignment {
    /// A new assignment.
    fn new(variable: &str) -> Self {
        let start = format!("{variable}=");
        let (value, end) = (String::new(), String::new());
        Self { line: 0, start, value, substitutions: Vec::new(), end, adds: false, goes_on: false }
    }

    /// The line with another value.
    pub(super) fn with(&self, value: &str) -> String {
        let space = if self.adds { " " } else { "" };
        let mut quoted = quoted(&format!("{space}{value}"));
        for (index, substitution) in self.substitutions.iter().enumerate() {
            quoted = quoted.replace(&mark(index), substitution);
        }
        format!("{}{quoted}{}", self.start, self.end)
    }
}

/// The lines that assign a variable. The error says what is not understood. Of the shell language only this is
/// supported: unconditional assignments, each on a single line, with any quotes.
pub(super) fn assignments(text: &str, variable: &str) -> Result<Vec<Assignment>, String> {
    let (mut found, mut blocks) = (Vec::new(), Blocks::default());
    // The shell does not treat a carriage return as part of a line end.
    for (index, (line, whole)) in text.lines().zip(text.split('\n')).enumerate() {
        let is_inside = blocks.is_open();
        blocks.read(whole);
        let is_behind = || {
            let line = index + 1;
            Err(format!("line {line}: {variable} is set behind another command; write it on a line of its own"))
        };
        let content = line.trim_start();
        let content = content.strip_prefix("export ").map_or(content, str::trim_start);
        let Some(rest) = content.strip_prefix(variable) else {
            if is_set_behind(content, variable) {
                return is_behind();
            }
            continue;
        };
        let (adds, Some(right)) = (rest.starts_with("+="), rest.strip_prefix("+=").or(rest.strip_prefix('='))) else {
            continue;
        };
        if is_inside {
            return is_behind();
        }
        let refused = |reason: &str| {
            format!("line {}: the value of {variable} {reason}; write it as {variable}=\"...\" on one line", index + 1)
        };
        let Unquoted { value, substitutions, end } = unquoted(right).map_err(refused)?;
        let comment = end.trim_start();
        if !(comment.is_empty() || comment.starts_with('#') && comment.len() < end.len()) {
            return Err(refused("is followed by something else"));
        }
        let goes_on = adds || refers(&value, &substitutions, variable);
        let start = line[..line.len() - right.len()].to_owned();
        found.push(Assignment { line: index, start, value, substitutions, end: end.to_owned(), adds, goes_on });
    }
    Ok(found)
}

/// Whether a line assigns a variable after another command: conditionally, or as one of several on the line.
fn is_set_behind(line: &str, variable: &str) -> bool {
    let code = line.split('#').next().unwrap_or_default();
    code.match_indices(variable).any(|(at, _)| {
        let (before, after) = (code[..at].trim_end(), &code[at + variable.len()..]);
        let is_command = before.ends_with([';', '&', '|', '(', '{'])
            || before
                .split_whitespace()
                .next_back()
                .is_some_and(|word| matches!(word, "then" | "else" | "do" | "export"));
        is_command && (after.starts_with('=') || after.starts_with("+="))
    })
}

/// Whether a value refers to a variable.
fn refers(value: &str, substitutions: &[String], variable: &str) -> bool {
    let begins = |text: &str| text.strip_prefix(variable).is_some_and(|rest| !rest.starts_with(is_of_name));
    let in_braces = |text: &String| text.strip_prefix("${").is_some_and(begins);
    value.split(EXPANSION).skip(1).any(begins) || substitutions.iter().any(in_braces)
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether removing quotes would merge text: a variable, or a literal dollar sign, would continue after one of the
/// places where it now ends. The places are in order.
fn would_join(value: &str, places: &[usize]) -> bool {
    let mut places = places.iter().peekable();
    let continues = |c| SPECIAL.contains(c) || c == EXPANSION || c == SUBSTITUTION[0];
    // For a variable that extends up to here: whether its name is still empty.
    let mut nameless = None;
    for (at, c) in value.char_indices() {
        let mut is_place = false;
        while places.next_if(|place| **place <= at).is_some() {
            is_place = true;
        }
        if is_place && nameless.is_some_and(|nameless| is_of_name(c) || nameless && continues(c)) {
            return true;
        }
        nameless = match nameless {
            _ if c == EXPANSION => Some(true),
            Some(_) if is_of_name(c) => Some(false),
            _ => None,
        };
    }
    false
}

/// The parsed value of an assignment.
#[derive(Default)]
struct Unquoted<'a> {
    value: String,
    substitutions: Vec<String>,
    /// Text after the value.
    end: &'a str,
}

fn unquoted(text: &str) -> Result<Unquoted<'_>, &'static str> {
    if text.contains(|c| ('\u{FDD0}'..='\u{FDEF}').contains(&c)) {
        return Err("has a character that is none");
    }
    let mut found = Unquoted::default();
    let mut quote = None;
    let mut chars = text.char_indices();
    // Places where quotes or a backslash separate text that will be within one pair of quotes.
    let mut seams = Vec::new();
    while let Some((at, c)) = chars.next() {
        let value = &mut found.value;
        if matches!(c, '"' | '\'' | '\\') {
            seams.push(value.len());
        }
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => match chars.next() {
                Some((_, c)) if quote.is_none() || "$`\"\\".contains(c) => value.push(c),
                Some((_, c)) => value.extend(['\\', c]),
                None => return Err("goes on on the next line"),
            },
            ('$' | '`', None | Some('"')) => match substitution(&text[at..])? {
                Some(whole) => {
                    value.push_str(&mark(found.substitutions.len()));
                    found.substitutions.push(whole.to_owned());
                    // The first character is already consumed.
                    chars.nth(whole.chars().count() - 2);
                }
                None if quote.is_none() && text[at + 1..].starts_with(['"', '\'']) => {
                    return Err("has a quote behind a dollar sign");
                }
                None => value.push(EXPANSION),
            },
            ('~', None) => return Err("has a ~ outside quotes"),
            (c, None) if c.is_whitespace() || ";&|<>()".contains(c) => {
                found.end = &text[at..];
                break;
            }
            (c, _) => value.push(c),
        }
    }
    match quote {
        Some(_) => Err("has a quote that is not closed"),
        None if would_join(&found.value, &seams) => {
            Err("has a variable or a $ that only quotes part from what follows")
        }
        None => Ok(found),
    }
}

/// The substitution at the beginning of a text. None if it is a plain variable.
fn substitution(text: &str) -> Result<Option<&str>, &'static str> {
    let (open, close) = match text.as_bytes() {
        [b'`', ..] => ("`", '`'),
        [b'$', b'(', ..] => ("$(", ')'),
        [b'$', b'{', ..] => ("${", '}'),
        _ => return Ok(None),
    };
    let Some(len) = text[open.len()..].find(close) else { return Err("has a substitution that is not closed") };
    match unread(&text[open.len()..open.len() + len], open != "${") {
        Some(reason) => Err(reason),
        None => Ok(Some(&text[..open.len() + len + 1])),
    }
}

/// Why a substitution cannot be kept as it is. In a command substitution, `#` begins a comment that hides the end, and
/// `case` has brackets of its own.
fn unread(inside: &str, is_command: bool) -> Option<&'static str> {
    let is_stop = |c: char| "\"'\\`$({".contains(c) || is_command && c == '#';
    match inside.chars().find(|c| is_stop(*c)) {
        Some('"' | '\'') => Some("has a substitution with quotes in it, which is not edited"),
        Some('\\') => Some("has a substitution with a backslash in it, which is not edited"),
        Some('#') => Some("has a substitution with a # in it, which is not edited"),
        Some('(' | '{') => Some("has a substitution with brackets in it, which is not edited"),
        Some(_) => Some("has a substitution with another one in it, which is not edited"),
        None if is_command && inside.contains("case ") => {
            Some("has a substitution with a case in it, which is not edited")
        }
        None => None,
    }
}

fn mark(index: usize) -> String {
    let [open, close] = SUBSTITUTION;
    format!("{open}{index}{close}")
}

/// A value in double quotes.
fn quoted(value: &str) -> String {
    let mut text = String::from("\"");
    for c in value.chars() {
        match c {
            EXPANSION => text.push('$'),
            '"' | '\\' | '$' | '`' => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
    text + "\""
}

/// Which of several files sets the value of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectiveValue {
    /// Index of the file.
    pub file: usize,
    /// Whether the value comes from `elsewhere`.
    pub is_taken: bool,
}

/// The last file that sets a variable rather than appends to it; a shell reads the files in order. None if the variable
/// stays empty. `elsewhere` is the path of a file, without the first slash, from which the value may be taken. The
/// error is the index of a file and what in it is not understood.
pub fn effective_value(
    texts: &[&str],
    variable: &str,
    elsewhere: &str,
) -> Result<Option<EffectiveValue>, (usize, String)> {
    let mut said: Option<EffectiveValue> = None;
    for (file, text) in texts.iter().enumerate() {
        for assignment in assignments(text, variable).map_err(|reason| (file, reason))? {
            let is_taken = assignment.substitutions.iter().any(|substitution| substitution.contains(elsewhere));
            said = match said {
                Some(said) if assignment.goes_on => Some(said),
                _ => Some(EffectiveValue { file, is_taken }).filter(|_| !assignment.value.is_empty()),
            };
        }
    }
    Ok(said)
}

/// A file that sets a variable to the arguments of future kernels. An empty variable means `default`.
pub fn shell_default(text: &str, wanted: &KernelArgs, variable: &str, default: &str) -> Edit {
    let found = match assignments(text, variable) {
        Ok(found) => found,
        Err(reason) => return Edit::Refused(reason),
    };
    let value = found.last().map_or("", |assignment| &assignment.value);
    let value = if value.is_empty() { default } else { value };
    let edited = match changed(&[value], wanted, Language::Kernel) {
        Ok(edited) => edited.concat(),
        Err(reason) => return Edit::Refused(reason),
    };
    match found.last() {
        _ if edited == value => Edit::Edited(text.to_owned()),
        Some(assignment) => Edit::Edited(with_lines(text, vec![(assignment.line, assignment.with(&edited))])),
        None => with_assignment(text, variable, &edited).map_or_else(Edit::Refused, Edit::Edited),
    }
}

/// The text with a line at its end that assigns the variable.
pub(super) fn with_assignment(text: &str, variable: &str, value: &str) -> Result<String, String> {
    match Blocks::of(text).is_open() {
        true => Err(format!("{variable} cannot be set at the end, which is inside another command; set it above that")),
        false => Ok(with_line(text, &Assignment::new(variable).with(value))),
    }
}

/// The text with some lines replaced, given by index.
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
    fn of_several_files_the_last_says_what_a_variable_is_and_others_add_to_it() {
        let check = |texts: &[&str], expect: Option<(usize, bool)>| {
            let found = effective_value(texts, "V", "etc/kernel/cmdline").unwrap();
            assert_eq!(found.map(|said| (said.file, said.is_taken)), expect, "{texts:?}");
        };
        check(&["", "# V=a"], None);
        check(&["V=a"], Some((0, false)));
        check(&["export V=a", "V=$V\" b\""], Some((0, false)));
        check(&["V=a", "V=b"], Some((1, false)));
        check(&["V=a", "V=\"$(cat /etc/kernel/cmdline)\"", "V+=b"], Some((1, true)));
        check(&["V=a # /etc/kernel/cmdline"], Some((0, false)));
        check(&["", "V=\"$V b\""], Some((1, false)));
        check(&["V=a\nV="], None);
        check(&["V=a", "V=''"], None);
        let (file, reason) = effective_value(&["V=a", "[ -e x ] && V=b"], "V", "x").unwrap_err();
        assert_eq!((file, reason.contains("behind another command")), (1, true));
    }

    #[test]
    fn what_is_empty_means_the_default() {
        check_text(&edit, "V=\n", &append(&["a"]), "V=\"ro quiet a\"\n");
        check_text(&edit, "V=b\nV=''\n", &append(&["a"]), "V=b\nV=\"ro quiet a\"\n");
    }

    #[test]
    fn quoting_is_what_the_shell_takes_it_for() {
        for value in [
            "$E\"-b\"",
            "\"$E\"/b\\ c",
            "a\"$ b\"",
            "\"a$\\\\b\"",
            "\"$E\\$b\"",
            "a",
            "'a b'",
            "\"a b\"",
            "a'b c'\"d\"",
            "a\\ b",
            "'$x'",
            "\"\\$x \\\"\\` \\\\ \\y\\\"\"",
            "''",
            "'a\"b\"'",
        ] {
            let text = format!("E=e\nV={value} # c\n");
            let edit = shell_default(&text, &append(&["new=\"x y\"", "p=$z"]), "V", "");
            let Edit::Edited(edited) = edit else { panic!("{text}") };
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
    fn what_the_shell_substitutes_is_left_as_it_is() {
        let check = |text, wanted: &KernelArgs, expect| check_text(&edit, text, wanted, expect);
        check("V=\"$(cat  /a b) c\"\n", &delete(&["b)"]), "V=\"$(cat  /a b) c\"\n");
        check("V=\"$(cat  /a b) c\"\n", &delete(&["c"]), "V=\"$(cat  /a b)\"\n");
        check("V=\"c x=`uname -r | tr a b; echo`\"\n", &append(&["d"]), "V=\"c x=`uname -r | tr a b; echo` d\"\n");
        check("V=${X:-a b}$(c)\n", &append(&["d"]), "V=\"${X:-a b}$(c) d\"\n");
        check("V=\"${V} a\"\n", &delete(&["a"]), "V=\"${V}\"\n");
        check("V='$(x) `y` ${z}'\n", &append(&["d"]), "V=\"\\$(x) \\`y\\` \\${z} d\"\n");
        check("V=\"\\$(x) \\`y\"\n", &append(&["d"]), "V=\"\\$(x) \\`y d\"\n");
        check("V=\"a$ $1\"\n", &append(&["d"]), "V=\"a$ $1 d\"\n");
        check("V=\"${X#quiet} ${X##a*} ${#X}\"\n", &append(&["d"]), "V=\"${X#quiet} ${X##a*} ${#X} d\"\n");
        check("V=${X%case }\n", &append(&["d"]), "V=\"${X%case } d\"\n");
        check("echo V=1 # ; V=2\n", &append(&["d"]), "echo V=1 # ; V=2\nV=\"ro quiet d\"\n");
    }

    #[test]
    fn other_variables_may_be_set_under_conditions() {
        let check =
            |text: &str| check_text(&edit, &format!("{text}V=a\n"), &append(&["b"]), &format!("{text}V=\"a b\"\n"));
        check("if [ -e /x ]; then\n\tW=\"$W a\"\nelif b; then\n\tVV=c\nfi\n");
        check("case \"$W\" in\n\ta) W=1;;\n\t*)\n\t\tVV=2\n\t\t;;\nesac\n");
        check("f() {\n\tfor w in 1 2; do W=$w; done\n}\nf || {\n\tW=$(date)\n}\r\n");
        check("W=\"1\n2\"\nW=$(uname \\\n  -r)\n");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let check = |text: &str, expect: &str| check_refused(&edit, text, expect);
        check("\n\nV=\"quiet\n", "line 3: the value of V has a quote that is not closed");
        for (text, what) in [
            ("\"$(echo \"a b\")\"", "quotes"),
            ("\"${X:-'a'}\"", "quotes"),
            ("$(a $(b))", "another one"),
            ("`echo \\`a\\``", "a backslash"),
            ("$((1 + 2))", "brackets"),
            ("\"$(a # )\n)\"", "a #"),
            ("`a #`", "a #"),
            ("$(case a in a)", "a case"),
        ] {
            let expect = format!("line 1: the value of V has a substitution with {what} in it, which is not edited");
            check(&format!("V={text}\n"), &expect);
        }
        for text in [
            "\"$X\"Y",
            "$X'Y'",
            "\"$X\"\"Y\"",
            "$X\\Y",
            "\"a$\"b",
            "\"a$\"'(b)'",
            "\"a$\"{b}",
            "\"a$\"$X",
            "\"a$\"${X}",
            "\"a$\"?",
        ] {
            check(&format!("V={text}\n"), "line 1: the value of V has a variable or a $ that only quotes part");
        }
        check("V=\"$(cat /x\"\n", "line 1: the value of V has a substitution that is not closed");
        check("V=$'a b'\n", "line 1: the value of V has a quote behind a dollar sign");
        check("V=~/a\n", "line 1: the value of V has a ~ outside quotes");
        for line in ["[ \"$X\" ] && V=\"$V a\"", "if true; then V=a; fi", "W=1; V+=a", "W=1; export V=a"] {
            check(&format!("V=a\n{line}\n"), "line 2: V is set behind another command; write it on a line of its own");
        }
        for open in [
            "if [ -e /x ]; then",
            "if a; then\nW=1\nelse",
            "case a in\nb)",
            "for a in b; do",
            "while a; do",
            "until a\ndo",
            "{",
            "f() {",
            "function f {",
            "(",
            "[ a ] &&",
            "W=1 \\",
            "W='",
        ] {
            let line = 2 + open.lines().count();
            let expect = format!("line {line}: V is set behind another command; write it on a line of its own");
            check(&format!("V=q\n{open}\n\tV=\"$V a\"\n"), &expect);
            check(&format!("{open}\n"), "V cannot be set at the end, which is inside another command");
        }
        check("V=a; W=b\n", "line 1: the value of V is followed by something else");
        check("V=a\\\n", "line 1: the value of V goes on on the next line");
        check("V='\u{FDD0}'\n", "line 1: the value of V has a character that is none");
    }
}
