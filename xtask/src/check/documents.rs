//! Compares what the pages for developers say about the code with the code: paths, crates, layers, dependencies.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::check::layers::MODULES;
use crate::check::manual;
use crate::host::{files, workspace};

/// Maximum size of ARCHITECTURE.md in bytes: a newcomer reads it in one go.
const MOST_BYTES: usize = 15_000;
/// An existing action, to put in place of `NAME` in a path.
const ACTION: &str = "erase-disk";

/// Lists the pages for developers: those at the root, and those in `docs/internals`.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let at_root = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|name| root.join(name));
    Ok(at_root.into_iter().chain(manual::pages(&root.join("docs/internals"))?).collect())
}

/// Finds the texts between backticks that look like paths of the repository: those of Rust files, and those that begin
/// with a folder at the repository's root (`top`).
fn paths(page: &str, top: &BTreeSet<String>) -> Vec<String> {
    let is_path = |text: &&str| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'));
        let first = text.split('/').next().unwrap_or_default();
        plain && (text.ends_with(".rs") || (text.contains('/') && top.contains(first)))
    };
    page.split('`').skip(1).step_by(2).filter(is_path).map(existing).collect()
}

/// Puts the action that exists in place of `NAME` in a path.
fn existing(path: &str) -> String {
    let name = match path.ends_with(".rs") {
        true => ACTION.replace('-', "_"),
        false => ACTION.to_owned(),
    };
    path.replace("NAME", &name)
}

/// Returns the targets of links to files.
fn links(page: &str) -> Vec<String> {
    let targets = page.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.filter_map(|target| Some(target.split('#').next()?.to_owned())).collect()
}

/// Returns the words between backticks in the first cell of each row of a page's tables.
fn first_cells(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>());
    words.collect()
}

/// Returns the names of dependencies in a manifest, without crates of the workspace.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_listed = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_listed = line.trim_end_matches(']').ends_with("dependencies");
        }
        let name: String = line.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
        if is_listed && !name.is_empty() && !line.contains("path = ") && !name.starts_with("slipway-") {
            found.insert(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_links_in_the_pages_for_developers_exist() -> Result<()> {
        let root = workspace::root();
        let names = fs::read_dir(&root)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let top: BTreeSet<String> = names.filter(|name| !matches!(name.as_str(), "target" | ".git")).collect();
        let (mut missing, mut found) = (Vec::new(), 0);
        for page in pages(&root)? {
            let text = files::read_text(&page)?;
            let folder = page.parent().unwrap_or(&root);
            let linked = links(&text).into_iter().map(|link| folder.join(link));
            let named = paths(&text, &top).into_iter().map(|path| root.join(path));
            let gone = linked.chain(named).inspect(|_| found += 1).filter(|path| !path.exists());
            missing.extend(gone.map(|path| format!("{}: {} does not exist", page.display(), path.display())));
        }
        assert!(missing.is_empty(), "{}", missing.join("\n"));
        assert!(found > 150, "fewer paths than there are: {found}");
        Ok(())
    }

    #[test]
    fn the_list_for_a_new_action_is_that_of_an_action_that_exists() -> Result<()> {
        let page = files::read_text(&workspace::root().join("CONTRIBUTING.md"))?;
        let list = page.split("## Add an action").nth(1).and_then(|rest| rest.split("\n## ").next());
        let list = list.context("CONTRIBUTING.md has no section \"Add an action\"")?;
        let rust = ACTION.replace('-', "_");
        for path in [
            format!("actions/src/action/{rust}.rs"),
            format!("actions/tests/{rust}.rs"),
            format!("docs/reference/actions/{ACTION}.md"),
        ] {
            assert!(paths(list, &BTreeSet::from(["docs".to_owned()])).contains(&path), "{path} is not in the list");
        }
        // Files that name each action.
        for (file, word) in [
            ("crates/protocol/src/workflow.rs", "EraseDisk(EraseDisk)"),
            ("actions/src/action.rs", "mod erase_disk;"),
            ("init/src/cli/action/arguments.rs", "EraseDisk("),
            ("mkdocs.yml", "reference/actions/erase-disk.md"),
            ("docs/index.md", "reference/actions/erase-disk.md"),
            ("docs/reference/workflow.md", "actions/erase-disk.md"),
            ("server/openapi.json", "\"erase-disk\""),
        ] {
            assert!(list.contains(&format!("`{file}`")), "{file} is not in the list");
            assert!(files::read_text(&workspace::root().join(file))?.contains(word), "{file} does not name {ACTION}");
        }
        Ok(())
    }

    #[test]
    fn architecture_md_is_short_and_has_each_crate_and_the_layers() -> Result<()> {
        let root = workspace::root();
        let page = files::read_text(&root.join("ARCHITECTURE.md"))?;
        assert!(page.len() <= MOST_BYTES, "ARCHITECTURE.md has {} bytes, more than {MOST_BYTES}", page.len());
        let mut rows = first_cells(&page);
        rows.insert("/".to_owned());
        let manifests = manifests(&root)?;
        let folders = manifests.iter().filter_map(|manifest| manifest.parent()?.strip_prefix(&root).ok());
        let missing: Vec<_> =
            folders.map(|folder| format!("{}/", folder.display())).filter(|row| !rows.contains(row)).collect();
        assert!(missing.is_empty(), "the code map of ARCHITECTURE.md has no rows of {missing:?}");
        for name in ["server", "actions"] {
            let (_, layers) = MODULES.iter().find(|(module, _)| *module == name).context("no layers")?;
            let line = page.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix("  ")).map(str::trim);
            assert_eq!(line, Some(*layers), "the layers of {name} in ARCHITECTURE.md");
        }
        for (name, layers) in MODULES {
            let start = format!("| `{}` | ", name.rsplit('/').next().unwrap_or(name));
            let Some(row) = page.lines().find_map(|line| line.strip_prefix(&start)) else { continue };
            let missing: Vec<_> =
                layers.split([',', '<']).map(str::trim).filter(|name| !row.contains(&format!("`{name}`"))).collect();
            assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?}, modules of {name}");
        }
        Ok(())
    }

    #[test]
    fn each_dependency_has_its_reason() -> Result<()> {
        let root = workspace::root();
        let page = files::read_text(&root.join("docs/internals/dependencies.md"))?;
        let explained = first_cells(page.split("\n## ").next().unwrap_or_default());
        let mut used = BTreeSet::new();
        for manifest in manifests(&root)? {
            used.append(&mut dependencies(&files::read_text(&manifest)?));
        }
        let without: Vec<_> = used.difference(&explained).collect();
        let unused: Vec<_> = explained.difference(&used).collect();
        assert!(without.is_empty(), "docs/internals/dependencies.md gives no reason for {without:?}");
        assert!(unused.is_empty(), "docs/internals/dependencies.md has rows of what nothing depends on: {unused:?}");
        Ok(())
    }

    /// Lists the manifests of the workspace, with the one at the root.
    fn manifests(root: &Path) -> Result<Vec<PathBuf>> {
        let mut found = vec![root.join("Cargo.toml")];
        for folder in [root.to_owned(), root.join("crates")] {
            let manifests = files::children(&folder)?.into_iter().map(|folder| folder.join("Cargo.toml"));
            found.extend(manifests.filter(|path| path.is_file()));
        }
        found.retain(|path| !path.starts_with(root.join("fuzz")));
        Ok(found)
    }

    #[test]
    fn paths_are_told_from_other_words() {
        let top = BTreeSet::from(["docs".to_owned(), "init".to_owned()]);
        let page = "`init/src/main.rs` and `lost.rs`, not `/run/x`, `cargo xtask`, `parts/ARCH` or `init`; \
                    `docs/NAME.md`, `a/NAME.rs`; [x](y.md#z), [w](https://a.example/b.md), [v](#here)";
        assert_eq!(paths(page, &top), ["init/src/main.rs", "lost.rs", "docs/erase-disk.md", "a/erase_disk.rs"]);
        assert_eq!(links(page), ["y.md"]);
        assert_eq!(first_cells("| `a`, `b` | `c` |\ntext `d`\n"), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\nslipway-tpm.workspace = true\n\
                        [dev-dependencies]\nb-c = \"1\"\nxtask = { path = \"../xtask\" }\n[lints]\nd = 1\n";
        assert_eq!(dependencies(manifest), BTreeSet::from(["a".to_owned(), "b-c".to_owned()]));
    }
}
