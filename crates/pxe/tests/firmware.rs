//! Answers to packets that real firmware sent (`packets/README.md`).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use slipway_pxe::Dropped;
use slipway_pxe::dhcp::{
    Addresses, Answer, Architecture, BOOT_SERVER_PORT, Files, Policy, Request, SERVER_PORT, answer,
};

const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x7d, 0x2f, 0x01];
const UUID: u128 = 0x7d2f9a60_3c55_4b0e_9c7a_1f0f6a2b9d01;
const US: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 138);
const SCRIPT: &str = "http://10.77.0.2:8080/boot/ipxe";

const OFFER: u8 = 2;
const ACK: u8 = 5;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packets")
}

fn packet(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn policy() -> Policy {
    let some = |text: &str| Some(text.to_owned());
    Policy {
        tftp: Files {
            bios: some("x86_64/undionly.kpxe"),
            x64: some("x86_64/slipway.efi"),
            arm64: some("aarch64/slipway.efi"),
        },
        http: Files { bios: None, x64: some("http://a/x64"), arm64: some("http://a/arm64") },
        script: some(SCRIPT),
    }
}

fn at(port: u16, client: SocketAddrV4) -> Addresses {
    Addresses { server: US, port, client }
}

/// Answers a packet as if it had just been broadcast.
fn broadcast(packet: &[u8]) -> Result<Answer, Dropped> {
    let request = Request::parse(packet).ok_or(Dropped::MalformedDhcp)?;
    answer(&request, &policy(), &at(SERVER_PORT, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68)))
}

/// Returns the value of the first option with this code, read without the crate's help.
fn option(bytes: &[u8], wanted: u8) -> Option<Vec<u8>> {
    let mut rest = &bytes[240..];
    while rest[0] != 255 {
        let length = usize::from(rest[1]);
        if rest[0] == wanted {
            return Some(rest[2..2 + length].to_vec());
        }
        rest = &rest[2 + length..];
    }
    None
}

/// Returns the packet without the options that have these codes.
fn without(packet: &[u8], codes: &[u8]) -> Vec<u8> {
    let mut kept = packet[..240].to_vec();
    let mut rest = &packet[240..];
    while rest[0] != 255 {
        let length = usize::from(rest[1]) + 2;
        if !codes.contains(&rest[0]) {
            kept.extend(&rest[..length]);
        }
        rest = &rest[length..];
    }
    kept.push(255);
    kept
}

/// Returns the packet with another value of an option.
fn with(packet: &[u8], code: u8, value: &[u8]) -> Vec<u8> {
    let mut changed = without(packet, &[code]);
    changed.pop();
    changed.extend([code, u8::try_from(value.len()).unwrap()]);
    changed.extend(value);
    changed.push(255);
    changed
}

#[test]
fn each_firmware_gets_the_file_that_it_can_start() {
    let x64 = Ok("x86_64/slipway.efi");
    let arm64 = Ok("aarch64/slipway.efi");
    let nothing = Err(Dropped::NoBootFile);
    let table = [
        ("ovmf-x64-2022.11-discover", x64),
        ("ovmf-x64-2022.11-request", Err(Dropped::ForAnotherServer)),
        ("ovmf-x64-2022.11-http-discover", Ok("http://a/x64")),
        ("ovmf-x64-2026.08-discover", x64),
        ("ovmf-x64-2026.08-http-discover", Ok("http://a/x64")),
        ("ovmf-ia32-2022.11-discover", nothing),
        ("aavmf-arm64-2022.11-discover", arm64),
        ("aavmf-arm64-2026.08-http-discover", Ok("http://a/arm64")),
        ("seabios-ipxe-2019-e1000-discover", Ok(SCRIPT)),
        ("seabios-ipxe-2019-e1000-request", Err(Dropped::ForAnotherServer)),
        ("seabios-ipxe-2019-rtl8139-discover", Ok(SCRIPT)),
        ("seabios-ipxe-2019-virtio-discover", Ok(SCRIPT)),
        ("seabios-ipxe-2.0-e1000-discover", Ok(SCRIPT)),
        ("ipxe-2019-undionly-discover", Ok(SCRIPT)),
        ("ipxe-2019-snponly-x64-discover", Ok(SCRIPT)),
        ("ipxe-2019-ipxe-efi-x64-discover", Ok(SCRIPT)),
        // U-Boot asks twice: for an address, and then as if it were UEFI firmware.
        ("u-boot-2023.01-x86_64-dhcp-discover", Err(Dropped::NotBooting)),
        ("u-boot-2023.01-x86_64-pxe-discover", x64),
        ("u-boot-2023.01-arm64-dhcp-discover", Err(Dropped::NotBooting)),
        ("u-boot-2023.01-arm64-pxe-discover", arm64),
        ("u-boot-2023.01-arm32-dhcp-discover", Err(Dropped::NotBooting)),
        ("u-boot-2023.01-arm32-pxe-discover", nothing),
    ];
    for (name, expected) in table {
        let answer = broadcast(&packet(name));
        assert_eq!(answer.as_ref().map(|answer| answer.file.as_str()).map_err(|why| *why), expected, "{name}");
    }
    let mut missing: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with("port-4011") && name != "README.md")
        .collect();
    table.iter().for_each(|(name, _)| {
        missing.remove(*name);
    });
    assert_eq!(missing, BTreeSet::new(), "recorded, and not judged");
}

#[test]
fn a_machine_that_takes_an_address_from_another_server_tells_which() {
    let table = [
        ("ovmf-x64-2022.11-discover", None),
        ("ovmf-x64-2022.11-request", Some([10, 77, 0, 138])),
        ("ovmf-x64-2022.11-port-4011", Some([10, 77, 0, 138])),
        ("seabios-ipxe-2019-e1000-request", Some([10, 77, 0, 138])),
        ("seabios-ipxe-2019-e1000-port-4011", Some([10, 77, 0, 138])),
    ];
    for (name, expected) in table {
        let request = Request::parse(&packet(name)).unwrap();
        assert_eq!(request.address(), expected.map(Ipv4Addr::from), "{name}");
    }
    // An address that a client had before and would like to have again.
    let wish = with(&packet("ovmf-x64-2022.11-discover"), 50, &[192, 0, 2, 7]);
    assert_eq!(Request::parse(&wish).unwrap().address(), None);
    let short = with(&packet("ovmf-x64-2022.11-request"), 50, &[192, 0, 2]);
    assert_eq!(Request::parse(&short).unwrap().address(), None);
}

#[test]
fn an_offer_has_what_firmware_looks_for_and_no_address() {
    let table = [
        ("ovmf-x64-2022.11-discover", "PXEClient", Some(vec![6, 1, 8, 255])),
        ("seabios-ipxe-2019-e1000-discover", "PXEClient", Some(vec![6, 1, 8, 255])),
        ("ovmf-x64-2022.11-http-discover", "HTTPClient", None),
    ];
    for (name, class, vendor) in table {
        let request = packet(name);
        let answer = broadcast(&request).unwrap();
        let bytes = &answer.bytes;
        assert_eq!((bytes[0], bytes[1], bytes[2]), (2, 1, 6), "{name}");
        assert_eq!(bytes[4..8], request[4..8], "{name}: the exchange");
        assert_eq!(bytes[10..12], request[10..12], "{name}: the broadcast flag");
        assert_eq!(bytes[12..20], [0; 8], "{name}: addresses of the client");
        assert_eq!(bytes[20..24], US.octets(), "{name}: the next server");
        assert_eq!(bytes[28..34], MAC, "{name}");
        assert!(bytes.len() >= 300, "{name}: {}", bytes.len());
        assert_eq!(option(bytes, 53), Some(vec![OFFER]), "{name}");
        assert_eq!(option(bytes, 54), Some(US.octets().to_vec()), "{name}");
        assert_eq!(option(bytes, 60), Some(class.as_bytes().to_vec()), "{name}");
        assert_eq!(option(bytes, 97), option(&request, 97), "{name}");
        assert_eq!(option(bytes, 43), vendor, "{name}");
        assert_eq!(option(bytes, 67), Some(answer.file.clone().into_bytes()), "{name}");
        let field = bytes[108..236].split(|&byte| byte == 0).next().unwrap();
        assert_eq!(field, answer.file.as_bytes(), "{name}");
        assert_eq!(answer.to, SocketAddrV4::new(Ipv4Addr::BROADCAST, 68), "{name}");
    }
}

#[test]
fn a_boot_server_answers_where_the_firmware_listens() {
    let table = [
        ("ovmf-x64-2022.11-port-4011", 4011, "x86_64/slipway.efi", vec![6, 1, 8, 255]),
        // The boot item that was chosen from a menu is in the answer.
        ("seabios-ipxe-2019-e1000-port-4011", 68, SCRIPT, vec![6, 1, 8, 71, 4, 0x80, 2, 0, 0, 255]),
    ];
    for (name, port, file, vendor) in table {
        let request = packet(name);
        let client = SocketAddrV4::new(CLIENT, port);
        for message in [3, 8] {
            let request = Request::parse(&with(&request, 53, &[message])).unwrap();
            let answer = answer(&request, &policy(), &at(BOOT_SERVER_PORT, client)).unwrap();
            assert_eq!((answer.to, answer.file.as_str()), (client, file), "{name}");
            assert_eq!(option(&answer.bytes, 53), Some(vec![ACK]), "{name}");
            assert_eq!(option(&answer.bytes, 43), Some(vendor.clone()), "{name}");
        }
        let discover = Request::parse(&with(&request, 53, &[1])).unwrap();
        assert_eq!(answer(&discover, &policy(), &at(BOOT_SERVER_PORT, client)), Err(Dropped::OtherMessage), "{name}");
        assert_eq!(broadcast(&with(&request, 53, &[8])), Err(Dropped::OtherMessage), "{name}");
    }
}

#[test]
fn on_port_67_only_a_request_that_names_us_is_confirmed() {
    let request = packet("ovmf-x64-2022.11-request");
    assert_eq!(broadcast(&with(&request, 54, &OTHER.octets())), Err(Dropped::ForAnotherServer));
    assert_eq!(broadcast(&without(&request, &[54])), Err(Dropped::ForAnotherServer));
    let answer = broadcast(&with(&request, 54, &US.octets())).unwrap();
    assert_eq!(option(&answer.bytes, 53), Some(vec![ACK]));
}

#[test]
fn the_architecture_is_that_of_the_option_and_bios_without_one() {
    let ovmf = packet("ovmf-x64-2022.11-discover");
    let rom = without(&packet("seabios-ipxe-2019-e1000-discover"), &[77, 175]);
    let file = |packet: &[u8]| broadcast(packet).map(|answer| answer.file);
    assert_eq!(file(&rom).as_deref(), Ok("x86_64/undionly.kpxe"));
    assert_eq!(file(&without(&rom, &[93])).as_deref(), Ok("x86_64/undionly.kpxe"));
    for (architecture, expected) in [
        (&[0, 7][..], Architecture::X64),
        (&[0, 9], Architecture::X64),
        (&[0, 16], Architecture::X64),
        (&[0, 11], Architecture::Arm64),
        (&[0, 19], Architecture::Arm64),
        (&[0, 0], Architecture::Bios),
        (&[0, 15], Architecture::Other(15)),
        // Of several numbers, the first known one counts.
        (&[0, 15, 0, 7], Architecture::X64),
        (&[7], Architecture::Bios),
    ] {
        let request = Request::parse(&with(&ovmf, 93, architecture)).unwrap();
        assert_eq!(request.architecture, expected, "{architecture:?}");
    }
}

#[test]
fn ipxe_is_known_by_either_sign_and_never_gets_itself() {
    let rom = packet("seabios-ipxe-2019-e1000-discover");
    for signs in [&[77][..], &[175], &[]] {
        assert_eq!(broadcast(&without(&rom, signs)).unwrap().file, SCRIPT, "without {signs:?}");
    }
    // As RFC 3004 has it, with lengths.
    let listed = with(&without(&rom, &[175]), 77, b"\x03abc\x04iPXE");
    assert_eq!(broadcast(&listed).unwrap().file, SCRIPT);
    assert_eq!(broadcast(&with(&without(&rom, &[175]), 77, b"\x09iPXE")).unwrap().file, "x86_64/undionly.kpxe");
}

#[test]
fn the_machine_is_read_as_its_operating_system_shows_it() {
    for name in ["ovmf-x64-2022.11-discover", "aavmf-arm64-2022.11-discover", "seabios-ipxe-2.0-e1000-discover"] {
        let machine = Request::parse(&packet(name)).unwrap().machine;
        assert_eq!((machine.mac, machine.uuid), (MAC, Some(UUID.to_be_bytes())), "{name}");
    }
    assert_eq!(Request::parse(&packet("u-boot-2023.01-arm64-pxe-discover")).unwrap().machine.uuid, None);
}

#[test]
fn an_answer_goes_through_the_relay_that_the_request_came_through() {
    let mut request = packet("ovmf-x64-2022.11-discover");
    request[24..28].copy_from_slice(&[192, 0, 2, 9]);
    let answer = broadcast(&request).unwrap();
    assert_eq!(answer.to, "192.0.2.9:67".parse().unwrap());
    assert_eq!(answer.bytes[24..28], [192, 0, 2, 9]);
}

#[test]
fn a_url_that_the_field_does_not_hold_is_in_the_option_alone() {
    let request = Request::parse(&packet("ovmf-x64-2022.11-http-discover")).unwrap();
    let answer = |length: usize| {
        let http = Files { x64: Some("u".repeat(length)), ..Files::default() };
        let policy = Policy { http, ..Policy::default() };
        answer(&request, &policy, &at(SERVER_PORT, SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 68)))
    };
    assert_eq!(answer(127).unwrap().bytes[108..235], [b'u'; 127]);
    assert_eq!(answer(128).unwrap().bytes[108..236], [0; 128]);
    assert_eq!(option(&answer(255).unwrap().bytes, 67), Some(vec![b'u'; 255]));
    assert_eq!(answer(256), Err(Dropped::TooLong));
}

#[test]
fn what_is_cut_off_or_not_of_a_client_is_no_request() {
    let whole = packet("ovmf-x64-2022.11-discover");
    for length in 0..240 {
        assert_eq!(Request::parse(&whole[..length]), None, "{length} bytes");
    }
    for (offset, why) in [(0, "a reply"), (1, "not Ethernet"), (2, "a long address"), (236, "no cookie")] {
        let mut changed = whole.clone();
        changed[offset] ^= 0xff;
        assert_eq!(Request::parse(&changed), None, "{why}");
    }
    assert_eq!(Request::parse(&without(&whole, &[53])), None, "no type");
    assert_eq!(broadcast(&with(&whole, 60, b"MSFT 5.0")), Err(Dropped::NotBooting));
}
