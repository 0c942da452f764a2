//! Ceph and its S3 gateway, without a system service: a monitor, an object storage daemon that keeps everything in
//! memory, and the gateway. One cluster serves the whole test program and ends with it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{BUCKET, KEY_ID, SECRET};

/// Runs a program until the test program ends, which closes the script's input. Then removes a folder, if one is given.
const KEEP: &str = r#"folder=$1; shift; "$@" & cat > /dev/null; kill -KILL $!; wait; rm -rf "$folder""#;
/// How long each part of the cluster may take to start.
const PATIENCE: Duration = Duration::from_secs(180);

static CEPH: LazyLock<Ceph> = LazyLock::new(Ceph::start);

/// A cluster with a bucket.
pub struct Ceph {
    folder: PathBuf,
    address: SocketAddr,
    gateway: Mutex<Option<Running>>,
    _daemons: [Running; 2],
}

/// A program that runs until it is killed, or the test program ends.
struct Running(Child);

impl Running {
    fn start(folder: Option<&Path>, program: &mut Command) -> Self {
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEP, "sh"]).arg(folder.unwrap_or(Path::new("")));
        keeper.arg(program.get_program()).args(program.get_args());
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(keeper.spawn().unwrap())
    }

    fn kill(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// The address of the gateway of the test program's cluster. Starts what does not run.
pub fn address() -> SocketAddr {
    CEPH.run_gateway();
    CEPH.address
}

/// Kills the gateway as kill -9 does. The objects stay.
pub fn kill_gateway() {
    let gateway = CEPH.gateway.lock().unwrap_or_else(PoisonError::into_inner).take();
    gateway.unwrap().kill();
}

impl Ceph {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let [monitor, address] = [free_address(), free_address()];
        let at = folder.display();
        let settings = format!(
            "[global]\nfsid = 6f1a1d5c-7a3e-4f3b-9d0e-2a5f0c9b8e71\n\
             mon_host = v2:{monitor}\nmon_initial_members = a\npublic_addr = 127.0.0.1\ncluster_addr = 127.0.0.1\n\
             auth_cluster_required = none\nauth_service_required = none\nauth_client_required = none\n\
             mon_data = {at}/mon\nosd_data = {at}/osd\nosd_objectstore = memstore\nmemstore_device_bytes = 4294967296\n\
             run_dir = {at}\nadmin_socket =\npid_file =\nlog_file = {at}/$name.log\nkeyring = {at}/keyring\n\
             mon_allow_pool_size_one = true\nosd_pool_default_size = 1\nosd_pool_default_min_size = 1\n\
             osd_pool_default_pg_num = 1\nosd_pool_default_pgp_num = 1\nosd_pool_default_pg_autoscale_mode = off\n\
             osd_crush_chooseleaf_type = 0\nmon_data_avail_crit = 1\nmon_data_avail_warn = 1\n\
             paxos_propose_interval = 0.01\npaxos_min_wait = 0.01\nms_mon_client_mode = crc\n\
             rgw_frontends = beast endpoint={address}\nrgw_data = {at}/rgw\n"
        );
        std::fs::write(folder.join("ceph.conf"), settings).unwrap();
        for name in ["mon", "osd", "rgw"] {
            std::fs::create_dir(folder.join(name)).unwrap();
        }
        let command = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.arg("--conf").arg(folder.join("ceph.conf")).args(arguments);
            command
        };
        let map = folder.join("monmap").display().to_string();
        let mut monmap = Command::new("monmaptool");
        monmap.args(["--create", "--clobber", "--fsid", "6f1a1d5c-7a3e-4f3b-9d0e-2a5f0c9b8e71"]);
        succeed(monmap.args(["--addv", "a", &format!("[v2:{monitor}]")]).arg(&map), &folder);
        succeed(&mut command("ceph-mon", &["--mkfs", "--id", "a", "--monmap", &map]), &folder);
        // The first one removes the folder in the end.
        let monitor = Running::start(Some(&folder), &mut command("ceph-mon", &["--foreground", "--id", "a"]));
        until("the monitor answers", &folder, || {
            let mut create = command("ceph", &["--connect-timeout", "5", "osd", "new"]);
            create.arg("0c2b7a54-9f2e-4d0c-8f5c-6c1f5a9d7e10").output().unwrap().status.success()
        });
        let id = ["--id", "0", "--osd-uuid", "0c2b7a54-9f2e-4d0c-8f5c-6c1f5a9d7e10"];
        succeed(&mut command("ceph-osd", &[&["--mkfs"], &id[..]].concat()), &folder);
        let osd = Running::start(None, &mut command("ceph-osd", &[&["--foreground"], &id[..2]].concat()));
        let user = ["--uid", "tests", "--display-name", "tests", "--access-key", KEY_ID, "--secret-key", SECRET];
        succeed(&mut command("radosgw-admin", &[&["user", "create"], &user[..]].concat()), &folder);
        let ceph = Self { folder, address, gateway: Mutex::default(), _daemons: [monitor, osd] };
        ceph.run_gateway();
        let url = format!("http://{address}/{BUCKET}");
        let mut create = Command::new("curl");
        create.args(["--silent", "--show-error", "--fail", "--aws-sigv4", "aws:amz:us-east-1:s3"]);
        create.args(["--user", &format!("{KEY_ID}:{SECRET}"), "--request", "PUT", &url]);
        // The SHA-256 of nothing, which curl does not sign by itself.
        create.arg("--header");
        create.arg("x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        succeed(&mut create, &ceph.folder);
        ceph
    }

    /// Starts the gateway, unless it runs.
    fn run_gateway(&self) {
        let mut gateway = self.gateway.lock().unwrap_or_else(PoisonError::into_inner);
        if gateway.is_some() {
            return;
        }
        let mut program = Command::new("radosgw");
        program.arg("--conf").arg(self.folder.join("ceph.conf")).args(["--foreground", "--name", "client.rgw"]);
        *gateway = Some(Running::start(None, &mut program));
        // It listens once it can answer.
        let address = self.address;
        until("the gateway answers", &self.folder, || std::net::TcpStream::connect(address).is_ok());
    }
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn until(what: &str, folder: &Path, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: waited in vain; see the logs in {folder:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn succeed(command: &mut Command, folder: &Path) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; install the packages ceph-mon, ceph-osd, ceph-common and radosgw")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}; see the logs in {folder:?}");
}
