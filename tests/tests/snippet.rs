//! Loose steps by the function that `slipway-server snippet` prints.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::symlink;
use std::process::Stdio;

use slipway_protocol::{Action, LooseStep, Reboot, Step};
use slipway_server::operate;
use slipway_server::snippet::{self, Surrounding};
use slipway_server::store::run_tokens::Purpose;
use slipway_tests::Lab;
use tokio::process::Command;

const BUSYBOX: &str = "/bin/busybox";

/// A function for the run of the lab's machine.
async fn function(lab: &Lab) -> String {
    lab.register(true).await;
    let action = Action::Reboot(Reboot::default());
    lab.start_run(vec![Step { name: "leave".to_owned(), action, retries: 0, timeout: None }]).await;
    let (token, _) = operate::add_run_token(&lab.store().await, "m1", Purpose::Steps).await.unwrap();
    snippet::text(Surrounding::Shell, &format!("{}/v1/report", lab.url()), &token, &lab.ca())
}

/// What a script prints.
async fn run(command: &mut Command, script: &str) -> String {
    let output = command.args(["-eu", "-c", script]).stdin(Stdio::null()).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

async fn steps(lab: &Lab) -> Vec<LooseStep> {
    lab.status().await.run.unwrap().loose_steps
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sixth_word_is_the_priority() {
    let lab = Lab::start().await;
    let script = function(&lab).await
        + "slipway_report others\n\
           slipway_report packages init 0 'installing packages' '' 20\n\
           slipway_report disks '' '' '' '' 10\n\
           slipway_report packages done 100\n";
    assert_eq!(run(&mut Command::new("/bin/sh"), &script).await, "");
    let steps = steps(&lab).await;
    let steps: Vec<(&str, u16)> = steps.iter().map(|step| (step.name.as_str(), step.priority)).collect();
    assert_eq!(steps, [("disks", 10), ("packages", 20), ("others", 100)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_verify_the_server_nothing_is_sent() {
    let lab = Lab::start().await;
    let script = function(&lab).await + "slipway_report packages done 100\necho $?\n";
    // busybox's wget among them, which asks whoever answers.
    let folder = tempfile::tempdir().unwrap();
    for applet in ["sed", "tr", "tail", "mktemp", "sleep", "rm", "grep", "cat", "wc", "wget"] {
        symlink(BUSYBOX, folder.path().join(applet)).unwrap();
    }
    let mut command = Command::new(BUSYBOX);
    command.arg("sh").env_clear().env("PATH", folder.path()).env("TMPDIR", folder.path());
    assert_eq!(run(&mut command, &script).await, "0\n");
    assert_eq!(steps(&lab).await, []);
    let left = std::fs::read_dir(folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(left.count(), 0, "the secret stays nowhere");
}
