//! `slipway action stream-image`: what it writes, prints and asks, and its exit status.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../../actions/tests/common"]
#[allow(dead_code, reason = "shared with the tests of the actions")]
mod common {
    pub const MIB: usize = 1 << 20;
    pub mod disk_image;
    pub mod tls;

    pub trait Stream {
        fn end(&mut self) {}
    }
}

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::disk_image::{claim_entries, run};
use common::tls::{Acceptor, Authority, authority};
use common::{MIB, Stream};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tempfile::TempDir;

/// Size of the image in bytes: not a multiple of any block size, and more than all buffers hold.
const IMAGE: usize = 33 * MIB + 517;
const DISK: usize = 40 * MIB;
/// The label of the file system on the disk, and the description of the disk's content on a terminal.
const LABEL: &str = "sys\u{1b}[2J";
const ON_IT: &str = concat!(
    "on it: a GPT with 2 partitions\n",
    "      1       16 MiB  ext4         \"sys\\u{1b}[2J\"\n",
    "      2        8 MiB  -\n",
);

/// A disk with an old system, in a folder with images.
struct Bench {
    dir: TempDir,
    before: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        // Preferably not on a tmpfs, which may refuse direct writes.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let disk = dir.path().join("disk");
        File::create(&disk).unwrap().set_len(DISK as u64).unwrap();
        run(Command::new("sgdisk").args(["--new=1:2048:34815", "--new=2:34816:51199"]).arg(&disk));
        let mut mkfs = Command::new("mkfs.ext4");
        run(mkfs.args(["-q", "-F", "-b", "1024", "-L", LABEL, "-E", "offset=1048576"]).arg(&disk).arg("16384"));
        let before = fs::read(disk).unwrap();
        Self { dir, before }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().canonicalize().unwrap().join(name).to_str().unwrap().to_owned()
    }

    /// Puts a file beside the disk, and returns its path.
    fn file(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn disk(&self) -> Vec<u8> {
        fs::read(self.path("disk")).unwrap()
    }

    /// Returns a command that runs the action on this disk, without a terminal.
    fn action(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipway"));
        command.arg("action").args(arguments).args(["--disk", &self.path("disk")]).stdin(Stdio::null());
        command.env_remove("SLIPWAY_LOG");
        command
    }

    fn stream(&self, arguments: &[&str]) -> Output {
        self.action(&[&["stream-image"][..], arguments].concat()).output().unwrap()
    }

    /// Runs the action on a terminal where the user types `answer`.
    fn answered(&self, answer: &str, arguments: &[&str]) -> Output {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let path = PathBuf::from(ptsname(&master, Vec::new()).unwrap().into_string().unwrap());
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let mut keyboard = File::from(master);
        keyboard.write_all(answer.as_bytes()).unwrap();
        self.action(&[&["stream-image"][..], arguments].concat()).stdin(Stdio::from(terminal)).output().unwrap()
    }

    #[track_caller]
    fn check_untouched(&self) {
        assert!(self.disk() == self.before, "the disk is as it was");
    }

    #[track_caller]
    fn check_does_not_boot(&self) {
        let disk = self.disk();
        let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        assert!(is_empty(&disk[..MIB]) && is_empty(&disk[DISK - MIB..]), "head and tail of the disk are zero");
    }
}

/// Makes data that is not an image of any format and has no partition table.
fn image() -> Vec<u8> {
    let words = (1..).map(|n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) & 0xFFFF_FF0F_0F0F_0F0F);
    let mut bytes: Vec<u8> = words.take(IMAGE / 8 + 1).flat_map(u64::to_le_bytes).collect();
    bytes.truncate(IMAGE);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn sha256(path: &str) -> String {
    run(Command::new("sha256sum").arg(path)).split(' ').next().unwrap().to_owned()
}

/// Serves the first `until` bytes of a file at /image over TLS, then stalls if that is not the whole file. Returns the
/// base URL.
fn serve(issuer: &Authority, body: Vec<u8>, until: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let tls = Acceptor::new(issuer);
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for connection in listener.incoming() {
            let mut stream = tls.accept(connection.unwrap());
            let head = BufReader::new(&mut stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
            let Some(request) = head.collect::<Vec<String>>().into_iter().next() else { continue };
            let (status, body, until) = match request.starts_with("GET /image ") {
                true => ("200 OK", body.as_slice(), until),
                false => ("404 Not Found", &[][..], 0),
            };
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
            // The client may hang up at any time.
            drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..until])));
            drop(stream.flush());
            match until < body.len() {
                true => silent.push(stream),
                false => stream.end(),
            }
        }
    });
    url
}

/// Parses the JSON output. Every line is an object with one key.
fn told(output: &Output) -> Vec<(String, Value)> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().map(|line| match serde_json::from_str(line).unwrap() {
        Value::Object(object) if object.len() == 1 => object.into_iter().next().unwrap(),
        other => panic!("{other}"),
    });
    lines.collect()
}

/// Checks that the action failed and reported it once, at the end, as JSON. Returns the reason with its causes.
#[track_caller]
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let mut told = told(output);
    let (key, failure) = told.pop().unwrap();
    assert_eq!(key, "failed");
    assert!(told.iter().all(|(key, _)| key == "note" || key == "progress"), "{told:?}");
    let causes: Vec<&str> = failure["causes"].as_array().unwrap().iter().map(|cause| cause.as_str().unwrap()).collect();
    [&[failure["reason"].as_str().unwrap()][..], &causes].concat().join(": ")
}

#[test]
fn what_matches_is_written_and_told() {
    let (bench, authority, raw) = (Bench::new(), authority(), image());
    let stream = gzip(&raw);
    let url = serve(&authority, stream.clone(), stream.len());
    let ca = bench.file("ca.pem", authority.pem().as_bytes());
    let [digest, raw_digest] =
        [("stream", &stream), ("raw", &raw)].map(|(name, bytes)| sha256(&bench.file(name, bytes)));
    let (missing, mirror) = (format!("{url}/missing"), format!("{url}/image"));
    let source =
        ["--url", &missing, "--mirror", &mirror, "--ca", &ca, "--sha256", &digest, "--raw-sha256", &raw_digest];
    let output = bench.stream(&[&source[..], &["--verify", "readback", "--yes", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(bench.disk()[..IMAGE] == raw, "the image is on the disk");
    let mut told = told(&output);
    let (key, outcome) = told.pop().unwrap();
    assert!(key == "succeeded" && outcome["summary"].as_str().unwrap().starts_with("wrote 33 MiB to "), "{outcome}");
    assert!(told[0].0 == "note" && told[0].1.as_str().unwrap().starts_with("chose "), "{told:?}");
    let (key, last) = told.last().unwrap();
    let fetched = stream.len();
    let counts = ["bytes", "fetched", "fetch_total", "seconds_left"].map(|key| last[key].as_u64());
    let expect = [IMAGE, fetched, fetched, 0].map(|count| Some(count as u64));
    assert!(key == "progress" && counts == expect && last["waiting_for"].is_string(), "{key}: {last}");
}

#[test]
fn a_file_is_written_for_people_with_a_warning_where_nothing_was_checked() {
    let bench = Bench::new();
    let raw = image();
    let output = bench.stream(&["--url", &bench.file("raw", &raw), "--yes"]);
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(bench.disk()[..IMAGE] == raw, "the image is on the disk");
    assert!(stdout.starts_with("wrote 33 MiB to ") && stdout.lines().count() == 1, "{stdout}");
    assert!(stderr.ends_with("warning: the image was written without a digest to check it against\n"), "{stderr}");
}

#[test]
fn what_does_not_match_leaves_a_disk_that_does_not_boot() {
    let wrong = "0".repeat(64);
    for (option, expect) in
        [("--sha256", "checking the digest of "), ("--raw-sha256", "checking the digest of the raw image")]
    {
        let bench = Bench::new();
        let stream = bench.file("stream", &gzip(&image()));
        let source = ["--url", &stream, option, &wrong, "--yes"];
        let output = bench.stream(&[&source[..], &["--json"]].concat());
        let reason = failure(&output);
        let found = reason.split_once(&format!(": expected sha256:{wrong}, got sha256:"));
        assert!(found.is_some_and(|(what, _)| what.starts_with(expect)), "{reason}");
        assert!(output.stderr.is_empty(), "{output:?}");
        bench.check_does_not_boot();

        let output = bench.stream(&source);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "{said}");
        assert!(said.contains("has no partition table now and will not boot\n"), "{said}");
        assert_eq!(said.lines().last().unwrap(), format!("slipway: {reason}"));
        bench.check_does_not_boot();
    }
}

#[test]
fn a_failure_before_the_first_write_leaves_the_disk_as_it_was() {
    let bench = Bench::new();
    let url = serve(&authority(), image(), IMAGE) + "/image";
    let (image, missing) = (bench.file("raw", &image()), bench.path("nothing"));
    for (arguments, expect) in [
        (["--url", &missing, "--verify", "readback"], "No such file"),
        (["--url", &url, "--verify", "none"], "fetching https://127.0.0.1:"),
        (["--url", &url, "--ca", &missing], "No such file"),
        (["--url", &image, "--raw-size", "41943041"], "41943041"),
        (["--url", &image, "--sha256", "12"], "reading --sha256"),
        (["--url", &image, "--bmap", &image], "raw"),
    ] {
        let reason = failure(&bench.stream(&[&arguments[..], &["--yes", "--json"]].concat()));
        assert!(reason.contains(expect), "{reason}");
        bench.check_untouched();
    }
}

#[test]
fn without_yes_what_is_on_the_disk_is_shown_and_kept_until_somebody_agrees() {
    let bench = Bench::new();
    let raw = image();
    let source = ["--url", &bench.file("raw", &raw)];
    let shown = format!("{}: 40 MiB, model unknown, serial unknown\n{ON_IT}", bench.path("disk"));
    // Without a terminal: first with output for people, then with JSON.
    let output = bench.stream(&source);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "{said}");
    let complaint = said.strip_prefix(&shown).unwrap_or_else(|| panic!("{said}"));
    assert!(complaint.contains("standard input is not a terminal; give --yes"), "{complaint}");
    bench.check_untouched();
    let reason = failure(&bench.stream(&[&source[..], &["--json"]].concat()));
    assert!(reason.contains("give --yes"), "{reason}");
    bench.check_untouched();

    let asked = format!("{shown}everything on {} will be lost; type \"yes\" to continue: ", bench.path("disk"));
    // The last answer is Ctrl-D, the end of the input.
    for answer in ["no\n", "\n", "YES\n", "yes no\n", "\u{4}"] {
        let output = bench.answered(answer, &source);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout), (Some(1), Vec::new()), "{answer:?}: {said}");
        assert_eq!(said, format!("{asked}slipway: {} was not changed\n", bench.path("disk")));
        bench.check_untouched();
    }
    let output = bench.answered("yes\n", &source);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(bench.disk()[..IMAGE] == raw, "the image is on the disk");
}

#[test]
fn a_disk_that_cannot_be_read_is_asked_about_too() {
    let mut bench = Bench::new();
    claim_entries(&mut bench.before, 9000);
    bench.file("disk", &bench.before);
    let raw = image();
    let source = ["--url", &bench.file("raw", &raw)];
    for (answer, status) in [("no\n", 1), ("yes\n", 0)] {
        let output = bench.answered(answer, &source);
        let said = String::from_utf8(output.stderr).unwrap();
        let expect = "serial unknown\nits content cannot be read: reading the partition table of ";
        assert!(said.contains(expect) && said.contains("everything on "), "{said}");
        assert_eq!((output.status.code(), bench.disk() == bench.before), (Some(status), status == 1), "{said}");
    }
    assert!(bench.disk()[..IMAGE] == raw, "the image is on the disk");
}

#[test]
fn all_that_overwrite_a_disk_ask_first() {
    let bench = Bench::new();
    for action in [&["erase-disk"][..], &["partition", "--new", "root:rest"], &["make-filesystem", "--kind", "ext4"]] {
        let output = bench.action(action).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(ON_IT), "{action:?}: {said}");
        bench.check_untouched();
    }
}

#[test]
fn the_time_left_is_told_while_bytes_come() {
    let (bench, authority) = (Bench::new(), authority());
    let stream = gzip(&image());
    // The transfer stalls half-way, so every machine reports progress before it ends.
    let url = serve(&authority, stream.clone(), stream.len() / 2) + "/image";
    let ca = bench.file("ca.pem", authority.pem().as_bytes());
    let source = ["stream-image", "--url", &url, "--ca", &ca, "--yes", "--json"];
    for size in [None, Some(IMAGE.to_string())] {
        let size_given: Vec<&str> = size.iter().flat_map(|size| ["--raw-size", size]).collect();
        let mut action = bench.action(&[&source[..], &size_given].concat());
        let mut child = action.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut progress = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()["progress"].clone());
        let found = progress.find(|progress| progress["seconds_left"].is_u64());
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found.unwrap();
        let of = |key: &str| found[key].as_u64();
        assert!(of("seconds_left") > Some(0) && of("fetched") <= Some(stream.len() as u64 / 2), "{found}");
        let totals = (of("fetch_total"), of("total"));
        assert_eq!(totals, (Some(stream.len() as u64), size.map(|_| IMAGE as u64)), "{found}");
        assert!(found["waiting_for"].is_string(), "{found}");
    }
}
