//! The configuration of Xen's own EFI program (Xen, docs/misc/efi.pandoc): sections with lines `key=value`. The value
//! of `kernel` is a file and its arguments.

use slipway_protocol::KernelArgs;

use super::command_line::{Language, changed, without_appended};
use super::{Edit, EntryScope, edit_lines, is_recovery};

/// Changes the arguments of every kernel in a configuration. The arguments of Xen itself, in `options`, stay. Recovery
/// sections get appended arguments only with [`EntryScope::All`].
pub fn xen_config(text: &str, wanted: &KernelArgs, to: EntryScope) -> Edit {
    let mut found = false;
    let reduced = without_appended(wanted);
    let edit = edit_lines(text, |_, line| {
        let Some((start, arguments)) = kernel(line) else { return Ok(None) };
        found = true;
        let wanted = if is_recovery(arguments) && to == EntryScope::Default { &reduced } else { wanted };
        let edited = changed(&[arguments], wanted, Language::Kernel)?.concat();
        Ok((edited != arguments).then(|| format!("{} {edited}", start.trim_end()).trim_end().to_owned()))
    });
    if found || matches!(edit, Edit::Refused(_)) { edit } else { Edit::NoCommandLine }
}

/// Splits a line with a kernel into the text up to the arguments, and the arguments.
fn kernel(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let value = value.trim();
    if key.trim() != "kernel" || value.is_empty() {
        return None;
    }
    let arguments = value.split_once(char::is_whitespace).map_or("", |(_, arguments)| arguments.trim());
    Some((&line[..line.trim_end().len() - arguments.len()], arguments))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_text, delete};

    fn normal(text: &str, wanted: &KernelArgs) -> Edit {
        xen_config(text, wanted, EntryScope::Default)
    }

    #[test]
    fn the_kernels_of_every_section_get_the_arguments() {
        let check = |text: &str, wanted: &KernelArgs, expect: &str| check_text(&normal, text, wanted, expect);
        let text = "[global]\ndefault=xen\n\n[xen]\noptions=dom0_mem=1G\nkernel=vmlinuz-6.1 root=x ro\nramdisk=initrd\n\
                    [rescue]\nkernel=vmlinuz-6.1 root=x single\n";
        check(text, &append(&["quiet"]), &text.replace("x ro", "x ro quiet"));
        check(text, &delete(&["ro"]), &text.replace("x ro", "x"));
        check("kernel = vmlinuz\r\n", &append(&["a"]), "kernel = vmlinuz a\r\n");
        for other in ["", "# kernel=x root=y\n", "[xen]\noptions=a\nkernel=\n"] {
            assert_eq!(normal(other, &append(&["a"])), Edit::NoCommandLine, "{other:?}");
        }
    }
}
