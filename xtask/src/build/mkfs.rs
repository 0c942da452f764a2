//! The boot image's mkfs programs, built as static programs from Debian's source packages. apt verifies the sources by
//! the archive's signature.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use slipway_parts::Arch;

use crate::build::elf;
use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{debian, files, packages};

/// File name of the program that makes ext4, in the folder that [`build`] returns.
pub const MKE2FS: &str = "mke2fs";
/// File name of the program that makes XFS, in the same folder.
pub const MKFS_XFS: &str = "mkfs.xfs";

/// How to build a program from a source package.
struct Recipe {
    package: &'static str,
    program: &'static str,
    /// Shell commands, run in the unpacked package. `$HOST` is empty, or configure's option for a cross build.
    script: &'static str,
    /// Path of the built program.
    built: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe {
        package: "e2fsprogs",
        program: MKE2FS,
        script: "./configure --quiet $HOST --disable-nls --disable-backtrace --disable-debugfs --disable-defrag \
                 --disable-fuse2fs --disable-imager --disable-resizer --disable-tdb --disable-uuidd LDFLAGS='-static \
                 -Wl,--gc-sections'\n\
                 make -j\"$(nproc)\" libs\n\
                 make -C misc mke2fs\n",
        built: "misc/mke2fs",
    },
    Recipe {
        package: "xfsprogs",
        program: MKFS_XFS,
        script: "./configure --quiet $HOST --disable-gettext --disable-scrub --disable-libicu --disable-shared \
                 --enable-static\n\
                 make -j\"$(nproc)\" headers\n\
                 make -j\"$(nproc)\" mkfs LLDFLAGS='-all-static -Wl,--gc-sections'\n",
        built: "mkfs/mkfs.xfs",
    },
];
/// C compiler flags. They optimise for size, because the programs mostly wait for the disk.
const CFLAGS: &str = "-Os -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables";
/// Packages with the libraries for arm64. The C library comes with the cross compiler.
const LIBRARIES: &[&str] = &["libblkid-dev", "libinih-dev", "liburcu-dev", "uuid-dev"];
/// Name of arm64 in the names of tools and folders.
const GNU_ARM64: &str = "aarch64-linux-gnu";

/// Builds the programs and returns their folder in the cache. With the same packages, libraries and compiler it only
/// reads the cache.
pub fn build(arch: Arch) -> Result<PathBuf> {
    // The host's library versions are part of the key for arm64 too, because Debian builds both from one source.
    let packages = match arch {
        Arch::X86_64 => packages::MKFS.to_vec(),
        Arch::Aarch64 => [packages::MKFS, packages::MKFS_ARM64].concat(),
    };
    packages::ensure(&packages)?;
    let versions = match versions() {
        Ok(versions) => versions,
        // A new machine has no package lists yet.
        Err(_) => packages::refresh_lists().and_then(|()| self::versions())?,
    };
    let libraries = ["--show", "--showformat", "${Package} ${Version}\\n"];
    let mut key = Key::new("mkfs-1")
        .with("architecture", arch.name())
        .with("cflags", CFLAGS)
        .with("cc", stdout(&mut command("cc", ["--version"]))?)
        .with("libraries", stdout(command("dpkg-query", libraries).args(&packages))?);
    for (recipe, version) in RECIPES.iter().zip(&versions) {
        key = key.with(recipe.package, version).with("script", recipe.script);
    }
    cache::keyed("mkfs", key, |folder| {
        let name = arch.name();
        eprintln!("building {MKE2FS} and {MKFS_XFS} for {name} from Debian's sources (kept for the next time)");
        let work = tempfile::tempdir_in(folder).context("creating a temporary folder")?;
        let list = debian::sources()?.list;
        fetch(work.path(), &list, &versions).context(
            "fetching sources of e2fsprogs and xfsprogs; if this host's package lists are old, run apt-get update",
        )?;
        let cross = match arch {
            Arch::X86_64 => None,
            Arch::Aarch64 => Some(cross_compiler(work.path(), &list)?),
        };
        for (recipe, version) in RECIPES.iter().zip(&versions) {
            let program = compile(recipe, version, cross.as_deref(), work.path())?;
            let bytes = files::read(&program)?;
            if let Some(reason) = elf::why_not_static(&bytes, arch) {
                bail!("checking that {} is a static program for {name}: {reason}", recipe.program);
            }
            let finished = folder.join(recipe.program);
            fs::rename(&program, &finished).with_context(|| format!("creating {}", finished.display()))?;
        }
        Ok(())
    })
}

/// Returns the versions of the source packages, in the order of the recipes.
fn versions() -> Result<Vec<String>> {
    RECIPES.iter().map(|recipe| Ok(source_version(&packages::candidate(recipe.package)?).to_owned())).collect()
}

/// Returns the version of a package's source: the package version without the binary rebuild number (Debian policy,
/// 5.6.12.1).
fn source_version(version: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    version.rsplit_once("+b").filter(|(_, build)| is_number(build)).map_or(version, |(source, _)| source)
}

/// Fetches the source packages into a folder. Makes apt lists in that folder, because the host's may lack sources.
fn fetch(folder: &Path, list: &str, versions: &[String]) -> Result<()> {
    let archive = debian::Archive::open(folder, &of_sources(list), Arch::X86_64)?;
    let packages = RECIPES.iter().zip(versions).map(|(recipe, version)| format!("{}={version}", recipe.package));
    run_quietly(archive.apt("apt-get").args(["source", "--only-source", "--download-only"]).args(packages))
}

/// Returns the entries of `list` as `deb-src` entries.
fn of_sources(list: &str) -> String {
    list.lines().map(|line| format!("{}\n", line.replacen("deb ", "deb-src ", 1))).collect()
}

/// Unpacks the libraries for arm64 in a folder, and returns the C compiler with the options to find them.
fn cross_compiler(work: &Path, list: &str) -> Result<String> {
    let root = work.join("arm64");
    debian::Archive::open(&work.join("arm64-apt"), list, Arch::Aarch64)?
        .unpack(LIBRARIES, &root)
        .context("fetching libraries for arm64")?;
    let (include, lib) = (root.join("usr/include"), root.join("usr/lib").join(GNU_ARM64));
    let (include, lib) = (include.display(), lib.display());
    Ok(format!("{GNU_ARM64}-gcc -isystem {include} -isystem {include}/{GNU_ARM64} -L{lib}"))
}

/// Builds one program in `work`, with the compiler `cross` if given, and returns its path.
fn compile(recipe: &Recipe, version: &str, cross: Option<&str>, work: &Path) -> Result<PathBuf> {
    let tree = work.join(recipe.package);
    let description = work.join(format!("{}_{version}.dsc", recipe.package));
    run_quietly(command("dpkg-source", ["--extract"]).arg(description).arg(&tree))?;
    let mut shell = command("sh", ["-euc", recipe.script]);
    shell.current_dir(&tree).env("OPTIMIZER", "-Os").env("DEBUG", "-DNDEBUG").env("HOST", "");
    let mut strip = "strip".to_owned();
    if let Some(compiler) = cross {
        shell.env("CC", compiler).env("HOST", format!("--host={GNU_ARM64}"));
        strip = format!("{GNU_ARM64}-strip");
    }
    run_quietly(shell.env("CFLAGS", format!("{CFLAGS} -ffile-prefix-map={}=.", work.display())))
        .with_context(|| format!("building {}", recipe.program))?;
    let finished = work.join(recipe.program);
    run_quietly(command(&strip, ["-o"]).arg(&finished).arg(tree.join(recipe.built)))?;
    Ok(finished)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_built_anew_is_of_the_same_source() {
        let check = |version: &str, expect: &str| assert_eq!(source_version(version), expect);
        check("1.47.0-2+b2", "1.47.0-2");
        check("6.1.0-1", "6.1.0-1");
        check("2.38.1-5+deb12u3", "2.38.1-5+deb12u3");
        check("2.38.1-5+deb12u3+b1", "2.38.1-5+deb12u3");
        check("1.0+beta-1", "1.0+beta-1");
    }
}
