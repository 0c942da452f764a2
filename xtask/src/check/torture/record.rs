//! Records the requests to a disk during a sequence of installations on one machine.

use std::fs::{self, File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use slipway_parts::Arch;
use slipway_protocol::{Action, Digest, EraseDisk, RunState, Step, StreamImage, Verify};

use crate::build::image::ImagePaths;
use crate::host::command::{command, run_quietly};
use crate::host::{files, packages};
use crate::lab::qemu::{self, Boot, Disk, Machine, MachineConfig, Nic, create_disk, drive, firmware};
use crate::lab::server::Lab;
use crate::lab::{bootable, tables, write_log};

/// Size of the disk and of its first system, in bytes.
const DISK_SIZE: u64 = 80 << 20;
/// Size of images smaller than the disk, in bytes.
const IMAGE_SIZE: u64 = 64 << 20;
const MBR_IMAGE_SIZE: usize = 24 << 20;
/// The image whose last partition and file system grow: size of the image, offset and size of the partition, in bytes.
const GROWING_IMAGE_SIZE: u64 = 72 << 20;
const GROWING_PARTITION: u64 = 64 << 20;
const GROWING_SIZE: u64 = 7 << 20;
/// Block size of the file system that grows, in bytes.
pub(super) const BLOCK: usize = 1024;
/// Name of the file in the file system that grows.
pub(super) const FILE: &str = "file";
const FILE_SIZE: usize = 4 << 20;
/// Share of a disk with a system that is filled with data, in percent. The FAT file system needs the rest.
const FILLER: u64 = 90;
const NODE: &str = "torture";
const UUID: &str = "3f0b8a51-96a7-4c1e-8a6f-52c1d0e7b301";
/// Time limit of a run. Emulated processors are slow, but a run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// A run and where it ends in the recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What the run does, in words.
    pub name: String,
    /// Number of requests from the beginning of the recording to the end of the run.
    pub end: usize,
    /// Whether the run leaves a bootable system.
    pub installs: bool,
    /// Whether the kernel then grows a file system of that system.
    pub grows: bool,
}

/// Names of a recording's files in its folder.
pub(super) const BEFORE: &str = "before";
pub(super) const DISK: &str = "disk";
pub(super) const LOG: &str = "log";
pub(super) const RUNS: &str = "runs.json";

/// A step for the machine, and the image that must then be on the disk.
struct Plan<'a> {
    name: &'static str,
    action: Action,
    leaves: Option<&'a Path>,
    /// How the disk may differ from that image.
    but: But,
}

/// How a disk may differ from the image written to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum But {
    Nothing,
    /// Blocks of zeros, which the block map lists as holes.
    Holes,
    /// The last partition, because it grew.
    LastPartition,
}

/// Runs every way to write a disk, successfully or not. Stores the initial content of the disk, the log of its
/// requests, and the list of runs in the folder, which is emptied first.
pub fn record(folder: &Path) -> Result<()> {
    packages::ensure(packages::TORTURE)?;
    files::empty_dir(folder)?;
    let paths = [BEFORE, DISK, "image", "other", "mbr", "growing"].map(|name| folder.join(name));
    let [before, disk, image, other, mbr, growing] = paths;
    system(&before, DISK_SIZE, 1)?;
    system(&image, IMAGE_SIZE, 2)?;
    system(&other, DISK_SIZE, 3)?;
    files::write(&mbr, mbr_image())?;
    growing_image(&growing)?;
    fs::copy(&before, &disk).with_context(|| format!("copying {}", before.display()))?;
    let log = folder.join(LOG);
    create_disk(&log, 0)?;

    let mut lab = Lab::new(&folder.join("lab"))?;
    lab.start_server()?;
    let boot = lab.make_boot_files()?;
    lab.operator(&["node", "add", "--name", NODE, "--uuid", UUID, "--release"])?;
    let plans = plans(&lab, folder, [&image, &other, &mbr, &growing])?;
    let mut machine = qemu::start(&machine(boot, &disk, &log), &folder.join("machine"))?;
    let mut runs: Vec<Run> = Vec::new();
    for plan in plans {
        let began = runs.last().map_or(0, |run| run.end);
        carry_out(&lab, &mut machine, &plan).with_context(|| format!("recording {}", plan.name))?;
        let end = write_log::count(&mut open(&log)?)? as usize;
        ensure!(end != began, "recording {}: the disk received no request", plan.name);
        if !plan.leaves.map_or(Ok(true), |image| holds(&disk, image, plan.but))? {
            bail!("recording {}: the disk does not contain the image", plan.name);
        }
        let grows = plan.but == But::LastPartition;
        runs.push(Run { name: plan.name.to_owned(), end, installs: plan.leaves.is_some(), grows });
    }
    drop(machine);
    files::write(&folder.join(RUNS), serde_json::to_vec(&runs)?)
}

fn machine(boot: ImagePaths, disk: &Path, log: &Path) -> MachineConfig {
    let disk = Disk { path: disk.to_owned(), serial: "torture-disk-1".to_owned() };
    let cmdline = "console=ttyS0,115200".to_owned();
    MachineConfig {
        arch: Arch::X86_64,
        boot: Boot::Kernel { vmlinuz: boot.vmlinuz, initramfs: boot.initramfs, cmdline },
        secure_boot: false,
        cpus: 1,
        memory_mib: 512,
        uuid: UUID.to_owned(),
        serial: "TORTURE001".to_owned(),
        disks: Vec::new(),
        nics: vec![Nic { mac: "52:54:00:3f:0b:01".to_owned(), bootfile: None }],
        extra: drive::logged(&disk, log),
        detached: false,
    }
}

fn plans<'a>(lab: &Lab, folder: &Path, [image, other, mbr, growing]: [&'a Path; 4]) -> Result<Vec<Plan<'a>>> {
    let stream = |image: &Path| -> Result<StreamImage> {
        let own = lab.operator(&["image", "add", text(image)?])?.trim().to_owned();
        let (url, digest) = (format!("{}/images/{own}", lab.url()), Some(own.parse()?));
        Ok(StreamImage { url, digest, ..StreamImage::default() })
    };
    // The server knows the right SHA-256 and would refuse the run, so the wrong digest is a SHA-512.
    let wrong: Digest = format!("sha512:{}", "0".repeat(128)).parse()?;
    let wrong = StreamImage { digest: Some(wrong), ..stream(image)? };
    let read_back = StreamImage { verify: Verify::Readback, ..stream(image)? };
    let map = map(image, folder)?;
    let map = lab.operator(&["image", "add", "--not-an-image", text(&map)?])?;
    let map = format!("{}/images/{}", lab.url(), map.trim());
    let by_map = StreamImage { bmap: Some(map), ..stream(image)? };
    let erase = Action::EraseDisk(EraseDisk::default());
    let plan = |name, action, leaves| Plan { name, action, leaves, but: But::Nothing };
    let install = |name, action, leaves| plan(name, Action::StreamImage(action), Some(leaves));
    let grows = install("an image whose last partition grows, over a system", stream(growing)?, growing);
    let by_map = install("an image by its block map, over a system", by_map, image);
    Ok(vec![
        install("an image smaller than the disk, over a system", stream(image)?, image),
        install("an image as large as the disk, over a system", stream(other)?, other),
        plan("an image with a wrong digest, over a system", Action::StreamImage(wrong), None),
        install("an image with an MBR, over nothing", stream(mbr)?, mbr),
        install("an image as large as the disk, over an MBR", stream(other)?, other),
        install("an image that is read back, over a system", read_back, image),
        Plan { but: But::LastPartition, ..grows },
        Plan { but: But::Holes, ..by_map },
        plan("erasing a system", erase, None),
    ])
}

/// Whether a disk contains everything that the image's tables refer to, except for permitted differences.
fn holds(disk: &Path, image: &Path, but: But) -> Result<bool> {
    const PIECE: usize = 4096;
    let (disk, image) = (files::read(disk)?, files::read(image)?);
    let mut reached: Vec<_> = tables::find(&image).into_iter().flat_map(|table| table.reaches).collect();
    if but == But::LastPartition {
        let last = reached.iter().map(|bytes| bytes.start).max();
        reached.retain(|bytes| Some(bytes.start) != last);
    }
    let is_same = |start: usize, end: usize| {
        let (image, disk) = (image.get(start..end), disk.get(start..end));
        let is_hole = but == But::Holes && image.is_some_and(|block| block.iter().all(|byte| *byte == 0));
        is_hole || image.is_some() && image == disk
    };
    let mut blocks = reached
        .iter()
        .flat_map(|bytes| bytes.clone().step_by(PIECE).map(|start| (start, bytes.end.min(start + PIECE))));
    Ok(!reached.is_empty() && blocks.all(|(start, end)| is_same(start, end)))
}

/// Makes the block map of an image, with blocks of zeros as holes, and returns its path.
fn map(image: &Path, folder: &Path) -> Result<PathBuf> {
    let (sparse, map) = (folder.join("sparse"), folder.join("map"));
    fs::copy(image, &sparse).with_context(|| format!("copying {}", image.display()))?;
    run_quietly(command("fallocate", ["--dig-holes"]).arg(&sparse))?;
    run_quietly(command("bmaptool", ["create", "--output"]).arg(&map).arg(&sparse))?;
    Ok(map)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Starts a run of one step and waits until it ends as planned.
fn carry_out(lab: &Lab, machine: &mut Machine, plan: &Plan) -> Result<()> {
    let (folder, fails) =
        (tempfile::tempdir()?, matches!(plan.action, Action::StreamImage(_)) && plan.leaves.is_none());
    let file = folder.path().join("workflow");
    let step = Step { name: "step".to_owned(), action: plan.action.clone(), retries: 0, timeout: None };
    files::write(&file, serde_json::to_vec(&json!({ "steps": [step] }))?)?;
    lab.operator(&["run", "start", "--yes", NODE, "--workflow", text(&file)?])?;
    let changes = lab.watch(NODE)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let status = changes.next(Duration::from_secs(1))?;
        match status.and_then(|status| status.run).map(|run| (run.state, run)) {
            Some((RunState::Succeeded, _)) if !fails => return Ok(()),
            Some((RunState::Failed, _)) if fails => return Ok(()),
            Some((RunState::Succeeded | RunState::Failed, run)) => bail!("the run did not end as planned: {run:#?}"),
            _ if Instant::now() > deadline || !machine.is_running()? => {
                bail!("the run did not end; the console is in {}", machine.console_log().display())
            }
            _ => {}
        }
    }
}

/// Writes a disk with a bootable system whose partition is filled to its end, so that any damage shows.
fn system(path: &Path, size: u64, seed: u64) -> Result<()> {
    bootable::make(path, size, Path::new(firmware::IPXE), &noise(seed, (size * FILLER / 100) as usize))?;
    let mut disk = files::read(path)?;
    let tables = tables::find(&disk);
    let partition = tables.iter().flat_map(|table| &table.reaches).map(|bytes| bytes.end).max();
    let end = partition.with_context(|| format!("finding the partition of {}", path.display()))?;
    let tail = end - bootable::SLACK as usize..end;
    disk[tail.clone()].copy_from_slice(&noise(seed + 1000, tail.len()));
    files::write(path, disk)
}

/// Writes a disk with a bootable system, followed by a partition with a file system and a file.
fn growing_image(path: &Path) -> Result<()> {
    bootable::make(path, GROWING_PARTITION, Path::new(firmware::IPXE), &noise(5, 1 << 20))?;
    let (folder, file_system) = (path.with_extension("folder"), path.with_extension("ext4"));
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    files::write(&folder.join(FILE), noise(6, FILE_SIZE))?;
    let size = format!("{}K", GROWING_SIZE >> 10);
    let block = BLOCK.to_string();
    run_quietly(command("mkfs.ext4", ["-q", "-b", &block, "-d"]).arg(&folder).arg(&file_system).arg(size))?;
    let image = OpenOptions::new().write(true).open(path).with_context(|| format!("opening {}", path.display()))?;
    image.set_len(GROWING_IMAGE_SIZE).with_context(|| format!("enlarging {}", path.display()))?;
    let [first, sectors] = [GROWING_PARTITION, GROWING_SIZE].map(|bytes| bytes / tables::BLOCK as u64);
    let second = format!("--new=2:{first}:+{}", sectors - 1);
    run_quietly(command("sgdisk", ["--move-second-header", &second]).arg(path))?;
    image
        .write_all_at(&files::read(&file_system)?, GROWING_PARTITION)
        .with_context(|| format!("writing {}", path.display()))
}

/// Makes a disk with an MBR, boot code in and after the MBR, and one partition.
fn mbr_image() -> Vec<u8> {
    const FIRST: usize = 2048;
    let mut image = noise(4, MBR_IMAGE_SIZE);
    let blocks = MBR_IMAGE_SIZE / tables::BLOCK - FIRST;
    image[446..510].fill(0);
    // An active partition of type Linux. Its first block and number of blocks are at bytes 8 and 12 of the entry.
    (image[446], image[450]) = (0x80, 0x83);
    image[454..458].copy_from_slice(&(FIRST as u32).to_le_bytes());
    image[458..462].copy_from_slice(&(blocks as u32).to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

/// Makes `length` random bytes in which no two sectors are equal, by a xorshift generator (Marsaglia, 2003).
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub(super) fn open(path: &Path) -> Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).with_context(|| format!("opening {}", path.display()))?))
}
