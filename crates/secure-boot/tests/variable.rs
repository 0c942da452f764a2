//! Updates of variables are signed. sbvarsign and openssl judge.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Folder, KEY, OTHER_KEY, has, now};
use ring::digest::{SHA256, digest};
use slipway_secure_boot::lists::{Entry, build};
use slipway_secure_boot::{Uuid, Variable, Write, update};
use time::{Duration, OffsetDateTime, UtcOffset};

/// Bytes of EFI_TIME, and of a WIN_CERTIFICATE_UEFI_GUID without the signature.
const TIME: usize = 16;
const HEADER: usize = 24;

fn lists() -> Vec<u8> {
    build(&[Entry::certificate(Uuid::nil(), KEY.certificate()), Entry::sha256(Uuid::nil(), [5; 32])])
}

/// The signature of an update, and what follows it.
fn signature(update: &[u8]) -> (&[u8], &[u8]) {
    let length = u32::from_le_bytes(*update[TIME..].first_chunk().unwrap()) as usize;
    update[TIME + HEADER..].split_at(length - HEADER)
}

/// The time of an update.
fn time(update: &[u8]) -> OffsetDateTime {
    let year = u16::from_le_bytes([update[0], update[1]]).into();
    let date = time::Date::from_calendar_date(year, update[2].try_into().unwrap(), update[3]).unwrap();
    date.with_hms(update[4], update[5], update[6]).unwrap().assume_utc()
}

/// Builds the message that is signed: name, GUID, attributes, time, lists.
fn message(variable: Variable, write: Write, time: &[u8]) -> Vec<u8> {
    let name: Vec<u8> = variable.name().bytes().flat_map(|byte| [byte, 0]).collect();
    [&name[..], &variable.vendor().to_bytes_le(), &write.attributes().to_le_bytes(), time, &lists()].concat()
}

/// A signature with its type before it, which openssl wants and firmware does not.
fn with_type(signature: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| (bytes.len() as u16).to_be_bytes();
    let explicit = [&[0xA0, 0x82], &length(signature)[..], signature].concat();
    let content = [&[6, 9, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 7, 2], &explicit[..]].concat();
    [&[0x30, 0x82], &length(&content)[..], &content].concat()
}

#[test]
fn sbvarsign_signs_the_same_message_in_the_same_place() {
    if !has(&["sbvarsign"]) {
        return;
    }
    let attributes = "NON_VOLATILE,BOOTSERVICE_ACCESS,RUNTIME_ACCESS,TIME_BASED_AUTHENTICATED_WRITE_ACCESS";
    let append = format!("{attributes},APPEND_WRITE");
    let (key, certificate) = (KEY.key_to_pem().unwrap(), KEY.certificate().to_pem());
    for variable in Variable::ENROLMENT {
        for (write, attributes) in [(Write::Replace, attributes), (Write::Append, append.as_str())] {
            let folder = Folder::new(&[("key", key.as_bytes()), ("crt", certificate.as_bytes()), ("lists", &lists())]);
            let sign = ["sbvarsign", "--key", "key", "--cert", "crt", "--include-attrs", "--attr", attributes];
            folder.run(&[&sign[..], &["--output", "theirs", variable.name(), "lists"]].concat());
            let theirs = folder.read("theirs");
            let (before, theirs) = theirs.split_at(4);
            assert_eq!(before, write.attributes().to_le_bytes());
            // sbvarsign signs the present time, which is in its output.
            let ours = update(variable, write, &lists(), time(theirs), &KEY).unwrap();
            let is_same = |range: std::ops::Range<usize>| ours[range.clone()] == theirs[range];
            assert!(is_same(0..TIME) && is_same(TIME + 4..TIME + HEADER), "{variable} {write:?}");
            let digest = digest(&SHA256, &message(variable, write, &theirs[..TIME]));
            let ((ours, payload), (theirs, their_payload)) = (signature(&ours), signature(theirs));
            assert_eq!(payload, their_payload);
            // All after the length and up to the signer is the same. Theirs has an attribute with the digest of the
            // message.
            let der = KEY.certificate().der();
            let signer = ours.windows(der.len()).position(|window| window == der).unwrap() + der.len();
            assert_eq!(ours[4..signer], theirs[4..signer], "{variable} {write:?}");
            assert!(theirs.windows(32).any(|window| window == digest.as_ref()), "{variable} {write:?}");
        }
    }
}

#[test]
fn openssl_gives_the_same_signature_and_verifies_no_other() {
    if !has(&["openssl"]) {
        return;
    }
    // 15 January 2027, 8 o'clock.
    let time = [0xEB, 7, 1, 15, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let run = |folder: &Folder, command: &str| folder.try_run(&command.split(' ').collect::<Vec<_>>());
    for (variable, write) in [(Variable::Db, Write::Replace), (Variable::Kek, Write::Append)] {
        let update = update(variable, write, &lists(), now(), &KEY).unwrap();
        assert_eq!(update[..TIME], time);
        let (signature, payload) = signature(&update);
        assert_eq!(payload, lists());
        let message = message(variable, write, &time);
        let (key, certificate) = (KEY.key_to_pem().unwrap(), KEY.certificate().to_pem());
        let folder = Folder::new(&[("key", key.as_bytes()), ("crt", certificate.as_bytes()), ("message", &message)]);
        let sign =
            "openssl smime -sign -binary -noattr -md sha256 -outform DER -signer crt -inkey key -in message -out p7";
        assert!(run(&folder, sign).0);
        assert_eq!(folder.read("p7"), with_type(signature), "{variable}");
        let verify = "openssl cms -verify -inform DER -in p7 -content message -binary -CAfile crt -purpose any \
                      -no_check_time -out out";
        assert!(run(&folder, verify).0);
        std::fs::write(folder.path().join("crt"), OTHER_KEY.certificate().to_pem()).unwrap();
        assert!(!run(&folder, verify).0);
    }
}

#[test]
fn the_same_moment_gives_the_same_bytes_wherever_it_is_told() {
    let there = now().to_offset(UtcOffset::from_hms(5, 30, 0).unwrap()) + Duration::milliseconds(700);
    let here = update(Variable::Pk, Write::Replace, &[], now(), &KEY).unwrap();
    assert_eq!(here, update(Variable::Pk, Write::Replace, &[], there, &KEY).unwrap());
    assert_ne!(here, update(Variable::Kek, Write::Replace, &[], now(), &KEY).unwrap());
    let error =
        update(Variable::Pk, Write::Replace, &[], OffsetDateTime::from_unix_timestamp(-3_000_000_000).unwrap(), &KEY);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("variable PK: firmware cannot represent the year 1874"), "{error}");
}
