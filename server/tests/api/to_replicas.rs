//! The way of the manual from one SQLite server to two on PostgreSQL and a bucket, behind nginx, while a machine is
//! being installed. The commands and files are those of the manual; names, ports and paths in them are replaced.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use slipway_actions::{Host, HostOptions};
use slipway_installer::config::Config;
use slipway_installer::discover::tpm::{MachineTpm, Place as TpmPlace};
use slipway_installer::enrol::Facts;
use slipway_installer::report::log_book::LogBook;
use slipway_installer::screen::Screen;
use slipway_installer::{End, Options};
use slipway_parts::Arch;
use slipway_protocol::{Event, EventKind, Identity, Inventory, RunState};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::media::write_parts;
use crate::object_store::{KEY_ID, ObjectStore, SECRET};
use crate::postgres::{self, Server};
use crate::program::Ended;
use crate::site::{Running, until};
use crate::support::{UUID, install_provider};

const MIB: u64 = 1 << 20;
/// Size of the image, and of the machine's disk.
const IMAGE: u64 = 48 * MIB;
/// Bytes of the image that reach the machine in each part of the way.
const PART: u64 = 4 * MIB;
/// Password of the user of the database.
const PASSWORD: &str = "of the database";

/// The code blocks of a page of the manual below a heading, up to the next one of its level.
fn blocks(page: &str, heading: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to").join(page);
    let text = fs::read_to_string(path).unwrap();
    let level = &heading[..=heading.find(' ').unwrap()];
    let (mut blocks, mut open, mut is_there) = (Vec::new(), None::<String>, false);
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        match &mut open {
            Some(block) if is_fence => {
                blocks.push(std::mem::take(block));
                open = None;
            }
            Some(block) => block.extend([line, "\n"]),
            None if line == heading => is_there = true,
            None if is_there && line.starts_with(level) => break,
            None if is_there && is_fence => open = Some(String::new()),
            // Commands in lists are indented by eight.
            None if is_there && line.starts_with("        ") => blocks.push(format!("{}\n", line.trim_start())),
            None => {}
        }
    }
    assert!(is_there, "{page} has no {heading:?}");
    blocks
}

/// The code block with this text.
fn block(page: &str, heading: &str, with: &str) -> String {
    let found: Vec<String> = blocks(page, heading).into_iter().filter(|block| block.contains(with)).collect();
    let [block] = &found[..] else { panic!("{page}, {heading:?}: {} blocks have {with:?}", found.len()) };
    block.clone()
}

/// What leads machines to a server: `install.example` in the manual. It lets each part of the image through when it is
/// told to; everything else passes.
struct Network {
    /// Where the name leads to.
    address: Mutex<String>,
    passed: AtomicU64,
    allowed: watch::Sender<u64>,
}

impl Network {
    /// Returns the network, and the port of the name.
    async fn new() -> (Arc<Self>, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (address, passed) = (Mutex::default(), AtomicU64::default());
        let network = Arc::new(Self { address, passed, allowed: watch::Sender::new(0) });
        let all = Arc::clone(&network);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(Arc::clone(&all).forward(client));
            }
        });
        (network, port)
    }

    fn lead_to(&self, address: &str) {
        address.clone_into(&mut self.address.lock().unwrap());
    }

    async fn forward(self: Arc<Self>, client: TcpStream) {
        let address = self.address.lock().unwrap().clone();
        let Ok(server) = TcpStream::connect(address).await else { return };
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let up = tokio::io::copy(&mut from_client, &mut to_server);
        let down = async {
            let (mut buffer, mut of_this) = (vec![0; 64 << 10], 0);
            let mut allowed = self.allowed.subscribe();
            loop {
                let count = from_server.read(&mut buffer).await?;
                of_this += count as u64;
                // Only images are that long.
                if of_this > MIB / 2 {
                    let passed = self.passed.fetch_add(count as u64, Ordering::Relaxed);
                    drop(allowed.wait_for(|allowed| passed < *allowed).await);
                }
                if count == 0 {
                    return std::io::Result::Ok(());
                }
                to_client.write_all(&buffer[..count]).await?;
            }
        };
        tokio::select! {
            _ = up => {}
            _ = down => {}
        }
    }

    /// Lets the next part of the image through, and waits until it has passed.
    fn pass_a_part(&self) {
        let until_now = self.passed.load(Ordering::Relaxed);
        self.allowed.send_replace(until_now + PART);
        until("the machine goes on with the image", || self.passed.load(Ordering::Relaxed) >= until_now + PART);
    }
}

/// The hosts of the manual.
struct Site {
    folder: TempDir,
    network: Arc<Network>,
    replaced: Vec<(String, String)>,
    objects: ObjectStore,
    database: Server,
    database_port: u16,
}

impl Site {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        fs::create_dir(path("etc")).unwrap();
        let (network, port) = Network::new().await;
        let objects = ObjectStore::start().await;
        let endpoint = objects.url().split_once("endpoint=").unwrap().1.to_owned();
        let database_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings =
            ["listen_addresses=127.0.0.1".to_owned(), format!("port={database_port}"), "fsync=off".to_owned()];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let database = Server::start(&settings, |data| {
            let file = data.join("pg_hba.conf");
            let rules = fs::read_to_string(&file).unwrap();
            let rules = rules.lines().map(|line| match line.starts_with("host") {
                true => line.replace("trust", "scram-sha-256") + "\n",
                false => format!("{line}\n"),
            });
            fs::write(file, rules.collect::<String>()).unwrap();
        });
        let replaced = [
            // The tests' own user of the database has that name.
            ("createuser --pwprompt slipway", "createuser --pwprompt site".to_owned()),
            ("--owner slipway", "--owner site".to_owned()),
            ("postgres://slipway@db.example/slipway", format!("postgres://site@127.0.0.1:{database_port}/slipway")),
            ("db.example:5432:slipway:slipway:PASSWORD", format!("127.0.0.1:{database_port}:slipway:site:{PASSWORD}")),
            ("https://minio.example:9000", endpoint),
            ("s3://slipway-images/", "s3://images/site/".to_owned()),
            ("s3://slipway-images", "s3://images/site".to_owned()),
            ("AKIAIOSFODNN7EXAMPLE", KEY_ID.to_owned()),
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", SECRET.to_owned()),
            ("/etc/default/slipway-server", path("etc/default")),
            ("/etc/slipway/", path("etc/")),
            ("/var/lib/slipway", path("one")),
            ("install.example:8443", format!("localhost:{port}")),
            // All run as one user.
            ("runuser -u slipway -- \\\n", "\\\n".to_owned()),
            ("runuser -u slipway -- ", String::new()),
            ("chown slipway: ", "ls ".to_owned()),
        ];
        let replaced = replaced.map(|(from, to)| (from.to_owned(), to)).to_vec();
        Self { folder, network, replaced, objects, database, database_port }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn replace(&self, text: &str) -> String {
        self.replaced.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Writes a file as the manual shows it.
    fn write(&self, name: &str, content: &str) {
        let path = self.path("etc").join(name);
        fs::write(&path, self.replace(content)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A shell without a terminal, with what the shell of an operator has.
    fn shell(&self, host: &str, script: &str) -> Command {
        let mut shell = Command::new("setsid");
        shell.args(["--wait", "sh", "-euc", script]);
        self.with_environment(host, &mut shell);
        shell
    }

    fn with_environment(&self, host: &str, command: &mut Command) {
        let program = Path::new(env!("CARGO_BIN_EXE_slipway-server")).parent().unwrap();
        command.env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()));
        command.env("SLIPWAY_DATA", self.path(host));
        for name in ["SLIPWAY_LOG", "SLIPWAY_DATABASE", "JOURNAL_STREAM"] {
            command.env_remove(name);
        }
        command.env("PGHOST", self.database.socket().parent().unwrap()).env("PGUSER", "slipway");
        command.env("PGPORT", self.database_port.to_string()).env("AWS_DEFAULT_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    }

    /// Runs commands of the manual. Returns what they print.
    fn run(&self, host: &str, script: &str, input: &str) -> String {
        let script = self.replace(script);
        let mut shell = self.shell(host, &script);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a server as its unit does, with the settings in `/etc/default/slipway-server`.
    fn serve(&self, host: &str) -> Running {
        let boot = self.path(&format!("{host}-boot"));
        let options = format!("--listen 127.0.0.1:0 --boot-listen 127.0.0.1:0 --boot {}", boot.display());
        let script = format!("set -a; . /etc/default/slipway-server; set +a; exec slipway-server serve {options}");
        let mut command = Command::new("sh");
        command.args(["-euc", &self.replace(&script)]);
        self.with_environment(host, &mut command);
        Running::start(command, self.path(&format!("{host}.log")))
    }
}

/// The installer on a machine whose disk is a file.
fn install(site: &Site, ca: String) -> tokio::task::JoinHandle<End> {
    let facts = Facts {
        tpm: MachineTpm::at(TpmPlace { device: site.path("no-tpm"), event_log: None }),
        identity: Identity { uuid: Some(UUID.to_owned()), ..Identity::default() },
        look: Inventory::default,
        boot_id: "boot-1".to_owned(),
        kernel_to_init: None,
        leased_at: None,
    };
    let trust = vec![ca.clone()];
    let options = Options {
        facts,
        set_clock: false,
        state: site.path("machine"),
        previous_exit: None,
        log: LogBook::default(),
        machine: Arc::new(move |cancel| {
            Box::new(Host::new(HostOptions { trust: trust.clone(), cancel: cancel.clone(), ..HostOptions::default() }))
        }),
        disks_settled: watch::channel(true).1,
        screen: Screen::default(),
        once: true,
    };
    let config = Config::new(site.replace("https://install.example:8443").parse().unwrap(), ca);
    tokio::spawn(async move { slipway_installer::run(config, options).await.unwrap() })
}

/// nginx as the manual configures it. `None`, and a word about it, if a package is missing.
fn nginx(site: &Site, one: &Running, two: &Running) -> Option<(Ended, String)> {
    let module = Path::new("/usr/lib/nginx/modules/ngx_stream_module.so");
    if !module.exists() {
        eprintln!("not checked: the packages nginx-light and libnginx-mod-stream are missing");
        return None;
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let stream = block("replicas.md", "## Start the servers", "stream {");
    let stream = stream.replace("192.0.2.11:8443", &one.address).replace("192.0.2.12:8443", &two.address);
    let stream = stream.replace("listen 8443;", &format!("listen 127.0.0.1:{port};"));
    let folder = site.folder.path().display();
    let main = format!(
        "load_module {};\npid {folder}/nginx.pid;\ndaemon off;\nmaster_process off;\nevents {{}}\n",
        module.display()
    );
    fs::write(site.path("nginx.conf"), main + &stream).unwrap();
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-e", &format!("{folder}/nginx.log"), "-c", &format!("{folder}/nginx.conf")]);
    let child = Ended(command.spawn().unwrap());
    let address = format!("127.0.0.1:{port}");
    until("nginx listens", || std::net::TcpStream::connect(&address).is_ok());
    Some((child, address))
}

fn image() -> Vec<u8> {
    let mut image: Vec<u8> = (0..IMAGE as u32).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
    image[..512].fill(0);
    (image[510], image[511]) = (0x55, 0xAA);
    image
}

const WAY: &str = "## From one SQLite server to two";

#[tokio::test(flavor = "multi_thread")]
async fn a_site_goes_from_one_sqlite_server_to_two_and_loses_no_installation() {
    // The way begins with SQLite in any case.
    if postgres::is_asked() {
        return;
    }
    install_provider();
    let site = Site::new().await;
    tokio::task::block_in_place(|| go(&site));
}

fn go(site: &Site) {
    let settings = block("replicas.md", WAY, "SLIPWAY_DRAIN=");
    let only_url: String = settings.lines().filter(|line| line.starts_with("SLIPWAY_URL=")).collect();
    site.write("default", &only_url);
    let one = site.serve("one");
    site.network.lead_to(&one.address);
    let image = image();
    fs::write(site.path("disk.img"), &image).unwrap();
    fs::File::create(site.path("disk")).unwrap().set_len(IMAGE).unwrap();
    let add = format!("slipway-server image add {}", site.path("disk.img").display());
    let digest = site.run("one", &add, "").trim().to_owned();
    write_parts(&site.path("parts"), Arch::X86_64, 1);
    let parts = site.path("parts").display().to_string();
    site.run("one", &format!("slipway-server media build --parts {parts} --out /var/lib/slipway-boot"), "");
    let steps = json!({ "steps": [
        { "name": "write", "action": { "stream-image": {
            "url": site.replace(&format!("https://install.example:8443/images/{digest}")),
            "digest": digest, "disk": { "device": site.path("disk") } } } },
        { "name": "leave", "action": { "reboot": {} } },
    ]});
    fs::write(site.path("steps.yaml"), steps.to_string()).unwrap();
    site.run("one", &format!("slipway-server node add --name web1 --uuid {UUID} --release"), "");
    let start = format!("slipway-server run start --yes web1 --workflow {}", site.path("steps.yaml").display());
    let run = site.run("one", &start, "").trim().to_owned();
    let ca = site.run("one", "slipway-server ca", "");
    let installing = install(site, ca.clone());
    site.network.pass_a_part();

    // Prepare.
    let make = block("postgresql.md", "# Use PostgreSQL", "createuser");
    site.run("one", &make, &format!("{PASSWORD}\n{PASSWORD}\n"));
    site.write("pgpass", "db.example:5432:slipway:slipway:PASSWORD\n");
    site.run("one", &block("replicas.md", WAY, "psql"), "");
    site.write("objects", &block("objects.md", "# Keep images in an object store", "aws_secret_access_key"));
    site.run("one", &block("replicas.md", WAY, "site-key /etc"), "");
    site.run("one", &block("replicas.md", WAY, "chown"), "");
    site.write("default", &settings);
    site.network.pass_a_part();

    let sync = block("replicas.md", WAY, "s3 sync");
    if Command::new("aws").arg("--version").output().is_ok_and(|output| output.status.success()) {
        site.run("one", &sync, "");
    } else {
        eprintln!("not checked: there is no aws, which copies images into the bucket");
        let (from, to) = (site.path("one/images/sha256"), site.objects.root().join("images/site/images/sha256"));
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    // Move the first server.
    let moving = block("replicas.md", WAY, "database copy");
    let copying = moving.strip_prefix("systemctl stop slipway-server\n").unwrap();
    let copying = copying.strip_suffix("systemctl start slipway-server\n").unwrap();
    one.stop();
    let said = site.run("one", copying, "");
    assert!(said.contains("rows of ") && said.contains("tables are copied"), "{said}");
    let one = site.serve("one");
    site.network.lead_to(&one.address);
    let looking = block("replicas.md", WAY, "database check");
    let at = |server: &str, port: &str, text: &str| {
        let resolved = text.replace(&format!("install.example:8443:{server}"), &format!("localhost:{port}:127.0.0.1"));
        resolved.replace("https://install.example:8443/", &format!("https://localhost:{port}/"))
    };
    let said = site.run("one", &at("192.0.2.11", one.port(), &looking), "");
    for expect in ["no problems were found in postgres://", &digest[..20], r#"{"problems":[],"ready":true}"#] {
        assert!(said.contains(expect), "{expect}: {said}");
    }
    assert!(!said.contains("missing"), "{said}");
    site.network.pass_a_part();

    // The second server has no more than the files in /etc.
    let two = site.serve("two");
    let listing = block("replicas.md", WAY, "enable --now");
    let listing = listing.strip_prefix("systemctl enable --now slipway-server\n").unwrap();
    let with_settings = "set -a; . /etc/default/slipway-server; set +a\n";
    let said = site.run("two", &format!("{with_settings}{listing}"), "");
    assert_eq!(said.lines().count(), 3, "{said}");
    site.network.pass_a_part();

    // It fetches the boot files.
    let publishing = block("replicas.md", WAY, "media publish");
    site.run("one", &format!("{with_settings}{publishing}"), "");
    let kernel = |host: &str| fs::read(site.path(&format!("{host}-boot/x86_64/vmlinuz")));
    until("the second server has the boot files", || kernel("two").is_ok_and(|two| two == kernel("one").unwrap()));

    // Move the address, and stop the server that has the machine's connections.
    let balancer = nginx(site, &one, &two);
    let address = balancer.as_ref().map_or(&two.address, |(_, address)| address).clone();
    let trying = blocks("replicas.md", WAY).into_iter().find(|block| block.contains("192.0.2.10")).unwrap();
    let said = site.run("one", &at("192.0.2.10", address.rsplit_once(':').unwrap().1, &trying), "");
    assert!(said.contains(r#""ready":true"#), "{said}");
    site.network.lead_to(&address);
    one.stop();
    site.network.pass_a_part();
    let one = site.serve("one");
    site.network.allowed.send_replace(u64::MAX);
    let ended = tokio::runtime::Handle::current().block_on(tokio::time::timeout(Duration::from_secs(240), installing));
    assert_eq!(ended.expect("the installation ends").unwrap(), End::Reboot);

    assert!(fs::read(site.path("disk")).unwrap() == image);
    let token = fs::read_to_string(site.path("one/operator-token")).unwrap();
    let ca_file = site.path("one/ca.pem").display().to_string();
    let url = format!("https://localhost:{}/v1/operator/runs/{run}/events", two.port());
    let ask = format!("curl --silent --fail --cacert {ca_file} --oauth2-bearer {} {url}", token.trim());
    let mut events: Vec<Value> = serde_json::from_str(&site.run("two", &ask, "")).unwrap();
    events.iter_mut().for_each(|event| drop(event.as_object_mut().unwrap().remove("at_rfc3339")));
    let events: Vec<Event> = serde_json::from_value(Value::Array(events)).unwrap();
    assert!(events.is_sorted_by(|one, next| one.seq < next.seq), "{events:?}");
    let ends = events.iter().filter_map(|event| match &event.kind {
        EventKind::Started => Some((event.step, event.attempt, "started")),
        EventKind::Succeeded(_) => Some((event.step, event.attempt, "succeeded")),
        EventKind::Note(_) | EventKind::Progress(_) => None,
        other => panic!("{other:?}"),
    });
    let expect = [(0, 1, "started"), (0, 1, "succeeded"), (1, 1, "started"), (1, 1, "succeeded")];
    assert_eq!(ends.collect::<Vec<_>>(), expect, "{events:?}");
    let resumed = |event: &&Event| matches!(&event.kind, EventKind::Note(note) if note.contains("again from byte"));
    assert!(events.iter().filter(resumed).count() >= 2, "the image broke off at each stop: {events:?}");
    let status = site.run("two", &format!("{with_settings}slipway-server status --json web1"), "");
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["run"]["state"], json!(RunState::Succeeded), "{status}");
    for (step, name) in status["run"]["steps"].as_array().unwrap().iter().zip(["write", "leave"]) {
        assert_eq!((&step["name"], &step["state"], &step["attempt"]), (&json!(name), &json!("succeeded"), &json!(1)));
    }
    // The old database is out of use, and the bucket alone has the image for the second server.
    let mut old = site.shell("one", "slipway-server status");
    let refused = old.output().unwrap();
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("were copied to postgres://")
    );
    assert!(!site.path("two/images/sha256").join(digest.trim_start_matches("sha256:")).exists());
    one.stop();
    two.stop();
}
