//! What grub-mkconfig puts into a grub.cfg to come.

use super::command_line::{appended, unique};
use super::{Edit, edit_lines, with_line};

const GRUB_VARIABLE: &str = "GRUB_CMDLINE_LINUX_DEFAULT";

/// /etc/default/grub, where the variable is added if it is missing.
pub(crate) fn grub_default(text: &str, arguments: &[String]) -> Edit {
    match grub_default_part(text, arguments) {
        Edit::NoCommandLine => {
            let words: Vec<String> = unique(arguments).map(shell_word).collect();
            Edit::Edited(with_line(text, &format!("{GRUB_VARIABLE}={}", shell_quoted(&words.join(" ")))))
        }
        other => other,
    }
}

/// A file of /etc/default/grub.d, which may set the variable or not.
pub(crate) fn grub_default_part(text: &str, arguments: &[String]) -> Edit {
    let arguments: Vec<String> = arguments.iter().map(|argument| shell_word(argument)).collect();
    let mut found = false;
    let edit = edit_lines(text, |_, line| {
        let content = line.trim_start();
        let Some(value) = content.strip_prefix(GRUB_VARIABLE).and_then(|rest| rest.strip_prefix('=')) else {
            return Ok(None);
        };
        found = true;
        let start = line.len() - value.len();
        let (old, rest) = shell_value(value)?;
        let edited = appended(&old, &arguments);
        Ok((edited != old).then(|| format!("{}{}{rest}", &line[..start], shell_quoted(&edited))))
    });
    if found || matches!(edit, Edit::Refused { .. }) { edit } else { Edit::NoCommandLine }
}

/// The value of a shell assignment and what follows it. Of the shell only this is understood: no quotes, single quotes,
/// or double quotes. Expansions in double quotes are kept as they are written.
fn shell_value(text: &str) -> Result<(String, &str), String> {
    let refused = |what: &str| Err(format!("the value {what}; write it as {GRUB_VARIABLE}=\"...\" on one line"));
    let (value, rest) = match text.chars().next() {
        Some('\'') => match text[1..].split_once('\'') {
            Some((value, rest)) if !value.contains(['$', '`', '\\']) => (value.to_owned(), rest),
            Some(_) => return refused("has $, ` or \\ in single quotes"),
            None => return refused("has no closing quote"),
        },
        Some('"') => {
            let Some(end) = closing_quote(&text[1..]) else { return refused("has no closing quote") };
            (text[1..=end].replace("\\\"", "\""), &text[end + 2..])
        }
        _ => {
            let end = text.find(char::is_whitespace).unwrap_or(text.len());
            let (value, rest) = text.split_at(end);
            if value.contains(['"', '\'', '\\', ';', '&', '|']) {
                return refused("is quoted in part");
            }
            (value.to_owned(), rest)
        }
    };
    let comment = rest.trim_start();
    if !(comment.is_empty() || comment.starts_with('#') && comment.len() < rest.len()) {
        return refused("is followed by something else");
    }
    Ok((value, rest))
}

/// Byte at which a double-quoted text, given without its opening quote, is closed.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return Some(at),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    None
}

/// A word inside double quotes, except that its own double quotes are left to [`shell_quoted`].
fn shell_word(word: &str) -> String {
    word.replace('\\', "\\\\").replace('$', "\\$").replace('`', "\\`")
}

fn shell_quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{check, check_refused};

    #[test]
    fn grub_defaults_keep_their_quoting() {
        check(
            grub_default,
            "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n",
            &["a"],
            "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet a\"\n",
        );
        check(
            grub_default,
            "GRUB_CMDLINE_LINUX_DEFAULT='quiet' # c\n",
            &["a"],
            "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet a\" # c\n",
        );
        check(grub_default, "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n", &["a"], "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet a\"\n");
        check(grub_default, "GRUB_CMDLINE_LINUX_DEFAULT=\n", &["a"], "GRUB_CMDLINE_LINUX_DEFAULT=\"a\"\n");
        check(
            grub_default,
            "GRUB_CMDLINE_LINUX_DEFAULT=\"x=\\\"a b\\\" c\"\n",
            &["d"],
            "GRUB_CMDLINE_LINUX_DEFAULT=\"x=\\\"a b\\\" c d\"\n",
        );
        check(
            grub_default,
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$x\"\n",
            &["p=$y"],
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$x p=\\$y\"\n",
        );
        check(grub_default, "GRUB_TIMEOUT=5", &["a"], "GRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT=\"a\"\n");
        check(
            grub_default,
            "#GRUB_CMDLINE_LINUX_DEFAULT=\"q\"\n",
            &["a"],
            "#GRUB_CMDLINE_LINUX_DEFAULT=\"q\"\nGRUB_CMDLINE_LINUX_DEFAULT=\"a\"\n",
        );
        assert_eq!(grub_default_part("GRUB_TIMEOUT=0\n", &["a".to_owned()]), Edit::NoCommandLine);
        check_refused(grub_default, "\n\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\n", 3);
        check_refused(grub_default, "GRUB_CMDLINE_LINUX_DEFAULT=a'b'\n", 1);
        check_refused(grub_default, "GRUB_CMDLINE_LINUX_DEFAULT='$x'\n", 1);
    }
}
