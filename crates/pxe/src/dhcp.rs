//! Requests of boot firmware by DHCP (RFC 2131, RFC 2132, RFC 4578), and what a PXE proxy answers (PXE 2.1, section 2.2):
//! a boot file, and never an address.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::counters::Dropped;

mod options;
mod packet;

pub use packet::{Architecture, Class, Machine, Message, Request};

use options::{code, find, push};
pub(crate) use packet::offered_by_a_proxy;
use packet::{BOOT_REPLY, BOOT_REQUEST, Header, PROBE};

/// The port of DHCP servers.
pub const SERVER_PORT: u16 = 67;
/// The port of DHCP clients.
pub const CLIENT_PORT: u16 = 68;
/// The port of PXE boot servers, which firmware asks once it has an address.
pub const BOOT_SERVER_PORT: u16 = 4011;

/// Old firmware ignores answers that are shorter than a BOOTP packet (RFC 951).
const SHORTEST_ANSWER: usize = 300;
/// Sub-option of option 43: what the firmware is to do with what it got (PXE 2.1, table 2-3).
const DISCOVERY_CONTROL: u8 = 6;
/// Take the boot file of this answer: no menu, no search for boot servers.
const USE_THIS_FILE: u8 = 8;
/// Sub-option of option 43: what the firmware chose to boot.
const BOOT_ITEM: u8 = 71;
/// Another slipway only wants to know that there is one.
const PROBE_FILE: &str = "slipway";

/// What is handed out. What is missing is not offered, so firmware goes on to its next way to boot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Names of files for firmware that loads by TFTP.
    pub tftp: Files,
    /// URLs for firmware that loads by HTTP.
    pub http: Files,
    /// URL of the script for iPXE.
    pub script: Option<String>,
}

/// A boot program for each kind of firmware.
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

/// Between whom a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Our address on the interface.
    pub server: Ipv4Addr,
    /// Our port at which it arrived: [`SERVER_PORT`] or [`BOOT_SERVER_PORT`].
    pub port: u16,
    /// The client's address and port. The address is 0 before it has one.
    pub client: SocketAddrV4,
}

/// An answer to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The packet.
    pub bytes: Vec<u8>,
    /// Where it is sent.
    pub to: SocketAddrV4,
    /// The file name or URL that it gives.
    pub file: String,
}

/// Answers a request, or says why not. Whether its machine is to be answered at all is not asked here.
pub fn answer(request: &Request, policy: &Policy, addresses: &Addresses) -> Result<Answer, Dropped> {
    let kind = kind_of_answer(request, addresses)?;
    let file = file(request, policy).ok_or(Dropped::NoBootFile)?;
    let bytes = write(request, kind, file, addresses.server)?;
    // UDP and IP headers count too (RFC 2132, section 9.10, and RFC 791).
    if bytes.len() + 28 > usize::from(request.largest_answer) {
        return Err(Dropped::TooLong);
    }
    Ok(Answer { bytes, to: destination(request, addresses), file: file.to_owned() })
}

/// On port 67 everybody is asked, so only what is meant for all or for us is answered. Port 4011 is ours.
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

/// iPXE says that it is iPXE, whatever loaded it: given iPXE again, it would load itself for ever.
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

/// As in RFC 2131, section 4.1, for an answer that gives no address. On port 4011 the client has one, and may listen on
/// a port of its own.
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
    // HTTP firmware reads the URL nowhere else (UEFI 2.10, section 24.7.3).
    if request.wants(code::BOOT_FILE) || class == Class::Http || !fits {
        option(code::BOOT_FILE, file.as_bytes())?;
    }
    bytes.push(code::END);
    bytes.resize(bytes.len().max(SHORTEST_ANSWER), 0);
    Ok(bytes)
}

fn vendor_options(request: &Request) -> Vec<u8> {
    let mut options = vec![DISCOVERY_CONTROL, 1, USE_THIS_FILE];
    // Firmware that chose an item looks for its choice in the answer.
    if let Some(item) = find(&request.vendor_options, BOOT_ITEM).filter(|item| item.len() == 4) {
        options.extend([BOOT_ITEM, 4]);
        options.extend(item);
    }
    options.push(code::END);
    options
}

/// A request as firmware sends it, which a proxy would answer: of UEFI on x64, or of BIOS. Answers are to be broadcast.
pub(crate) fn probe(xid: u32, mac: [u8; 6], uefi: bool) -> Vec<u8> {
    let none = Ipv4Addr::UNSPECIFIED;
    let header = Header { op: BOOT_REQUEST, xid, flags: 0x8000, client: none, server: none, relay: none, mac };
    let (class, architecture): (&[u8], _) = match uefi {
        true => (b"PXEClient:Arch:00007:UNDI:003016", [0, 7]),
        false => (b"PXEClient:Arch:00000:UNDI:002001", [0, 0]),
    };
    // As in RFC 3004, with its length.
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
        // Each is short.
        let _ = push(&mut bytes, code, value);
    }
    bytes.push(code::END);
    bytes.resize(bytes.len().max(SHORTEST_ANSWER), 0);
    bytes
}
