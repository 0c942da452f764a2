//! Tests the TFTP server with common clients, over lines that lose packets, and with invalid packets.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::net::UdpSocket;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use slipway_pxe::Dropped;
use slipway_pxe::tftp::{Limits, open_below};
use support::{LossyLine, Served, noise};

/// How a client program is called to fetch `name` from a port of this host into a file.
type Client = fn(port: u16, name: &str, local: &str) -> Command;

fn run(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

const CLIENTS: [(&str, Client); 6] = [
    ("curl", |port, name, local| {
        run("curl", &["--silent", "--show-error", "--output", local, &format!("tftp://127.0.0.1:{port}/{name}")])
    }),
    ("curl, blocks of 1468", |port, name, local| {
        let url = format!("tftp://127.0.0.1:{port}/{name}");
        run("curl", &["--silent", "--show-error", "--tftp-blksize", "1468", "--output", local, &url])
    }),
    ("curl, no options", |port, name, local| {
        let url = format!("tftp://127.0.0.1:{port}/{name}");
        run("curl", &["--silent", "--show-error", "--tftp-no-options", "--output", local, &url])
    }),
    ("tftp-hpa", |port, name, local| {
        run("tftp", &["-m", "binary", "127.0.0.1", &port.to_string(), "-c", "get", name, local])
    }),
    ("busybox, blocks of 1468", |port, name, local| {
        let port = port.to_string();
        run("busybox", &["tftp", "-g", "-b", "1468", "-r", name, "-l", local, "127.0.0.1", &port])
    }),
    ("atftp, windows of 8", |port, name, local| {
        let (window, block) = (["--option", "windowsize 8"], ["--option", "blksize 1000"]);
        let rest = ["--get", "--remote-file", name, "--local-file", local, "127.0.0.1", &port.to_string()];
        run("atftp", &[&window[..], &block, &rest].concat())
    }),
];

/// Fetches a file with a client program. None if this host does not have the program.
fn fetch(client: Client, port: u16, name: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("local");
    let mut command = client(port, name, local.to_str().unwrap());
    match command.output() {
        Ok(output) => Some(std::fs::read(local).unwrap_or_else(|error| panic!("{command:?}: {error}: {output:?}"))),
        Err(error) => {
            eprintln!("not checked: {:?}: {error}", command.get_program());
            None
        }
    }
}

#[test]
fn clients_get_files_of_every_length() {
    let served = Served::start(Limits::default());
    std::fs::create_dir(served.folder().join("x86_64")).unwrap();
    let mut sum = (0, 0);
    for length in [0, 1, 511, 512, 513, 1467, 1468, 1469, 8000, 200_000] {
        let content = noise(length);
        std::fs::write(served.folder().join("x86_64/file"), &content).unwrap();
        for (name, client) in CLIENTS {
            // curl takes 0 for no size (lib/tftp.c).
            if length == 0 && name.starts_with("curl") && name != "curl, no options" {
                continue;
            }
            let Some(got) = fetch(client, served.port, "x86_64/file") else { continue };
            assert!(got == content, "{name}: {} bytes of {length}", got.len());
            sum = (sum.0 + 1, sum.1 + length as u64);
        }
    }
    served.wait_until(|counters| counters.fetched() == sum);
    let fetched = served.fetched.lock().unwrap();
    assert!(fetched.iter().all(|(address, name, _)| address.is_loopback() && name == "x86_64/file"), "{fetched:?}");
    assert_eq!(fetched.iter().map(|(.., bytes)| bytes).sum::<u64>(), sum.1);
}

#[test]
fn block_numbers_start_again_after_the_last() {
    let served = Served::start(Limits::default());
    let content = noise(66_000 * 8);
    std::fs::write(served.folder().join("file"), &content).unwrap();
    let small: Client = |port, name, local| {
        let url = format!("tftp://127.0.0.1:{port}/{name}");
        run("curl", &["--silent", "--show-error", "--tftp-blksize", "8", "--output", local, &url])
    };
    let got = fetch(small, served.port, "file");
    assert!(got.is_none_or(|got| got == content));
}

#[test]
fn a_line_that_loses_packets_only_costs_time() {
    let served = Served::start(Limits::default());
    let content = noise(40_000);
    std::fs::write(served.folder().join("file"), &content).unwrap();
    // With options, curl asks us to wait six seconds.
    let patient = |name: &str| name == "curl" || name == "curl, blocks of 1468";
    for (name, client) in CLIENTS.into_iter().filter(|(name, _)| !patient(name)) {
        for lost in [&[1, 2][..], &[7, 30]] {
            let line = LossyLine::start(served.port, lost);
            let Some(got) = fetch(client, line.port, "file") else { continue };
            assert!(got == content, "{name}, losing {lost:?}: {} bytes", got.len());
            assert_eq!(line.lost(), lost.len(), "{name}, losing {lost:?}");
        }
    }
}

/// Makes a read request. Spaces in `text` become zero bytes.
fn request(text: &str) -> Vec<u8> {
    [b"\0\x01", text.replace(' ', "\0").as_bytes()].concat()
}

/// A client that sends any packet.
struct Raw(UdpSocket);

impl Raw {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(socket)
    }

    fn ask(&self, port: u16, request: &[u8]) -> (Vec<u8>, u16) {
        self.0.send_to(request, ("127.0.0.1", port)).unwrap();
        self.hear()
    }

    fn hear(&self) -> (Vec<u8>, u16) {
        let mut buffer = [0; 2048];
        let (size, from) = self.0.recv_from(&mut buffer).unwrap();
        (buffer[..size].to_vec(), from.port())
    }
}

#[test]
fn options_are_granted_within_bounds_and_nonsense_is_not() {
    let served = Served::start(Limits { transfers: 256, per_address: 256 });
    std::fs::write(served.folder().join("file"), noise(3000)).unwrap();
    let granted = |options: &str| {
        let answer = Raw::new().ask(served.port, &request(&format!("file octet {options}"))).0;
        assert!(answer[..2] == [0, 6] || answer[..4] == [0, 3, 0, 1], "{answer:?}");
        if answer[1] == 6 {
            String::from_utf8(answer[2..].to_vec()).unwrap().replace('\0', " ")
        } else {
            "no options".to_owned()
        }
    };
    let table = [
        ("", "no options"),
        ("blksize 1468 ", "blksize 1468 "),
        ("BLKSIZE 65464 ", "blksize 1468 "),
        ("blksize 8 ", "blksize 8 "),
        ("blksize 7 ", "no options"),
        ("blksize 65465 ", "no options"),
        ("blksize -1 ", "no options"),
        ("blksize  ", "no options"),
        ("tsize 0 ", "tsize 3000 "),
        ("tsize 0 blksize 512 ", "blksize 512 tsize 3000 "),
        ("timeout 7 ", "timeout 7 "),
        ("timeout 0 ", "no options"),
        ("windowsize 4 ", "windowsize 4 "),
        ("windowsize 65535 ", "windowsize 64 "),
        ("windowsize 0 ", "no options"),
        ("multicast  ", "no options"),
    ];
    for (asked, expected) in table {
        assert_eq!(granted(asked), expected, "{asked:?}");
    }
}

#[test]
fn a_window_is_sent_at_once_and_goes_on_where_the_client_is() {
    let served = Served::start(Limits::default());
    let content = noise(10 * 512 + 10);
    std::fs::write(served.folder().join("file"), &content).unwrap();
    let client = Raw::new();
    let (_, port) = client.ask(served.port, &request("file octet windowsize 4 timeout 255 "));
    let acknowledge = |block: u8| client.0.send_to(&[0, 4, 0, block], ("127.0.0.1", port)).map(drop).unwrap();
    let expect = |blocks: std::ops::RangeInclusive<u8>| {
        for block in blocks {
            let (packet, from) = client.hear();
            assert_eq!((&packet[..4], from), (&[0, 3, 0, block][..], port));
            let start = usize::from(block - 1) * 512;
            assert_eq!(packet[4..], content[start..content.len().min(start + 512)], "{block}");
        }
    };
    acknowledge(0);
    expect(1..=4);
    // The third block was lost.
    acknowledge(2);
    expect(3..=6);
    // All blocks were lost, and the client says so: it gets them again, long before the time-out.
    acknowledge(2);
    expect(3..=6);
    acknowledge(6);
    expect(7..=10);
    acknowledge(10);
    expect(11..=11);
    acknowledge(11);
    served.wait_until(|counters| counters.fetched() == (1, content.len() as u64));
}

#[test]
fn an_acknowledgement_that_comes_twice_is_answered_once() {
    let served = Served::start(Limits::default());
    std::fs::write(served.folder().join("file"), noise(2000)).unwrap();
    let client = Raw::new();
    let (_, port) = client.ask(served.port, &request("file octet timeout 9 "));
    for packet in [[0, 4, 0, 0], [0, 4, 0, 0], [0, 4, 0, 1], [0, 4, 0, 0], [0, 4, 0, 2]] {
        client.0.send_to(&packet, ("127.0.0.1", port)).unwrap();
    }
    let blocks: Vec<u8> = (0..3).map(|_| client.hear().0[3]).collect();
    assert_eq!(blocks, [1, 2, 3]);
}

#[test]
fn what_is_not_a_request_to_read_is_dropped_and_counted() {
    let served = Served::start(Limits::default());
    std::fs::write(served.folder().join("file"), "content").unwrap();
    let client = Raw::new();
    let long = [b"\0\x01".to_vec(), vec![b'a'; 520], b"\0octet\0".to_vec()].concat();
    let malformed: [&[u8]; 14] = [
        b"",
        b"\0",
        b"\0\x01",
        b"\0\x01\0\0",
        b"\0\x01\0octet\0",
        b"\0\x01file",
        b"\0\x01file\0",
        b"\0\x01file\0octet",
        b"\0\x01file\0octet\0blksize\0",
        b"\0\x01\xff\xfe\0octet\0",
        b"\0\x02file\0octet\0",
        b"\0\x03\0\x01data",
        b"\xff\xff\0\0\0",
        &long,
    ];
    for packet in malformed {
        client.0.send_to(packet, ("127.0.0.1", served.port)).unwrap();
    }
    served.wait_until(|counters| counters.dropped(Dropped::MalformedTftp) == malformed.len() as u64);
    // The server still answers.
    assert_eq!(client.ask(served.port, b"\0\x01file\0octet\0").0, b"\0\x03\0\x01content");
}

#[test]
fn only_plain_files_below_the_folder_are_served() {
    let served = Served::start(Limits::default());
    let folder = served.folder();
    std::fs::create_dir(folder.join("boot")).unwrap();
    std::fs::write(folder.join("secret"), "secret").unwrap();
    std::fs::write(folder.join("boot/file"), "content").unwrap();
    symlink("file", folder.join("boot/link")).unwrap();
    let open = |name: &str| open_below(&folder.join("boot"), name).is_ok();
    assert!(open("file") && open("link"));
    for bad in ["../secret", "./file", "/etc/passwd", "", "missing", ".", "a\0b", "boot/../file"] {
        assert!(!open(bad), "{bad:?}");
    }
    assert!(open_below(folder, "boot").is_err(), "a folder");
    let answer = |request: &[u8]| Raw::new().ask(served.port, request).0;
    assert_eq!(answer(b"\0\x01boot/file\0OCTET\0"), b"\0\x03\0\x01content");
    // Some loaders write the root of the server.
    assert_eq!(answer(b"\0\x01/boot/file\0octet\0"), b"\0\x03\0\x01content");
    assert_eq!(answer(b"\0\x01../secret\0octet\0")[..4], [0, 5, 0, 1]);
    assert_eq!(answer(b"\0\x01boot\0octet\0")[..4], [0, 5, 0, 1]);
    assert_eq!(answer(b"\0\x01boot/file\0netascii\0")[..4], [0, 5, 0, 0]);
}

#[test]
fn transfers_are_bounded_and_end_with_their_client() {
    let served = Served::start(Limits { transfers: 256, per_address: 2 });
    std::fs::write(served.folder().join("file"), noise(2000)).unwrap();
    let request = &request("file octet ");
    let (one, two, three) = (Raw::new(), Raw::new(), Raw::new());
    let (_, port) = one.ask(served.port, request);
    two.ask(served.port, request);
    // The answer to the first request is on its way.
    one.0.send_to(request, ("127.0.0.1", served.port)).unwrap();
    served.wait_until(|counters| counters.dropped(Dropped::Repeated) == 1);
    three.0.send_to(request, ("127.0.0.1", served.port)).unwrap();
    served.wait_until(|counters| counters.dropped(Dropped::TooMany) == 1);
    // Firmware ends a transfer like this when it knows the size of the file.
    one.0.send_to(b"\0\x05\0\0enough\0", ("127.0.0.1", port)).unwrap();
    served.wait_until(|counters| counters.dropped(Dropped::Cancelled) == 1);
    assert_eq!(three.ask(served.port, request).0[..4], [0, 3, 0, 1]);
    // The two remaining clients say nothing.
    served.wait_until(|counters| counters.dropped(Dropped::Silent) == 2);
}
