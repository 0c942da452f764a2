//! Circles of modules: siblings in a folder that import each other, directly or through other siblings.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Import;

/// The imports from one sibling to another.
type Arrows<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Import>>;

/// Finds each circle, with all imports that are part of it.
///
/// Only siblings make a circle. A child may use what its parent's file defines while the parent uses the child: errors,
/// constants and small functions that a folder has in common are there, as is usual in Rust, and nobody needs to read a
/// third file to follow them. What the parent's file only re-exports leads to the sibling that defines it.
pub fn circles(imports: &[Import]) -> Vec<String> {
    let mut folders: BTreeMap<&[String], Arrows<'_>> = BTreeMap::new();
    for import in imports {
        let common = import.from.iter().zip(&import.to).take_while(|(from, to)| from == to).count();
        if let (Some(from), Some(to)) = (import.from.get(common), import.to.get(common)) {
            folders.entry(&import.from[..common]).or_default().entry((from, to)).or_default().push(import);
        }
    }
    let mut found = Vec::new();
    for (folder, arrows) in &folders {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            arrows.keys().map(|(from, _)| (*from, reach(from, arrows))).collect();
        let leads = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
        let circle_of = |module: &&&str| -> Vec<&str> {
            reached.keys().filter(|other| leads(module, other) && leads(other, module)).copied().collect()
        };
        let circles: BTreeSet<Vec<&str>> =
            reached.keys().filter(|module| leads(module, module)).map(|module| circle_of(&module)).collect();
        for circle in circles {
            let names: Vec<String> =
                circle.iter().map(|name| [*folder, &[name.to_string()]].concat().join("::")).collect();
            let is_part = |arrow: &(&(&str, &str), _)| circle.contains(&arrow.0.0) && circle.contains(&arrow.0.1);
            let imports = arrows.iter().filter(is_part).flat_map(|(_, imports)| imports);
            let lines = imports.map(|import| format!("\n  {}:{}: {}", import.file, import.line, import.written));
            found.push(format!("{} use each other in a circle:{}", names.join(", "), lines.collect::<String>()));
        }
    }
    found
}

/// Returns the modules to which `from` leads, directly or over others.
fn reach<'a>(from: &'a str, arrows: &Arrows<'a>) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(module) = waiting.pop() {
        let next = arrows.keys().filter(|(from, _)| *from == module).map(|(_, to)| *to);
        waiting.extend(next.filter(|to| reached.insert(*to)));
    }
    reached
}
