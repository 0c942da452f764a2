//! `bench stream`: slipway and other tools write an image from a server on loopback to a loop device.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use slipway_parts::Arch;

use super::cost::{self, Cost};
use super::disk::{Kind, LoopDevice};
use super::servers::Servers;
use super::streams::{self, Image, Stream};
use crate::build::binary;
use crate::build::server::Profile;
use crate::host::command::{command, run_quietly, stdout};
use crate::host::{files, packages};

/// The results of `bench stream`.
#[derive(Debug, Default, Serialize)]
pub struct Results {
    /// Whole pipelines.
    pub rows: Vec<Row>,
    /// Each stage on its own.
    pub stages: Vec<StageRow>,
    /// A server's cost of delivering the raw image.
    pub servers: Vec<ServerRow>,
}

/// Results of a whole pipeline: medians over the rounds.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Format of the image.
    pub format: &'static str,
    /// The disk it was written to.
    pub disk: Kind,
    /// The tool that wrote it.
    pub tool: &'static str,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Seconds of processor time, without the server's.
    pub cpu_s: f64,
    /// Peak memory of the largest process, in MiB.
    pub peak_mib: f64,
    /// Wall time of the slowest stage on its own, divided by the pipeline's wall time.
    pub share_of_limit: f64,
    /// Share of all processors' time that was used during the run, including server and kernel. Near 1, no stage can be
    /// as fast as on its own.
    pub busy: f64,
}

/// Results of a stage of slipway by itself: medians over the rounds.
#[derive(Debug, Serialize)]
pub struct StageRow {
    /// Format of the image.
    pub format: &'static str,
    /// The disk that it used, if any.
    pub disk: Option<Kind>,
    /// Name of the stage.
    pub stage: &'static str,
    /// Seconds from start to end.
    pub wall_s: f64,
    /// Seconds of processor time.
    pub cpu_s: f64,
}

/// Results of a server: medians over the rounds.
#[derive(Debug, Serialize)]
pub struct ServerRow {
    /// Name of the server.
    pub server: &'static str,
    /// Seconds until curl has the whole image.
    pub wall_s: f64,
    /// Seconds of the server's processor time.
    pub cpu_s: f64,
}

/// The tool that writes the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Slipway,
    SlipwayReadback,
    SlipwayServer,
    Shell,
    Bmaptool,
    CoreosInstaller,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Slipway => "slipway",
            Tool::SlipwayReadback => "slipway, readback",
            Tool::SlipwayServer => "slipway, slipway-server",
            Tool::Shell => "curl | tee | decoder | dd",
            Tool::Bmaptool => "bmaptool",
            Tool::CoreosInstaller => "coreos-installer",
        }
    }
}

/// State shared by all measurements.
struct Bench {
    slipway: PathBuf,
    coreos_installer: Option<PathBuf>,
    servers: Servers,
    folder: PathBuf,
    bmap: PathBuf,
    raw: PathBuf,
    disk_size: u64,
}

/// The stages, and whether each uses the disk.
const STAGES: [(&str, bool); 4] = [("fetch", false), ("digest", false), ("decode", false), ("write", true)];

/// What one measurement measures (a stream, the disk if one is used, a stage or tool), and its costs so far.
type Measured<T> = (Stream, Option<Kind>, T, Vec<Cost>);

/// Measures everything `rounds` times with these formats (all if `formats` is empty) on these disks, and returns
/// medians. `say` receives progress messages.
pub fn run(
    folder: &Path,
    image: Image,
    rounds: usize,
    formats: &[String],
    disks: &[Kind],
    say: &mut dyn FnMut(&str),
) -> Result<Results> {
    packages::ensure(packages::BENCH)?;
    let all = streams::build(image, formats)?;
    let wanted = |stream: &&Stream| streams::is_wanted(formats, &stream.format);
    let raw = all.first().context("looking for the raw image")?.path.clone();
    let bench = Bench::new(folder, &raw, &all, image.server())?;
    let mut pipelines: Vec<Measured<Tool>> = Vec::new();
    let mut stages: Vec<Measured<&'static str>> = Vec::new();
    let mut servers = [("slipway-server", Vec::new()), ("nginx", Vec::new())];
    for stream in all.iter().filter(wanted) {
        for &disk in disks {
            pipelines.extend(bench.tools().into_iter().map(|tool| (stream.clone(), Some(disk), tool, Vec::new())));
        }
        for (stage, uses_disk) in STAGES {
            let disks = if uses_disk { disks.iter().copied().map(Some).collect() } else { vec![None] };
            stages.extend(disks.into_iter().map(|disk| (stream.clone(), disk, stage, Vec::new())));
        }
    }
    for round in 1..=rounds {
        for (stream, disk, stage, costs) in &mut stages {
            costs.push(bench.stage(stream, *disk, stage)?);
        }
        for (stream, disk, tool, costs) in &mut pipelines {
            let kind = disk.unwrap_or(Kind::Fast);
            let cost = bench.pipeline(stream, kind, *tool, round == 1)?;
            say(&format!("round {round}: {:8} {kind} {:26} {:6.2} s", stream.format.name, tool.name(), cost.wall));
            costs.push(cost);
        }
        for (server, costs) in &mut servers {
            costs.push(bench.serve(&all[0], server)?);
        }
    }
    Ok(summarise(&pipelines, &stages, &servers))
}

fn summarise(
    pipelines: &[Measured<Tool>],
    stages: &[Measured<&'static str>],
    servers: &[(&'static str, Vec<Cost>)],
) -> Results {
    let stages: Vec<StageRow> = stages
        .iter()
        .map(|(stream, disk, stage, costs)| {
            let cost = cost::median(costs);
            StageRow { format: stream.format.name, disk: *disk, stage, wall_s: cost.wall, cpu_s: cost.cpu }
        })
        .collect();
    let limit = |format: &str, disk: Kind| {
        let of_row = stages.iter().filter(|row| row.format == format && row.disk.is_none_or(|used| used == disk));
        of_row.map(|row| row.wall_s).fold(0.0, f64::max)
    };
    let rows = pipelines.iter().map(|(stream, disk, tool, costs)| {
        let (format, disk, cost) = (stream.format.name, disk.unwrap_or(Kind::Fast), cost::median(costs));
        let peak_mib = costs.iter().map(|cost| cost.peak).fold(0.0, f64::max);
        let share_of_limit = limit(format, disk) / cost.wall;
        let Cost { wall: wall_s, cpu: cpu_s, busy, .. } = cost;
        Row { format, disk, tool: tool.name(), wall_s, cpu_s, peak_mib, share_of_limit, busy }
    });
    let servers = servers.iter().map(|(server, costs)| {
        let cost = cost::median(costs);
        ServerRow { server, wall_s: cost.wall, cpu_s: cost.cpu }
    });
    Results { rows: rows.collect(), servers: servers.collect(), stages }
}

impl Bench {
    fn new(folder: &Path, raw: &Path, all: &[Stream], server: Profile) -> Result<Self> {
        files::empty_dir(folder)?;
        let bmap = folder.join("image.bmap");
        run_quietly(command("bmaptool", ["create", "--output"]).arg(&bmap).arg(raw))?;
        let disk_size = fs::metadata(raw).with_context(|| format!("reading {}", raw.display()))?.len();
        // coreos-installer installs nothing unless udev reports partitions to it.
        let udev = Path::new("/run/udev/control");
        let coreos_installer = stdout(&mut command("which", ["coreos-installer"])).ok().filter(|_| udev.exists());
        Ok(Self {
            slipway: binary::build(Arch::X86_64, None)?,
            coreos_installer: coreos_installer.map(|path| path.trim().into()),
            servers: Servers::start(folder, all, server)?,
            folder: folder.to_owned(),
            bmap,
            raw: raw.to_owned(),
            disk_size,
        })
    }

    fn tools(&self) -> Vec<Tool> {
        let mut tools = vec![Tool::Slipway, Tool::SlipwayReadback, Tool::SlipwayServer, Tool::Shell, Tool::Bmaptool];
        tools.extend(self.coreos_installer.iter().map(|_| Tool::CoreosInstaller));
        tools
    }

    /// Runs one tool once on a new disk. If `compare` is set, compares the disk with the image afterwards.
    fn pipeline(&self, stream: &Stream, kind: Kind, tool: Tool, compare: bool) -> Result<Cost> {
        let disk = LoopDevice::new(&self.folder.join("disk"), self.disk_size, kind)?;
        let (nginx, own) = (self.servers.nginx_url(stream), self.servers.slipway_url(stream));
        warm(&if tool == Tool::SlipwayServer { self.servers.slipway_file(stream) } else { stream.path.clone() })?;
        let ca = self.servers.ca().display().to_string();
        let slipway = self.slipway.display().to_string();
        let write = |url, more: &[&str]| {
            let digest = ["--sha256", &stream.sha256, "--disk", &disk.path, "--yes", "--json"];
            let image = ["action", "stream-image", "--url", url, "--ca", &ca];
            cost::measure(&slipway, &[&image[..], &digest, more].concat(), &self.folder)
        };
        let cost = match tool {
            Tool::Slipway => write(&nginx, &[]),
            Tool::SlipwayReadback => write(&nginx, &["--verify", "readback"]),
            Tool::SlipwayServer => write(&own, &[]),
            Tool::Shell => {
                let script = format!(
                    "set -o pipefail; curl --silent --show-error --fail --cacert {ca} {nginx} | tee >(sha256sum > \
                     {}/sum) | {} | dd of={} bs=4M iflag=fullblock oflag=direct conv=fsync status=none",
                    self.folder.display(),
                    stream.format.decoder,
                    disk.path
                );
                cost::measure("bash", &["-c", &script], &self.folder)
            }
            Tool::Bmaptool => {
                let bmap = self.bmap.display().to_string();
                let trusting = format!("SSL_CERT_FILE={ca}");
                cost::measure(
                    "env",
                    &[&trusting, "bmaptool", "copy", "--bmap", &bmap, &nginx, &disk.path],
                    &self.folder,
                )
            }
            Tool::CoreosInstaller => {
                let trusting = format!("SSL_CERT_FILE={ca}");
                let program = self.coreos_installer.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
                let arguments = [&trusting, &program, "install", "--insecure", "--image-url", &nginx, &disk.path];
                cost::measure("env", &arguments, &self.folder)
            }
        };
        let cost = cost.with_context(|| format!("measuring {} with {}", tool.name(), stream.format.name))?;
        if compare {
            // bmaptool does not write the image's holes, which nothing reads.
            let is_partial = tool == Tool::Bmaptool;
            let same = run_quietly(command("cmp", ["--silent"]).arg(&self.raw).arg(&disk.path));
            if same.is_err() && !is_partial {
                bail!("checking what {} wrote from {}: it differs from the image", tool.name(), stream.format.name);
            }
        }
        Ok(cost)
    }

    /// Runs one stage of slipway by itself, with the source in memory except for the fetch stage.
    fn stage(&self, stream: &Stream, disk: Option<Kind>, stage: &str) -> Result<Cost> {
        let slipway = self.slipway.display().to_string();
        let ca = self.servers.ca().display().to_string();
        let (file, raw) = (stream.path.display().to_string(), self.raw.display().to_string());
        let url = self.servers.nginx_url(stream);
        warm(if stage == "write" { &self.raw } else { &stream.path })?;
        let measure =
            |arguments: &[&str]| cost::measure(&slipway, &[&["measure", stage], arguments].concat(), &self.folder);
        match stage {
            "fetch" => measure(&["--url", &url, "--ca", &ca]),
            "digest" => measure(&["--url", &file, "--sha256", &stream.sha256]),
            "decode" => measure(&["--url", &file]),
            _ => {
                let kind = disk.unwrap_or(Kind::Fast);
                let disk = LoopDevice::new(&self.folder.join("disk"), self.disk_size, kind)?;
                measure(&["--url", &raw, "--disk", &disk.path, "--yes"])
            }
        }
    }

    /// Measures a server's cost of delivering an image to curl.
    fn serve(&self, stream: &Stream, server: &str) -> Result<Cost> {
        let ca = self.servers.ca().display().to_string();
        let is_nginx = server == "nginx";
        let url = if is_nginx { self.servers.nginx_url(stream) } else { self.servers.slipway_url(stream) };
        warm(&if is_nginx { stream.path.clone() } else { self.servers.slipway_file(stream) })?;
        let pick = |(slipway, nginx)| if is_nginx { nginx } else { slipway };
        let before = pick(self.servers.cpu()?);
        let get = ["--silent", "--show-error", "--fail", "--cacert", &ca, "--output", "/dev/null", &url];
        let cost = cost::measure("curl", &get, &self.folder)?;
        Ok(Cost { cpu: pick(self.servers.cpu()?) - before, ..cost })
    }
}

/// Reads a file into the page cache. A kernel that reclaims unused pages early (damon) may have dropped the file; then
/// the server's disk would be measured instead.
fn warm(file: &Path) -> Result<()> {
    let copied = fs::File::open(file).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    copied.map(drop).with_context(|| format!("reading {}", file.display()))
}
