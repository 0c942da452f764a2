//! Programs are signed and verified. sbsigntool and virt-firmware judge.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use base16ct::lower::encode_string as hex;
use common::{DIRECTORY, Folder, HEADERS, KEY, OTHER_KEY, has, image, unordered, virt_firmware};
use slipway_secure_boot::authenticode::{digest, sign, signatures, verify};

/// Programs that are laid out in different ways.
fn images() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("unordered", unordered()),
        ("trailing data", image(&[(512, &[1; 512])], b"sixteen bytes at")),
        ("a length that is no multiple of 8", image(&[(512, &[1; 512])], b"odd")),
        ("a section without content", image(&[(0, b""), (512, &[1; 512])], b"")),
        ("no sections", image(&[], b"data")),
    ]
}

/// Why an image is not signed by a trusted key.
fn refusal(image: &[u8]) -> String {
    let error = verify(image, std::slice::from_ref(KEY.certificate())).unwrap_err();
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

#[test]
fn what_is_signed_verifies_and_the_same_inputs_give_the_same_bytes() {
    for (name, unsigned) in images() {
        let signed = sign(unsigned.clone(), &KEY).unwrap();
        assert_eq!(signed, sign(unsigned.clone(), &KEY).unwrap(), "{name}");
        assert_eq!(signed.len() % 8, 0, "{name}");
        let trusted = [OTHER_KEY.certificate().clone(), KEY.certificate().clone()];
        assert_eq!(verify(&signed, &trusted).unwrap(), KEY.certificate(), "{name}");
        let list = signatures(&signed).unwrap();
        assert!(list.len() == 1 && list[0].fault.is_none() && list[0].signer == *KEY.certificate(), "{name}: {list:?}");
        if unsigned.len() % 8 == 0 {
            assert_eq!(digest(&signed).unwrap(), digest(&unsigned).unwrap(), "{name}");
        }
        assert_eq!(
            verify(&signed, &trusted[..1]).unwrap_err().to_string(),
            "verifying an EFI program: the signature of CN=slipway test db leads to no trusted certificate"
        );
    }
}

#[test]
fn sbverify_accepts_what_is_signed_and_refuses_each_change() {
    if !has(&["sbverify", "sbattach"]) {
        return;
    }
    let certificate = KEY.certificate().to_pem();
    for (name, unsigned) in images() {
        // sbverify expects a section that is not empty.
        if name == "no sections" {
            continue;
        }
        let signed = sign(unsigned.clone(), &KEY).unwrap();
        let folder = Folder::new(&[("crt", certificate.as_bytes()), ("signed", &signed), ("again", &unsigned)]);
        let verify = ["sbverify", "--cert", "crt", "signed"];
        assert!(folder.run(&verify).contains("Signature verification OK"), "{name}");
        let list = folder.run(&["sbverify", "--list", "signed"]);
        assert!(list.contains("subject: /CN=slipway test db"), "{name}: {list}");
        // sbattach puts our signature where we did, byte for byte, the checksum included.
        folder.run(&["sbattach", "--detach", "signature", "signed"]);
        folder.run(&["sbattach", "--attach", "signature", "again"]);
        assert_eq!(folder.read("again"), signed, "{name}");
        for changed in [2, HEADERS + 3, unsigned.len() - 1] {
            let mut bytes = signed.clone();
            bytes[changed] ^= 1;
            std::fs::write(folder.path().join("signed"), &bytes).unwrap();
            let (is_success, output) = folder.try_run(&verify);
            assert!(!is_success, "{name} {changed}: {output}");
            assert!(refusal(&bytes).contains("does not match the program"), "{name} {changed}: {}", refusal(&bytes));
        }
    }
}

#[test]
fn what_sbsign_has_signed_verifies() {
    if !has(&["sbsign"]) {
        return;
    }
    let (key, certificate) = (KEY.key_to_pem().unwrap(), KEY.certificate().to_pem());
    let (other, other_certificate) = (OTHER_KEY.key_to_pem().unwrap(), OTHER_KEY.certificate().to_pem());
    for (name, unsigned) in images().into_iter().filter(|(name, _)| *name != "no sections") {
        let folder = Folder::new(&[
            ("key", key.as_bytes()),
            ("crt", certificate.as_bytes()),
            ("key2", other.as_bytes()),
            ("crt2", other_certificate.as_bytes()),
            ("image", &unsigned),
        ]);
        folder.run(&["sbsign", "--key", "key2", "--cert", "crt2", "--output", "signed", "image"]);
        let signed = folder.read("signed");
        verify(&signed, std::slice::from_ref(OTHER_KEY.certificate())).unwrap();
        assert!(refusal(&signed).contains("CN=another leads to no trusted certificate"), "{name}");
        assert!(sign(signed, &KEY).unwrap_err().to_string().contains("it is already signed"), "{name}");
        // One of two signatures is enough.
        folder.run(&["sbsign", "--key", "key", "--cert", "crt", "--output", "twice", "signed"]);
        let twice = folder.read("twice");
        assert_eq!(signatures(&twice).unwrap().len(), 2, "{name}");
        assert_eq!(verify(&twice, std::slice::from_ref(KEY.certificate())).unwrap(), KEY.certificate(), "{name}");
    }
}

#[test]
fn sbverify_accepts_the_signed_stub_of_systemd() {
    use xtask::host::debian::{STUB, SYSTEMD_BOOT};
    if !has(&["sbverify"]) {
        return;
    }
    for (package, name) in [(STUB, "linuxx64.efi.stub"), (SYSTEMD_BOOT, "systemd-bootx64.efi")] {
        let package = match xtask::host::debian::unpacked(&package) {
            Ok(package) => package,
            Err(error) => return eprintln!("not checked: systemd-boot-efi: {error:#}"),
        };
        let program = std::fs::read(package.join("usr/lib/systemd/boot/efi").join(name)).unwrap();
        let (signed, certificate) = (sign(program, &KEY).unwrap(), KEY.certificate().to_pem());
        let folder = Folder::new(&[("crt", certificate.as_bytes()), ("signed", &signed)]);
        let output = folder.run(&["sbverify", "--cert", "crt", "signed"]);
        assert!(output.contains("Signature verification OK"), "{name}: {output}");
    }
}

#[test]
fn virt_firmware_computes_the_same_digest_and_finds_the_signature() {
    let Some((python, inspect)) = virt_firmware("python").zip(virt_firmware("pe-inspect")) else { return };
    let script = "import pefile, sys; from virt.peutils import pesign\n\
                  for name in sys.argv[1:]: print(pesign.pe_authenticode_hash(pefile.PE(name)).hex())";
    for (name, unsigned) in images() {
        let signed = sign(unsigned, &KEY).unwrap();
        let folder = Folder::new(&[("signed", &signed)]);
        let output = folder.run(&[&python, "-c", script, "signed"]);
        assert_eq!(output.lines().next(), Some(&*hex(&digest(&signed).unwrap())), "{name}: {output}");
        let text = folder.run(&[&inspect, "signed"]);
        assert!(text.contains("subject CN: slipway test db"), "{name}: {text}");
    }
}

#[test]
fn a_signature_by_an_intermediate_leads_to_its_root() {
    if !has(&["openssl", "sbsign"]) {
        return;
    }
    let folder = Folder::new(&[("image", &unordered()), ("ca.ext", b"basicConstraints=CA:TRUE")]);
    let run = |command: &str| folder.run(&command.split(' ').collect::<Vec<_>>());
    run("openssl req -x509 -newkey rsa:2048 -nodes -keyout root.key -out root -subj /CN=root");
    for (name, issuer) in [("middle", "root"), ("leaf", "middle"), ("bad", "leaf")] {
        run(&format!("openssl req -newkey rsa:2048 -nodes -keyout {name}.key -out csr -subj /CN={name}"));
        let ca = if name == "middle" { " -extfile ca.ext" } else { "" };
        run(&format!("openssl x509 -req -in csr -CA {issuer} -CAkey {issuer}.key -out {name} -set_serial 7{ca}"));
    }
    run("sbsign --key leaf.key --cert leaf --addcert middle --output signed image");
    run("sbsign --key bad.key --cert bad --addcert leaf --output bad.signed image");
    run("sbsign --key leaf.key --cert leaf --output alone image");
    let read = |name: &str| {
        slipway_secure_boot::Certificate::from_pem(&String::from_utf8(folder.read(name)).unwrap()).unwrap()
    };
    let (root, middle) = (read("root"), read("middle"));
    let roots = [root];
    assert_eq!(verify(&folder.read("signed"), &roots).unwrap(), &roots[0]);
    assert_eq!(verify(&folder.read("alone"), std::slice::from_ref(&middle)).unwrap(), &middle);
    verify(&folder.read("alone"), &roots).unwrap_err();
    // A certificate that is no authority vouches for nothing.
    verify(&folder.read("bad.signed"), &[middle]).unwrap_err();
}

#[test]
fn each_kind_of_bad_image_is_refused_by_name() {
    let signed = sign(unordered(), &KEY).unwrap();
    let mut without_directory = unordered();
    without_directory[DIRECTORY - 36] = 4;
    let mut other_content = signed.clone();
    let table = unordered().len();
    other_content[table + 6] = 1;
    let mut forged = signed.clone();
    // In the last bytes before the padding: the signature itself.
    forged[signed.len() - 20] ^= 1;
    // A changed program, with its digest in the place of the old one. The signature covers the digest of that place.
    let mut replaced = signed.clone();
    replaced[HEADERS] ^= 1;
    let place = signed.windows(32).position(|window| window == digest(&signed).unwrap()).unwrap();
    let other_digest = digest(&replaced).unwrap();
    replaced[place..place + 32].copy_from_slice(&other_digest);
    let mut long = signed.clone();
    long[table] = 0xFF;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "it is not a PE image"),
        ("text", b"#!/bin/sh\n".repeat(100), "it is not a PE image"),
        ("headers alone", unordered()[..HEADERS].to_vec(), "a section is outside the file"),
        ("cut off in the headers", unordered()[..300].to_vec(), "the section table is outside the file"),
        ("cut off in a section", unordered()[..1800].to_vec(), "a section is outside the file"),
        ("cut off in a signature", signed[..signed.len() - 8].to_vec(), "the table of signatures is outside"),
        ("bytes after a signature", [&signed[..], b"x"].concat(), "the table of signatures is outside"),
        ("no directory", without_directory, "have no place for a signature"),
        ("another type", other_content, "its signature 1 cannot be read: it is not of the type PKCS #7"),
        ("a length that is too large", long, "its signature 1 cannot be read: its length is wrong"),
        ("a forged signature", forged, "was not made with its certificate's key"),
        ("a replaced digest", replaced, "was not made with its certificate's key"),
        ("unsigned", unordered(), "it is not signed"),
    ];
    for (name, image, reason) in cases {
        assert!(refusal(&image).contains(reason), "{name}: {}", refusal(&image));
    }
}

#[test]
fn an_image_with_bytes_that_no_signature_covers_is_not_signed() {
    let gap = image(&[(1024, &[1; 512])], b"");
    let mut overlap = image(&[(512, &[1; 512]), (1024, &[2; 512])], &[0; 512]);
    // The second section begins inside the first.
    let place = 64 + 24 + 240 + 40 + 20;
    overlap[place..place + 4].copy_from_slice(&800_u32.to_le_bytes());
    for image in [gap, overlap] {
        let error = sign(image, &KEY).unwrap_err().to_string();
        assert!(error.contains("its sections overlap or leave gaps"), "{error}");
    }
}
