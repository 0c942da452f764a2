//! What strangers submit neither forges lines of the log nor reaches an operator's terminal as it is.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use reqwest::{Client, StatusCode};
use slipway_protocol::{EnrolRequest, ErrorBody, Identity, Inventory, NodeStatus, Tpm};

use crate::program::{Ended, command, name_database, succeed};
use crate::support::{Machine, UUID, trusting};

/// A title for the terminal's window, a clear screen by a single C1 character, a second line, and text that is shown
/// from right to left.
const HOSTILE: &str = "7CZ\u{1b}]0;owned\u{7}\u{9b}2J\nFORGED line\u{202e}x\u{e0041}";
const SHOWN: &str = "7CZ\\u{1b}]0;owned\\u{7}\\u{9b}2J\\nFORGED line\\u{202e}x\\u{e0041}";

/// The program as a server with its log in a file.
pub struct Logged {
    pub https: String,
    pub boot: String,
    /// The port for metrics, if there is one.
    pub metrics: Option<String>,
    pub client: Client,
    pub program: Ended,
}

pub fn logged(data: &Path, log: &Path, options: &[&str]) -> Logged {
    let listen = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot-listen", "127.0.0.1:0"];
    let mut program = command(data, &[&listen, options].concat());
    program.env_remove("JOURNAL_STREAM").stderr(File::create(log).unwrap()).stdout(Stdio::piped());
    started(data, program)
}

pub fn started(data: &Path, mut program: Command) -> Logged {
    Logged::of(data, Ended(program.spawn().unwrap()))
}

impl Logged {
    /// Waits until a server listens.
    pub fn of(data: &Path, mut program: Ended) -> Self {
        let mut line = String::new();
        BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        let address = |name: &str| ready[name].as_str().unwrap().to_owned();
        // A connection that a client keeps for later may be closed by the server in the moment in which it is used
        // again: one on which nothing was asked, after 10 s, which is as long as the server waits for a database.
        let client = trusting(&std::fs::read_to_string(data.join("ca.pem")).unwrap()).pool_max_idle_per_host(0);
        Self {
            https: format!("https://{}", address("https")),
            boot: format!("http://{}", address("boot")),
            metrics: ready["metrics"].as_str().map(|metrics| format!("http://{metrics}")),
            client: client.build().unwrap(),
            program,
        }
    }

    async fn post(&self, path: &str, body: &str) -> ErrorBody {
        let request = self.client.post(format!("{}{path}", self.https)).body(body.to_owned());
        let answer = request.header("content-type", "application/json").send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
        answer.json().await.unwrap()
    }
}

/// Sends what would forge lines, to both ports.
async fn forge(server: &Logged) {
    // As a key, as a variant, as a value, and as an object's key where a text belongs.
    for body in [
        r#"{"\nFORGED line SUBMITTED": 1}"#,
        r#"{"identity": {"macs": "\nFORGED line SUBMITTED"}}"#,
        r#"{"identity": {"\nFORGED line SUBMITTED": 1}}"#,
        r#"{"identity": {"\u001b[2J SUBMITTED, expected FORGED": 1}}"#,
    ] {
        let refusal = server.post("/v1/enrol", body).await;
        let text = serde_json::to_string(&refusal).unwrap();
        assert!(text.contains("line 1") && !text.contains("SUBMITTED") && !text.contains("FORGED"), "{text}");
    }
    // The operator registered this machine with another serial number.
    let query = format!("/boot/ipxe?arch=x86_64&uuid={UUID}&serial=x%0AFORGED%20line%1b[2J");
    for path in [&query, "/boot/%0AFORGED%20SUBMITTED", "/boot/%ff%0AFORGED", "/boot/ipxe?uuid=1&uuid=%0AFORGED"] {
        for url in [&server.https, &server.boot] {
            let answer = server.client.get(format!("{url}{path}")).send().await.unwrap();
            let text = answer.text().await.unwrap();
            assert!(!text.contains("SUBMITTED") && !text.contains("FORGED"), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn the_log_says_why_a_machine_was_let_in_without_its_tpm() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &[]);
    succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID, "--release"]);
    let machine = Machine::with_uuid(UUID);
    let request = EnrolRequest {
        identity: machine.identity.clone(),
        inventory: Inventory::default(),
        csr: machine.csr(),
        agent_version: "1".to_owned(),
        boot_id: "b".to_owned(),
        bootstrap_token: None,
        tpm: Some(Tpm::Broken { reason: HOSTILE.to_owned() }),
        timing: None,
    };
    let answer = server.client.post(format!("{}/v1/enrol", server.https)).json(&request).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let log = std::fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains("without the TPM")).expect(&log);
    assert!(line.contains("WARN") && line.contains("web1") && !line.contains(HOSTILE), "{line}");
    assert!(line.contains("FORGED line"), "{line}");
}

#[tokio::test]
async fn strangers_forge_no_line_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &[]);
    succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID, "--serial", "7CZ1"]);
    forge(&server).await;
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.lines().count() > 4, "{log}");
    for line in log.lines() {
        assert!(line.starts_with("20") && !line.contains(char::is_control), "{line:?} of\n{log}");
    }
    assert!(!log.contains("SUBMITTED"), "{log}");
}

#[tokio::test]
async fn a_log_in_json_has_an_object_on_each_line() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &["--log-format", "json"]);
    succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID, "--serial", "7CZ1"]);
    forge(&server).await;
    let log = std::fs::read_to_string(log).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect(line));
    let refused: Vec<_> = lines.filter(|line| line["fields"]["message"] == "request refused").collect();
    assert_eq!(refused[0]["fields"]["code"], "invalid-request", "{log}");
    assert_eq!(refused[0]["level"], "INFO");
    assert!(!log.contains("SUBMITTED") && !log.contains(|c: char| c.is_control() && c != '\n'), "{log}");
}

#[tokio::test]
async fn what_a_machine_calls_itself_does_not_reach_the_terminal_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let server = logged(&data, &log, &[]);
    let identity = Identity { serial: Some(HOSTILE.to_owned()), ..Identity::default() };
    let mut inventory = Inventory::default();
    inventory.system.vendor = Some(HOSTILE.to_owned());
    let machine = Machine::new(identity.clone());
    let request = EnrolRequest {
        identity,
        inventory,
        csr: machine.csr(),
        agent_version: HOSTILE.to_owned(),
        boot_id: machine.boot_id.clone(),
        bootstrap_token: None,
        tpm: None,
        timing: None,
    };
    let answer = server.client.post(format!("{}/v1/enrol", server.https)).json(&request).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let code = answer.json::<serde_json::Value>().await.unwrap()["claim_code"].as_str().unwrap().to_owned();

    let list = succeed(&data, &["node", "list"]);
    assert!(list.contains(SHOWN) && list.lines().count() == 2, "{list:?}");
    let check = |commands: &[&[&str]]| {
        for arguments in commands {
            let text = succeed(&data, arguments);
            let harmful =
                |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c) || c > '\u{dffff}';
            assert!(!text.contains(harmful) && !text.contains("\nFORGED"), "{arguments:?}: {text:?}");
        }
    };
    check(&[
        &["status"],
        &["status", &code],
        &["status", "--json"],
        &["node", "show", &code],
        &["node", "list", "--json"],
        &["node", "release", &code],
        &["status"],
        &["node", "list"],
    ]);
    // Programs that read JSON get what the machine sent.
    let node: NodeStatus = serde_json::from_str(&succeed(&data, &["status", "--json"])).unwrap();
    assert_eq!(node.identity.serial.as_deref(), Some(HOSTILE));
    check(&[&["status", &node.id], &["node", "show", &node.id], &["node", "log", &node.id]]);
}

/// A journal that stands in for the system's: the socket is where journald has it, in mounts of its own.
#[tokio::test]
async fn the_journal_gets_the_fields_natively() {
    let folder = tempfile::tempdir().unwrap();
    let (data, log) = (folder.path().join("data"), folder.path().join("log"));
    let journal = UnixDatagram::bind(folder.path().join("socket")).unwrap();
    journal.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$1\" \
                  /run/systemd/journal && shift && exec \"$@\"";
    let unshared = |arguments: &[&OsStr]| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(folder.path()).args(arguments);
        command
    };
    if !unshared(&["true".as_ref()]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("not checked: mounts of one's own are not allowed");
        return;
    }
    let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot-listen", "127.0.0.1:0"];
    let serve = command(&data, &serve);
    let arguments: Vec<&OsStr> = std::iter::once(serve.get_program()).chain(serve.get_args()).collect();
    let (stderr, mut program) = (File::create(&log).unwrap(), unshared(&arguments));
    let stream = stderr.metadata().map(|file| format!("{}:{}", file.dev(), file.ino())).unwrap();
    program.env_remove("SLIPWAY_LOG").env("JOURNAL_STREAM", stream).stderr(stderr).stdout(Stdio::piped());
    name_database(&mut program, &data);
    let server = started(&data, program);
    server.post("/v1/enrol", r#"{"\nFORGED": 1}"#).await;

    let mut entry = vec![0; 65536];
    let refused = loop {
        let length = journal.recv(&mut entry).unwrap();
        let entry = String::from_utf8_lossy(&entry[..length]).into_owned();
        if entry.contains("request refused") {
            break entry;
        }
    };
    // A field of one line, or of any bytes: name, line break, length in 8 bytes, value (systemd.io, native protocol).
    assert!(refused.contains("SLIPWAY_CODE") && refused.contains("invalid-request"), "{refused:?}");
    assert!(refused.contains("SLIPWAY_REASON") && refused.contains("a field is not known"), "{refused:?}");
    assert!(refused.contains("PRIORITY=6\n") || refused.contains("PRIORITY\n"), "{refused:?}");
    assert!(!refused.contains("FORGED"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(log).unwrap(), "", "nothing is logged twice");
}

#[test]
fn what_cannot_be_printed_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    crate::program::made(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    for arguments in [&["status"] as &[&str], &["status", "--json"], &["node", "list"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = command(data, arguments).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expect = "slipway-server: writing to standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), &*said), (Some(1), expect), "{arguments:?}");
    }
}
