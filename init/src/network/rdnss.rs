//! Name servers in router advertisements (RFC 8106). The kernel checks each advertisement and passes on these options,
//! which it does not use itself (`ndisc_ra_useropt` in net/ipv6/ndisc.c). No crate parses the kernel's messages.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with, sockopt,
};
use tracing::warn;

/// The netlink group that receives these options, as a bit (include/uapi/linux/rtnetlink.h, RTNLGRP_ND_USEROPT).
const GROUP: u32 = 1 << 19;
/// Type of the message with such an option (RTM_NEWNDUSEROPT), and the sizes in bytes of what precedes the option
/// (struct nlmsghdr, struct nduseroptmsg).
const MESSAGE: u16 = 68;
const HEADER: usize = 16;
const OPTION_HEADER: usize = 16;
/// Code of the option with name servers (RFC 8106, section 5.1), and the size in bytes of what precedes its addresses.
const RDNSS: u8 = 25;
const BEFORE_ADDRESSES: usize = 8;
/// Maximum number of name servers kept for an interface. The resolver uses three.
const MOST: usize = 8;
/// Size of the receive buffer in bytes: more than the headers and the longest option, 255 units of 8 bytes.
const LONGEST: usize = 4096;

/// Name servers, by interface index.
#[derive(Clone, Default)]
pub(super) struct NameServers(Arc<Mutex<BTreeMap<u32, Known>>>);

#[derive(Default)]
struct Known {
    /// Name servers from routers, with their expiry.
    advertised: Vec<(Ipv6Addr, Instant)>,
    /// Name servers from DHCPv6.
    leased: Vec<Ipv6Addr>,
}

/// The name servers in one advertisement.
#[derive(Debug, PartialEq, Eq)]
struct Advertised {
    interface: u32,
    lifetime: Duration,
    servers: Vec<Ipv6Addr>,
}

impl NameServers {
    /// Listens for advertisements in a thread from now on.
    pub(super) fn listen() -> io::Result<Self> {
        // NETLINK_ROUTE is protocol 0.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        let known = Self::default();
        let learning = known.clone();
        std::thread::Builder::new().name("name-servers".to_owned()).spawn(move || {
            let error = learning.learn(&socket);
            warn!("listening for name servers that routers advertise: {error}");
        })?;
        Ok(known)
    }

    /// Stores what the kernel sends on the socket. Returns only on an error.
    fn learn(&self, socket: &OwnedFd) -> Errno {
        let mut buffer = vec![0; LONGEST];
        loop {
            match recv(socket, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => {
                    if let Some(advertised) = parse(buffer.get(..length).unwrap_or_default()) {
                        self.set_advertised(advertised, Instant::now());
                    }
                }
                // Messages were lost. Routers repeat their advertisements.
                Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(error) => return error,
            }
        }
    }

    fn set_advertised(&self, new: Advertised, now: Instant) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut all.entry(new.interface).or_default().advertised;
        // Expired servers are removed. A lifetime of zero expires immediately (section 5.1).
        known.retain(|(server, until)| *until > now && !new.servers.contains(server));
        if let Some(until) = now.checked_add(new.lifetime).filter(|until| *until > now) {
            known.extend(new.servers.into_iter().map(|server| (server, until)));
            known.truncate(MOST);
        }
    }

    pub(super) fn set_leased(&self, interface: u32, servers: Vec<Ipv6Addr>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(interface).or_default().leased = servers;
    }

    /// Returns the name servers of an interface, those from routers first.
    pub(super) fn of(&self, interface: u32) -> Vec<Ipv6Addr> {
        self.at(interface, Instant::now())
    }

    fn at(&self, interface: u32, now: Instant) -> Vec<Ipv6Addr> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = all.get(&interface) else { return Vec::new() };
        let mut servers: Vec<Ipv6Addr> =
            known.advertised.iter().filter(|(_, until)| *until > now).map(|(server, _)| *server).collect();
        servers
            .extend(known.leased.iter().filter(|leased| !known.advertised.iter().any(|(server, _)| server == *leased)));
        servers
    }
}

/// Asks the routers of an interface for an advertisement (RFC 4861, section 4.1). The kernel asks when an interface
/// comes up, but advertisements from before this program started are lost. A failure only costs time, because routers
/// also advertise regularly.
pub(super) fn solicit(interface: u32) {
    let ask = || -> rustix::io::Result<()> {
        let icmp = Some(rustix::net::ipproto::ICMPV6);
        let socket = socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, icmp)?;
        // Routers ignore solicitations that may have been forwarded.
        sockopt::set_ipv6_multicast_hops(&socket, 255)?;
        let all_routers = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2), 0, 0, interface);
        // Type 133. The kernel computes the checksum.
        sendto(&socket, &[133, 0, 0, 0, 0, 0, 0, 0], SendFlags::empty(), &all_routers)?;
        Ok(())
    };
    let _ = ask();
}

/// Parses one message of the kernel. Returns `None` if it has no name servers.
fn parse(message: &[u8]) -> Option<Advertised> {
    let kind: [u8; 2] = message.get(4..6)?.try_into().ok()?;
    if u16::from_ne_bytes(kind) != MESSAGE {
        return None;
    }
    let about = message.get(HEADER..)?;
    let interface: [u8; 4] = about.get(4..8)?.try_into().ok()?;
    let option = about.get(OPTION_HEADER..)?;
    let (kind, units) = (option.first()?, usize::from(*option.get(1)?));
    let option = option.get(..units * 8)?;
    let lifetime: [u8; 4] = option.get(4..8)?.try_into().ok()?;
    let addresses = option.get(BEFORE_ADDRESSES..)?.chunks_exact(16);
    let servers = addresses.filter_map(|bytes| <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from)).take(MOST);
    (*kind == RDNSS).then(|| Advertised {
        interface: u32::from_ne_bytes(interface),
        lifetime: Duration::from_secs(u32::from_be_bytes(lifetime).into()),
        servers: servers.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, option: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER + OPTION_HEADER];
        message.splice(4..6, kind.to_ne_bytes());
        message.splice(20..24, 7_u32.to_ne_bytes());
        [message, option.to_vec()].concat()
    }

    fn option(lifetime: u32, servers: &[Ipv6Addr]) -> Vec<u8> {
        let units = 1 + 2 * servers.len() as u8;
        let servers: Vec<u8> = servers.iter().flat_map(Ipv6Addr::octets).collect();
        [&[RDNSS, units, 0, 0][..], &lifetime.to_be_bytes(), &servers].concat()
    }

    const ONE: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
    const TWO: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn name_servers_are_read_and_nothing_else() {
        let right = message(MESSAGE, &option(600, &[ONE, TWO]));
        let expect = Advertised { interface: 7, lifetime: Duration::from_secs(600), servers: vec![ONE, TWO] };
        assert_eq!(parse(&right), Some(expect));
        for length in 0..right.len() {
            assert_eq!(parse(right.get(..length).unwrap_or_default()), None, "{length} bytes");
        }
        assert_eq!(parse(&message(MESSAGE + 1, &option(600, &[ONE]))), None);
        // An option with domains, and an option with a length of zero.
        assert_eq!(parse(&message(MESSAGE, &[31, 1, 0, 0, 0, 0, 0, 9])), None);
        assert_eq!(parse(&message(MESSAGE, &[RDNSS, 0, 0, 0, 0, 0, 0, 9])), None);
        let many = parse(&message(MESSAGE, &option(600, &[ONE; 100]))).map(|advertised| advertised.servers.len());
        assert_eq!(many, Some(MOST));
    }

    #[test]
    fn name_servers_count_until_their_time_is_over() {
        let (known, now) = (NameServers::default(), Instant::now());
        let hear = |seconds: u64, server| {
            let lifetime = Duration::from_secs(seconds);
            known.set_advertised(Advertised { interface: 7, lifetime, servers: vec![server] }, now);
        };
        hear(600, ONE);
        hear(60, TWO);
        known.set_leased(7, vec![ONE, Ipv6Addr::LOCALHOST]);
        assert_eq!(known.at(7, now), [ONE, TWO, Ipv6Addr::LOCALHOST]);
        assert_eq!(known.at(7, now + Duration::from_secs(61)), [ONE, Ipv6Addr::LOCALHOST]);
        assert_eq!(known.at(8, now), [Ipv6Addr::LOCALHOST; 0]);
        hear(0, TWO);
        assert_eq!(known.at(7, now), [ONE, Ipv6Addr::LOCALHOST]);
    }
}
