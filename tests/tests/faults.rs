//! Whatever is wrong with an image or its source, the server gets one event that says so, and the disk does not boot.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../../actions/tests/common/xz_dictionary.rs"]
mod xz_dictionary;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use slipway_installer::End;
use slipway_protocol::{Action, Digest, Event, EventKind, NodeState, Reboot, Step, StepState, StreamImage};
use slipway_server::store::events;
use slipway_tests::Lab;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use xz_dictionary::with_dictionary;

const MIB: usize = 1 << 20;
/// Size of the disk in bytes.
const DISK: usize = 48 * MIB;
/// Size of the image in bytes.
const IMAGE: usize = 40 * MIB;
/// Where an image breaks off, in bytes. The buffers of the pipeline hold at most 31 MiB (`FETCHED`, `RAW` and `MORE`),
/// so some of the image is written before its fault is seen.
const CUT: usize = 34 * MIB;

/// What is on the disk after a fault.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Unchanged, because the fault is found before the first byte is written.
    AsItWas,
    /// Nothing by which firmware or a kernel recognises a system.
    Unbootable,
}

use Left::{AsItWas, Unbootable};

/// A step that must fail.
struct Fault {
    name: &'static str,
    /// Options of the step, without disk hints.
    image: StreamImage,
    /// Part of the reason in the event.
    reason: &'static str,
    /// Part of one of the causes. `None` if the reason has no further cause.
    cause: Option<&'static str>,
    left: Left,
}

/// Runs the step on the machine, and checks that the run fails as `fault` says.
async fn check(lab: &Lab, fault: Fault) {
    let Fault { name, image, reason, cause, left } = fault;
    std::fs::write(lab.disk(), disk_that_boots()).unwrap();
    let write = Action::StreamImage(StreamImage { disk: lab.disk_hints(), ..image });
    let steps = [("write", write), ("leave", Action::Reboot(Reboot::default()))];
    let steps = steps.map(|(name, action)| Step { name: name.to_owned(), action, retries: 0, timeout: None });
    lab.start_run(steps.into()).await;
    assert_eq!(lab.install().await.unwrap(), End::Failed, "{name}");

    let node = lab.status().await;
    assert_eq!(node.state, NodeState::Failed, "{name}");
    let run = node.run.unwrap();
    assert_eq!((run.steps[0].state, run.steps[1].state), (StepState::Failed, StepState::Skipped), "{name}");
    let stored = events::of_run(&mut lab.store().await.read().await.unwrap(), &run.id).await.unwrap();
    let is_failure =
        |kind: &EventKind| matches!(kind, EventKind::Failed(_) | EventKind::TimedOut(_) | EventKind::Retrying(_));
    let failures: Vec<&Event> = stored.iter().filter(|event| is_failure(&event.kind)).collect();
    let [Event { step: 0, attempt: 1, kind: EventKind::Failed(failure), .. }] = failures[..] else {
        panic!("{name}: {stored:#?}")
    };
    assert_eq!(run.steps[0].failure.as_ref(), Some(failure), "{name}");
    assert!(failure.reason.contains(reason), "{name}: {failure:#?}");
    match cause {
        Some(cause) => assert!(failure.causes.iter().any(|found| found.contains(cause)), "{name}: {failure:#?}"),
        None => assert_eq!(failure.causes, [""; 0], "{name}"),
    }
    check_left(lab, left, name);
    let is_told = run.steps[0].notes.iter().any(|note| note.contains("has no partition table now and will not boot"));
    assert_eq!(is_told, matches!(left, Unbootable), "{name}: {:?}", run.steps[0].notes);
}

fn check_left(lab: &Lab, left: Left, name: &str) {
    let disk = std::fs::read(lab.disk()).unwrap();
    match left {
        AsItWas => assert!(disk == disk_that_boots(), "{name}: the disk is not as it was"),
        Unbootable => {
            let ends = disk[..MIB].iter().chain(&disk[disk.len() - MIB..]);
            assert!(ends.into_iter().all(|byte| *byte == 0), "{name}: the ends of the disk are not empty");
        }
    }
}

/// Makes a disk that has what firmware and kernels look for in its first blocks.
fn disk_that_boots() -> Vec<u8> {
    let mut disk = vec![0xAA; DISK];
    disk[510..520].copy_from_slice(b"\x55\xAAEFI PART");
    disk
}

async fn check_all(lab: &Lab, faults: Vec<Fault>) {
    lab.register(true).await;
    for fault in faults {
        check(lab, fault).await;
    }
}

/// Makes data that compresses to about a third.
fn raw() -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(IMAGE);
    while bytes.len() < IMAGE {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(&[state as u8; 24]);
    }
    bytes
}

fn sha256(bytes: &[u8]) -> Digest {
    format!("sha256:{}", hex(bytes)).parse().unwrap()
}

/// Returns the SHA-256 of bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn wrong_digest() -> Option<Digest> {
    Some(sha256(b"another image"))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ::bzip2::write::BzEncoder::new(Vec::new(), ::bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Makes a zstd frame that does not state its content size.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(bytes, 1).unwrap()
}

/// Makes concatenated compressed streams, which are one image.
fn in_parts(bytes: &[u8], encode: fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    bytes.chunks(MIB).flat_map(encode).collect()
}

/// Returns the image in each compression, with the compression's name.
fn compressed(raw: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    [("gzip", gzip(raw)), ("bzip2", bzip2(raw)), ("zstd", in_parts(raw, zstd)), ("xz", in_parts(raw, xz))]
}

/// Makes a file with `qemu-img`, with its path between these arguments, and returns its content.
fn qcow2(folder: &Path, before: &[&str], after: &[&str]) -> Vec<u8> {
    let file = folder.join("qcow2");
    let status = Command::new("qemu-img").args(before).arg(&file).args(after).status().unwrap();
    assert!(status.success(), "{before:?}");
    std::fs::read(file).unwrap()
}

/// Stores these bytes as an image of which the server knows nothing, because otherwise it would refuse to start the
/// run. The returned options have only the URL.
async fn served(lab: &Lab, bytes: &[u8]) -> StreamImage {
    let file = lab.folder.path().join(format!("image-{}", hex(bytes)));
    std::fs::write(&file, bytes).unwrap();
    StreamImage { url: file.to_str().unwrap().to_owned(), ..StreamImage::default() }
}

/// Starts a server that answers each request with the result of `answer` for the request's head, in lower case. Returns
/// the image's URL.
async fn answering(answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/image", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match connection.read_u8().await {
                    Ok(byte) => head.push(byte.to_ascii_lowercase()),
                    Err(_) => break,
                }
            }
            // The client may hang up at any time.
            drop(connection.write_all(&answer(&String::from_utf8_lossy(&head))).await);
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_cut_off() {
    let lab = Lab::start().await;
    let (raw, ends_early) = (raw(), "the data ends too early; download or create the image again");
    let mut faults = vec![Fault {
        name: "raw",
        image: StreamImage { digest: Some(sha256(&raw)), ..served(&lab, &raw[..CUT]).await },
        reason: "checking the digest of the stream: expected sha256:",
        cause: None,
        left: Unbootable,
    }];
    // These streams are written in order, so what precedes the missing end is on the disk by then.
    let raw_digest = Some(sha256(&raw));
    for (name, stream) in compressed(&raw) {
        let image = served(&lab, &stream[..stream.len() * 9 / 10]).await;
        let image = StreamImage { raw_digest: raw_digest.clone(), ..image };
        faults.push(Fault { name, image, reason: "decoding the ", cause: Some(ends_early), left: Unbootable });
    }
    // An xz block is decoded only once it is complete.
    let stream = xz(&raw[..4 * MIB]);
    let image = served(&lab, &stream[..stream.len() / 2]).await;
    faults.push(Fault { name: "xz block", image, reason: "decoding the xz", cause: Some(ends_early), left: AsItWas });
    let file = lab.folder.path().join("raw");
    std::fs::write(&file, &raw).unwrap();
    let convert = ["convert", "-f", "raw", "-O", "qcow2", file.to_str().unwrap()];
    let image = qcow2(lab.folder.path(), &convert, &[]);
    faults.push(Fault {
        name: "qcow2",
        image: served(&lab, &image[..CUT]).await,
        reason: "decoding the qcow2 image",
        cause: Some("the file ends at byte 35651584, before byte 35717120"),
        left: Unbootable,
    });
    check_all(&lab, faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_something_behind_it() {
    let lab = Lab::start().await;
    let (raw, more) = (raw(), &b"and something else behind it"[..]);
    let mut faults = Vec::new();
    let causes = [
        "the last member is followed by other data",
        "bz2 header missing",
        "the last frame is followed by other data",
        "the last stream is followed by other data",
    ];
    for ((name, stream), cause) in compressed(&raw).into_iter().zip(causes) {
        let image = served(&lab, &[&stream[..], more].concat()).await;
        let image = StreamImage { raw_digest: Some(sha256(&raw)), ..image };
        let reason = "after 41943040 bytes of raw data";
        faults.push(Fault { name, image, reason, cause: Some(cause), left: Unbootable });
    }
    let image = served(&lab, &[&raw[..], more].concat()).await;
    let known_size = StreamImage { raw_size: Some(IMAGE as u64), ..image.clone() };
    let reason = "checking the size of the raw image: expected 41943040 bytes, got ";
    faults.push(Fault { name: "raw of a known size", image: known_size, reason, cause: None, left: AsItWas });
    let image = StreamImage { digest: Some(sha256(&raw)), ..image };
    let reason = "checking the digest of the stream: expected sha256:";
    faults.push(Fault { name: "raw", image, reason, cause: None, left: Unbootable });
    check_all(&lab, faults).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_asks_for_more_than_there_is() {
    let lab = Lab::start().await;
    let zeros = vec![0; 2 * DISK];
    let sized = ::zstd::bulk::compress(&zeros, 1).unwrap();
    let create = ["create", "-q", "-f", "qcow2", "-u", "-b", "base", "-F", "raw"];
    let (large, backed) = (qcow2(lab.folder.path(), &create[..4], &["1T"]), qcow2(lab.folder.path(), &create, &["8M"]));
    let mut faults = Vec::new();
    for (name, stream, left) in [
        ("gzip", gzip(&zeros), Unbootable),
        ("bzip2", bzip2(&zeros), Unbootable),
        ("zstd", zstd(&zeros), Unbootable),
        // A size in the header, or seen in the data, is checked before anything is written.
        ("zstd of a size", sized, AsItWas),
        ("xz", xz(&zeros), AsItWas),
        ("raw", zeros, AsItWas),
        ("qcow2", large, AsItWas),
    ] {
        let reason = "the disk has 48 MiB, but the image needs at least ";
        faults.push(Fault { name, image: served(&lab, &stream).await, reason, cause: None, left });
    }
    for (name, stream, reason, cause) in [
        (
            "dictionary of xz",
            with_dictionary(xz(b"image"), 40),
            "decoding the xz image after 0 bytes",
            "of memory to decode",
        ),
        // RFC 8878, 3.1.1.1.2: a window of 2 GiB before an empty block.
        (
            "window of zstd",
            vec![0x28, 0xB5, 0x2F, 0xFD, 0, 0xA8, 1, 0, 0],
            "decoding the zstd image",
            "needs a window of 2048 MiB to decode",
        ),
        ("backing file of qcow2", backed, "decoding the qcow2 image", "it has a backing file"),
    ] {
        let image = served(&lab, &stream).await;
        faults.push(Fault { name, image, reason, cause: Some(cause), left: AsItWas });
    }
    check_all(&lab, faults).await;
}

/// Makes a block map with the whole image as one range and that range's digest, but without the map's own digest.
fn map(raw: &[u8]) -> String {
    let blocks = raw.len() / 4096;
    format!(
        "<bmap version=\"2.0\"><ImageSize>{}</ImageSize><BlockSize>4096</BlockSize><BlocksCount>{blocks}</BlocksCount>\
         <MappedBlocksCount>{blocks}</MappedBlocksCount><ChecksumType>sha256</ChecksumType>\
         <BmapFileChecksum>{}</BmapFileChecksum><BlockMap><Range chksum=\"{}\">0-{}</Range></BlockMap></bmap>",
        raw.len(),
        "0".repeat(64),
        hex(raw),
        blocks - 1
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_another_than_it_should_be() {
    let lab = Lab::start().await;
    let mut raw = raw();
    let unsealed = map(&raw);
    let sealed = unsealed.replace(&"0".repeat(64), &hex(unsealed.as_bytes()));
    raw[5 * MIB] ^= 1;
    let whole = served(&lab, &raw).await;
    let by_map = |name: &str, text: &str| {
        let file = lab.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        StreamImage { bmap: Some(file.to_str().unwrap().to_owned()), ..whole.clone() }
    };
    let zipped = served(&lab, &gzip(&raw)).await;
    let faults = vec![
        Fault {
            name: "digest of the stream",
            image: StreamImage { digest: wrong_digest(), ..whole.clone() },
            reason: "checking the digest of the stream: expected sha256:",
            cause: None,
            left: Unbootable,
        },
        Fault {
            name: "digest of the raw image",
            image: StreamImage { raw_digest: wrong_digest(), ..zipped.clone() },
            reason: "checking the digest of the raw image: expected sha256:",
            cause: None,
            left: Unbootable,
        },
        Fault {
            name: "size of the raw image",
            image: StreamImage { raw_size: Some(IMAGE as u64 + 512), ..zipped },
            reason: "checking the size of the raw image: expected 41943552 bytes, got 41943040",
            cause: None,
            left: Unbootable,
        },
        Fault {
            name: "digest of the block map",
            image: by_map("unsealed", &unsealed),
            reason: "reading the block map ",
            cause: Some("checking the digest of the block map: expected 0000"),
            left: AsItWas,
        },
        Fault {
            name: "digest in the block map",
            image: by_map("sealed", &sealed),
            reason: "of the raw image (from byte 0 to 41943040) against its block map: expected sha256:",
            cause: None,
            left: Unbootable,
        },
        Fault {
            name: "a page",
            image: served(&lab, b"<!DOCTYPE html><title>Log in</title>").await,
            reason: "it is an HTML or XML page; raw images (uncompressed, ",
            cause: None,
            left: AsItWas,
        },
    ];
    check_all(&lab, faults).await;
}

/// Makes an answer with the first `until` bytes, and with `length` as Content-Length.
fn beginning(bytes: &[u8], until: usize, length: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), &bytes[..until]].concat()
}

/// Makes an answer without a body.
fn nothing(status: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

/// Whether the head of a request, in lower case, asks for a range.
fn is_for_the_rest(head: &str) -> bool {
    head.contains("\r\nrange: ")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_a_server_has_no_time_to_give() {
    let raw: &'static [u8] = raw().leak();
    let from_the_start = answering(|_| nothing("503 Busy"));
    let in_the_middle = answering(move |head| match is_for_the_rest(head) {
        true => nothing("429 Slow down"),
        false => beginning(raw, CUT, raw.len()),
    });
    let fails = async |url: String, name, cause, left| {
        let image = StreamImage { url, digest: Some(sha256(raw)), ..StreamImage::default() };
        let fault = Fault { name, image, reason: "fetching http://127.0.0.1:", cause: Some(cause), left };
        let mut lab = Lab::start().await;
        lab.patience = Some(Duration::from_secs(1));
        check_all(&lab, vec![fault]).await;
    };
    tokio::join!(
        fails(from_the_start.await, "always busy", "the server answered 503 ", AsItWas),
        fails(in_the_middle.await, "busy in the middle", "the server answered 429 ", Unbootable),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_a_server_does_not_give() {
    let lab = Lab::start().await;
    let raw: &'static [u8] = raw().leak();
    let digest = Some(sha256(raw));
    let of = |url: String| StreamImage { url, digest: digest.clone(), ..StreamImage::default() };
    // The server hangs up early, and sends the whole file when asked for the rest.
    let never_resumed =
        answering(move |head| beginning(raw, if is_for_the_rest(head) { raw.len() } else { CUT }, raw.len()));
    // The server announces one byte more than it has, and refuses when asked for that byte.
    let too_long = answering(move |head| match is_for_the_rest(head) {
        true => nothing("416 No"),
        false => beginning(raw, raw.len(), raw.len() + 1),
    });
    // The answer to the request for the rest belongs to a longer file.
    let of_another_length = answering(move |head| match is_for_the_rest(head) {
        true => {
            let range = format!("bytes {CUT}-{}/{}", raw.len(), raw.len() + 1);
            let length = format!("Content-Range: {range}\r\nContent-Length: {}", raw.len() + 1 - CUT);
            let head = format!("HTTP/1.1 206 Rest\r\nETag: \"a\"\r\n{length}\r\n\r\n");
            [head.as_bytes(), &raw[CUT..], b"x"].concat()
        }
        false => beginning(raw, CUT, raw.len()),
    });
    let circle = answering(|_| {
        b"HTTP/1.1 302 Found\r\nLocation: /image\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec()
    });
    let missing = format!("{}/images/{}", lab.url(), sha256(b"nothing"));
    let faults = vec![
        Fault {
            name: "longer by a byte",
            image: of(too_long.await),
            reason: "fetching http://127.0.0.1:",
            cause: Some("resuming at byte 41943040: the server answered 416 "),
            left: Unbootable,
        },
        Fault {
            name: "never resumed",
            image: of(never_resumed.await),
            reason: "fetching http://127.0.0.1:",
            cause: Some("the server answered 200 OK to a request for the rest"),
            left: Unbootable,
        },
        Fault {
            name: "the rest of a longer file",
            image: of(of_another_length.await),
            reason: "fetching http://127.0.0.1:",
            cause: Some("resuming at byte 35651584: the size was 41943040 and is now 41943041"),
            left: Unbootable,
        },
        Fault {
            name: "404",
            image: of(missing),
            reason: "fetching https://127.0.0.1:",
            cause: Some("the server answered 404 Not Found: there is no image with this digest"),
            left: AsItWas,
        },
        Fault {
            name: "a circle",
            image: of(circle.await),
            reason: "fetching http://127.0.0.1:",
            cause: Some("redirects too often"),
            left: AsItWas,
        },
    ];
    check_all(&lab, faults).await;
}
