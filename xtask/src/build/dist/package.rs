//! Debian packages (deb(5), Debian Policy), made from files and a folder in `packaging`. The same inputs give the same
//! bytes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::VERSION;
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{cache, files, workspace};

/// dpkg's control files, by their names in `packaging/NAME`. Only `control` is required.
const CONTROL: [&str; 5] = ["control", "conffiles", "postinst", "prerm", "postrm"];

/// A package in progress. Its files are collected in a temporary folder.
pub struct Package {
    name: &'static str,
    architecture: &'static str,
    date: u64,
    folder: TempDir,
}

impl Package {
    /// Starts a package without files, described by `packaging/NAME`. `date` is the date of all its files, in seconds
    /// since 1970.
    pub fn new(name: &'static str, architecture: &'static str, date: u64) -> Result<Self> {
        let folder = tempfile::tempdir().context("creating a temporary folder")?;
        let package = Self { name, architecture, date, folder };
        // A "native" package, Debian's own kind, has one change log, in Debian's format.
        let when = stdout(&mut command("date", ["--utc", "--rfc-email", &format!("--date=@{date}")]))?;
        let changes = format!(
            "{name} ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n -- The slipway authors \
             <authors@slipway.invalid>  {when}"
        );
        package.add_compressed(&package.doc("changelog.gz"), changes.as_bytes())?;
        Ok(package)
    }

    /// Adds a file with mode 644.
    pub fn add(&self, path: &str, content: &[u8]) -> Result<()> {
        let path = self.root().join(path);
        let folder = path.parent().unwrap_or(self.folder.path());
        files::create_dir(folder)?;
        files::write(&path, content)
    }

    /// Adds a program with mode 755.
    pub fn add_program(&self, path: &str, content: &[u8]) -> Result<()> {
        self.add(path, content)?;
        let path = self.root().join(path);
        fs::set_permissions(&path, Permissions::from_mode(0o755))
            .with_context(|| format!("changing {}", path.display()))
    }

    /// Adds a gzip-compressed file whose gzip header has no name or time. The path ends in `.gz`.
    pub fn add_compressed(&self, path: &str, content: &[u8]) -> Result<()> {
        self.add(path.trim_end_matches(".gz"), content)?;
        run_quietly(command("gzip", ["-9", "--no-name"]).arg(self.root().join(path.trim_end_matches(".gz"))))
    }

    /// Path of a file in the package's documentation folder.
    pub fn doc(&self, name: &str) -> String {
        format!("usr/share/doc/{}/{name}", self.name)
    }

    /// Finds the packages of the libraries that a program is linked with. Returns them in the format of the field
    /// `Depends`.
    pub fn libraries(&self, program: &str) -> Result<String> {
        // dpkg-shlibdeps reads package names from the control file of a source package.
        let source = tempfile::tempdir().context("creating a temporary folder")?;
        let control = source.path().join("debian/control");
        fs::create_dir(source.path().join("debian"))
            .and_then(|()| {
                fs::write(&control, format!("Source: slipway\n\nPackage: {}\nArchitecture: any\n", self.name))
            })
            .with_context(|| format!("writing {}", control.display()))?;
        let mut shlibdeps = command("dpkg-shlibdeps", ["-O", "-e"]);
        let found = stdout(shlibdeps.arg(self.root().join(program)).current_dir(source.path()))?;
        let libraries = found.trim().strip_prefix("shlibs:Depends=");
        Ok(libraries.with_context(|| format!("looking for the libraries of {program}: there are none"))?.to_owned())
    }

    /// Writes the package into a folder. `libraries` comes from [`Package::libraries`]; `compression` are options of
    /// dpkg-deb.
    pub fn build(self, libraries: &str, compression: &[&str], out: &Path) -> Result<PathBuf> {
        let root = self.root();
        let files = cache::files_below(&root)?;
        let size = files.iter().map(|file| Ok(fs::metadata(file)?.len().div_ceil(1024))).sum::<Result<u64>>()?;
        let sums = files.iter().map(|file| self.sum(file)).collect::<Result<String>>()?;
        let values = [
            ("${version}", VERSION),
            ("${architecture}", self.architecture),
            ("${libraries}", libraries),
            ("${size}", &size.to_string()),
        ];
        let from = workspace::root().join("packaging").join(self.name);
        for name in CONTROL.into_iter().filter(|name| from.join(name).exists()) {
            let mut text =
                String::from_utf8(files::read(&from.join(name))?).with_context(|| format!("reading {name}"))?;
            if name == "control" {
                values.iter().for_each(|(key, value)| text = text.replace(key, value));
            }
            let path = format!("DEBIAN/{name}");
            match text.starts_with("#!") {
                true => self.add_program(&path, text.as_bytes())?,
                false => self.add(&path, text.as_bytes())?,
            }
        }
        self.add("DEBIAN/md5sums", sums.as_bytes())?;
        // Everybody may read the files, whatever the umask is.
        run_quietly(command("chmod", ["--recursive", "u=rwX,go=rX"]).arg(&root))?;
        let path = out.join(format!("{}_{VERSION}_{}.deb", self.name, self.architecture));
        // The number of threads would change the bytes. dpkg-deb replaces file times later than the date by the date.
        let mut build = command("dpkg-deb", ["--root-owner-group", "--threads-max=1"]);
        build.args(compression);
        run_quietly(build.arg("--build").arg(&root).arg(&path).env("SOURCE_DATE_EPOCH", self.date.to_string()))?;
        Ok(path)
    }

    /// Returns the folder of the package's files: a subfolder, because the package would get the temporary folder's
    /// mode, 700.
    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// Returns the line of a file in `md5sums`.
    fn sum(&self, file: &Path) -> Result<String> {
        let sum = stdout(command("md5sum", ["--binary"]).arg(file))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        Ok(format!("{sum}  {}\n", file.strip_prefix(self.root()).unwrap_or(file).display()))
    }
}
