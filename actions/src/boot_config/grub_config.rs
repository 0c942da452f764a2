//! grub-mkconfig's output.

use super::command_line::appended;
use super::{Edit, edit_lines};

/// A grub.cfg: every `linux` command that boots a system, which is one that names its root.
pub(crate) fn grub_config(text: &str, arguments: &[String]) -> Edit {
    let quoted: Vec<String> = arguments.iter().map(|argument| grub_word(argument)).collect();
    let mut found = false;
    let edit = edit_lines(text, |_, line| {
        let content = line.trim_start();
        let command = content.split_whitespace().next().unwrap_or_default();
        if !matches!(command, "linux" | "linux16" | "linuxefi") || !content.contains("root=") {
            return Ok(None);
        }
        if content.trim_end().ends_with('\\') {
            return Err("the command goes on on the next line; write it on one".to_owned());
        }
        found = true;
        let rest = content[command.len()..].trim();
        let edited = appended(rest, &quoted);
        let margin = &line[..line.len() - content.len() + command.len()];
        let gap = &content[command.len()..content.len() - content[command.len()..].trim_start().len()];
        Ok((edited != rest).then(|| format!("{margin}{gap}{edited}")))
    });
    if found || matches!(edit, Edit::Refused { .. }) { edit } else { Edit::NoCommandLine }
}

/// A word in GRUB's script language (GRUB manual, "Quoting"): in single quotes where it has a character that means something.
fn grub_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/+@%".contains(c);
    match word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{check, check_refused};

    #[test]
    fn every_menu_entry_of_grub_gets_the_arguments() {
        let config = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro  quiet\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1\n  linux16 /boot/memtest86+.bin\n}\n";
        let expect = "menuentry 'a' {\n\tlinux\t/boot/vmlinuz root=UUID=x ro quiet k=v\n\tinitrd /i\n}\n\
                      menuentry 'b' {\n  linuxefi /v root=/dev/sda1 k=v\n  linux16 /boot/memtest86+.bin\n}\n";
        check(grub_config, config, &["k=v"], expect);
        check(grub_config, "linux /v root=x\n", &["a;b", "c$d"], "linux /v root=x 'a;b' 'c$d'\n");
        assert_eq!(grub_config("set timeout=5\n", &["a".to_owned()]), Edit::NoCommandLine);
        check_refused(grub_config, "\nlinux /v root=x \\\n  quiet\n", 2);
    }
}
