//! A machine runs the server, with its data folder on a disk with a volatile cache, and nodes report to it. Its power
//! is cut, and what was not flushed is lost. It starts again with what is left.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use qemu_tests::{LIMIT, timed};
use serde_json::Value;
use slipway_installer::config::Config;
use slipway_installer::discover::tpm::{MachineTpm, Place as TpmPlace};
use slipway_installer::enrol::{Facts, Session};
use slipway_installer::screen::Screen;
use slipway_installer::server::client::Client;
use slipway_installer::server::machine_key::MachineKey;
use slipway_installer::server::tls;
use slipway_parts::Arch;
use slipway_parts::cpio::Archive;
use slipway_protocol::{Event, EventBatch, EventKind, Identity, Inventory, Outcome, RunState};
use xtask::build::kernel;
use xtask::build::modules::Index;
use xtask::host::command::{command, run_quietly, stdout};
use xtask::host::{files, packages};
use xtask::lab::power_cut::{self, Dice};
use xtask::lab::qemu::{self, Boot, Disk, MachineConfig, create_disk, drive};
use xtask::lab::server::{FOR_EMULATION, Lab, Place, parse_status};
use xtask::lab::write_log::{self, Request, SECTOR};

const NODES: usize = 3;
/// Size of the disk in bytes.
const DISK_SIZE: u64 = 128 << 20;
/// Events that each node has reported when the power is cut.
const BEFORE: u64 = 15;
/// Events that each node reports afterwards.
const AFTER: u64 = 5;
/// Seed of what the disk loses.
const SEED: u64 = 1;
/// Modules that the machine needs.
const MODULES: &str = "virtio_pci\nvirtio_blk\nvirtio_net\next4\n";
/// The first process: mounts the disk, checks the database if there is one, and becomes the server.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp /data
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for again in 1 2 3; do
    for module in /modules/*; do insmod "$module" 2>/dev/null; done
done
ip link set lo up
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
mount -t ext4 /dev/vda /data
slipway-server --data /data/data database check
exec slipway-server --data /data/data serve --url URL --listen 0.0.0.0:8443
"#;

/// What boots the server.
struct Image {
    vmlinuz: PathBuf,
    initramfs: PathBuf,
    port: u16,
}

impl Image {
    fn build(folder: &Path, program: &Path, url: &str, port: u16) -> Result<Self> {
        let kernel = kernel::fetch(Some(kernel::CLOUD), Arch::X86_64)?;
        let mut archive = Archive::default();
        let index = |name: &str| files::read_text(&kernel.modules().join(name));
        let texts =
            [index("modules.dep")?, index("modules.softdep")?, index("modules.alias")?, index("modules.builtin")?];
        let [dep, softdep, alias, builtin] = texts.each_ref().map(String::as_str);
        for file in Index::parse(dep, softdep, alias, builtin).select(MODULES, kernel::CLOUD).files {
            let name = file.rsplit('/').next().unwrap_or(&file);
            archive.add_file(&format!("modules/{name}"), 0o644, files::read(&kernel.modules().join(&file))?);
        }
        let stripped = folder.join("slipway-server");
        run_quietly(command("strip", ["--strip-all", "-o"]).arg(&stripped).arg(program))?;
        archive.add_file("bin/slipway-server", 0o755, files::read(&stripped)?);
        for word in stdout(&mut command("ldd", [program]))?.split_whitespace().filter(|word| word.starts_with('/')) {
            archive.add_file(word, 0o755, files::read(Path::new(word))?);
        }
        let busybox = stdout(&mut command("sh", ["-c", "command -v busybox"]))?;
        archive.add_file("bin/busybox", 0o755, files::read(Path::new(busybox.trim()))?);
        archive.add_file("init", 0o755, INIT.replace("URL", url).into_bytes());
        let initramfs = folder.join("initramfs");
        files::write(&initramfs, archive.to_bytes(0))?;
        Ok(Self { vmlinuz: kernel.vmlinuz(), initramfs, port })
    }

    fn machine(&self) -> MachineConfig {
        let cmdline = format!("console=ttyS0,115200 panic=-1 {FOR_EMULATION}");
        let forwarded = format!("user,id=served,hostfwd=tcp:127.0.0.1:{}-:8443", self.port);
        let card = "virtio-net-pci,netdev=served,romfile=";
        MachineConfig {
            arch: Arch::X86_64,
            boot: Boot::Kernel { vmlinuz: self.vmlinuz.clone(), initramfs: self.initramfs.clone(), cmdline },
            secure_boot: false,
            cpus: 1,
            memory_mib: 768,
            uuid: "7d2f9a60-3c55-4b0e-9c7a-1f0f6a2b9d02".to_owned(),
            serial: "SERVER001".to_owned(),
            disks: Vec::new(),
            nics: Vec::new(),
            extra: ["-netdev", &forwarded, "-device", card].map(str::to_owned).to_vec(),
            detached: false,
        }
    }
}

fn uuid(number: usize) -> String {
    format!("4c4c4544-0042-3010-8058-b7c04f5{number:05x}")
}

/// A node with the installer's session. It reports its run, an event at a time, until it is told to end.
struct Node {
    /// The last event that was answered.
    answered: AtomicU64,
    ends: AtomicBool,
}

impl Node {
    async fn work(&self, number: usize, folder: PathBuf, config: Config) -> Result<()> {
        std::fs::create_dir(&folder)?;
        let facts = Facts {
            tpm: MachineTpm::at(TpmPlace { device: folder.join("no-tpm"), event_log: None }),
            identity: Identity { uuid: Some(uuid(number)), ..Identity::default() },
            look: Inventory::default,
            boot_id: format!("boot-{number}"),
            kernel_to_init: None,
            leased_at: None,
        };
        let session =
            Session::open(config, facts, MachineKey::of_this_boot(&folder)?, Screen::default(), false).await?;
        let run = loop {
            if let Ok(Some(workflow)) = session.client().workflow().await {
                break workflow.run;
            }
        };
        for seq in 1.. {
            let ends = self.ends.load(Ordering::Relaxed) && seq > 1;
            let kind = match seq {
                1 => EventKind::Started,
                _ if ends => EventKind::Succeeded(Outcome::default()),
                _ => EventKind::Note(format!("note {seq} of node {number}")),
            };
            let event = Event { seq, at: 1, step: 0, attempt: 1, kind };
            report(&session.client(), &EventBatch { run: run.clone(), events: vec![event] }).await?;
            self.answered.store(seq, Ordering::Relaxed);
            if ends {
                break;
            }
        }
        Ok(())
    }
}

/// Reports until the server answers.
async fn report(client: &Client, batch: &EventBatch) -> Result<()> {
    let began = Instant::now();
    while let Err(error) = client.events(batch).await {
        ensure!(error.is_outage() && began.elapsed() < LIMIT, "reporting: {error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Returns the disk after the cut: all that was flushed, and of the rest what `SEED` says. `disk` is what it was
/// before.
fn cut(mut disk: Vec<u8>, log: &Path) -> Result<Vec<u8>> {
    let requests = write_log::read(&mut std::io::BufReader::new(std::fs::File::open(log)?))?;
    let flushed = requests.iter().rposition(|request| *request == Request::Flush).context("nothing was flushed")? + 1;
    requests[..flushed].iter().for_each(|request| power_cut::apply(&mut disk, request));
    power_cut::survive(&mut disk, &requests[flushed..], SECTOR, &mut Dice::new(SEED, 0));
    Ok(disk)
}

#[test]
fn what_a_server_answered_survives_a_power_cut_of_its_machine() -> Result<()> {
    timed("what a server answered survives a power cut of its machine", || {
        packages::ensure(packages::TESTS)?;
        let folder = tempfile::tempdir()?;
        let path = |name: &str| folder.path().join(name);
        // The data folder is made on this host, with the nodes and their runs.
        let mut lab = Lab::at(&path("lab"), Place { host: "localhost", ..Place::LOOPBACK })?;
        lab.start_server()?;
        files::write(&path("steps"), r#"{"steps": [{"name": "leave", "action": {"reboot": {}}}]}"#)?;
        for number in 0..NODES {
            let name = format!("m{number}");
            lab.operator(&["node", "add", "--name", &name, "--uuid", &uuid(number), "--release"])?;
            lab.operator(&["run", "start", "--yes", &name, "--workflow", &path("steps").display().to_string()])?;
        }
        let (ca, url) = (lab.operator(&["ca"])?, lab.url());
        lab.stop_server()?;
        let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).context("the port")?;
        let image = Image::build(folder.path(), lab.program(), &url, port)?;
        create_disk(&path("disk"), DISK_SIZE)?;
        run_quietly(command("mkfs.ext4", ["-q", "-F", "-d"]).arg(path("lab")).arg(path("disk")))?;
        let before = files::read(&path("disk"))?;

        create_disk(&path("log"), 0)?;
        let mut config = image.machine();
        let disk = Disk { path: path("disk"), serial: "server-disk-1".to_owned() };
        config.extra.extend(drive::logged(&disk, &path("log")));
        let mut machine = qemu::start(&config, &path("machine"))?;
        machine.wait_for_console("\"https\":", LIMIT)?;
        tls::install_provider();
        let nodes = [(); NODES].map(|()| Arc::new(Node { answered: AtomicU64::new(0), ends: AtomicBool::new(false) }));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let working: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                let (node, state) = (Arc::clone(node), path(&format!("node{number}")));
                let config = Config::new(url.parse().expect("a URL"), ca.clone());
                runtime.spawn(async move { node.work(number, state, config).await })
            })
            .collect();
        let wait = |what: &str, least: &[u64]| {
            let began = Instant::now();
            while nodes.iter().zip(least).any(|(node, least)| node.answered.load(Ordering::Relaxed) < *least) {
                ensure!(began.elapsed() < LIMIT, "waiting for events {what} the cut");
                ensure!(working.iter().all(|node| !node.is_finished()), "a node ended {what} the cut");
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        };
        wait("before", &[BEFORE; NODES])?;
        drop(machine);
        let answered = nodes.each_ref().map(|node| node.answered.load(Ordering::Relaxed));

        files::write(&path("disk"), cut(before, &path("log"))?)?;
        let mut config = image.machine();
        config.disks.push(disk);
        let mut machine = qemu::start(&config, &path("machine"))?;
        machine.wait_for_console("no problems were found in /data/data", LIMIT)?;
        wait("after", &answered.map(|last| last + AFTER))?;
        nodes.iter().for_each(|node| node.ends.store(true, Ordering::Relaxed));
        for node in working {
            runtime.block_on(node)??;
        }
        check(&path("lab/data/operator-token"), &path("lab/data/ca.pem"), &url, &nodes)
    })
}

/// Checks that each event is stored once, those that were answered before the cut among them.
fn check(token: &Path, ca: &Path, url: &str, nodes: &[Arc<Node>]) -> Result<()> {
    let token = files::read_text(token)?;
    let ask = |path: &str| {
        let mut curl = command("curl", ["--silent", "--fail", "--oauth2-bearer", token.trim(), "--cacert"]);
        stdout(curl.arg(ca).arg(format!("{url}/v1/operator/{path}")))
    };
    for (number, node) in nodes.iter().enumerate() {
        let status = parse_status(&ask(&format!("nodes/m{number}"))?)?;
        let run = status.run.context("a run")?;
        if run.state != RunState::Succeeded {
            bail!("the run did not succeed: {run:#?}");
        }
        let events: Vec<Value> = serde_json::from_str(&ask(&format!("runs/{}/events", run.id))?)?;
        let found: Vec<u64> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
        let all: Vec<u64> = (1..=node.answered.load(Ordering::Relaxed)).collect();
        ensure!(found == all, "node {number} was answered {all:?}, and stored is {found:?}");
    }
    Ok(())
}
