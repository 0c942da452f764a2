//! Shared by the tests: a machine whose disks are files, and an HTTP server that misbehaves on request.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part of it; tests may unwrap")]

pub mod disk_image;
pub mod encryptable;
pub mod installed;
pub mod loop_device;
pub mod partitions;
pub mod swtpm;
pub mod tls;
pub mod unreadable;
pub mod written;
pub mod xz_dictionary;

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use liblzma::stream::{self as xz, Check};
use sha2::{Digest as _, Sha256};
use slipway_actions::{
    Cancel, Candidate, Done, Error, FetchError, Host, HostOptions, Machine, Report, Request, Response, Setup, Upload,
    UploadError, run,
};
use slipway_protocol::{Action, Digest, Disk, Progress, RecoveryKey, StreamImage};
use tempfile::TempDir;

pub const MIB: usize = 1 << 20;

/// A machine with file-backed disks. Everything else is the real host.
pub struct Bench {
    pub dir: TempDir,
    host: Host,
    cancel: Cancel,
    pub disks: Vec<Candidate>,
    pub setup: Setup,
    /// What was loaded to be started by kexec.
    pub loaded: Mutex<Option<Loaded>>,
    /// GUIDs of the partitions that the machine's disks had before.
    pub former: Vec<String>,
    /// Recovery keys that were to be stored, and whether they are.
    pub keys: Mutex<Vec<RecoveryKey>>,
    pub takes_keys: bool,
    /// Begins to store a captured image, where the machine can.
    pub begin: Option<Box<dyn Fn() -> Box<dyn Upload> + Send + Sync>>,
}

/// A kernel with everything it is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub kernel: String,
    pub initrd: Option<String>,
    pub cmdline: String,
}

impl Bench {
    /// A machine with one disk of this size, filled with 0xAA to make old content visible.
    pub fn new(size: usize) -> Self {
        let mut bench = Self::without_disks();
        bench.add_disk("disk", size);
        bench
    }

    pub fn without_disks() -> Self {
        Self::with_trust(Vec::new())
    }

    pub fn with_trust(trust: Vec<String>) -> Self {
        let cancel = Cancel::new();
        let host = Host::new(HostOptions { trust, cancel: cancel.clone(), ..HostOptions::default() });
        // Preferably not on a tmpfs, which may refuse direct writes.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (loaded, former) = (Mutex::new(None), Vec::new());
        let setup = Setup { patience: Duration::from_secs(5), efi: dir.path().join("efi"), ..Setup::default() };
        let (keys, takes_keys) = (Mutex::default(), false);
        Self { dir, host, cancel, setup, disks: Vec::new(), loaded, former, keys, takes_keys, begin: None }
    }

    pub fn add_disk(&mut self, name: &str, size: usize) {
        let path = self.path(name);
        let file = File::create(&path).unwrap();
        for at in (0..size).step_by(MIB) {
            file.write_all_at(&vec![0xAA; MIB.min(size - at)], at as u64).unwrap();
        }
        let disk = Disk { path: path.to_str().unwrap().to_owned(), size: size as u64, ..Disk::default() };
        self.disks.push(Candidate { disk, in_use: None, by_name_only: false, boot_medium: None });
    }

    /// Adds a real block device instead of a file.
    pub fn add_device(&mut self, path: &str, size: usize) {
        let disk = Disk { path: path.to_owned(), size: size as u64, ..Disk::default() };
        self.disks.push(Candidate { disk, in_use: None, by_name_only: false, boot_medium: None });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same as text.
    pub fn place(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file next to the disks, and returns its path.
    pub fn put(&self, name: &str, content: &[u8]) -> String {
        fs::write(self.path(name), content).unwrap();
        self.place(name)
    }

    pub fn disk(&self) -> Vec<u8> {
        fs::read(self.path("disk")).unwrap()
    }

    pub fn run(&self, action: &Action) -> (Result<Done, Error>, Reports) {
        let mut reports = Reports::default();
        let result = run(action, self, &mut |report| match report {
            Report::Note(note) => reports.notes.push(note),
            Report::Progress(progress) => reports.progress.push(progress),
        });
        (result, reports)
    }

    /// Runs an action that has to succeed.
    #[track_caller]
    pub fn succeeds(&self, action: &Action) -> (Done, Reports) {
        let (result, reports) = self.run(action);
        (result.unwrap_or_else(|error| panic!("{}", chain(&error))), reports)
    }

    /// Streams an image, which has to succeed.
    #[track_caller]
    pub fn streams(&self, image: StreamImage) -> (Done, Reports) {
        self.succeeds(&Action::StreamImage(image))
    }

    /// Runs an action that has to fail, and returns its error as people see it.
    #[track_caller]
    pub fn refusal(&self, action: &Action) -> String {
        chain(&self.run(action).0.unwrap_err())
    }
}

impl Machine for Bench {
    fn disks(&self) -> Result<Vec<Candidate>, Error> {
        Ok(self.disks.clone())
    }

    fn fetch(&self, request: &Request<'_>, stop: &Cancel) -> Result<Response, FetchError> {
        self.host.fetch(request, stop)
    }

    fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    fn setup(&self) -> &Setup {
        &self.setup
    }

    fn upload(&self, _: &str) -> Result<Box<dyn Upload + '_>, UploadError> {
        let nowhere = || UploadError { source: "this machine captures nothing".into(), is_transient: false };
        self.begin.as_ref().map(|begin| begin()).ok_or_else(nowhere)
    }

    fn store_recovery_key(&self, key: &RecoveryKey) -> Result<(), UploadError> {
        self.keys.lock().unwrap().push(key.clone());
        let cut = UploadError { source: "the line was cut".into(), is_transient: true };
        if self.takes_keys { Ok(()) } else { Err(cut) }
    }

    fn former_partitions(&self, _: &Disk) -> Vec<String> {
        self.former.clone()
    }

    fn load_kernel(&self, mut kernel: &File, initrd: Option<&File>, cmdline: &CStr) -> io::Result<()> {
        let text = |file: &mut &File| io::read_to_string(file);
        let initrd = initrd.map(|mut initrd| text(&mut initrd)).transpose()?;
        let cmdline = cmdline.to_str().unwrap().to_owned();
        *self.loaded.lock().unwrap() = Some(Loaded { kernel: text(&mut kernel)?, initrd, cmdline });
        Ok(())
    }
}

/// Checks the kind of an error, and tells the whole error otherwise.
#[macro_export]
macro_rules! assert_error {
    ($error:expr, $kind:pat $(if $guard:expr)?) => {
        assert_error!($error, $kind $(if $guard)?, "")
    };
    ($error:expr, $kind:pat $(if $guard:expr)?, $what:literal) => {
        assert!(matches!($error, $kind $(if $guard)?), "{} {}", format!($what), $crate::common::chain(&$error))
    };
}

#[derive(Debug, Default)]
pub struct Reports {
    pub notes: Vec<String>,
    pub progress: Vec<Progress>,
}

impl Reports {
    /// Checks that a note begins with these words.
    #[track_caller]
    pub fn tell(&self, start: &str) {
        assert!(self.notes.iter().any(|note| note.starts_with(start)), "{start:?} is not in {:?}", self.notes);
    }
}

/// An error as people see it: all messages of its chain.
pub fn chain(error: &Error) -> String {
    slipway_protocol::Failure::of(error).in_one_line()
}

/// Data that compresses somewhat and does not repeat at block boundaries.
pub fn image(size: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(size + 64);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(&[(state & 0xFF) as u8; 24]);
    }
    bytes.truncate(size);
    bytes
}

pub fn sha256(bytes: &[u8]) -> Digest {
    format!("sha256:{:x}", Sha256::digest(bytes)).parse().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Blocks of this many bytes each, without their size in the header.
pub fn xz_blocks(bytes: &[u8], block: usize) -> Vec<u8> {
    let mut encoder = xz::Stream::new_easy_encoder(0, Check::Crc64).unwrap();
    let mut stream = Vec::with_capacity(2 * bytes.len() + 4096);
    for chunk in bytes.chunks(block) {
        let until = encoder.total_in() + chunk.len() as u64;
        while encoder.total_in() < until {
            let left = chunk.len() - (until - encoder.total_in()) as usize;
            encoder.process_vec(&chunk[left..], &mut stream, xz::Action::Run).unwrap();
        }
        while encoder.process_vec(&[], &mut stream, xz::Action::FullFlush).unwrap() != xz::Status::StreamEnd {}
    }
    while encoder.process_vec(&[], &mut stream, xz::Action::Finish).unwrap() != xz::Status::StreamEnd {}
    stream
}

/// A frame with the size of its content in the header.
pub fn zstd_sized(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::bulk::Compressor::new(1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.compress(bytes).unwrap()
}

pub fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A step that streams `url` without any check.
pub fn stream(url: impl Into<String>) -> StreamImage {
    StreamImage { url: url.into(), ..StreamImage::default() }
}

/// A step that streams from these servers, without any check.
pub fn stream_from(servers: &[&Server]) -> StreamImage {
    StreamImage { mirrors: servers[1..].iter().map(|server| server.url.clone()).collect(), ..stream(&servers[0].url) }
}

/// A request as the server sees it.
#[derive(Clone, Debug, Default)]
pub struct ReceivedRequest {
    pub path: String,
    pub range: Option<u64>,
    pub if_range: Option<String>,
    pub authorization: Option<String>,
    pub accept: Option<String>,
    pub referer: Option<String>,
}

/// What the server does with a connection.
pub enum Answer {
    /// These bytes, including the head. Then the connection is closed.
    Bytes(Vec<u8>),
    /// A head that announces the file from the requested offset, then the file up to byte `until`.
    File { body: Arc<Vec<u8>>, etag: Option<&'static str>, until: usize },
    /// These bytes, then silence.
    Stall(Vec<u8>),
    /// These bytes. Then the connection is closed without the end of TLS.
    HangUp(Vec<u8>),
}

impl Answer {
    /// The file from the requested offset up to byte `until`.
    pub fn file(body: &Arc<Vec<u8>>, etag: &'static str, until: usize) -> Self {
        Self::File { body: Arc::clone(body), etag: Some(etag), until }
    }
}

/// Serves one connection after another on its own port. Request n, counted from 0, gets `answer(n, request)`.
pub struct Server {
    pub url: String,
    pub asked: Arc<Mutex<Vec<ReceivedRequest>>>,
    /// Number of connections, including those without a request.
    pub connections: Arc<AtomicUsize>,
}

impl Server {
    pub fn start(answer: impl Fn(usize, &ReceivedRequest) -> Answer + Send + 'static) -> Self {
        Self::start_with(None, answer)
    }

    /// A server that answers every request with these bytes, including the head.
    pub fn giving(answer: Vec<u8>) -> Self {
        Self::start(move |_, _| Answer::Bytes(answer.clone()))
    }

    /// A server of a file.
    pub fn of(body: &Arc<Vec<u8>>, etag: &'static str) -> Self {
        let body = Arc::clone(body);
        Self::start(move |_, _| Answer::file(&body, etag, usize::MAX))
    }

    /// Uses TLS if a certificate is given.
    pub fn start_with(
        tls: Option<tls::Acceptor>,
        answer: impl Fn(usize, &ReceivedRequest) -> Answer + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = match tls {
            Some(_) => format!("https://127.0.0.1:{port}/image"),
            None => format!("http://127.0.0.1:{port}/image"),
        };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (log, count) = (Arc::clone(&asked), Arc::clone(&connections));
        thread::spawn(move || {
            let mut silent: Vec<Box<dyn Stream>> = Vec::new();
            for connection in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                let connection = connection.unwrap();
                let mut stream: Box<dyn Stream> = match &tls {
                    Some(tls) => Box::new(tls.accept(connection)),
                    None => Box::new(connection),
                };
                let Some(request) = read_request(&mut stream) else { continue };
                let n = log.lock().unwrap().len();
                log.lock().unwrap().push(request.clone());
                let answer = answer(n, &request);
                let (stays, hangs_up) = (matches!(answer, Answer::Stall(_)), matches!(answer, Answer::HangUp(_)));
                let bytes = match answer {
                    Answer::Bytes(bytes) | Answer::Stall(bytes) | Answer::HangUp(bytes) => bytes,
                    Answer::File { body, etag, until } => file_answer(&request, &body, etag, until),
                };
                // The client may hang up at any time.
                drop(stream.write_all(&bytes).and_then(|()| stream.flush()));
                match stays {
                    true => silent.push(stream),
                    false if hangs_up => {}
                    false => stream.end(),
                }
            }
        });
        Self { url, asked, connections }
    }

    pub fn asked(&self) -> Vec<ReceivedRequest> {
        self.asked.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The URL of another path on this server.
    pub fn at(&self, path: &str) -> String {
        self.url.replace("/image", path)
    }
}

/// A connection, with TLS or without.
pub trait Stream: Read + Write + Send {
    /// Signals that nothing more will be sent, where that is possible.
    fn end(&mut self) {}
}

impl Stream for std::net::TcpStream {}

fn read_request(connection: &mut impl Read) -> Option<ReceivedRequest> {
    let mut lines = BufReader::new(connection.take(65536)).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut asked = ReceivedRequest { path, ..ReceivedRequest::default() };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "range" => asked.range = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            "if-range" => asked.if_range = Some(value.to_owned()),
            "authorization" => asked.authorization = Some(value.to_owned()),
            "accept" => asked.accept = Some(value.to_owned()),
            "referer" => asked.referer = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(asked)
}

fn file_answer(request: &ReceivedRequest, body: &[u8], etag: Option<&str>, until: usize) -> Vec<u8> {
    let from = request.range.unwrap_or(0) as usize;
    let status = match request.range {
        Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{}", body.len() - 1, body.len()),
        None => "200 OK".to_owned(),
    };
    let etag = etag.map(|etag| format!("ETag: {etag}\r\n")).unwrap_or_default();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{etag}\r\n", body.len() - from);
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body[from..until.clamp(from, body.len())]);
    bytes
}

/// A plain 200 with this body and nothing else.
pub fn ok(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The offset at which each request wanted to resume.
pub fn ranges(server: &Server) -> Vec<Option<u64>> {
    server.asked().iter().map(|asked| asked.range).collect()
}

/// An answer with this status and these header lines, without a body.
pub fn status(line: &str, head: &str) -> Answer {
    Answer::Bytes(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n{head}\r\n").into_bytes())
}
