//! Edits of boot loader configuration as text.
//!
//! Each takes a file and the arguments to have at the end of its command lines, each once, and leaves everything else as
//! it was. A second edit changes nothing.

pub(crate) use bls::bls_entry;
pub(crate) use grub_config::grub_config;
pub(crate) use grub_defaults::{grub_default, grub_default_part};
pub(crate) use kernel_cmdline::kernel_cmdline;

mod bls;
mod command_line;
mod grub_config;
mod grub_defaults;
mod kernel_cmdline;

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

/// The text with every line replaced for which `edit`, given its index and the line without its end, gives another.
pub(super) fn edit_lines(text: &str, mut edit: impl FnMut(usize, &str) -> Result<Option<String>, String>) -> Edit {
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

pub(super) fn with_line(text: &str, line: &str) -> String {
    let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{newline}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn check(edit: fn(&str, &[String]) -> Edit, text: &str, arguments: &[&str], expect: &str) {
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        assert_eq!(edit(text, &arguments), Edit::Edited(expect.to_owned()), "{text:?} with {arguments:?}");
        assert_eq!(edit(expect, &arguments), Edit::Edited(expect.to_owned()), "a second edit of {text:?}");
    }

    pub(super) fn check_refused(edit: fn(&str, &[String]) -> Edit, text: &str, expect_line: usize) {
        match edit(text, &["a".to_owned()]) {
            Edit::Refused { line, .. } => assert_eq!(line, expect_line, "{text:?}"),
            other => panic!("{text:?} gave {other:?}"),
        }
    }
}
