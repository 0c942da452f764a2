//! Backups, made while a server writes, and servers made of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use age::secrecy::ExposeSecret;
use slipway_protocol::{Event, EventKind, Identity};
use slipway_server::operate;
use slipway_server::store::{Store, events, nodes};

use crate::enrolment::waits;
use crate::installing::{add_system, debian, start, web1};
use crate::program::{self, Ended, command, fail, serve, succeed};
use crate::support::{Machine, TestServer, UUID};

/// Events of the run in a database.
async fn events_in(data: &Path, run: &str) -> usize {
    let store = Store::open(&data.join("slipway.db")).await.unwrap();
    let found = events::of_run(&mut store.read().await.unwrap(), run).await.unwrap().len();
    store.close().await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_made_of_a_backup_has_what_was_acknowledged_before_it() {
    let server = TestServer::start().await;
    let node = server.enrolled("web1").await;
    add_system(&server, |_| {}).await.unwrap();
    let run = start(&server, debian()).await.unwrap().id;
    node.workflow(&server).await.unwrap();
    let data = server.data_path();
    let files: Vec<_> = ["1", "2", "3"].map(|name| server.folder.path().join(name)).into();
    let mut seq = 0;
    for file in &files {
        let mut post = async |count: u64| {
            for _ in 0..count {
                seq += 1;
                let event = Event { seq, at: 1, step: 0, attempt: 1, kind: EventKind::Note("x".repeat(5000)) };
                assert!(node.post_events(&server, &run, &[event]).await.status().is_success());
            }
            seq
        };
        let before = post(10).await;
        let arguments = ["backup", file.to_str().unwrap()];
        let mut child = Ended(command(&data, &arguments).spawn().unwrap());
        while child.0.try_wait().unwrap().is_none() {
            post(1).await;
        }
        assert!(child.0.wait().unwrap().success());
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        let restored = file.with_extension("restored");
        succeed(&restored, &["restore", file.to_str().unwrap()]);
        let found = events_in(&restored, &run).await as u64;
        assert!((before..=seq).contains(&found), "{before} {found} {seq}");
    }
    let restored = files[2].with_extension("restored");
    for name in ["ca.pem", "ca.key", "intermediate.key", "jwt.key", "operator-token"] {
        assert_eq!(fs::read(restored.join(name)).unwrap(), fs::read(data.join(name)).unwrap(), "{name}");
        assert_eq!(fs::metadata(restored.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert!(succeed(&restored, &["status"]).contains("web1"));
    drop(serve(&restored));
    let left = fs::read_dir(&data).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.starts_with('.')).count(), 0, "no copy of the database is left");
}

#[tokio::test]
async fn a_backup_is_for_who_has_the_key_and_images_are_in_it_on_request() {
    let server = TestServer::start().await;
    let (data, file) = (server.data_path(), |name: &str| server.folder.path().join(name));
    let image = file("disk.raw");
    fs::write(&image, crate::support::IMAGE).unwrap();
    let digest = succeed(&data, &["image", "add", image.to_str().unwrap()]);
    let image = format!("images/sha256/{}", digest.trim().strip_prefix("sha256:").unwrap());
    let identity = age::x25519::Identity::generate();
    let (sealed, key) = (file("sealed"), file("key"));
    fs::write(&key, format!("# a comment\n{}\n", identity.to_string().expose_secret())).unwrap();
    let (sealed, key) = (sealed.to_str().unwrap(), key.to_str().unwrap());
    let public = identity.to_public().to_string();
    succeed(&data, &["backup", sealed, "--images", "--recipient", &public]);
    let secret = fs::read_to_string(data.join("operator-token")).unwrap();
    let has = |file: &Path| fs::read(file).unwrap().windows(secret.len()).any(|found| found == secret.as_bytes());
    assert!(!has(Path::new(sealed)));
    assert!(fail(&data, &["backup", sealed]).ends_with("is already there; give another name"));

    let restored = file("restored");
    let refused = fail(&restored, &["restore", sealed]);
    assert!(refused.ends_with("is encrypted: give a private key with --identity FILE"), "{refused}");
    succeed(&restored, &["restore", sealed, "--identity", key]);
    assert_eq!(fs::read(restored.join(&image)).unwrap(), crate::support::IMAGE);
    assert!(has(&restored.join("operator-token")));
    let refused = fail(&restored, &["restore", sealed, "--identity", key]);
    assert!(refused.contains("is not empty: it has "), "{refused}");

    let plain = file("plain");
    succeed(&data, &["backup", plain.to_str().unwrap()]);
    let without = file("without");
    succeed(&without, &["restore", plain.to_str().unwrap()]);
    assert!(has(&plain) && !without.join(&image).exists());
    assert!(operate::list_runs(&server.store().await, None).await.unwrap().is_empty());
}

/// A machine may have been installed since the backup, by the run that is unfinished in it.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_runs_of_a_backup_wait_until_an_operator_confirms_them() {
    let old = TestServer::start().await;
    let node = old.enrolled("web1").await;
    add_system(&old, |_| {}).await.unwrap();
    let run = start(&old, debian()).await.unwrap().id;
    waits(&old, &Machine::new(Identity { serial: Some("7CZ2".to_owned()), ..Identity::default() })).await;
    let file = old.folder.path().join("backup");
    let file = file.to_str().unwrap();
    succeed(&old.data_path(), &["backup", file]);

    let server = TestServer::start_on(async |data| {
        let output = program::run(&data, &["restore", file]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("1 unfinished run is held: "), "{said}");
        assert!(said.contains("the file of 1 image is missing or has changed: "), "{said}");
    })
    .await;
    let data = server.data_path();
    let status = succeed(&data, &["status"]);
    assert!(
        status.contains("run restored from a backup: confirm it with `slipway-server run confirm web1`"),
        "{status}"
    );
    assert_eq!(status.lines().count(), 2, "nobody waits any more: {status}");
    assert!(succeed(&data, &["run", "list"]).contains("pending (restored)"));
    assert_eq!(node.workflow(&server).await, None, "it may have been installed since");
    let script = async || {
        let asked = server.client().get(server.boot_url(&format!("/boot/ipxe?uuid={UUID}&arch=x86_64")));
        asked.send().await.unwrap().text().await.unwrap()
    };
    assert!(!script().await.contains("initrd"), "its machine starts what it has: {}", script().await);
    let is_armed = async || {
        let store = server.store().await;
        nodes::find(&mut store.read().await.unwrap(), "web1").await.unwrap().unwrap().armed
    };
    assert!(!is_armed().await, "nobody takes its place");

    add_system(&server, |_| {}).await.unwrap();
    succeed(&data, &["run", "confirm", "web1"]);
    assert!(is_armed().await);
    assert!(script().await.contains("initrd"), "{}", script().await);
    assert_eq!(node.workflow(&server).await.unwrap().run, run);
    let refused = fail(&data, &["run", "confirm", "web1"]);
    assert!(refused.ends_with("only unfinished runs of a restored backup do"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_works_on_its_run_goes_on_under_a_restored_server() {
    let old = TestServer::start().await;
    let node = old.enrolled("web1").await;
    add_system(&old, |_| {}).await.unwrap();
    let run = start(&old, debian()).await.unwrap().id;
    node.workflow(&old).await.unwrap();
    let file = old.folder.path().join("backup");
    let file = file.to_str().unwrap();
    succeed(&old.data_path(), &["backup", file, "--images"]);
    let server = TestServer::start_on(async |data| drop(succeed(&data, &["restore", file]))).await;
    assert!(web1(&server).await.run.unwrap().restored);
    let event = Event { seq: 1, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    assert!(node.post_events(&server, &run, &[event]).await.status().is_success());
    assert!(!web1(&server).await.run.unwrap().restored);
    assert_eq!(node.workflow(&server).await.unwrap().run, run, "also after a power cycle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_backup_that_an_operator_ended_is_not_held_any_more() {
    let old = TestServer::start().await;
    let node = old.enrolled("web1").await;
    add_system(&old, |_| {}).await.unwrap();
    let run = start(&old, debian()).await.unwrap().id;
    let file = old.folder.path().join("backup");
    let file = file.to_str().unwrap();
    succeed(&old.data_path(), &["backup", file]);
    let server = TestServer::start_on(async |data| drop(succeed(&data, &["restore", file]))).await;
    succeed(&server.data_path(), &["run", "cancel", "--yes", "web1"]);
    let script = server.client().get(server.boot_url(&format!("/boot/ipxe?uuid={UUID}&arch=x86_64")));
    let script = script.send().await.unwrap().text().await.unwrap();
    assert!(script.contains("initrd"), "nothing says that it was installed: {script}");
    let event = Event { seq: 1, at: 1, step: 0, attempt: 1, kind: EventKind::Started };
    assert!(node.post_events(&server, &run, &[event]).await.status().is_success());
    let store = server.store().await;
    let shown = nodes::find(&mut store.read().await.unwrap(), "web1").await.unwrap().unwrap();
    assert!(!shown.armed, "there is nothing to do for another machine");
}

#[tokio::test]
async fn a_backup_that_is_damaged_restores_nothing() {
    let server = TestServer::start().await;
    let (data, file) = (server.data_path(), |name: &str| server.folder.path().join(name));
    let good = file("good");
    succeed(&data, &["backup", good.to_str().unwrap()]);
    let bytes = fs::read(&good).unwrap();
    let cut = bytes[..bytes.len() / 2].to_vec();
    let mut changed = bytes.clone();
    let at = bytes.windows(10).position(|found| found == b"-----BEGIN").unwrap() + 40;
    changed[at] ^= 1;
    let foreign = server.folder.path().join("foreign");
    let tar = Command::new("tar").args(["-cf"]).arg(&foreign).args(["-C", "/etc", "hostname"]).status().unwrap();
    assert!(tar.success());
    let restored = file("restored");
    for (bytes, expect) in [
        (cut, ""),
        (changed, "a file is not as it was backed up"),
        (fs::read(&foreign).unwrap(), "is not a file of a data folder"),
        (b"nothing".to_vec(), ""),
        (Vec::new(), "it is truncated, or not a backup made by slipway"),
    ] {
        let bad = file("bad");
        fs::write(&bad, bytes).unwrap();
        let message = fail(&restored, &["restore", bad.to_str().unwrap()]);
        assert!(message.contains(expect), "{message}");
        assert_eq!(fs::read_dir(&restored).unwrap().count(), 0, "{message}");
    }
    succeed(&restored, &["restore", good.to_str().unwrap()]);
}
