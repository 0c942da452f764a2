//! Usable memory, from /proc/meminfo.

use std::path::Path;

use super::files::{Notes, head, note};

/// Number of bytes to read of /proc/meminfo, enough for its first line.
const MEMINFO_BYTES: u64 = 4096;

/// Returns the usable memory in bytes, 0 if unknown.
pub(super) fn total(proc: &Path, notes: &mut Notes) -> u64 {
    let path = proc.join("meminfo");
    let Some(text) = head(&path, MEMINFO_BYTES, notes) else { return 0 };
    parse(&text).unwrap_or_else(|| {
        note(&path, &"no line \"MemTotal: NUMBER kB\"", notes);
        0
    })
}

/// Returns the value of `MemTotal` in bytes. The unit in /proc/meminfo is KiB, written as kB (proc_meminfo(5)).
fn parse(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_bytes() {
        for (meminfo, expect) in [
            ("MemTotal:        8142808 kB\nMemFree: 1 kB\n", Some(8_142_808 * 1024)),
            ("MemFree: 1 kB\n", None),
            ("MemTotal: 18446744073709551615 kB\n", None),
            ("MemTotal: -1 kB\n", None),
            ("MemTotal: 12", None),
        ] {
            assert_eq!(parse(meminfo), expect, "{meminfo:?}");
        }
    }
}
