//! Boot Loader Specification entries (UAPI.1), in the order of systemd-boot's menu.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{BootEntry, grub, plain_path, version};

/// Key of `loader.conf` for the entry that systemd-boot starts when nobody chooses.
const DEFAULT: &str = "default";
/// Longest pattern in characters, because each is one level of recursion; and most steps of a match, because each `*`
/// tries all places.
const MAX_PATTERN: usize = 256;
const MAX_STEPS: usize = 100_000;

/// Most bytes of options and initrds after variables are expanded. No kernel takes more.
const MAX_EXPANDED: usize = 64 << 10;

/// An entry of the menu.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MenuEntry {
    /// File name without the counters of boot assessment.
    pub id: String,
    /// Key that groups the entries of one system, if given.
    pub sort_key: Option<String>,
    /// Machine ID of the installation that the entry belongs to; empty if not given.
    pub machine_id: String,
    /// Version of the kernel; empty if not given.
    pub version: String,
    /// Whether no boot tries are left. Such an entry is started last.
    pub is_bad: bool,
    /// What the entry starts.
    pub start: Start,
    /// Number of the file system with the entry; the caller defines the numbers.
    pub place: usize,
}

impl MenuEntry {
    /// Bytes of memory that the entry uses.
    pub fn size(&self) -> usize {
        let texts = self.sort_key.as_ref().map_or(0, String::len) + self.machine_id.len() + self.version.len();
        let own = size_of::<Self>() + self.id.len() + texts;
        own + match &self.start {
            Start::Kernel(boot) | Start::Program(boot) => {
                let initrds = boot.initrds.iter().map(|path| path.len() + size_of::<String>()).sum::<usize>();
                boot.title.len() + boot.kernel.len() + boot.cmdline.len() + initrds
            }
            Start::Unified(path) => path.len(),
        }
    }
}

/// What an entry starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A kernel with its initrds.
    Kernel(BootEntry),
    /// A unified kernel image, by its path.
    Unified(String),
    /// An EFI program: a kernel, a unified kernel image, or something else.
    Program(BootEntry),
}

impl Default for Start {
    fn default() -> Self {
        Self::Unified(String::new())
    }
}

/// Parses an entry of type #1. `variables` are those of GRUB, which some distributions use in options and initrds. None
/// if the entry starts no kernel on this machine.
pub fn parse(file: &str, text: &str, variables: &BTreeMap<String, String>) -> Option<MenuEntry> {
    let (id, is_bad) = counted(file);
    let mut entry = MenuEntry { id, is_bad, ..MenuEntry::default() };
    let (mut boot, mut options, mut unified) = (BootEntry::default(), Vec::new(), None);
    let mut program = None;
    let mut expanded = 0;
    for line in text.lines() {
        let line = line.trim();
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        match key {
            "title" => boot.title = value.to_owned(),
            "version" => entry.version = value.to_owned(),
            "machine-id" => entry.machine_id = value.to_owned(),
            "sort-key" => entry.sort_key = Some(value.to_owned()).filter(|key| !key.is_empty()),
            "architecture" if !is_own(value) => return None,
            "linux" => boot.kernel = plain_path(value),
            "uki" => unified = Some(plain_path(value)),
            "efi" => program = Some(plain_path(value)),
            // One line may have several initrds. Some may be variables that are empty.
            "initrd" => {
                let paths = grub::expand(value, variables);
                expanded += paths.len();
                boot.initrds.extend(paths.split_whitespace().map(plain_path));
            }
            "options" => {
                options.push(grub::expand(value, variables));
                expanded += options.last().map_or(0, String::len);
            }
            _ => {}
        }
        if expanded > MAX_EXPANDED {
            return None;
        }
    }
    boot.cmdline = options.join(" ").trim().to_owned();
    entry.start = match unified {
        Some(path) => Start::Unified(path),
        None if boot.kernel.is_empty() => Start::Program(BootEntry { kernel: program?, ..boot }),
        None => Start::Kernel(boot),
    };
    Some(entry)
}

/// The file name without the counters of boot assessment, `NAME+LEFT-DONE` (UAPI.1, "Boot Counting"), and whether no
/// tries are left.
pub fn counted(file: &str) -> (String, bool) {
    let (stem, suffix) = file.rsplit_once('.').unwrap_or((file, ""));
    let counters = stem.rsplit_once('+').and_then(|(name, counters)| {
        let (left, done) = counters.split_once('-').unwrap_or((counters, "0"));
        let left = left.parse::<u32>().ok()?;
        done.parse::<u32>().ok().map(|_| (format!("{name}.{suffix}"), left == 0))
    });
    counters.unwrap_or_else(|| (file.to_owned(), false))
}

/// Whether an architecture, by its name in the specification, is that of this machine.
fn is_own(architecture: &str) -> bool {
    let own = if std::env::consts::ARCH == "aarch64" { "aa64" } else { "x64" };
    architecture.eq_ignore_ascii_case(own)
}

/// The pattern by which `loader.conf` chooses an entry. None if it leaves that to the order or to variables of the
/// firmware.
pub fn default_pattern(loader_conf: &str) -> Option<String> {
    let mut lines = loader_conf.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let value = lines.rfind(|(key, _)| *key == DEFAULT)?.1.trim();
    (!value.is_empty() && !value.starts_with('@')).then(|| value.to_owned())
}

/// The entry that is started when nobody chooses: the first match of the first pattern that matches, otherwise the
/// first entry.
pub fn default<'a>(entries: &'a mut [MenuEntry], patterns: &[String]) -> Option<&'a MenuEntry> {
    entries.sort_by(compare);
    let meant = |pattern: &String| {
        entries.iter().position(|entry| {
            let stem = entry.id.rsplit_once('.').map_or(entry.id.as_str(), |(stem, _)| stem);
            matches(pattern, &entry.id) || matches(pattern, stem)
        })
    };
    entries.get(patterns.iter().find_map(meant).unwrap_or_default())
}

/// The order of the menu (UAPI.1, "Sorting").
fn compare(a: &MenuEntry, b: &MenuEntry) -> Ordering {
    let by_key = || match (&a.sort_key, &b.sort_key) {
        (Some(own), Some(other)) => own
            .cmp(other)
            .then_with(|| a.machine_id.cmp(&b.machine_id))
            .then_with(|| version::compare(&b.version, &a.version)),
        (own, other) => other.is_some().cmp(&own.is_some()),
    };
    a.is_bad.cmp(&b.is_bad).then_with(by_key).then_with(|| version::compare(&b.id, &a.id))
}

/// Whether a name matches a pattern with `*`, `?` and `[a-z]`, ignoring case.
fn matches(pattern: &str, name: &str) -> bool {
    let [pattern, name] = [pattern, name].map(|text| text.to_lowercase().chars().collect::<Vec<char>>());
    pattern.len() <= MAX_PATTERN && matches_at(&pattern, &name, &mut 0)
}

fn matches_at(pattern: &[char], name: &[char], steps: &mut usize) -> bool {
    *steps += 1;
    if *steps > MAX_STEPS {
        return false;
    }
    match pattern.split_first() {
        None => name.is_empty(),
        Some(('*', rest)) => (0..=name.len()).any(|skipped| matches_at(rest, name.split_at(skipped).1, steps)),
        Some((first, rest)) => {
            let Some((c, after)) = name.split_first() else { return false };
            match set(pattern) {
                Some((set, rest)) => is_in(set, *c) && matches_at(rest, after, steps),
                None => (*first == '?' || first == c) && matches_at(rest, after, steps),
            }
        }
    }
}

/// The characters between brackets at the beginning of a pattern, and the rest.
fn set(pattern: &[char]) -> Option<(&[char], &[char])> {
    let inside = pattern.strip_prefix(&['['])?;
    // A closing bracket right at the beginning is a member of the set.
    let end = inside.iter().skip(1).position(|c| *c == ']')? + 1;
    let (set, rest) = inside.split_at(end);
    Some((set, rest.split_first()?.1))
}

fn is_in(set: &[char], c: char) -> bool {
    let is_range = set.windows(3).any(|range| matches!(range, [first, '-', last] if (first..=last).contains(&&c)));
    is_range || set.contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(file: &str, text: &str) -> Option<MenuEntry> {
        parse(file, text, &BTreeMap::new())
    }

    #[test]
    fn an_entry_is_a_kernel_with_what_it_is_started_with() {
        let text = "# made by hand\ntitle Debian\nlinux /debian/linux\ninitrd /ucode\ninitrd\t/debian/initrd\r\n\
                    options root=UUID=a ro\noptions  quiet  x\n";
        let Start::Kernel(boot) = entry("a.conf", text).unwrap().start else { panic!("a kernel") };
        assert_eq!((boot.title.as_str(), boot.kernel.as_str()), ("Debian", "debian/linux"));
        assert_eq!(boot.initrds, ["ucode", "debian/initrd"]);
        assert_eq!(boot.cmdline, "root=UUID=a ro quiet  x");
        let unified = entry("a.conf", "uki /EFI/Linux/a.efi\n").unwrap().start;
        assert_eq!(unified, Start::Unified("EFI/Linux/a.efi".to_owned()));
        let Start::Program(shell) = entry("shell.conf", "title Shell\nefi /shell.efi\n").unwrap().start else {
            panic!("a program")
        };
        assert_eq!((shell.kernel.as_str(), shell.initrds.len()), ("shell.efi", 0));
        assert_eq!(entry("a.conf", "title none\n"), None);
        assert_eq!(entry("a.conf", "linux /a\narchitecture ia64\n"), None);
        let variables = [("kernelopts".to_owned(), "root=x ro".to_owned())].into();
        let fedora = parse("a.conf", "linux /a\noptions $kernelopts $tuned_params\n", &variables).unwrap();
        assert!(matches!(fedora.start, Start::Kernel(boot) if boot.cmdline == "root=x ro"));
    }

    #[test]
    fn variables_do_not_make_an_entry_large() {
        let variables = [("a".to_owned(), "x".repeat(4096))].into();
        for key in ["options", "initrd"] {
            let entry = |lines: usize| {
                parse("a.conf", &format!("linux /a\n{}", format!("{key} $a\n").repeat(lines)), &variables)
            };
            assert!(entry(16).is_some() && entry(17).is_none(), "{key}");
        }
    }

    /// Checks which of these files, given as name and text, is started.
    fn check(files: &[(&str, &str)], patterns: &[&str], expect: &str) {
        let mut entries: Vec<MenuEntry> =
            files.iter().map(|(file, text)| entry(file, &format!("linux /l\n{text}")).unwrap()).collect();
        let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        assert_eq!(default(&mut entries, &patterns).unwrap().id, expect, "{files:?} by {patterns:?}");
    }

    #[test]
    fn the_default_is_the_one_systemd_boot_has_first() {
        check(&[("a-6.9.conf", ""), ("a-6.10.conf", "")], &[], "a-6.10.conf");
        check(&[("a-6.9.conf", ""), ("a-6.10.conf", "")], &["a-6.9*"], "a-6.9.conf");
        check(&[("a-6.9.conf", ""), ("a-6.10.conf", "")], &["none", "A-6.9.conf"], "a-6.9.conf");
        check(&[("a-6.9.conf", ""), ("a-6.10.conf", "")], &["none-*"], "a-6.10.conf");
        check(&[("z.conf", ""), ("a.conf", "sort-key x\nversion 1")], &[], "a.conf");
        check(&[("b.conf", "sort-key x\nversion 1"), ("a.conf", "sort-key x\nversion 2")], &[], "a.conf");
        check(&[("a.conf", "sort-key y\nversion 2"), ("b.conf", "sort-key x\nversion 1")], &[], "b.conf");
        check(&[("a-2+0-3.conf", ""), ("a-1+2.conf", "")], &[], "a-1.conf");
        check(&[("id-6.5.6.conf", ""), ("id-0-rescue.conf", "")], &[], "id-6.5.6.conf");
        assert_eq!(default(&mut [], &[]), None);
    }

    #[test]
    fn loader_conf_names_the_default_by_a_pattern() {
        for (text, expect) in [
            ("timeout 3\ndefault debian-*\n", Some("debian-*")),
            ("default a\n default  b.conf \n", Some("b.conf")),
            ("default @saved\n", None),
            ("#default a\ntimeout 0\n", None),
            ("default\n", None),
        ] {
            assert_eq!(default_pattern(text).as_deref(), expect, "{text:?}");
        }
    }

    #[test]
    fn patterns_are_those_of_file_names() {
        for (pattern, name, expect) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a?c", "abc", true),
            ("a?", "a", false),
            ("[a-c]x", "bx", true),
            ("[a-c]x", "dx", false),
            ("[]x]", "]", true),
            ("[a", "[a", true),
            ("A.CONF", "a.conf", true),
        ] {
            assert_eq!(matches(pattern, name), expect, "{pattern:?} and {name:?}");
        }
        assert!(!matches(&"*a".repeat(30), &"b".repeat(199)), "it ends");
        assert!(!matches(&"*".repeat(1 << 20), "a"), "it has a bottom");
    }
}
