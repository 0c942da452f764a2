//! Why user-data is refused.

use crate::lines;

/// Why a text is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct Refusal {
    /// Line, from 1. For compressed user-data, the line in the uncompressed text.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub reason: String,
}

impl Refusal {
    /// In words, with the place at the end, as in messages of parsers.
    pub fn with_place_behind(&self) -> String {
        format!("{} at line {}, column {}", self.reason, self.line, self.column)
    }

    pub(crate) fn at_byte(source: &str, at: usize, reason: impl Into<String>) -> Self {
        let (line, column) = lines::place(source, at);
        Self { line, column, reason: reason.into() }
    }
}
