//! The layers of the code: which crates and modules may use which others. ARCHITECTURE.md shows them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::host::workspace::{self, Package};

use self::imports::Import;

mod circles;
mod imports;

/// The folder of each crate of the workspace, and the names of the crates that it may use. Its tests may use any.
const CRATES: &[(&str, &[&str])] = &[
    ("crates/protocol", &[]),
    ("crates/formats", &["protocol"]),
    ("crates/user-data", &["protocol"]),
    ("crates/parts", &[]),
    ("crates/media", &["protocol", "formats", "parts", "secure-boot"]),
    ("crates/secure-boot", &["formats"]),
    ("crates/tpm", &["protocol"]),
    ("crates/pxe", &[]),
    ("crates/qemu", &["parts"]),
    ("actions", &["protocol", "formats", "user-data", "tpm"]),
    ("installer", &["protocol", "formats", "user-data", "parts", "actions", "tpm"]),
    ("init", &["protocol", "formats", "user-data", "actions", "installer"]),
    ("server", &["protocol", "formats", "user-data", "parts", "secure-boot", "media", "tpm", "pxe", "qemu"]),
    ("tests", &["protocol", "actions", "installer", "server"]),
    ("xtask", &["protocol", "parts", "qemu"]),
    ("qemu-tests", &["protocol", "formats", "parts", "secure-boot", "media", "xtask"]),
];

/// The modules at the root of each crate, as ARCHITECTURE.md shows them. `<` separates the layers, from the lowest to
/// the highest. A module may use those of lower layers.
pub(super) const MODULES: &[(&str, &str)] = &[
    ("crates/protocol", "shared < workflow < node < operator"),
    (
        "crates/formats",
        "escapes < crc32, fat, efi, pe, gzip, bmap, qcow2, boot_entry, fstab, http, oci, roles, signature, sums < \
         partition_table, boot_config < architecture < image < zstd",
    ),
    (
        "installer",
        "files, discover, drivers < config, screen < metadata < server < boot_report, enrol, rare_drivers < agent, \
         report < run",
    ),
    (
        "crates/user-data",
        "lines, gzip, block, quotes < refusal < input, events, kind, mime < pyyaml, jinja, numbers < yaml < document, \
         tree < tail, flow, content, network < edit < archive < multipart < parts, trust, ignition, image < check, \
         inject < seed",
    ),
    ("crates/parts", "arch, cpio < parts < sbom"),
    (
        "crates/secure-boot",
        "certificate < key_error, lists < private_key < keys < pe, pkcs7 < authenticode, detached, variable < \
         measured, microsoft",
    ),
    (
        "crates/media",
        "gpt, kind, network, uki < config, iso < machine_settings < measurements < judge, manifest < build",
    ),
    ("crates/tpm", "wire < device, judge"),
    (
        "crates/qemu",
        "console, escape, nvram, qmp, tpm < firmware < config < arguments, drive < accel < lasting, machine",
    ),
    ("crates/pxe", "counters, error < dhcp, interface < probe, proxy, tftp"),
    ("actions", "error, report, sys, text < machine, random < disk < fetch < stream < target < action < host, fuzzing"),
    ("init", "confine, drivers < pid1, screen < network < all_disks < installer < cli"),
    (
        "server",
        "base < rules, keys < store < site < image < run, power < node < boot_files < operate < api < page < listen < \
         cli",
    ),
    ("tests", "answers, lab < system"),
    ("xtask", "host < build < lab < bench, check < cmd"),
    ("qemu-tests", "bench, installed < nginx, programs, secure_boot, tpm < site"),
];

/// Fails if a crate or module uses one that it must not use, or if modules use each other in a circle. Returns the
/// number of files read.
pub fn check() -> Result<usize> {
    let (packages, root) = (workspace::packages()?, workspace::root());
    let mut violations = crates_above(&root, &packages, CRATES);
    let mut files = 0;
    for package in &packages {
        let folder = folder_of(&root, package);
        let Some((_, layers)) = MODULES.iter().find(|(listed, _)| *listed == folder) else {
            violations.push(format!("{folder}/Cargo.toml: the modules of {folder} are in no list"));
            continue;
        };
        let (imports, read) = imports::of_crate(&root, &package.folder().join("src"))?;
        violations.extend(imports_above(layers, &imports));
        violations.extend(circles::circles(&imports));
        files += read;
    }
    ensure!(violations.is_empty(), "{}", violations.join("\n"));
    Ok(files)
}

/// Returns the folder of a package, relative to the root.
fn folder_of(root: &Path, package: &Package) -> String {
    let folder = package.folder();
    folder.strip_prefix(root).unwrap_or(folder).display().to_string()
}

/// Names forbidden dependencies, and crates that `crates` does not list.
fn crates_above(root: &Path, packages: &[Package], crates: &[(&str, &[&str])]) -> Vec<String> {
    let mut violations = Vec::new();
    for package in packages {
        let folder = folder_of(root, package);
        let Some((_, allowed)) = crates.iter().find(|(listed, _)| *listed == folder) else {
            violations.push(format!("{folder}/Cargo.toml: {folder} is in no list"));
            continue;
        };
        for used in package.built_from() {
            let Some(used) = packages.iter().find(|package| package.name == used) else { continue };
            let name = used.folder().file_name().unwrap_or_default().to_string_lossy();
            if !allowed.contains(&name.as_ref()) {
                violations.push(format!("{folder}/Cargo.toml: {folder} must not use {name}"));
            }
        }
    }
    violations
}

/// Names the imports that lead upwards. The root joins all layers.
fn imports_above(layers: &str, imports: &[Import]) -> BTreeSet<String> {
    let layer_of = |module: &String| layers.split(" < ").position(|layer| layer.split(", ").any(|name| name == module));
    let mut violations = BTreeSet::new();
    for import in imports {
        let (Some(top), Some(used)) = (import.from.first(), &import.from_root) else { continue };
        let problem = match (layer_of(top), layer_of(used)) {
            _ if used == top => continue,
            (Some(own), Some(other)) if other < own => continue,
            (None, _) => format!("{top} is in no layer"),
            (_, None) if import.to.first() == Some(used) => format!("{used} is in no layer"),
            (_, None) => format!("{used} is not a module; import it from the module that defines it"),
            (own, other) if own == other => format!("{top} uses {used}, which is in the same layer"),
            _ => format!("{top} uses {used}, which is above it"),
        };
        violations.insert(format!("{}:{}: {problem}", import.file, import.line));
    }
    violations
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nothing_is_imported_upwards_or_in_a_circle() -> Result<()> {
        assert!(check()? > 100, "fewer files than there are");
        Ok(())
    }

    /// Reads the imports of a crate that consists of these files: paths with their text.
    fn imports(files: &[(&str, &str)]) -> Result<Vec<Import>> {
        let folder = tempfile::tempdir()?;
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap_or(Path::new("")))?;
            fs::write(path, text)?;
        }
        Ok(imports::of_crate(folder.path(), folder.path())?.0)
    }

    #[test]
    fn an_import_is_found_however_it_is_written() -> Result<()> {
        let check = |text: &str, expect: &[&str]| -> Result<()> {
            let root = "pub mod high;\nmod low;\npub use high::{deep::Item, Other as Renamed};\n";
            let low = "mod inner;\nuse super::high;\nuse crate::Item as Known;\n";
            let rest = [("high.rs", ""), ("high/deep.rs", ""), ("lib.rs", root), ("low.rs", low)];
            let found = imports(&[&rest[..], &[("low/inner.rs", text)]].concat())?;
            let of_inner = found.iter().filter(|import| import.file == "low/inner.rs");
            let found: Vec<String> =
                of_inner.map(|import| format!("{}: {}", import.line, import.to.join("::"))).collect();
            assert_eq!(found, expect, "{text}");
            Ok(())
        };
        check("use crate::high::X;\nuse std::fs;\n", &["1: high"])?;
        check(
            "use crate::{\n    high::{self, deep::Y as Z},\n    low,\n};\n",
            &["2: high", "2: high::deep", "3: low"],
        )?;
        check(
            "fn f() -> crate::high::deep::X { super::super::high::g(self::x) }",
            &["1: high::deep", "1: high", "1: low::inner"],
        )?;
        check("use super::high::deep::{A, B};\n", &["1: high::deep", "1: high::deep"])?;
        check("fn f(_: super::Known, _: crate::Renamed) {}\n", &["1: high", "1: high::deep"])?;
        check("// crate::high\n/* crate::high */ const A: &str = \"\\\"crate::high\";\n", &[])?;
        check("fn f<'a>(_: &'a str) { g(r#\"crate::high \"quoted\"\"#, '\"', '\\'', crate::low) }\n", &["1: low"])?;
        check("mod tests;\n\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n", &[])?;
        Ok(())
    }

    #[test]
    fn an_import_that_leads_upwards_is_named() -> Result<()> {
        let check = |file: &str, text: &str, expect: &[&str]| -> Result<()> {
            let all = ["low", "middle", "other", "high", "new"].map(|name| format!("{name}.rs"));
            let mut files: Vec<(&str, &str)> = all.iter().map(|name| (name.as_str(), "")).collect();
            files.push((file, text));
            let found = imports_above("low < middle, other < high", &imports(&files)?);
            assert_eq!(Vec::from_iter(found), expect, "{text}");
            Ok(())
        };
        check("high.rs", "use crate::low::X;\nuse crate::{low, middle::{self, Y}};\n", &[])?;
        check("lib.rs", "use crate::high;\n", &[])?;
        check("low.rs", "use std::fs;\n\nuse crate::high::X;\n", &["low.rs:3: low uses high, which is above it"])?;
        check(
            "low/inner.rs",
            "use super::X;\nuse super::super::high;\n",
            &["low/inner.rs:2: low uses high, which is above it"],
        )?;
        check("middle.rs", "use crate::other::Z;\n", &["middle.rs:1: middle uses other, which is in the same layer"])?;
        check(
            "low.rs",
            "use crate::Item;\n",
            &["low.rs:1: Item is not a module; import it from the module that defines it"],
        )?;
        check("new.rs", "use crate::low;\n", &["new.rs:1: new is in no layer"])?;
        check("low.rs", "use crate::new;\n", &["low.rs:1: new is in no layer"])
    }

    #[test]
    fn modules_that_use_each_other_are_named_with_their_imports() -> Result<()> {
        let check = |files: &[(&str, &str)], expect: &[&str]| -> Result<()> {
            assert_eq!(circles::circles(&imports(files)?), expect, "{files:?}");
            Ok(())
        };
        check(&[("a.rs", "use crate::b;"), ("b.rs", "use crate::c;"), ("c.rs", "")], &[])?;
        check(
            &[("a.rs", "use crate::b::X;\nuse crate::c;"), ("b.rs", "\nuse super::a;"), ("c.rs", "")],
            &["a, b use each other in a circle:\n  a.rs:1: crate::b::X\n  b.rs:2: super::a"],
        )?;
        check(
            &[
                ("x/a.rs", "use super::b;"),
                ("x/b.rs", ""),
                ("x/b/deep.rs", "use crate::x::c;"),
                ("x/c.rs", "fn f() { super::a::g() }"),
            ],
            &["x::a, x::b, x::c use each other in a circle:\n  x/a.rs:1: super::b\n  x/b/deep.rs:1: crate::x::c\n  \
                 x/c.rs:1: super::a::g"],
        )?;
        // A circle over a name that the file above re-exports.
        check(
            &[("x.rs", "pub use b::Y;"), ("x/a.rs", "use super::Y;"), ("x/b.rs", "use super::a;")],
            &["x::a, x::b use each other in a circle:\n  x/a.rs:1: super::Y\n  x/b.rs:1: super::a"],
        )?;
        // A parent and its child make no circle.
        check(&[("x.rs", "mod a;\nfn f() { a::g() }"), ("x/a.rs", "use super::f;")], &[])
    }

    #[test]
    fn a_crate_that_uses_another_it_must_not_use_or_is_in_no_list_is_named() -> Result<()> {
        let dependency = |name: &str, kind: Option<&str>| serde_json::json!({ "name": name, "kind": kind });
        let packages: Vec<Package> = serde_json::from_value(serde_json::json!([
            {
                "name": "slipway-x",
                "manifest_path": "/r/crates/x/Cargo.toml",
                "dependencies": [
                    dependency("serde", None),
                    dependency("y", None),
                    dependency("z", None),
                    dependency("t", Some("dev")),
                ],
            },
            { "name": "y", "manifest_path": "/r/y/Cargo.toml", "dependencies": [] },
            { "name": "z", "manifest_path": "/r/z/Cargo.toml", "dependencies": [dependency("y", Some("build"))] },
            { "name": "t", "manifest_path": "/r/t/Cargo.toml", "dependencies": [] },
        ]))?;
        let crates: &[(&str, &[&str])] = &[("crates/x", &["y"]), ("y", &[]), ("z", &[])];
        assert_eq!(
            crates_above(Path::new("/r"), &packages, crates),
            [
                "crates/x/Cargo.toml: crates/x must not use z",
                "z/Cargo.toml: z must not use y",
                "t/Cargo.toml: t is in no list",
            ]
        );
        Ok(())
    }
}
