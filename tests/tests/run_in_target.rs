//! What the server learns about a command in the installed system that fails or does not end.
//!
//! The program that runs the action is also the first process of the command, so this test has a `main` that can be
//! both.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
}

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use common::MIB;
use common::disk_image::{Part, ROOT, can_mount, make, run};
use slipway_installer::End;
use slipway_protocol::{Action, NodeState, Reboot, RunInTarget, Step, StepState, StepStatus};
use slipway_tests::Lab;
use tokio::time;

/// Time limit of a command, in seconds.
const LIMIT: u64 = 600;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("in-target") {
        return slipway_actions::in_target();
    }
    // The clock can be moved only on a single thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("\nrunning 1 test");
    let (said, counts) = match can_mount() {
        true => {
            runtime.block_on(a_command_is_told_with_what_it_printed());
            ("ok", "1 passed; 0 failed; 0 ignored")
        }
        false => ("ignored", "0 passed; 0 failed; 1 ignored"),
    };
    println!("test a_command_is_told_with_what_it_printed ... {said}\n\ntest result: ok. {counts}");
    ExitCode::SUCCESS
}

async fn a_command_is_told_with_what_it_printed() {
    let lab = Lab::start().await;
    install(&lab.disk());
    lab.register(true).await;

    start(&lab, "echo one\necho two >&2\nexit 3\n").await;
    assert_eq!(lab.install().await.unwrap(), End::Failed);
    let step = failed(&lab).await;
    let reason = "running the script in the installed system: it ended with exit status 3; last output: one / two";
    assert_eq!((step.state, step.failure.unwrap().reason.as_str()), (StepState::Failed, reason));

    // The script prints both lines at once, and stops itself before the second line ends.
    start(&lab, "printf 'one\\nreally? '\nkill -STOP $$\n").await;
    let installing = tokio::spawn(slipway_installer::run(lab.config(), lab.options(None)));
    lab.wait_for("asking", |node| {
        node.run.as_ref().is_some_and(|run| run.steps[0].notes.iter().any(|note| note == "one"))
    })
    .await;
    time::pause();
    time::advance(Duration::from_secs(LIMIT + 1)).await;
    time::resume();
    assert_eq!(installing.await.unwrap().unwrap(), End::Failed);
    let step = failed(&lab).await;
    let failure = step.failure.unwrap();
    assert_eq!((step.state, failure.reason.as_str()), (StepState::TimedOut, "running run-in-target"));
    assert_eq!(failure.causes, ["it took longer than the 600 s that the workflow allows"]);
    assert!(step.notes.ends_with(&["one".to_owned(), "really? ".to_owned()]), "{:?}", step.notes);

    // Nothing is left that blocks another command.
    start(&lab, "echo one\n").await;
    assert_eq!(lab.install().await.unwrap(), End::Reboot, "{:#?}", lab.status().await.run);
}

/// Starts a run with this script for the installed system.
async fn start(lab: &Lab, script: &str) {
    let disk = lab.disk_hints();
    let action = Action::RunInTarget(RunInTarget { disk, script: Some(script.to_owned()), ..RunInTarget::default() });
    let steps = [("script", action), ("leave", Action::Reboot(Reboot::default()))];
    let step =
        |(name, action): (&str, Action)| Step { name: name.to_owned(), action, retries: 0, timeout: Some(LIMIT) };
    lab.start_run(steps.map(step).into()).await;
}

/// Returns the first step of the run. Checks that the node failed and that the second step was skipped.
async fn failed(lab: &Lab) -> StepStatus {
    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Failed);
    let mut steps = node.run.unwrap().steps;
    assert_eq!(steps[1].state, StepState::Skipped);
    steps.remove(0)
}

/// Makes a disk whose root file system has the host's shell with its libraries.
fn install(disk: &Path) {
    let tree = tempfile::tempdir().unwrap();
    let shell = Path::new("/bin/sh");
    for file in libraries(shell).iter().map(PathBuf::as_path).chain([shell]) {
        let place = tree.path().join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(file, place).unwrap();
    }
    for folder in ["etc", "proc", "sys", "dev", "run"] {
        fs::create_dir_all(tree.path().join(folder)).unwrap();
    }
    fs::write(tree.path().join("etc/os-release"), "NAME=Debian").unwrap();
    make(disk, 16, &[Part { mib: 1..15, type_guid: ROOT, name: "system", files: &[] }]);
    let offset = format!("offset={MIB}");
    let mut mkfs = Command::new("mkfs.ext4");
    run(mkfs.args(["-q", "-F", "-b", "1024", "-E", &offset, "-d"]).arg(tree.path()).arg(disk).arg("14336"));
}

fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = run(Command::new("ldd").arg(program));
    let words = listed.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(|word| PathBuf::from(word.trim_end_matches(':'))).collect()
}
