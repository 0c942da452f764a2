//! A machine that has never seen the project: a Debian in a folder with a Rust toolchain. The README's commands run in
//! it as for a new user.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::host::cache::{self, Key};
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{debian, files, packages, workspace};

/// What a new user has in addition to Debian's smallest system and the toolchain. A Rust toolchain needs a C compiler
/// to link.
const PACKAGES: &[&str] = &["ca-certificates", "git", "gcc", "libc6-dev"];
/// Path of the toolchain in the new system.
const TOOLCHAIN: &str = "opt/rust";
/// Downloads kept between fresh machines: name in our cache, and path in the new system.
const DOWNLOADS: [(&str, &str); 3] = [
    ("fresh-download/apt", "var/cache/apt/archives"),
    ("fresh-download/crates", "root/.cargo/registry"),
    ("fresh-download/pip", "root/.cache/pip"),
];
/// Cache folder of the slowest build. It is the only one that a fresh machine may share with this one.
pub const SLOWEST: [&str; 1] = ["target-image"];
/// This machine's settings for reaching package mirrors.
const NETWORK_SETTINGS: [&str; 9] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "CARGO_REGISTRIES_CRATES_IO_PROTOCOL",
];
/// The heading in the README above the commands.
const HEADING: &str = "## Two commands";
/// Prefixes of messages: of installing packages on the host, and of building and fetching.
const INSTALLS: &str = "installing on this host";
const WORKS: [&str; 2] = ["building ", "fetching "];

/// Returns the commands below a README's heading, without their comments.
pub fn commands(readme: &str) -> Vec<String> {
    let section =
        readme.lines().skip_while(|line| *line != HEADING).skip(1).take_while(|line| !line.starts_with("## "));
    let indented = section.filter_map(|line| line.strip_prefix("    cargo "));
    indented.map(|line| format!("cargo {}", line.split('#').next().unwrap_or_default().trim())).collect()
}

/// A fresh machine, removed on drop.
pub struct Machine {
    root: PathBuf,
    log: PathBuf,
    lent: Vec<&'static str>,
}

impl Machine {
    /// Makes the machine in a folder, which is emptied, with a clone of the last commit. The machine shares the cache
    /// folders `lent`, from [`SLOWEST`]. Needs root.
    pub fn new(folder: &Path, lent: &[&'static str]) -> Result<Self> {
        if !packages::is_root()? {
            bail!("making a fresh machine: only root can create its devices and mounts; run this as root");
        }
        files::empty_dir(folder)?;
        let root = folder.join("root");
        files::create_dir(&root)?;
        run_quietly(
            command("tar", ["--extract", "--numeric-owner", "--file"]).arg(pristine(PACKAGES)?).arg("-C").arg(&root),
        )?;
        let machine = Self { root, log: folder.join("log"), lent: lent.to_vec() };
        machine.connect()?;
        let source = machine.root.join("srv/slipway.git");
        run_quietly(
            command("git", ["clone", "--quiet", "--bare", "--no-hardlinks"]).arg(workspace::root()).arg(&source),
        )?;
        machine.run("git clone --quiet /srv/slipway.git /root/slipway", "/", &mut |_| {})?;
        Ok(machine)
    }

    /// Runs a command in the clone and prints and logs its output. Fails if the command fails or installs packages on
    /// the host after it began to build.
    pub fn run_in_clone(&self, line: &str) -> Result<Duration> {
        let (began, mut works, mut late) = (Instant::now(), false, None);
        self.run(line, "/root/slipway", &mut |said| {
            println!("{said}");
            works |= WORKS.iter().any(|word| said.starts_with(word));
            if works && said.starts_with(INSTALLS) {
                late = Some(said.to_owned());
            }
        })?;
        match late {
            Some(said) => bail!("running {line}: it started to build before it printed {said:?}"),
            None => Ok(began.elapsed()),
        }
    }

    /// Gives the machine what it needs to reach package mirrors: name resolution, certificates, settings.
    fn connect(&self) -> Result<()> {
        let copies = [
            ("/etc/resolv.conf", "etc/resolv.conf"),
            ("/usr/local/share/ca-certificates", "usr/local/share"),
            ("/etc/pip.conf", "etc/pip.conf"),
            ("/root/.cargo/config.toml", "root/.cargo/config.toml"),
        ];
        for (from, to) in copies.iter().filter(|(from, _)| Path::new(from).exists()) {
            let to = self.root.join(to);
            let folder = to.parent().unwrap_or(&self.root);
            files::create_dir(folder)?;
            run_quietly(command("cp", ["--recursive", "--dereference", from]).arg(&to))?;
        }
        let settings = stdout(&mut command("apt-config", ["dump", "Acquire"]))?;
        // The machine uses this host's mirror and its apt settings. A frozen mirror has expired lists, and the host's
        // settings then accept them.
        let is_of_mirror = |line: &&str| line.contains("::proxy ") || line.starts_with("Acquire::Check-Valid-Until ");
        let settings: Vec<&str> = settings.lines().filter(is_of_mirror).collect();
        let file = self.root.join("etc/apt/apt.conf.d/90mirror");
        files::write(&file, settings.join("\n"))?;
        self.run("update-ca-certificates", "/", &mut |_| {})
    }

    /// Runs a shell line in the machine. The environment has only the variables that the network needs.
    fn run(&self, line: &str, folder: &str, hear: &mut dyn FnMut(&str)) -> Result<()> {
        let sysroot = stdout(command("rustc", ["--print", "sysroot"]).current_dir(workspace::root()))?;
        let mut mounts = vec![(PathBuf::from(sysroot.trim()), TOOLCHAIN.to_owned())];
        for (name, place) in DOWNLOADS {
            mounts.push((cache::folder(name)?, place.to_owned()));
        }
        for name in &self.lent {
            mounts.push((cache::folder(name)?, format!("root/.cache/slipway/{name}")));
        }
        // In new namespaces, so that all processes end with the first process, and the mounts end with the last.
        let script = r#"
            exec 2>&1
            root=$1 folder=$2 line=$3
            shift 3
            mount --bind "$root" "$root"
            for shared in dev sys; do mount --rbind "/$shared" "$root/$shared"; done
            mount -t proc proc "$root/proc"
            while [ "$1" != -- ]; do
                mkdir -p "$root/$2"
                mount --bind "$1" "$root/$2"
                shift 2
            done
            shift
            cd "$root"
            pivot_root . .
            umount --lazy .
            exec env -i "$@" sh -euc 'cd "$1" && eval "$2"' sh "$folder" "$line""#;
        let mut shell = command("unshare", ["--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]);
        shell.args(["sh", "-euc", script, "sh"]).arg(&self.root).args([folder, line]);
        for (from, to) in &mounts {
            shell.arg(from).arg(to);
        }
        let path = format!("PATH=/{TOOLCHAIN}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        shell.args(["--", "HOME=/root", "TERM=dumb", "LANG=C.UTF-8", &path]);
        for name in NETWORK_SETTINGS {
            if let Ok(value) = std::env::var(name) {
                shell.arg(format!("{name}={value}"));
            }
        }
        let mut log = File::options().create(true).append(true).open(&self.log);
        let log = log.as_mut().map_err(|error| anyhow::anyhow!("opening {}: {error}", self.log.display()))?;
        let mut child = shell.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("starting unshare")?;
        for said in BufReader::new(child.stdout.take().context("starting unshare")?).lines() {
            let said = said.with_context(|| format!("reading the output of {line}"))?;
            writeln!(log, "{said}").with_context(|| format!("writing {}", self.log.display()))?;
            hear(&said);
        }
        let status = child.wait().with_context(|| format!("waiting for {line}"))?;
        if !status.success() {
            bail!("running {line} on a fresh machine: {status}; its output is in {}", self.log.display());
        }
        Ok(())
    }

    /// Keeps the machine's folder and returns its path.
    pub fn keep(self) -> PathBuf {
        let root = self.root.clone();
        std::mem::forget(self);
        root
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Nothing is mounted below the folder any more: the mounts ended with the processes in their namespace.
        if let Err(error) = fs::remove_dir_all(&self.root) {
            eprintln!("removing {}: {error}", self.root.display());
        }
    }
}

/// Makes Debian's smallest system with these packages as a tar file, or finds it in the cache. Returns the file's path.
pub fn pristine(packages: &[&str]) -> Result<PathBuf> {
    packages::ensure(packages::TARGET_IMAGE)?;
    let sources = debian::sources()?;
    let key = Key::new("fresh-root-1").with("sources", &sources.list).with("packages", packages.join(" "));
    let folder = cache::keyed("fresh-root", key, |folder| {
        eprintln!("building the root of a fresh machine: Debian {} (kept for the next time)", sources.suite);
        let list = folder.join("sources.list");
        files::write(&list, &sources.list)?;
        let mut mmdebstrap = command("mmdebstrap", ["--variant=minbase", "--quiet"]);
        mmdebstrap.arg(format!("--include={}", packages.join(",")));
        run_quietly(mmdebstrap.arg(&sources.suite).arg(folder.join("root.tar")).arg(&list))
    })?;
    Ok(folder.join("root.tar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_the_readme_are_run_as_they_are_written() -> Result<()> {
        let readme = fs::read_to_string(workspace::root().join("README.md"))?;
        assert_eq!(commands(&readme), ["cargo xtask demo", "cargo xtask test"]);
        Ok(())
    }
}
