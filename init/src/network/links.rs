//! Finds the network interfaces and brings them up.

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use rtnetlink::{LinkUnspec, LinkVlan};
use rustix::io::Errno;
use tokio::time::sleep;
use tracing::info;

use super::plan::Setup;
use super::{LOOK, Network};

/// An interface that is up and has a cable.
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: Vec<u8>,
}

/// Lists hardware interfaces and their MAC addresses. Bridges, tunnels and lo are not hardware.
pub(super) fn hardware() -> Vec<(String, String)> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let of_device = entries.filter(|entry| entry.path().join("device").exists());
    let name_and_mac = |entry: std::fs::DirEntry| {
        let mac = std::fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        Some((entry.file_name().into_string().ok()?, mac.trim().to_owned()))
    };
    of_device.filter_map(name_and_mac).collect()
}

impl Network {
    pub(super) async fn set_up(&self, name: &str) -> Result<()> {
        self.netlink.link().set(LinkUnspec::new_with_name(name).up().build()).execute().await?;
        Ok(())
    }

    /// Brings the hardware interface up and makes its VLAN. Waits for a cable.
    pub(super) async fn ready(&self, hardware: &str, setup: &Setup, says_so: bool) -> Result<Interface> {
        if let Some(mtu) = setup.hardware_mtu {
            self.set_mtu(hardware, mtu).await?;
        }
        self.set_up(hardware).await.with_context(|| format!("bringing up {hardware}"))?;
        let interface = self.wait_for_carrier(hardware, says_so).await?;
        let Some(id) = setup.vlan else { return Ok(interface) };
        let name = format!("{hardware}.{id}");
        let made = self.netlink.link().add(LinkVlan::new(&name, interface.index, id).build()).execute().await;
        match made {
            // Another way has already made the VLAN.
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -Errno::EXIST.raw_os_error() => {}
            made => made.with_context(|| format!("making the VLAN {id} of {hardware}"))?,
        }
        if let Some(mtu) = setup.mtu {
            self.set_mtu(&name, mtu).await?;
        }
        self.set_up(&name).await.with_context(|| format!("bringing up {name}"))?;
        self.wait_for_carrier(&name, says_so).await
    }

    async fn set_mtu(&self, name: &str, mtu: u32) -> Result<()> {
        let set = self.netlink.link().set(LinkUnspec::new_with_name(name).mtu(mtu).build()).execute().await;
        set.with_context(|| format!("setting the MTU of {name} to {mtu}, as the settings of the medium say"))
    }

    async fn wait_for_carrier(&self, name: &str, says_so: bool) -> Result<Interface> {
        let mut said = !says_so;
        loop {
            let link = self.link(name).await?;
            let mac = link.attributes.iter().find_map(|a| match a {
                LinkAttribute::Address(mac) => Some(mac.clone()),
                _ => None,
            });
            if has_carrier(&link)
                && let Some(mac) = mac
            {
                return Ok(Interface { name: name.to_owned(), index: link.header.index, mac });
            }
            if !std::mem::replace(&mut said, true) {
                info!("{name}: waiting for a cable");
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the state of an interface. Fails if it has no cable.
    pub(super) async fn connected(&self, name: &str) -> Result<LinkMessage> {
        let link = self.link(name).await?;
        ensure!(has_carrier(&link), "the cable is unplugged");
        Ok(link)
    }

    async fn link(&self, name: &str) -> Result<LinkMessage> {
        let mut links = self.netlink.link().get().match_name(name.to_owned()).execute();
        let link = links.try_next().await.with_context(|| format!("reading the state of {name}"))?;
        link.with_context(|| format!("{name} is gone"))
    }
}

fn has_carrier(link: &LinkMessage) -> bool {
    link.header.flags.contains(LinkFlags::LowerUp)
}
