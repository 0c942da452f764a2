//! The proxy on one interface. It listens to broadcasts on port 67 and to direct requests on port 4011.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;

use tokio::net::UdpSocket;

use crate::counters::{Counters, Dropped};
use crate::dhcp::{self, Addresses, BOOT_SERVER_PORT, Machine, Policy, Request, SERVER_PORT};
use crate::error::Error;
use crate::interface::Interface;

/// Largest DHCP request in bytes: the content of one Ethernet frame.
const LARGEST_REQUEST: usize = 1500;

/// A PXE proxy and its sockets.
pub struct Proxy {
    interface: Interface,
    /// Bound to no address, because broadcasts are not sent to the host's address.
    everybody: UdpSocket,
    us: UdpSocket,
    counters: Arc<Counters>,
}

impl Proxy {
    /// Binds both ports on the interface. Needs CAP_NET_BIND_SERVICE.
    pub fn bind(interface: &Interface, counters: Arc<Counters>) -> Result<Self, Error> {
        let bind = |address, port| {
            let interface_name = || interface.name.clone();
            UdpSocket::from_std(interface.bind(address, port, false)?).map_err(|source| Error::Socket {
                doing: "using",
                interface: interface_name(),
                port,
                source,
            })
        };
        let everybody = bind(Ipv4Addr::UNSPECIFIED, SERVER_PORT)?;
        let us = bind(interface.address, BOOT_SERVER_PORT)?;
        Ok(Self { interface: interface.clone(), everybody, us, counters })
    }

    /// Answers until the future is dropped. `policy` returns the boot files on offer now. `admit` decides whether a
    /// machine may be answered, and why not; it is called last because it may be slow. `admit` is also called for each
    /// machine that takes an address from another server, with that address.
    pub async fn run<P, A, F>(&self, policy: P, admit: A)
    where
        P: Fn() -> Policy,
        A: Fn(Machine, Option<Ipv4Addr>) -> F,
        F: Future<Output = Result<(), Dropped>>,
    {
        tokio::join!(
            self.answer_all(&self.everybody, SERVER_PORT, &policy, &admit),
            self.answer_all(&self.us, BOOT_SERVER_PORT, &policy, &admit)
        );
    }

    async fn answer_all<P, A, F>(&self, socket: &UdpSocket, port: u16, policy: &P, admit: &A)
    where
        P: Fn() -> Policy,
        A: Fn(Machine, Option<Ipv4Addr>) -> F,
        F: Future<Output = Result<(), Dropped>>,
    {
        let mut buffer = [0; LARGEST_REQUEST];
        loop {
            let (packet, client) = match socket.recv_from(&mut buffer).await {
                Ok((size, SocketAddr::V4(client))) => (buffer.get(..size).unwrap_or_default(), client),
                Ok(_) => continue,
                // The error belongs to an answer sent earlier.
                Err(error) => {
                    tracing::debug!(interface = self.interface.name, port, "receiving DHCP requests: {error}");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            match self.answer(socket, packet, client, port, policy, admit).await {
                Ok(()) => self.counters.count_answer(),
                Err(why) => {
                    self.counters.count_drop(why);
                    tracing::debug!(interface = self.interface.name, port, %client, why = why.as_str(), "not answered");
                }
            }
        }
    }

    async fn answer<P, A, F>(
        &self,
        socket: &UdpSocket,
        packet: &[u8],
        client: SocketAddrV4,
        port: u16,
        policy: &P,
        admit: &A,
    ) -> Result<(), Dropped>
    where
        P: Fn() -> Policy,
        A: Fn(Machine, Option<Ipv4Addr>) -> F,
        F: Future<Output = Result<(), Dropped>>,
    {
        let request = Request::parse(packet).ok_or(Dropped::MalformedDhcp)?;
        let addresses = Addresses { server: self.interface.address, port, client };
        let mut answer = dhcp::answer(&request, &policy(), &addresses);
        let address = request.address();
        // `admit` is also called for machines that take an address, even if there is no answer for them. A probe comes
        // from another slipway, which is not a registered machine.
        if request.class.is_some() && !request.probe && (answer.is_ok() || address.is_some()) {
            let admitted = admit(request.machine.clone(), address).await;
            answer = answer.and_then(|answer| admitted.map(|()| answer));
        }
        let answer = answer?;
        let sent = socket.send_to(&answer.bytes, answer.to).await;
        let (interface, to, file) = (&self.interface.name, answer.to, &answer.file);
        if let Err(error) = sent {
            tracing::warn!(interface, %to, "sending a DHCP answer to boot firmware: {error}");
            return Err(Dropped::NotSent);
        }
        let (message, architecture, ipxe) = (request.message, request.architecture, request.ipxe);
        tracing::debug!(interface, %to, file, ?message, ?architecture, ipxe, "answered boot firmware");
        Ok(())
    }
}
