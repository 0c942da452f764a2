//! Edits of boot loader configuration as text.
//!
//! Each takes a file and the arguments to have at the end of its command lines, each once, and leaves everything else as
//! it was. A second edit changes nothing.

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// The file with its arguments, possibly the same as before.
    Edited(String),
    /// The file has no kernel command line.
    NoCommandLine,
    /// A line cannot be edited safely.
    Refused {
        /// Line, from 1.
        line: usize,
        /// What is there and what would be right.
        reason: String,
    },
}

/// Words of a command line as the kernel splits it (lib/cmdline.c, next_arg): at white space outside double quotes.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut quoted) = (None, false);
    for (at, c) in line.char_indices() {
        quoted ^= c == '"';
        match (start, c.is_whitespace() && !quoted) {
            (None, false) => start = Some(at),
            (Some(from), true) => {
                words.push(&line[from..at]);
                start = None;
            }
            _ => {}
        }
    }
    words.extend(start.map(|from| &line[from..]));
    words
}

/// The command line without the arguments where it had them, and with them at its end. One that ends with them already
/// stays as it is, white space included.
fn appended(line: &str, arguments: &[String]) -> String {
    let present = words(line);
    let kept: Vec<&str> =
        present.iter().copied().filter(|word| !arguments.iter().any(|argument| argument == word)).collect();
    let wanted: Vec<&str> = kept.iter().copied().chain(unique(arguments)).collect();
    if wanted == present { line.to_owned() } else { wanted.join(" ") }
}

/// Each argument once, where it is last.
fn unique(arguments: &[String]) -> impl Iterator<Item = &str> {
    let last = move |(index, argument): &(usize, &String)| !arguments[index + 1..].contains(argument);
    arguments.iter().enumerate().filter(last).map(|(_, argument)| argument.as_str())
}

/// A Type #1 entry of the Boot Loader Specification: `options` lines are joined, so the last gets the arguments and the
/// others lose them.
pub(crate) fn bls_entry(text: &str, arguments: &[String]) -> Edit {
    let is_options = |line: &str| line.trim_start().split(char::is_whitespace).next() == Some("options");
    let boots_linux = text.lines().any(|line| matches!(line.split_whitespace().next(), Some("linux" | "uki")));
    let last = text.lines().enumerate().filter(|(_, line)| is_options(line)).map(|(index, _)| index).last();
    let Some(last) = last else {
        return match boots_linux {
            true => {
                Edit::Edited(with_line(text, &format!("options {}", unique(arguments).collect::<Vec<_>>().join(" "))))
            }
            false => Edit::NoCommandLine,
        };
    };
    edit_lines(text, |index, line| {
        if !is_options(line) {
            return Ok(None);
        }
        let key = line.len() - line.trim_start().len() + "options".len();
        let value = &line[key..];
        let gap = &value[..value.len() - value.trim_start().len()];
        let gap = if gap.is_empty() { " " } else { gap };
        let edited = match index == last {
            true => appended(value.trim(), arguments),
            false => removed(value.trim(), arguments),
        };
        Ok((edited != value.trim()).then(|| format!("{}{gap}{edited}", &line[..key])))
    })
}

fn removed(line: &str, arguments: &[String]) -> String {
    let words: Vec<&str> = words(line);
    let kept: Vec<&str> = words.iter().copied().filter(|word| !arguments.iter().any(|a| a == word)).collect();
    if kept.len() == words.len() { line.to_owned() } else { kept.join(" ") }
}

/// /etc/kernel/cmdline: the command line, and nothing else.
pub(crate) fn kernel_cmdline(text: &str, arguments: &[String]) -> Edit {
    let line = text.split_whitespace().count();
    let edited = appended(text.trim(), arguments);
    match line > 0 && edited == text.trim() {
        true => Edit::Edited(text.to_owned()),
        false => Edit::Edited(format!("{edited}\n")),
    }
}

/// A grub.cfg: every `linux` command that boots a system, which is one that names its root.
pub(crate) fn grub_config(text: &str, arguments: &[String]) -> Edit {
    let quoted: Vec<String> = arguments.iter().map(|argument| grub_word(argument)).collect();
    let mut found = false;
    let edit = edit_lines(text, |_, line| {
        let content = line.trim_start();
        let command = content.split_whitespace().next().unwrap_or_default();
        if !matches!(command, "linux" | "linux16" | "linuxefi") || !content.contains("root=") {
            return Ok(None);
        }
        if content.trim_end().ends_with('\\') {
            return Err("the command goes on on the next line; write it on one".to_owned());
        }
        found = true;
        let rest = content[command.len()..].trim();
        let edited = appended(rest, &quoted);
        let margin = &line[..line.len() - content.len() + command.len()];
        let gap = &content[command.len()..content.len() - content[command.len()..].trim_start().len()];
        Ok((edited != rest).then(|| format!("{margin}{gap}{edited}")))
    });
    if found || matches!(edit, Edit::Refused { .. }) { edit } else { Edit::NoCommandLine }
}

/// A word in GRUB's script language (GRUB manual, "Quoting"): in single quotes where it has a character that means something.
fn grub_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+@%".contains(c);
    match word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

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

/// The text with every line replaced for which `edit`, given its index and the line without its end, gives another.
fn edit_lines(text: &str, mut edit: impl FnMut(usize, &str) -> Result<Option<String>, String>) -> Edit {
    let mut edited = String::with_capacity(text.len());
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let content = line.trim_end_matches(['\r', '\n']);
        match edit(index, content) {
            Ok(None) => edited.push_str(line),
            Ok(Some(new)) => {
                edited.push_str(&new);
                edited.push_str(&line[content.len()..]);
            }
            Err(reason) => return Edit::Refused { line: index + 1, reason },
        }
    }
    Edit::Edited(edited)
}

fn with_line(text: &str, line: &str) -> String {
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{newline}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(edit: fn(&str, &[String]) -> Edit, text: &str, arguments: &[&str], expect: &str) {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        assert_eq!(edit(text, &arguments), Edit::Edited(expect.to_owned()), "{text:?} with {arguments:?}");
        assert_eq!(edit(expect, &arguments), Edit::Edited(expect.to_owned()), "a second edit of {text:?}");
    }

    fn check_refused(edit: fn(&str, &[String]) -> Edit, text: &str, expect_line: usize) {
        match edit(text, &["a".to_owned()]) {
            Edit::Refused { line, .. } => assert_eq!(line, expect_line, "{text:?}"),
            other => panic!("{text:?} gave {other:?}"),
        }
    }

    #[test]
    fn arguments_stand_at_the_end_each_once() {
        check(kernel_cmdline, "root=/dev/vda1 ro\n", &["quiet"], "root=/dev/vda1 ro quiet\n");
        check(kernel_cmdline, "root=UUID=a  ro", &[], "root=UUID=a  ro");
        check(
            kernel_cmdline,
            "console=ttyS0 ro\n",
            &["console=tty0", "console=ttyS0"],
            "ro console=tty0 console=ttyS0\n",
        );
        check(kernel_cmdline, "a x=\"b c\" d\n", &["x=\"b c\"", "a"], "d x=\"b c\" a\n");
        check(kernel_cmdline, "ro\n", &["a", "b", "a"], "ro b a\n");
        check(kernel_cmdline, "", &["a"], "a\n");
        check(kernel_cmdline, "xa ax\n", &["a"], "xa ax a\n");
    }

    #[test]
    fn every_options_line_of_an_entry_counts() {
        let entry = "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro\ninitrd /initrd\n";
        check(
            bls_entry,
            entry,
            &["quiet"],
            "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro quiet\ninitrd /initrd\n",
        );
        check(bls_entry, "linux /v\noptions a b\noptions c\n", &["a"], "linux /v\noptions b\noptions c a\n");
        check(bls_entry, "linux /v\r\noptions c\r\n", &["a"], "linux /v\r\noptions c a\r\n");
        check(bls_entry, "title x\nlinux /v", &["a"], "title x\nlinux /v\noptions a\n");
        check(bls_entry, "linux /v\noptions\n", &["a"], "linux /v\noptions a\n");
        assert_eq!(bls_entry("title shell\nefi /shell.efi\n", &["a".to_owned()]), Edit::NoCommandLine);
    }

    #[test]
    fn every_menu_entry_of_grub_gets_the_arguments() {
        let config = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro  quiet\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1\n  linux16 /boot/memtest86+.bin\n}\n";
        let expect = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro quiet k=v\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1 k=v\n  linux16 /boot/memtest86+.bin\n}\n";
        check(grub_config, config, &["k=v"], expect);
        check(grub_config, "linux /v root=x\n", &["a;b", "c$d"], "linux /v root=x 'a;b' 'c$d'\n");
        assert_eq!(grub_config("set timeout=5\n", &["a".to_owned()]), Edit::NoCommandLine);
        check_refused(grub_config, "\nlinux /v root=x \\\n  quiet\n", 2);
    }

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
