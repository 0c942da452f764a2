//! Hints: conditions on one fact about a disk. The operators are those of Ironic's root device hints (Ironic's
//! documentation, "Specifying the disk for deployment"). Their grammar is that of oslo.utils, specs_matcher.

use std::cmp::Ordering;

mod size;
mod text;

pub use size::SizeHint;
pub use text::TextHint;

/// The reason why a text is not a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum HintError {
    /// There is no value to compare with, or no value after an operator or between two operators.
    #[error("hint {hint:?} has no value")]
    Empty { hint: String },
    /// The hint starts like an operator, but no operator has this name.
    #[error("hint {hint:?} starts with {operator:?}, which is not an operator here; the operators are {known}")]
    Operator {
        hint: String,
        operator: String,
        /// The operators that this key takes.
        known: &'static str,
    },
    /// The hint has a text where a number is needed.
    #[error("hint {hint:?} has {value:?} where a number of whole GiB is needed")]
    Number {
        hint: String,
        /// The text that is not a number.
        value: String,
    },
    /// The range has no brackets, does not have two ends, or has no value between its ends.
    #[error("hint {hint:?} is not a range: write \"<range-in> [ 10 20 ]\", with a round bracket to exclude an end")]
    Range { hint: String },
}

/// The comparison of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    AtLeast,
    AtMost,
    Above,
    Below,
}

impl Comparison {
    fn holds(self, found_to_wanted: Ordering) -> bool {
        match self {
            Comparison::Equal => found_to_wanted.is_eq(),
            Comparison::NotEqual => found_to_wanted.is_ne(),
            Comparison::AtLeast => found_to_wanted.is_ge(),
            Comparison::AtMost => found_to_wanted.is_le(),
            Comparison::Above => found_to_wanted.is_gt(),
            Comparison::Below => found_to_wanted.is_lt(),
        }
    }
}

/// Splits a hint into its operator and the rest. The operator is empty if there is none. Any text that starts like an
/// operator counts as one. So a misspelt operator is an error, and never a text that no disk has.
fn split_operator(hint: &str) -> (&str, &str) {
    let is_sign = |c: char| "=!<>".contains(c);
    let word = hint.strip_prefix('<').filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    let end = match word.and_then(|rest| rest.find('>')) {
        Some(length) => length + 2,
        None => {
            let signs = hint.strip_prefix('s').filter(|rest| rest.starts_with(is_sign)).unwrap_or(hint);
            hint.len() - signs.trim_start_matches(is_sign).len()
        }
    };
    let (operator, rest) = hint.split_at(end);
    (operator, rest.trim())
}

/// Returns the values of `<or> a <or> b`. `rest` is the text after the first operator. None if a value is empty.
fn alternatives(rest: &str) -> Option<Vec<&str>> {
    let values: Vec<&str> = rest.split("<or>").map(str::trim).collect();
    values.iter().all(|value| !value.is_empty()).then_some(values)
}
