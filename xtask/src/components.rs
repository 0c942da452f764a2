//! The software in a boot image, for its bill of materials.

use std::fs;

use anyhow::{Context, Result};
use slipway_parts::Component;

use crate::command::{command, stdout};
use crate::image::PartsConfig;
use crate::{binary, host, workspace};

/// Every component of the parts.
pub fn of(config: &PartsConfig) -> Result<Vec<Component>> {
    let mut components = crates("slipway", &binary::target(config.arch))?;
    components.push(kernel(config)?);
    components.push(debian("systemd-boot-efi", Some("LGPL-2.1-or-later"))?);
    // What mke2fs and mkfs.xfs are built from and linked with.
    components.push(debian("e2fsprogs", Some("GPL-2.0-only"))?);
    components
        .push(Component { version: host::candidate("xfsprogs")?, ..debian_named("xfsprogs", Some("GPL-2.0-only")) });
    for (package, license) in [
        ("libc6-dev", Some("LGPL-2.1-or-later")),
        ("libblkid-dev", Some("LGPL-2.1-or-later")),
        ("uuid-dev", Some("BSD-3-Clause")),
        ("liburcu-dev", Some("LGPL-2.1-or-later")),
        ("libinih-dev", Some("BSD-3-Clause")),
    ] {
        components.push(debian(package, license)?);
    }
    Ok(components)
}

/// The crates that a program is linked from, by its package and target.
pub fn crates(package: &str, target: &str) -> Result<Vec<Component>> {
    let arguments = ["tree", "--locked", "--package", package, "--edges", "normal", "--target", target];
    let format = ["--prefix", "none", "--no-dedupe", "--format", "{p}|{l}"];
    let listed = stdout(command(workspace::cargo(), arguments).args(format).current_dir(workspace::root()))?;
    let mut components: Vec<Component> = listed.lines().filter_map(of_tree).collect();
    components.sort();
    components.dedup();
    Ok(components)
}

/// A line such as `serde v1.0.0|MIT OR Apache-2.0`. Our own crates have their path behind the version.
fn of_tree(line: &str) -> Option<Component> {
    let (package, license) = line.split_once('|')?;
    let (name, rest) = package.split_once(" v")?;
    let (version, path) = rest.split_once(' ').unwrap_or((rest, ""));
    Some(Component {
        name: name.to_owned(),
        version: version.to_owned(),
        supplier: if path.starts_with("(/") { "slipway" } else { "crates.io" }.to_owned(),
        // Older crates separate alternatives by a slash.
        license: (!license.is_empty()).then(|| license.replace('/', " OR ")),
    })
}

fn kernel(config: &PartsConfig) -> Result<Component> {
    let docs = config.kernel.root.join("usr/share/doc");
    let package = fs::read_dir(&docs)
        .with_context(|| format!("reading {}", docs.display()))?
        .flatten()
        .find(|entry| entry.path().join("changelog.gz").exists())
        .with_context(|| format!("looking for the kernel's version: there is no changelog in {}", docs.display()))?;
    let changelog = stdout(command("gzip", ["-dc"]).arg(package.path().join("changelog.gz")))?;
    // SOURCE (VERSION) SUITE; ...
    let version = changelog.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(version, _)| version);
    Ok(Component {
        version: version.context("looking for the kernel's version: its changelog does not begin with one")?.to_owned(),
        ..debian_named(&package.file_name().to_string_lossy(), Some("GPL-2.0-only WITH Linux-syscall-note"))
    })
}

/// An installed package of this host.
fn debian(package: &str, license: Option<&str>) -> Result<Component> {
    let version = stdout(&mut command("dpkg-query", ["--show", "--showformat", "${Version}", package]))?;
    Ok(Component { version, ..debian_named(package, license) })
}

fn debian_named(package: &str, license: Option<&str>) -> Component {
    Component {
        name: package.to_owned(),
        version: String::new(),
        supplier: "Debian".to_owned(),
        license: license.map(str::to_owned),
    }
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
