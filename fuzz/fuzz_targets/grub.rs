//! Edits of the files that GRUB and EXTLINUX read keep every line without arguments, and a second edit changes
//! nothing.
#![no_main]

use slipway_formats::boot_config::{EntryScope, extlinux, grub_config, grub_defaults, grub_env, kernelopts_of_config};
use slipway_fuzz::{change, edited};
use slipway_protocol::KernelArgs;

/// Edits a file. Returns `None` if the file has no command line or the edit is refused.
type Edit = fn(&str, &KernelArgs) -> Option<String>;

/// Kinds of file: name, how it is edited, and how the lines begin that may change.
const KINDS: &[(&str, Edit, &[&str])] = &[
    (
        "grub.cfg",
        |text, wanted| edited(grub_config(text, wanted, EntryScope::Default)),
        &["linux", "linux16", "linuxefi"],
    ),
    ("kernelopts", |text, wanted| edited(kernelopts_of_config(text, wanted)), &["set"]),
    ("grubenv", |text, wanted| edited(grub_env(text, wanted)), &["kernelopts=", "#"]),
    (
        "/etc/default/grub",
        |text, wanted| grub_defaults(&[text], wanted, EntryScope::Default).ok()?.pop(),
        &["GRUB_CMDLINE_LINUX", "export"],
    ),
    ("extlinux.conf", |text, wanted| edited(extlinux(text, wanted, EntryScope::Default)), &["append"]),
];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((wanted, text)) = change(input) else { return };
    for (kind, edit, starts) in KINDS {
        let Some(edited) = edit(text, &wanted) else { continue };
        assert_eq!(edit(&edited, &wanted).as_ref(), Some(&edited), "{kind:?} with {wanted:?}");
        let others = |text: &str| {
            let may_change = |line: &&str| {
                let line = line.trim_start().to_ascii_lowercase();
                starts.iter().any(|start| line.starts_with(&start.to_ascii_lowercase()))
            };
            text.lines().filter(|line| !may_change(line)).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        if *kind != "grubenv" {
            assert_eq!(others(text), others(&edited), "{kind:?} with {wanted:?}");
        } else {
            assert_eq!(edited.len(), text.len());
        }
    }
});
