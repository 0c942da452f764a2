//! Entries of the Boot Loader Specification, Type #1.

use slipway_protocol::KernelArgs;

use super::command_line::{Language, changed, without_appended};
use super::{Edit, edit_lines, is_linux_program, with_line};

/// References to the variable of GRUB's environment that has the arguments of entries in some versions of Fedora.
const KERNELOPTS: [&str; 2] = ["$kernelopts", "${kernelopts}"];

/// Changes the command line of an entry: all its `options` lines together. If GRUB's environment `has_kernelopts` and
/// the entry uses that variable, arguments are appended there and not here.
pub fn bls_entry(text: &str, wanted: &KernelArgs, has_kernelopts: bool) -> Edit {
    let values: Vec<&str> = text.lines().filter_map(|line| value(line, "options")).collect();
    if !boots_linux(text, &values) {
        return Edit::NoCommandLine;
    }
    let reduced = match has_kernelopts && takes_kernelopts(text) {
        true => &without_appended(wanted),
        false => wanted,
    };
    let mut edited = match changed(&values, reduced, Language::Kernel) {
        Ok(edited) => edited.into_iter(),
        Err(reason) => return Edit::Refused(reason),
    };
    if values.is_empty() {
        return Edit::Edited(match edited.next() {
            Some(options) => with_line(text, &format!("options {options}")),
            None => text.to_owned(),
        });
    }
    edit_lines(text, |_, line| {
        let Some(old) = value(line, "options") else { return Ok(None) };
        let new = edited.next().unwrap_or_default();
        let margin = &line[..line.len() - line.trim_start().len() + "options".len()];
        let gap = &line[margin.len()..line.trim_end().len().max(margin.len()) - old.len()];
        let gap = if gap.is_empty() { " " } else { gap };
        Ok((new != old).then(|| format!("{margin}{gap}{new}").trim_end().to_owned()))
    })
}

/// Whether an entry takes its arguments from GRUB's environment.
pub fn takes_kernelopts(text: &str) -> bool {
    let mut words = text.lines().filter_map(|line| value(line, "options")).flat_map(str::split_whitespace);
    words.any(|word| KERNELOPTS.contains(&word))
}

/// The command line of an entry.
pub fn bls_options(text: &str) -> String {
    let values: Vec<&str> = text.lines().filter_map(|line| value(line, "options")).collect();
    values.join(" ")
}

/// Whether an entry starts Linux with options that can be changed. Not so for a unified kernel image without options:
/// it has its own command line, which options would replace.
fn boots_linux(text: &str, options: &[&str]) -> bool {
    let has = |key: &str| text.lines().any(|line| value(line, key).is_some());
    let has_initrd = || text.lines().any(|line| value(line, "initrd").is_some_and(|paths| !paths.is_empty()));
    has("linux")
        || has("uki") && !options.is_empty()
        || has("efi") && is_linux_program(has_initrd(), &options.join(" "))
}

/// The value of a line with this key.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let rest = line.trim().strip_prefix(key)?;
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_text, delete};

    fn check(text: &str, wanted: &KernelArgs, expect: &str) {
        check_text(&|text, wanted| bls_entry(text, wanted, false), text, wanted, expect);
    }

    #[test]
    fn every_options_line_of_an_entry_counts() {
        let entry = "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro\ninitrd /initrd\n";
        let expect = "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro quiet\ninitrd /initrd\n";
        check(entry, &append(&["quiet"]), expect);
        check("linux /v\noptions a b\noptions c\n", &append(&["a"]), "linux /v\noptions b\noptions c a\n");
        check("linux /v\noptions a b\noptions a\n", &delete(&["a"]), "linux /v\noptions b\noptions\n");
        check("linux /v\r\noptions c\r\n", &append(&["a"]), "linux /v\r\noptions c a\r\n");
        check("title x\nlinux /v", &append(&["a"]), "title x\nlinux /v\noptions a\n");
        check("title x\nlinux /v", &delete(&["a"]), "title x\nlinux /v");
        check("linux /v\noptions\n", &append(&["a"]), "linux /v\noptions a\n");
        check("linux /v\noptions a \n", &append(&["a"]), "linux /v\noptions a \n");
        check("linux /v\n optionsx a\n\toptions b \n", &append(&["a"]), "linux /v\n optionsx a\n\toptions b a\n");
        let tuned = "linux /v\noptions root=x ro $tuned_params\n";
        check(tuned, &append(&["a"]), "linux /v\noptions root=x ro $tuned_params a\n");
    }

    #[test]
    fn only_entries_that_start_linux_are_edited() {
        check("uki /a.efi\noptions b\n", &append(&["a"]), "uki /a.efi\noptions b a\n");
        check("efi /vmlinuz\noptions root=x\n", &append(&["a"]), "efi /vmlinuz\noptions root=x a\n");
        let by_initrd = "efi /vmlinuz-6.1\ninitrd /initramfs-6.1.img\noptions quiet rw\n";
        check(by_initrd, &append(&["a"]), &by_initrd.replace("rw", "rw a"));
        check("efi /v\ninitrd /i\n", &append(&["a"]), "efi /v\ninitrd /i\noptions a\n");
        check("efi /v\noptions initrd=\\i\n", &append(&["a"]), "efi /v\noptions initrd=\\i a\n");
        let test = "efi /memtest.efi\ninitrd\noptions b\n";
        for other in ["title shell\nefi /shell.efi\n", test, "uki /a.efi\n", ""] {
            assert_eq!(bls_entry(other, &append(&["a"]), false), Edit::NoCommandLine, "{other:?}");
        }
    }

    #[test]
    fn what_grub_has_in_its_environment_is_added_there() {
        let entry = "linux /v\noptions $kernelopts quiet\n";
        let with = |wanted: &KernelArgs| bls_entry(entry, wanted, true);
        assert_eq!(with(&append(&["a"])), Edit::Edited(entry.to_owned()));
        assert_eq!(with(&delete(&["quiet"])), Edit::Edited("linux /v\noptions $kernelopts\n".to_owned()));
        check(entry, &append(&["a"]), "linux /v\noptions $kernelopts quiet a\n");
    }
}
