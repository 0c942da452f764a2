//! Properties of a network interface that only netlink shows (rtnetlink(7)): its addresses, and its permanent MAC
//! address even if another one is set, as on the members of a bond.

use std::collections::BTreeMap;
use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::files::Notes;

/// Maximum number of addresses kept per interface.
const MAX_ADDRESSES: usize = 64;

/// What netlink adds to the values in sysfs.
#[derive(Clone, Debug, Default)]
pub(super) struct Link {
    /// Permanent MAC address in hexadecimal with colons.
    pub(super) permanent_mac: Option<String>,
    /// Addresses with prefix length, sorted.
    pub(super) addresses: Vec<String>,
}

/// Returns all interfaces of the running kernel, by name. An interface that cannot be decoded is noted and left out.
pub(super) fn links(notes: &mut Notes) -> io::Result<BTreeMap<String, Link>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut links: BTreeMap<u32, (String, Link)> = BTreeMap::new();
    for message in dump(&socket, RouteNetlinkMessage::GetLink(LinkMessage::default()), notes)? {
        let RouteNetlinkMessage::NewLink(message) = message else { continue };
        let mut link = Link::default();
        let mut name = None;
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(text) => name = Some(text),
                LinkAttribute::PermAddress(bytes) => {
                    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    link.permanent_mac = Some(pairs.join(":"));
                }
                _ => {}
            }
        }
        if let Some(name) = name {
            links.insert(message.header.index, (name, link));
        }
    }
    for message in dump(&socket, RouteNetlinkMessage::GetAddress(AddressMessage::default()), notes)? {
        let RouteNetlinkMessage::NewAddress(message) = message else { continue };
        let Some((_, link)) = links.get_mut(&message.header.index) else { continue };
        if link.addresses.len() < MAX_ADDRESSES {
            link.addresses.extend(address(&message));
        }
    }
    for (_, link) in links.values_mut() {
        link.addresses.sort();
    }
    Ok(links.into_values().collect())
}

/// Returns the interface's own address. On point-to-point links, `Local` is its own address and `Address` the peer's.
/// IPv6 has only `Address`.
fn address(message: &AddressMessage) -> Option<String> {
    let find = |want_local: bool| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) if want_local => Some(ip),
            AddressAttribute::Address(ip) if !want_local => Some(ip),
            _ => None,
        })
    };
    let ip = find(true).or_else(|| find(false))?;
    Some(format!("{ip}/{}", message.header.prefix_len))
}

/// Sends a dump request, and returns the kernel's whole answer.
fn dump(socket: &Socket, request: RouteNetlinkMessage, notes: &mut Notes) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
    request.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut answers = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let length = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?.length() as usize;
            match NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map(|message| message.payload) {
                Ok(NetlinkPayload::Done(_)) => return Ok(answers),
                Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                Ok(NetlinkPayload::InnerMessage(answer)) => answers.push(answer),
                Ok(_) => {}
                // A message of a newer kernel that cannot be decoded must not hide the other interfaces.
                Err(error) => notes.push(format!("decoding a netlink message: {error}")),
            }
            // Messages start at multiples of four bytes (netlink(7), NLMSG_ALIGN).
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}
