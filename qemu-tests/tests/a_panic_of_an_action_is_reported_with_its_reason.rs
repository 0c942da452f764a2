//! An action of the static program panics because it cannot start more threads. The next installer reports the step and
//! the reason.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use qemu_tests::{LIMIT, noise, timed};
use slipway_parts::Arch;
use slipway_protocol::{NodeStatus, RunState};
use xtask::build::binary;
use xtask::lab::server::{Lab, parse_status};

/// Size in bytes of the stack of each thread of the installer.
const STACK: u64 = 512 << 20;
/// Bytes of address space left for the action: more than all its buffers, but less than the stack of one thread.
const LEFT: u64 = 256 << 20;

#[test]
fn a_panic_of_an_action_is_reported_with_its_reason() -> Result<()> {
    timed("a panic of an action is reported with its reason", || {
        let folder = tempfile::tempdir()?;
        let mut lab = Lab::new(&folder.path().join("lab"))?;
        lab.start_server()?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        fs::write(file("ca.pem"), lab.operator(&["ca"])?)?;
        fs::write(file("token"), lab.operator(&["token", "add"])?)?;
        fs::write(file("image"), noise(8 << 20))?;
        fs::write(file("disk"), vec![0x55; 16 << 20])?;
        let program = binary::build(Arch::X86_64, None)?;
        let server = lab.url().replace("10.0.2.2", "127.0.0.1");
        let install = || -> Result<Installer> {
            let mut command = Command::new(&program);
            command.args(["install", "--server", &server, "--ca", &file("ca.pem"), "--token-file", &file("token")]);
            command.env("RUST_MIN_STACK", STACK.to_string());
            Ok(Installer(command.stdin(Stdio::null()).spawn().context("starting slipway install")?))
        };
        let mut installer = install()?;
        let node = wait_for(&lab, "enrolled", |_| true)?;

        let status = fs::read_to_string(format!("/proc/{}/status", installer.0.id()))?;
        let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB"));
        let size: u64 = size.context("the size of the installer")?.parse()?;
        let limit = format!("--as={}", size * 1024 + LEFT);
        let limited = Command::new("prlimit").args(["--pid", &installer.0.id().to_string(), &limit]).status()?;
        assert!(limited.success());
        let workflow = serde_json::json!({ "steps": [{ "name": "write", "action": { "stream-image": {
            "url": file("image"), "disk": { "device": file("disk") },
        } } }] });
        fs::write(file("workflow"), workflow.to_string())?;
        lab.operator(&["run", "start", "--yes", &node.id, "--workflow", &file("workflow")])?;
        let ended = installer.0.wait()?;
        assert!(!ended.success(), "the installer ended by itself: {ended}");
        drop(installer);

        let _installer = install()?;
        let node = wait_for(&lab, "failed", |node| node.run.as_ref().is_some_and(|run| run.state == RunState::Failed))?;
        let run = node.run.context("a run")?;
        let failure = run.steps[0].failure.as_ref().context("a failure")?;
        assert_eq!(failure.reason, "the installer ended in the middle of step 1 write");
        assert!(failure.causes[0].contains("panicked at "), "{failure:#?}");
        assert!(failure.causes[0].contains("failed to spawn thread"), "{failure:#?}");
        Ok(())
    })
}

/// An installer process that is killed on drop.
struct Installer(Child);

impl Drop for Installer {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn wait_for(lab: &Lab, what: &str, holds: impl Fn(&NodeStatus) -> bool) -> Result<NodeStatus> {
    let began = Instant::now();
    loop {
        let status = lab.operator(&["status", "--json"])?;
        if let Some(node) = status.lines().map(parse_status).next().transpose()?.filter(&holds) {
            return Ok(node);
        }
        if began.elapsed() > LIMIT {
            bail!("waiting for the machine to be {what}: {status}");
        }
        sleep(Duration::from_millis(100));
    }
}
