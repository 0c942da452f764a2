//! The settings from which grub-mkconfig makes the next grub.cfg.

use slipway_protocol::KernelArgs;

use super::EntryScope;
use super::command_line::{Language, Word, change, joined, without_appended};
use super::shell::{Assignment, assignments, with_assignment, with_lines};

/// Arguments of every entry.
const EVERY: &str = "GRUB_CMDLINE_LINUX";
/// Arguments of entries that are not for recovery, after those of every entry.
const NORMAL: &str = "GRUB_CMDLINE_LINUX_DEFAULT";
/// Variables that replace the two above for Linux below Xen, unless empty (GRUB, util/grub.d/20_linux_xen.in).
const XEN_EVERY: &str = "GRUB_CMDLINE_LINUX_XEN_REPLACE";
const XEN_NORMAL: &str = "GRUB_CMDLINE_LINUX_XEN_REPLACE_DEFAULT";
/// Whether entries are Boot Loader Specification files, as in Fedora. They get only the arguments of every entry.
const BLS: &str = "GRUB_ENABLE_BLSCFG";

/// An assignment that contributes to the command line.
struct Part {
    file: usize,
    assignment: Assignment,
}

/// Changes /etc/default/grub and the files read after it. Arguments are appended to the variable that comes last in
/// entries that are not for recovery, or in all entries. Arguments are replaced and deleted in every variable. The
/// error is the index of a file and what in that file is not understood.
pub fn grub_defaults(files: &[&str], wanted: &KernelArgs, entries: EntryScope) -> Result<Vec<String>, (usize, String)> {
    let edited = of_variables(files, EVERY, NORMAL, wanted, entries)?;
    let texts: Vec<&str> = edited.iter().map(String::as_str).collect();
    let is_set = |variable| -> Result<bool, (usize, String)> {
        Ok(in_effect(&texts, variable)?.iter().any(|part| !part.assignment.value.trim().is_empty()))
    };
    let (every, normal) = (is_set(XEN_EVERY)?, is_set(XEN_NORMAL)?);
    if !(every || normal) {
        return Ok(edited);
    }
    let (every, normal) = (if every { XEN_EVERY } else { EVERY }, if normal { XEN_NORMAL } else { NORMAL });
    of_variables(&texts, every, normal, wanted, entries)
}

/// Changes the command line that the two variables make up.
fn of_variables(
    files: &[&str],
    every_entry: &'static str,
    normal_entry: &'static str,
    wanted: &KernelArgs,
    entries: EntryScope,
) -> Result<Vec<String>, (usize, String)> {
    let is_bls = in_effect(files, BLS)?.last().is_some_and(|part| part.assignment.value == "true");
    let (every, normal) = (in_effect(files, every_entry)?, in_effect(files, normal_entry)?);
    // Arguments are appended to `others`, the assignments of `variable`.
    let (mut parts, others, variable) = match is_bls || entries == EntryScope::All {
        true => (normal, every, every_entry),
        false => (every, normal, normal_entry),
    };
    let first = parts.len();
    parts.extend(others);
    let mut before = Vec::new();
    for part in &parts {
        let refused = |reason| (part.file, format!("line {}: {reason}", part.assignment.line + 1));
        before.push(Language::Grub.split(&part.assignment.value).map_err(refused)?);
    }
    let after = changed_parts(&before, first, wanted).map_err(|reason| (0, reason))?;

    let mut edited: Vec<String> = files.iter().map(|text| (*text).to_owned()).collect();
    for (file, text) in edited.iter_mut().enumerate() {
        let of_file = parts.iter().zip(before.iter().zip(&after)).filter(|(part, _)| part.file == file);
        let lines: Vec<(usize, String)> = of_file
            .filter(|(_, (before, after))| before != after)
            .map(|(part, (_, after))| (part.assignment.line, part.assignment.with(&joined(after))))
            .collect();
        *text = with_lines(text, lines);
    }
    if let (Some(new), Some(text)) = (after.get(parts.len()), edited.first_mut()) {
        *text = with_assignment(text, variable, &joined(new)).map_err(|reason| (0, reason))?;
    }
    Ok(edited)
}

/// Returns the parts after the changes, and one more if there was no part to append to. An argument in one of the first
/// `first` parts stays there even if it is appended at the end too: recovery entries have only these parts.
fn changed_parts(before: &[Vec<Word>], first: usize, wanted: &KernelArgs) -> Result<Vec<Vec<Word>>, String> {
    let mut all = before.to_vec();
    change(&mut all, wanted, Language::Grub)?;
    if all == before {
        return Ok(all);
    }
    let mut after = before.to_vec();
    change(&mut after, &without_appended(wanted), Language::Grub)?;
    let mut second = after.split_off(first);
    let is_missing = |argument: &&String| {
        let value = argument.replace('"', "");
        !after.iter().flatten().any(|word| word.value == value)
    };
    let append_if_missing = wanted.append_if_missing.iter().filter(is_missing).cloned().collect();
    let append = KernelArgs { append: wanted.append.clone(), append_if_missing, ..KernelArgs::default() };
    change(&mut second, &append, Language::Grub)?;
    after.extend(second);
    Ok(after)
}

/// The assignments that make up the final value of a variable.
fn in_effect(files: &[&str], variable: &str) -> Result<Vec<Part>, (usize, String)> {
    let mut parts = Vec::new();
    for (file, text) in files.iter().enumerate() {
        for assignment in assignments(text, variable).map_err(|reason| (file, reason))? {
            if !assignment.extends(variable) {
                parts.clear();
            }
            parts.push(Part { file, assignment });
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::Edit;
    use crate::boot_config::tests::{append, check_refused, delete, if_missing, replace};

    fn normal(files: &[&str], wanted: &KernelArgs) -> Result<Vec<String>, (usize, String)> {
        grub_defaults(files, wanted, EntryScope::Default)
    }

    fn check(files: &[&str], wanted: &KernelArgs, expect: &[&str]) {
        assert_eq!(normal(files, wanted).unwrap(), expect, "{files:?} with {wanted:?}");
        assert_eq!(normal(expect, wanted).unwrap(), expect, "a second edit of {files:?}");
    }

    /// Checks one file, with short names for the two variables.
    fn check_one(text: &str, wanted: &KernelArgs, expect: &str) {
        let full = |text: &str| {
            text.replace("NORMAL=", "GRUB_CMDLINE_LINUX_DEFAULT=").replace("EVERY=", "GRUB_CMDLINE_LINUX=")
        };
        check(&[&full(text)], wanted, &[&full(expect)]);
    }

    #[test]
    fn what_is_added_comes_last_and_not_in_recovery() {
        check_one("GRUB_TIMEOUT=5\nNORMAL=\"quiet\"\n", &append(&["a"]), "GRUB_TIMEOUT=5\nNORMAL=\"quiet a\"\n");
        check_one("NORMAL='quiet' # c\n", &append(&["a"]), "NORMAL=\"quiet a\" # c\n");
        check_one("NORMAL=quiet\n", &append(&["a"]), "NORMAL=\"quiet a\"\n");
        check_one("NORMAL=\n", &append(&["a"]), "NORMAL=\"a\"\n");
        check_one("GRUB_TIMEOUT=5", &append(&["a"]), "GRUB_TIMEOUT=5\nNORMAL=\"a\"\n");
        check_one("#NORMAL=\"q\"\n", &append(&["a"]), "#NORMAL=\"q\"\nNORMAL=\"a\"\n");
        check_one("EVERY=\"b\"\nNORMAL=\"q\"\n", &append(&["a"]), "EVERY=\"b\"\nNORMAL=\"q a\"\n");
        check_one("EVERY=\"a\"\nNORMAL=\"q\"\n", &append(&["a"]), "EVERY=\"a\"\nNORMAL=\"q a\"\n");
        check_one("EVERY=\"a\"\nNORMAL=\"\"\n", &append(&["a"]), "EVERY=\"a\"\nNORMAL=\"\"\n");
        check_one("EVERY=\"a\"\nNORMAL=\"q\"\n", &if_missing(&["a"]), "EVERY=\"a\"\nNORMAL=\"q\"\n");
        check_one("EVERY=\"a\"\n", &if_missing(&["b", "a"]), "EVERY=\"a\"\nNORMAL=\"b\"\n");
    }

    #[test]
    fn what_every_entry_needs_is_added_for_recovery_too() {
        let before = "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n";
        let after = format!("{before}GRUB_CMDLINE_LINUX=\"a\"\n");
        for text in [before, &after] {
            assert_eq!(grub_defaults(&[text], &append(&["a"]), EntryScope::All).unwrap(), [after.as_str()], "{text:?}");
        }
    }

    #[test]
    fn what_goes_goes_from_every_entry() {
        check_one("EVERY=\"c=1 b\"\nNORMAL=\"c=2\"\n", &delete(&["c"]), "EVERY=\"b\"\nNORMAL=\"\"\n");
        check_one("EVERY=\"c=1 b\"\nNORMAL=\"c=2\"\n", &replace(&[("c", "d")]), "EVERY=\"d b\"\nNORMAL=\"\"\n");
        check_one("EVERY=\"b\"\n", &delete(&["c"]), "EVERY=\"b\"\n");
        check_one("", &delete(&["c"]), "");
    }

    #[test]
    fn quotes_of_the_shell_and_of_grub_are_told_apart() {
        check_one("NORMAL=\"x=\\\"a b\\\" c\"\n", &append(&["d"]), "NORMAL=\"x=\\\"a b\\\" c d\"\n");
        check_one("NORMAL=\"x=\\\"a b\\\" c\"\n", &delete(&["x=\"a b\""]), "NORMAL=\"c\"\n");
        check_one("NORMAL='$x'\n", &append(&["a"]), "NORMAL=\"\\$x a\"\n");
        check_one("NORMAL=\"$x\"\n", &append(&["p=$y"]), "NORMAL=\"$x 'p=\\$y'\"\n");
        check_one("NORMAL=\"\"\n", &append(&["k=\"v w\""]), "NORMAL=\"'k=v w'\"\n");
    }

    #[test]
    fn the_last_assignment_counts_and_what_it_goes_on_from() {
        let files = ["GRUB_CMDLINE_LINUX_DEFAULT=\"quiet a\"\n", "GRUB_CMDLINE_LINUX_DEFAULT=\"b\"\n"];
        check(&files, &append(&["a"]), &[files[0], "GRUB_CMDLINE_LINUX_DEFAULT=\"b a\"\n"]);
        check(&files, &delete(&["quiet"]), &files);
        let files = [
            "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet a\"\n",
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT b\"\n",
        ];
        let moved = [
            "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n",
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT b a\"\n",
        ];
        check(&files, &append(&["a"]), &moved);
        check(&files, &if_missing(&["a"]), &files);
        for other in ["$GRUB_CMDLINE_LINUX_DEFAULT", "${GRUB_CMDLINE_LINUX_DEFAULT}"] {
            let files = ["GRUB_CMDLINE_LINUX=\"a\"\n", &format!("GRUB_CMDLINE_LINUX=\"{other} b\"\n")];
            check(&files, &delete(&["a"]), &files);
        }
    }

    #[test]
    fn in_the_style_of_fedora_every_entry_gets_them() {
        let bls = "GRUB_ENABLE_BLSCFG=true\n";
        let expect: &[&str] = &[&format!("GRUB_CMDLINE_LINUX=\"rhgb a\"\n{bls}")];
        check(&[&format!("GRUB_CMDLINE_LINUX=\"rhgb\"\n{bls}")], &append(&["a"]), expect);
        check(&[bls], &append(&["a"]), &[&format!("{bls}GRUB_CMDLINE_LINUX=\"a\"\n")]);
    }

    #[test]
    fn what_replaces_them_below_xen_is_changed_too() {
        let check = |text: &str, wanted: &KernelArgs, expect: &str| {
            let full = |text: &str| text.replace("XEN", "GRUB_CMDLINE_LINUX_XEN_REPLACE");
            check_one(&full(text), wanted, &full(expect));
        };
        check("NORMAL=\"q\"\nXEN_DEFAULT=\"c\"\n", &append(&["a"]), "NORMAL=\"q a\"\nXEN_DEFAULT=\"c a\"\n");
        check("NORMAL=\"q\"\nXEN=\"c\"\n", &append(&["a"]), "NORMAL=\"q a\"\nXEN=\"c\"\n");
        check("NORMAL=\"q\"\nXEN=\"c\"\n", &delete(&["c"]), "NORMAL=\"q\"\nXEN=\"\"\n");
        check("NORMAL=\"q\"\nXEN_DEFAULT=\"\"\n", &append(&["a"]), "NORMAL=\"q a\"\nXEN_DEFAULT=\"\"\n");
        let of_xen = "GRUB_CMDLINE_XEN=\"dom0_mem=1G\"\nGRUB_CMDLINE_XEN_DEFAULT=\"x\"\nNORMAL=\"q\"\n";
        check_one(of_xen, &append(&["a"]), &of_xen.replace("\"q\"", "\"q a\""));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let edit = |text: &str, wanted: &KernelArgs| match normal(&[text], wanted) {
            Ok(_) => Edit::NoCommandLine,
            Err((_, reason)) => Edit::Refused(reason),
        };
        let check = |text, expect| check_refused(&edit, text, expect);
        let expect = "line 3: the value of GRUB_CMDLINE_LINUX_DEFAULT has a quote";
        check("\n\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet\n", expect);
        check("GRUB_CMDLINE_LINUX_DEFAULT=\"a;b\"\n", "line 1: ';' is outside quotes");
        assert!(normal(&[""], &append(&["a\\b"])).is_err());
    }
}
