//! The command line that kernel-install(8) puts into the entries of future kernels.

use slipway_protocol::KernelArgs;

use super::command_line::{Language, changed};
use super::{Edit, edit_lines, with_line};

/// Changes /etc/kernel/cmdline, where all lines except comments together are the command line.
pub fn kernel_cmdline(text: &str, wanted: &KernelArgs) -> Edit {
    let values: Vec<&str> = text.lines().map(str::trim).filter(|line| is_part(line)).collect();
    let mut edited = match changed(&values, wanted, Language::Kernel) {
        Ok(edited) => edited.into_iter(),
        Err(reason) => return Edit::Refused(reason),
    };
    if values.is_empty() {
        return Edit::Edited(match edited.next() {
            Some(line) => with_line(text, &line),
            None => text.to_owned(),
        });
    }
    edit_lines(text, |_, line| {
        let old = line.trim();
        let new = if is_part(old) { edited.next() } else { None };
        match new.filter(|new| new != old) {
            Some(new) if new.starts_with('#') => {
                Err(format!("{new:?} would be a comment; do not let the line begin with #"))
            }
            new => Ok(new),
        }
    })
}

/// Makes the command line for future kernels of a system that has none yet: that of an installed kernel, without
/// arguments that a boot loader adds or expands.
pub fn new_kernel_cmdline(options: &str) -> String {
    let is_kept =
        |word: &&str| !word.starts_with('$') && !word.starts_with("initrd=") && !word.starts_with("BOOT_IMAGE=");
    let words = Language::Kernel.split(options).unwrap_or_default();
    let kept: Vec<&str> = words.iter().map(|word| word.raw.as_str()).filter(is_kept).collect();
    format!("{}\n", kept.join(" "))
}

fn is_part(line: &str) -> bool {
    !line.is_empty() && !line.starts_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_refused, check_text, delete};

    #[test]
    fn the_lines_are_one_command_line() {
        let check = |text, wanted: &KernelArgs, expect| check_text(&kernel_cmdline, text, wanted, expect);
        check("root=/dev/vda1 ro\n", &append(&["quiet"]), "root=/dev/vda1 ro quiet\n");
        check("root=UUID=a  ro", &append(&[]), "root=UUID=a  ro");
        check("ro", &append(&["a"]), "ro a");
        check("", &append(&["a"]), "a\n");
        check("", &delete(&["a"]), "");
        check("# of the site\nro a\n\nquiet\n", &append(&["a"]), "# of the site\nro\n\nquiet a\n");
        check("# a\n", &append(&["a"]), "# a\na\n");
        check_refused(&kernel_cmdline, "a #b\n", "line 1: \"#b a\" would be a comment");
    }

    #[test]
    fn a_new_one_has_what_the_kernel_was_given() {
        let options = "BOOT_IMAGE=/v root=UUID=x  ro initrd=/i $tuned_params k=\"v w\"";
        assert_eq!(new_kernel_cmdline(options), "root=UUID=x ro k=\"v w\"\n");
    }
}
