//! DHCP requests of boot firmware (RFC 2131, RFC 2132, RFC 4578) and the answers of a PXE proxy (PXE 2.1, section 2.2),
//! which name a boot file and never give an address.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::counters::Dropped;

mod options;
mod packet;

pub use packet::{Architecture, Class, Machine, Message, Request};

use options::{code, find, push};
pub(crate) use packet::offered_by_a_proxy;
use packet::{BOOT_REPLY, BOOT_REQUEST, Header, PROBE};

/// UDP port of DHCP servers.
pub const SERVER_PORT: u16 = 67;
/// UDP port of DHCP clients.
pub const CLIENT_PORT: u16 = 68;
/// UDP port of PXE boot servers. Firmware asks there once it has an address.
pub const BOOT_SERVER_PORT: u16 = 4011;

/// Minimum length of an answer in bytes. Old firmware ignores answers shorter than a BOOTP packet (RFC 951).
const SHORTEST_ANSWER: usize = 300;
/// Sub-option of option 43: how the firmware is to use the answer (PXE 2.1, table 2-3).
const DISCOVERY_CONTROL: u8 = 6;
/// Value of [`DISCOVERY_CONTROL`]: load the boot file of this answer, without a menu or a search for boot servers.
const USE_THIS_FILE: u8 = 8;
/// Sub-option of option 43: the boot item that the firmware chose.
const BOOT_ITEM: u8 = 71;
/// File name in the answer to a probe from another slipway, which only checks whether a proxy answers.
const PROBE_FILE: &str = "slipway";

/// The boot files on offer. Firmware for which there is none gets no answer and tries its next boot option.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Names of files for firmware that loads by TFTP.
    pub tftp: Files,
    /// URLs for firmware that loads by HTTP.
    pub http: Files,
    /// URL of the script for iPXE.
    pub script: Option<String>,
}

/// A boot program for each kind of firmware. `None` if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// For BIOS.
    pub bios: Option<String>,
    /// For UEFI on x64.
    pub x64: Option<String>,
    /// For UEFI on arm64.
    pub arm64: Option<String>,
}

impl Files {
    fn of(&self, architecture: Architecture) -> Option<&str> {
        match architecture {
            Architecture::Bios => self.bios.as_deref(),
            Architecture::X64 => self.x64.as_deref(),
            Architecture::Arm64 => self.arm64.as_deref(),
            Architecture::Other(_) => None,
        }
    }
}

/// The two ends of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The server's address on the interface.
    pub server: Ipv4Addr,
    /// The server's port that the request arrived at: [`SERVER_PORT`] or [`BOOT_SERVER_PORT`].
    pub port: u16,
    /// The client's address and port. The address is 0.0.0.0 before the client has one.
    pub client: SocketAddrV4,
}

/// An answer, ready to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The DHCP packet.
    pub bytes: Vec<u8>,
    /// Destination address and port.
    pub to: SocketAddrV4,
    /// The boot file's name or URL in the answer, for the log.
    pub file: String,
}

/// Answers a request, or says why not. Does not check whether the machine may be answered; the caller does.
pub fn answer(request: &Request, policy: &Policy, addresses: &Addresses) -> Result<Answer, Dropped> {
    let kind = kind_of_answer(request, addresses)?;
    let file = file(request, policy).ok_or(Dropped::NoBootFile)?;
    let bytes = write(request, kind, file, addresses.server)?;
    // The maximum includes the UDP and IP headers (RFC 2132, section 9.10, and RFC 791).
    if bytes.len() + 28 > usize::from(request.largest_answer) {
        return Err(Dropped::TooLong);
    }
    Ok(Answer { bytes, to: destination(request, addresses), file: file.to_owned() })
}

/// Returns the type of the answer. Requests to port 67 are broadcast, so only requests for all servers or for this
/// server get one. Requests to port 4011 are not broadcast.
fn kind_of_answer(request: &Request, addresses: &Addresses) -> Result<Message, Dropped> {
    if request.class.is_none() {
        return Err(Dropped::NotBooting);
    }
    match (addresses.port, request.message) {
        (SERVER_PORT, Message::Discover) => Ok(Message::Offer),
        (SERVER_PORT, Message::Request) if request.server == Some(addresses.server) => Ok(Message::Ack),
        (SERVER_PORT, Message::Request) => Err(Dropped::ForAnotherServer),
        (BOOT_SERVER_PORT, Message::Request | Message::Inform) => Ok(Message::Ack),
        _ => Err(Dropped::OtherMessage),
    }
}

/// Returns the boot file's name or URL. iPXE identifies itself, however it was loaded, and gets the script: with an
/// iPXE as the boot file, it would load iPXE in a loop.
fn file<'a>(request: &Request, policy: &'a Policy) -> Option<&'a str> {
    if request.probe {
        return Some(PROBE_FILE);
    }
    match (request.ipxe, request.class?) {
        (true, _) => policy.script.as_deref(),
        (false, Class::Pxe) => policy.tftp.of(request.architecture),
        (false, Class::Http) => policy.http.of(request.architecture),
    }
}

/// Returns where to send the answer, as in RFC 2131, section 4.1, for an answer that gives no address. On port 4011 the
/// client has an address, and may use any port.
fn destination(request: &Request, addresses: &Addresses) -> SocketAddrV4 {
    if !request.relay.is_unspecified() {
        SocketAddrV4::new(request.relay, SERVER_PORT)
    } else if addresses.port == BOOT_SERVER_PORT && !addresses.client.ip().is_unspecified() {
        addresses.client
    } else if !request.client.is_unspecified() {
        SocketAddrV4::new(request.client, CLIENT_PORT)
    } else {
        SocketAddrV4::new(Ipv4Addr::BROADCAST, CLIENT_PORT)
    }
}

fn write(request: &Request, kind: Message, file: &str, server: Ipv4Addr) -> Result<Vec<u8>, Dropped> {
    let header = Header {
        op: BOOT_REPLY,
        xid: request.xid,
        flags: request.flags,
        client: request.client,
        server,
        relay: request.relay,
        mac: request.machine.mac,
    };
    let class = request.class.ok_or(Dropped::NotBooting)?;
    let fits = header.fits(file);
    let mut bytes = header.write(if fits { file } else { "" });
    let mut option = |code, value: &[u8]| push(&mut bytes, code, value).ok_or(Dropped::TooLong);
    option(code::MESSAGE_TYPE, &[kind.number()])?;
    option(code::SERVER, &server.octets())?;
    option(code::CLASS, class.as_str().as_bytes())?;
    if !request.uuid_option.is_empty() {
        option(code::UUID, &request.uuid_option)?;
    }
    if class == Class::Pxe {
        option(code::VENDOR, &vendor_options(request))?;
    }
    if request.wants(code::TFTP_SERVER) && class == Class::Pxe {
        option(code::TFTP_SERVER, server.to_string().as_bytes())?;
    }
    // HTTP firmware reads the URL from this option only (UEFI 2.10, section 24.7.3).
    if request.wants(code::BOOT_FILE) || class == Class::Http || !fits {
        option(code::BOOT_FILE, file.as_bytes())?;
    }
    bytes.push(code::END);
    bytes.resize(bytes.len().max(SHORTEST_ANSWER), 0);
    Ok(bytes)
}

fn vendor_options(request: &Request) -> Vec<u8> {
    let mut options = vec![DISCOVERY_CONTROL, 1, USE_THIS_FILE];
    // Firmware that chose a boot item expects the same item in the answer.
    if let Some(item) = find(&request.vendor_options, BOOT_ITEM).filter(|item| item.len() == 4) {
        options.extend([BOOT_ITEM, 4]);
        options.extend(item);
    }
    options.push(code::END);
    options
}

/// Returns a request like firmware's (UEFI on x64, or BIOS) that a proxy would answer. Asks for broadcast answers.
pub(crate) fn probe(xid: u32, mac: [u8; 6], uefi: bool) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let header = Header { op: BOOT_REQUEST, xid, flags: 0x8000, client: none, server: none, relay: none, mac };
    let (class, architecture): (&[u8], _) = match uefi {
        true => (b"PXEClient:Arch:00007:UNDI:003016", [0, 7]),
        false => (b"PXEClient:Arch:00000:UNDI:002001", [0, 0]),
    };
    // A user class with its length (RFC 3004).
    let user_class: Vec<u8> = [&[PROBE.len().to_le_bytes()[0]], PROBE].concat();
    let options: [(u8, &[u8]); 6] = [
        (code::MESSAGE_TYPE, &[Message::Discover.number()]),
        (code::WANTED, &[code::VENDOR, code::SERVER, code::CLASS, code::TFTP_SERVER, code::BOOT_FILE]),
        (code::CLASS, class),
        (code::USER_CLASS, &user_class),
        (code::ARCHITECTURE, &architecture),
        (code::INTERFACE, &[1, 3, 16]),
    ];
    let mut bytes = header.write("");
    for (code, value) in options {
        // No value is longer than an option allows.
        let _ = push(&mut bytes, code, value);
    }
    bytes.push(code::END);
    bytes.resize(bytes.len().max(SHORTEST_ANSWER), 0);
    bytes
}
