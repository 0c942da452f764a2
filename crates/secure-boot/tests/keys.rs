//! Keys are made, imported and exported, and refused for a reason. openssl judges.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Folder, KEY, OTHER_KEY, has, key, now};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use slipway_secure_boot::{Certificate, KeySize, SignElsewhere, SigningKey, generate_rsa_key, sign_detached};
use time::Duration;

#[test]
fn openssl_reads_a_key_and_its_certificate_of_either_size() {
    if !has(&["openssl"]) {
        return;
    }
    for (size, bits) in [(KeySize::Rsa2048, "2048"), (KeySize::Rsa3072, "3072")] {
        let key = key("site A", size);
        let (pem, certificate) = (key.key_to_pem().unwrap(), key.certificate().to_pem());
        let folder = Folder::new(&[("key", pem.as_bytes()), ("certificate", certificate.as_bytes())]);
        let text = folder.run(&["openssl", "pkey", "-in", "key", "-check", "-noout", "-text"]);
        assert!(text.contains("Key is valid") && text.contains(&format!("({bits} bit")), "{text}");
        let text = folder.run(&["openssl", "x509", "-in", "certificate", "-noout", "-text"]);
        assert!(text.contains("Subject: CN = site A") && text.contains("sha256WithRSAEncryption"), "{text}");
        assert!(text.contains("Not Before: Apr 20 08:00:00 2024 GMT"), "{text}");
        folder.run(&["openssl", "verify", "-check_ss_sig", "-no_check_time", "-CAfile", "certificate", "certificate"]);
    }
    let folder = Folder::new(&[("key", generate_rsa_key(KeySize::Rsa3072).unwrap().as_bytes())]);
    assert!(folder.run(&["openssl", "rsa", "-in", "key", "-check", "-noout"]).contains("RSA key ok"));
}

#[test]
fn a_key_is_the_same_after_export_and_import() {
    let same = SigningKey::from_pem(&KEY.key_to_pem().unwrap(), &KEY.certificate().to_pem()).unwrap();
    assert_eq!(same.certificate(), KEY.certificate());
    assert_eq!(same.key_to_pem().unwrap(), KEY.key_to_pem().unwrap());
    assert_eq!(format!("{same:?}"), r#"SigningKey { certificate: Certificate("CN=slipway test db"), .. }"#);
}

#[test]
fn what_openssl_made_is_imported_in_both_forms() {
    if !has(&["openssl"]) {
        return;
    }
    let folder = Folder::new(&[]);
    folder.run(&[
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "pkcs8",
        "-out",
        "crt",
        "-subj",
        "/CN=old/O=x",
    ]);
    folder.run(&["openssl", "rsa", "-in", "pkcs8", "-traditional", "-out", "pkcs1"]);
    let text = |name: &str| String::from_utf8(folder.read(name)).unwrap();
    assert!(text("pkcs1").starts_with("-----BEGIN RSA PRIVATE KEY-----"));
    let certificate = format!("a line before\n{}", text("crt"));
    let keys =
        ["pkcs8", "pkcs1"].map(|name| SigningKey::from_pem(&text(name), &certificate).unwrap().key_to_pem().unwrap());
    assert_eq!(keys[0], keys[1]);
    assert_eq!(Certificate::from_pem(&certificate).unwrap().subject(), "CN=old, O=x");
}

#[test]
fn each_refusal_names_its_reason() {
    if !has(&["openssl"]) {
        return;
    }
    let folder = Folder::new(&[("pkcs8", KEY.key_to_pem().unwrap().as_bytes())]);
    for command in [
        "genrsa -out small 1024",
        "genrsa -out large 4352",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ec",
        "ecparam -name prime256v1 -genkey -noout -out sec1",
        "pkcs8 -topk8 -in pkcs8 -passout pass:x -out encrypted",
        "rsa -in pkcs8 -traditional -aes128 -passout pass:x -out encrypted1",
    ] {
        folder.run(&["openssl"].into_iter().chain(command.split(' ')).collect::<Vec<_>>());
    }
    let own = KEY.certificate().to_pem();
    let damaged = own.replacen("MII", "MIX", 1);
    let damaged_key = KEY.key_to_pem().unwrap().replacen("AoIBAQ", "AoIBAR", 1);
    let text = |name: &str| String::from_utf8(folder.read(name)).unwrap();
    let cases: &[(&str, &str, &str)] = &[
        (&text("small"), &own, "it has 1024 bits"),
        (&text("large"), &own, "it has 4352 bits"),
        (&text("ec"), &own, "it is not an RSA key"),
        (&text("sec1"), &own, "it is not an RSA key"),
        (&text("encrypted"), &own, "it is encrypted"),
        (&text("encrypted1"), &own, "it is encrypted"),
        (&own, &own, "the text has no private key in PEM (-----BEGIN PRIVATE KEY-----)"),
        (&damaged_key, &own, "it cannot be read"),
        (&KEY.key_to_pem().unwrap(), "", "with its certificate: reading a certificate: the text has no certificate"),
        (&KEY.key_to_pem().unwrap(), &damaged, "with its certificate: reading a certificate: it is not X.509"),
        (&OTHER_KEY.key_to_pem().unwrap(), &own, "the certificate of CN=slipway test db is for another key"),
    ];
    for (key, certificate, reason) in cases {
        let error = SigningKey::from_pem(key, certificate).unwrap_err();
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        assert!(format!("{error}{cause}").contains(reason), "{reason}: {error}{cause}");
    }
}

#[test]
fn dates_are_checked_at_the_time_that_is_given() {
    let (before, after) = (now() - Duration::days(1001), now() + Duration::days(5001));
    KEY.check_validity(now()).unwrap();
    let error = KEY.check_validity(before).unwrap_err().to_string();
    assert!(error.contains("it is valid from Apr 20 08:00:00 2024"), "{error}");
    let error = KEY.check_validity(after).unwrap_err().to_string();
    assert!(error.contains("it was valid until Sep 23 08:00:00 2040"), "{error}");
}

#[test]
fn a_key_elsewhere_signs_the_same_and_another_in_its_place_is_refused() {
    let signer = |key: &SigningKey| -> SignElsewhere {
        let pem = pem::parse(key.key_to_pem().unwrap()).unwrap();
        Box::new(move |message| {
            let pair = RsaKeyPair::from_pkcs8(pem.contents()).unwrap();
            let mut signature = vec![0; pair.public().modulus_len()];
            pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
            Ok(signature)
        })
    };
    let certificate = KEY.certificate().to_pem();
    let key = SigningKey::elsewhere(&certificate, signer(&KEY)).unwrap();
    key.prove().unwrap();
    assert_eq!(key.key_to_pem(), None);
    assert_eq!(sign_detached(b"a file", &key).unwrap(), sign_detached(b"a file", &KEY).unwrap());

    let other = SigningKey::elsewhere(&certificate, signer(&OTHER_KEY)).unwrap();
    for error in [other.prove().unwrap_err(), sign_detached(b"a file", &other).unwrap_err()] {
        let expect = "signing with the key of CN=slipway test db: the key does not match the certificate";
        assert!(error.to_string().contains(expect), "{error}");
    }
    let broken = SigningKey::elsewhere(&certificate, Box::new(|_| Err("it is unplugged".into()))).unwrap();
    let error = broken.prove().unwrap_err();
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "it is unplugged");
}
