//! Sealing to a TPM in software, judged by tpm2-tools.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use slipway_tpm::device::{Sealed, TpmError, seal};
use tempfile::TempDir;

use common::{PATIENCE, Swtpm, answer, code};

#[allow(dead_code, reason = "some of it is for the other tests")]
mod common;

const SECRET: [u8; 32] = *b"the passphrase of a key slot ...";
const CREATE_PRIMARY: u32 = 0x131;
const UNSEAL: u32 = 0x15E;

#[test]
fn a_secret_is_released_as_long_as_the_registers_stay() {
    let tpm = Swtpm::start();
    extend(&tpm, 7, &"5".repeat(64));
    let check = |path: &Path, kind: &str| {
        // The order of the registers does not matter.
        let sealed = seal(path, PATIENCE, &[7, 0], &SECRET).unwrap();
        tpm.assert_nothing_is_loaded();
        assert_eq!(sealed.primary, kind);
        tpm.run("tpm2_createpolicy", &["--policy-pcr", "-l", "sha256:0,7", "-L", "policy"]);
        assert_eq!(fs::read(tpm.path("policy")).unwrap(), sealed.policy);
        let unsealed = unseal(&tpm, &sealed);
        assert_eq!(unsealed.as_deref(), Some(&SECRET[..]), "{kind}");
        sealed
    };
    let of_ecc = check(&tpm.path("tpm"), "ecc");
    // TPM_RC_CURVE, for a parameter.
    let mut curve = [0x2E6].into_iter();
    let without_ecc = tpm.proxied(move |command| {
        (code(command) == CREATE_PRIMARY).then(|| curve.next().map(|code| answer(code, &[]))).flatten()
    });
    let of_rsa = check(&without_ecc, "rsa");
    extend(&tpm, 7, &"6".repeat(64));
    for sealed in [of_ecc, of_rsa] {
        assert_eq!(unseal(&tpm, &sealed), None, "{sealed:?}");
    }
}

#[test]
fn registers_into_which_nothing_was_measured_are_named() {
    let tpm = Swtpm::start();
    // The separator, and something after it.
    let separator = "df3f619804a92fdb4057192dc43dd748ea778adc52bc498ce80524c014b81119";
    for pcr in [2, 3] {
        extend(&tpm, pcr, separator);
    }
    extend(&tpm, 3, separator);
    extend(&tpm, 7, separator.replace('d', "0").as_str());
    // Register 17 begins with ones.
    let sealed = seal(&tpm.path("tpm"), PATIENCE, &[17, 7, 3, 2, 1], &SECRET).unwrap();
    assert_eq!(sealed.unmeasured, [17, 2, 1]);
}

#[test]
fn a_register_that_is_not_there_is_an_error() {
    let mut tpm = Swtpm::start();
    let check = |tpm: &Swtpm, pcr: u32| {
        let error = seal(&tpm.path("tpm"), PATIENCE, &[pcr], &SECRET).unwrap_err();
        assert!(error.to_string().starts_with(&format!("the TPM has no PCR {pcr} in its SHA-256 bank")), "{error}");
    };
    check(&tpm, 24);
    check(&tpm, u32::MAX);
    tpm.run("tpm2_pcrallocate", &["sha1:all+sha256:none"]);
    tpm.power_cycle();
    check(&tpm, 7);
}

#[test]
fn a_password_of_the_owner_is_named() {
    let tpm = Swtpm::start();
    tpm.run("tpm2_changeauth", &["-c", "o", "secret"]);
    let error = seal(&tpm.path("tpm"), PATIENCE, &[7], &SECRET).unwrap_err();
    assert!(matches!(error, TpmError::Password { hierarchy: "owner" }), "{error}");
}

#[test]
fn what_is_not_released_at_once_is_an_error_and_leaves_nothing_behind() {
    let tpm = Swtpm::start();
    let check = |unsealed: Vec<u8>, expect: &str| {
        let path = tpm.proxied(move |command| (code(command) == UNSEAL).then(|| unsealed.clone()));
        let error = seal(&path, PATIENCE, &[7], &SECRET).unwrap_err();
        assert!(error.to_string().starts_with(expect), "{error}");
        tpm.assert_nothing_is_loaded();
    };
    check(answer(0x128, &[]), "TPM2_Unseal: the TPM refused with 0x128 (TPM_RC_PCR_CHANGED: a PCR has changed");
    let other = [&[0, 0, 0, 34, 0, 32][..], &[7; 32]].concat();
    check(answer(0, &other), "the TPM returned a different secret from the one it sealed");
}

#[test]
fn a_tpm_that_falls_silent_is_given_up_at_the_deadline() {
    let deadline = Duration::from_millis(500);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tpm");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = seal(&path, deadline, &[7], &SECRET).unwrap_err();
    assert!(matches!(error, TpmError::Silent { command: "TPM2_PCR_Read", .. }), "{error}");
    // The TPM falls silent while sessions and keys are loaded that must be removed.
    let tpm = Swtpm::start();
    let path = tpm.proxied(|command| (code(command) == UNSEAL).then(Vec::new));
    let error = seal(&path, deadline, &[7], &SECRET).unwrap_err();
    assert!(matches!(error, TpmError::Silent { command: "TPM2_Unseal", .. }), "{error}");
}

/// Measures a digest, in hex.
fn extend(tpm: &Swtpm, pcr: u32, digest: &str) {
    tpm.run("tpm2_pcrextend", &[&format!("{pcr}:sha256={digest}")]);
}

/// Unseals as systemd-cryptsetup does. None if the TPM refuses.
fn unseal(tpm: &Swtpm, sealed: &Sealed) -> Option<Vec<u8>> {
    let private = 2 + usize::from(u16::from_be_bytes([sealed.blob[0], sealed.blob[1]]));
    fs::write(tpm.path("private"), &sealed.blob[..private]).unwrap();
    fs::write(tpm.path("public"), &sealed.blob[private..]).unwrap();
    let kind = sealed.primary;
    tpm.run("tpm2_createprimary", &["-Q", "-C", "o", "-g", "sha256", "-G", kind, "-c", "primary"]);
    tpm.run("tpm2_load", &["-Q", "-C", "primary", "-u", "public", "-r", "private", "-c", "object"]);
    tpm.run("tpm2_flushcontext", &["-t"]);
    let unsealed = tpm.tool("tpm2_unseal", &["-c", "object", "-p", "pcr:sha256:0,7"]).output().unwrap();
    for kind in ["-t", "-l"] {
        tpm.run("tpm2_flushcontext", &[kind]);
    }
    unsealed.status.success().then_some(unsealed.stdout)
}
