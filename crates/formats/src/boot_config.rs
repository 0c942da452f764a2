//! Edits boot loader configuration as text.
//!
//! Each function takes a file and the wanted changes to its command lines, and leaves everything else as it was.
//! Repeating an edit changes nothing.

use command_line::Language;

pub use bls::{bls_entry, bls_options, takes_kernelopts};
pub use extlinux::extlinux;
pub use grub_config::{grub_config, kernelopts_of_config};
pub use grub_defaults::grub_defaults;
pub use grub_env::grub_env;
pub use kernel_cmdline::{kernel_cmdline, new_kernel_cmdline};
pub use xen::xen_config;

mod bls;
mod command_line;
mod extlinux;
mod grub_config;
mod grub_defaults;
mod grub_env;
mod kernel_cmdline;
pub mod places;
mod shell;
pub mod uki;
mod xen;

/// The argument with which a kernel started by the firmware loads an initramfs (kernel documentation, "The EFI Boot
/// Stub").
pub const INITRD: &str = "initrd=";

/// Result of an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The file with the wanted arguments, possibly unchanged.
    Edited(String),
    /// The file has no kernel command line.
    NoCommandLine,
    /// The file cannot be edited safely: what is wrong, where, and what would be right.
    Refused(String),
}

/// Whether GRUB reads an argument in a script command in the same way as the kernel does.
pub fn is_plain_for_grub(argument: &str) -> bool {
    let value = argument.replace('"', "");
    let words = Language::Grub.split(argument);
    !argument.contains(['\'', '\\'])
        && words.is_ok_and(|words| matches!(words.as_slice(), [word] if word.value == value))
}

/// Which entries get appended arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntryScope {
    /// Normal entries.
    #[default]
    Default,
    /// Recovery entries too: without the arguments they would not boot.
    All,
}

/// Whether a command that starts a kernel starts Linux, rather than a memory test.
fn is_linux(path: &str, arguments: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let is_named = ["vmlinu", "zimage"].iter().any(|part| name.contains(part))
        || ["image", "kernel", "linux"].iter().any(|start| name.starts_with(start));
    let has = |start| has_argument(arguments, start);
    !name.contains("memtest") && (is_named || has("root=") || has("init="))
}

/// Whether an EFI program that an entry starts is Linux, rather than a shell or memory test. This is judged by initrd
/// and arguments: a unified kernel image may have any name, and without arguments the image uses its own.
pub fn is_linux_program(has_initrd: bool, arguments: &str) -> bool {
    has_initrd || has_argument(arguments, "root=") || has_argument(arguments, INITRD)
}

fn has_argument(arguments: &str, start: &str) -> bool {
    arguments.split_whitespace().any(|word| word.starts_with(start))
}

/// Whether this is the command line of a recovery entry, which lacks the arguments of normal entries.
fn is_recovery(arguments: &str) -> bool {
    arguments.split_whitespace().any(|word| matches!(word, "single" | "recovery"))
}

/// Replaces every line for which `edit` returns a new one. `edit` gets the index, and the line without its end.
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
            Err(reason) => return Edit::Refused(format!("line {}: {reason}", index + 1)),
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
    use slipway_protocol::{KernelArgReplacement, KernelArgs};

    #[test]
    fn linux_is_told_from_other_programs_of_the_firmware() {
        let check = |has_initrd: bool, arguments: &str, expect: bool| {
            assert_eq!(is_linux_program(has_initrd, arguments), expect, "{arguments:?}, initrd: {has_initrd}");
        };
        check(true, "", true);
        check(true, "quiet rw", true);
        check(false, "quiet root=x", true);
        check(false, "initrd=\\a quiet", true);
        check(false, "-nostartup", false);
        check(false, "noinitrd=a xroot=b", false);
    }

    fn words(arguments: &[&str]) -> Vec<String> {
        arguments.iter().map(|argument| (*argument).to_owned()).collect()
    }

    pub(super) fn append(arguments: &[&str]) -> KernelArgs {
        KernelArgs { append: words(arguments), ..KernelArgs::default() }
    }

    pub(super) fn if_missing(arguments: &[&str]) -> KernelArgs {
        KernelArgs { append_if_missing: words(arguments), ..KernelArgs::default() }
    }

    pub(super) fn delete(arguments: &[&str]) -> KernelArgs {
        KernelArgs { delete: words(arguments), ..KernelArgs::default() }
    }

    pub(super) fn replace(pairs: &[(&str, &str)]) -> KernelArgs {
        let replacement = |(old, new): &(&str, &str)| KernelArgReplacement { old: (*old).into(), new: (*new).into() };
        KernelArgs { replace: pairs.iter().map(replacement).collect(), ..KernelArgs::default() }
    }

    pub(super) fn check_text(edit: &dyn Fn(&str, &KernelArgs) -> Edit, text: &str, wanted: &KernelArgs, expect: &str) {
        assert_eq!(edit(text, wanted), Edit::Edited(expect.to_owned()), "{text:?} with {wanted:?}");
        assert_eq!(edit(expect, wanted), Edit::Edited(expect.to_owned()), "a second edit of {text:?}");
    }

    pub(super) fn check_refused(edit: &dyn Fn(&str, &KernelArgs) -> Edit, text: &str, expect: &str) {
        match edit(text, &append(&["a"])) {
            Edit::Refused(reason) => assert!(reason.starts_with(expect), "{text:?}: {reason}"),
            other => panic!("{text:?} gave {other:?}"),
        }
    }
}
