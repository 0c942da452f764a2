//! `enrol-secure-boot` on a machine with a folder for the firmware's variables. A folder keeps what is written to it
//! and is no firmware, so this is about what is refused, and about what is written.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;

use common::{Bench, chain};
use slipway_protocol::{Action, EnrolSecureBoot, SecureBootUpdate, SecureBootVariable};

const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const IMAGE_SECURITY: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";

/// Time, a signature of four bytes, and lists.
const SIGNED: &[u8] = b"sixteen bytes...\x08\0\0\0sig.lists";

/// Enrols db and PK, which a folder does not do. Returns why not.
fn failure(bench: &Bench) -> String {
    let updates = [SecureBootVariable::Db, SecureBootVariable::Pk];
    let updates = updates.map(|variable| SecureBootUpdate::new(variable, false, SIGNED)).to_vec();
    let result = bench.run(&Action::EnrolSecureBoot(EnrolSecureBoot { updates })).0;
    chain(&result.expect_err("a folder is no firmware"))
}

fn set(bench: &Bench, name: &str, value: u8) {
    fs::write(bench.path(&format!("efi/efivars/{name}-{GLOBAL}")), [6, 0, 0, 0, value]).unwrap();
}

#[test]
fn a_machine_that_cannot_be_enrolled_is_told_why() {
    let bench = Bench::without_disks();
    assert!(failure(&bench).contains("was not started by UEFI firmware"), "{}", failure(&bench));
    fs::create_dir_all(bench.path("efi/efivars")).unwrap();
    assert!(failure(&bench).contains("efivarfs is not mounted there"), "{}", failure(&bench));
    set(&bench, "SecureBoot", 1);
    assert!(failure(&bench).contains("it does not know Secure Boot"), "{}", failure(&bench));
    set(&bench, "SetupMode", 0);
    assert!(failure(&bench).contains("is not in Setup Mode (Secure Boot is on)"), "{}", failure(&bench));
    set(&bench, "SecureBoot", 0);
    assert!(failure(&bench).contains("is not in Setup Mode (Secure Boot is only switched off)"), "{}", failure(&bench));
    let db = bench.path(&format!("efi/efivars/db-{IMAGE_SECURITY}"));
    assert!(!db.exists());
}

#[test]
fn an_update_is_written_as_the_kernel_takes_it_and_read_back() {
    let bench = Bench::without_disks();
    fs::create_dir_all(bench.path("efi/efivars")).unwrap();
    set(&bench, "SetupMode", 1);
    let expect = "writing the EFI variable db: written before: nothing; not written: db and PK; the firmware is still \
                  in Setup Mode and starts anything: the firmware accepted it, but returned something else";
    let failure = failure(&bench);
    assert!(failure.starts_with(expect), "{failure}");
    let written = fs::read(bench.path(&format!("efi/efivars/db-{IMAGE_SECURITY}"))).unwrap();
    assert_eq!(written, [&[0x27, 0, 0, 0], SIGNED].concat());
    assert!(!bench.path(&format!("efi/efivars/PK-{GLOBAL}")).exists(), "nothing follows a failure");
}
