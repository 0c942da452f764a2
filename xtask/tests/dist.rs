//! A release: packages that install where there is neither a compiler nor the repository, and work there.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use slipway_parts::Arch;
use xtask::build::{dist, image, kernel, server};
use xtask::check::fresh;
use xtask::host::packages;

/// The inputs of a release for virtual machines, with the server of the tests.
fn inputs() -> Result<dist::Inputs> {
    let parts = vec![image::config(kernel::CLOUD, Arch::X86_64)?];
    Ok(dist::Inputs { server: server::build_server(server::Profile::Dev)?, manual: None, parts, date: dist::date()? })
}

fn packages(files: &[PathBuf]) -> Vec<&Path> {
    files.iter().map(PathBuf::as_path).filter(|path| path.extension().is_some_and(|end| end == "deb")).collect()
}

fn succeed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let [stdout, stderr] = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    Ok(stdout)
}

/// Runs a script in a root with its own processes and network. The network has nothing but a loopback.
fn run_in(root: &Path, script: &str) -> Result<String> {
    let enter = r#"
        ip link set lo up
        mount --rbind /dev "$1/dev"
        mount -t proc proc "$1/proc"
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 chroot "$1" sh -euc "$2""#;
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--propagation=private",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-euc",
        enter,
        "sh",
    ]);
    succeed(unshare.arg(root).arg(script))
}

/// Edits one line of the server's settings and starts the server as its unit does, then makes boot files and writes a
/// stick. Prints how long the boot files took and how many there are.
const WORK: &str = r#"
    sed -i 's|^#\(SLIPWAY_URL=\).*|\1https://127.0.0.1:8443|' /etc/default/slipway-server
    unit=/usr/lib/systemd/system/slipway-server.service
    options=$(sed -n 's/^Environment="SLIPWAY_OPTIONS=\(.*\)"$/\1/p' $unit)
    . /etc/default/slipway-server
    exec 3>&1
    install -d -m 700 -o slipway -g slipway /var/lib/slipway
    as_server="setpriv --reuid slipway --regid slipway --clear-groups"
    mkfifo /tmp/ready
    SLIPWAY_URL=$SLIPWAY_URL $as_server /usr/bin/slipway-server serve $options >/tmp/ready 2>/tmp/log &
    server=$!
    read ready </tmp/ready || { cat /tmp/log >&3; exit 1; }
    start=$(date +%s%N)
    $as_server slipway-server media build --kernel cloud >/tmp/built
    end=$(date +%s%N)
    truncate -s "$(stat -L -c %s /var/lib/slipway-boot/slipway.img)" /root/stick
    slipway-server media write --disk /root/stick --yes >/tmp/written 2>&1 || { cat /tmp/written >&3; exit 1; }
    cmp /root/stick /var/lib/slipway-boot/slipway.img
    kill $server
    wait $server
    echo "$(( (end - start) / 1000000 )) $(wc -l </tmp/built)"
"#;

#[test]
fn packages_are_the_same_again_and_work_where_there_is_no_compiler() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inputs = inputs()?;
    let out = folder.path().join("dist");
    let files = dist::make(&inputs, &out)?;
    assert_eq!(packages(&files).len(), 3, "{files:?}");
    succeed(Command::new("sha256sum").args(["--check", "--quiet", dist::SUMS]).current_dir(&out))?;

    let again = folder.path().join("again");
    dist::make(&inputs, &again)?;
    assert_eq!(fs::read_to_string(out.join(dist::SUMS))?, fs::read_to_string(again.join(dist::SUMS))?);

    lintian(&packages(&files))?;
    match packages::is_root()? {
        true => install(&packages(&files), &folder.path().join("root")),
        false => {
            eprintln!("not checked: only root can enter another root");
            Ok(())
        }
    }
}

fn lintian(packages: &[&Path]) -> Result<()> {
    if Command::new("lintian").arg("--version").output().is_err() {
        eprintln!("not checked: there is no lintian");
        return Ok(());
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--no-cfg", "--fail-on", "error"]);
    print!("{}", succeed(lintian.args(packages))?);
    Ok(())
}

/// Installs the packages in a new Debian, and works with them.
fn install(packages: &[&Path], root: &Path) -> Result<()> {
    fs::create_dir(root)?;
    let tar = fresh::pristine(&["systemd"])?;
    succeed(Command::new("tar").args(["--extract", "--numeric-owner", "--file"]).arg(tar).arg("-C").arg(root))?;
    for package in packages {
        fs::copy(package, root.join("srv").join(package.file_name().context("a package without a name")?))?;
    }
    run_in(root, "dpkg --install /srv/*.deb")?;
    run_in(root, "systemd-analyze verify --man=no slipway-server.service")?;
    let state = "! command -v gcc; ! command -v cargo; systemctl is-enabled slipway-server || true";
    assert_eq!(run_in(root, state)?, "disabled\n");
    let boot = fs::metadata(root.join("var/lib/slipway-boot"))?;
    assert_eq!(boot.mode() & 0o777, 0o755);
    assert_ne!(boot.uid(), 0);

    let told = run_in(root, WORK)?;
    let (milliseconds, assets) = told.trim().split_once(' ').with_context(|| format!("reading {told:?}"))?;
    let (milliseconds, assets): (u64, u64) = (milliseconds.parse()?, assets.parse()?);
    println!("media build: {assets} assets in {milliseconds} ms");
    assert!(assets >= 5, "{assets} assets");

    // What machines trust stays, even if the package is purged.
    run_in(root, "dpkg --purge slipway-server")?;
    assert!(root.join("var/lib/slipway/ca.key").exists() && !root.join("var/lib/slipway-boot").exists());
    assert!(!root.join("etc/default/slipway-server").exists());
    Ok(())
}
