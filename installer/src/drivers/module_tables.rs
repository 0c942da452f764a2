//! The tables of depmod(8) for the modules of a kernel: modules.alias and modules.dep.

use std::collections::BTreeMap;

/// For each module name (with underscores): the path below the folder of modules, and its dependencies in load order.
pub type Modules = BTreeMap<String, (String, Vec<String>)>;

/// Returns the module name with underscores. File names may have hyphens.
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Reads patterns and module names from lines `alias PATTERN MODULE`.
pub fn aliases(text: &str) -> Vec<(String, String)> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("alias"), Some(pattern), Some(module)) => Some((pattern.to_owned(), canonical(module))),
            _ => None,
        }
    };
    text.lines().filter_map(parse).collect()
}

/// Reads modules from lines `PATH: PATH...`. The last path in a line is loaded first.
pub fn dependencies(text: &str) -> Modules {
    let parse = |line: &str| {
        let (path, needed) = line.split_once(':')?;
        let needed = needed.split_ascii_whitespace().rev().map(module_of).collect();
        Some((module_of(path), (path.to_owned(), needed)))
    };
    text.lines().filter_map(parse).collect()
}

/// Returns the name of the module in the file with this path.
pub fn module_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    canonical(file.split('.').next().unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_what_they_need() {
        let modules = dependencies(
            "kernel/net/virtio_net.ko: kernel/net/net_failover.ko kernel/net/failover.ko\n\
             kernel/fs/nls/nls_iso8859-1.ko:\n",
        );
        let (path, needed) = modules.get("virtio_net").cloned().unwrap_or_default();
        assert_eq!(path, "kernel/net/virtio_net.ko");
        assert_eq!(needed, ["failover", "net_failover"]);
        assert!(modules.contains_key("nls_iso8859_1"));
    }

    #[test]
    fn alias_lines_name_pattern_and_module() {
        let aliases = aliases("# Aliases\nalias fs-vfat vfat\nalias pci:v1* some-driver\n");
        assert_eq!(aliases, [("fs-vfat".into(), "vfat".into()), ("pci:v1*".into(), "some_driver".into())]);
    }
}
