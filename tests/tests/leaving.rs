//! A machine is left only once the server has the last event, however long the server is away.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
}

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::sync::Arc;

use slipway_actions::{
    Cancel, Candidate, Error, FetchError, Host, HostOptions, Machine, Request, Response, Setup, Upload, UploadError,
};
use slipway_installer::{End, Options};
use slipway_protocol::{Action, Disk, Kexec, NodeState, Reboot, RecoveryKey, RunState, Step, StepState, StreamImage};
use slipway_tests::Lab;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use common::disk_image::{Part, ROOT, can_mount, make};

/// The real host, except that it starts no kernel.
struct Loading(Host);

impl Machine for Loading {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        self.0.disks()
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        self.0.fetch(request, stop)
    }

    fn cancel(&self) -> &Cancel {
        self.0.cancel()
    }

    fn setup(&self) -> &Setup {
        self.0.setup()
    }

    fn former_partitions(&self, disk: &Disk) -> Vec<String> {
        self.0.former_partitions(disk)
    }

    fn upload(&self, name: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        self.0.upload(name)
    }

    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.0.store_recovery_key(key)
    }

    fn load_kernel(&self, _: &File, _: Option<&File>, _: &CStr) -> io::Result<()> {
        Ok(())
    }
}

fn options(lab: &Lab) -> Options {
    let machine = |cancel: &Cancel| -> Box<dyn Machine + Send> {
        Box::new(Loading(Host::new(HostOptions { cancel: cancel.clone(), ..HostOptions::default() })))
    };
    Options { machine: Arc::new(machine), ..lab.options(None) }
}

/// Serves the image to every connection.
async fn give(listener: TcpListener, image: Vec<u8>) {
    while let Ok((mut connection, _)) = listener.accept().await {
        let _ = connection.read(&mut [0; 4096]).await;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", image.len());
        // The client may have given up.
        let _ = connection.write_all(&[head.as_bytes(), &image].concat()).await;
    }
}

/// Checks a run whose second step leaves the machine. The server goes away during the first step. It comes back after
/// the machine has tried in vain to reach it during the second step.
async fn check(image: Vec<u8>, leave: impl FnOnce(&Lab) -> Action, expect: End) {
    let mut lab = Lab::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let write = StreamImage {
        url: format!("http://{}/image", silent.local_addr().unwrap()),
        digest: Some(lab.add_image(&image).await.1),
        disk: lab.disk_hints(),
        grow: false,
        ..StreamImage::default()
    };
    let steps = [("write", Action::StreamImage(write)), ("leave", leave(&lab))];
    let steps = steps.map(|(name, action)| Step { name: name.to_owned(), action, retries: 0, timeout: None });
    lab.register(true).await;
    lab.start_run(steps.into()).await;
    let mut installing = tokio::spawn(slipway_installer::run(lab.config(), options(&lab)));
    lab.wait_for("writing", |node| node.run.as_ref().is_some_and(|run| run.steps[0].state == StepState::Running)).await;
    lab.stop_server().await;
    let nobody = TcpListener::bind(lab.url().trim_start_matches("https://")).await.unwrap();
    tokio::spawn(give(silent, image));

    let note = lab.folder.path().join("run/step.json");
    let mut note_miss = 0;
    while note_miss < 2 {
        tokio::select! {
            ended = &mut installing => panic!("the machine was left: {ended:?}"),
            connection = nobody.accept() => drop(connection),
        }
        let note = std::fs::read_to_string(&note).unwrap_or_default();
        note_miss += usize::from(note.contains("\"step\":1"));
    }
    drop(nobody);
    lab.start_server().await;

    assert_eq!(installing.await.unwrap().unwrap(), expect);
    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Installed);
    let run = node.run.unwrap();
    assert_eq!(run.state, RunState::Succeeded);
    assert!(run.steps.iter().all(|step| step.state == StepState::Succeeded), "{run:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_restarts_when_the_server_has_the_last_event() {
    check(vec![0xAA; 3 << 20], |_| Action::Reboot(Reboot::default()), End::Reboot).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_kernel_is_started_when_the_server_has_the_last_event() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("image");
    let files = [("etc/os-release", "NAME=Debian"), ("vmlinuz", "kernel")];
    make(&file, 15, &[Part { mib: 1..14, type_guid: ROOT, name: "system", files: &files }]);
    let kexec = |lab: &Lab| {
        let (kernel, cmdline) = (Some("/vmlinuz".to_owned()), Some("root=x".to_owned()));
        Action::Kexec(Kexec { disk: lab.disk_hints(), kernel, cmdline, ..Kexec::default() })
    };
    check(std::fs::read(file).unwrap(), kexec, End::Kexec).await;
}
