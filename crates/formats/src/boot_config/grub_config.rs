//! grub-mkconfig's output.

use slipway_protocol::KernelArgs;

use super::command_line::{Language, changed, without_appended};
use super::{Edit, EntryScope, edit_lines, is_linux, is_recovery};

const SET_KERNELOPTS: &str = "set kernelopts=";

/// Changes every command of a grub.cfg that starts Linux. Recovery entries get appended arguments only with
/// [`EntryScope::All`], because grub-mkconfig makes them without GRUB_CMDLINE_LINUX_DEFAULT.
pub fn grub_config(text: &str, wanted: &KernelArgs, entries: EntryScope) -> Edit {
    let mut found = false;
    let reduced = without_appended(wanted);
    let edit = edit_lines(text, |_, line| {
        let Some((start, path, arguments)) = linux_command(line) else { return Ok(None) };
        if !is_linux(path, arguments) {
            return Ok(None);
        }
        found = true;
        let wanted = if is_recovery(arguments) && entries == EntryScope::Default { &reduced } else { wanted };
        let edited = changed(&[arguments], wanted, Language::Grub)?.concat();
        Ok((edited != arguments).then(|| format!("{} {edited}", start.trim_end()).trim_end().to_owned()))
    });
    if found || matches!(edit, Edit::Refused(_)) { edit } else { Edit::NoCommandLine }
}

/// Commands that load a kernel. Below a hypervisor such as Xen, Linux is a module (GRUB, util/grub.d/20_linux_xen.in).
const LINUX: &[&str] = &["linux", "linux16", "linuxefi", "module", "module2", "xen_module"];
/// Beginning of the options that may stand before the path of a module.
const OPTION: &str = "--";

/// Splits a line that loads a kernel into the text up to the arguments, the kernel's path, and the arguments.
fn linux_command(line: &str) -> Option<(&str, &str, &str)> {
    let content = line.trim_start();
    let command = content.split_whitespace().next()?;
    if !LINUX.contains(&command) {
        return None;
    }
    let mut after = content[command.len()..].trim_start();
    while let Some(option) = after.split_whitespace().next().filter(|word| word.starts_with(OPTION)) {
        after = after[option.len()..].trim_start();
    }
    let path = after.split_whitespace().next()?;
    let arguments = after[path.len()..].trim();
    let start = line.trim_end().len() - arguments.len();
    Some((&line[..start], path, arguments))
}

/// Changes the arguments that a Fedora-style grub.cfg sets as `$kernelopts` if GRUB's environment does not set it.
pub fn kernelopts_of_config(text: &str, wanted: &KernelArgs) -> Edit {
    let mut found = false;
    let edit = edit_lines(text, |_, line| {
        let Some((start, right)) =
            line.trim_start().strip_prefix(SET_KERNELOPTS).map(|right| (&line[..line.len() - right.len()], right))
        else {
            return Ok(None);
        };
        found = true;
        let old = unescaped(right.trim())?;
        let new = changed(&[&old], wanted, Language::Kernel)?.concat();
        Ok((new != old).then(|| format!("{start}\"{}\"", escaped(&new))))
    });
    if found || matches!(edit, Edit::Refused(_)) { edit } else { Edit::NoCommandLine }
}

/// The value of a GRUB word in double quotes (GRUB manual, "Quoting").
fn unescaped(word: &str) -> Result<String, String> {
    let inner = word.strip_prefix('"').and_then(|word| word.strip_suffix('"'));
    let mut value = String::new();
    let mut chars = inner.unwrap_or_default().chars();
    while let Some(c) = chars.next() {
        match c {
            '$' | '"' => return Err(format!("the value of kernelopts contains {c:?}; remove it")),
            '\\' => value.extend(chars.next()),
            c => value.push(c),
        }
    }
    inner
        .map(|_| value)
        .ok_or_else(|| "the value of kernelopts is not in double quotes; put it in double quotes".to_owned())
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_refused, check_text, delete};

    fn check(text: &str, wanted: &KernelArgs, expect: &str) {
        check_text(&normal, text, wanted, expect);
    }

    fn normal(text: &str, wanted: &KernelArgs) -> Edit {
        grub_config(text, wanted, EntryScope::Default)
    }

    #[test]
    fn every_menu_entry_of_grub_gets_the_arguments() {
        let config = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro  quiet\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1\n  linux16 /boot/memtest86+.bin\n}\n";
        let expect = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro quiet k=v\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1 k=v\n  linux16 /boot/memtest86+.bin\n}\n";
        check(config, &append(&["k=v"]), expect);
        check("linux /v root=x\r\n", &append(&["a;b", "c$d"]), "linux /v root=x 'a;b' 'c$d'\r\n");
        check("linux /vmlinuz-6.1\n", &append(&["a"]), "linux /vmlinuz-6.1 a\n");
        check("linux /vmlinuz root=x \n", &append(&[]), "linux /vmlinuz root=x \n");
        check("linux /vmlinuz root=x\n", &delete(&["/vmlinuz", "root"]), "linux /vmlinuz\n");
    }

    #[test]
    fn linux_below_a_hypervisor_gets_the_arguments_and_nothing_else_does() {
        let config = "menuentry 'Xen' {\n\tmultiboot2\t/boot/xen-4.17.gz placeholder dom0_mem=1G ${xen_rm_opts}\n\
                      \tmodule2\t/boot/vmlinuz-6.1 placeholder root=UUID=x ro\n\
                      \tmodule2\t--nounzip   /boot/initrd.img-6.1\n}\n\
                      menuentry 'Xen' {\n\tmodule2\t/boot/vmlinuz-6.1 placeholder root=UUID=x ro single\n}\n";
        check(config, &append(&["a"]), &config.replace("root=UUID=x ro\n", "root=UUID=x ro a\n"));
        check(config, &delete(&["ro"]), &config.replace("x ro", "x"));
        let old = "multiboot /xen.gz a\nmodule /vmlinuz-xen root=x\nmodule /initrd-xen\n";
        check(old, &append(&["b"]), "multiboot /xen.gz a\nmodule /vmlinuz-xen root=x b\nmodule /initrd-xen\n");
        let arm = "xen_hypervisor /xen a\nxen_module /vmlinuz placeholder root=x\n\
                   xen_module --nounzip /initramfs-linux.img\n";
        check(arm, &append(&["b"]), &arm.replace("root=x", "root=x b"));
        for text in ["multiboot2 /xen.gz root=x\n", "module2 --nounzip\n", "module /hurd/ext2fs.static ext2fs a=b\n"] {
            assert_eq!(normal(text, &append(&["a"])), Edit::NoCommandLine, "{text:?}");
        }
    }

    #[test]
    fn kernels_of_any_usual_name_are_linux() {
        for name in ["bzImage", "kernel-genkernel-x86_64-6.1", "3x-linux-6.6-bzImage", "Image", "zImage-5.4", "linux"] {
            check(&format!("linux /{name} quiet\n"), &append(&["a"]), &format!("linux /{name} quiet a\n"));
        }
        check("linux /x init=/sbin/init\n", &append(&["a"]), "linux /x init=/sbin/init a\n");
    }

    #[test]
    fn entries_for_recovery_get_nothing_and_lose_what_is_deleted() {
        let config = "linux /vmlinuz root=x ro single c=1\n";
        check(config, &append(&["a"]), config);
        check(config, &delete(&["c"]), "linux /vmlinuz root=x ro single\n");
        let every = |text: &str, wanted: &KernelArgs| grub_config(text, wanted, EntryScope::All);
        check_text(&every, config, &append(&["a"]), "linux /vmlinuz root=x ro single c=1 a\n");
    }

    #[test]
    fn what_starts_no_linux_is_left_alone() {
        for text in ["set timeout=5\n", "linux16 /boot/memtest86+x64.bin root=x\n", "linux /memdisk iso\n", "linux\n"] {
            assert_eq!(normal(text, &append(&["a"])), Edit::NoCommandLine, "{text:?}");
        }
        check_refused(&normal, "\nlinux /v root=x \\\n  quiet\n", "line 2: the command continues");
        check_refused(&normal, "linux /v root=x; initrd /i\n", "line 1: ';' is outside quotes");
    }

    #[test]
    fn the_arguments_entries_fall_back_to_are_edited() {
        let check = |text, wanted: &KernelArgs, expect| check_text(&kernelopts_of_config, text, wanted, expect);
        let text = "if [ -z \"${kernelopts}\" ]; then\n  set kernelopts=\"root=x ro \"\nfi\n";
        let expect = "if [ -z \"${kernelopts}\" ]; then\n  set kernelopts=\"root=x ro a\"\nfi\n";
        check(text, &append(&["a"]), expect);
        check(text, &delete(&["a"]), text);
        check("set kernelopts=\"a\"\n", &append(&["k=\"v w\""]), "set kernelopts=\"a k=\\\"v w\\\"\"\n");
        assert_eq!(kernelopts_of_config("set timeout=5\n", &append(&["a"])), Edit::NoCommandLine);
        check_refused(&kernelopts_of_config, "set kernelopts=\"$x\"\n", "line 1: the value of kernelopts contains '$'");
        check_refused(&kernelopts_of_config, "set kernelopts=a\n", "line 1: the value of kernelopts is not in");
    }
}
