//! Unified kernel images (UAPI, "Unified Kernel Image") and addons to their command lines (systemd-stub(7)). Both are
//! PE32+ programs (Microsoft, "PE Format") whose sections are files.

use slipway_protocol::{KernelArgs, workflow};

use super::Edit;
use super::command_line::{Language, changed};

/// Largest section that is read, in bytes.
pub const MAX_SECTION: u64 = 64 << 10;
/// The first version of systemd-stub that reads addons.
const FIRST_WITH_ADDONS: u32 = 254;
/// Text before the version in the section `.sdmagic`.
const STUB: &str = "systemd-stub ";

/// Offset of the optional header: after the MS-DOS header, the signature and the COFF header.
const OPTIONAL_HEADER: usize = 64 + 4 + 20;
const SECTION_ALIGNMENT: usize = 4096;
const FILE_ALIGNMENT: usize = 512;
/// Generation numbers for shim's revocation list. shim requires them in signed programs (shim, SBAT.md).
const SBAT: &[u8] = b"sbat,1,SBAT Version,sbat,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n\
                      slipway.addon,1,slipway,slipway.addon,1,https://github.com/rhboot/shim/blob/main/SBAT.md\n";

/// Why addons cannot change the command line of an image, given its command lines and its section `.sdmagic`. None if
/// they can.
pub fn why_not(command_lines: &[String], magic: &str, wanted: &KernelArgs) -> Option<String> {
    let version = magic.split_once(STUB).map(|(_, version)| version.split_whitespace().next().unwrap_or_default());
    let Some(version) = version else {
        return Some(
            "it was not built with systemd-stub, so it does not read addons; build the arguments into it".to_owned(),
        );
    };
    let digits = version.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    if digits.parse::<u32>().is_ok_and(|number| number < FIRST_WITH_ADDONS) {
        return Some(format!(
            "it was built with systemd-stub {version}, which does not read addons: build it with version \
             {FIRST_WITH_ADDONS} or later, or build the arguments into it"
        ));
    }
    let old = wanted.replace.iter().map(|replacement| &replacement.old);
    let meant: Vec<&String> = wanted.delete.iter().chain(old).collect();
    for word in command_lines.iter().filter_map(|line| Language::Kernel.split(line).ok()).flatten() {
        let is_new = wanted.replace.iter().any(|replacement| replacement.new.replace('"', "") == word.value);
        if !is_new && meant.iter().any(|meant| workflow::is_kernel_argument(&word.value, meant)) {
            return Some(format!(
                "{:?} is built into it and cannot be removed: build it again without this argument",
                word.raw
            ));
        }
    }
    None
}

/// Whether each built-in command line of an image already has the changes.
pub fn is_done(command_lines: &[String], wanted: &KernelArgs) -> bool {
    let is_same = |line: &str| changed(&[line], wanted, Language::Kernel).is_ok_and(|new| new.concat() == line);
    if command_lines.is_empty() { is_same("") } else { command_lines.iter().all(|line| is_same(line)) }
}

/// Changes the command line of an addon, given its old one and those of the images that it is for. An argument that all
/// images have built in is not missing.
pub fn addon_command_line(old: &str, images: &[Vec<String>], wanted: &KernelArgs) -> Edit {
    let has = |line: &String, argument: &str| {
        let value = argument.replace('"', "");
        Language::Kernel.split(line).is_ok_and(|words| words.iter().any(|word| word.value == value))
    };
    let all_have = |argument: &String| {
        !images.is_empty()
            && images.iter().all(|lines| !lines.is_empty() && lines.iter().all(|line| has(line, argument)))
    };
    let append_if_missing = wanted.append_if_missing.iter().filter(|argument| !all_have(argument)).cloned().collect();
    match changed(&[old], &KernelArgs { append_if_missing, ..wanted.clone() }, Language::Kernel) {
        Ok(new) => Edit::Edited(new.concat()),
        Err(reason) => Edit::Refused(reason),
    }
}

/// Makes an addon with this command line, for images of a machine type. systemd-stub lets the firmware load an addon
/// like any program, but never starts it.
pub fn addon(machine: u16, command_line: &str) -> Vec<u8> {
    let sections = [(b".sbat\0\0\0", SBAT), (b".cmdline", command_line.as_bytes())];
    let mut headers = headers(machine, sections.len() as u16);
    let mut data = Vec::new();
    let (mut file, mut memory) = (FILE_ALIGNMENT, SECTION_ALIGNMENT);
    for (name, content) in sections {
        let raw = content.len().next_multiple_of(FILE_ALIGNMENT);
        headers.extend_from_slice(name);
        for field in [content.len(), memory, raw, file, 0, 0, 0] {
            headers.extend((field as u32).to_le_bytes());
        }
        // Flags: initialised data, readable.
        headers.extend(0x4000_0040_u32.to_le_bytes());
        data.extend_from_slice(content);
        data.resize(data.len().next_multiple_of(FILE_ALIGNMENT), 0);
        file += raw;
        memory = (memory + content.len()).next_multiple_of(SECTION_ALIGNMENT);
    }
    let size_of_image = OPTIONAL_HEADER + 56;
    if let Some(field) = headers.get_mut(size_of_image..size_of_image + 4) {
        field.copy_from_slice(&(memory as u32).to_le_bytes());
    }
    headers.resize(FILE_ALIGNMENT, 0);
    headers.extend(data);
    headers
}

/// The headers before the section table, without the final size of the image.
fn headers(machine: u16, sections: u16) -> Vec<u8> {
    let mut bytes = b"MZ".to_vec();
    bytes.resize(0x3C, 0);
    let put = |bytes: &mut Vec<u8>, size: usize, value: u64| bytes.extend(value.to_le_bytes().iter().take(size));
    put(&mut bytes, 4, 64);
    bytes.extend_from_slice(b"PE\0\0");
    let executable_without_symbols = 0x22E;
    for (size, value) in [
        (2, machine.into()),
        (2, sections.into()),
        (4, 0),
        (4, 0),
        (4, 0),
        (2, 240),
        (2, executable_without_symbols),
        // The optional header: PE32+, linker, sizes of code and data, entry point, base of code, base of the image.
        (2, 0x20B),
        (2, 0),
        (8, 0),
        (8, 0),
        (4, 0),
        (8, 0),
        (4, SECTION_ALIGNMENT as u64),
        (4, FILE_ALIGNMENT as u64),
        // Versions, then the sizes of the image and of the headers, and the checksum, which firmware ignores.
        (8, 0),
        (8, 0),
        (4, 0),
        (4, FILE_ALIGNMENT as u64),
        (4, 0),
        // An EFI application; its data is not executable.
        (2, 10),
        (2, 0x100),
        // Sizes of stack and heap, loader flags, and the number of directories.
        (8, 0),
        (8, 0),
        (8, 0),
        (8, 0),
        (4, 0),
        (4, 16),
    ] {
        put(&mut bytes, size, value);
    }
    bytes.resize(bytes.len() + 16 * 8, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boot_config::tests::{append, delete, if_missing, replace};
    use crate::pe::{self, Sections};
    use std::process::Command;

    const AMD64: u16 = 0x8664;
    const MAGIC: &str = "#### LoaderInfo: systemd-stub 257.2-3 ####";

    fn read_section(image: &[u8], name: &str) -> String {
        let place = Sections::read(image).unwrap().first(name).unwrap();
        pe::line(&image[place.offset as usize..][..place.len as usize])
    }

    #[test]
    fn an_addon_holds_its_command_line() {
        for line in ["quiet", "console=ttyS0,115200 k=\"v w\" ü", &"x".repeat(10_000)] {
            let image = addon(AMD64, line);
            assert_eq!(read_section(&image, ".cmdline"), line);
            assert!(read_section(&image, ".sbat").starts_with("sbat,1,SBAT Version,"));
            assert_eq!(image.len() % FILE_ALIGNMENT, 0);
            let sections = Sections::read(&image).unwrap();
            assert_eq!((sections.machine, sections.has_kernel()), (AMD64, false));
        }
    }

    /// Fields and sections as binutils reads them.
    #[test]
    fn an_addon_is_a_program_of_the_firmware() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), addon(AMD64, &"x".repeat(5000))).unwrap();
        let Ok(output) = Command::new("objdump").args(["-p", "-h"]).arg(file.path()).output() else {
            eprintln!("not checked: there is no objdump");
            return;
        };
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("pei-x86-64"), "{text}");
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        assert!(field("Magic").starts_with("020b"), "{text}");
        assert!(field("Subsystem\t").ends_with("(EFI application)"), "{text}");
        assert_eq!(field("SizeOfImage"), "00004000", "{text}");
        assert_eq!(field("SizeOfHeaders"), "00000200", "{text}");
        let section = |name: &str| {
            text.lines().find(|line| line.contains(name)).unwrap().split_whitespace().nth(2).unwrap().to_owned()
        };
        assert_eq!(section(".cmdline"), "00001388", "{text}");
    }

    #[test]
    fn an_image_that_cannot_be_changed_by_addons_says_why() {
        let check = |magic: &str, wanted: &KernelArgs, expect: Option<&str>| {
            let reason = why_not(&["root=x quiet k=\"v w\"".to_owned()], magic, wanted);
            assert_eq!(reason.is_some(), expect.is_some(), "{reason:?}");
            assert!(reason.unwrap_or_default().contains(expect.unwrap_or_default()), "{magic:?} {wanted:?}");
        };
        check(MAGIC, &append(&["a"]), None);
        check(MAGIC, &delete(&["a"]), None);
        check("#### LoaderInfo: systemd-stub 254~rc1 ####", &append(&["a"]), None);
        let old = "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####";
        check(old, &append(&["a"]), Some("systemd-stub 252.39-1~deb12u2,"));
        check("", &append(&["a"]), Some("not built with systemd-stub"));
        check(MAGIC, &delete(&["quiet"]), Some("\"quiet\" is built into it"));
        check(MAGIC, &delete(&["k=\"v w\""]), Some("is built into it"));
        check(MAGIC, &replace(&[("root", "root=y")]), Some("\"root=x\" is built into it"));
        check(MAGIC, &replace(&[("root", "root=x")]), None);
    }

    #[test]
    fn an_image_may_have_built_in_all_that_is_wanted() {
        let check = |lines: &[&str], wanted: &KernelArgs, expect| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            assert_eq!(is_done(&lines, wanted), expect, "{lines:?} {wanted:?}");
        };
        check(&["ro a b"], &append(&["a", "b"]), true);
        check(&["ro b a"], &append(&["a", "b"]), false);
        check(&["ro b a"], &if_missing(&["a", "b"]), true);
        check(&["ro a", "ro"], &append(&["a"]), false);
        check(&["ro"], &delete(&["a"]), true);
        check(&["ro a"], &delete(&["a"]), false);
        check(&["root=y"], &replace(&[("root", "root=y")]), true);
        check(&[], &delete(&["a"]), true);
        check(&[], &append(&["a"]), false);
    }

    #[test]
    fn an_addon_has_what_images_do_not_have() {
        let check = |old: &str, images: &[&[&str]], wanted: &KernelArgs, expect: &str| {
            let images: Vec<Vec<String>> =
                images.iter().map(|lines| lines.iter().map(|line| (*line).to_owned()).collect()).collect();
            assert_eq!(addon_command_line(old, &images, wanted), Edit::Edited(expect.to_owned()));
            assert_eq!(addon_command_line(expect, &images, wanted), Edit::Edited(expect.to_owned()));
        };
        check("", &[&["ro a"]], &append(&["a"]), "a");
        check("", &[&["ro a"]], &if_missing(&["a", "b"]), "b");
        check("", &[&["ro a"], &["ro"]], &if_missing(&["a"]), "a");
        check("", &[&[]], &if_missing(&["a"]), "a");
        check("a b", &[&["ro"]], &delete(&["a"]), "b");
    }
}
