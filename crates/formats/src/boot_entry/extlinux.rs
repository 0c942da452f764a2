//! extlinux.conf, of SYSLINUX (wiki.syslinux.org, "Config") and of U-Boot's distro boot.

use super::{BootEntry, plain_path};

/// A labelled entry.
#[derive(Default)]
struct Labelled {
    label: String,
    entry: BootEntry,
    is_default: bool,
}

/// The entry that is started when nobody chooses. Relative paths begin at `folder`, the folder of the file.
pub fn default(text: &str, folder: &str) -> Option<BootEntry> {
    let mut entries: Vec<Labelled> = Vec::new();
    let mut default = None;
    for line in text.lines() {
        let line = line.trim();
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (key, value) = (key.to_ascii_lowercase(), value.trim());
        let last = entries.last_mut();
        match (key.as_str(), last) {
            ("default", _) => default = Some(value.to_owned()),
            ("label", _) => entries.push(Labelled { label: value.to_owned(), ..Labelled::default() }),
            ("kernel" | "linux", Some(last)) => last.entry.kernel = path(value, folder),
            ("initrd", Some(last)) => last.entry.initrds = value.split(',').map(|one| path(one, folder)).collect(),
            ("append", Some(last)) => append(&mut last.entry, value, folder),
            ("menu", Some(last)) => match value.split_once(char::is_whitespace) {
                Some((word, title)) if word.eq_ignore_ascii_case("label") => last.entry.title = title.trim().to_owned(),
                None if value.eq_ignore_ascii_case("default") => last.is_default = true,
                _ => {}
            },
            _ => {}
        }
    }
    // SYSLINUX's own programs, such as its menu, are not kernels.
    entries.retain(|labelled| !labelled.entry.kernel.is_empty() && !labelled.entry.kernel.ends_with(".c32"));
    let labelled = |labelled: &Labelled| Some(&labelled.label) == default.as_ref();
    let chosen = entries.iter().position(labelled).or(entries.iter().position(|labelled| labelled.is_default));
    let Labelled { label, entry, .. } = entries.into_iter().nth(chosen.unwrap_or_default())?;
    let title = if entry.title.is_empty() { label } else { entry.title };
    Some(BootEntry { title, ..entry })
}

/// Adds a command line, which may name initrds too.
fn append(entry: &mut BootEntry, value: &str, folder: &str) {
    let mut words = Vec::new();
    for word in value.split_whitespace() {
        match word.strip_prefix("initrd=") {
            Some(files) => entry.initrds = files.split(',').map(|one| path(one, folder)).collect(),
            None => words.push(word),
        }
    }
    entry.cmdline = words.join(" ");
}

fn path(value: &str, folder: &str) -> String {
    let value = value.trim();
    match value.starts_with('/') || folder.is_empty() {
        true => plain_path(value),
        false => format!("{folder}/{value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Option<(&str, &str, &[&str], &str)>) {
        let found = default(text, "boot/extlinux");
        let found = found.as_ref().map(|entry| {
            let initrds: Vec<&str> = entry.initrds.iter().map(String::as_str).collect();
            (entry.title.as_str(), entry.kernel.as_str(), initrds, entry.cmdline.as_str())
        });
        let expect = expect.map(|(title, kernel, initrds, cmdline)| (title, kernel, initrds.to_vec(), cmdline));
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn the_default_label_is_started() {
        let text = "DEFAULT l1\nTIMEOUT 50\nLABEL l0\n\tMENU LABEL Debian 6.1\n\tLINUX /boot/vmlinuz-6.1\n\
                    \tINITRD /boot/initrd.img-6.1\n\tAPPEND root=/dev/sda1 ro\n\
                    LABEL l1\n  kernel ../vmlinuz\n  append initrd=../a.img,/b.img  quiet ro\n";
        let initrds: &[&str] = &["boot/extlinux/../a.img", "b.img"];
        check(text, Some(("l1", "boot/extlinux/../vmlinuz", initrds, "quiet ro")));
        let first = text.replace("DEFAULT l1", "DEFAULT none");
        let debian = ("Debian 6.1", "boot/vmlinuz-6.1", &["boot/initrd.img-6.1"][..], "root=/dev/sda1 ro");
        check(&first, Some(debian));
        check(&format!("{first}MENU DEFAULT\n"), Some(("l1", "boot/extlinux/../vmlinuz", initrds, "quiet ro")));
    }

    #[test]
    fn a_file_without_a_kernel_has_no_default() {
        check("", None);
        check("kernel /v\ndefault vesamenu.c32\nlabel a\nkernel /menu.c32\nlabel b\n", None);
        check("default menu.c32\nlabel a\nlinux /v\n", Some(("a", "v", &[], "")));
    }
}
