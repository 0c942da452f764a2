//! GRUB's environment block (grub-editenv(1); include/grub/lib/envblk.h): a signature, lines with a name and a value,
//! and number signs as padding. Its size must not change, because GRUB itself writes to it in place.

use slipway_protocol::KernelArgs;

use super::Edit;
use super::command_line::{Language, changed};

const SIGNATURE: &str = "# GRUB Environment Block\n";
const KERNELOPTS: &str = "kernelopts=";

/// Changes the arguments of entries that use `$kernelopts` in an environment block.
pub fn grub_env(text: &str, wanted: &KernelArgs) -> Edit {
    let Some(lines) = text.strip_prefix(SIGNATURE) else { return Edit::NoCommandLine };
    let is_name = |at: &usize| *at == 0 || lines[..*at].ends_with('\n');
    let Some(at) = lines.match_indices(KERNELOPTS).map(|(at, _)| at).find(is_name) else { return Edit::NoCommandLine };
    let from = at + KERNELOPTS.len();
    let Some(len) = value_len(&lines[from..]) else {
        return Edit::Refused("the value of kernelopts has no end; create the file again with grub-editenv".to_owned());
    };
    let old = unescaped(&lines[from..from + len]);
    let new = match changed(&[&old], wanted, Language::Kernel) {
        Ok(new) => new.concat(),
        Err(reason) => return Edit::Refused(reason),
    };
    if new == old {
        return Edit::Edited(text.to_owned());
    }
    let rest = lines[from + len..].trim_end_matches('#');
    let edited = format!("{SIGNATURE}{}{}{rest}", &lines[..from], new.replace('\\', "\\\\"));
    match text.len().checked_sub(edited.len()) {
        Some(free) => Edit::Edited(edited + &"#".repeat(free)),
        None => Edit::Refused(format!("its {} bytes have no room for the arguments", text.len())),
    }
}

/// Length of a value, which ends at the first unescaped line end.
fn value_len(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.find(|c| {
        let ends = c == '\n' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })
}

fn unescaped(text: &str) -> String {
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        value.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, check_refused, check_text, delete};

    /// A block with these lines.
    fn block(lines: &str) -> String {
        format!("{:#<1024}", format!("{SIGNATURE}{lines}"))
    }

    #[test]
    fn the_block_keeps_its_size_and_its_other_variables() {
        let check = |lines, wanted: &KernelArgs, expect| check_text(&grub_env, &block(lines), wanted, &block(expect));
        let expect = "saved_entry=a\nkernelopts=root=x ro a\nboot=1\n";
        check("saved_entry=a\nkernelopts=root=x ro \nboot=1\n", &append(&["a"]), expect);
        check("kernelopts=a\\\\b c\n", &append(&["d"]), "kernelopts=a\\\\b c d\n");
        check("kernelopts=a b\n", &delete(&["b"]), "kernelopts=a\n");
        check("xkernelopts=b\nkernelopts=a b\n", &delete(&["b"]), "xkernelopts=b\nkernelopts=a\n");
        check("kernelopts=a \n", &delete(&["b"]), "kernelopts=a \n");
        assert_eq!(grub_env(&block("saved_entry=a\n"), &append(&["a"])), Edit::NoCommandLine);
        assert_eq!(grub_env("kernelopts=a\n", &append(&["a"])), Edit::NoCommandLine);
    }

    #[test]
    fn what_does_not_fit_or_end_is_refused() {
        let full = format!("kernelopts={}\n", "x".repeat(1024 - SIGNATURE.len() - KERNELOPTS.len() - 2));
        assert_eq!(block(&full).len(), 1024);
        check_refused(&grub_env, &block(&full), "its 1024 bytes have no room");
        check_refused(&grub_env, &block("kernelopts=a"), "the value of kernelopts has no end");
    }
}
