//! Devices that are no TPM, or one that fails, and the firmware's log.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::error::Error;
use std::fs;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use slipway_protocol::node::attestation::MAX_EVENT_LOG_BYTES;
use slipway_tpm::device::{Attester, TpmError, read_event_log};
use tempfile::TempDir;

use common::{PATIENCE, answer, fake};

#[allow(dead_code, reason = "the TPM that behaves is for the other tests")]
mod common;

#[test]
fn no_device_is_told_from_one_that_cannot_be_opened() {
    let folder = TempDir::new().unwrap();
    let open = |path: &str| Attester::open(&folder.path().join(path), PATIENCE).err().unwrap();
    assert!(matches!(open("tpmrm0"), TpmError::Missing { .. }));
    for (path, expect) in [("", "Is a directory"), ("socket", "Connection refused")] {
        drop(UnixListener::bind(folder.path().join("socket")));
        let error = open(path);
        assert!(matches!(error, TpmError::Open { .. }), "{error}");
        assert!(error.source().unwrap().to_string().starts_with(expect), "{error:?}");
    }
}

#[test]
fn a_tpm_that_does_not_answer_costs_the_deadline_once() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tpm");
    let _listener = UnixListener::bind(&path).unwrap();
    let (started, deadline) = (Instant::now(), Duration::from_millis(200));
    let mut attester = Attester::open(&path, deadline).unwrap();
    let error = attester.keys().unwrap_err();
    assert!(matches!(error, TpmError::Silent { command: "TPM2_NV_ReadPublic", .. }), "{error}");
    assert!(started.elapsed() >= deadline);
    // A late answer must not be taken for that to another command.
    let started = Instant::now();
    for _ in 0..100 {
        let error = attester.keys().unwrap_err();
        assert!(matches!(error, TpmError::Failed { .. }), "{error}");
    }
    drop(attester);
    assert!(started.elapsed() < 50 * deadline, "each command waited");
}

#[test]
fn a_tpm_that_stays_busy_is_given_up_at_the_deadline() {
    let folder = TempDir::new().unwrap();
    let path = fake(folder.path(), |_| answer(0x922, &[]));
    let mut attester = Attester::open(&path, Duration::from_millis(200)).unwrap();
    let error = attester.keys().unwrap_err();
    assert_eq!(
        error.to_string(),
        "TPM2_NV_ReadPublic: the TPM refused with 0x922 (TPM_RC_RETRY: it is still busy; try again)"
    );
}

#[test]
fn a_response_code_means_the_same_wherever_the_mistake_is() {
    let check = |code: u32, expect: &str| {
        let error = TpmError::Refused { command: "TPM2_X", code }.to_string();
        assert_eq!(error, format!("TPM2_X: the TPM refused with {code:#x} ({expect})"));
    };
    for code in [0x9F, 0x19F, 0x1DF, 0x99F, 0xF9F] {
        check(code, "TPM_RC_INTEGRITY");
    }
    // The second is the resource manager's own.
    for code in [0x143, 0xB_0143] {
        check(code, "TPM_RC_COMMAND_CODE: it does not support the command");
    }
    check(0x921, "TPM_RC_LOCKOUT: it is locked after too many wrong passwords; clear it in the firmware's setup");
    check(0x1C3, "TPM 2.0 Library, part 2, 6.6.3");
}

#[test]
fn a_tpm_that_is_gone_is_said_with_the_cause() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("tpm");
    let listener = UnixListener::bind(&path).unwrap();
    let mut attester = Attester::open(&path, PATIENCE).unwrap();
    drop(listener);
    let error = attester.keys().unwrap_err();
    assert!(matches!(error, TpmError::Transport { command: "TPM2_NV_ReadPublic", .. }), "{error}");
    assert!(error.source().unwrap().to_string().starts_with("Broken pipe"), "{error:?}");
}

#[test]
fn what_is_no_answer_is_an_error() {
    let check = |answered: &[u8]| {
        let folder = TempDir::new().unwrap();
        let owned = answered.to_vec();
        let path = fake(folder.path(), move |_| owned.clone());
        let error = Attester::open(&path, Duration::from_millis(500)).unwrap().keys().unwrap_err();
        match error {
            TpmError::Malformed { .. } => true,
            TpmError::Silent { .. } => false,
            other => panic!("{answered:?}: {other}"),
        }
    };
    // An incomplete answer is waited for, because the rest could come.
    assert!(!check(&[]));
    assert!(!check(&answer(0, &[0; 40])[..49]));
    // The size: too small, smaller than what came, larger than any answer.
    assert!(check(&[0; 10]));
    assert!(check(&[0x80, 1, 0, 0, 0, 9, 0, 0, 0, 0]));
    assert!(check(&[&answer(0, &[])[..], &[0]].concat()));
    assert!(check(&answer(0, &[0; 5000])));
    assert!(check(&[0xFF; 5000]));
    // A TPM2B_NV_PUBLIC that is not there, too short, and longer than the answer.
    assert!(check(&answer(0, &[])));
    assert!(check(&answer(0, &[0, 4, 1, 2, 3, 4])));
    assert!(check(&answer(0, &[0, 200, 1, 2, 3, 4])));
    // No TPM at all.
    let mut null = Attester::open("/dev/null".as_ref(), PATIENCE).unwrap();
    assert!(matches!(null.keys(), Err(TpmError::Malformed { .. })));
}

#[test]
fn only_a_usable_event_log_is_sent() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("log");
    assert_eq!(read_event_log(&path).unwrap(), None, "no log");
    assert!(read_event_log(folder.path()).is_err(), "a folder");
    let log = |event: u8, text: &[u8], bytes: usize| {
        let mut log = [&[0, 0, 0, 0, event, 0, 0, 0][..], &[0; 20], &[33, 0, 0, 0], text].concat();
        log.resize(bytes.max(log.len()), 0);
        log
    };
    let check = |written: Vec<u8>, is_usable: bool| {
        fs::write(&path, &written).unwrap();
        let read = read_event_log(&path).unwrap();
        assert_eq!(read, is_usable.then_some(written));
    };
    check(log(3, b"Spec ID Event03\0", 500), true);
    check(log(3, b"Spec ID Event03\0", MAX_EVENT_LOG_BYTES), true);
    check(log(3, b"Spec ID Event00\0", 500), false);
    check(log(3, b"Spec ID Event03", 0), false);
    check(log(4, b"Spec ID Event03\0", 500), false);
    check(vec![], false);
    check(vec![0; 7], false);
    fs::write(&path, log(3, b"Spec ID Event03\0", MAX_EVENT_LOG_BYTES + 1)).unwrap();
    assert!(read_event_log(&path).unwrap_err().to_string().starts_with("it is longer than the 131072 bytes"));
}
