//! The boot image's mkfs programs, built as static programs from Debian's source packages. apt verifies the sources by
//! the archive's signature.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cache::{self, Key};
use crate::command::{command, run_quietly, stdout};
use crate::{debian, elf, host};

/// Makes ext4. File name in the folder that [`build`] returns.
pub const MKE2FS: &str = "mke2fs";
/// Makes XFS. File name in the same folder.
pub const MKFS_XFS: &str = "mkfs.xfs";

/// How to build a program from a source package.
struct Recipe {
    package: &'static str,
    program: &'static str,
    /// Shell commands, run in the unpacked package.
    script: &'static str,
    /// Path of the built program.
    built: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe {
        package: "e2fsprogs",
        program: MKE2FS,
        script: "./configure --quiet --disable-nls --disable-backtrace --disable-debugfs --disable-defrag --disable-fuse2fs \
                 --disable-imager --disable-resizer --disable-tdb --disable-uuidd LDFLAGS='-static -Wl,--gc-sections'\n\
                 make -j\"$(nproc)\" libs\n\
                 make -C misc mke2fs\n",
        built: "misc/mke2fs",
    },
    Recipe {
        package: "xfsprogs",
        program: MKFS_XFS,
        script: "./configure --quiet --disable-gettext --disable-scrub --disable-libicu --disable-shared --enable-static\n\
                 make -j\"$(nproc)\" headers\n\
                 make -j\"$(nproc)\" mkfs LLDFLAGS='-all-static -Wl,--gc-sections'\n",
        built: "mkfs/mkfs.xfs",
    },
];
/// Optimised for size, because these programs wait for the disk.
const CFLAGS: &str = "-Os -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables";
/// Builds the programs and returns their folder in the cache. With the same packages, libraries and compiler it only
/// reads the cache.
pub fn build() -> Result<PathBuf> {
    host::ensure(host::MKFS)?;
    let versions = match versions() {
        Ok(versions) => versions,
        // A new machine has no package lists yet.
        Err(_) => host::refresh_lists().and_then(|()| self::versions())?,
    };
    let libraries = ["--show", "--showformat", "${Package} ${Version}\\n"];
    let mut key = Key::new("mkfs-1")
        .with("cflags", CFLAGS)
        .with("cc", stdout(&mut command("cc", ["--version"]))?)
        .with("libraries", stdout(command("dpkg-query", libraries).args(host::MKFS))?);
    for (recipe, version) in RECIPES.iter().zip(&versions) {
        key = key.with(recipe.package, version).with("script", recipe.script);
    }
    cache::keyed("mkfs", key, |folder| {
        eprintln!("building {MKE2FS} and {MKFS_XFS} from Debian's sources (kept for the next time)");
        let work = tempfile::tempdir_in(folder).context("creating a temporary folder")?;
        fetch(work.path(), &versions).context(
            "fetching sources of e2fsprogs and xfsprogs; if this host's package lists are old, run apt-get update",
        )?;
        let mut recipes = RECIPES.iter().zip(&versions);
        recipes.try_for_each(|(recipe, version)| compile(recipe, version, work.path(), folder))
    })
}

/// Versions of the source packages, in the order of the recipes.
fn versions() -> Result<Vec<String>> {
    RECIPES.iter().map(|recipe| Ok(source_version(&host::candidate(recipe.package)?).to_owned())).collect()
}

/// The version of a package's source: the package version without the binary rebuild number (Debian policy, 5.6.12.1).
fn source_version(version: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    version.rsplit_once("+b").filter(|(_, build)| is_number(build)).map_or(version, |(source, _)| source)
}

/// Fetches the source packages. apt's files are kept in the folder, because the host's own lists may lack sources.
fn fetch(folder: &Path, versions: &[String]) -> Result<()> {
    let list = folder.join("sources.list");
    fs::write(&list, of_sources(&debian::sources()?.list)).with_context(|| format!("writing {}", list.display()))?;
    run_quietly(debian::apt_get(folder, &list)?.arg("update"))?;
    let packages = RECIPES.iter().zip(versions).map(|(recipe, version)| format!("{}={version}", recipe.package));
    run_quietly(debian::apt_get(folder, &list)?.args(["source", "--only-source", "--download-only"]).args(packages))
}

/// The same archives as source entries instead of package entries.
fn of_sources(list: &str) -> String {
    list.lines().map(|line| format!("{}\n", line.replacen("deb ", "deb-src ", 1))).collect()
}

/// Builds one program in `work`, and puts it into `folder`.
fn compile(recipe: &Recipe, version: &str, work: &Path, folder: &Path) -> Result<()> {
    let tree = work.join(recipe.package);
    let description = work.join(format!("{}_{version}.dsc", recipe.package));
    run_quietly(command("dpkg-source", ["--extract"]).arg(description).arg(&tree))?;
    let mut shell = command("sh", ["-euc", recipe.script]);
    shell.current_dir(&tree).env("OPTIMIZER", "-Os").env("DEBUG", "-DNDEBUG");
    run_quietly(shell.env("CFLAGS", format!("{CFLAGS} -ffile-prefix-map={}=.", tree.display())))
        .with_context(|| format!("building {}", recipe.program))?;
    let finished = folder.join(recipe.program);
    run_quietly(command("strip", ["-o"]).arg(&finished).arg(tree.join(recipe.built)))?;
    let bytes = fs::read(&finished).with_context(|| format!("reading {}", finished.display()))?;
    if let Some(reason) = elf::why_not_static(&bytes) {
        bail!("checking that {} is static: {reason}", recipe.program);
    }
    Ok(())
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
