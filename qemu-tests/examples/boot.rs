//! Measures how long a machine takes from power-on to a written disk: `boot ROUNDS [WAY...]`. `cargo xtask bench boot`
//! builds and runs this program. The last line of the output is JSON, with the median of each figure.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use qemu_tests::firmware_trusts;
use qemu_tests::site::{self, Site};
use serde::Serialize;
use slipway_parts::Arch;
use slipway_protocol::{NodeStatus, StepState};
use xtask::build::image::{self, ImagePaths};
use xtask::build::{binary, kernel};
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig, create_disk, firmware};
use xtask::lab::server::{FOR_EMULATION, Lab, Place};
use xtask::lab::target_image::{self, System};

/// Name of the operating system on the server.
const OS: &str = "debian-12";
const DISK_SIZE: u64 = 4 << 30;
/// Time limit of a round. Emulated processors are slow, but a round that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// How a machine starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// QEMU loads kernel and initramfs.
    Kernel,
    /// Firmware loads the unified kernel image from the server by HTTPS.
    Https,
    /// Firmware loads the unified kernel image by TFTP, beside a foreign DHCP server.
    Pxe,
}

impl Way {
    const ALL: [Self; 3] = [Self::Kernel, Self::Https, Self::Pxe];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Https => "https",
            Self::Pxe => "pxe",
        }
    }
}

/// The figures of one round, or the medians of several.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    way: &'static str,
    kernel_to_pid1_ms: u64,
    pid1_to_lease_ms: u64,
    lease_to_enrol_ms: u64,
    enrol_to_first_byte_ms: u64,
    power_on_to_first_byte_ms: u64,
    power_on_to_written_ms: u64,
    initramfs_bytes: u64,
    binary_bytes: u64,
    peak_memory_mib: u64,
    /// Bytes sent of a boot file, divided by its size: the largest value of all boot files.
    #[serde(skip)]
    most_sent: f64,
}

/// A network, and on it a server with an operating system and boot files.
struct Bench {
    lab: Lab,
    boot: ImagePaths,
    binary_bytes: u64,
    rounds: u32,
    _site: Site,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (rounds, names) = arguments.split_first().context("usage: boot ROUNDS [WAY...]")?;
    let rounds: u32 = rounds.parse().context("reading the number of rounds")?;
    let wanted = |way: &Way| names.is_empty() || names.iter().any(|name| name == way.name());
    let ways: Vec<Way> = Way::ALL.into_iter().filter(wanted).collect();

    let folder = tempfile::tempdir().context("creating a temporary folder")?;
    let mut bench = Bench::new(folder.path())?;
    let mut all: Vec<Vec<Figures>> = ways.iter().map(|_| Vec::new()).collect();
    // The ways take turns, so that what disturbs the host disturbs all of them.
    for round in 1..=rounds {
        for (way, rows) in ways.iter().zip(&mut all) {
            let figures = bench.measure(*way, folder.path()).with_context(|| format!("starting by {}", way.name()))?;
            let (written, sent) = (figures.power_on_to_written_ms, figures.most_sent);
            let seconds = written as f64 / 1000.0;
            eprintln!("round {round}: {}: {seconds:.1} s; a boot file was sent {sent:.2} times at most", way.name());
            rows.push(figures);
        }
    }
    let medians: Vec<Figures> = all.iter().filter_map(|rows| median_of(rows)).collect();
    print_table(&medians);
    println!("{}", serde_json::json!({ "ways": medians }));
    Ok(())
}

impl Bench {
    fn new(folder: &Path) -> Result<Self> {
        let image = target_image::build(System::SystemdBoot)?;
        let binary_bytes = size_of(&binary::build(Arch::X86_64, None)?)?;
        let place = Place { listen: site::SLIPWAY, host: site::SLIPWAY, arguments: &["--proxy-dhcp", "br0"] };
        let mut lab = Lab::at(&folder.join("lab"), place)?;
        // What may have to be downloaded comes first, because the new network does not lead to the internet.
        image::build_parts(&image::config(kernel::CLOUD, Arch::X86_64)?)?;
        firmware::network_boot_loader(Arch::X86_64)?;
        firmware::variables(&folder.join("vars"), Arch::X86_64, firmware::Release::Newer, Some("https://localhost"))?;
        let site = Site::new()?.context("making a network: not allowed here; run it as root")?;
        lab.start_server()?;
        let boot = lab.make_boot_files()?;
        let path = image.path.to_str().context("the path of the image is not UTF-8")?;
        let digest = lab.operator(&["image", "add", path])?.trim().to_owned();
        lab.operator(&["os", "add", OS, "--image", &digest])?;
        Ok(Self { lab, boot, binary_bytes, rounds: 0, _site: site })
    }

    /// Registers a new machine, switches it on, and waits until its disk is written.
    fn measure(&mut self, way: Way, folder: &Path) -> Result<Figures> {
        self.rounds += 1;
        let (name, uuid) =
            (format!("machine-{}", self.rounds), format!("7d2f9a60-3c55-4b0e-9c7a-{:012x}", self.rounds));
        self.lab.operator(&["node", "add", "--name", &name, "--uuid", &uuid, "--release"])?;
        self.lab.operator(&["run", "start", "--yes", &name, "--os", OS])?;
        let folder = folder.join(&name);
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let config = self.machine(way, uuid, &folder)?;
        let log_before = fs::read_to_string(self.lab.server_log()).context("reading the server's log")?.len();
        let changes = self.lab.watch(&name)?;

        let (power_on, since) = (time_of_day()?, Instant::now());
        let mut machine = qemu::start(&config, &folder)?;
        let (node, written) = loop {
            if let Some(node) = changes.next(Duration::from_secs(1))?
                && step(&node).is_some_and(|step| step.state != StepState::Pending && step.state != StepState::Running)
            {
                break (node, since.elapsed());
            }
            if !machine.is_running()? || since.elapsed() > LIMIT {
                bail!("waiting for a written disk:\n{}", machine.console()?);
            }
        };
        drop(machine);
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        let step =
            step(&node).filter(|step| step.state == StepState::Succeeded).with_context(|| format!("{node:#?}"))?;
        let log = fs::read_to_string(self.lab.server_log()).context("reading the server's log")?;
        let log = log.get(log_before..).unwrap_or_default();
        let enrolled = time_of(log, &["method=POST", "route=/v1/enrol ", "status=200"])?;
        let first_byte = time_of(log, &["method=GET", "route=/images/"])?;
        let timing = node.timing.context("the machine did not say how long it took")?;
        let lease = timing.init_to_lease.context("the machine did not say when it had its address")?;
        let peak_memory = step.outcome.as_ref().and_then(|outcome| outcome.peak_memory).unwrap_or_default();
        Ok(Figures {
            way: way.name(),
            kernel_to_pid1_ms: timing.kernel_to_init,
            pid1_to_lease_ms: lease,
            lease_to_enrol_ms: timing.init_to_enrol.saturating_sub(lease),
            enrol_to_first_byte_ms: milliseconds(enrolled, first_byte),
            power_on_to_first_byte_ms: milliseconds(power_on, first_byte),
            power_on_to_written_ms: u64::try_from(written.as_millis())?,
            initramfs_bytes: size_of(&self.boot.initramfs)?,
            binary_bytes: self.binary_bytes,
            peak_memory_mib: peak_memory >> 20,
            most_sent: self.most_sent(log)?,
        })
    }

    fn machine(&self, way: Way, uuid: String, folder: &Path) -> Result<MachineConfig> {
        let disk = folder.join("disk");
        create_disk(&disk, DISK_SIZE)?;
        let (boot, trust) = match way {
            Way::Kernel => {
                let ImagePaths { vmlinuz, initramfs, .. } = self.boot.clone();
                // The same command line as in the unified image.
                let cmdline = format!("console=tty0 console=ttyS0,115200 rootfstype=ramfs {FOR_EMULATION}");
                (Boot::Kernel { vmlinuz, initramfs, cmdline }, Vec::new())
            }
            Way::Https => {
                let uri = format!("{}/boot/x86_64/slipway.efi", self.lab.url());
                (Boot::NewerUefi { uri: Some(uri) }, firmware_trusts(folder, &self.lab.operator(&["ca"])?)?)
            }
            Way::Pxe => (Boot::UefiPxe, Vec::new()),
        };
        let card = format!("virtio-net-pci,netdev=net0,mac={},romfile=", site::MAC);
        Ok(MachineConfig {
            arch: Arch::X86_64,
            boot,
            secure_boot: false,
            cpus: 1,
            memory_mib: 512,
            uuid,
            serial: "BENCH0001".to_owned(),
            disks: vec![Disk { path: disk, serial: "bench-disk-1".to_owned() }],
            nics: Vec::new(),
            extra: [site::network(&card), trust].concat(),
            detached: false,
        })
    }

    /// Reads from the server's log the largest number of bytes sent of a boot file, divided by the file's size.
    fn most_sent(&self, log: &str) -> Result<f64> {
        let mut sent = std::collections::BTreeMap::new();
        for line in log.lines().filter(|line| line.contains("a boot file was fetched")) {
            let value = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key));
            let (file, bytes) = value("file=").zip(value("bytes=")).with_context(|| format!("reading {line:?}"))?;
            *sent.entry(file).or_insert(0) += bytes.parse::<u64>().with_context(|| format!("reading {line:?}"))?;
        }
        let mut most = 0.0_f64;
        for (file, bytes) in sent {
            most = most.max(bytes as f64 / size_of(&self.lab.boot_folder().join(file))? as f64);
        }
        Ok(most)
    }
}

/// Returns the step that writes the image.
fn step(node: &NodeStatus) -> Option<&slipway_protocol::StepStatus> {
    node.run.as_ref()?.steps.iter().find(|step| step.action == "stream-image")
}

fn size_of(file: &Path) -> Result<u64> {
    Ok(fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?.len())
}

/// Returns the seconds since midnight, UTC.
fn time_of_day() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH).context("reading the clock")?.as_secs_f64() % 86_400.0)
}

/// Finds the first line with these words. Returns its time of day in seconds. A line begins as
/// `2026-01-01T23:59:59.999999Z`.
fn time_of(log: &str, words: &[&str]) -> Result<f64> {
    let line = log.lines().find(|line| words.iter().all(|word| line.contains(word)));
    let line = line.with_context(|| format!("the server's log has no line with {words:?}"))?;
    let time = line.split(['T', 'Z']).nth(1).unwrap_or_default();
    let parts: Result<Vec<f64>, _> = time.split(':').map(str::parse::<f64>).collect();
    match parts.as_deref() {
        Ok([hours, minutes, seconds]) => Ok(hours * 3600.0 + minutes * 60.0 + seconds),
        _ => bail!("reading the time of {line:?}"),
    }
}

fn milliseconds(from: f64, to: f64) -> u64 {
    ((to - from).rem_euclid(86_400.0) * 1000.0).round() as u64
}

fn median_of(rows: &[Figures]) -> Option<Figures> {
    let first = rows.first()?;
    let median = |figure: fn(&Figures) -> u64| {
        let mut figures: Vec<u64> = rows.iter().map(figure).collect();
        figures.sort_unstable();
        figures[figures.len() / 2]
    };
    Some(Figures {
        way: first.way,
        kernel_to_pid1_ms: median(|row| row.kernel_to_pid1_ms),
        pid1_to_lease_ms: median(|row| row.pid1_to_lease_ms),
        lease_to_enrol_ms: median(|row| row.lease_to_enrol_ms),
        enrol_to_first_byte_ms: median(|row| row.enrol_to_first_byte_ms),
        power_on_to_first_byte_ms: median(|row| row.power_on_to_first_byte_ms),
        power_on_to_written_ms: median(|row| row.power_on_to_written_ms),
        initramfs_bytes: first.initramfs_bytes,
        binary_bytes: first.binary_bytes,
        peak_memory_mib: median(|row| row.peak_memory_mib),
        most_sent: rows.iter().map(|row| row.most_sent).fold(0.0, f64::max),
    })
}

fn print_table(rows: &[Figures]) {
    println!(
        "| way | kernel to PID 1 | to the lease | to enrolment | to the first byte | power-on to first byte | to \
         written |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let seconds = |ms: u64| format!("{:.2} s", ms as f64 / 1000.0);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            row.way,
            seconds(row.kernel_to_pid1_ms),
            seconds(row.pid1_to_lease_ms),
            seconds(row.lease_to_enrol_ms),
            seconds(row.enrol_to_first_byte_ms),
            seconds(row.power_on_to_first_byte_ms),
            seconds(row.power_on_to_written_ms)
        );
    }
    println!();
}
