//! A machine with a TPM in software enrols.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use slipway_installer::discover::tpm::{MachineTpm, Place};
use slipway_installer::{End, Options};
use slipway_protocol::{Action, EraseDisk, KeyOrigin, Proof, Step};
use slipway_tests::Lab;
use swtpm::Swtpm;

#[path = "../../crates/tpm/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod swtpm;

/// Returns the options of one boot of the machine: the key of the boot before is lost.
fn boot(lab: &Lab, name: &str, device: std::path::PathBuf) -> Options {
    let mut options = lab.options(None);
    options.state = lab.folder.path().join(name);
    options.facts.tpm = MachineTpm::at(Place { device, event_log: None });
    options
}

async fn start_run(lab: &Lab) {
    let erase = EraseDisk { disk: lab.disk_hints(), ..EraseDisk::default() };
    lab.start_run(vec![Step { name: "erase".to_owned(), action: Action::EraseDisk(erase), retries: 0, timeout: None }])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_proves_its_tpm_at_each_boot() {
    let lab = Lab::start().await;
    lab.register(true).await;
    let mut tpm = Swtpm::start();
    start_run(&lab).await;
    let options = boot(&lab, "first", tpm.path("tpm"));
    assert_eq!(slipway_installer::run(lab.config(), options).await.unwrap(), End::Done);
    let first = lab.status().await;
    assert_eq!(first.key.unwrap().origin, KeyOrigin::First);
    let pinned = first.tpm.unwrap();

    // The second boot need not wait until the first counts as silent, although the first was heard a moment ago.
    tpm.power_cycle();
    start_run(&lab).await;
    let options = boot(&lab, "second", tpm.path("tpm"));
    assert_eq!(slipway_installer::run(lab.config(), options).await.unwrap(), End::Done);
    let second = lab.status().await;
    let key = second.key.unwrap();
    assert_eq!((key.origin, key.proof), (KeyOrigin::Attested, Proof::Attested));
    assert_eq!(second.tpm.unwrap().ek, pinned.ek);
}

#[tokio::test]
async fn a_medium_that_requires_a_tpm_waits_for_its_driver() {
    let tpm = Swtpm::start();
    let (device, late) = (tpm.path("tpm"), tpm.path("late"));
    let machine = MachineTpm::at(Place { device: late.clone(), event_log: None });
    let asked = std::cell::Cell::new(0);
    // The driver loads between two looks at the device.
    let all_drivers_loaded = || {
        asked.set(asked.get() + 1);
        if asked.get() == 2 {
            std::os::unix::fs::symlink(&device, &late).unwrap();
        }
        asked.get() > 2
    };
    machine.require(all_drivers_loaded).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tpm_that_cannot_be_used_keeps_no_machine_from_being_installed() {
    let lab = Lab::start().await;
    lab.register(true).await;
    start_run(&lab).await;
    let no_tpm = lab.folder.path().join("file");
    std::fs::write(&no_tpm, "this is no TPM").unwrap();
    let options = boot(&lab, "first", no_tpm);
    assert_eq!(slipway_installer::run(lab.config(), options).await.unwrap(), End::Done);
    let node = lab.status().await;
    assert_eq!((node.key.unwrap().proof, node.tpm), (Proof::Registered, None));
}
