//! A proxy between the machine and its image redirects in circles, and flips a bit. For the third run it first does
//! everything else that proxies do wrong, and then behaves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use qemu_tests::{Bench, has_empty_head, noise, stream, timed};
use slipway_protocol::{Digest, RunState, RunStatus};
use xtask::host::command::{command, stdout};
use xtask::lab::qemu::Machine;

const IMAGE_SIZE: usize = 24 << 20;

#[test]
fn an_image_arrives_through_a_proxy_that_does_all_it_can_or_does_not_boot() -> Result<()> {
    timed("an image arrives through a proxy that does all it can or does not boot", || {
        let bench = Bench::new()?;
        let image = noise(IMAGE_SIZE);
        let file = bench.folder().join("image");
        std::fs::write(&file, &image)?;
        let sum = stdout(command("sha256sum", ["--"]).arg(&file))?;
        let digest: Digest = format!("sha256:{}", sum.split_whitespace().next().unwrap_or_default()).parse()?;
        let proxy = Proxy::start(image.clone())?;
        let old = noise(1 << 20);
        std::fs::File::options().write(true).open(bench.disk())?.write_all(&old)?;
        bench.register()?;

        bench.start_run(&[stream("write", &proxy.url("circle"), digest.clone())])?;
        let machine = bench.power_on(&bench.machine())?;
        let circle = ended(&bench, &machine, None)?;
        let failure = circle.steps[0].failure.as_ref().context("a failure")?;
        assert!(failure.reason.starts_with("fetching http://10.0.2.2:"), "{failure:#?}");
        assert!(failure.causes.iter().any(|cause| cause.contains("redirects too often")), "{failure:#?}");
        assert!(std::fs::read(bench.disk())?.starts_with(&old), "nothing came, and nothing was touched");

        bench.start_run(&[stream("write", &proxy.url("flipped"), digest.clone())])?;
        let flipped = ended(&bench, &machine, Some(&circle))?;
        let failure = flipped.steps[0].failure.as_ref().context("a failure")?;
        assert!(failure.reason.starts_with("checking the digest of the stream: expected "), "{failure:#?}");
        assert!(has_empty_head(&bench.disk())?);

        bench.start_run(&[stream("write", &proxy.url("image"), digest)])?;
        let arrived = ended(&bench, &machine, Some(&flipped))?;
        assert_eq!(arrived.state, RunState::Succeeded, "{arrived:#?}");
        let warnings = arrived.steps[0].outcome.as_ref().context("an outcome")?.warnings.clone();
        let expect = format!("fetching took {} attempts", FAULTS.len() + 1);
        assert!(warnings.iter().any(|warning| warning.starts_with(&expect)), "{warnings:?}");
        assert_eq!(proxy.asked(), FAULTS.map(|(range, _)| range).into_iter().chain([0]).collect::<Vec<_>>());
        drop(machine);
        assert!(std::fs::read(bench.disk())?.starts_with(&image));
        Ok(())
    })
}

/// Waits until a run other than `before` has ended, and returns that run.
fn ended(bench: &Bench, machine: &Machine, before: Option<&RunStatus>) -> Result<RunStatus> {
    let is_ended = |run: &RunStatus| {
        matches!(run.state, RunState::Failed | RunState::Succeeded) && before.is_none_or(|before| before.id != run.id)
    };
    let node = bench.wait_for(machine, "at the end of its run", |node| node.run.as_ref().is_some_and(is_ended))?;
    node.run.context("a run")
}

/// What the proxy does with a request.
#[derive(Clone, Copy)]
enum Fault {
    /// Sends the rest of the image up to this byte, with this ETag, and closes the connection.
    Cut(usize, &'static str),
    /// Sends the same as `Cut`, but then stays silent instead of closing the connection.
    Stall(usize, &'static str),
    /// Ignores the requested range and sends everything.
    Whole,
    /// Answers with only this status line.
    Status(&'static str),
}

const QUARTER: usize = IMAGE_SIZE / 4;
/// For each request for the image, in order: the first byte asked for, and what the proxy does with the request.
const FAULTS: [(usize, Fault); 9] = [
    (0, Fault::Status("503 Busy\r\nRetry-After: 1")),
    (0, Fault::Cut(QUARTER, "\"a\"")),
    (QUARTER, Fault::Whole),
    (0, Fault::Stall(2 * QUARTER, "\"a\"")),
    (2 * QUARTER, Fault::Cut(3 * QUARTER, "\"a\"")),
    (3 * QUARTER, Fault::Cut(IMAGE_SIZE, "\"b\"")),
    (0, Fault::Cut(3 * QUARTER, "\"b\"")),
    (3 * QUARTER, Fault::Status("429 Slow down")),
    (3 * QUARTER, Fault::Status("416 No")),
];

struct Proxy {
    port: u16,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Proxy {
    fn start(image: Vec<u8>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                // A client that hangs up tries again.
                silent.extend(answer(stream, &image, &log).ok().flatten());
            }
        });
        Ok(Self { port, asked })
    }

    fn url(&self, name: &str) -> String {
        format!("http://10.0.2.2:{}/{name}", self.port)
    }

    /// Returns the first byte asked for of each request for the image.
    fn asked(&self) -> Vec<usize> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers a request. Returns the connection if it must stay open.
fn answer(mut stream: TcpStream, image: &[u8], asked: &Mutex<Vec<usize>>) -> Result<Option<TcpStream>> {
    let (path, from) = request(&stream)?;
    match path.as_str() {
        "/circle" => write!(stream, "HTTP/1.1 302 Found\r\nLocation: /circle\r\nContent-Length: 0\r\n\r\n")?,
        "/flipped" => {
            let mut flipped = image.to_vec();
            flipped[QUARTER] ^= 1;
            send(&mut stream, &flipped, from, IMAGE_SIZE, "\"f\"")?;
        }
        _ => {
            let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            let fault = FAULTS.get(asked.len()).map_or(Fault::Cut(IMAGE_SIZE, "\"b\""), |(_, fault)| *fault);
            asked.push(from);
            drop(asked);
            match fault {
                Fault::Cut(until, etag) => send(&mut stream, image, from, until, etag)?,
                Fault::Stall(until, etag) => {
                    send(&mut stream, image, from, until, etag)?;
                    return Ok(Some(stream));
                }
                Fault::Whole => send(&mut stream, image, 0, IMAGE_SIZE, "\"a\"")?,
                Fault::Status(line) => write!(stream, "HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n")?,
            }
        }
    }
    Ok(None)
}

/// Reads a request. Returns its path, and the first byte of the range that it asks for.
fn request(stream: &TcpStream) -> Result<(String, usize)> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().context("a request")??;
    let path = first.split(' ').nth(1).context("a path")?.to_owned();
    let mut from = 0;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=").and_then(|range| range.strip_suffix('-')) {
            from = range.parse()?;
        }
    }
    Ok((path, from))
}

fn send(stream: &mut TcpStream, image: &[u8], from: usize, until: usize, etag: &str) -> Result<()> {
    let (len, last) = (image.len() - from, image.len() - 1);
    let status = match from {
        0 => "200 OK".to_owned(),
        _ => format!("206 Partial Content\r\nContent-Range: bytes {from}-{last}/{}", image.len()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nETag: {etag}\r\nContent-Length: {len}\r\n\r\n")?;
    Ok(stream.write_all(&image[from..until])?)
}
