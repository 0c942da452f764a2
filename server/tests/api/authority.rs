//! The certificate authority: which names it may issue certificates for, where its keys are, and how it is replaced.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use reqwest::{Client, StatusCode};

use crate::postgres;
use crate::program::{command, fail, made, name_database, serve, started, succeed};
use crate::support::{Machine, Node, TestServer, UUID, trusting, with_certificate};

/// Checks what `openssl verify` and `certtool --verify` say of a chain, leaf first, if this is all that is trusted.
fn check(trusted: &Path, chain: &str, name: &str, expect: [bool; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let end = chain.find("-----END CERTIFICATE-----").unwrap() + 25;
    fs::write(file("leaf"), &chain[..end]).unwrap();
    fs::write(file("chain"), chain).unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["verify", "-no-CApath", "-no-CAstore", "-purpose", "sslserver", "-x509_strict", "-CAfile"]);
    openssl.arg(trusted).arg("-untrusted").arg(file("chain")).args(["-verify_hostname", name]).arg(file("leaf"));
    let mut gnutls = Command::new("certtool");
    gnutls.args(["--verify", "--verify-hostname", name, "--load-ca-certificate"]).arg(trusted);
    gnutls.arg("--infile").arg(file("chain"));
    for (mut command, expect) in [openssl, gnutls].into_iter().zip(expect) {
        match command.output() {
            Ok(output) => assert_eq!(output.status.success(), expect, "{name}, {command:?}: {output:?}"),
            Err(error) => eprintln!("not checked: {:?}: {error}", command.get_program()),
        }
    }
}

fn read(data: &Path, name: &str) -> String {
    fs::read_to_string(data.join(name)).unwrap()
}

/// A server certificate for any name, as somebody makes it who has a key of the authority.
fn forged(data: &Path, by: &str, name: &str) -> String {
    let key = KeyPair::from_pem(&read(data, &format!("{by}.key"))).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read(data, &format!("{by}.pem")), key).unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.use_authority_key_identifier_extension = true;
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().pem() + &read(data, "intermediate.pem")
}

#[test]
fn what_machines_trust_is_of_no_use_for_another_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    made(&data);
    let trusted = data.join("ca.pem");
    let chain = read(&data, "server.pem") + &read(&data, "intermediate.pem");
    check(&trusted, &chain, "server.test", [true; 2]);
    for by in ["intermediate", "ca"] {
        check(&trusted, &forged(&data, by, "server.test"), "server.test", [true; 2]);
        for name in ["deb.debian.org", "192.0.2.9", "2001:db8::9"] {
            check(&trusted, &forged(&data, by, name), name, [false; 2]);
        }
    }
    let refused = fail(&data, &["serve", "--url", "https://server.test", "--san", "b.test", "--listen", "127.0.0.1:0"]);
    let expect = format!("run `slipway-server --data {} ca rotate --san b.test`", data.display());
    assert!(refused.contains(&expect), "{refused}");
}

/// What a TLS client of openssl says that trusts one file, and verifies signatures of these kinds. `Err` if it breaks
/// off.
fn handshake(address: &str, trusted: &Path, kinds: &str) -> Option<Result<String, String>> {
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-tls1_2", "-sigalgs", kinds, "-connect", address, "-verify_ip", "127.0.0.1"]);
    openssl.args(["-verify_return_error", "-no-CApath", "-no-CAstore", "-CAfile"]).arg(trusted).stdin(Stdio::null());
    match openssl.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            Some(if output.status.success() { Ok(said) } else { Err(said) })
        }
        Err(error) => {
            eprintln!("not checked: openssl: {error}");
            None
        }
    }
}

#[test]
fn a_client_that_verifies_only_rsa_gets_a_certificate_of_the_root_for_firmware() {
    let folder = tempfile::tempdir().unwrap();
    let (data, firmware) = (folder.path().join("data"), folder.path().join("firmware.pem"));
    let connect = |server: &serde_json::Value, trusted: &Path, kinds: &str| {
        handshake(server["https"].as_str().unwrap(), trusted, kinds)
    };
    let (usual, only_rsa) = ("ECDSA+SHA256:RSA+SHA256", "RSA+SHA256");
    let (server, says) = serve(&data);
    let Some(refused) = connect(&says, &data.join("ca.pem"), only_rsa) else { return };
    assert!(refused.unwrap_err().contains("handshake failure"));
    drop(server);

    let root = succeed(&data, &["ca", "firmware"]);
    assert_eq!(succeed(&data, &["ca", "firmware"]), root, "it is made once");
    fs::write(&firmware, root).unwrap();
    let (server, says) = serve(&data);
    let first = read(&data, "firmware-server.pem");
    let taken = connect(&says, &firmware, only_rsa).unwrap().unwrap();
    assert!(taken.contains("Peer signature type: RSA") && taken.contains("Server public key is 3072 bit"), "{taken}");
    // Who can verify it gets the usual certificate, and what is installed trusts no other.
    let taken = connect(&says, &data.join("ca.pem"), usual).unwrap().unwrap();
    assert!(taken.contains("Peer signature type: ECDSA"), "{taken}");
    let refused = connect(&says, &data.join("ca.pem"), only_rsa).unwrap().unwrap_err();
    assert!(refused.contains("verify error"), "{refused}");
    drop(server);
    drop(serve(&data));
    assert_eq!(read(&data, "firmware-server.pem"), first, "it is kept");
}

/// The authority as versions made it that had no intermediate: a root for any name, which signed by itself.
fn make_old_authority(data: &Path) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "slipway CA 0123456789abcdef");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let root = params.self_signed(&key).unwrap().pem();
    let (leaf_key, issuer) = (KeyPair::generate().unwrap(), Issuer::from_ca_cert_pem(&root, &key).unwrap());
    let mut leaf = CertificateParams::new(["localhost", "server.test", "127.0.0.1"].map(str::to_owned)).unwrap();
    leaf.use_authority_key_identifier_extension = true;
    let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap().pem();
    let files = [
        ("ca.key", key.serialize_pem()),
        ("ca.pem", root),
        ("server.key", leaf_key.serialize_pem()),
        ("server.pem", leaf),
        ("jwt.key", "k".repeat(43)),
    ];
    for (name, content) in files {
        fs::write(data.join(name), content).unwrap();
        fs::set_permissions(data.join(name), Permissions::from_mode(0o600)).unwrap();
    }
}

#[tokio::test]
async fn a_folder_of_an_older_version_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    made(&data);
    for name in ["intermediate.pem", "intermediate.key"] {
        fs::remove_file(data.join(name)).unwrap();
    }
    make_old_authority(&data);
    let (root, key) = (read(&data, "ca.pem"), read(&data, "ca.key"));
    let (_server, ready) = serve(&data);
    let url = format!("https://{}/v1/time", ready["https"].as_str().unwrap());
    // A boot medium in the field, and installed systems.
    assert_eq!(trusting(&root).build().unwrap().get(url).send().await.unwrap().status(), StatusCode::NO_CONTENT);
    assert_eq!((read(&data, "ca.pem"), read(&data, "ca.key")), (root, key), "they stay");
    let chain = read(&data, "server.pem") + &read(&data, "intermediate.pem");
    // GnuTLS knows no exception for an intermediate with its issuer's name.
    check(&data.join("ca.pem"), &chain, "server.test", [true, false]);
    let foreign = forged(&data, "intermediate", "deb.debian.org");
    check(&data.join("ca.pem"), &foreign, "deb.debian.org", [false; 2]);
    assert!(succeed(&data, &["ca", "show"]).contains("not limited to any names"));
}

#[test]
fn the_root_key_can_be_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    made(data);
    let file = folder.path().join("root.key");
    let file = file.to_str().unwrap();
    let key = read(data, "ca.key");
    succeed(data, &["ca", "export-key", file]);
    assert_eq!(fs::read_to_string(file).unwrap(), key);
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let intermediate = read(data, "intermediate.pem");
    made(data);
    assert!(!data.join("ca.key").exists(), "it is not made again");
    assert_eq!(read(data, "intermediate.pem"), intermediate);
    assert!(succeed(data, &["ca", "show"]).contains("root key: not in the data folder (offline)"));
    let refused = fail(data, &["ca", "renew"]);
    assert!(
        refused.ends_with("the root key is not in the data folder (offline); give it with --root-key FILE"),
        "{refused}"
    );
    let refused = fail(data, &["ca", "export-key", "/nonexistent/key"]);
    assert!(refused.ends_with("the root key is not in the data folder (offline)"), "{refused}");
    succeed(data, &["ca", "renew", "--root-key", file]);
    assert_ne!(read(data, "intermediate.pem"), intermediate);
    made(data);
}

type Spoil = Box<dyn Fn(&Path)>;

/// What is wrong, and the command of the message that repairs it, or the part of the message that says how.
#[test]
fn a_server_does_not_start_with_keys_that_are_wrong() {
    let mode = |name: &'static str, mode: u32| {
        move |data: &Path| fs::set_permissions(data.join(name), Permissions::from_mode(mode)).unwrap()
    };
    let remove = |name: &'static str| move |data: &Path| fs::remove_file(data.join(name)).unwrap();
    let another = |name: &'static str| {
        move |data: &Path| fs::write(data.join(name), KeyPair::generate().unwrap().serialize_pem()).unwrap()
    };
    let mut table: Vec<(Spoil, &str)> = vec![
        (Box::new(mode("", 0o755)), "other users can enter the data folder"),
        (Box::new(remove("intermediate.key")), "intermediate.pem or intermediate.key is missing"),
        (Box::new(remove("jwt.key")), "jwt.key\" is missing"),
        (Box::new(|data| fs::write(data.join("jwt.key"), "").unwrap()), "jwt.key\" is too short for a key"),
        (Box::new(another("intermediate.key")), "intermediate.key does not belong to intermediate.pem"),
        (Box::new(another("ca.key")), "ca.key does not belong to ca.pem"),
    ];
    let database = if postgres::is_asked() { None } else { Some("slipway.db") };
    for name in ["ca.key", "intermediate.key", "server.key", "jwt.key", "operator-token"].into_iter().chain(database) {
        table.push((Box::new(mode(name, 0o640)), "other users can read or change"));
    }
    for (spoil, expect) in table {
        let folder = tempfile::tempdir().unwrap();
        let data = &folder.path().join("data");
        made(data);
        spoil(data);
        let message = fail(data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]);
        assert!(message.contains(expect), "{message}");
        let repair = message.split('`').nth(1).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_slipway-server")).parent().unwrap();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        name_database(&mut shell, data);
        let done = shell.args(["-c", repair]).env("PATH", path).output().unwrap();
        assert!(done.status.success(), "{repair}: {done:?}");
        made(data);
    }
}

#[test]
fn a_damaged_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    for name in ["server.key", "intermediate.key", "ca.key"] {
        let whole = fs::read(data.join(name)).unwrap();
        fs::write(data.join(name), "junk").unwrap();
        let message = fail(data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]);
        let path = data.join(name);
        let expect = format!("slipway-server: {path:?} is not a private key in PEM; restore it from a backup");
        assert_eq!(message, expect);
        fs::write(path, whole).unwrap();
    }
}

#[test]
fn what_machines_trust_is_never_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    for name in ["ca.pem", "ca.key"] {
        fs::remove_file(data.join(name)).unwrap();
    }
    let message = fail(data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]);
    assert!(message.contains("the certificate that machines trust, is missing: restore it from a backup"), "{message}");
    assert!(!data.join("ca.pem").exists() && !data.join("ca.key").exists());
}

#[test]
fn each_server_certificate_has_a_key_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    let before = read(data, "server.key");
    made(data);
    assert_eq!(read(data, "server.key"), before, "it lasts");
    fs::remove_file(data.join("server.pem")).unwrap();
    made(data);
    assert_ne!(read(data, "server.key"), before);
    fs::remove_file(data.join("server.key")).unwrap();
    made(data);
}

/// Whether a machine that trusts this reaches the server.
async fn reaches(server: &TestServer, trusted: &str) -> bool {
    let client: Client = trusting(trusted).build().unwrap();
    client.get(server.url("/v1/time")).send().await.is_ok()
}

#[tokio::test]
async fn an_authority_is_replaced_while_machines_move_over() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    let data = &server.data_path();
    let old = read(data, "ca.pem");
    succeed(data, &["ca", "rotate", "--san", "new.test"]);
    let message = fail(data, &["ca", "rotate"]);
    assert!(message.contains("a rotation is in progress"), "{message}");
    let both = succeed(data, &["ca"]);
    let new = both.strip_prefix(&old).unwrap().to_owned();
    assert_eq!(new.matches("BEGIN CERTIFICATE").count(), 1);

    let server = server.restart().await;
    let data = &server.data_path();
    assert_eq!([reaches(&server, &old).await, reaches(&server, &new).await], [true, false]);
    let client = with_certificate(&old, &node.machine.key, &node.enrolment.certificate);
    let asked = client.get(server.url("/v1/node/workflow?wait=0")).send().await.unwrap();
    assert_eq!(asked.status(), StatusCode::NO_CONTENT, "a node of before");
    let moved = Node::enrol(&server, node.machine).await;
    succeed(data, &["ca", "rotate", "--finish"]);
    assert_eq!(succeed(data, &["ca"]), new);

    let server = server.restart().await;
    assert_eq!([reaches(&server, &old).await, reaches(&server, &new).await], [false, true]);
    let client = with_certificate(&new, &moved.machine.key, &moved.enrolment.certificate);
    let asked = client.get(server.url("/v1/node/workflow?wait=0")).send().await.unwrap();
    assert_eq!(asked.status(), StatusCode::NO_CONTENT, "a node that enrolled during the rotation");
    assert!(succeed(&server.data_path(), &["ca", "show"]).contains("new.test"));
    let left = fs::read_dir(server.data_path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|name| name.starts_with("next-")));
}

#[test]
fn a_new_name_comes_with_a_new_authority() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    succeed(data, &["ca", "rotate", "--name", "New.test", "--name", "192.0.2.7"]);
    let arguments = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--san", "new.test", "--san"];
    for (finished, chain) in [(false, [false; 2]), (true, [true; 2])] {
        if finished {
            succeed(data, &["ca", "rotate", "--finish"]);
        }
        drop(started(command(data, &[&arguments[..], &["192.0.2.7"]].concat())));
        let shown = read(data, "server.pem") + &read(data, "intermediate.pem");
        check(&data.join("ca.pem"), &shown, "new.test", chain);
        check(&data.join("ca.pem"), &shown, "server.test", [true; 2]);
    }
    let refused = fail(data, &["ca", "rotate", "--name", "a b"]);
    assert!(refused.ends_with("\"a b\" is neither a host name nor an IP address; correct --san"), "{refused}");
}

/// A rotation is interrupted after each of its files was moved.
#[test]
fn a_rotation_that_was_interrupted_is_completed() {
    let moves = [
        ("next-ca.pem", "ca.pem"),
        ("next-ca.key", "ca.key"),
        ("next-intermediate.key", "intermediate.key"),
        ("next-intermediate.pem", "intermediate.pem"),
    ];
    for done in 0..=moves.len() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        made(data);
        let old = read(data, "ca.pem");
        succeed(data, &["ca", "rotate"]);
        let new = read(data, "next-ca.pem");
        for (from, to) in &moves[..done] {
            fs::rename(data.join(from), data.join(to)).unwrap();
        }
        made(data);
        assert_eq!(read(data, "ca.pem"), if done == 0 { old } else { new }, "{done} moves");
        assert_eq!(data.join("next-ca.pem").exists(), done == 0);
        assert_eq!(data.join("next-intermediate.key").exists(), done == 0);
    }
    // One that was interrupted while it began is forgotten.
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    succeed(data, &["ca", "rotate"]);
    fs::remove_file(data.join("next-ca.pem")).unwrap();
    made(data);
    assert!(!data.join("next-ca.key").exists() && !data.join("next-intermediate.pem").exists());
    succeed(data, &["ca", "rotate"]);
    succeed(data, &["ca", "rotate", "--cancel"]);
    made(data);
}

#[tokio::test]
async fn boot_files_never_come_from_the_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    made(&data);
    symlink(&data, folder.path().join("link")).unwrap();
    for boot in ["data", "data/images", "", "link", "link/images"] {
        let boot = folder.path().join(boot);
        let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot"];
        let message = fail(&data, &[&serve[..], &[boot.to_str().unwrap()]].concat());
        assert!(message.contains("must be apart: anybody can fetch boot files"), "{message}");
    }

    let server = TestServer::start().await;
    let boot = server.folder.path().join("boot");
    fs::write(boot.join("file"), "public").unwrap();
    symlink(boot.join("file"), boot.join("inside")).unwrap();
    symlink(server.data_path().join("ca.key"), boot.join("key")).unwrap();
    symlink(server.data_path(), boot.join("folder")).unwrap();
    let expect = [("inside", StatusCode::OK), ("key", StatusCode::NOT_FOUND), ("folder/ca.key", StatusCode::NOT_FOUND)];
    for (path, status) in expect {
        let answer = server.client().get(server.boot_url(&format!("/boot/{path}"))).send().await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
}

#[test]
fn what_a_kill_left_is_removed_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    made(data);
    let left = [".ca.key-0123456789abcdef", ".server.pem-0123456789abcdef", "images/incoming-0123456789abcdef"];
    left.iter().for_each(|name| fs::write(data.join(name), "secret").unwrap());
    let kept = data.join(".notes");
    fs::write(&kept, "").unwrap();
    made(data);
    assert_eq!(left.map(|name| data.join(name).exists()), [false; 3]);
    assert!(kept.exists());
}

#[tokio::test]
async fn a_machine_enrols_under_the_intermediate() {
    let server = TestServer::start().await;
    server.add_released("web1").await;
    let node = Node::enrol(&server, Machine::with_uuid(UUID)).await;
    assert_eq!(node.enrolment.certificate.matches("BEGIN CERTIFICATE").count(), 2, "with the intermediate");
    assert!(node.workflow(&server).await.is_none(), "its certificate is accepted");
}
