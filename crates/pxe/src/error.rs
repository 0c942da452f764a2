//! Why network boot cannot be offered.

use std::io;
use std::net::Ipv4Addr;

/// A proxy could not be started, or an answer not be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The addresses of the host's interfaces could not be read.
    #[error("reading the addresses of this host's network interfaces")]
    Interfaces {
        /// Why it failed.
        source: io::Error,
    },
    /// The host has no such interface.
    #[error("there is no network interface {name:?}; this host has {}", have.join(", "))]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        have: Vec<String>,
    },
    /// The interface cannot serve IPv4.
    #[error("the network interface {name} has no {what}; answers to boot firmware are sent over Ethernet and IPv4")]
    NotUsable {
        /// The interface.
        name: String,
        /// What it lacks.
        what: &'static str,
    },
    /// The process may not use low ports.
    #[error(
        "binding UDP port {port} on {interface} is not permitted: give the server the capability CAP_NET_BIND_SERVICE \
         (and CAP_NET_RAW before Linux 5.7), or run it as root"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Why it failed.
        source: io::Error,
    },
    /// Another program of this host has the port.
    #[error("UDP port {port} on {interface} is used by another program of this host, which must be stopped first")]
    InUse {
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Why it failed.
        source: io::Error,
    },
    /// A socket could not be used.
    #[error("{doing} UDP port {port} on {interface}")]
    Socket {
        /// What was being done.
        doing: &'static str,
        /// The interface.
        interface: String,
        /// The port.
        port: u16,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else already tells machines what to boot.
    #[error(
        "{address} already answers boot firmware on {interface}, and a machine that gets two answers takes either; stop \
         that proxy first, or do without --proxy-dhcp"
    )]
    OtherProxy {
        /// The interface on which it answered.
        interface: String,
        /// Its address.
        address: Ipv4Addr,
    },
}
