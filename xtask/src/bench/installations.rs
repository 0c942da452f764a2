//! `bench installations`: the real installer installs many systems at once from one server. Each machine is a process
//! with a loop device as its disk, in a mount namespace where the firmware gives it a UUID of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use slipway_parts::Arch;
use slipway_protocol::shared::printable::size;
use slipway_protocol::{NodeState, NodeStatus};

use super::cost::{self, Cost};
use super::disk::LoopDevice;
use super::servers::Servers;
use super::streams::{self, Image, Stream};
use crate::build::binary;
use crate::build::server::Profile;
use crate::host::{command, files};
use crate::lab::server::parse_status;

/// The format of the image, the usual one of images for slipway.
const FORMAT: &str = "zstd-3";
/// Size of each disk in bytes: the image, and room into which its last partition grows.
const DISK: u64 = 2 << 30;
/// Room in bytes that is left to other programs of this host.
const SPARE: u64 = 4 << 30;
/// Runs a command as a machine: with its own UUID, without network interfaces that could identify it, and with nothing
/// in /run. Arguments: a folder for the machine, its UUID, and the command.
const AS_MACHINE: &str = r#"
set -e
folder=$1 uuid=$2
shift 2
mkdir "$folder/sys"
mount --rbind /sys "$folder/sys"
mount -t tmpfs tmpfs /sys/class
ln -s "$folder"/sys/class/* /sys/class/
rm -f /sys/class/dmi /sys/class/net /sys/class/tpm
mkdir -p /sys/class/dmi/id /sys/class/net
echo "$uuid" > /sys/class/dmi/id/product_uuid
mount -t tmpfs tmpfs /run
exec "$@"
"#;

/// What the installations took.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Number of machines at once.
    pub machines: usize,
    /// Seconds of one installation alone.
    pub one_s: f64,
    /// Seconds until the first of the machines was installed.
    pub first_s: f64,
    /// Seconds until half of them were.
    pub median_s: f64,
    /// Seconds until all were.
    pub last_s: f64,
    /// How often longer the last one took than one alone.
    pub last_to_one: f64,
    /// Seconds of processor time of one installer alone.
    pub one_cpu_s: f64,
    /// Seconds of processor time of an installer among the others, on average.
    pub each_cpu_s: f64,
    /// Seconds of processor time of the server, per installation.
    pub server_cpu_s: f64,
    /// Largest resident size of the server in MiB.
    pub server_rss_mib: f64,
    /// Largest resident size of an installer in MiB.
    pub installer_rss_mib: f64,
    /// Share of the time of all processors that was used meanwhile, by whatever ran.
    pub busy: f64,
}

/// A machine with an empty disk and a run that installs the image.
struct Machine {
    folder: PathBuf,
    uuid: String,
    disk: LoopDevice,
}

/// Installs one machine, then this many at once.
pub fn run(folder: &Path, machines: usize, profile: Profile) -> Result<Results> {
    ensure!(machines > 0, "starting installations: there must be at least one machine");
    files::empty_dir(folder)?;
    let slipway = binary::build(Arch::X86_64, None)?;
    let streams: Vec<Stream> = streams::build(Image::Small, &[FORMAT.to_owned()])?;
    let raw = streams.iter().find(|stream| stream.format.extension == "raw");
    let raw = raw.context("making the image: there is no raw one")?;
    let raw_size = std::fs::metadata(&raw.path).with_context(|| format!("measuring {:?}", raw.path))?.len();
    check_room(folder, machines, raw_size)?;
    let streams: Vec<Stream> = streams.into_iter().filter(|stream| stream.format.name == FORMAT).collect();
    let servers = Servers::start(folder, &streams, profile)?;
    let image = streams.first().context("making the image: there is none")?;
    let digest = format!("sha256:{}", image.sha256);
    servers.operator(&["os", "add", "debian", "--image", &digest])?;

    let one = Machine::add(&servers, folder, 0)?;
    let alone = one.install(&servers, &slipway)?;
    drop(one);
    let many = (1..=machines).map(|number| Machine::add(&servers, folder, number)).collect::<Result<Vec<_>>>()?;
    let before = servers.cpu()?.0;
    let mut costs = thread::scope(|scope| {
        let (servers, slipway) = (&servers, &slipway);
        let running: Vec<_> = many.iter().map(|one| scope.spawn(move || one.install(servers, slipway))).collect();
        let ended = running.into_iter().map(|one| one.join().unwrap_or_else(|_| bail!("a thread panicked")));
        ended.collect::<Result<Vec<Cost>>>()
    })?;
    let server_cpu = servers.cpu()?.0 - before;
    check_installed(&servers, machines + 1)?;

    costs.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    let wall = |cost: Option<&Cost>| cost.map_or(0.0, |cost| cost.wall);
    let last_s = wall(costs.last());
    Ok(Results {
        machines,
        one_s: alone.wall,
        first_s: wall(costs.first()),
        median_s: cost::median(&costs).wall,
        last_s,
        last_to_one: last_s / alone.wall,
        one_cpu_s: alone.cpu,
        each_cpu_s: costs.iter().map(|cost| cost.cpu).sum::<f64>() / machines as f64,
        server_cpu_s: server_cpu / machines as f64,
        server_rss_mib: servers.peak_mib()?,
        installer_rss_mib: costs.iter().map(|cost| cost.peak).fold(0.0, f64::max),
        busy: costs.last().map_or(0.0, |cost| cost.busy),
    })
}

/// Refuses to fill the disk of this host. The installer writes each block of an image, also empty ones.
fn check_room(folder: &Path, machines: usize, raw_size: u64) -> Result<()> {
    let mut df = Command::new("df");
    let room = command::stdout(df.args(["--block-size=1", "--output=avail"]).arg(folder))?;
    let room = room.lines().last().and_then(|room| room.trim().parse::<u64>().ok());
    let room = room.with_context(|| format!("measuring the room in {folder:?}"))?;
    let needed = (machines as u64 + 1) * raw_size + SPARE;
    ensure!(
        room >= needed,
        "installing {machines} machines at once: their disks need {} in {folder:?}, and there are {}; make room, or \
         give fewer (--machines)",
        size(needed),
        size(room)
    );
    Ok(())
}

impl Machine {
    fn add(servers: &Servers, bench: &Path, number: usize) -> Result<Self> {
        let folder = bench.join(format!("machine{number}"));
        files::create_dir(&folder)?;
        let uuid = format!("4c4c4544-0042-3010-8058-b7c04f5{number:05x}");
        let name = format!("m{number}");
        servers.operator(&["node", "add", "--name", &name, "--uuid", &uuid, "--release"])?;
        let disk = LoopDevice::sparse(&folder.join("disk"), DISK)?;
        servers.operator(&["run", "start", "--yes", &name, "--os", "debian", "--disk-device", &disk.path])?;
        Ok(Self { folder, uuid, disk })
    }

    fn install(&self, servers: &Servers, slipway: &Path) -> Result<Cost> {
        let (url, ca) = (servers.url(), servers.ca());
        let paths = [&self.folder, slipway, &ca].map(|path| path.display().to_string());
        let [folder, slipway, ca] = &paths;
        let arguments = [
            "--mount", "sh", "-c", AS_MACHINE, "sh", folder, &self.uuid, slipway, "install", "--url", &url, "--ca", ca,
        ];
        let cost = cost::measure("unshare", &arguments, &self.folder)
            .with_context(|| format!("installing on {}", self.disk.path))?;
        Ok(cost)
    }
}

fn check_installed(servers: &Servers, count: usize) -> Result<()> {
    let status = servers.operator(&["status", "--json"])?;
    let nodes = status.lines().map(parse_status).collect::<Result<Vec<NodeStatus>>>()?;
    let installed = nodes.iter().filter(|node| node.state == NodeState::Installed).count();
    ensure!(installed == count, "installing {count} machines: only {installed} are installed; see {}", status);
    Ok(())
}
