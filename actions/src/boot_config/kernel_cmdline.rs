//! What kernel-install(8) puts into the entries of kernels to come.

use super::Edit;
use super::command_line::appended;

/// /etc/kernel/cmdline: the command line, and nothing else.
pub(crate) fn kernel_cmdline(text: &str, arguments: &[String]) -> Edit {
    let line = text.split_whitespace().count();
    let edited = appended(text.trim(), arguments);
    match line > 0 && edited == text.trim() {
        true => Edit::Edited(text.to_owned()),
        false => Edit::Edited(format!("{edited}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::check;

    #[test]
    fn arguments_stand_at_the_end_each_once() {
        check(kernel_cmdline, "root=/dev/vda1 ro\n", &["quiet"], "root=/dev/vda1 ro quiet\n");
        check(kernel_cmdline, "root=UUID=a  ro", &[], "root=UUID=a  ro");
        check(
            kernel_cmdline,
            "console=ttyS0 ro\n",
            &["console=tty0", "console=ttyS0"],
            "ro console=tty0 console=ttyS0\n",
        );
        check(kernel_cmdline, "a x=\"b c\" d\n", &["x=\"b c\"", "a"], "d x=\"b c\" a\n");
        check(kernel_cmdline, "ro\n", &["a", "b", "a"], "ro b a\n");
        check(kernel_cmdline, "", &["a"], "a\n");
        check(kernel_cmdline, "xa ax\n", &["a"], "xa ax a\n");
    }
}
