//! Edits of a Boot Loader Specification entry and of /etc/kernel/cmdline keep every other line. A separate parser
//! checks that the kernel gets the requested arguments.
#![no_main]

use slipway_formats::boot_config::{bls_entry, kernel_cmdline};
use slipway_formats::pe::Sections;
use slipway_fuzz::{change, edited};
use slipway_protocol::KernelArgs;

/// Splits arguments up to `--`, without quotes, as the kernel's lib/cmdline.c does.
fn arguments(line: &str) -> Vec<String> {
    let mut quoted = false;
    let is_end = |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    };
    let words = line.split(is_end).map(|word| word.replace('"', "")).filter(|word| !word.is_empty());
    words.take_while(|word| word != "--").collect()
}

fn is_options(line: &str) -> bool {
    line.split_whitespace().next() == Some("options")
}

fn check_arguments(before: &[String], after: &[String], wanted: &KernelArgs) {
    let plain = |argument: &String| argument.replace('"', "");
    if let Some(last) = wanted.append.last() {
        assert_eq!(after.last(), Some(&plain(last)));
    }
    for argument in wanted.append.iter().chain(&wanted.append_if_missing).map(plain) {
        assert!(after.contains(&argument), "{argument:?} in {after:?}");
    }
    let kept = |argument: &&String| {
        let key = argument.split('=').next().unwrap_or_default();
        let is_meant = |meant: &String| plain(meant) == **argument || plain(meant) == key;
        let mut meant = wanted.delete.iter().chain(wanted.replace.iter().map(|replacement| &replacement.old));
        !meant.any(is_meant) && !wanted.added().any(|added| plain(added) == **argument)
    };
    assert!(before.iter().filter(kept).eq(after.iter().filter(kept)), "{before:?} became {after:?}");
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    _ = Sections::read(input).is_some_and(|sections| sections.has_kernel());
    let Some((wanted, text)) = change(input) else { return };
    if let Some(entry) = edited(bls_entry(text, &wanted, false)) {
        assert_eq!(edited(bls_entry(&entry, &wanted, false)).as_ref(), Some(&entry));
        let others = |text: &str| {
            text.lines().filter(|line| !is_options(line)).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(others(text), others(&entry));
        let options = |text: &str| -> String {
            text.lines().filter(|line| is_options(line)).flat_map(|line| [&line.trim()[7..], " "]).collect()
        };
        check_arguments(&arguments(&options(text)), &arguments(&options(&entry)), &wanted);
    }
    if let Some(line) = edited(kernel_cmdline(text, &wanted)) {
        assert_eq!(edited(kernel_cmdline(&line, &wanted)).as_ref(), Some(&line));
        if text.lines().count() == 1 && !text.trim_start().starts_with('#') {
            check_arguments(&arguments(text), &arguments(&line), &wanted);
        }
    }
});
