//! `serve` and the data folder: who creates and locks it, and what a failed start leaves behind.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use slipway_server::store::{Store, settings};

use crate::program::{Ended, command, fail, made, serve, succeed};
use crate::support::UUID;

#[test]
fn the_server_says_where_it_listens_and_stops_when_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, ready) = serve(folder.path());
    assert!(ready["https"].as_str().unwrap().starts_with("127.0.0.1:"), "{ready}");
    assert!(ready["boot"].is_null(), "{ready}");
    let kill = Command::new("kill").arg(server.0.id().to_string()).status().unwrap();
    assert!(kill.success());
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn who_only_looks_whether_the_server_is_there_is_not_logged() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let mut child = command(folder.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let _server = Ended(child);
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    // Sends only this, and waits until the server hangs up.
    let connect = |text: &str| {
        let mut connection = TcpStream::connect(ready["https"].as_str().unwrap()).unwrap();
        connection.write_all(text.as_bytes()).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        // The response does not matter, and neither does the way the server hangs up.
        let _ = connection.read_to_end(&mut Vec::new());
        connection.local_addr().unwrap()
    };
    connect("");
    let without_tls = connect("GET / HTTP/1.0\r\n\r\n");
    let mut lines = BufReader::new(stderr).lines().map(|line| line.unwrap());
    let logged = lines.find(|line| line.contains("TLS handshake")).unwrap();
    assert!(logged.contains(&without_tls.to_string()), "{logged}");
}

/// What a start of the server changes for its users.
fn settings(data: &Path) -> (Vec<u8>, Option<String>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let url = runtime.block_on(async {
        let store = Store::open(&data.join("slipway.db")).await.unwrap();
        settings::read(&mut store.read().await.unwrap(), settings::SERVER_URL).await.unwrap()
    });
    (std::fs::read(data.join("server.pem")).unwrap(), url)
}

#[test]
fn a_start_that_fails_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    made(data);
    let before = settings(data);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = &other.local_addr().unwrap().to_string();
    let (file, free) = (file.to_str().unwrap(), "127.0.0.1:0");
    let table: [(&str, &[&str], String); 6] = [
        (
            free,
            &["--ek-ca", file],
            format!(
                "reading the certificates of TPM manufacturers in {file:?}: it has no certificate in PEM (-----BEGIN \
                 CERTIFICATE-----)"
            ),
        ),
        (address, &[], format!("listening on {address}: ")),
        (free, &["--boot-listen", address], format!("listening on {address}: ")),
        (free, &["--boot", "/proc/none"], "creating the boot folder \"/proc/none\": ".to_owned()),
        (free, &["--boot", file], format!("opening the boot folder {file:?}: not a directory")),
        (
            free,
            &["--san", "a b"],
            "\"a b\" is neither a host name nor an IP address; correct --url or --san".to_owned(),
        ),
    ];
    for (listen, further, expect) in table {
        let arguments = [&["serve", "--url", "https://other.test", "--listen", listen], further].concat();
        let message = fail(data, &arguments);
        assert!(message.starts_with(&format!("slipway-server: {expect}")), "{message}");
        assert!(settings(data) == before, "{further:?}");
    }
}

#[test]
fn images_on_a_file_system_that_is_not_mounted_are_missed() {
    let folder = tempfile::tempdir().unwrap();
    let (data, images) = (folder.path().join("data"), folder.path().join("disk/images"));
    made(&data);
    std::fs::remove_dir_all(data.join("images")).unwrap();
    std::os::unix::fs::symlink(&images, data.join("images")).unwrap();
    let link = data.join("images");
    let expect = format!(
        "slipway-server: {link:?} is a link to {images:?}, which is missing: mount the file system that has it, or \
         correct the link"
    );
    assert_eq!(fail(&data, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]), expect);
    std::fs::create_dir_all(&images).unwrap();
    made(&data);
}

#[test]
fn a_boot_folder_that_is_missing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let (data, boot) = (folder.path().join("data"), folder.path().join("srv/boot"));
    let serve = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0", "--boot", boot.to_str().unwrap()];
    drop(crate::program::started(command(&data, &serve)));
    for made in [&*boot, boot.parent().unwrap()] {
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o755, "{made:?}");
    }
}

#[test]
fn status_says_that_no_server_runs_and_blames_no_machine() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let (server, _) = serve(data);
    succeed(data, &["node", "add", "--name", "web1", "--uuid", crate::support::UUID]);
    assert!(!succeed(data, &["status"]).contains("been running"));
    drop(server);
    let earlier = SystemTime::now() - Duration::from_secs(200);
    File::options().write(true).open(data.join("serve.lock")).unwrap().set_modified(earlier).unwrap();
    for arguments in [&["status"] as &[&str], &["status", "web1"]] {
        let status = succeed(data, arguments);
        assert!(status.starts_with("The server has not been running for 3 min 2"), "{status}");
    }
}

#[test]
fn another_user_is_told_whose_data_it_is() {
    if !rustix::process::geteuid().is_root() {
        println!("not checked: needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    made(&data);
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("slipway-server");
    std::fs::copy(env!("CARGO_BIN_EXE_slipway-server"), &program).unwrap();
    for arguments in [&["status"] as &[&str], &["node", "list"], &["backup", "/tmp/x"], &["ca", "show"]] {
        let mut command = Command::new(&program);
        let output = command.arg("--data").arg(&data).args(arguments).uid(65534).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expect = format!("only its owner may use {data:?}: run this as root");
        assert!(said.contains(&expect), "{arguments:?}: {said}");
    }
}

#[test]
fn a_second_server_on_a_folder_is_refused_before_it_changes_anything() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let (server, ready) = serve(data);
    let before = settings(data);
    for listen in ["127.0.0.1:0", ready["https"].as_str().unwrap()] {
        let message = fail(data, &["serve", "--url", "https://other.test", "--listen", listen]);
        let process = server.0.id();
        let expect = format!("slipway-server: another server already runs on {data:?} (process {process}, since 20");
        assert!(message.starts_with(&expect), "{message}");
        let rest = " UTC, https://server.test): stop it first, or use another folder with --data";
        assert!(message.ends_with(rest), "{message}");
        assert!(settings(data) == before, "{listen}");
    }
    succeed(data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    // The server is killed. The content of its lock file stays.
    drop(server);
    drop(serve(data));
}

#[test]
fn what_is_made_in_the_data_folder_is_its_owners_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    std::fs::set_permissions(data, Permissions::from_mode(0o755)).unwrap();
    let _server = serve(data);
    let files = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap());
    let open = files.filter(|file| file.metadata().unwrap().permissions().mode() & 0o077 != 0);
    assert_eq!(open.map(|file| file.file_name()).collect::<Vec<_>>(), [""; 0]);
    assert!(data.join("slipway.db-wal").exists(), "the database is in use");
}

#[test]
fn what_root_adds_belongs_to_the_owner_of_the_folder() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not checked: only root can give files away");
        return;
    }
    const OWNER: u32 = 54_321;
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    made(&data);
    fn all(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.clone());
            if path.is_dir() {
                all(&path, found);
            }
        }
    }
    let files = || {
        let mut found = vec![data.clone()];
        all(&data, &mut found);
        found
    };
    files().iter().for_each(|file| chown(file, Some(OWNER), Some(OWNER)).unwrap());
    std::fs::remove_dir_all(data.join("images")).unwrap();
    let image = folder.path().join("disk.raw");
    std::fs::write(&image, vec![0xAA; 1 << 20]).unwrap();
    succeed(&data, &["image", "add", image.to_str().unwrap()]);
    succeed(&data, &["node", "add", "--name", "web1", "--uuid", UUID]);
    for file in files() {
        assert_eq!(std::fs::metadata(&file).unwrap().uid(), OWNER, "{file:?}");
    }
}

#[test]
fn only_a_server_makes_a_data_folder() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("notes"), "").unwrap();
    let commands: [&[&str]; 4] =
        [&["status"], &["ca"], &["operator-token"], &["node", "add", "--name", "web1", "--uuid", UUID]];
    for data in [&missing, &foreign] {
        let expect = format!(
            "slipway-server: there is no slipway data in {data:?}: `slipway-server serve` creates it; \
             to use another folder, give --data or SLIPWAY_DATA"
        );
        for arguments in commands {
            assert_eq!(fail(data, arguments), expect, "{arguments:?}");
        }
    }
    let expect = format!(
        "slipway-server: {foreign:?} is not a slipway data folder: it has other files, such as \"notes\"; \
         give a new or empty folder with --data or SLIPWAY_DATA"
    );
    assert_eq!(fail(&foreign, &["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"]), expect);
    let file = foreign.join("notes");
    assert_eq!(
        fail(&file, &["status"]),
        format!("slipway-server: opening the data folder {file:?}: Not a directory (os error 20)")
    );
    let names = |folder: &Path| -> Vec<_> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!((names(folder.path()), names(&foreign)), (vec!["foreign".into()], vec!["notes".into()]));

    // The content of a folder that is a file system of its own, with another one mounted in it.
    std::fs::create_dir_all(missing.join("lost+found")).unwrap();
    std::fs::create_dir(missing.join("images")).unwrap();
    made(&missing);
    succeed(&missing, &["status"]);
}

#[test]
fn of_servers_that_start_at_once_on_an_empty_folder_one_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = &folder.path().join("data");
    let arguments = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let start = || command(data, &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map(Ended).unwrap();
    let mut servers: Vec<Ended> = (0..8).map(|_| start()).collect();
    let mut runs = |server: &mut Ended| {
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        line.contains("https")
    };
    assert_eq!(servers.iter_mut().map(&mut runs).filter(|runs| *runs).count(), 1);
}

#[test]
fn commands_that_start_at_once_on_an_empty_database_agree() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    File::create(data.join("slipway.db")).unwrap();
    let start = || command(data, &["node", "list"]).stdout(Stdio::null()).spawn().unwrap();
    let programs: Vec<Child> = (0..8).map(|_| start()).collect();
    let succeeded = programs.into_iter().map(|mut program| program.wait().unwrap().success());
    assert_eq!(succeeded.filter(|success| *success).count(), 8);
}

/// If several processes open an empty database at once, SQLite may refuse one: it does not wait while another changes
/// the journal mode.
#[test]
fn a_program_opens_no_database_while_another_holds_the_lock() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let lock = File::create(data.join("slipway.lock")).unwrap();
    lock.lock().unwrap();
    let arguments = ["serve", "--url", "https://server.test", "--listen", "127.0.0.1:0"];
    let mut program = Ended(command(data, &arguments).stdout(Stdio::piped()).spawn().unwrap());
    // /proc/locks marks a waiting process with an arrow (proc_locks(5)).
    let id = program.0.id().to_string();
    let waits = |line: &str| line.contains("->") && line.split(' ').any(|word| word == id);
    while !std::fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        assert_eq!(program.0.try_wait().unwrap(), None, "it waits");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!data.join("slipway.db").exists());
    drop(lock);
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("https"), "{line}");
    assert!(data.join("slipway.db").exists());
}
