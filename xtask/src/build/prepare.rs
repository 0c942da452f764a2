//! Prepares a command: prints how long it will take and how much it will download and keep, and installs the host
//! packages that it needs, all at once.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use slipway_parts::Arch;

use crate::build::binary;
use crate::build::binary::Toolchain;
use crate::host::{cache, packages};

/// Something fetched or built once and kept in the cache. The figures are estimates for two cores and a fast network.
pub struct Part {
    /// Name shown to users.
    name: &'static str,
    /// Host packages.
    packages: &'static [&'static [&'static str]],
    /// Folder below the cache folder.
    folder: &'static str,
    /// Number of entries in that folder when it is complete.
    entries: usize,
    /// Seconds to build it.
    seconds: u64,
    /// Megabytes to download for it, without host packages.
    download: u64,
    /// Megabytes in the cache, with everything kept for rebuilding it.
    kept: u64,
}

/// Makes a part from its name, its host packages, its folder with the number of entries, and its seconds to build,
/// megabytes to download and megabytes kept.
const fn part(
    name: &'static str,
    packages: &'static [&'static [&'static str]],
    (folder, entries): (&'static str, usize),
    [seconds, download, kept]: [u64; 3],
) -> Part {
    Part { name, packages, folder, entries, seconds, download, kept }
}

/// The static binary: crates, zig, std.
pub const BINARY: Part = part("the static binary", &[packages::PYTHON], ("binary", 1), [200, 150, 900]);
/// The static binary for arm64, if the x86-64 one exists.
pub const BINARY_ARM64: Part = part("the static binary for arm64", &[packages::PYTHON], ("binary", 2), [200, 40, 700]);
/// slipway-server for machines in QEMU.
pub const SERVER: Part = part("the server", &[packages::C_COMPILER], ("target-host/debug/deps", 1), [100, 40, 900]);
/// slipway-server for benchmarks.
pub const RELEASE_SERVER: Part =
    part("the server", &[packages::C_COMPILER], ("target-host/release/deps", 1), [300, 40, 600]);
/// slipway-server for a release, and the programs that make packages.
pub const RELEASE: Part = part(
    "the server of the release",
    &[packages::C_COMPILER, packages::PACKAGES],
    ("target-dist/release/deps", 1),
    [400, 40, 600],
);
/// Kernel, programs and archive of the boot image.
pub const BOOT_IMAGE: Part =
    part("the boot image", &[packages::BOOT_IMAGE, packages::MKFS], ("mkfs", 1), [60, 90, 400]);
/// Kernel, programs and archive of the boot image for arm64.
pub const BOOT_IMAGE_ARM64: Part = part(
    "the boot image for arm64",
    &[packages::BOOT_IMAGE, packages::MKFS, packages::MKFS_ARM64],
    ("mkfs", 2),
    [90, 120, 450],
);
/// The Debian that the demo installs.
pub const TARGET_IMAGE: Part =
    part("a Debian to install", &[packages::TARGET_IMAGE], ("target-image", 1), [90, 130, 170]);
/// The six Debians that the tests install.
pub const TARGET_IMAGES: Part = part(
    "six Debians to install",
    &[packages::TARGET_IMAGE, packages::TRANSLATION],
    ("target-image", 6),
    [420, 850, 1150],
);
/// The program that builds web pages of the manual.
pub const MANUAL: Part = part("the program that builds the manual", &[packages::PYTHON], ("python", 1), [15, 25, 140]);
/// The Debian that benchmarks write, with its compressed forms.
pub const LARGE_IMAGE: Part =
    part("the benchmark image", &[packages::TARGET_IMAGE, packages::BENCH], ("large-image", 1), [300, 500, 3000]);
/// Machines in QEMU.
pub const MACHINES: Part =
    part("virtual machines", &[packages::QEMU, packages::PYTHON, packages::TARGET_IMAGE], ("python", 2), [15, 20, 100]);
/// The test programs.
pub const TEST_PROGRAMS: Part = part(
    "lints, manual and test programs",
    &[packages::PYTHON, packages::C_COMPILER, packages::TESTS],
    ("target-host/debug/deps", 1),
    [300, 60, 5000],
);
/// The servers and other tools that `bench stream` compares with.
pub const BENCH: Part = part("the tools to compare with", &[packages::BENCH], ("", 0), [0, 0, 0]);
/// Other programs that benchmarks and power cut tests use.
pub const TORTURE: Part = part("the programs that check disks", &[packages::TORTURE], ("", 0), [0, 0, 0]);
/// The smallest Debian, for the fresh machine of `cargo xtask fresh`.
pub const FRESH_ROOT: Part =
    part("the root of a fresh machine", &[packages::TARGET_IMAGE], ("fresh-root", 1), [40, 130, 500]);
/// The fuzz targets.
pub const FUZZ: Part = part("the fuzz targets", &[packages::FUZZ], ("target-fuzz", 2), [240, 60, 1500]);

/// Number of processors that the estimates assume.
const CORES: usize = 2;
/// More processors than this save no more time: the longest crates and machines determine it.
const MOST_CORES: usize = 8;

/// The running command: the file for its time and when it began. The inner value is `None` if something was missing,
/// which makes the time useless. Commands that it calls also prepare, but are not recorded.
static RUNNING: OnceLock<Option<(PathBuf, Instant)>> = OnceLock::new();

/// Records how long the command took, for the next forecast on this machine. Call it when the command has succeeded.
pub fn succeeded() {
    if let Some(Some((file, began))) = RUNNING.get() {
        // Failing to save the time is not an error.
        _ = fs::write(file, began.elapsed().as_secs().to_string());
    }
}

/// Returns the path of the file with a command's last duration. The estimate in its name distinguishes different
/// options.
fn kept_time(command: &str, itself: Duration) -> Result<PathBuf> {
    let name = command.split_whitespace().skip(2).collect::<Vec<_>>().join("-");
    Ok(cache::folder("times")?.join(format!("{name}-{}", itself.as_secs())))
}

/// Scales an estimate for two processors to this machine.
fn scaled(estimate: Duration, cores: usize) -> Duration {
    estimate * CORES as u32 / cores.clamp(1, MOST_CORES) as u32
}

/// Prints a forecast for the command, then installs the host packages of its parts. `itself` is the time that the
/// command takes on two processors when everything is in the cache. If the command ran on this machine before, that
/// time is used instead.
pub fn prepare(command: &str, parts: &[Part], itself: Duration) -> Result<()> {
    let mut packages: Vec<&str> = parts.iter().flat_map(|part| part.packages.concat()).collect();
    if parts.iter().any(|part| part.name == BINARY.name)
        && packages::is_debian()
        && binary::default_toolchain(Arch::X86_64) == Toolchain::Debian
    {
        packages.extend(packages::DEBIAN_RUST);
    }
    let new: Vec<&Part> = parts.iter().filter(|part| !part.is_there()).collect();
    let of_debian = if packages::is_debian() { packages::megabytes_to_download(&packages)? } else { 0 };
    let cache = cache::root()?;
    let cores = std::thread::available_parallelism().map_or(CORES, usize::from);
    let file = kept_time(command, itself)?;
    let measured = fs::read_to_string(&file).ok().and_then(|seconds| seconds.trim().parse().ok());
    let itself = measured.map_or_else(|| scaled(itself, cores), Duration::from_secs);
    let is_ready = new.is_empty() && of_debian == 0;
    RUNNING.get_or_init(|| is_ready.then(|| (file, Instant::now())));
    let known = Known { itself, was_measured: measured.is_some(), cores };
    for line in forecast(command, &new, &known, of_debian, &cache.display().to_string()) {
        eprintln!("{line}");
    }
    match packages::is_debian() {
        true => packages::ensure(&packages),
        // Without dpkg nothing can be installed. The first part that lacks something reports that.
        false => Ok(()),
    }
}

impl Part {
    fn is_there(&self) -> bool {
        let folder = cache::root().map(|root| root.join(self.folder));
        let Ok(entries) = folder.and_then(|folder| Ok(fs::read_dir(folder)?)) else { return self.entries == 0 };
        let is_whole = |name: &str| !name.ends_with(".lock") && !name.ends_with(".unfinished");
        entries.flatten().filter(|entry| is_whole(&entry.file_name().to_string_lossy())).count() >= self.entries
    }
}

/// What the forecast of a command is based on.
struct Known {
    /// The time that the command takes when everything is in the cache.
    itself: Duration,
    /// Whether that time was measured in an earlier run.
    was_measured: bool,
    /// Processors of this machine.
    cores: usize,
}

fn forecast(command: &str, new: &[&Part], known: &Known, of_debian: u64, cache: &str) -> Vec<String> {
    let Known { itself, was_measured, cores } = *known;
    let build: u64 = new.iter().map(|part| part.seconds).sum();
    // Host packages take about a second for 4 MB, including installation.
    let all = scaled(Duration::from_secs(build), cores) + Duration::from_secs(of_debian / 4) + itself;
    if new.is_empty() && of_debian == 0 {
        let basis = if was_measured { ", as last time" } else { "" };
        return vec![format!("{command}: about {}{basis}; everything it needs is ready", minutes(itself))];
    }
    let processors = if cores == 1 { "one core".to_owned() } else { format!("{cores} cores") };
    let names: Vec<&str> = new.iter().map(|part| part.name).collect();
    let download: u64 = new.iter().map(|part| part.download).sum();
    let kept: u64 = new.iter().map(|part| part.kept).sum();
    let mut lines = vec![format!(
        "{command}: about {} this time, on {processors} and a fast network; {} after that",
        minutes(all),
        minutes(itself)
    )];
    if !names.is_empty() {
        lines.push(format!("  to build first: {}", names.join(", ")));
    }
    lines.push(format!(
        "  to download: about {} MB, of which {of_debian} MB are Debian packages for this host",
        download + of_debian
    ));
    if kept > 0 {
        lines.push(format!("  to keep: about {kept} MB in {cache} (`cargo xtask cache` lists and removes them)"));
    }
    lines
}

fn minutes(time: Duration) -> String {
    match time.as_secs().div_ceil(60) {
        0 | 1 => "a minute".to_owned(),
        minutes => format!("{minutes} minutes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_says_what_it_will_cost() {
        let itself = Duration::from_secs(180);
        let known = |cores, was_measured| Known { itself, was_measured, cores };
        let told = forecast("cargo xtask demo", &[&BINARY, &SERVER], &known(2, false), 100, "/c").join("\n");
        let (seconds, download) = (BINARY.seconds + SERVER.seconds + 25, BINARY.download + SERVER.download + 100);
        assert!(told.contains(&format!("about {} minutes this time", (seconds + 180).div_ceil(60))), "{told}");
        assert!(told.contains("3 minutes after that"), "{told}");
        assert!(told.contains("to build first: the static binary, the server"), "{told}");
        assert!(told.contains(&format!("about {download} MB, of which 100 MB")), "{told}");
        assert!(told.contains(&format!("about {} MB in /c", BINARY.kept + SERVER.kept)), "{told}");
        let told = forecast("cargo xtask demo", &[&BINARY], &known(1, false), 0, "/c").join("\n");
        let expect = format!("about {} minutes this time, on one core", (BINARY.seconds * 2 + 180).div_ceil(60));
        assert!(told.contains(&expect), "{told}");
        let told = forecast("cargo xtask demo", &[], &known(4, false), 0, "/c");
        assert_eq!(told, ["cargo xtask demo: about 3 minutes; everything it needs is ready"]);
        let told = forecast("cargo xtask demo", &[], &known(4, true), 0, "/c");
        assert_eq!(told, ["cargo xtask demo: about 3 minutes, as last time; everything it needs is ready"]);
    }
}
