//! Installs Debian by a test's own workflow, and starts the installed system by firmware from its disk.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use slipway_protocol::{NodeState, NodeStatus, SeedPlace};
use xtask::lab::demo::{self, Demo};
use xtask::lab::server::Lab;
use xtask::lab::target_image::{System, TargetImage};

/// A system that was installed and has phoned home.
pub struct Installed {
    /// The node's status on the server.
    pub node: NodeStatus,
    /// The console output from the start of the installed kernel.
    pub console: String,
}

/// Installs a system that phones home. First the image and its seed are written, the seed at `place`. Then come
/// `steps`, and a restart. Fails if the run fails or the system does not phone home.
pub fn install(system: System, place: SeedPlace, steps: &[Value]) -> Result<Installed> {
    let folder = tempfile::tempdir()?;
    let start_run = |lab: &Lab, image: &TargetImage, digest: &str| {
        let stream = json!({"stream-image": {
            "url": format!("{}/images/{digest}", lab.url()),
            "digest": digest,
            "raw_digest": format!("sha256:{}", image.raw_sha256),
            // A seed partition needs room after the image's last partition.
            "grow": place != SeedPlace::Cidata,
        }});
        let user_data = "#cloud-config\n";
        let seed = json!({"seed-cloud-init": {"instance_id": "first", "user_data": user_data, "seed": place}});
        let before = [stream, seed].into_iter();
        let all = before.chain(steps.iter().cloned()).chain([json!({"reboot": {}})]);
        let steps: Vec<Value> =
            all.enumerate().map(|(index, action)| json!({"name": index.to_string(), "action": action})).collect();
        let file = folder.path().join("workflow");
        std::fs::write(&file, serde_json::to_vec(&json!({"phone_home": true, "steps": steps}))?)?;
        let file = file.to_str().context("a path that is UTF-8")?;
        lab.operator(&["run", "start", "--yes", demo::NAME, "--workflow", file]).map(drop)
    };
    let demo = Demo::with(&folder.path().join("demo"), false, system, &|_| (), &start_run)?;
    let mut machine = demo.power_on()?;
    let node = demo.watch(&mut machine, |_| ())?;
    let console = machine.console()?;
    anyhow::ensure!(node.state == NodeState::Running, "{node:#?}\n{console}");
    let console = console.rsplit_once("Linux version").context("the installed kernel")?.1.to_owned();
    Ok(Installed { node, console })
}

impl Installed {
    /// Returns the kernel arguments of the installed system.
    pub fn kernel_arguments(&self) -> Result<Vec<&str>> {
        let line = self.console.lines().find_map(|line| Some(line.split_once("Command line: ")?.1));
        Ok(line.context("the kernel's command line")?.split_whitespace().collect())
    }
}
