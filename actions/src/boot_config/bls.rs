//! Entries of the Boot Loader Specification.

use super::command_line::{appended, removed, unique};
use super::{Edit, edit_lines, with_line};

/// A Type #1 entry of the Boot Loader Specification: `options` lines are joined, so the last gets the arguments and the
/// others lose them.
pub(crate) fn bls_entry(text: &str, arguments: &[String]) -> Edit {
    let is_options = |line: &str| line.trim_start().split(char::is_whitespace).next() == Some("options");
    let boots_linux = text.lines().any(|line| matches!(line.split_whitespace().next(), Some("linux" | "uki")));
    let last = text.lines().enumerate().filter(|(_, line)| is_options(line)).map(|(index, _)| index).last();
    let Some(last) = last else {
        return match boots_linux {
            true => {
                Edit::Edited(with_line(text, &format!("options {}", unique(arguments).collect::<Vec<_>>().join(" "))))
            }
            false => Edit::NoCommandLine,
        };
    };
    edit_lines(text, |index, line| {
        if !is_options(line) {
            return Ok(None);
        }
        let key = line.len() - line.trim_start().len() + "options".len();
        let value = &line[key..];
        let gap = &value[..value.len() - value.trim_start().len()];
        let gap = if gap.is_empty() { " " } else { gap };
        let edited = match index == last {
            true => appended(value.trim(), arguments),
            false => removed(value.trim(), arguments),
        };
        Ok((edited != value.trim()).then(|| format!("{}{gap}{edited}", &line[..key])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::check;

    #[test]
    fn every_options_line_of_an_entry_counts() {
        let entry = "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro\ninitrd /initrd\n";
        check(
            bls_entry,
            entry,
            &["quiet"],
            "title Debian\nlinux /vmlinuz\noptions    root=UUID=a ro quiet\ninitrd /initrd\n",
        );
        check(bls_entry, "linux /v\noptions a b\noptions c\n", &["a"], "linux /v\noptions b\noptions c a\n");
        check(bls_entry, "linux /v\r\noptions c\r\n", &["a"], "linux /v\r\noptions c a\r\n");
        check(bls_entry, "title x\nlinux /v", &["a"], "title x\nlinux /v\noptions a\n");
        check(bls_entry, "linux /v\noptions\n", &["a"], "linux /v\noptions a\n");
        assert_eq!(bls_entry("title shell\nefi /shell.efi\n", &["a".to_owned()]), Edit::NoCommandLine);
    }
}
