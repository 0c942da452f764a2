//! The boot reporter of an installed system against the server. The system's root is a folder.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::time::Duration;

use slipway_installer::boot_report::{self, End, Pace};
use slipway_protocol::node::boot_report::places;
use slipway_protocol::{Action, BootReporter, BootStage, NodeState, NodeStatus, Step};
use slipway_server::operate::{self, LogType};
use slipway_tests::Lab;
use slipway_tests::system::{booting, program, system};

const PACE: Pace =
    Pace { look: Duration::from_millis(50), log: Duration::from_secs(600), lifetime: Duration::from_secs(120) };

fn steps() -> Vec<Step> {
    let action = Action::BootReporter(BootReporter::default());
    vec![Step { name: "report".to_owned(), action, retries: 0, timeout: None }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_boot_is_reported_until_the_system_runs_and_then_nothing_is_left() {
    let mut lab = Lab::start().await;
    let config = booting(&lab, None).await;
    let root = lab.folder.path().join("root");
    let surroundings = system(&root, &config);
    let config = boot_report::configuration(&surroundings).unwrap().unwrap();
    let reporting = tokio::spawn({
        let surroundings = surroundings.clone();
        async move { boot_report::run(&config, &surroundings, PACE).await.unwrap() }
    });
    let stage = |stage| {
        move |node: &slipway_protocol::NodeStatus| {
            node.run.as_ref().and_then(|run| run.boot.as_ref()).is_some_and(|boot| boot.report.stage == stage)
        }
    };
    let node = lab.wait_for("booting", stage(BootStage::Booting)).await;
    assert_eq!(node.state, NodeState::Booting);
    lab.stop_server().await;
    fs::write(root.join("state/system"), "degraded\n").unwrap();
    lab.start_server().await;
    assert_eq!(reporting.await.unwrap(), End::Healthy);

    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Running);
    let boot = node.run.unwrap().boot.unwrap();
    assert_eq!((boot.report.stage, boot.report.boot_id.as_str(), boot.boots), (BootStage::Running, "boot-1", 1));
    assert_eq!(boot.report.system_state.as_deref(), Some("degraded"));
    assert_eq!(boot.report.failed_units, ["srv-a.mount"]);
    let log = operate::node_log(&lab.store().await, "m1", LogType::HostBoot, None).await.unwrap();
    for part in [
        "==== boot ====\nboot boot-1: the system runs; the service manager is degraded\n",
        "==== failed units ====\nunits: --failed --no-pager\n",
        "==== mounts ====\n22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
        "==== addresses ====\nnot available: ip is not installed\n",
        "==== route ====\nIface Destination\n",
        "==== resolv.conf ====\nnameserver 192.0.2.1\n",
        "==== journal ====\njournal: -b -q --no-pager -o short-precise ",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains("container runtimes"), "there are none: {log}");

    boot_report::remove(&root);
    for place in places::LINKS.iter().chain([&places::UNIT, &places::USR_LOCAL]) {
        assert!(!root.join(place).exists(), "{place}");
    }
    assert!(root.join("usr/local/lib").exists());
    boot_report::remove(&root);
    boot_report::configuration(&surroundings).expect_err("there is none, and no unit that would have started it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_boot_is_known_as_one() {
    let lab = Lab::start().await;
    let config = booting(&lab, None).await;
    let root = lab.folder.path().join("root");
    let surroundings = system(&root, &config);
    let once = Pace { look: Duration::from_secs(600), ..PACE };
    let newest = |node: &NodeStatus| node.run.as_ref().and_then(|run| run.boot.clone());
    for (boot_id, stage, boots) in
        [("boot-1", BootStage::Booting, 1), ("boot-1", BootStage::Booting, 1), ("boot-2", BootStage::Restarted, 2)]
    {
        fs::write(root.join("proc/sys/kernel/random/boot_id"), format!("{boot_id}\n")).unwrap();
        let before = newest(&lab.status().await).map(|boot| boot.at);
        let reporting = tokio::spawn({
            let (config, surroundings) = (config.clone(), surroundings.clone());
            async move { boot_report::run(&config, &surroundings, once).await }
        });
        let node = lab.wait_for("heard of", |node| newest(node).map(|boot| boot.at) > before).await;
        reporting.abort();
        let boot = newest(&node).unwrap();
        assert_eq!((boot.report.stage, boot.boots), (stage, boots), "{boot_id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_system_that_stopped_in_the_emergency_shell_is_reported_with_its_log() {
    let lab = Lab::start().await;
    let config = booting(&lab, None).await;
    let root = lab.folder.path().join("root");
    let surroundings = system(&root, &config);
    fs::write(root.join("state/system"), "maintenance\n").unwrap();
    let (state, asked) = (root.join("state/system"), root.join("state/asked"));
    let systemctl = format!(
        "case \"$1\" in is-system-running) cat {} ;; is-active) echo inactive ;; start) echo \"$3\" >>{} ;; \
         list-units) echo 'srv-a.mount loaded failed failed /srv/a' ;; \
         show) echo ActiveState=inactive; echo UnitFileState=enabled; \
         case \"$3\" in NetworkManager.service) echo Requires=sysinit.target ;; *) echo Requires=-.mount ;; esac ;; \
         esac",
        state.display(),
        asked.display()
    );
    program(&root, "systemctl", &systemctl);
    let journalctl = "case \"$*\" in *--output-fields=UNIT*JOB_RESULT=dependency*) \
                      printf 'dev-b.device\\nsrv-b.mount\\nsrv-a.mount\\n' ;; *) echo journal ;; esac";
    program(&root, "journalctl", journalctl);
    let reporting = tokio::spawn(async move { boot_report::run(&config, &surroundings, PACE).await });
    let node = lab.wait_for("heard of", |node| node.run.as_ref().is_some_and(|run| run.boot.is_some())).await;
    let boot = node.run.unwrap().boot.unwrap();
    assert_eq!(node.state, NodeState::Booting);
    assert_eq!((boot.report.stage, boot.report.system_state.as_deref()), (BootStage::Booting, Some("maintenance")));
    // The device of srv-b.mount is missing, so that unit was never started.
    assert_eq!(boot.report.failed_units, ["srv-a.mount", "dev-b.device", "srv-b.mount"]);
    // A unit that needs sysinit.target would end the shell.
    let started = fs::read_to_string(&asked).unwrap();
    assert_eq!(started, "systemd-networkd.service\nnetworking.service\n");
    // The operator mends the system and leaves the shell.
    fs::write(&state, "running\n").unwrap();
    assert_eq!(reporting.await.unwrap().unwrap(), End::Healthy);
    assert_eq!(fs::read_to_string(&asked).unwrap(), started, "the network is asked for once");
    assert_eq!(lab.status().await.state, NodeState::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_sent_again_and_have_what_container_runtimes_say() {
    let lab = Lab::start().await;
    let config = booting(&lab, None).await;
    let root = lab.folder.path().join("root");
    let surroundings = system(&root, &config);
    // The system counts as running once its journal was read twice.
    let asked = root.join("state/asked");
    fs::write(&asked, "").unwrap();
    let times = format!("$(wc -l <{})", asked.display());
    program(&root, "systemctl", &format!("[ {times} -lt 2 ] && echo starting || echo running"));
    let journal = format!("echo >>{}; echo \"journal: asked {times} times\"", asked.display());
    let runtimes = "*containerd*) echo 'containerd: no such image' ;;";
    program(&root, "journalctl", &format!("case \"$*\" in {runtimes} *) {journal} ;; esac"));
    let again = Pace { log: Duration::from_millis(1), ..PACE };
    assert_eq!(boot_report::run(&config, &surroundings, again).await.unwrap(), End::Healthy);
    let log = operate::node_log(&lab.store().await, "m1", LogType::HostBoot, None).await.unwrap();
    assert!(log.contains("==== container runtimes ====\ncontainerd: no such image\n"), "{log}");
    assert!(log.contains("==== journal ====\njournal: asked 3 times\n"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reporter_ends_when_nobody_answers_or_waits() {
    let mut lab = Lab::start().await;
    let config = booting(&lab, None).await;
    let root = lab.folder.path().join("root");
    let surroundings = system(&root, &config);
    lab.replace_run(steps()).await;
    assert_eq!(boot_report::run(&config, &surroundings, PACE).await.unwrap(), End::NotAwaited);
    lab.stop_server().await;
    let short = Pace { lifetime: Duration::from_millis(500), ..PACE };
    assert_eq!(boot_report::run(&config, &surroundings, short).await.unwrap(), End::TimeIsUp);
    fs::remove_file(root.join(places::USR_LOCAL).join(places::CONFIG)).unwrap();
    assert_eq!(boot_report::configuration(&surroundings).unwrap(), None, "it was being removed");
}
