//! The machine's processors.

use slipway_protocol::Cpu;

use super::Roots;
use super::files::{Notes, attribute, head, note};

/// Number of bytes to read of /proc/cpuinfo, enough for the first processor, which takes one or two KiB.
const CPUINFO_BYTES: u64 = 16 << 10;

/// Returns name, number and architecture of the processors.
pub(super) fn cpu(roots: &Roots, notes: &mut Notes) -> Cpu {
    let cpuinfo = head(&roots.proc.join("cpuinfo"), CPUINFO_BYTES, notes).unwrap_or_default();
    let path = roots.sys.join("devices/system/cpu/online");
    let threads = attribute(&path, notes).and_then(|list| count(&list)).unwrap_or_else(|| {
        note(&path, &"no list of processors", notes);
        0
    });
    let arch = rustix::system::uname().machine().to_string_lossy().into_owned();
    Cpu { model: model(&cpuinfo), threads, arch }
}

/// Returns the name of the first processor. x86 has a text; arm64 has the numbers of vendor and design (MIDR_EL1).
fn model(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let value = cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?.1;
        Some(value.trim()).filter(|value| !value.is_empty())
    };
    let named = field("model name").map(str::to_owned);
    named.or_else(|| Some(format!("implementer {}, part {}", field("CPU implementer")?, field("CPU part")?)))
}

/// Returns how many numbers a list such as `0-3,8` contains (Linux, Documentation/core-api/cpu_hotplug.rst). `None` if
/// not a list.
fn count(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_names_the_model() {
        for (cpuinfo, expect) in [
            ("processor\t: 0\nmodel\t\t: 106\nmodel name\t: Xeon: Gold\n\nmodel name\t: Other\n", Some("Xeon: Gold")),
            ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", Some("implementer 0x41, part 0xd0c")),
            ("model name\t:\nCPU implementer\t: 0x41\n", None),
            ("", None),
            (":::\0", None),
        ] {
            assert_eq!(model(cpuinfo).as_deref(), expect, "{cpuinfo:?}");
        }
    }

    #[test]
    fn a_list_of_processors_is_counted_and_nonsense_is_not() {
        for (list, expect) in [
            ("0", Some(1)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-0", None),
            ("0-4294967295", None),
            ("0-4294967294,0-1", None),
            ("0,,1", None),
            ("-1", None),
        ] {
            assert_eq!(count(list), expect, "{list:?}");
        }
    }
}
