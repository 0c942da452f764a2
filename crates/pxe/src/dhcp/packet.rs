//! DHCP packets: a header of fixed size, then options (RFC 2131, section 2).

use std::net::Ipv4Addr;

use super::options::{code, each, find};

pub(crate) const BOOT_REQUEST: u8 = 1;
pub(crate) const BOOT_REPLY: u8 = 2;
const ETHERNET: u8 = 1;
const MAC_LENGTH: u8 = 6;
/// Offset and size in bytes of the boot file name field.
const FILE: (usize, usize) = (108, 128);
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Offset of the options, after the header and the magic cookie.
const HEADER: usize = 240;
/// Message size in bytes that every client accepts (RFC 2132, section 9.10).
const SMALLEST_LARGEST: u16 = 576;

/// DHCP message type (RFC 2132, section 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// DHCPDISCOVER: the client looks for servers.
    Discover,
    /// DHCPOFFER: a server makes an offer.
    Offer,
    /// DHCPREQUEST: the client takes an offer.
    Request,
    /// DHCPACK: the server confirms.
    Ack,
    /// DHCPINFORM: the client has an address and asks for the other settings.
    Inform,
    /// Any other type, by its number.
    Other(u8),
}

impl Message {
    fn new(number: u8) -> Self {
        match number {
            1 => Self::Discover,
            2 => Self::Offer,
            3 => Self::Request,
            5 => Self::Ack,
            8 => Self::Inform,
            other => Self::Other(other),
        }
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Discover => 1,
            Self::Offer => 2,
            Self::Request => 3,
            Self::Ack => 5,
            Self::Inform => 8,
            Self::Other(other) => other,
        }
    }
}

/// Kind of boot firmware, from the start of its class identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `PXEClient`: loads by TFTP (PXE 2.1).
    Pxe,
    /// `HTTPClient`: loads by HTTP (UEFI 2.10, section 24.7).
    Http,
}

impl Class {
    fn new(class: &[u8]) -> Option<Self> {
        [Self::Pxe, Self::Http].into_iter().find(|known| class.starts_with(known.as_str().as_bytes()))
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pxe => "PXEClient",
            Self::Http => "HTTPClient",
        }
    }
}

/// Client system architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// x86 BIOS.
    Bios,
    /// UEFI on x64.
    X64,
    /// UEFI on arm64.
    Arm64,
    /// Any other, by its number in IANA's list.
    Other(u16),
}

impl Architecture {
    /// Reads numbers of IANA's list of processor architecture types. The first known number counts. RFC 4578 and its
    /// errata swap 7 and 9, so x64 firmware sends either. Old BIOS firmware sends none.
    fn new(option: &[u8]) -> Self {
        let of = |number| match number {
            0 => Self::Bios,
            7 | 9 | 16 => Self::X64,
            11 | 19 => Self::Arm64,
            other => Self::Other(other),
        };
        let (pairs, _) = option.as_chunks();
        let mut all = pairs.iter().map(|pair| of(u16::from_be_bytes(*pair)));
        let known = all.clone().find(|architecture| !matches!(architecture, Self::Other(_)));
        known.or_else(|| all.next()).unwrap_or(Self::Bios)
    }
}

/// Identity of the machine that sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// MAC address of the network card.
    pub mac: [u8; 6],
    /// UUID in the byte order of its text form. On the wire the first three fields are little-endian, as in SMBIOS.
    pub uuid: Option<[u8; 16]>,
}

/// A DHCP request. Requests for other servers are parsed too, so that they can be recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Message type.
    pub message: Message,
    /// Transaction ID.
    pub xid: u32,
    /// Bit 15 asks for broadcast answers.
    pub flags: u16,
    /// `ciaddr`: the client's address, 0.0.0.0 if it has none.
    pub client: Ipv4Addr,
    /// `giaddr`: the relay that forwarded the request, 0.0.0.0 if none.
    pub relay: Ipv4Addr,
    /// MAC address and UUID of the machine.
    pub machine: Machine,
    /// Kind of boot firmware. `None` if the client is not boot firmware.
    pub class: Option<Class>,
    /// Architecture of the firmware.
    pub architecture: Architecture,
    /// Whether the client is iPXE.
    pub ipxe: bool,
    /// Whether this is a probe of another slipway ([`crate::probe`]).
    pub probe: bool,
    /// Server identifier, if the request is for one server.
    pub server: Option<Ipv4Addr>,
    /// Maximum size in bytes of an answer, including IP and UDP headers.
    pub largest_answer: u16,
    /// The offered address that the client takes.
    taken: Option<Ipv4Addr>,
    /// Option 97, copied into the answer.
    pub(crate) uuid_option: Vec<u8>,
    /// Value of option 43.
    pub(crate) vendor_options: Vec<u8>,
    wanted: Vec<u8>,
}

/// User class of a [`crate::probe`]. A proxy answers a probe even if it otherwise answers registered machines only.
pub(crate) const PROBE: &[u8] = b"slipway-probe";

impl Request {
    /// Parses a packet. `None` if it is not a DHCP request over Ethernet.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let (header, bytes) = read(packet, BOOT_REQUEST)?;
        let option = |code| find(bytes, code).unwrap_or_default();
        let user_class = option(code::USER_CLASS);
        let architecture = Architecture::new(option(code::ARCHITECTURE));
        let class = Class::new(option(code::CLASS));
        let address = |code| option(code).try_into().ok().map(|octets: [u8; 4]| Ipv4Addr::from(octets));
        let message = message(bytes)?;
        let largest = option(code::LARGEST).try_into().map_or(SMALLEST_LARGEST, u16::from_be_bytes);
        Some(Self {
            message,
            xid: header.xid,
            flags: header.flags,
            client: header.client,
            relay: header.relay,
            machine: Machine { mac: header.mac, uuid: uuid(option(code::UUID)) },
            class,
            architecture,
            ipxe: has_user_class(user_class, b"iPXE") || find(bytes, code::IPXE).is_some(),
            probe: has_user_class(user_class, PROBE),
            server: address(code::SERVER),
            largest_answer: largest.max(SMALLEST_LARGEST),
            // In other messages the address is only a preference.
            taken: address(code::ADDRESS).filter(|_| message == Message::Request),
            uuid_option: option(code::UUID).to_vec(),
            vendor_options: option(code::VENDOR).to_vec(),
            wanted: option(code::WANTED).to_vec(),
        })
    }

    /// The address that the client has or accepts, if it has chosen one. Clients broadcast their choice.
    pub fn address(&self) -> Option<Ipv4Addr> {
        Some(self.client).filter(|client| !client.is_unspecified()).or(self.taken)
    }

    pub(crate) fn wants(&self, code: u8) -> bool {
        self.wanted.contains(&code)
    }
}

fn message(options: &[u8]) -> Option<Message> {
    match find(options, code::MESSAGE_TYPE)? {
        [number] => Some(Message::new(*number)),
        _ => None,
    }
}

/// Returns whether a user class has this text, either in a list of texts with length bytes (RFC 3004) or as its whole
/// value, because iPXE sends one text without a length.
fn has_user_class(option: &[u8], wanted: &[u8]) -> bool {
    let mut rest = option;
    let listed = std::iter::from_fn(|| {
        let (&length, tail) = rest.split_first()?;
        let (text, tail) = tail.split_at_checked(usize::from(length))?;
        rest = tail;
        Some(text)
    });
    option == wanted || listed.into_iter().any(|text| text == wanted)
}

/// Parses a type byte of 0 and the UUID (RFC 4578, section 2.3).
fn uuid(option: &[u8]) -> Option<[u8; 16]> {
    let mut uuid: [u8; 16] = option.strip_prefix(&[0])?.try_into().ok()?;
    let (time, rest) = uuid.split_at_mut(4);
    let (middle, rest) = rest.split_at_mut(2);
    let (high, _) = rest.split_at_mut(2);
    [time, middle, high].into_iter().for_each(<[u8]>::reverse);
    Some(uuid)
}

/// The header fields that are used here.
pub(crate) struct Header {
    /// 1 for a request, 2 for a reply.
    pub op: u8,
    /// Transaction ID.
    pub xid: u32,
    /// Bit 15 asks for broadcast answers.
    pub flags: u16,
    /// `ciaddr`.
    pub client: Ipv4Addr,
    /// `siaddr`.
    pub server: Ipv4Addr,
    /// `giaddr`.
    pub relay: Ipv4Addr,
    /// `chaddr`.
    pub mac: [u8; 6],
}

impl Header {
    /// Whether the name fits into the boot file field with a terminating zero.
    pub fn fits(&self, file: &str) -> bool {
        file.len() < FILE.1
    }

    /// Returns everything before the options. `yiaddr`, the address given to the client, is always 0.
    pub fn write(&self, file: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 128);
        bytes.extend([self.op, ETHERNET, MAC_LENGTH, 0]);
        bytes.extend(self.xid.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.flags.to_be_bytes());
        for address in [self.client, Ipv4Addr::UNSPECIFIED, self.server, self.relay] {
            bytes.extend(address.octets());
        }
        bytes.extend(self.mac);
        bytes.resize(FILE.0, 0);
        bytes.extend(file.bytes().take(FILE.1 - 1));
        bytes.resize(FILE.0 + FILE.1, 0);
        bytes.extend(COOKIE);
        bytes
    }
}

/// Parses a packet over Ethernet into header and options.
fn read(packet: &[u8], wanted: u8) -> Option<(Header, &[u8])> {
    let (header, options) = packet.split_at_checked(HEADER)?;
    let mut rest = header;
    let [op, hardware, length, _hops] = take(&mut rest)?;
    let xid = u32::from_be_bytes(take(&mut rest)?);
    let [_, _, flags @ ..]: [u8; 4] = take(&mut rest)?;
    let [client, _yours, server, relay] = [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?, take(&mut rest)?];
    let mac = take(&mut rest)?;
    let cookie: [u8; 4] = header.last_chunk().copied()?;
    let is_it = op == wanted && hardware == ETHERNET && length == MAC_LENGTH && cookie == COOKIE;
    let [client, server, relay] = [client, server, relay].map(<Ipv4Addr as From<[u8; 4]>>::from);
    is_it.then_some((Header { op, xid, flags: u16::from_be_bytes(flags), client, server, relay, mac }, options))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// Returns the address of the proxy that sent this packet. `None` unless the packet answers one of these transactions,
/// is for PXE, and gives no address.
pub(crate) fn offered_by_a_proxy(packet: &[u8], exchanges: &[u32]) -> Option<Ipv4Addr> {
    let (header, options) = read(packet, BOOT_REPLY)?;
    let gives_address = packet.get(16..20).is_none_or(|yours| yours.iter().any(|&byte| byte != 0));
    let is_pxe = each(options).any(|(code, value)| code == code::CLASS && Class::new(value) == Some(Class::Pxe));
    let by: Option<[u8; 4]> = find(options, code::SERVER).and_then(|value| value.try_into().ok());
    (exchanges.contains(&header.xid) && !gives_address && is_pxe).then_some(by.map_or(header.server, Into::into))
}
