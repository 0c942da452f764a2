//! Releases: programs, the parts of boot images, Debian packages, man pages, a bill of materials, and the digests of
//! all files. The same sources give the same bytes.

mod licences;
mod package;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use slipway_parts::{Arch, Component, Parts};

use crate::build::image::{self, PartsConfig};
use crate::build::{binary, components, kernel, server};
use crate::host::command::{command, run_and_tell, run_quietly};
use crate::host::{cache, files, workspace};
use package::Package;

/// The version of all crates.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Name of the file with the digests of all others, in the format of sha256sum.
pub const SUMS: &str = "SHA256SUMS";
/// Name of the server's bill of materials.
pub const SBOM: &str = "slipway-server.spdx.json";
/// Name of the folder of man pages.
const MAN: &str = "man";

/// Everything that goes into a release.
pub struct Inputs {
    /// `slipway-server` for this host.
    pub server: PathBuf,
    /// The folder with the man pages and completions of `slipway`, if they were built.
    pub manual: Option<PathBuf>,
    /// The parts of boot images. Each includes the static program of its architecture.
    pub parts: Vec<PartsConfig>,
    /// Date of all files, in seconds since 1970.
    pub date: u64,
}

/// Builds everything in a release, with boot images for these architectures.
pub fn inputs(archs: &[Arch]) -> Result<Inputs> {
    let mut parts = Vec::new();
    for arch in archs {
        for kernel in [kernel::GENERIC, kernel::CLOUD] {
            parts.push(image::config(kernel, *arch)?);
        }
    }
    Ok(Inputs { server: build_server()?, manual: Some(build_manual()?), parts, date: date()? })
}

/// Returns the date of a release in seconds since 1970: the last change to its sources.
pub fn date() -> Result<u64> {
    let mut sources: BTreeSet<PathBuf> = BTreeSet::new();
    for package in ["slipway", "slipway-server"] {
        sources.extend(workspace::folders_of(package)?);
    }
    sources.extend(["initramfs", "packaging"].map(|name| workspace::root().join(name)));
    workspace::source_date(&sources.into_iter().collect::<Vec<_>>())
}

/// Writes the files of a release into a folder, which is emptied first. Returns their paths in the folder.
pub fn make(inputs: &Inputs, out: &Path) -> Result<Vec<PathBuf>> {
    files::empty_dir(out)?;
    let server = out.join("slipway-server");
    run_quietly(command("strip", ["--strip-unneeded", "-o"]).arg(&server).arg(&inputs.server))?;
    let folders = copy_parts(&inputs.parts, &out.join("parts"))?;
    let manual = tempfile::tempdir().context("creating a temporary folder")?;
    run_quietly(command(&server, ["manual"]).arg(manual.path()))?;

    let components = components::crates("slipway-server", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH))?;
    let sbom = slipway_parts::sbom(&format!("slipway-server-{VERSION}"), inputs.date, &components);
    write(&out.join(SBOM), &sbom)?;
    package_server(inputs.date, &server, manual.path(), &components, &sbom, out)?;
    package_parts(inputs, &folders, out)?;
    for arch in Arch::ALL {
        if let Some(config) = inputs.parts.iter().find(|config| config.arch == arch) {
            package_program(inputs, config, out)?;
        }
    }
    for folder in [Some(manual.path()), inputs.manual.as_deref()].into_iter().flatten() {
        for page in files_of(folder, ".1")? {
            let name = page.file_name().unwrap_or_default();
            write(&out.join(MAN).join(name), &files::read(&page)?)?;
        }
    }
    let files = cache::files_below(out)?;
    let mut sums = String::new();
    for file in &files {
        let name = file.strip_prefix(out).unwrap_or(file);
        sums.push_str(&format!("{}  {}\n", slipway_parts::sha256(&files::read(file)?), name.display()));
    }
    write(&out.join(SUMS), sums.as_bytes())?;
    cache::files_below(out)
}

/// Builds `slipway-server` so that the program contains no path of this machine, unlike the lab's server. Returns the
/// path of the program.
fn build_server() -> Result<PathBuf> {
    let target = cache::cargo_target("target-dist", &[&["--release"]])?;
    let maps = [(binary::cargo_home()?, "/cargo"), (target.clone(), "/target")];
    let flags = |option: &str| maps.each_ref().map(|(from, to)| format!("{option}={}={to}", from.display()));
    let mut cargo = command(workspace::cargo(), ["build", "--release", "--package", "slipway-server"]);
    cargo.env("CARGO_TARGET_DIR", &target).env("CARGO_ENCODED_RUSTFLAGS", flags("--remap-path-prefix").join("\x1f"));
    cargo.env("CFLAGS", flags("-ffile-prefix-map").join(" ")).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway-server for the release (kept for the next time)")?;
    let program = target.join("release/slipway-server");
    let bytes = files::read(&program)?;
    for private in [workspace::root(), binary::cargo_home()?, cache::root()?] {
        let needle = private.as_os_str().as_encoded_bytes();
        if bytes.windows(needle.len()).any(|window| window == needle) {
            bail!("checking {}: it contains the path {} of this machine", program.display(), private.display());
        }
    }
    Ok(program)
}

/// Builds `slipway` with the command that writes its manual, runs it, and returns the folder with the result.
fn build_manual() -> Result<PathBuf> {
    let target = server::host_target()?;
    let mut cargo = command(workspace::cargo(), ["build", "--package", "slipway", "--features", "manual"]);
    cargo.env("CARGO_TARGET_DIR", &target).current_dir(workspace::root());
    run_and_tell(&mut cargo, "Compiling", "building slipway's man pages")?;
    let folder = workspace::root().join("target/slipway/manual-of-slipway");
    files::empty_dir(&folder)?;
    run_quietly(command(target.join("debug/slipway"), ["manual"]).arg(&folder))?;
    Ok(folder)
}

/// Copies the parts and returns their new folders.
fn copy_parts(configs: &[PartsConfig], to: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for config in configs {
        let name = format!("{}-{}", config.arch.name(), config.kernel_name);
        for file in cache::files_below(&image::build_parts(config)?.join(&name))? {
            write(&to.join(&name).join(file.file_name().unwrap_or_default()), &files::read(&file)?)?;
        }
        folders.push(to.join(name));
    }
    Ok(folders)
}

fn package_server(
    date: u64,
    program: &Path,
    manual: &Path,
    components: &[Component],
    sbom: &[u8],
    out: &Path,
) -> Result<()> {
    let arch = Arch::ALL.into_iter().find(|arch| arch.is_of_host());
    let arch = arch.context("packaging slipway-server: there are no packages for this architecture")?;
    let package = Package::new("slipway-server", arch.debian(), date)?;
    package.add_program("usr/bin/slipway-server", &files::read(program)?)?;
    for (name, path) in [
        ("slipway-server.service", "usr/lib/systemd/system/slipway-server.service"),
        ("default", "etc/default/slipway-server"),
        ("sysusers.conf", "usr/lib/sysusers.d/slipway-server.conf"),
        ("tmpfiles.conf", "usr/lib/tmpfiles.d/slipway-server.conf"),
    ] {
        package.add(path, &packaging(&format!("slipway-server/{name}"))?)?;
    }
    for hook in ["ipmi", "wake-on-lan"] {
        package.add_program(
            &format!("usr/lib/slipway/power/{hook}"),
            &packaging(&format!("slipway-server/power/{hook}"))?,
        )?;
    }
    add_manual(&package, "slipway-server", manual)?;
    add_licences(&package, "copyright", components, sbom)?;
    let libraries = package.libraries("usr/bin/slipway-server")?;
    package.build(&libraries, &["-Zxz"], out).map(drop)
}

fn package_parts(inputs: &Inputs, folders: &[PathBuf], out: &Path) -> Result<()> {
    let package = Package::new("slipway-parts", "all", inputs.date)?;
    let mut components = Vec::new();
    for folder in folders {
        let parts = Parts::open(folder)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        for (file, content) in parts.files() {
            package.add(&format!("usr/share/slipway/parts/{name}/{file}"), &content)?;
        }
        components.extend(parts.about.components);
    }
    let sbom = slipway_parts::sbom(&format!("slipway-parts-{VERSION}"), inputs.date, &components);
    add_licences(&package, "slipway-parts/copyright", &components, &sbom)?;
    let kernels: Vec<PathBuf> = inputs.parts.iter().map(|config| config.kernel.root.clone()).collect();
    for (name, text) in licences::of_debian(&components, &kernels)? {
        package.add_compressed(&package.doc(&format!("licences/{name}.gz")), &text)?;
    }
    // The files are already compressed.
    package.build("", &["-Zgzip", "-z1"], out).map(drop)
}

fn package_program(inputs: &Inputs, config: &PartsConfig, out: &Path) -> Result<()> {
    let package = Package::new("slipway", config.arch.debian(), inputs.date)?;
    package.add_program("usr/bin/slipway", &files::read(&config.binary)?)?;
    package.add("usr/share/lintian/overrides/slipway", &packaging("slipway/lintian-overrides")?)?;
    if let Some(manual) = &inputs.manual {
        add_manual(&package, "slipway", manual)?;
    }
    let components = components::crates("slipway", &binary::target(config.arch))?;
    let sbom = slipway_parts::sbom(&format!("slipway-{VERSION}-{}", config.arch.name()), inputs.date, &components);
    add_licences(&package, "copyright", &components, &sbom)?;
    package.build("", &["-Zxz"], out).map(drop)
}

/// Adds man pages and shell completions, each in the folder where its shell looks for the completions of packages.
fn add_manual(package: &Package, program: &str, manual: &Path) -> Result<()> {
    let pages = files_of(manual, ".1")?;
    ensure!(!pages.is_empty(), "adding man pages: {} has no man page", manual.display());
    for page in pages {
        let name = page.file_name().unwrap_or_default().to_string_lossy();
        package.add_compressed(&format!("usr/share/man/man1/{name}.gz"), &files::read(&page)?)?;
    }
    for (name, path) in [
        (format!("{program}.bash"), format!("usr/share/bash-completion/completions/{program}")),
        (format!("_{program}"), format!("usr/share/zsh/vendor-completions/_{program}")),
        (format!("{program}.fish"), format!("usr/share/fish/vendor_completions.d/{program}.fish")),
    ] {
        package.add(&path, &files::read(&manual.join(name))?)?;
    }
    Ok(())
}

/// Adds the bill of materials, the file of `packaging` with the name `copyright`, and the licences of the crates.
fn add_licences(package: &Package, copyright: &str, components: &[Component], sbom: &[u8]) -> Result<()> {
    package.add(&package.doc("copyright"), &packaging(copyright)?)?;
    package.add(&package.doc("slipway.spdx.json"), sbom)?;
    package.add_compressed(&package.doc("licences.gz"), licences::of_crates(components)?.as_bytes())
}

/// Reads a file of the folder `packaging`.
fn packaging(name: &str) -> Result<Vec<u8>> {
    files::read(&workspace::root().join("packaging").join(name))
}

/// Lists the files in a folder whose names end with `end`, sorted.
fn files_of(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let mut files = cache::files_below(folder)?;
    files.retain(|file| file.to_string_lossy().ends_with(end));
    Ok(files)
}

/// Writes a file with mode 644, and creates the folders above it.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o644)))
        .with_context(|| format!("writing {}", path.display()))
}
