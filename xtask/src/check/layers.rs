//! The layers of the code: which crates and modules may use which others. ARCHITECTURE.md shows them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::host::workspace;

/// A crate by its folder, and the workspace crates it may use.
const CRATES: &[(&str, &[&str])] = &[
    ("crates/protocol", &[]),
    ("crates/formats", &["protocol"]),
    ("crates/user-data", &["protocol"]),
    ("crates/parts", &[]),
    ("crates/media", &["protocol", "formats", "parts", "secure-boot"]),
    ("crates/attestation", &["protocol"]),
    ("crates/secure-boot", &["formats"]),
    ("crates/tpm", &["protocol"]),
    ("crates/pxe", &[]),
    ("actions", &["protocol", "formats", "user-data", "tpm"]),
    ("installer", &["protocol", "formats", "user-data", "actions", "tpm"]),
    ("init", &["protocol", "formats", "user-data", "actions", "installer"]),
    ("server", &["protocol", "formats", "user-data", "attestation", "parts", "secure-boot", "media", "pxe"]),
];

/// The modules at the root of a crate, lowest layer first. A module may use its own layer and lower ones.
type Layers = &'static [&'static [&'static str]];

const MODULES: &[(&str, Layers)] = &[
    (
        "installer",
        &[
            &["files", "discover", "drivers"],
            &["config"],
            &["server"],
            &["boot_report", "enrol", "rare_drivers"],
            &["report"],
            &["run"],
        ],
    ),
    (
        "crates/user-data",
        &[
            &["lines", "gzip", "block", "quotes"],
            &["refusal"],
            &["input", "events", "kind", "mime"],
            &["pyyaml", "jinja", "numbers"],
            &["yaml"],
            &["document", "tree"],
            &["tail", "flow", "content", "network"],
            &["edit"],
            &["archive"],
            &["multipart"],
            &["parts", "trust", "ignition", "image"],
            &["check", "inject"],
            &["seed"],
        ],
    ),
    (
        "actions",
        &[
            &["error", "report", "sys", "text"],
            &["machine", "random"],
            &["disk"],
            &["fetch"],
            &["stream"],
            &["target"],
            &["action"],
            &["host", "fuzzing"],
        ],
    ),
    (
        "server",
        &[
            &["base"],
            &["rules", "keys"],
            &["store"],
            &["image"],
            &["run"],
            &["node"],
            &["boot_files"],
            &["operate"],
            &["api"],
            &["listen"],
            &["cli"],
        ],
    ),
];

/// Fails if a crate or module uses one that it must not use. Returns the number of files read.
pub fn check() -> Result<usize> {
    let root = workspace::root();
    let (mut violations, mut files) = (Vec::new(), 0);
    for (name, allowed) in CRATES {
        let path = root.join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        violations.extend(crates_above(name, &manifest, allowed));
    }
    for (name, layers) in MODULES {
        let source = root.join(name).join("src");
        files += imports_above(&source, Path::new(""), layers, &mut violations)?;
    }
    if !violations.is_empty() {
        bail!("{}", violations.join("\n"));
    }
    Ok(files)
}

/// Forbidden dependencies in a manifest. Test dependencies are allowed.
fn crates_above(name: &str, manifest: &str, allowed: &[&str]) -> Vec<String> {
    let is_header = |line: &&str| line.starts_with('[');
    let section =
        manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1).take_while(|line| !is_header(line));
    let used = section.filter_map(|line| line.strip_prefix("slipway-")?.split(['.', ' ', '=']).next());
    let above = used.filter(|used| !allowed.contains(used));
    above.map(|used| format!("{name}/Cargo.toml: {name} must not use {used}")).collect()
}

/// Adds the upward imports of the files below a folder. Returns the number of files read.
fn imports_above(source: &Path, folder: &Path, layers: &[&[&str]], violations: &mut Vec<String>) -> Result<usize> {
    let here = source.join(folder);
    let mut files = 0;
    let entries = fs::read_dir(&here).with_context(|| format!("reading {}", here.display()))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    for name in names {
        let path = folder.join(&name);
        if source.join(&path).is_dir() {
            files += imports_above(source, &path, layers, violations)?;
            continue;
        }
        // The root joins all layers, and tests may use anything.
        let Some(module) = name.strip_suffix(".rs").filter(|module| !matches!(*module, "lib" | "main" | "tests"))
        else {
            continue;
        };
        let depth = folder.components().count() + usize::from(module != "mod");
        let top = folder.components().next().map_or(module.into(), |first| first.as_os_str().to_string_lossy());
        let text = fs::read_to_string(source.join(&path)).with_context(|| format!("reading {}", path.display()))?;
        let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
        for (used, line) in imports(&text, depth) {
            let problem = match (layer_of(&top), layer_of(&used)) {
                _ if used == top => continue,
                (Some(own), Some(other)) if other < own => continue,
                (None, _) => format!("{top} is in no layer"),
                (_, None) => format!("{used} is not a module; import it from the module that defines it"),
                (Some(own), Some(other)) if own == other => format!("{top} uses {used}, which is in the same layer"),
                _ => format!("{top} uses {used}, which is above it"),
            };
            violations.push(format!("{}:{line}: {problem}", source.join(&path).display()));
        }
        files += 1;
    }
    Ok(files)
}

/// The modules that a file names from the root of its crate, each with its first line. `depth` is the number of modules
/// from the root to the file.
fn imports(text: &str, depth: usize) -> BTreeMap<String, usize> {
    let end = text.find("\n#[cfg(test)]\nmod tests").unwrap_or(text.len());
    let mut found = BTreeMap::new();
    for (number, rest) in paths(&text[..end], depth) {
        for name in first_names(rest) {
            found.entry(name).or_insert(number);
        }
    }
    found
}

/// The rest of each path that begins at the root of the crate, with its line.
fn paths(text: &str, depth: usize) -> Vec<(usize, &str)> {
    let to_root = "super::".repeat(depth);
    let is_in_word = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'));
    let mut found = Vec::new();
    let mut at = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for start in ["crate::", to_root.as_str()] {
            let places = code.match_indices(start).filter(|(place, _)| !is_in_word(&code[..*place]));
            found.extend(places.map(|(place, _)| (index + 1, &text[at + place + start.len()..])));
        }
        at += line.len();
    }
    found
}

/// The first names of a path: one, or those of a group in braces.
fn first_names(rest: &str) -> Vec<String> {
    let word =
        |text: &str| -> String { text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let (mut depth, mut names, mut is_first) = (0, Vec::new(), true);
    for (at, c) in group.char_indices() {
        if is_first && !c.is_whitespace() {
            names.push(word(&group[at..]));
        }
        is_first = (is_first && c.is_whitespace()) || (depth == 0 && c == ',');
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_imported_upwards() -> Result<()> {
        assert!(check()? > 100, "fewer files than there are");
        Ok(())
    }

    #[test]
    fn an_import_that_leads_upwards_is_found_however_it_is_written() -> Result<()> {
        let folder = tempfile::tempdir()?;
        fs::create_dir_all(folder.path().join("low"))?;
        let check = |file: &str, text: &str, expect: &[&str]| -> Result<()> {
            fs::write(folder.path().join(file), text)?;
            let mut found = Vec::new();
            imports_above(folder.path(), Path::new(""), &[&["low"], &["middle", "other"], &["high"]], &mut found)?;
            fs::remove_file(folder.path().join(file))?;
            let found: Vec<&str> =
                found.iter().filter_map(|line| line.split_once(".rs:")).map(|(_, rest)| rest).collect();
            assert_eq!(found, expect, "{text}");
            Ok(())
        };
        check("high.rs", "use crate::low::X;\nuse crate::{low, middle::{self, Y}};\n", &[])?;
        check("middle.rs", "use crate::middle::part;\n// crate::high\nfn f() -> crate::low::X {}\n", &[])?;
        check("low.rs", "use std::fs;\n\nuse crate::high::X;\n", &["3: low uses high, which is above it"])?;
        check(
            "low.rs",
            "fn f() { crate::middle::g(super::high::H) }",
            &["1: low uses high, which is above it", "1: low uses middle, which is above it"],
        )?;
        check("low/inner.rs", "use super::X;\nuse super::super::high;\n", &["2: low uses high, which is above it"])?;
        check(
            "middle.rs",
            "use crate::{\n    low,\n    other::{self, Z},\n};\n",
            &["1: middle uses other, which is in the same layer"],
        )?;
        check("low.rs", "use crate::Item;\n", &["1: Item is not a module; import it from the module that defines it"])?;
        check("new.rs", "use crate::low;\n", &["1: new is in no layer"])?;
        check("low.rs", "mod part;\n\n#[cfg(test)]\nmod tests {\n    use crate::high;\n}\n", &[])?;
        Ok(())
    }

    #[test]
    fn a_crate_that_uses_another_it_must_not_use_is_found() {
        let manifest = "[dependencies]\nserde.workspace = true\nslipway-protocol = { workspace = true }\nslipway-actions.workspace = true\n\
                        \n[dev-dependencies]\nslipway-server.workspace = true\n";
        assert_eq!(crates_above("x", manifest, &["protocol"]), ["x/Cargo.toml: x must not use actions"]);
    }
}
