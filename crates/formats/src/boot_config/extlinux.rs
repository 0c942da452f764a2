//! The menus of SYSLINUX and EXTLINUX, and U-Boot's extlinux.conf (SYSLINUX, doc/menu.txt and "Config").

use slipway_protocol::KernelArgs;

use super::command_line::{Language, changed, without_appended};
use super::shell::with_lines;
use super::{Edit, EntryScope, is_linux, is_recovery};

/// File name endings by which SYSLINUX recognises programs other than Linux.
const NO_LINUX: &[&str] = &[".0", ".bin", ".bs", ".bss", ".c32", ".cbt", ".com", ".img"];

/// A line of the menu.
#[derive(Clone, Copy)]
struct Line<'a> {
    index: usize,
    text: &'a str,
    /// The text after the keyword.
    value: &'a str,
}

/// An entry of the menu, or the part before the first entry, which has the arguments for entries without their own.
#[derive(Default)]
struct Section<'a> {
    linux: Option<Line<'a>>,
    append: Option<Line<'a>>,
}

/// Changes the arguments of every entry of a menu that starts Linux. Recovery entries get appended arguments only with
/// [`EntryScope::All`].
pub fn extlinux(text: &str, wanted: &KernelArgs, to: EntryScope) -> Edit {
    let sections = sections(text);
    let Some((common, entries)) = sections.split_first() else { return Edit::NoCommandLine };
    let mut to_edit: Vec<&Section> = entries.iter().filter(|entry| starts_linux(entry)).collect();
    if to_edit.is_empty() {
        return Edit::NoCommandLine;
    }
    if common.append.is_some() && to_edit.iter().any(|entry| entry.append.is_none()) {
        to_edit.retain(|entry| entry.append.is_some());
        to_edit.push(common);
    }
    let reduced = without_appended(wanted);
    let mut lines = Vec::new();
    for section in to_edit {
        let wanted = if is_recovery(arguments(section)) && to == EntryScope::Default { &reduced } else { wanted };
        match edited(section, wanted) {
            Ok(line) => lines.extend(line),
            Err(reason) => return Edit::Refused(reason),
        }
    }
    Edit::Edited(with_lines(text, lines))
}

/// Changes the arguments of a section. Returns the index and the new text of the line, if it has to change.
fn edited(section: &Section, wanted: &KernelArgs) -> Result<Option<(usize, String)>, String> {
    let Some(line) = section.append.or(section.linux) else { return Ok(None) };
    let old = arguments(section);
    let new = changed(&[old], wanted, Language::Kernel)?.concat();
    if new == old {
        return Ok(None);
    }
    let Line { index, text, .. } = line;
    let margin = &text[..text.len() - text.trim_start().len()];
    let changed = match section.append {
        Some(_) => {
            let key = text.split_whitespace().next().unwrap_or_default();
            format!("{margin}{key} {}", if new.is_empty() { "-" } else { &new })
        }
        None => format!("{text}\n{margin}append {new}"),
    };
    Ok(Some((index, changed)))
}

/// The arguments of a section. A single minus sign means none, not even the common ones.
fn arguments<'a>(section: &Section<'a>) -> &'a str {
    section.append.map(|line| line.value).filter(|value| *value != "-").unwrap_or_default()
}

fn sections(text: &str) -> Vec<Section<'_>> {
    let mut sections = vec![Section::default()];
    for (index, text) in text.lines().enumerate() {
        let content = text.trim();
        let key = content.split_whitespace().next().unwrap_or_default();
        let value = content[key.len()..].trim_start();
        let line = Some(Line { index, text, value });
        let Some(section) = sections.last_mut() else { continue };
        match key.to_ascii_lowercase().as_str() {
            "label" => sections.push(Section::default()),
            "linux" => section.linux = line,
            "kernel" if !NO_LINUX.iter().any(|end| value.to_ascii_lowercase().ends_with(end)) => section.linux = line,
            "append" => section.append = line,
            _ => {}
        }
    }
    sections
}

fn starts_linux(section: &Section) -> bool {
    section.linux.is_some_and(|line| is_linux(line.value, arguments(section)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_text, delete};

    fn normal(text: &str, wanted: &KernelArgs) -> Edit {
        extlinux(text, wanted, EntryScope::Default)
    }

    fn check(text: &str, wanted: &KernelArgs, expect: &str) {
        check_text(&normal, text, wanted, expect);
    }

    #[test]
    fn every_entry_that_starts_linux_gets_the_arguments() {
        let menu = "default l0\n\nlabel l0\n\tlinux /boot/vmlinuz-6.1\n\tappend root=x  ro\n\nlabel l0r\n\
                    \tlinux /boot/vmlinuz-6.1\n\
                    \tappend root=x ro single\nLABEL m\n  KERNEL memtest.bin\n  APPEND b\nlabel h\n kernel hdt.c32\n";
        let expect = "default l0\n\nlabel l0\n\tlinux /boot/vmlinuz-6.1\n\tappend root=x ro a\n\nlabel l0r\n\
                      \tlinux /boot/vmlinuz-6.1\n\tappend root=x ro single\nLABEL m\n  KERNEL memtest.bin\n  APPEND b\n\
                      label h\n kernel hdt.c32\n";
        check(menu, &append(&["a"]), expect);
        check(menu, &delete(&["ro"]), &menu.replace("x  ro", "x").replace("x ro", "x"));
        let expect = "label l\r\n KERNEL /v\r\n APPEND root=x a\r\n";
        check("label l\r\n KERNEL /v\r\n APPEND root=x\r\n", &append(&["a"]), expect);
    }

    #[test]
    fn an_entry_without_arguments_has_those_before_the_first_entry() {
        let menu = "APPEND root=x\nlabel a\n linux /vmlinuz\nlabel b\n linux /vmlinuz\n append -\n";
        let expect = "APPEND root=x a\nlabel a\n linux /vmlinuz\nlabel b\n linux /vmlinuz\n append a\n";
        check(menu, &append(&["a"]), expect);
        check("label a\n linux /vmlinuz\n", &append(&["a"]), "label a\n linux /vmlinuz\n append a\n");
        check("label a\n linux /vmlinuz\n append a\n", &delete(&["a"]), "label a\n linux /vmlinuz\n append -\n");
    }

    #[test]
    fn a_menu_without_linux_has_no_command_line() {
        for text in ["", "default x\n", "append root=x\n", "label m\n linux /memtest\n append root=x\n"] {
            assert_eq!(normal(text, &append(&["a"])), Edit::NoCommandLine, "{text:?}");
        }
    }
}
