//! Loose steps by the function that `slipway-server snippet` prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::os::unix::fs::symlink;
use std::process::Stdio;

use slipway_protocol::{Action, LooseStatus, LooseStep, Reboot, Step};
use slipway_server::operate;
use slipway_server::snippet::{self, Surrounding};
use slipway_server::store::run_tokens::Purpose;
use slipway_tests::Lab;
use tokio::process::Command;
use xtask::debian;

const BUSYBOX: &str = "/bin/busybox";

/// The initramfs of Debian's installer, in its package, and what one of its commands is run by there.
const INITRAMFS: &str = "usr/lib/debian-installer/images/12/amd64/text/debian-installer/amd64/initrd.gz";
const PRESEEDED: &str =
    "#!/bin/sh\n. /usr/share/debconf/confmodule\ndebconf-set-selections /preseed.cfg\npreseed_command \"$1\"\n";

/// A function for the run of the lab's machine.
async fn function(lab: &Lab) -> String {
    snippet(lab, Surrounding::Shell).await
}

async fn snippet(lab: &Lab, surrounding: Surrounding) -> String {
    lab.register(true).await;
    let action = Action::Reboot(Reboot::default());
    lab.start_run(vec![Step { name: "leave".to_owned(), action, retries: 0, timeout: None }]).await;
    let (token, _) = operate::add_run_token(&lab.store().await, "m1", Purpose::Steps).await.unwrap();
    snippet::text(surrounding, &format!("{}/v1/report", lab.url()), &token, &lab.ca())
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

/// In the root file system that Debian's installer runs in, with its shell, its debconf and its wget.
#[tokio::test(flavor = "multi_thread")]
async fn a_preseeded_installer_reports_by_what_it_has_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: the installer's root needs a root");
        return;
    }
    let lab = Lab::start().await;
    let root = tempfile::tempdir().unwrap();
    let initramfs = debian::unpacked(&debian::INSTALLER).unwrap().join(INITRAMFS);
    let script =
        "gzip -dc \"$0\" | cpio --quiet -idD \"$1\"; [ -e \"$1/dev/null\" ] || mknod -m 666 \"$1/dev/null\" c 1 3";
    let unpacked = Command::new("sh").args(["-euc", script]).arg(initramfs).arg(root.path()).status().await.unwrap();
    assert!(unpacked.success());
    std::fs::write(root.path().join("preseed.cfg"), snippet(&lab, Surrounding::Preseed).await).unwrap();
    std::fs::write(root.path().join("preseeded"), PRESEEDED).unwrap();
    let installer = || {
        let mut command = Command::new("chroot");
        command.arg(root.path()).arg("/bin/sh").env_clear().env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin");
        command
    };
    run(&mut installer(), "debconf-loadtemplate d-i /var/lib/dpkg/info/*.templates").await;
    for (command, expect) in [
        ("preseed/early_command", (Some(LooseStatus::Init), Some(0), "started")),
        ("partman/early_command", (Some(LooseStatus::Init), Some(10), "partitioning")),
        ("preseed/late_command", (Some(LooseStatus::Done), Some(100), "installed")),
    ] {
        run(installer().env("DEBIAN_FRONTEND", "text"), &format!("debconf -od-i /bin/sh /preseeded {command}")).await;
        let steps = steps(&lab).await;
        let [step] = &steps[..] else { panic!("{command}: {steps:?}") };
        assert_eq!((step.status, step.percent, step.label.as_deref().unwrap_or_default()), expect, "{command}");
    }
}
