//! Checks whether another proxy DHCP server already answers boot firmware. Sends a request like firmware's, because
//! such servers send nothing unasked.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::dhcp::{CLIENT_PORT, SERVER_PORT, offered_by_a_proxy, probe};
use crate::error::Error;
use crate::interface::Interface;

/// How long to wait for offers.
const WAIT: Duration = Duration::from_secs(2);
/// Interval at which the request is repeated, because a packet may be lost.
const AGAIN: Duration = Duration::from_secs(1);
/// Largest packet in one Ethernet frame, in bytes.
const LARGEST_PACKET: usize = 1500;

/// Fails with the address of another proxy DHCP server that answers on the interface. `exchange` is a transaction ID
/// that no client uses.
pub async fn refuse_if_answered(interface: &Interface, exchange: u32) -> Result<(), Error> {
    let failed = |doing| {
        let interface = interface.name.clone();
        move |source| Error::Socket { doing, interface, port: CLIENT_PORT, source }
    };
    // Shared, because the host's own DHCP client may use the port.
    let socket = interface.bind(Ipv4Addr::UNSPECIFIED, CLIENT_PORT, true)?;
    let socket = UdpSocket::from_std(socket).map_err(failed("using"))?;
    let exchanges = [exchange, exchange.wrapping_add(1)];
    let packets = exchanges.map(|xid| probe(xid, interface.mac, xid == exchange));
    let start = Instant::now();
    let ask = async {
        for at in [start, start + AGAIN] {
            sleep_until(at).await;
            for packet in &packets {
                let sent = socket.send_to(packet, (Ipv4Addr::BROADCAST, SERVER_PORT)).await;
                sent.map_err(failed("sending from"))?;
            }
        }
        std::future::pending::<Result<Ipv4Addr, Error>>().await
    };
    let listen = async {
        let mut buffer = [0; LARGEST_PACKET];
        loop {
            let (size, _) = socket.recv_from(&mut buffer).await.map_err(failed("receiving from"))?;
            let packet = buffer.get(..size).unwrap_or_default();
            if let Some(address) = offered_by_a_proxy(packet, &exchanges) {
                return Ok(address);
            }
        }
    };
    let answered = timeout_at(start + WAIT, async {
        tokio::select! { asked = ask => asked, heard = listen => heard }
    });
    match answered.await {
        Err(_) => Ok(()),
        Ok(Err(error)) => Err(error),
        Ok(Ok(address)) => Err(Error::OtherProxy { interface: interface.name.clone(), address }),
    }
}
