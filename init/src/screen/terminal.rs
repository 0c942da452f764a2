//! What differs from terminal to terminal.

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub rows: usize,
}

/// The characters that a terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    Ascii,
    /// Also full blocks and half blocks (U+2580, U+2584, U+2588), in UTF-8.
    Blocks,
}
