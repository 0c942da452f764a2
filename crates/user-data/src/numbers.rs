//! Plain scalars of YAML that are numbers to some readers and texts to others.

use granit_parser::{Event, ScalarStyle, options};

use crate::events::{Events, refuse};
use crate::refusal::Refusal;

/// Refuses digits that only YAML 1.1 or only YAML 1.2 treats as a number: `1_0`, `0b1`, `0o7`. In the place of a
/// number, a text would be silently read as another number. Says nothing about a text that is not YAML.
pub fn check_numbers(yaml: &str) -> Result<(), Refusal> {
    let options = options! { emit_comments: false, emit_unresolved_aliases: true };
    for (event, span) in Events::new(yaml, options).map_while(Result::ok) {
        if let Event::Scalar(text, ScalarStyle::Plain, _, None) = &event
            && is_doubtful(text)
        {
            let reason =
                "some readers take this for a number: put a text in quotes, and write a number in decimal digits";
            return Err(refuse(yaml, &span, reason));
        }
    }
    Ok(())
}

/// Whether only one of YAML 1.1 ("Integer Language-Independent Type") and 1.2.2 (10.3.2) reads a text as a number.
fn is_doubtful(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_of = |digits: &str, base: u32| {
        !digits.is_empty() && digits.chars().all(|c| c == '_' || c.is_digit(base)) && digits.starts_with(|c| c != '_')
    };
    match digits.get(..2) {
        Some("0b") => digits.get(2..).is_some_and(|rest| is_of(rest, 2)),
        Some("0o") => digits.get(2..).is_some_and(|rest| is_of(rest, 8)),
        Some("0x") => digits.contains('_') && digits.get(2..).is_some_and(|rest| is_of(rest, 16)),
        _ => digits.contains('_') && is_of(digits, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_readers_take_for_different_numbers_are_refused() {
        for doubtful in ["1_0", "1_000_000", "-1_0", "0b1", "0o7", "0x1_0", "0_7", "1_"] {
            let refusal = check_numbers(&format!("a: 1\nb: [x, {doubtful}]\n")).unwrap_err().to_string();
            assert!(refusal.starts_with("line 2, column 8: some readers take this for a number"), "{refusal}");
        }
        for plain in
            ["10", "0x10", "010", "1e3", "1.5", "a_1", "1_a", "_1", "'1_0'", "!!str 1_0", "0bx", "52:54", "[", "-"]
        {
            assert_eq!(check_numbers(&format!("a: {plain}\n")), Ok(()), "{plain}");
        }
    }
}
