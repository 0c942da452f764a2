//! Kernel command lines as words.

/// Words of a command line as the kernel splits it (lib/cmdline.c, next_arg): at white space outside double quotes.
pub(super) fn words(line: &str) -> Vec<&str> {
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
pub(super) fn appended(line: &str, arguments: &[String]) -> String {
    let present = words(line);
    let kept: Vec<&str> =
        present.iter().copied().filter(|word| !arguments.iter().any(|argument| argument == word)).collect();
    let wanted: Vec<&str> = kept.iter().copied().chain(unique(arguments)).collect();
    if wanted == present { line.to_owned() } else { wanted.join(" ") }
}

/// Each argument once, where it is last.
pub(super) fn unique(arguments: &[String]) -> impl Iterator<Item = &str> {
    let last = move |(index, argument): &(usize, &String)| !arguments[index + 1..].contains(argument);
    arguments.iter().enumerate().filter(last).map(|(_, argument)| argument.as_str())
}

pub(super) fn removed(line: &str, arguments: &[String]) -> String {
    let words: Vec<&str> = words(line);
    let kept: Vec<&str> = words.iter().copied().filter(|word| !arguments.iter().any(|a| a == word)).collect();
    if kept.len() == words.len() { line.to_owned() } else { kept.join(" ") }
}
