//! The attester against a TPM in software, judged by tpm2-tools.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::process::Output;

use base16ct::lower::encode_string as hex;
use sha2::{Digest, Sha256};
use slipway_protocol::node::attestation::{Blob, QUOTED_PCRS, TpmChallenge, TpmKeys, TpmProof};
use slipway_tpm::device::{Attester, TpmError};
use tempfile::TempDir;

use common::{PATIENCE, Swtpm, answer, ask, code, fake, run};

mod common;

const ECC_CERTIFICATE: &str = "0x01c0000a";
const SECRET: &[u8] = b"the server's secret";
const NONCE: &[u8] = b"the nonce of a challenge, 32 B..";

#[test]
fn the_keys_stay_the_same_until_the_tpm_is_cleared() {
    let mut tpm = Swtpm::start();
    let mut attester = tpm.attester();
    let keys = attester.keys().unwrap();
    assert_eq!(attester.keys().unwrap(), keys, "asked again");
    drop(attester);
    assert_eq!(tpm.attester().keys().unwrap(), keys, "opened again");
    tpm.power_cycle();
    assert_eq!(tpm.attester().keys().unwrap(), keys, "switched off and on");
    tpm.run("tpm2_clear", &["-c", "p"]);
    let cleared = tpm.attester().keys().unwrap();
    assert_eq!(cleared.ek, keys.ek);
    assert_ne!(cleared.ak, keys.ak);
    assert_ne!(Swtpm::start().attester().keys().unwrap().ek, keys.ek, "another TPM");
}

#[test]
fn the_endorsement_key_is_that_of_the_template_and_the_attestation_key_is_restricted() {
    let tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    assert_eq!(keys.ek, created_ek(&tpm, "ecc"));
    assert_eq!(keys.ek_certificate, None);
    write_public(&tpm, "ak.pub", &keys.ak);
    let ak = tpm.run("tpm2_print", &["-t", "TPM2B_PUBLIC", "ak.pub"]);
    for line in [
        "value: fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|sign",
        "value: NIST p256",
        "value: ecdsa",
        "value: sha256",
    ] {
        assert!(ak.contains(line), "{line}: {ak}");
    }
}

#[test]
fn an_rsa_key_is_taken_if_only_it_has_a_certificate() {
    let tpm = Swtpm::manufacture();
    let keys = tpm.attester().keys().unwrap();
    let certificate = fs::read(tpm.path("ek-rsa2048.crt")).unwrap();
    assert_eq!(keys.ek_certificate, Some(Blob(certificate)));
    assert_eq!(keys.ek, created_ek(&tpm, "rsa"));
    assert_is_accepted(&tpm, &keys);
    // Now the ECC key has a certificate too.
    let certificate = self_signed(&tpm);
    write_nv(&tpm, &certificate, "authread");
    let keys = tpm.attester().keys().unwrap();
    assert_eq!(keys.ek_certificate, Some(Blob(certificate)));
    assert_eq!(keys.ek, created_ek(&tpm, "ecc"));
}

#[test]
fn a_certificate_ends_where_its_encoding_does() {
    let tpm = Swtpm::start();
    let der = |length: &[u8], content: usize| [&[0x30], length, &vec![7; content]].concat();
    let certificate = self_signed(&tpm);
    let medium = der(&[0x81, 200], 200);
    let long = der(&[0x82, 4, 0], 1024);
    let check = |written: &[u8], expect: Option<&[u8]>| {
        write_nv(&tpm, written, "authread");
        let found = tpm.attester().keys().unwrap().ek_certificate;
        assert_eq!(found.as_ref().map(|blob| &*blob.0), expect, "{written:?}");
        tpm.run("tpm2_nvundefine", &["-C", "o", ECC_CERTIFICATE]);
    };
    check(&certificate, Some(&certificate));
    check(&[&certificate[..], &[0xFF; 700]].concat(), Some(&certificate));
    check(&[&certificate[..], &[0; 5]].concat(), Some(&certificate));
    check(&[&medium[..], &[0xFF; 1]].concat(), Some(&medium));
    check(&[&long[..], &[0; 999]].concat(), Some(&long));
    check(&[0x30, 2, 1, 1], Some(&[0x30, 2, 1, 1]));
    check(&[0xFF; 600], None);
    check(&[0; 600], None);
    check(&certificate[..certificate.len() - 1], None);
    check(&[0x30, 0x83, 0, 0, 1, 1], None);
    check(&[0x30], None);
}

#[test]
fn an_index_without_a_readable_certificate_is_none() {
    let tpm = Swtpm::start();
    let none = |why: &str| assert_eq!(tpm.attester().keys().unwrap().ek_certificate, None, "{why}");
    tpm.run("tpm2_nvdefine", &["-C", "o", "-s", "600", "-a", "ownerwrite|authread", ECC_CERTIFICATE]);
    none("nothing was written");
    tpm.run("tpm2_nvundefine", &["-C", "o", ECC_CERTIFICATE]);
    write_nv(&tpm, &self_signed(&tpm), "ownerread");
    none("it is for the owner");
}

#[test]
fn a_proof_is_accepted() {
    let tpm = Swtpm::start();
    // Each register has another value, so that none can be taken for another.
    for pcr in 0..16 {
        tpm.run("tpm2_pcrextend", &[&format!("{pcr}:sha256={}", format!("{pcr:02x}").repeat(32))]);
    }
    let keys = tpm.attester().keys().unwrap();
    let proof = assert_is_accepted(&tpm, &keys);
    assert_eq!(proof.pcrs.len(), QUOTED_PCRS.len());
    for (pcr, value) in QUOTED_PCRS.iter().zip(&proof.pcrs) {
        tpm.run("tpm2_pcrread", &[&format!("sha256:{pcr}"), "-o", "one"]);
        assert_eq!(fs::read(tpm.path("one")).unwrap(), value.0, "register {pcr}");
    }
    assert!(!check_quote(&tpm, b"another nonce").status.success(), "the judge accepts everything");
}

#[test]
fn a_challenge_for_other_keys_is_refused() {
    let tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    let other = Swtpm::start().attester().keys().unwrap();
    let check = |challenge: &TpmChallenge, expect: &str| {
        let mut attester = tpm.attester();
        assert_eq!(attester.prove(challenge, None).unwrap_err().to_string(), expect);
        // The attester can still be used.
        assert_eq!(attester.keys().unwrap(), keys);
        drop(attester);
        tpm.assert_nothing_is_loaded();
    };
    let challenge =
        |ek: &Blob, ak: &Blob| make_challenge(&tpm, &TpmKeys { ek: ek.clone(), ak: ak.clone(), ..keys.clone() });
    check(&challenge(&keys.ek, &other.ak), "TPM2_ActivateCredential: the TPM refused with 0x1df (TPM_RC_INTEGRITY)");
    let right = challenge(&keys.ek, &keys.ak);
    let long = TpmChallenge { credential: Blob(vec![1; 5000]), ..right.clone() };
    check(&long, "TPM2_ActivateCredential: the server's challenge is too long for a TPM command");
    let long = TpmChallenge { secret: Blob(vec![1; 70_000]), ..right.clone() };
    check(&long, "TPM2_ActivateCredential: the server's challenge is too long for a TPM command");
    let long = TpmChallenge { nonce: Blob(vec![1; 500]), ..right };
    check(&long, "TPM2_Quote: the TPM refused with 0x1d5 (TPM_RC_SIZE)");
}

#[test]
fn a_password_is_named_with_what_to_do() {
    let tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    let challenge = make_challenge(&tpm, &keys);
    for (hierarchy, letter) in [("owner", "o"), ("endorsement", "e")] {
        tpm.run("tpm2_changeauth", &["-c", letter, "secret"]);
        let error = tpm.attester().prove(&challenge, None).unwrap_err();
        let expect =
            format!("a password is set for the TPM's {hierarchy} hierarchy; clear the TPM in the firmware's setup");
        assert!(error.to_string().starts_with(&expect), "{error}");
        tpm.assert_nothing_is_loaded();
        tpm.run("tpm2_changeauth", &["-c", letter, "-p", "secret"]);
    }
    assert_eq!(tpm.attester().keys().unwrap(), keys);
    // A password is set after the keys were read. A TPM may refuse with either code.
    for refusal in [0x98E, 0x9A2] {
        let path = tpm.proxied(move |command| (code(command) == 0x151).then(|| answer(refusal, &[])));
        let error = Attester::open(&path, PATIENCE).unwrap().prove(&challenge, None).unwrap_err();
        assert!(matches!(error, TpmError::Password { hierarchy: "endorsement" }), "{error}");
    }
}

#[test]
fn a_tpm_without_the_sha_256_bank_says_so() {
    let mut tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    let challenge = make_challenge(&tpm, &keys);
    tpm.run("tpm2_pcrallocate", &["sha1:all+sha256:none"]);
    tpm.power_cycle();
    let error = tpm.attester().prove(&challenge, None).unwrap_err();
    assert!(matches!(error, TpmError::NoRegister { pcr: 0 }), "{error}");
    tpm.assert_nothing_is_loaded();
}

#[test]
fn registers_that_change_are_quoted_again() {
    const QUOTE: u32 = 0x158;
    let tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    let challenge = make_challenge(&tpm, &keys);
    // PCR 13, with the empty password and a digest.
    let mut extend = vec![0x80, 2, 0, 0, 0, 65, 0, 0, 1, 0x82, 0, 0, 0, 13, 0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0];
    extend.extend([0, 0, 0, 1, 0, 0xB]);
    extend.extend([5; 32]);
    let prove = |changes: u32| {
        let folder = TempDir::new().unwrap();
        let (mut stream, extend, mut quotes) = (tpm.connect(), extend.clone(), 0);
        let path = fake(folder.path(), move |command| {
            if code(command) == QUOTE {
                quotes += 1;
                if quotes <= changes {
                    assert_eq!(ask(&mut stream, &extend)[6..10], [0; 4]);
                }
            }
            ask(&mut stream, command)
        });
        Attester::open(&path, PATIENCE).unwrap().prove(&challenge, None)
    };
    let proof = prove(4).unwrap();
    write_proof(&tpm, &keys, &proof);
    assert_quote_is_accepted(&tpm);
    let error = prove(5).unwrap_err();
    assert!(matches!(error, TpmError::Unsteady { attempts: 5 }), "{error}");
    tpm.assert_nothing_is_loaded();
}

#[test]
fn a_busy_tpm_is_asked_again() {
    let tpm = Swtpm::start();
    let keys = tpm.attester().keys().unwrap();
    let mut busy = [0x922, 0x908, 0x90A].into_iter();
    let path = tpm.proxied(move |_| busy.next().map(|code| answer(code, &[])));
    assert_eq!(Attester::open(&path, PATIENCE).unwrap().keys().unwrap(), keys);
}

/// Makes a challenge for the keys, has it answered, and the answer judged.
fn assert_is_accepted(tpm: &Swtpm, keys: &TpmKeys) -> TpmProof {
    let challenge = make_challenge(tpm, keys);
    let mut attester = tpm.attester();
    let proof = attester.prove(&challenge, Some(vec![1, 2])).unwrap();
    drop(attester);
    assert_eq!(proof.secret.0, SECRET);
    assert_eq!(proof.nonce, challenge.nonce);
    assert_eq!(proof.event_log, Some(Blob(vec![1, 2])));
    write_proof(tpm, keys, &proof);
    assert_quote_is_accepted(tpm);
    tpm.assert_nothing_is_loaded();
    proof
}

/// Makes a challenge with tpm2-tools. The file has a header of eight bytes, and both parts with their lengths.
fn make_challenge(tpm: &Swtpm, keys: &TpmKeys) -> TpmChallenge {
    write_public(tpm, "ek.pub", &keys.ek);
    fs::write(tpm.path("secret"), SECRET).unwrap();
    let name = format!("000b{}", hex(&Sha256::digest(&keys.ak.0)));
    // Another program's files must not be read.
    drop(fs::remove_file(tpm.path("challenge")));
    tpm.run("tpm2_makecredential", &["-T", "none", "-u", "ek.pub", "-s", "secret", "-n", &name, "-o", "challenge"]);
    let made = fs::read(tpm.path("challenge")).unwrap();
    let part = |at: usize| {
        let len = usize::from(u16::from_be_bytes([made[at], made[at + 1]]));
        Blob(made[at + 2..at + 2 + len].to_vec())
    };
    let credential = part(8);
    let secret = part(10 + credential.0.len());
    TpmChallenge { nonce: Blob(NONCE.to_vec()), credential, secret }
}

fn write_proof(tpm: &Swtpm, keys: &TpmKeys, proof: &TpmProof) {
    write_public(tpm, "ak.pub", &keys.ak);
    fs::write(tpm.path("quote"), &proof.quote.0).unwrap();
    fs::write(tpm.path("signature"), &proof.signature.0).unwrap();
    fs::write(tpm.path("pcrs"), pcr_file(&proof.pcrs)).unwrap();
}

/// Makes the file of `tpm2_quote --pcr` on a little-endian machine: a TPML_PCR_SELECTION of 16 banks, and TPML_DIGESTs
/// of eight values with room for 64 bytes each. (tpm2_checkquote can also read the values alone, but only eight.)
fn pcr_file(values: &[Blob]) -> Vec<u8> {
    let mask = QUOTED_PCRS.iter().fold(0_u32, |mask, pcr| mask | 1 << pcr);
    let mut file = [&[1, 0, 0, 0, 0x0B, 0, 3], &mask.to_le_bytes()[..]].concat();
    file.resize(4 + 16 * 8, 0);
    file.extend((values.len().div_ceil(8) as u32).to_le_bytes());
    for some in values.chunks(8) {
        let end = file.len() + 4 + 8 * 66;
        file.extend((some.len() as u32).to_le_bytes());
        for value in some {
            file.extend((value.0.len() as u16).to_le_bytes());
            file.extend(&value.0);
            file.extend([0; 32]);
        }
        file.resize(end, 0);
    }
    file
}

/// Asks tpm2-tools whether the proof that was written is valid.
fn check_quote(tpm: &Swtpm, nonce: &[u8]) -> Output {
    let files = ["-u", "ak.pub", "-m", "quote", "-s", "signature", "-f", "pcrs", "-g", "sha256", "-q"];
    tpm.tool("tpm2_checkquote", &files).arg(hex(nonce)).output().unwrap()
}

fn assert_quote_is_accepted(tpm: &Swtpm) {
    let check = check_quote(tpm, NONCE);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}

/// The endorsement key that tpm2-tools make.
fn created_ek(tpm: &Swtpm, kind: &str) -> Blob {
    tpm.run("tpm2_createek", &["-G", kind, "-c", "ek.ctx", "-u", "created"]);
    tpm.run("tpm2_flushcontext", &["-t"]);
    Blob(fs::read(tpm.path("created")).unwrap()[2..].to_vec())
}

/// Writes a TPM2B_PUBLIC.
fn write_public(tpm: &Swtpm, name: &str, public: &Blob) {
    let len = u16::try_from(public.0.len()).unwrap().to_be_bytes();
    fs::write(tpm.path(name), [&len[..], &public.0].concat()).unwrap();
}

/// Writes to the NV index of the certificate of an ECC key. `attribute` says who may read the index.
fn write_nv(tpm: &Swtpm, bytes: &[u8], attribute: &str) {
    fs::write(tpm.path("nv"), bytes).unwrap();
    let (size, attributes) = (bytes.len().to_string(), format!("ownerwrite|{attribute}"));
    tpm.run("tpm2_nvdefine", &["-C", "o", "-s", &size, "-a", &attributes, ECC_CERTIFICATE]);
    tpm.run("tpm2_nvwrite", &["-C", "o", "-i", "nv", ECC_CERTIFICATE]);
}

fn self_signed(tpm: &Swtpm) -> Vec<u8> {
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key"];
    let rest = ["req", "-x509", "-subj", "/CN=a TPM", "-outform", "DER", "-out", "certificate"];
    run(tpm.tool("openssl", &rest).args(key));
    let der = fs::read(tpm.path("certificate")).unwrap();
    assert!(der.len() > 256, "it has a length of two bytes");
    der
}
