//! Errors of starting a proxy and sending its answers.

use std::io;
use std::net::Ipv4Addr;

/// A proxy could not be started, or could not send an answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// The addresses of the host's interfaces could not be read.
    #[error("reading the addresses of this host's network interfaces")]
    Interfaces { source: io::Error },
    /// The host has no interface with this name.
    #[error("there is no network interface {name:?}; this host has {}", have.join(", "))]
    NoInterface { name: String, have: Vec<String> },
    /// The interface cannot be used for DHCP over IPv4.
    #[error("the network interface {name} has no {what}; answers to boot firmware are sent over Ethernet and IPv4")]
    NotUsable {
        name: String,
        /// What is missing, such as "IPv4 address".
        what: &'static str,
    },
    /// The process may not bind ports below 1024.
    #[error(
        "binding UDP port {port} on {interface} is not permitted: give the server the capability CAP_NET_BIND_SERVICE \
         (and CAP_NET_RAW before Linux 5.7), or run it as root"
    )]
    NotPermitted { interface: String, port: u16, source: io::Error },
    /// Another program on this host uses the port.
    #[error("UDP port {port} on {interface} is used by another program on this host; stop that program first")]
    InUse { interface: String, port: u16, source: io::Error },
    /// An operation on a socket failed.
    #[error("{doing} UDP port {port} on {interface}")]
    Socket {
        /// The operation, such as "receiving from".
        doing: &'static str,
        interface: String,
        port: u16,
        source: io::Error,
    },
    /// Another proxy DHCP server already answers boot firmware on this network.
    #[error(
        "another PXE proxy, {address}, already answers on {interface}, and machines would use either answer; stop \
         that proxy first, or start without --proxy-dhcp"
    )]
    OtherProxy {
        /// Name of the interface on which the other proxy answered.
        interface: String,
        /// IPv4 address of the other proxy.
        address: Ipv4Addr,
    },
}
