//! What GRUB, U-Boot and EXTLINUX read keeps every line without arguments, and a second edit changes nothing.
#![no_main]

use slipway_actions::fuzzing::{BootFile, edit_boot_file};
use slipway_fuzz::change;

/// Kinds of files, and what lines begin with that may change.
const KINDS: &[(BootFile, &[&str])] = &[
    (BootFile::GrubConfig, &["linux", "linux16", "linuxefi"]),
    (BootFile::Kernelopts, &["set"]),
    (BootFile::GrubEnv, &["kernelopts=", "#"]),
    (BootFile::GrubDefaults, &["GRUB_CMDLINE_LINUX", "export"]),
    (BootFile::Extlinux, &["append"]),
    (BootFile::UBoot, &["U_BOOT_PARAMETERS", "export"]),
];

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((wanted, text)) = change(input) else { return };
    for (kind, starts) in KINDS {
        let Some(edited) = edit_boot_file(*kind, text, &wanted) else { continue };
        assert_eq!(edit_boot_file(*kind, &edited, &wanted).as_ref(), Some(&edited), "{kind:?} with {wanted:?}");
        let others = |text: &str| {
            let may_change = |line: &&str| {
                let line = line.trim_start().to_ascii_lowercase();
                starts.iter().any(|start| line.starts_with(&start.to_ascii_lowercase()))
            };
            text.lines().filter(|line| !may_change(line)).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        if !matches!(kind, BootFile::GrubEnv) {
            assert_eq!(others(text), others(&edited), "{kind:?} with {wanted:?}");
        } else {
            assert_eq!(edited.len(), text.len());
        }
    }
});
