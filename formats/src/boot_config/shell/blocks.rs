//! Finds the lines of a shell file that are inside something else: a compound command (POSIX, Shell Command Language,
//! 2.9.4), which may run them never or more than once, an unfinished list, or quotes. In doubt, a line counts as
//! inside.

/// A construct that ends on a later line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    If,
    Case,
    Loop,
    Braces,
    Subshell,
    Substitution,
    Backquotes,
}

impl Open {
    /// The word that ends it; empty if a character does.
    fn end(self) -> &'static str {
        match self {
            Open::If => "fi",
            Open::Case => "esac",
            Open::Loop => "done",
            Open::Braces => "}",
            Open::Subshell | Open::Substitution | Open::Backquotes => "",
        }
    }
}

/// The constructs that are open at the beginning of the next line.
#[derive(Default)]
pub(super) struct Blocks {
    open: Vec<Open>,
    quote: Option<char>,
    /// The command continues, or the next one depends on it.
    goes_on: bool,
    /// The next word cannot begin a command.
    is_argument: bool,
}

impl Blocks {
    /// The state at the end of a text.
    pub(super) fn of(text: &str) -> Self {
        let mut blocks = Self::default();
        text.split('\n').for_each(|line| blocks.read(line));
        blocks
    }

    /// Whether the next line is inside a construct.
    pub(super) fn is_open(&self) -> bool {
        !self.open.is_empty() || self.quote.is_some() || self.goes_on
    }

    /// Reads a line, given without its newline.
    pub(super) fn read(&mut self, line: &str) {
        let mut word = String::from(if self.quote.is_some() { "\"" } else { "" });
        let (mut chars, mut before) = (line.chars(), ' ');
        while let Some(c) = chars.next() {
            match (c, self.quote) {
                (c, Some(open)) if c == open => self.quote = None,
                ('\\', None | Some('"')) => {
                    word.push(c);
                    if chars.next().is_none() {
                        self.word(&mut word);
                        self.goes_on = true;
                        return;
                    }
                }
                (_, Some(_)) => {}
                ('"' | '\'', None) => {
                    self.quote = Some(c);
                    word.push(c);
                }
                ('#', None) if word.is_empty() => break,
                (';' | '&' | '|' | '(' | ')' | '`', None) => self.operator(c, before, &mut word),
                (c, None) if c.is_ascii_whitespace() => self.word(&mut word),
                (c, None) => word.push(c),
            }
            before = c;
        }
        self.word(&mut word);
        self.is_argument = self.quote.is_some();
    }

    fn operator(&mut self, c: char, before: char, word: &mut String) {
        let is_substitution = word.ends_with('$');
        self.word(word);
        self.is_argument = false;
        match (c, self.open.last()) {
            ('(', _) => self.open.push(if is_substitution { Open::Substitution } else { Open::Subshell }),
            ('`', Some(Open::Backquotes)) | (')', Some(Open::Substitution)) => {
                self.open.pop();
                self.is_argument = true;
            }
            ('`', _) => self.open.push(Open::Backquotes),
            (')', Some(Open::Subshell)) => drop(self.open.pop()),
            ('|', _) => self.goes_on = true,
            ('&', _) => self.goes_on |= before == '&',
            // Also the bracket after a pattern of `case`.
            _ => {}
        }
    }

    /// Handles a complete word.
    fn word(&mut self, word: &mut String) {
        let word = std::mem::take(word);
        if word.is_empty() {
            return;
        }
        self.goes_on = false;
        let is_command = !std::mem::replace(&mut self.is_argument, true);
        let begun = match word.as_str() {
            // It may follow `function NAME`.
            "{" => Some(Open::Braces),
            "if" if is_command => Some(Open::If),
            "case" if is_command => Some(Open::Case),
            "for" | "select" | "while" | "until" if is_command => Some(Open::Loop),
            _ => None,
        };
        let ends = is_command && self.open.last().is_some_and(|open| open.end() == word);
        if ends {
            self.open.pop();
        }
        self.open.extend(begun);
        let is_before_command = word == "{"
            || is_command && matches!(word.as_str(), "if" | "while" | "until" | "then" | "else" | "elif" | "do" | "!");
        self.is_argument = !(ends || is_before_command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_told_from_what_is_closed_or_only_looks_so() {
        let check = |text: &str, expect: bool| assert_eq!(Blocks::of(text).is_open(), expect, "{text:?}");
        for open in [
            "if a",
            "if a; then\nb\nelse\n",
            "if a; then { b; }\n",
            "case a in\nb)\n",
            "case a in\n(b) c;;\n*)\n",
            "for a in b; do echo $(c) done\n",
            "while a; do # done",
            "until a; do echo `b` done\n",
            "{",
            "f() {\n",
            "function f {\n",
            "function f\n{\necho }",
            "(\na\n",
            "a=$(\n",
            "a &&",
            "a || # b\n\n",
            "a |&",
            "a \\",
            "a='\n",
            "a=\"\\\"",
            "a=\"$(b \"c\" \n",
        ] {
            check(open, true);
        }
        for closed in [
            "",
            "# if (",
            "if a; then b; else c; fi # d",
            "if a\nthen { b; } fi",
            "case a in (b) c;; d|e) f;; esac",
            "for a in b; do echo $(c) done; done",
            "while ! a; do b; done <c | d",
            "f() { a; }",
            "(a; (b))",
            "echo if case for ' ( ' \"` {\" \\( do#",
            "a=$(b; if c; then d; fi)`e`\"\\\\\"${f:-g h}",
            "a=\"b\nc\"",
            "a &",
            "[ a ] && b \\\n  c",
            "a ||\nb",
        ] {
            check(closed, false);
        }
    }
}
