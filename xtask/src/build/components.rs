//! Lists the software in the parts of boot images, for bills of materials.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use slipway_parts::{Arch, Component};

use crate::build::kernel::Kernel;
use crate::build::{binary, firmware_files, modules, rare_drivers};
use crate::host::command::{command, stdout};
use crate::host::{debian, packages, workspace};

/// Lists the components of the common initramfs, and the firmware of rare drivers.
pub fn of(kernel: &Kernel, arch: Arch) -> Result<Vec<Component>> {
    let mut components = crates("slipway", &binary::target(arch))?;
    components.push(of_kernel(kernel)?);
    // What mke2fs and mkfs.xfs are built from, and linked with.
    for package in ["e2fsprogs", "xfsprogs"] {
        components.push(of_debian(package, packages::candidate(package)?, Some("GPL-2.0-only")));
    }
    for (package, license) in [
        ("libc6-dev", "LGPL-2.1-or-later"),
        ("libblkid-dev", "LGPL-2.1-or-later"),
        ("uuid-dev", "BSD-3-Clause"),
        ("liburcu-dev", "LGPL-2.1-or-later"),
        ("libinih-dev", "BSD-3-Clause"),
    ] {
        components.push(installed(package, Some(license))?);
    }
    let mut modules = modules::select(kernel, modules::DRIVERS)?;
    modules.files.extend(rare_drivers::selection(kernel)?.1.files);
    for (package, root) in firmware_files::of(kernel, &modules)? {
        // The licences are the vendors' own texts, which are in the initramfs beside the firmware.
        components.push(unpacked(&root, &package, None)?);
    }
    Ok(components)
}

/// Describes the UEFI stub of unified kernel images.
pub fn stub(arch: Arch) -> Result<Component> {
    unpacked(&debian::unpacked_for(&debian::STUB, arch)?, debian::STUB.name, Some("LGPL-2.1-or-later"))
}

/// Lists the crates that a program is linked from. `package` is the program's package.
pub fn crates(package: &str, target: &str) -> Result<Vec<Component>> {
    let arguments = ["tree", "--locked", "--package", package, "--edges", "normal", "--target", target];
    let format = ["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"];
    let listed = stdout(command(workspace::cargo(), arguments).args(format).current_dir(workspace::root()))?;
    let mut components: Vec<Component> = listed.lines().filter_map(of_tree).collect();
    components.sort();
    components.dedup();
    Ok(components)
}

/// Parses a line such as `serde v1.0.0|MIT OR Apache-2.0`. Our own crates have their path after the version.
fn of_tree(line: &str) -> Option<Component> {
    let (package, license) = line.split_once('|')?;
    let (name, rest) = package.split_once(" v")?;
    let (version, path) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(Component {
        name: name.to_owned(),
        version: version.to_owned(),
        supplier: if path.starts_with("(/") { "slipway" } else { "crates.io" }.to_owned(),
        // Older crates separate alternative licences by a slash.
        license: (!license.is_empty()).then(|| license.replace('/', " OR ")),
    })
}

fn of_kernel(kernel: &Kernel) -> Result<Component> {
    let docs = kernel.root.join("usr/share/doc");
    let mut entries = fs::read_dir(&docs).with_context(|| format!("reading {}", docs.display()))?.flatten();
    let package = entries.next().with_context(|| format!("looking for the kernel: {} is empty", docs.display()))?;
    let license = Some("GPL-2.0-only WITH Linux-syscall-note");
    unpacked(&kernel.root, &package.file_name().to_string_lossy(), license)
}

/// Describes a package that is unpacked in a folder. Its version is at the start of its changelog (Debian policy,
/// section 4.4).
fn unpacked(root: &Path, package: &str, license: Option<&str>) -> Result<Component> {
    let docs = root.join("usr/share/doc").join(package);
    let mut names = ["changelog.Debian.gz", "changelog.gz"].iter().map(|name| docs.join(name));
    let path = names.find(|path| path.exists());
    let path =
        path.with_context(|| format!("looking for the version of {package}: no changelog in {}", docs.display()))?;
    let changelog = stdout(command("gzip", ["-dc"]).arg(&path))?;
    // The first line is `SOURCE (VERSION) SUITE; ...`.
    let version = changelog.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(version, _)| version);
    let version =
        version.with_context(|| format!("looking for the version of {package}: {} has none", path.display()))?;
    Ok(of_debian(package, version.to_owned(), license))
}

/// Describes a package installed on this host.
fn installed(package: &str, license: Option<&str>) -> Result<Component> {
    let version = stdout(&mut command("dpkg-query", ["--show", "--showformat", "${Version}", package]))?;
    Ok(of_debian(package, version, license))
}

fn of_debian(package: &str, version: String, license: Option<&str>) -> Component {
    Component { name: package.to_owned(), version, supplier: "Debian".to_owned(), license: license.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_tree_become_components() {
        let of = |line: &str| of_tree(line).map(|found| (found.name, found.version, found.supplier, found.license));
        let expect = |name: &str, version: &str, supplier: &str, license: Option<&str>| {
            Some((name.to_owned(), version.to_owned(), supplier.to_owned(), license.map(str::to_owned)))
        };
        let ours = of("slipway v0.1.0 (/a/b)|MIT OR Apache-2.0");
        assert_eq!(ours, expect("slipway", "0.1.0", "slipway", Some("MIT OR Apache-2.0")));
        assert_eq!(of("libc v0.2.1|MIT/Apache-2.0"), expect("libc", "0.2.1", "crates.io", Some("MIT OR Apache-2.0")));
        assert_eq!(of("serde_derive v1.0.2 (proc-macro)|"), expect("serde_derive", "1.0.2", "crates.io", None));
        assert_eq!(of(""), None);
    }
}
