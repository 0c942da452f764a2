//! Installations on a disk whose requests are recorded: one machine, one run after the other.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use slipway_protocol::{Action, Digest, DiskHints, EraseDisk, RunState, Step, StreamImage};

use crate::image::ImagePaths;
use crate::lab::Lab;
use crate::qemu::{Boot, Disk, Machine, MachineConfig, Nic, create_disk, drive, firmware};
use crate::{bootable, tables, write_log};

/// Size of the disk, and of the system it holds at first.
const DISK_SIZE: u64 = 80 << 20;
/// Sizes of the images, which leave a disk room behind them.
const IMAGE_SIZE: u64 = 64 << 20;
const MBR_IMAGE_SIZE: usize = 24 << 20;
/// Of a system, what its file system does not need for itself, in percent.
const FILLER: u64 = 90;
const NODE: &str = "torture";
const UUID: &str = "3f0b8a51-96a7-4c1e-8a6f-52c1d0e7b301";
/// Emulated processors are slow; a run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// A run, and how many requests the disk had seen when it was over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// What happens, in words.
    pub name: String,
    /// Requests from the beginning of the recording to the end of the run.
    pub end: usize,
    /// Whether it leaves a system that is to boot.
    pub installs: bool,
}

/// Files of a recording, in its folder.
pub(super) const BEFORE: &str = "before";
pub(super) const DISK: &str = "disk";
pub(super) const LOG: &str = "log";
pub(super) const RUNS: &str = "runs.json";

/// What the machine is to do, and the image it is to leave.
struct Plan<'a> {
    name: &'static str,
    action: Action,
    leaves: Option<&'a Path>,
}

/// Has a machine go through all the ways to write to a disk and to fail at it. Leaves in the folder what the disk held before, the
/// log of its requests, and the list of runs; what was in the folder goes.
pub fn record(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let [before, disk, image, other, mbr] = [BEFORE, DISK, "image", "other", "mbr"].map(|name| folder.join(name));
    system(&before, DISK_SIZE, 1)?;
    system(&image, IMAGE_SIZE, 2)?;
    system(&other, DISK_SIZE, 3)?;
    write(&mbr, &mbr_image())?;
    fs::copy(&before, &disk).with_context(|| format!("copying {}", before.display()))?;
    let log = folder.join(LOG);
    create_disk(&log, 0)?;

    let mut lab = Lab::new(&folder.join("lab"))?;
    lab.start_server()?;
    let boot = lab.make_boot_files()?;
    lab.operator(&["node", "add", "--name", NODE, "--uuid", UUID, "--release"])?;
    let plans = plans(&lab, [&image, &other, &mbr])?;
    let mut machine = Machine::start(&machine(boot, &disk, &log), &folder.join("machine"))?;
    let mut runs: Vec<Run> = Vec::new();
    for plan in plans {
        let began = runs.last().map_or(0, |run| run.end);
        carry_out(&lab, &mut machine, &plan).with_context(|| format!("recording {}", plan.name))?;
        let end = write_log::count(&mut open(&log)?)? as usize;
        if end == began {
            bail!("recording {}: the disk saw no request", plan.name);
        }
        if !plan.leaves.map_or(Ok(true), |image| holds(&disk, image))? {
            bail!("recording {}: the disk does not hold the image", plan.name);
        }
        runs.push(Run { name: plan.name.to_owned(), end, installs: plan.leaves.is_some() });
    }
    drop(machine);
    write(&folder.join(RUNS), &serde_json::to_vec(&runs)?)
}

fn machine(boot: ImagePaths, disk: &Path, log: &Path) -> MachineConfig {
    let disk = Disk { path: disk.to_owned(), serial: "torture-disk-1".to_owned() };
    let cmdline = "console=ttyS0,115200".to_owned();
    MachineConfig {
        boot: Boot::Kernel { vmlinuz: boot.vmlinuz, initramfs: boot.initramfs, cmdline },
        memory_mib: 512,
        uuid: UUID.to_owned(),
        serial: "TORTURE001".to_owned(),
        disks: Vec::new(),
        nics: vec![Nic { mac: "52:54:00:3f:0b:01".to_owned(), bootfile: None }],
        extra: drive::logged(&disk, log),
        detached: false,
    }
}

fn plans<'a>(lab: &Lab, [image, other, mbr]: [&'a Path; 3]) -> Result<Vec<Plan<'a>>> {
    let stream = |image: &Path, digest: Option<Digest>| -> Result<Action> {
        let path = image.to_str().with_context(|| format!("{} is not UTF-8", image.display()))?;
        let own = lab.operator(&["image", "add", path])?.trim().to_owned();
        let (url, digest) = (format!("{}/images/{own}", lab.url()), digest.map_or_else(|| own.parse(), Ok)?);
        let (digest, disk) = (Some(digest), DiskHints::default());
        Ok(Action::StreamImage(StreamImage { url, digest, disk, ..StreamImage::default() }))
    };
    let plan = |name, action, leaves| Plan { name, action, leaves };
    let wrong = format!("sha256:{}", "0".repeat(64)).parse()?;
    Ok(vec![
        plan("an image smaller than the disk, over a system", stream(image, None)?, Some(image)),
        plan("an image as large as the disk, over a system", stream(other, None)?, Some(other)),
        plan("an image with a wrong digest, over a system", stream(image, Some(wrong))?, None),
        plan("an image with an MBR, over nothing", stream(mbr, None)?, Some(mbr)),
        plan("an image as large as the disk, over an MBR", stream(other, None)?, Some(other)),
        plan("erasing a system", Action::EraseDisk(EraseDisk::default()), None),
    ])
}

/// Whether all that an image's tables reach is on a disk.
fn holds(disk: &Path, image: &Path) -> Result<bool> {
    let (disk, image) = (read(disk)?, read(image)?);
    let reached: Vec<_> = tables::find(&image).into_iter().flat_map(|table| table.reaches).collect();
    Ok(!reached.is_empty() && reached.into_iter().all(|bytes| disk.get(bytes.clone()) == image.get(bytes)))
}

/// Starts a run of one step and waits until it ends as planned.
fn carry_out(lab: &Lab, machine: &mut Machine, plan: &Plan) -> Result<()> {
    let (folder, fails) =
        (tempfile::tempdir()?, matches!(plan.action, Action::StreamImage(_)) && plan.leaves.is_none());
    let file = folder.path().join("workflow");
    let step = Step { name: "step".to_owned(), action: plan.action.clone(), retries: 0, timeout: None };
    write(&file, &serde_json::to_vec(&json!({ "steps": [step] }))?)?;
    let path = file.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
    lab.operator(&["run", "start", NODE, "--workflow", path])?;
    let changes = lab.watch(NODE)?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let status = changes.next(Duration::from_secs(1))?;
        match status.and_then(|status| status.run).map(|run| (run.state, run)) {
            Some((RunState::Succeeded, _)) if !fails => return Ok(()),
            Some((RunState::Failed, _)) if fails => return Ok(()),
            Some((RunState::Succeeded | RunState::Failed, run)) => bail!("it did not end as planned: {run:#?}"),
            _ if Instant::now() > deadline || !machine.is_running()? => {
                bail!("it does not end; the console is in {}", machine.console_log().display())
            }
            _ => {}
        }
    }
}

/// A disk with a bootable system, whose partition is full to its end: where it is damaged, that is seen.
fn system(path: &Path, size: u64, seed: u64) -> Result<()> {
    bootable::make(path, size, Path::new(firmware::IPXE), &noise(seed, (size * FILLER / 100) as usize))?;
    let mut disk = read(path)?;
    let tables = tables::find(&disk);
    let partition = tables.iter().flat_map(|table| &table.reaches).map(|bytes| bytes.end).max();
    let end = partition.with_context(|| format!("finding the partition of {}", path.display()))?;
    let tail = end - bootable::SLACK as usize..end;
    disk[tail.clone()].copy_from_slice(&noise(seed + 1000, tail.len()));
    write(path, &disk)
}

/// A disk with a boot record, code in it and behind it, and one partition.
fn mbr_image() -> Vec<u8> {
    const FIRST: usize = 2048;
    let mut image = noise(4, MBR_IMAGE_SIZE);
    let blocks = MBR_IMAGE_SIZE / tables::BLOCK - FIRST;
    image[446..510].fill(0);
    // Active, of type Linux; first block and number of blocks at 8 and 12.
    (image[446], image[450]) = (0x80, 0x83);
    image[454..458].copy_from_slice(&(FIRST as u32).to_le_bytes());
    image[458..462].copy_from_slice(&(blocks as u32).to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    image
}

/// Bytes of which no two sectors are alike: a xorshift generator's (Marsaglia, 2003).
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

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}
