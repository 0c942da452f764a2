//! The installer from its start to its end: as a child of PID 1 in the boot image, and on a running system. Both have
//! the same flow with different options.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use slipway_actions::{Cancel, FormerPartitions, Host, HostOptions, Machine, list_disks};
use slipway_installer::config::{self, Config};
use slipway_installer::discover::tpm::{MachineTpm, Place, READY};
use slipway_installer::enrol::Facts;
use slipway_installer::rare_drivers::{self, Insert, Places};
use slipway_installer::report::log_book::LogBook;
use slipway_installer::run::MakeMachine;
use slipway_installer::screen::{self, Doing, Screen};
use slipway_installer::server::link;
use slipway_installer::{End, Options, PANIC, discover, wait_for_disks};
use slipway_protocol::{Disk, Failure, Inventory, MachineSettings, Proof};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::all_disks;
use crate::pid1::DRIVERS_LOADED;

/// Folder of this boot's state. It is a tmpfs in the boot image and on every Linux.
const STATE: &str = "/run/slipway";
/// How long to wait for the first disk before enrolling without one.
const DISK_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for the drivers in the boot image before others are fetched.
const DRIVERS_LIMIT: Duration = Duration::from_secs(60);

/// Runs the installer in the boot image, as a child of PID 1. The configuration comes from the boot medium. `init_at`
/// is the time from the start of the kernel to the start of PID 1, in seconds.
pub async fn in_boot_image(previous_exit: Option<String>, init_at: Option<f64>) -> Result<End> {
    let screen = Screen::at(Path::new(screen::PATH));
    let end = enrol_and_run(screen.clone(), previous_exit, init_at).await;
    if let Err(error) = &end {
        screen.doing(Doing::Broken { reason: screen::reason(&Failure::of(error.as_ref())) });
    }
    end
}

async fn enrol_and_run(screen: Screen, previous_exit: Option<String>, init_at: Option<f64>) -> Result<End> {
    let previous_exit = how_it_ended(previous_exit);
    keep_panics();
    let loaded = config::load()?;
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    screen.change(|state| {
        state.name = loaded.machine.hostname.clone();
        state.serial = discover::identity(&discover::Roots::default()).serial;
        state.server = loaded.config.as_ref().map(|config| config.server.to_string());
    });
    let log = LogBook::of_kernel(&PathBuf::from(STATE).join("log.json")).context("reading /dev/kmsg")?;
    let ((settled, mut disks_settled), (rare_loaded, rare)) = (watch::channel(false), watch::channel(None));
    tokio::spawn(all_disks::wait(settled, rare));
    let tpm = MachineTpm::at(Place::of_boot_image());
    if loaded.require == Proof::Attested {
        tpm.require(|| Path::new(DRIVERS_LOADED).exists()).await?;
        std::fs::write(READY, "").with_context(|| format!("creating {READY}"))?;
    }
    // The TPM makes its keys while the network comes up.
    tokio::spawn({
        let tpm = tpm.clone();
        async move { tpm.prepare().await }
    });
    let link = link::wait().await;
    info!("network: {} on {}", link.address, link.interface);
    let config = loaded.complete(link.metadata.as_ref())?;
    screen.change(|state| state.server = Some(config.server.to_string()));
    let loaded = load_rare_drivers(&config).await;
    rare_loaded.send_replace(Some(loaded));
    if loaded > 0 {
        // The first report also has the disks of these drivers. The wait fails only without a sender, which stays until
        // it has sent.
        let _ = disks_settled.wait_for(|settled| *settled).await;
    }
    let sys = discover::Roots::default().sys;
    if !wait_for_disks(|| list_disks(&sys).len(), DISK_PATIENCE).await {
        warn!("no disk appeared in {} s; enrolling without disks", DISK_PATIENCE.as_secs());
    }
    let options = Options {
        facts: Facts {
            kernel_to_init: init_at.map(|seconds| (seconds * 1000.0) as u64),
            leased_at: Some(link.leased_at),
            ..facts(tpm)
        },
        set_clock: true,
        state: STATE.into(),
        previous_exit,
        log,
        machine: machine(&config, is_child_of_slipway()),
        disks_settled,
        screen,
        once: false,
    };
    Ok(slipway_installer::run(config, options).await?)
}

/// Fetches and loads drivers for which the boot image has no room, if a device has no driver. Returns the number of
/// loaded modules.
async fn load_rare_drivers(config: &Config) -> usize {
    let places = Places::of_boot_image(Path::new(STATE));
    let began = Instant::now();
    // The boot image's own drivers load first. Once they serve all devices, the remaining ones are not waited for.
    while !Path::new(DRIVERS_LOADED).exists() && began.elapsed() < DRIVERS_LIMIT && places.lack_drivers() {
        sleep(Duration::from_millis(100)).await;
    }
    let insert: Insert = Arc::new(crate::drivers::insert);
    rare_drivers::load(config, &places, &insert, rare_drivers::PATIENCE).await
}

/// Runs one workflow on a running system. Only the owner restarts the machine.
pub async fn in_operating_system(settings: config::Source, log: LogBook) -> Result<End> {
    let previous_exit = how_it_ended(None);
    keep_panics();
    let (config, _) = config::merge(&[settings], false)?;
    let options = Options {
        facts: facts(MachineTpm::at(Place::of_operating_system())),
        set_clock: false,
        state: STATE.into(),
        previous_exit,
        log,
        machine: machine(&config, false),
        // The system has been up for a while, so its disks are there.
        disks_settled: watch::channel(true).1,
        screen: Screen::default(),
        once: true,
    };
    Ok(slipway_installer::run(config, options).await?)
}

/// Makes a panic store its message. A panic in any thread ends the process, because the state of a disk that other
/// threads were writing to cannot be trusted. The next installer reports the step and the message.
fn keep_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        // A failure has nowhere to be reported.
        let _ = std::fs::create_dir_all(STATE).and_then(|()| std::fs::write(panic_note(), panic.to_string()));
    }));
}

fn panic_note() -> PathBuf {
    Path::new(STATE).join(PANIC)
}

/// Returns how the previous installer ended, with its panic message if there was one, and logs it.
fn how_it_ended(how: Option<String>) -> Option<String> {
    let panic = std::fs::read_to_string(panic_note()).ok().map(|message| message.replace('\n', " "));
    let ends: Vec<String> = how.into_iter().chain(panic).collect();
    let how = (!ends.is_empty()).then(|| ends.join(": "))?;
    warn!("started again; the previous installer ended: {how}");
    Some(how)
}

fn facts(tpm: MachineTpm) -> Facts {
    let roots = discover::Roots::default();
    let (inventory, notes) = take_inventory();
    let other_path = |disk: &Disk| Some(format!("{} is another path to {}", disk.path, disk.other_path_to.as_ref()?));
    for note in notes.into_iter().chain(inventory.disks.iter().filter_map(other_path)) {
        info!("looking at this machine: {note}");
    }
    let identity = discover::identity(&roots);
    info!(
        "this machine: uuid {}, serial {}, MACs {}",
        identity.uuid.as_deref().unwrap_or("none"),
        identity.serial.as_deref().unwrap_or("none"),
        identity.macs.join(" ")
    );
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    let look = || take_inventory().0;
    Facts { identity, look, boot_id, kernel_to_init: None, leased_at: None, tpm }
}

/// Returns the hardware of this machine as it is now, and what could not be read.
fn take_inventory() -> (Inventory, Vec<String>) {
    let roots = discover::Roots::default();
    discover::inventory(&roots, list_disks(&roots.sys))
}

/// Whether PID 1 is this same program. Only then is it certain that nothing else uses the disks, even if the command
/// was typed by hand.
fn is_child_of_slipway() -> bool {
    let program = |pid: &str| std::fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino())).ok();
    program("1").is_some_and(|init| Some(init) == program("self"))
}

/// Returns the real machine. It trusts images from servers with a certificate of the server's CA or of a CA that a step
/// adds.
fn machine(config: &Config, is_operating_system: bool) -> MakeMachine {
    let (ca, proxy, former) = (config.ca.clone(), config.machine.proxy(), FormerPartitions::default());
    let settings = MachineSettings { token: None, ..config.machine.clone() };
    Arc::new(move |cancel: &Cancel| {
        let options = HostOptions {
            trust: vec![ca.clone()],
            cancel: cancel.clone(),
            is_operating_system,
            proxy: proxy.clone(),
            settings: settings.clone(),
            former: former.clone(),
            ..HostOptions::default()
        };
        Box::new(Host::new(options)) as Box<dyn Machine + Send>
    })
}
