//! Microsoft's certificates are those that Microsoft and virt-firmware publish, and verify what Microsoft has signed.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use base16ct::lower::encode_string as hex;
use common::virt_firmware;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use slipway_secure_boot::lists::{Content, Entry};
use slipway_secure_boot::{Certificate, Variable, authenticode, microsoft};

fn certificates(variable: Variable) -> Vec<Certificate> {
    let certificate = |entry: Entry| match entry.content {
        Content::Certificate(certificate) => Some(certificate),
        _ => None,
    };
    microsoft::entries(variable).unwrap().into_iter().filter_map(certificate).collect()
}

#[test]
fn they_have_the_thumbprints_that_microsoft_publishes() {
    let readme = include_str!("../certificates/README.md");
    let rows: Vec<Vec<&str>> =
        readme.lines().filter(|line| line.contains(".der |")).map(|line| line.split(" | ").collect()).collect();
    let all = [certificates(Variable::Kek), certificates(Variable::Db)].concat();
    assert_eq!(rows.len(), all.len());
    for (row, certificate) in rows.iter().zip(all) {
        assert!(certificate.subject().ends_with(&format!("CN={}", row[1])), "{row:?}: {certificate:?}");
        assert_eq!(row[3].trim_end_matches(" |"), hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, certificate.der()).as_ref()));
    }
    for variable in [Variable::Pk, Variable::Dbx] {
        assert!(certificates(variable).is_empty());
    }
}

#[test]
fn virt_firmware_has_the_same() {
    let Some(python) = virt_firmware("python") else { return };
    let script = "import pathlib, ssl, virt.firmware\n\
                  for file in (pathlib.Path(virt.firmware.__path__[0]) / 'certs/microsoft.com').glob('*.pem'):\n \
                  text = file.read_text(); print(ssl.PEM_cert_to_DER_cert(text[text.index('-----BEGIN'):]).hex())";
    let theirs = common::Folder::new(&[]).run(&[&python, "-c", script]);
    for certificate in [certificates(Variable::Kek), certificates(Variable::Db)].concat() {
        assert!(theirs.lines().any(|line| line == hex(certificate.der())), "{certificate:?}");
    }
}

#[test]
fn a_shim_that_microsoft_has_signed_verifies() {
    let installer = match xtask::host::debian::unpacked(&xtask::host::debian::INSTALLER) {
        Ok(installer) => installer,
        Err(error) => return eprintln!("not checked: Debian's installer: {error:#}"),
    };
    let folder = installer.join("usr/lib/debian-installer/images/12/amd64/text/debian-installer/amd64");
    let shim = std::fs::read(folder.join("bootnetx64.efi")).unwrap();
    let trusted = certificates(Variable::Db);
    let by = authenticode::verify(&shim, &trusted).unwrap();
    assert!(by.subject().contains("CN=Microsoft"), "{by:?}");
    authenticode::verify(&shim, &certificates(Variable::Kek)).unwrap_err();
    // GRUB is signed by Debian, under a certificate that is in shim alone.
    let grub = std::fs::read(folder.join("grubx64.efi")).unwrap();
    let error = authenticode::verify(&grub, &trusted).unwrap_err().to_string();
    assert!(
        error.contains("Debian Secure Boot Signer") && error.contains("leads to no trusted certificate"),
        "{error}"
    );
}
