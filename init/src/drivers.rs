//! Kernel modules by modalias, from depmod(8)'s tables modules.alias and modules.dep.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The modules of one kernel.
pub struct Drivers {
    folder: PathBuf,
    /// Pattern and module, in the order of modules.alias.
    aliases: Vec<(String, String)>,
    /// By module name with underscores: path below `folder`, and the modules to load before it, in load order.
    modules: BTreeMap<String, (String, Vec<String>)>,
}

impl Drivers {
    /// The modules of the running kernel, from `/lib/modules/RELEASE`.
    pub fn of_running_kernel() -> io::Result<Self> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self::read(&Path::new("/lib/modules").join(release))
    }

    fn read(folder: &Path) -> io::Result<Self> {
        let table = |name: &str| {
            std::fs::read_to_string(folder.join(name))
                .map_err(|e| io::Error::new(e.kind(), format!("reading {}: {e}", folder.join(name).display())))
        };
        Ok(Self {
            folder: folder.to_owned(),
            aliases: parse_aliases(&table("modules.alias")?),
            modules: parse_dependencies(&table("modules.dep")?),
        })
    }

    /// Loads every module whose pattern matches, and the module of that name, each after its dependencies. A result is
    /// true if the module was loaded now, false if it was loaded before.
    pub fn load(&self, alias: &str) -> Vec<(String, io::Result<bool>)> {
        let name = canonical(alias);
        let named = self.modules.contains_key(&name).then_some(name);
        let by_alias =
            self.aliases.iter().filter(|(pattern, _)| fits(pattern, alias)).map(|(_, module)| module.clone());
        let wanted: BTreeSet<String> = named.into_iter().chain(by_alias).collect();
        wanted.into_iter().map(|module| (module.clone(), self.load_module(&module))).collect()
    }

    /// Removes the files of modules below a folder, given as in modules.dep, that are not loaded (`loaded` is
    /// /sys/module). Returns the freed bytes.
    pub fn remove_unused(&self, below: &str, loaded: &Path) -> u64 {
        let mut freed = 0;
        for (name, (path, _)) in &self.modules {
            if path.starts_with(below) && !loaded.join(name).exists() {
                let path = self.folder.join(path);
                let size = std::fs::metadata(&path).map_or(0, |file| file.len());
                freed += if std::fs::remove_file(&path).is_ok() { size } else { 0 };
            }
        }
        freed
    }

    fn load_module(&self, name: &str) -> io::Result<bool> {
        let Some((path, needed)) = self.modules.get(name) else { return Ok(false) };
        for other in needed {
            if let Some((path, _)) = self.modules.get(other) {
                self.insert(path)?;
            }
        }
        self.insert(path)
    }

    fn insert(&self, path: &str) -> io::Result<bool> {
        let file = File::open(self.folder.join(path))?;
        match rustix::system::finit_module(&file, c"", 0) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// `/sbin/modprobe` as the kernel calls it for a file system or a cipher: `modprobe -q -- NAME`.
pub fn modprobe(arguments: impl Iterator<Item = String>) -> ExitCode {
    let wanted: Vec<String> = arguments.filter(|a| !a.starts_with('-')).collect();
    let Ok(drivers) = Drivers::of_running_kernel() else { return ExitCode::FAILURE };
    let results: Vec<_> = wanted.iter().flat_map(|alias| drivers.load(alias)).collect();
    let found = !results.is_empty() && results.iter().all(|(_, result)| result.is_ok());
    if found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Module names are compared with underscores. File names may have hyphens.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Lines `alias PATTERN MODULE`.
fn parse_aliases(text: &str) -> Vec<(String, String)> {
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("alias"), Some(pattern), Some(module)) => Some((pattern.to_owned(), canonical(module))),
            _ => None,
        }
    };
    text.lines().filter_map(parse).collect()
}

/// Lines `PATH: PATH...`. The module to load first is last in the line.
fn parse_dependencies(text: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let parse = |line: &str| {
        let (path, needed) = line.split_once(':')?;
        let needed = needed.split_ascii_whitespace().rev().map(module_of).collect();
        Some((module_of(path), (path.to_owned(), needed)))
    };
    text.lines().filter_map(parse).collect()
}

fn module_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    canonical(file.split('.').next().unwrap_or(file))
}

/// Whether a shell pattern of `*`, `?`, `[...]` matches the whole text, as fnmatch(3) without flags. Takes time in
/// proportion to text length times pattern length at most.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to continue after the last `*` has taken one byte more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                retry = Some((p + 1, t));
                Some((p + 1, t))
            }
            (Some(b'?'), Some(_)) => Some((p + 1, t + 1)),
            (Some(b'['), Some(byte)) => bracket(pattern, p, *byte).map(|end| (end, t + 1)),
            (Some(wanted), Some(byte)) if wanted == byte => Some((p + 1, t + 1)),
            _ => None,
        };
        (p, t) = match (step, retry) {
            (Some(next), _) => next,
            (None, Some((after, at))) if at < text.len() => {
                retry = Some((after, at + 1));
                (after, at + 1)
            }
            _ => return false,
        };
    }
}

/// The position after a bracket that contains the byte, or none.
fn bracket(pattern: &[u8], open: usize, byte: u8) -> Option<usize> {
    let close = open + pattern.get(open..)?.iter().position(|b| *b == b']')?;
    let inside = pattern.get(open + 1..close)?;
    let mut at = 0;
    while let Some(first) = inside.get(at) {
        let last = if inside.get(at + 1) == Some(&b'-') { inside.get(at + 2) } else { None };
        if (*first..=*last.unwrap_or(first)).contains(&byte) {
            return Some(close + 1);
        }
        at += if last.is_some() { 3 } else { 1 };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_fnmatch_says() {
        let fit = [
            ("virtio:d00000001v*", "virtio:d00000001v00001AF4"),
            ("pci:v00008086d*sv*sd*bc02sc00i*", "pci:v00008086d00001539sv00008086sd00000000bc02sc00i00"),
            ("usb:v*p*d*dc*dsc*dp*ic08isc06ip50in*", "usb:v1p2d3dc0dsc0dp0ic08isc06ip50in00"),
            ("acpi*:QEMU0002:*", "acpi:QEMU0002:"),
            ("of:N*T*Cbrcm,bcm2711", "of:NmmcT(null)Cbrcm,bcm2711"),
            ("x[0-9a]?", "x7z"),
            ("*", ""),
            ("**a", "aaa"),
        ];
        for (pattern, text) in fit {
            assert!(fits(pattern, text), "{pattern} should fit {text}");
        }
        let unfit =
            [("virtio:d1v*", "virtio:d2v1"), ("a*b", "ac"), ("x[0-9]", "xa"), ("x[", "x["), ("", "a"), ("?", "")];
        for (pattern, text) in unfit {
            assert!(!fits(pattern, text), "{pattern} should not fit {text}");
        }
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let modules =
            parse_dependencies("kernel/net/virtio_net.ko: kernel/net/net_failover.ko kernel/net/failover.ko\n");
        let (path, needed) = modules.get("virtio_net").cloned().unwrap_or_default();
        assert_eq!(path, "kernel/net/virtio_net.ko");
        assert_eq!(needed, ["failover", "net_failover"]);
        assert_eq!(module_of("kernel/fs/nls/nls_iso8859-1.ko"), "nls_iso8859_1");
    }

    #[test]
    fn only_modules_of_a_folder_that_are_not_loaded_are_removed() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        for path in ["net/a-b.ko", "net/c.ko", "scsi/d.ko", "sys/module/a_b"] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(path, "12345")?;
        }
        let modules = parse_dependencies("net/a-b.ko: \nnet/c.ko: net/a-b.ko\nnet/absent.ko:\nscsi/d.ko:\n");
        let drivers = Drivers { folder: folder.path().to_owned(), aliases: Vec::new(), modules };
        assert_eq!(drivers.remove_unused("net/", &folder.path().join("sys/module")), 5);
        let left = ["net/a-b.ko", "net/c.ko", "scsi/d.ko"].map(|path| folder.path().join(path).exists());
        assert_eq!(left, [true, false, true]);
        Ok(())
    }

    #[test]
    fn alias_lines_name_pattern_and_module() {
        let aliases = parse_aliases("# Aliases\nalias fs-vfat vfat\nalias pci:v1* some-driver\n");
        assert_eq!(aliases, [("fs-vfat".into(), "vfat".into()), ("pci:v1*".into(), "some_driver".into())]);
    }
}
