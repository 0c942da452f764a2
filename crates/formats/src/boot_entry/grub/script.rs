//! Words and commands of GRUB's script language (GRUB manual, "Words", "Quoting", "Variable expansion").

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// Most bytes of one command. The rest is dropped: variables can be made to grow without limit.
const MAX_COMMAND: usize = 8192;
/// Words that may come before a command.
const PREFIXES: &[&str] = &["then", "else", "do"];

/// The next part of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A command with its variables expanded, and whether a brace opens at its end.
    Words { words: Vec<String>, opens: bool },
    /// A closing brace.
    Close,
}

/// A script that is read command by command.
pub(super) struct Script<'a>(Peekable<Chars<'a>>);

/// A word, or the end of a command.
enum Token {
    Word { text: String, is_quoted: bool },
    End,
}

impl<'a> Script<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text.chars().peekable())
    }

    /// The next command; none at the end of the script.
    pub(super) fn next(&mut self, variables: &BTreeMap<String, String>) -> Option<Command> {
        let (mut words, mut len): (Vec<String>, usize) = (Vec::new(), 0);
        loop {
            match self.token(variables) {
                None if words.is_empty() => return None,
                None => return Some(Command::Words { words, opens: false }),
                Some(Token::End) if words.is_empty() => {}
                Some(Token::End) => return Some(Command::Words { words, opens: false }),
                Some(Token::Word { text, is_quoted: false }) if text == "{" => {
                    return Some(Command::Words { words, opens: true });
                }
                Some(Token::Word { text, is_quoted: false }) if text == "}" && words.is_empty() => {
                    return Some(Command::Close);
                }
                Some(Token::Word { text, is_quoted: false })
                    if words.is_empty() && PREFIXES.contains(&text.as_str()) => {}
                // An unquoted variable without a value is not a word.
                Some(Token::Word { text, is_quoted: false }) if text.is_empty() => {}
                Some(Token::Word { text, .. }) => {
                    len += text.len() + 1;
                    if len <= MAX_COMMAND {
                        words.push(text);
                    }
                }
            }
        }
    }

    fn token(&mut self, variables: &BTreeMap<String, String>) -> Option<Token> {
        while self.0.next_if(|c| matches!(c, ' ' | '\t' | '\r')).is_some() {}
        match self.0.peek()? {
            '\n' | ';' => {
                self.0.next();
                return Some(Token::End);
            }
            '#' => {
                while self.0.next_if(|c| *c != '\n').is_some() {}
                return Some(Token::End);
            }
            _ => {}
        }
        let (mut text, mut is_quoted) = (String::new(), false);
        while let Some(c) = self.0.next_if(|c| !matches!(c, ' ' | '\t' | '\r' | '\n' | ';')) {
            match c {
                '\'' => {
                    is_quoted = true;
                    while let Some(c) = self.0.next().filter(|c| *c != '\'') {
                        push(&mut text, c);
                    }
                }
                '"' => {
                    is_quoted = true;
                    self.double_quoted(&mut text, variables);
                }
                // The line continues on the next one.
                '\\' if self.0.next_if_eq(&'\n').is_some() => {}
                '\\' => self.0.next().into_iter().for_each(|c| push(&mut text, c)),
                '$' => self.variable(&mut text, variables),
                c => push(&mut text, c),
            }
        }
        Some(Token::Word { text, is_quoted })
    }

    fn double_quoted(&mut self, text: &mut String, variables: &BTreeMap<String, String>) {
        while let Some(c) = self.0.next().filter(|c| *c != '"') {
            match c {
                '\\' => match self.0.next() {
                    Some('\n') | None => {}
                    Some(c @ ('$' | '"' | '\\')) => push(text, c),
                    Some(c) => {
                        push(text, '\\');
                        push(text, c);
                    }
                },
                '$' => self.variable(text, variables),
                c => push(text, c),
            }
        }
    }

    /// Appends the value of the variable whose name follows.
    fn variable(&mut self, text: &mut String, variables: &BTreeMap<String, String>) {
        let mut name = String::new();
        let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        match self.0.next_if_eq(&'{') {
            Some(_) => {
                while let Some(c) = self.0.next_if(|c| *c != '\n').filter(|c| *c != '}') {
                    push(&mut name, c);
                }
            }
            None => {
                while let Some(c) = self.0.next_if(is_name) {
                    push(&mut name, c);
                }
            }
        }
        let value = variables.get(&name).map_or("", String::as_str);
        if text.len() + value.len() <= MAX_COMMAND {
            text.push_str(value);
        }
    }
}

fn push(text: &mut String, c: char) {
    if text.len() < MAX_COMMAND {
        text.push(c);
    }
}

/// Expands the variables in a text and keeps all quotes.
pub fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut script = Script::new(text);
    while let Some(c) = script.0.next() {
        match c {
            '$' => script.variable(&mut expanded, variables),
            c => push(&mut expanded, c),
        }
    }
    expanded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &[(&[&str], bool)]) {
        let variables = [("a", "1"), ("long", "x y")].map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let mut script = Script::new(text);
        let mut found = Vec::new();
        while let Some(command) = script.next(&variables) {
            found.push(command);
        }
        let command = |(words, opens): &(&[&str], bool)| Command::Words {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            opens: *opens,
        };
        assert_eq!(found, expect.iter().map(command).collect::<Vec<_>>(), "{text:?}");
    }

    #[test]
    fn words_are_those_of_the_shell() {
        check("a  b\tc\n\n;d # e\n#f\n", &[(&["a", "b", "c"], false), (&["d"], false)]);
        check("a 'b $a' \"c $a ${a}\" d$a", &[(&["a", "b $a", "c 1 1", "d1"], false)]);
        check("a \\$a \"\\$a \\\" \\x\" b\\ c", &[(&["a", "$a", "$a \" \\x", "b c"], false)]);
        check("a $none '' \"$none\" b", &[(&["a", "", "", "b"], false)]);
        check("a \\\n  b", &[(&["a", "b"], false)]);
        check("if x; then y; else z; fi", &[(&["if", "x"], false), (&["y"], false), (&["z"], false), (&["fi"], false)]);
        check("menuentry 'a' {\n b {}", &[(&["menuentry", "a"], true), (&["b", "{}"], false)]);
        check("'no end", &[(&["no end"], false)]);
        check("${no end", &[]);
        check("\\", &[]);
    }

    #[test]
    fn options_are_expanded_and_keep_their_quotes() {
        let variables = [("kernelopts".to_owned(), "root=x ro".to_owned())].into();
        assert_eq!(expand("$kernelopts x=\"a b\" $tuned_params", &variables), "root=x ro x=\"a b\" ");
        assert_eq!(expand("plain", &variables), "plain");
    }
}
