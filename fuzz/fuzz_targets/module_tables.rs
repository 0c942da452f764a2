//! Module names read from modules.alias and modules.dep are in canonical form, and there is at most one entry per line.
#![no_main]

use slipway_installer::drivers::module_tables::{aliases, canonical, dependencies};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let lines = text.lines().count();
    let aliases = aliases(text);
    assert!(aliases.len() <= lines);
    for (pattern, module) in &aliases {
        assert!(!pattern.is_empty() && canonical(module) == *module);
    }
    let modules = dependencies(text);
    assert!(modules.len() <= lines);
    for (name, (path, needed)) in &modules {
        assert!(text.contains(path.as_str()) && canonical(name) == *name);
        assert!(needed.iter().all(|module| canonical(module) == *module));
    }
});
