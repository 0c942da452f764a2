//! Reporting external steps with the function that `slipway-server snippet` prints.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;

use slipway_protocol::{Action, ExternalStep, ExternalStepStatus, Reboot, Step};
use slipway_server::base::data::DataDir;
use slipway_server::keys::ca::Authority;
use slipway_server::operate;
use slipway_server::rules::snippet::{self, Surrounding};
use slipway_server::store::run_tokens::Purpose;
use slipway_tests::Lab;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;
use xtask::host::debian;

const BUSYBOX: &str = "/bin/busybox";

/// Path of the initramfs in the package of Debian's installer, and a script that runs a preseeded command in it.
const INITRAMFS: &str = "usr/lib/debian-installer/images/12/amd64/text/debian-installer/amd64/initrd.gz";
const PRESEEDED: &str =
    "#!/bin/sh\n. /usr/share/debconf/confmodule\ndebconf-set-selections /preseed.cfg\npreseed_command \"$1\"\n";

/// Returns the shell function for the run of the lab's machine.
async fn function(lab: &Lab) -> String {
    snippet(lab, Surrounding::Shell).await
}

async fn snippet(lab: &Lab, surrounding: Surrounding) -> String {
    lab.register(true).await;
    let action = Action::Reboot(Reboot::default());
    lab.start_run(vec![Step { name: "leave".to_owned(), action, retries: 0, timeout: None }]).await;
    let (token, _) = operate::add_run_token(&lab.store().await, "m1", Purpose::Steps).await.unwrap();
    snippet::text(surrounding, &format!("{}/v1/report", lab.url()), &token, &lab.ca())
}

/// Runs a script that must succeed. Returns its output.
async fn run(command: &mut Command, script: &str) -> String {
    let output = command.args(["-eu", "-c", script]).stdin(Stdio::null()).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

async fn steps(lab: &Lab) -> Vec<ExternalStep> {
    lab.status().await.run.unwrap().external_steps
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sixth_word_is_the_priority() {
    let lab = Lab::start().await;
    let script = function(&lab).await
        + "slipway_report others\n\
           slipway_report packages init 0 'installing packages' '' 20\n\
           slipway_report disks '' '' '' '' 10\n\
           slipway_report packages done 100\n";
    assert_eq!(run(&mut Command::new("/bin/sh"), &script).await, "");
    let steps = steps(&lab).await;
    let steps: Vec<(&str, u16)> = steps.iter().map(|step| (step.name.as_str(), step.priority)).collect();
    assert_eq!(steps, [("disks", 10), ("packages", 20), ("others", 100)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_verify_the_server_nothing_is_sent() {
    let lab = Lab::start().await;
    let script = function(&lab).await + "slipway_report packages done 100\necho $?\n";
    // The shell has busybox's wget, which does not verify the server.
    let folder = tempfile::tempdir().unwrap();
    for applet in ["sed", "tr", "tail", "mktemp", "sleep", "rm", "grep", "cat", "wc", "wget"] {
        symlink(BUSYBOX, folder.path().join(applet)).unwrap();
    }
    let mut command = Command::new(BUSYBOX);
    command.arg("sh").env_clear().env("PATH", folder.path()).env("TMPDIR", folder.path());
    assert_eq!(run(&mut command, &script).await, "0\n");
    assert_eq!(steps(&lab).await, []);
    let left = std::fs::read_dir(folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir());
    assert_eq!(left.count(), 0, "the secret stays nowhere");
}

/// Name of the sender that cannot verify a server.
const ALONE: &str = "busybox alone";
/// What a shell can send with: a name, and the programs with their paths.
const SENDERS: [(&str, &[(&str, &str)]); 4] = [
    ("curl", &[("curl", "/usr/bin/curl")]),
    ("GNU wget", &[("wget", "/usr/bin/wget")]),
    ("openssl beside busybox", &[("wget", BUSYBOX), ("openssl", "/usr/bin/openssl")]),
    (ALONE, &[("wget", BUSYBOX)]),
];
const SURROUNDINGS: [Surrounding; 4] =
    [Surrounding::Shell, Surrounding::Kickstart, Surrounding::Preseed, Surrounding::Autoinstall];

/// A certificate authority, with its folder.
struct Ca(TempDir, Authority);

impl Ca {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let names = ["127.0.0.1", "192.0.2.1"].map(str::to_owned).into();
        let authority = Authority::open_or_make(&DataDir::make(folder.path()).unwrap(), &names).unwrap();
        Self(folder, authority)
    }

    /// Accepts connections with a certificate for this name.
    fn acceptor(&self, name: &str) -> TlsAcceptor {
        let Self(folder, authority) = self;
        let names = BTreeSet::from([name.to_owned()]);
        let identity = authority.server_identity(&DataDir::make(folder.path()).unwrap(), &names).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth();
        TlsAcceptor::from(Arc::new(config.with_single_cert(identity.chain, identity.key).unwrap()))
    }
}

/// Returns how many reports a whole snippet makes, and a script that runs all of it.
fn whole(surrounding: Surrounding, text: &str) -> (usize, String) {
    let after = |start: &str| text.split_once(start).unwrap().1;
    match surrounding {
        Surrounding::Shell => (1, format!("{text}\nslipway_report a done 100 'a label' 'some logs'\n")),
        Surrounding::Kickstart => {
            let lines = text.lines().filter(|line| !line.starts_with('%'));
            (3, lines.map(|line| line.replace("/tmp/anaconda.log", "/dev/null") + "\n").collect())
        }
        Surrounding::Preseed => {
            let script = after("d-i slipway/report string ").lines().next().unwrap();
            (1, format!("printf %s {script} | base64 -d | sh -s a done 100\n"))
        }
        Surrounding::Autoinstall => {
            let script = after("<<'slipway' || true\n").split_once("\n      slipway\n").unwrap().0;
            (1, format!("set -- a done 100\n{}\n", script.replace("\n      ", "\n")))
        }
    }
}

/// Reads the request on one connection. Empty if the TLS handshake fails.
async fn request(tls: &TlsAcceptor, connection: TcpStream) -> String {
    let mut request = Vec::new();
    if let Ok(mut connection) = tls.accept(connection).await {
        // The last field has no value. A client that gets no answer gives up by itself.
        while !request.ends_with(b"priority=&") && connection.read_buf(&mut request).await.is_ok_and(|len| len > 0) {}
    }
    String::from_utf8(request).unwrap()
}

/// Prepares a shell whose PATH has only these programs and basic ones. Its system trusts the authorities in `trusted`.
fn shell(found: &[(&str, &str)], trusted: Option<&Path>) -> (TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    // Busybox's shell would prefer its own wget over any other.
    symlink("/bin/sh", folder.path().join("sh")).unwrap();
    let everywhere = ["sed", "tr", "tail", "mktemp", "sleep", "rm", "grep", "cat", "wc", "base64"];
    for (name, program) in everywhere.map(|name| (name, BUSYBOX)).iter().chain(found) {
        symlink(program, folder.path().join(name)).unwrap();
    }
    let mut command = match trusted {
        None => Command::new("/bin/sh"),
        Some(trusted) => {
            let mut command = Command::new("/usr/bin/unshare");
            let script = "/bin/mount --bind \"$0\" /etc/ssl/certs; exec /bin/sh \"$@\"";
            command.args(["--mount", "/bin/sh", "-euc", script]).arg(trusted);
            command
        }
    };
    command.env_clear().env("PATH", folder.path()).env("TMPDIR", folder.path());
    (folder, command)
}

/// Runs every snippet with every sender against a server that answers. The snippets verify the server with `ca`, and
/// the system trusts the authorities in the folder `trusted`. Each report arrives whole or not at all, and a sender
/// that cannot verify a server does not even connect.
async fn check_told(ca: &Ca, tls: &TlsAcceptor, trusted: Option<&Path>, is_told: bool) {
    for (sender, found) in SENDERS {
        if let Some((_, lacking)) = found.iter().find(|(_, program)| !Path::new(program).exists()) {
            eprintln!("not checked: there is no {lacking}");
            continue;
        }
        for surrounding in SURROUNDINGS {
            let name = format!("{sender}, {surrounding:?}");
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("https://{}/v1/report", listener.local_addr().unwrap());
            let (calls, script) = whole(surrounding, &snippet::text(surrounding, &url, "TOKEN", ca.1.pem()));
            let (_folder, mut command) = shell(found, trusted);
            let mut told = Vec::new();
            let script = format!("{script}\necho status $?\n");
            let mut run = pin!(run(&mut command, &script));
            let printed = loop {
                tokio::select! {
                    connection = listener.accept() => told.push(request(tls, connection.unwrap().0).await),
                    printed = &mut run => break printed,
                }
            };
            assert_eq!(printed, "status 0\n", "{name}");
            assert!(listener.into_std().unwrap().accept().is_err(), "{name}: somebody waits to be heard");
            assert_eq!(told.len(), if sender == ALONE { 0 } else { calls }, "{name}: {told:?}");
            let is_whole = |request: &String| {
                let head = request.starts_with("POST /v1/report ") && request.contains("Bearer TOKEN");
                head && request.contains("name=") && request.ends_with("priority=&")
            };
            let is_right = |request: &String| if is_told { is_whole(request) } else { request.is_empty() };
            assert!(told.iter().all(is_right), "{name}: {told:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_to_a_server_of_another_ca_or_name() {
    slipway_installer::server::tls::install_provider();
    let (ca, other) = (Ca::new(), Ca::new());
    let (own, named, others) = (ca.acceptor("127.0.0.1"), ca.acceptor("192.0.2.1"), other.acceptor("127.0.0.1"));
    tokio::join!(
        check_told(&ca, &own, None, true),
        check_told(&ca, &others, None, false),
        check_told(&ca, &named, None, false),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_told_to_a_server_of_a_ca_that_the_system_trusts() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: mounting what a system trusts needs root");
        return;
    }
    slipway_installer::server::tls::install_provider();
    let (ca, other) = (Ca::new(), Ca::new());
    let trusted = tempfile::tempdir().unwrap();
    std::fs::write(trusted.path().join("ca-certificates.crt"), other.1.pem()).unwrap();
    let rehashed = Command::new("openssl").arg("rehash").arg(trusted.path()).status().await.unwrap();
    assert!(rehashed.success());
    check_told(&ca, &other.acceptor("127.0.0.1"), Some(trusted.path()), false).await;
}

/// Runs in the root file system of Debian's installer, with its shell, debconf and wget.
#[tokio::test(flavor = "multi_thread")]
async fn a_preseeded_installer_reports_by_what_it_has_itself() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: the installer's root needs a root");
        return;
    }
    let lab = Lab::start().await;
    let root = tempfile::tempdir().unwrap();
    let initramfs = debian::unpacked(&debian::INSTALLER).unwrap().join(INITRAMFS);
    let script =
        "gzip -dc \"$0\" | cpio --quiet -idD \"$1\"; [ -e \"$1/dev/null\" ] || mknod -m 666 \"$1/dev/null\" c 1 3";
    let unpacked = Command::new("sh").args(["-euc", script]).arg(initramfs).arg(root.path()).status().await.unwrap();
    assert!(unpacked.success());
    std::fs::write(root.path().join("preseed.cfg"), snippet(&lab, Surrounding::Preseed).await).unwrap();
    std::fs::write(root.path().join("preseeded"), PRESEEDED).unwrap();
    let installer = || {
        let mut command = Command::new("chroot");
        command.arg(root.path()).arg("/bin/sh").env_clear().env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin");
        command
    };
    run(&mut installer(), "debconf-loadtemplate d-i /var/lib/dpkg/info/*.templates").await;
    for (command, expect) in [
        ("preseed/early_command", (Some(ExternalStepStatus::Init), Some(0), "started")),
        ("partman/early_command", (Some(ExternalStepStatus::Init), Some(10), "partitioning")),
        ("preseed/late_command", (Some(ExternalStepStatus::Done), Some(100), "installed")),
    ] {
        run(installer().env("DEBIAN_FRONTEND", "text"), &format!("debconf -od-i /bin/sh /preseeded {command}")).await;
        let steps = steps(&lab).await;
        let [step] = &steps[..] else { panic!("{command}: {steps:?}") };
        assert_eq!((step.status, step.percent, step.label.as_deref().unwrap_or_default()), expect, "{command}");
    }
}
