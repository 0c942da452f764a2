//! The static musl binary `slipway`, built with the first toolchain that works: the current Rust toolchain with a musl
//! target, or Debian's compiler with a std built from source. In both cases zig, through cargo-zigbuild, links and
//! compiles the C code of dependencies (zstd, xz, ring).

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::build::elf;
use crate::host::cache::{self, Key};
use crate::host::command::{command, run, run_quietly, stdout};
use crate::host::{files, packages, python, workspace};

use slipway_parts::Arch;

/// Rust target triple of static programs.
pub(crate) fn target(arch: Arch) -> String {
    format!("{}-unknown-linux-musl", arch.name())
}

/// Where the compiler and std come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Toolchain {
    /// The compiler that cargo uses, with a musl target that is installed or that rustup can add.
    Rustup,
    /// Debian's `rustc-web`, and a std built from `rust-web-src`.
    Debian,
}

/// The cargo profile the binary is built with.
const PROFILE: &str = "static";
/// C compiler flags. zstd has compressors for every level, but capture-disk only uses level 3. zstd's decoder copies a
/// few bytes at a time in loops, which become slower when clang unrolls them.
const CFLAGS: &str = "-fno-unroll-loops -DZSTD_EXCLUDE_GREEDY_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_LAZY_BLOCK_COMPRESSOR \
                      -DZSTD_EXCLUDE_LAZY2_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_BTLAZY2_BLOCK_COMPRESSOR \
                      -DZSTD_EXCLUDE_BTOPT_BLOCK_COMPRESSOR -DZSTD_EXCLUDE_BTULTRA_BLOCK_COMPRESSOR";
/// What liblzma's own build system would detect: checksums by PCLMULQDQ if the processor has it, and copies of 16 bytes
/// by SSE2, which x86-64 always has.
const X86_64_CFLAGS: &str = "-DHAVE_USABLE_CLMUL -DHAVE_CPUID_H -DHAVE_IMMINTRIN_H -DTUKLIB_FAST_UNALIGNED_ACCESS";

/// Builds the binary and returns its path in the cache. With the same sources, compiler and flags it only reads the
/// cache. Without a `toolchain`, the first that works is used.
pub fn build(arch: Arch, toolchain: Option<Toolchain>) -> Result<PathBuf> {
    let toolchain = toolchain.unwrap_or_else(|| default_toolchain(arch));
    match toolchain {
        Toolchain::Rustup if !has_target(arch) => {
            bail!("looking for a Rust std for {}: not installed, and rustup could not add it", target(arch))
        }
        Toolchain::Rustup => {}
        Toolchain::Debian => packages::ensure(packages::DEBIAN_RUST)?,
    }

    let folders = workspace::folders_of("slipway")?;
    let date = workspace::source_date(&folders)?;
    let flags = flags(toolchain)?;
    let root = workspace::root();
    let mut key = Key::new("binary-1")
        .with("target", target(arch))
        .with("rustc", stdout(command(rustc(toolchain), ["-vV"]).current_dir(&root))?)
        .with("flags", flags.join("\n"))
        .with("cflags", cflags(arch))
        .with("zig", python::ZIG.join("\n"))
        .with("date", date.to_string());
    for shared in ["Cargo.toml", "Cargo.lock"] {
        key = key.with_path(&root.join(shared))?;
    }
    for folder in &folders {
        let name = folder.strip_prefix(&root).unwrap_or(folder);
        key = key.with("folder", name.to_string_lossy().as_bytes()).with_path(folder)?;
    }

    let folder = cache::keyed("binary", key, |folder| {
        eprintln!("building the static binary for {} (kept for the next time)", arch.name());
        let built = compile(arch, toolchain, &flags, date)?;
        check(&built, arch)?;
        fs::copy(&built, folder.join("slipway")).with_context(|| format!("copying {}", built.display())).map(drop)
    })?;
    Ok(folder.join("slipway"))
}

/// Chooses rustup's toolchain if it has the musl target or can add it, else Debian's.
pub fn default_toolchain(arch: Arch) -> Toolchain {
    if has_target(arch) { Toolchain::Rustup } else { Toolchain::Debian }
}

/// Whether the current toolchain has a std for the target. Asks rustup to add it if it is missing.
fn has_target(arch: Arch) -> bool {
    let installed = || {
        let query = ["--print", "target-libdir", "--target", &target(arch)];
        let folder = stdout(command(rustc(Toolchain::Rustup), query).current_dir(workspace::root()));
        folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
    };
    installed() || {
        let add = ["target", "add", &target(arch)];
        run_quietly(command("rustup", add).current_dir(workspace::root())).is_ok() && installed()
    }
}

fn rustc(toolchain: Toolchain) -> &'static str {
    match toolchain {
        Toolchain::Rustup => "rustc",
        Toolchain::Debian => "/usr/bin/rustc",
    }
}

/// Returns the compiler flags. They replace two paths of this machine that panic messages would contain: registry
/// sources and build script output. Paths of workspace crates are already relative to the workspace.
fn flags(toolchain: Toolchain) -> Result<Vec<String>> {
    let mut flags = vec![
        format!("-Clink-arg=-Wl,-T,{}", linker_script()?.display()),
        format!("--remap-path-prefix={}=/cargo", cargo_home()?.display()),
        format!("--remap-path-prefix={}=/target", target_folder(toolchain)?.display()),
    ];
    if toolchain == Toolchain::Debian {
        // Debian's compiler has no musl start files. zig has them.
        flags.push("-Clink-self-contained=no".to_owned());
    }
    Ok(flags)
}

/// A panic prints its message and ends the process without unwinding, so the unwind tables, a tenth of the program, are
/// not needed. The compiler can omit the tables of our code, but not those of std, of C libraries, and of code that std
/// is inlined into.
const LINKER_SCRIPT: &str =
    "SECTIONS { /DISCARD/ : { *(.eh_frame) *(.eh_frame_hdr) *(.gcc_except_table*) } }\nINSERT AFTER .rodata;\n";

/// Writes the linker script to the cache. Its path is one of the flags and so part of the build's key, and must stay
/// the same.
fn linker_script() -> Result<PathBuf> {
    let folder = cache::keyed("linker-script", Key::new("linker-script-1").with("text", LINKER_SCRIPT), |folder| {
        let path = folder.join("slipway.ld");
        files::write(&path, LINKER_SCRIPT)
    })?;
    Ok(folder.join("slipway.ld"))
}

/// Target folder for musl builds.
fn target_folder(toolchain: Toolchain) -> Result<PathBuf> {
    let name = match toolchain {
        Toolchain::Rustup => "target-rustup",
        Toolchain::Debian => "target-debian",
    };
    let targets = [Arch::X86_64, Arch::Aarch64].map(target);
    let profiles = targets.each_ref().map(|target| ["--profile", PROFILE, "--target", target.as_str()]);
    cache::cargo_target(name, &profiles.each_ref().map(|profile| profile.as_slice()))
}

fn cflags(arch: Arch) -> String {
    match arch {
        Arch::X86_64 => format!("{CFLAGS} {X86_64_CFLAGS}"),
        Arch::Aarch64 => CFLAGS.to_owned(),
    }
}

pub(crate) fn cargo_home() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("CARGO_HOME") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME").context("finding cargo's home: neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}

fn compile(arch: Arch, toolchain: Toolchain, flags: &[String], date: u64) -> Result<PathBuf> {
    let tools = python::environment(python::ZIG)?;
    let target_folder = target_folder(toolchain)?;
    let target = target(arch);
    let arguments = ["zigbuild", "--package", "slipway", "--bin", "slipway", "--profile", PROFILE, "--target", &target];
    let mut cargo = command(tools.join("cargo-zigbuild"), arguments);
    cargo
        .current_dir(workspace::root())
        .env("PATH", path_with(&tools))
        .env("CARGO_TARGET_DIR", &target_folder)
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env(format!("CFLAGS_{}", target.replace('-', "_")), cflags(arch))
        .env("SOURCE_DATE_EPOCH", date.to_string());
    if toolchain == Toolchain::Debian {
        cargo
            .arg("-Zbuild-std=std,panic_abort")
            .env("RUSTC", rustc(toolchain))
            // -Zbuild-std needs a nightly compiler. This variable makes it work with Debian's stable compiler.
            .env("RUSTC_BOOTSTRAP", "1");
    }
    run(&mut cargo)?;
    Ok(target_folder.join(target).join(PROFILE).join("slipway"))
}

/// Returns the search path with our tools first.
fn path_with(tools: &Path) -> std::ffi::OsString {
    let mut path = tools.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PATH") {
        path.push(":");
        path.push(rest);
    }
    path
}

/// Checks that the binary runs on any Linux of its architecture and contains nothing about the machine that built it.
fn check(binary: &Path, arch: Arch) -> Result<()> {
    let bytes = files::read(binary)?;
    if let Some(reason) = elf::why_not_static(&bytes, arch) {
        bail!("checking that {} is static: {reason}", binary.display());
    }
    for private in [workspace::root(), cargo_home()?, cache::root()?] {
        let needle = private.as_os_str().as_encoded_bytes();
        if bytes.windows(needle.len()).any(|window| window == needle) {
            bail!("checking {}: it contains the path {} of this machine", binary.display(), private.display());
        }
    }
    Ok(())
}
