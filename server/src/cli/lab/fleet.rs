//! The machines of a lab: registered, installed, and waited for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use slipway_media::Kind;
use slipway_parts::Arch;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{Agent, DiskHints, Identity, NodeStatus, PowerProvider, Proof, StepState};
use slipway_qemu::accel::{self, Accel};
use slipway_server::base::random;
use slipway_server::boot_files;
use slipway_server::boot_files::make::{KERNEL, NewMedia, Policy, Site};
use slipway_server::image::{self, Known};
use slipway_server::keys::ca;
use slipway_server::node::status;
use slipway_server::operate::{self, NewNode, NewRun, PowerChange, Task};
use slipway_server::store::Store;
use slipway_server::store::systems;

use super::folder::{Lab, Server};
use super::{Made, tell};
use crate::cli::status::wait::{self, Awaited, Wait};
use crate::cli::words::{label, word};

/// Interval at which is looked for changes.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The kernel for virtual machines, which is smaller.
const VIRTUAL: &str = "cloud";
/// For machines without KVM: the kernel does not clear memory on allocation, which would make QEMU discard translated
/// code.
const FOR_EMULATION: &str = "init_on_alloc=0";

/// What is installed.
#[derive(Clone, Debug)]
pub struct System {
    /// Its name.
    pub name: String,
    /// File with the image.
    pub image: PathBuf,
    /// User-data of the installed systems.
    pub user_data: Option<String>,
}

/// The machines, with the store of their server.
pub struct Fleet {
    store: Store,
    began: Instant,
}

impl Fleet {
    /// Prepares the server as an operator would, and starts runs that install the system on new machines.
    pub async fn make(lab: &Lab, server: &Server, made: &Made, nodes: u16, system: System) -> anyhow::Result<Self> {
        let began = Instant::now();
        tell(&format!("the server runs as process {}, at {}\n", server.pid, lab.page()));
        let (store, data) = lab.store().await?;
        let Some(arch) = Arch::ALL.into_iter().find(|arch| arch.is_of_host()) else {
            bail!("starting a lab: slipway has no boot files for machines of this host's architecture");
        };
        let is_there = made.parts.join(format!("{}-{VIRTUAL}", arch.name())).is_dir();
        let machines = data.path("machines");
        std::fs::create_dir_all(&machines).with_context(|| format!("creating {}", machines.display()))?;
        let accel = tokio::task::spawn_blocking(move || accel::choose(arch, &machines.join("accelerator"))).await??;
        let new = NewMedia {
            kinds: [Kind::Network].into(),
            archs: [arch].into(),
            kernel: Some(if is_there { VIRTUAL } else { KERNEL }.to_owned()),
            arguments: (accel == Accel::Tcg).then(|| FOR_EMULATION.to_owned()).into_iter().collect(),
            ..NewMedia::default()
        };
        let site = Site { data: data.clone(), store: store.clone() };
        let policy = Policy { site: Ok(site), vouches_for_all: true };
        boot_files::make(new, &made.parts, &lab.boot_folder(), policy).await?;
        tell(&format!("adding the image {}\n", system.image.display()));
        let image = image::add(&store, &data, &system.image, Known::default(), |_| {}).await?;
        image.warnings.iter().for_each(|warning| tell(&format!("warning: {warning}\n")));
        operate::add_system(&store, described(&system, image.image.digest, arch)).await?;
        let ca = ca::anchors(&data)?;
        let options: BTreeMap<String, String> = made.options.iter().cloned().collect();
        for number in 1..=nodes {
            let name = format!("node{number}");
            let identity = Identity { uuid: Some(uuid()), ..Identity::default() };
            let new = NewNode { name: Some(name.clone()), identity, release: true, ..NewNode::default() };
            operate::add_node(&store, new).await?;
            let provider = Some(PowerProvider::Qemu);
            let change = PowerChange { provider, options: Some(options.clone()), ..PowerChange::default() };
            operate::change_power(&store, &name, change).await?;
            operate::start_run(&store, &ca, &name, NewRun::new(Task::Os(system.name.clone()))).await?;
        }
        let how = if accel == Accel::Kvm { "with KVM" } else { "without KVM, which takes minutes" };
        tell(&format!("{nodes} machines are being installed, {how}\n"));
        Ok(Self { store, began })
    }

    /// Waits until all machines are in a state, and prints what changes meanwhile.
    pub async fn wait(&self, lab: &Lab, awaited: Awaited, limit: Duration) -> anyhow::Result<()> {
        let mut shown: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let nodes = status::all(&self.store).await?;
            for node in &nodes {
                let now = in_words(node);
                if shown.get(&node.id) != Some(&now) {
                    tell(&format!("{:>7.1} {now}\n", self.began.elapsed().as_secs_f64()));
                    shown.insert(node.id.clone(), now);
                }
            }
            let waits = wait::judge(awaited, &nodes);
            if waits == Wait::Reached {
                return Ok(());
            }
            if let Some(error) = wait::ended(awaited, &waits, self.began.elapsed() >= limit) {
                return Err(error.into());
            }
            let failed = nodes.iter().find_map(|node| Some((node, node.power.as_ref()?.failed.as_ref()?)));
            if let Some((node, failed)) = failed {
                bail!("waiting for the machines: {} {}", label(node), line(&failed.in_words()));
            }
            if lab.server()?.is_none() {
                bail!("waiting for the machines: the server has ended; it said: {}", lab.log());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Closes the store.
    pub async fn close(self) {
        self.store.close().await;
    }
}

fn described(system: &System, image: slipway_protocol::Digest, arch: Arch) -> systems::System {
    systems::System {
        name: system.name.clone(),
        image,
        arch: Some(arch),
        raw_size: None,
        raw_digest: None,
        user_data: system.user_data.clone(),
        vendor_data: None,
        kernel_args: Vec::new(),
        ssh_keys: Vec::new(),
        phone_home: true,
        phone_home_post: None,
        phone_home_tries: None,
        allow_override: true,
        boot_reporter: false,
        // So that a machine that runs can be drained, rebooted and reinstalled.
        agent: Some(Agent::default()),
        keep_metadata: false,
        known_steps: Vec::new(),
        require: Proof::default(),
        limits: Default::default(),
        disk: DiskHints::default(),
    }
}

/// A random UUID (RFC 9562, version 4).
fn uuid() -> String {
    let hex = format!("{}{}", random::id(), random::id());
    [&hex[..8], &hex[8..12], &format!("4{}", &hex[13..16]), &format!("8{}", &hex[17..20]), &hex[20..32]].join("-")
}

/// Says where a machine stands: its state, and the step of its run.
fn in_words(node: &NodeStatus) -> String {
    let run = node.run.as_ref();
    let count = run.map_or(0, |run| run.steps.len());
    let step = run.and_then(|run| {
        let step =
            run.steps.iter().enumerate().find(|(_, step)| matches!(step.state, StepState::Running | StepState::Failed));
        let (index, step) = step?;
        // In tens, so that a line is printed now and then.
        let percent = step.progress.as_ref().and_then(|progress| (progress.bytes * 10).checked_div(progress.total?));
        let how = match &step.failure {
            Some(failure) => format!(" failed: {}", line(&failure.in_one_line())),
            None => percent.map(|tens| format!(", {} %", tens * 10)).unwrap_or_default(),
        };
        Some(format!(", step {}/{count} {}{how}", index + 1, line(&step.name)))
    });
    format!("{} is {}{}", label(node), word(&node.state), step.unwrap_or_default())
}
