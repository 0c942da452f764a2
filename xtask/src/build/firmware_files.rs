//! Selects the firmware files of the initramfs. The modules name the files they load; `initramfs/firmware.txt` names
//! the package of each, from Debian's component non-free-firmware.
//!
//! The build fails if the list does not mention a file, or if the package does not contain it. Otherwise the missing
//! firmware would only be noticed when a network card does not work.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::build::kernel::Kernel;
use crate::build::modules::Selection;
use crate::host::command::{command, stdout};
use crate::host::debian::{self, Package};
use crate::host::{files, workspace};
use slipway_parts::cpio::{Archive, Entry, Node};

/// Prefix of the reason why the list leaves a file out.
const NOT_NEEDED: &str = "not needed because ";
/// Where the kernel looks for firmware (drivers/base/firmware_loader/main.c, `fw_path`).
const FOLDER: &str = "lib/firmware";
/// Folder of the licences in the initramfs.
const LICENCES: &str = "usr/share/doc/firmware";

/// A firmware file that a module names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Path of the module below `/lib/modules/VERSION/`.
    pub module: String,
    /// Path of the firmware below `/lib/firmware/`.
    pub file: String,
}

/// Lists the firmware that the modules name, in the order of the modules.
pub fn named(kernel: &Kernel, selection: &Selection) -> Result<Vec<Named>> {
    let mut all = Vec::new();
    for module in &selection.files {
        let files = stdout(command("modinfo", ["--field", "firmware"]).arg(kernel.modules().join(module)))?;
        all.extend(files.lines().map(|file| Named { module: module.clone(), file: file.to_owned() }));
    }
    Ok(all)
}

/// Finds the package of each needed firmware file, by the file's path. `list` has the format of
/// `initramfs/firmware.txt`.
pub fn packages<'a>(list: &'a str, named: &'a [Named]) -> Result<BTreeMap<&'a str, &'a str>> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let lines: Vec<(&str, &str)> = lines
        .map(|line| line.split_once(char::is_whitespace).map(|(pattern, source)| (pattern, source.trim())))
        .collect::<Option<_>>()
        .context("reading firmware.txt: a line has a pattern, but neither a package nor a reason")?;
    let mut needed = BTreeMap::new();
    for Named { module, file } in named {
        let Some((_, source)) = lines.iter().find(|(pattern, _)| fits(pattern, file)) else {
            bail!(
                "looking for the firmware {file} of {module}: no line of initramfs/firmware.txt matches; name the \
                 package that has the file, or say why it is {NOT_NEEDED}..."
            );
        };
        if !source.starts_with(NOT_NEEDED) {
            needed.insert(file.as_str(), *source);
        }
    }
    Ok(needed)
}

/// Returns the packages of the firmware that the modules need, each with the folder where it is unpacked.
pub fn of(kernel: &Kernel, selection: &Selection) -> Result<BTreeMap<String, PathBuf>> {
    let (list, named) = (list()?, named(kernel, selection)?);
    Ok(roots(&packages(&list, &named)?)?.into_iter().map(|(package, root)| (package.to_owned(), root)).collect())
}

fn list() -> Result<String> {
    files::read_text(&workspace::root().join("initramfs/firmware.txt"))
}

fn roots<'a>(needed: &BTreeMap<&str, &'a str>) -> Result<BTreeMap<&'a str, PathBuf>> {
    let suite = debian::sources()?.suite;
    let mut roots = BTreeMap::new();
    for package in needed.values() {
        if !roots.contains_key(package) {
            let root = debian::unpacked(&Package { name: package, suite: &suite, component: "non-free-firmware" })?;
            roots.insert(*package, root);
        }
    }
    Ok(roots)
}

/// Adds the firmware that the modules need, and the licences of its packages.
pub fn add(archive: &mut Archive, kernel: &Kernel, selection: &Selection) -> Result<()> {
    let (list, named) = (list()?, named(kernel, selection)?);
    add_licences(archive, &roots(&packages(&list, &named)?)?)?;
    for (Named { file, .. }, content) in contents(kernel, selection)? {
        archive.add_file(&format!("{FOLDER}/{file}"), 0o644, content);
    }
    Ok(())
}

/// Reads the firmware that the modules need. Returns each file with its content.
pub fn contents(kernel: &Kernel, selection: &Selection) -> Result<Vec<(Named, Vec<u8>)>> {
    let (list, named) = (list()?, named(kernel, selection)?);
    let needed = packages(&list, &named)?;
    let roots = roots(&needed)?;
    let content = |Named { module, file }: &Named, package: &str| {
        // Follows symbolic links to other versions of the file. The file keeps the name that the module asks for.
        let from = roots[package].join(FOLDER).join(file);
        fs::read(&from).with_context(|| format!("reading the firmware {file} of {module} from {package}"))
    };
    let with_content = |named: &Named| {
        let package = needed.get(named.file.as_str())?;
        Some(content(named, package).map(|content| (named.clone(), content)))
    };
    named.iter().filter_map(with_content).collect()
}

/// Adds the licences of packages. Packages from one source have the same text: the first package gets it, and the
/// others get links to it.
fn add_licences(archive: &mut Archive, roots: &BTreeMap<&str, PathBuf>) -> Result<()> {
    let mut known = BTreeMap::new();
    for (package, root) in roots {
        let path = root.join("usr/share/doc").join(package).join("copyright");
        let text = files::read(&path)?;
        let to = format!("{LICENCES}/{package}");
        match known.get(&text) {
            Some(same) => archive.add(&to, Entry { node: Node::Symlink(format!("/{same}")), mode: 0o777 }),
            None => {
                archive.add_file(&to, 0o644, text.clone());
                known.insert(text, to);
            }
        }
    }
    Ok(())
}

/// Whether a pattern matches a whole text. `*` matches any text.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in between.split('*') {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str =
        "# Broadcom\nbnx2x/*-1.fw   not needed because 2 is\nbnx2x/*  firmware-bnx2x\n\nqed/q.bin firmware-q\n";

    fn check(files: &[&str], expect: Result<&[(&str, &str)], &str>) {
        let named: Vec<Named> =
            files.iter().map(|file| Named { module: "net/a.ko".to_owned(), file: (*file).to_owned() }).collect();
        let found = packages(LIST, &named).map(|needed| needed.into_iter().collect::<Vec<_>>());
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(error), Err(part)) => assert!(error.to_string().starts_with(part), "{error}"),
            (found, expect) => panic!("{files:?}: {found:?}, but expected {expect:?}"),
        }
    }

    #[test]
    fn the_first_line_that_fits_decides() {
        check(&["bnx2x/e2-2.fw", "bnx2x/e2-1.fw"], Ok(&[("bnx2x/e2-2.fw", "firmware-bnx2x")]));
        check(&["qed/q.bin"], Ok(&[("qed/q.bin", "firmware-q")]));
        check(&[], Ok(&[]));
    }

    #[test]
    fn firmware_that_the_list_forgets_is_named_with_its_module() {
        check(&["qed/q.bin", "qed/r.bin"], Err("looking for the firmware qed/r.bin of net/a.ko: no line of "));
    }

    #[test]
    fn a_line_with_a_pattern_alone_is_refused() {
        let error = packages("qed/*\n", &[]).expect_err("it was taken");
        assert!(error.to_string().contains("neither a package nor a reason"), "{error}");
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text) in
            [("a", "a"), ("a*", "a"), ("a*c", "abc"), ("*b*", "abc"), ("a*b*c", "axxbyyc"), ("*", "")]
        {
            assert!(fits(pattern, text), "{pattern} should fit {text}");
        }
        for (pattern, text) in [("a", "ab"), ("a*", "b"), ("a*c", "ab"), ("a*a", "a"), ("a*b*c", "acb"), ("", "a")] {
            assert!(!fits(pattern, text), "{pattern} should not fit {text}");
        }
    }
}
