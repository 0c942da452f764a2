//! A network interface of this host, and sockets bound to it.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use crate::error::Error;

/// A network interface with an IPv4 address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth0`.
    pub name: String,
    /// First IPv4 address of the interface.
    pub address: Ipv4Addr,
    /// Length of the prefix that the address shares with the others of its network.
    pub prefix: u8,
    /// MAC address of the interface.
    pub mac: [u8; 6],
}

impl Interface {
    /// Looks an interface up by name.
    pub fn find(name: &str) -> Result<Self, Error> {
        let all = getifaddrs().map_err(|errno| Error::Interfaces { source: errno.into() })?;
        let all: Vec<_> = all.map(|each| (each.interface_name, each.address, each.netmask)).collect();
        let own = || all.iter().filter(|(each, ..)| each == name);
        let mac = own().find_map(|(_, address, _)| address.as_ref()?.as_link_addr()?.addr());
        let mac = mac.filter(|mac| *mac != [0; 6]);
        let address = own().find_map(|(_, address, mask)| {
            let mask = mask.as_ref().and_then(|mask| Some(mask.as_sockaddr_in()?.ip())).unwrap_or(Ipv4Addr::BROADCAST);
            Some((address.as_ref()?.as_sockaddr_in()?.ip(), mask))
        });
        if !all.iter().any(|(each, ..)| each == name) {
            let mut have: Vec<String> = all.into_iter().map(|(each, ..)| each).collect();
            have.sort();
            have.dedup();
            return Err(Error::NoInterface { name: name.to_owned(), have });
        }
        let lacks = |what| Error::NotUsable { name: name.to_owned(), what };
        let (address, mask) = address.ok_or_else(|| lacks("IPv4 address"))?;
        let prefix = u8::try_from(mask.to_bits().leading_ones()).unwrap_or(32);
        Ok(Self { name: name.to_owned(), address, prefix, mac: mac.ok_or_else(|| lacks("MAC address"))? })
    }

    /// Returns the network of the interface's address, such as `192.0.2.0/24`.
    pub fn network(&self) -> String {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        format!("{}/{}", Ipv4Addr::from_bits(self.address.to_bits() & mask), self.prefix)
    }

    /// Returns a socket that receives from this interface only. With `shared`, other programs on this host can bind the
    /// same port and receive the same broadcasts, if they also allow sharing.
    pub(crate) fn bind(&self, address: Ipv4Addr, port: u16, shared: bool) -> Result<UdpSocket, Error> {
        let made = make(&self.name, SocketAddrV4::new(address, port), shared);
        made.map_err(|source| self.why_not_bound(port, source))
    }

    fn why_not_bound(&self, port: u16, source: io::Error) -> Error {
        let interface = self.name.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted { interface, port, source },
            io::ErrorKind::AddrInUse => Error::InUse { interface, port, source },
            _ => Error::Socket { doing: "binding", interface, port, source },
        }
    }
}

fn make(interface: &str, address: SocketAddrV4, shared: bool) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    setsockopt(&socket, sockopt::BindToDevice, &OsString::from(interface))?;
    setsockopt(&socket, sockopt::Broadcast, &true)?;
    setsockopt(&socket, sockopt::ReuseAddr, &shared)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(UdpSocket::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_on_one_network_name_it_alike() {
        let network = |address: [u8; 4], prefix| {
            Interface { name: "a".to_owned(), address: address.into(), prefix, mac: [2; 6] }.network()
        };
        assert_eq!(network([192, 0, 2, 7], 24), "192.0.2.0/24");
        assert_eq!(network([192, 0, 2, 201], 26), "192.0.2.192/26");
        assert_eq!(network([192, 0, 2, 7], 32), "192.0.2.7/32");
        assert_eq!(network([192, 0, 2, 7], 0), "0.0.0.0/0");
    }

    #[test]
    fn an_interface_that_cannot_serve_is_refused_with_the_reason() {
        let why = |name| Interface::find(name).map_err(|error| error.to_string());
        let missing = why("no-such").unwrap_err();
        assert!(missing.contains("no network interface \"no-such\"; this host has "), "{missing}");
        assert!(missing.split(", ").any(|name| name.ends_with("lo")), "{missing}");
        assert!(why("lo").unwrap_err().contains("lo has no MAC address"));
    }
}
