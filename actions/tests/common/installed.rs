//! A machine with a disk that carries an image.

use super::disk_image::{ESP, LINUX, Part, ROOT, make};
use super::{Bench, MIB};

/// Where the EFI system partition begins, in MiB.
pub const ESP_AT: usize = 1;
/// Where the root partition begins, in MiB.
pub const ROOT_AT: usize = 20;

/// A disk with these files in its root and its EFI system partition. Another system lies between them, in a partition
/// whose type is not that of a root.
pub fn installed(root: &[(&str, &str)], esp: &[(&str, &str)]) -> Bench {
    let bench = Bench::new(MIB);
    let parts = [
        Part { mib: ESP_AT..9, type_guid: ESP, name: "esp", files: esp },
        Part { mib: 10..19, type_guid: LINUX, name: "data", files: &[("etc/os-release", "NAME=other")] },
        Part { mib: ROOT_AT..39, type_guid: ROOT, name: "system", files: root },
    ];
    make(&bench.path("disk"), 40, &parts);
    bench
}
