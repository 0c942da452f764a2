//! Variables in shell files whose values are kernel command lines.
//!
//! Only a part of the shell's language is supported: assignments outside compound commands, each on a line of its own,
//! with any quotes and with plain variables in the value. Anything else is refused by name.

use super::command_line::EXPANSION;
use super::with_line;

/// Words that may stand before a command.
const PREFIXES: &[&str] = &["then", "else", "do", "export", "!"];

/// A line that assigns a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// Index of the line.
    pub(super) line: usize,
    /// Text before the value.
    start: String,
    /// The value without its quotes. The dollar sign of a variable is [`EXPANSION`].
    pub(super) value: String,
    /// Text after the value.
    end: String,
}

impl Assignment {
    /// The line with another value.
    pub(super) fn with(&self, value: &str) -> String {
        format!("{}{}{}", self.start, quoted(value), self.end)
    }

    /// Whether the value contains the previous value of the variable.
    pub(super) fn extends(&self, variable: &str) -> bool {
        self.value.split(EXPANSION).skip(1).any(|rest| {
            let rest = rest.strip_prefix('{').unwrap_or(rest);
            rest.strip_prefix(variable).is_some_and(|after| !after.starts_with(is_of_name))
        })
    }
}

/// The lines that assign a variable. The error names the line and what in it is not supported.
pub(super) fn assignments(text: &str, variable: &str) -> Result<Vec<Assignment>, String> {
    let (mut found, mut nesting) = (Vec::new(), Nesting::default());
    for (index, line) in text.lines().enumerate() {
        let refused =
            |reason: &str| format!("line {}: {reason}; write it as {variable}=\"...\" on a line of its own", index + 1);
        let is_inside = nesting.is_open();
        let code = nesting.read(line);
        let content = line.trim_start();
        let content = content.strip_prefix("export ").map_or(content, str::trim_start);
        let right = content.strip_prefix(variable).and_then(|rest| rest.strip_prefix('=')).filter(|_| !is_inside);
        let Some(right) = right else {
            if assigns(&code, variable) {
                return Err(refused(&format!("{variable} is set inside or after another command, or with +=")));
            }
            continue;
        };
        let (value, end) =
            unquoted(right).map_err(|reason| refused(&format!("the value of {variable} has {reason}")))?;
        let comment = end.trim_start();
        if !(comment.is_empty() || comment.starts_with('#') && comment.len() < end.len()) {
            return Err(refused(&format!("there is something after the value of {variable}")));
        }
        let start = line[..line.len() - right.len()].to_owned();
        found.push(Assignment { line: index, start, value, end: end.to_owned() });
    }
    Ok(found)
}

/// The text with a line at its end that assigns the variable.
pub(super) fn with_assignment(text: &str, variable: &str, value: &str) -> Result<String, String> {
    let mut nesting = Nesting::default();
    text.lines().for_each(|line| drop(nesting.read(line)));
    if nesting.is_open() {
        return Err(format!("the end of the file is inside another command; set {variable} above that"));
    }
    Ok(with_line(text, &format!("{variable}={}", quoted(value))))
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

/// Follows compound commands (POSIX, Shell Command Language, 2.9.4), unfinished lists and quotes over several lines. A
/// line inside them may run never, or more than once.
#[derive(Default)]
struct Nesting {
    /// The words that end the open compound commands.
    ends: Vec<&'static str>,
    quote: Option<char>,
    /// The command continues on the next line.
    continues: bool,
}

impl Nesting {
    fn is_open(&self) -> bool {
        !self.ends.is_empty() || self.quote.is_some() || self.continues
    }

    /// Reads a line, and returns its code: without comments, and with an x for each quoted character.
    fn read(&mut self, line: &str) -> String {
        let code = self.code(line);
        let trimmed = code.trim_end();
        self.continues =
            ["\\", "&&", "|"].iter().any(|end| trimmed.ends_with(end)) || self.continues && trimmed.is_empty();
        for words in commands(&code) {
            self.follow(&words);
        }
        code
    }

    fn code(&mut self, line: &str) -> String {
        let (mut code, mut chars) = (String::new(), line.chars());
        while let Some(c) = chars.next() {
            match (c, self.quote) {
                ('#', None) if code.is_empty() || code.ends_with(char::is_whitespace) => break,
                ('\\', None | Some('"')) => code.push_str(if chars.next().is_some() { "xx" } else { "\\" }),
                (c, Some(open)) if c == open => {
                    self.quote = None;
                    code.push('x');
                }
                ('"' | '\'', None) => {
                    self.quote = Some(c);
                    code.push('x');
                }
                (_, Some(_)) => code.push('x'),
                (c, None) => code.push(c),
            }
        }
        code
    }

    fn follow(&mut self, words: &[&str]) {
        let closes = |end: &&str| words.first() == Some(end) || *end == ")" && words.contains(&")");
        if self.ends.pop_if(|end| closes(&&**end)).is_some() {
            return;
        }
        let end = match (words.first(), words.last()) {
            (Some(&"if"), _) => "fi",
            (Some(&"case"), _) => "esac",
            (Some(&("for" | "while" | "until")), _) => "done",
            (Some(&"("), _) if !words.contains(&")") => ")",
            (_, Some(last)) if last.ends_with("$(") => ")",
            (Some(&"{"), _) | (_, Some(&"{")) => "}",
            _ => return,
        };
        self.ends.push(end);
    }
}

/// The commands of a line of code, each as its words without [`PREFIXES`].
fn commands(code: &str) -> impl Iterator<Item = Vec<&str>> {
    let parts = code.split([';', '&', '|']);
    parts.map(|part| part.split_whitespace().skip_while(|word| PREFIXES.contains(word)).collect())
}

/// Whether a line of code may assign a variable, in whatever command.
fn assigns(code: &str, variable: &str) -> bool {
    code.match_indices(variable).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + variable.len()..]);
        !before.ends_with(is_of_name) && (after.starts_with('=') || after.starts_with("+="))
    })
}

/// The value at the beginning of a text, without its quotes, and the text after it. The error says what is not
/// supported.
fn unquoted(text: &str) -> Result<(String, &str), &'static str> {
    let (mut value, mut quote, mut rest) = (String::new(), None, text);
    while let Some(c) = rest.chars().next() {
        if quote.is_none() && (c.is_whitespace() || ";&|<>()".contains(c)) {
            break;
        }
        rest = &rest[c.len_utf8()..];
        match (c, quote) {
            (EXPANSION, _) => return Err("an invalid character"),
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('`', None | Some('"')) => return Err("a command substitution"),
            ('~', None) => return Err("a ~ outside quotes"),
            ('\\', None | Some('"')) => {
                let Some(escaped) = rest.chars().next() else { return Err("a second line") };
                if quote.is_some() && !"$`\"\\".contains(escaped) {
                    value.push('\\');
                }
                value.push(escaped);
                rest = &rest[escaped.len_utf8()..];
            }
            ('$', None | Some('"')) => {
                let (name, after) = variable_name(rest).ok_or("a $ that is not that of a plain variable")?;
                // Without braces, the name would continue where quotes now end it.
                let continues = after.trim_start_matches(['"', '\'', '\\']).starts_with(is_of_name);
                let needs_braces = rest.starts_with('{') || continues;
                value.push(EXPANSION);
                value.push_str(&if needs_braces { format!("{{{name}}}") } else { name.to_owned() });
                rest = after;
            }
            (c, _) => value.push(c),
        }
    }
    if quote.is_some() { Err("a quote that is not closed") } else { Ok((value, rest)) }
}

/// The name of the variable after a dollar sign, and the text after it.
fn variable_name(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('{').unwrap_or(text);
    let end = inside.find(|c| !is_of_name(c)).unwrap_or(inside.len());
    let (name, after) = inside.split_at(end);
    let after = if inside.len() < text.len() { after.strip_prefix('}')? } else { after };
    (!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit())).then_some((name, after))
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_a_rewritten_value_as_before() {
        for value in [
            "a",
            "'a b'",
            "\"a b\"",
            "a'b c'\"d\"",
            "a\\ b",
            "'$x'",
            "\"\\$x \\\"\\` \\\\ \\y\\\"\"",
            "''",
            "'a\"b\"'",
            "\"$E\"b",
            "$E'b'$E\\c",
            "${E}-\"$E \"",
            "\"$E\"/b\\ c",
        ] {
            let text = format!("E=e\nV={value} # c");
            let assignment = assignments(&text, "V").unwrap().remove(0);
            let edited = format!("E=e\n{}", assignment.with(&assignment.value));
            let shell = |text: &str| {
                let output =
                    Command::new("/bin/sh").args(["-c", &format!("{text}\nprintf %s \"$V\"")]).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            };
            assert_eq!(shell(&edited), shell(&text), "{edited}");
            assert!(edited.ends_with(" # c"), "{edited}");
        }
    }

    #[test]
    fn other_commands_of_the_file_do_not_matter() {
        for others in [
            "# Don't do this if (\nW=1\n",
            "if [ -e /x ]; then\n\tW=\"$W a\"\nelif b; then\n\tVV=c\nfi\n",
            "case \"$W\" in\n\ta) W=1;;\n\t*)\n\t\tVV=2\n\t\t;;\nesac\n",
            "f() {\n\tfor w in 1 2; do W=$w; done\n}\nf || {\n\tW=$(date)\n}\n",
            "W=\"1\n2\"\nW=$(uname \\\n  -r)\n(a; b)\n",
            "echo 'V=1' # ; V=2\n",
            "W=\"Debian # 1\"\nW=\"Linux; if in doubt\"\n( . /etc/os-release; echo $NAME ) >/dev/null\n",
            "W=$(\n  . /etc/os-release; echo \"$NAME\"\n)\nW=`if a; then b; fi`\nW=$(for f in *; do echo $f; done)\n",
            "W='\nV=b\n'\n",
            "( a )\n",
            // Debian 12, Debian 13 and Fedora.
            "W=`lsb_release -i -s 2> /dev/null || echo Debian`\n",
            "W=`( . /etc/os-release; echo ${NAME:-Debian} ) 2>/dev/null || echo Debian`\n",
            "W=\"$(sed 's, release .*$,,g' /etc/system-release)\"\n",
        ] {
            let text = format!("{others}V=a\n");
            let found = assignments(&text, "V").unwrap();
            assert_eq!(found.iter().map(|found| found.value.as_str()).collect::<Vec<_>>(), ["a"], "{text}");
            assert!(with_assignment(others, "V", "a").is_ok(), "{text}");
        }
    }

    #[test]
    fn code_that_is_not_supported_is_refused_by_name() {
        let check = |text: &str, expect: &str| {
            let reason = assignments(text, "V").unwrap_err();
            assert!(reason.starts_with(expect), "{text:?}: {reason}");
        };
        for (value, what) in [
            ("\"a", "a quote that is not closed"),
            ("\"$(a)\"", "a $ that is not"),
            ("\"${X:-a}\"", "a $ that is not"),
            ("$'a b'", "a $ that is not"),
            ("\"a$\"", "a $ that is not"),
            ("$1", "a $ that is not"),
            ("`a`", "a command substitution"),
            ("~/a", "a ~ outside quotes"),
            ("a\\", "a second line"),
            ("'\u{FDD0}'", "an invalid character"),
        ] {
            check(&format!("\n\nV={value}\n"), &format!("line 3: the value of V has {what}"));
        }
        check("V=a; W=b\n", "line 1: there is something after the value of V");
        for line in [
            "[ \"$X\" ] && V=\"$V a\"",
            "if true; then V=a; fi",
            "W=1; V+=a",
            "W=1; export V=a",
            "V+=a",
            "[ -f /x ] || { V=\"a\"; }",
            "add() { V=\"$V $1\"; }",
            "case x in x)V=a;; esac",
            "if V=a; then b; fi",
            "readonly V=b",
            "W=1 V=b",
        ] {
            check(&format!("V=a\n{line}\n"), "line 2: V is set inside or after another command, or with +=");
        }
        assert!(with_assignment("W='\n", "V", "a").is_err());
        for open in [
            "if [ -e /x ]; then",
            "if a; then\nW=1\nelse",
            "case a in\nb)",
            "for a in b; do",
            "while a; do",
            "until a\ndo",
            "{",
            "f() {",
            "(",
            "[ a ] &&",
            "W=1 \\",
            "W=$(\n.\n)\nif a; then",
            "W='\n'; if a; then",
            "if a; then\nW=$(\n)",
            "W=\"a # b\"\nif a; then\nW=\"c # d\"",
        ] {
            let line = 2 + open.lines().count();
            let expect = format!("line {line}: V is set inside or after another command");
            check(&format!("V=q\n{open}\n\tV=\"$V a\"\n"), &expect);
            assert!(with_assignment(open, "V", "a").is_err(), "{open}");
        }
    }
}
