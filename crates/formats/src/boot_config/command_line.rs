//! Kernel command lines as words, and changes to them.

use slipway_protocol::{KernelArgs, workflow};

/// The language of the file that has a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    /// None: the kernel gets the text as it is.
    Kernel,
    /// GRUB's script language. GRUB removes its quotes.
    Grub,
}

/// One argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The argument as written in the file.
    pub(super) raw: String,
    /// The argument without any quotes.
    pub(super) value: String,
}

/// Takes the place of text that another program will insert, so that it equals no argument. No file contains this
/// character (Unicode, "Noncharacters").
pub(super) const EXPANSION: char = '\u{FDD0}';

impl Language {
    /// Splits a command line into words. The error says what is not understood.
    pub(super) fn split(self, line: &str) -> Result<Vec<Word>, String> {
        match self {
            Language::Kernel => kernel_words(line),
            Language::Grub => grub_words(line),
        }
    }

    /// Writes an argument in this language. The error says why that is impossible.
    pub(super) fn write(self, argument: &str) -> Result<Word, String> {
        let value = argument.replace('"', "");
        match self {
            Language::Kernel => Ok(Word { raw: argument.to_owned(), value }),
            Language::Grub => Ok(Word { raw: grub_word(&value)?, value }),
        }
    }
}

/// Splits words as the kernel does (lib/cmdline.c, next_arg): at white space outside double quotes. Fails if a quote is
/// not closed, because it would include appended arguments.
fn kernel_words(line: &str) -> Result<Vec<Word>, String> {
    let mut words: Vec<Word> = Vec::new();
    let (mut within, mut quoted) = (false, false);
    for c in line.chars() {
        quoted ^= c == '"';
        if c.is_whitespace() && !quoted {
            within = false;
            continue;
        }
        if !within {
            words.push(Word { raw: String::new(), value: String::new() });
            within = true;
        }
        if let Some(word) = words.last_mut() {
            word.raw.push(c);
            if c != '"' {
                word.value.push(c);
            }
        }
    }
    if quoted { Err(format!("a double quote is not closed in {line:?}")) } else { Ok(words) }
}

/// Splits words as GRUB's lexer does (GRUB manual, "Quoting").
fn grub_words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (len, value) = grub_word_end(rest)?;
        let (raw, after) = rest.split_at(len);
        if matches!(raw, "{" | "}") || raw.starts_with('#') {
            return Err(format!("the command ends with {raw:?}; write it on a line of its own"));
        }
        words.push(Word { raw: raw.to_owned(), value: value.replace('"', "") });
        rest = after.trim_start();
    }
    Ok(words)
}

/// Length and value of the first word of a text.
fn grub_word_end(text: &str) -> Result<(usize, String), String> {
    let mut value = String::new();
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (c, quote) {
            ('\'', None) | ('"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None | Some('"')) => match chars.next() {
                Some((_, c)) if quote.is_none() || "$\"\\".contains(c) => value.push(c),
                Some((_, c)) => value.extend(['\\', c]),
                None => return Err("the command continues on the next line; write it on one line".to_owned()),
            },
            ('$', None | Some('"')) => value.push(EXPANSION),
            (c, None) if c.is_whitespace() => return Ok((at, value)),
            (';' | '|' | '&' | '<' | '>', None) => {
                return Err(format!("{c:?} is outside quotes; write the command on a line of its own"));
            }
            (c, _) => value.push(c),
        }
    }
    match quote {
        Some(_) => Err("a quote is not closed".to_owned()),
        None => Ok((text.len(), value)),
    }
}

/// Writes a word for GRUB: in single quotes if it has special characters. GRUB itself puts double quotes around words
/// with spaces and a backslash before some characters. The kernel does not remove that backslash
/// (grub-core/lib/cmdline.c).
fn grub_word(value: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+@%".contains(c);
    match value {
        _ if value.contains(['\'', '\\']) => Err(format!("GRUB cannot pass on {value:?}, because it contains ' or \\")),
        _ if value.chars().all(plain) => Ok(value.to_owned()),
        _ => Ok(format!("'{value}'")),
    }
}

/// Changes a command line, which may have several parts in sequence. Arguments are appended to the last part.
/// Everything from `--` on is for init and stays as it is.
pub(super) fn change(parts: &mut Vec<Vec<Word>>, wanted: &KernelArgs, language: Language) -> Result<(), String> {
    let of_init = split_off_init(parts);
    for meant in &wanted.delete {
        for part in parts.iter_mut() {
            part.retain(|word| !workflow::is_kernel_argument(&word.value, meant));
        }
    }
    for replacement in &wanted.replace {
        replace(parts, &replacement.old, language.write(&replacement.new)?);
    }
    let write = |arguments: &[String]| -> Result<Vec<Word>, String> {
        arguments.iter().map(|argument| language.write(argument)).collect()
    };
    let missing = write(&wanted.append_if_missing)?;
    for word in missing {
        if !parts.iter().flatten().any(|present| present.value == word.value) {
            add(parts, word);
        }
    }
    append(parts, write(&wanted.append)?);
    if let (Some(last), Some((end, others))) = (parts.last_mut(), of_init) {
        last.extend(end);
        parts.extend(others);
    }
    Ok(())
}

/// Splits off the arguments for init: the part from `--` on, and all later parts.
fn split_off_init(parts: &mut Vec<Vec<Word>>) -> Option<(Vec<Word>, Vec<Vec<Word>>)> {
    let index = parts.iter().position(|part| part.iter().any(|word| word.value == "--"))?;
    let others = parts.split_off(index + 1);
    let part = parts.last_mut()?;
    let at = part.iter().position(|word| word.value == "--")?;
    Some((part.split_off(at), others))
}

/// Replaces the first word that matches, and removes the other matches and other copies of the new word.
fn replace(parts: &mut [Vec<Word>], old: &str, new: Word) {
    let is_meant = |word: &Word| workflow::is_kernel_argument(&word.value, old);
    if !parts.iter().flatten().any(is_meant) {
        return;
    }
    let mut is_put = false;
    for part in parts {
        part.retain_mut(|word| {
            let takes_place = is_meant(word) && !is_put;
            if takes_place && word.value != new.value {
                *word = new.clone();
            }
            is_put |= takes_place;
            takes_place || !(is_meant(word) || word.value == new.value)
        });
    }
}

/// Appends the words, each once, and removes their earlier copies. Of equal words, the last one counts. A command line
/// that already ends with the words stays as it is.
fn append(parts: &mut Vec<Vec<Word>>, words: Vec<Word>) {
    let later = |index: usize, word: &Word| words.iter().skip(index + 1).any(|other| other.value == word.value);
    let wanted: Vec<&Word> =
        words.iter().enumerate().filter(|(index, word)| !later(*index, word)).map(|(_, word)| word).collect();
    let is_wanted = |word: &Word| wanted.iter().any(|other| other.value == word.value);
    let present: Vec<&Word> = parts.iter().flatten().collect();
    let kept = present.iter().filter(|word| !is_wanted(word)).count();
    let stands = |(word, wanted): (&&Word, &&Word)| word.value == wanted.value;
    if present.len() == kept + wanted.len() && present.iter().skip(kept).zip(&wanted).all(stands) {
        return;
    }
    for part in parts.iter_mut() {
        part.retain(|word| !is_wanted(word));
    }
    for word in wanted {
        add(parts, word.clone());
    }
}

fn add(parts: &mut Vec<Vec<Word>>, word: Word) {
    match parts.last_mut() {
        Some(part) => part.push(word),
        None => parts.push(vec![word]),
    }
}

/// Words as text.
pub(super) fn joined(words: &[Word]) -> String {
    let raw: Vec<&str> = words.iter().map(|word| word.raw.as_str()).collect();
    raw.join(" ")
}

/// The parts of a command line after the changes. A part without changes keeps its exact text.
pub(super) fn changed(texts: &[&str], wanted: &KernelArgs, language: Language) -> Result<Vec<String>, String> {
    let before = texts.iter().map(|text| language.split(text)).collect::<Result<Vec<_>, _>>()?;
    let mut after = before.clone();
    change(&mut after, wanted, language)?;
    let is_same = |index: usize, words: &Vec<Word>| before.get(index) == Some(words);
    let text = |(index, words): (usize, &Vec<Word>)| match texts.get(index) {
        Some(text) if is_same(index, words) => (*text).to_owned(),
        _ => joined(words),
    };
    Ok(after.iter().enumerate().map(text).collect())
}

/// The same changes, but without appended arguments.
pub(super) fn without_appended(wanted: &KernelArgs) -> KernelArgs {
    KernelArgs { append: Vec::new(), append_if_missing: Vec::new(), ..wanted.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, delete, if_missing, replace};

    fn check(language: Language, line: &str, wanted: &KernelArgs, expect: &str) {
        let once = changed(&[line], wanted, language).unwrap();
        assert_eq!(once, [expect], "{line:?} with {wanted:?}");
        assert_eq!(changed(&[expect], wanted, language).unwrap(), [expect], "a second change of {line:?}");
    }

    #[test]
    fn arguments_stand_at_the_end_each_once() {
        let check = |line, arguments: &[&str], expect| check(Language::Kernel, line, &append(arguments), expect);
        check("root=/dev/vda1 ro", &["quiet"], "root=/dev/vda1 ro quiet");
        check("root=UUID=a  ro", &[], "root=UUID=a  ro");
        check("console=ttyS0 ro", &["console=tty0", "console=ttyS0"], "ro console=tty0 console=ttyS0");
        check("a x=\"b c\" d", &["x=\"b c\"", "a"], "d x=\"b c\" a");
        check("ro", &["a", "b", "a"], "ro b a");
        check("", &["a"], "a");
        check("xa ax", &["a"], "xa ax a");
        check("ro  quiet  a", &["quiet", "a"], "ro  quiet  a");
        check("ro a a", &["a"], "ro a");
    }

    #[test]
    fn an_argument_is_added_where_it_is_missing() {
        let check = |line, arguments: &[&str], expect| check(Language::Kernel, line, &if_missing(arguments), expect);
        check("quiet ro", &["quiet"], "quiet ro");
        check("console=tty0 ro", &["console=ttyS0"], "console=tty0 ro console=ttyS0");
        check("\"a=b c\" ro", &["a=\"b c\""], "\"a=b c\" ro");
        check("ro", &["a", "a"], "ro a");
    }

    #[test]
    fn an_argument_is_deleted_by_itself_or_by_its_key() {
        let check = |line, arguments: &[&str], expect| check(Language::Kernel, line, &delete(arguments), expect);
        check("ro  quiet splash", &["quiet"], "ro splash");
        check("ro  splash", &["quiet"], "ro  splash");
        check("console=tty0 ro console=ttyS0,115200", &["console"], "ro");
        check("console=tty0 console=ttyS0", &["console=tty0"], "console=ttyS0");
        check("root=UUID=a", &["root=UUID"], "root=UUID=a");
        check("x=\"a b\" c", &["x"], "c");
    }

    #[test]
    fn an_argument_is_replaced_in_its_place() {
        let check = |line, pairs: &[(&str, &str)], expect| check(Language::Kernel, line, &replace(pairs), expect);
        check("a quiet b", &[("quiet", "loglevel=7")], "a loglevel=7 b");
        check("a b", &[("quiet", "loglevel=7")], "a b");
        check("console=tty0 a console=ttyS0", &[("console", "console=ttyS1")], "console=ttyS1 a");
        check("console=tty0 a console=ttyS1", &[("console=tty0", "console=ttyS1")], "console=ttyS1 a");
        check("root=UUID=a", &[("root=UUID=a", "root=LABEL=b")], "root=LABEL=b");
    }

    #[test]
    fn deleting_comes_before_replacing_and_adding() {
        let wanted = KernelArgs {
            delete: vec!["console".to_owned()],
            append_if_missing: vec!["splash".to_owned(), "ro".to_owned()],
            append: vec!["console=ttyS0".to_owned()],
            ..replace(&[("quiet", "loglevel=7")])
        };
        let expect = "ro loglevel=7 splash console=ttyS0";
        check(Language::Kernel, "console=ttyS1 ro console=ttyS0 quiet", &wanted, expect);
    }

    #[test]
    fn what_init_gets_is_left_alone() {
        check(Language::Kernel, "ro quiet -- quiet a", &append(&["a"]), "ro quiet a -- quiet a");
        check(Language::Kernel, "ro quiet -- quiet", &delete(&["quiet"]), "ro -- quiet");
        let parts = changed(&["a -- b", "c"], &append(&["c"]), Language::Kernel).unwrap();
        assert_eq!(parts, ["a c -- b", "c"]);
    }

    #[test]
    fn quotes_of_grub_and_of_the_kernel_are_told_apart() {
        let check = |line, wanted: &KernelArgs, expect| check(Language::Grub, line, wanted, expect);
        check("root=x", &append(&["a;b", "c$d", "k=\"v w\""]), "root=x 'a;b' 'c$d' 'k=v w'");
        check("'k=v w' \"k\"=z ro", &append(&["k=\"v w\""]), "\"k\"=z ro 'k=v w'");
        check("k=\\\"v\\ w\\\" ro", &delete(&["k=\"v w\""]), "ro");
        check("$a \"$a\" '$a' \\$a", &delete(&["$a"]), "$a \"$a\"");
        assert!(Language::Kernel.split("a \"b c").is_err());
        for line in ["a; b", "a > b", "a 'b", "a \\", "a }", "a # b"] {
            assert!(Language::Grub.split(line).is_err(), "{line:?}");
        }
        for argument in ["a'b", "a\\b"] {
            assert!(Language::Grub.write(argument).is_err(), "{argument:?}");
        }
    }
}
