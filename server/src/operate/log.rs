//! Logs of nodes.

use std::io::Read;

use serde::{Deserialize, Serialize};
use slipway_protocol::HOST_BOOT_LOG;
use slipway_protocol::shared::printable;

use super::known_node;
use crate::base::error::Error;
use crate::store::nodes::Node;
use crate::store::{Store, boot_reports, logs};

/// A log of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum, utoipa::ToSchema)]
pub enum LogType {
    /// Log of the kernel and of slipway, while slipway runs on the machine.
    #[default]
    #[serde(rename = "installer")]
    Installer,
    /// Log of the installed system, as its boot reporter last sent it.
    #[serde(rename = "host_boot")]
    #[value(name = HOST_BOOT_LOG)]
    HostBoot,
}

/// Returns the newest log of a node. Empty if there is none.
pub async fn node_log(store: &Store, reference: &str, kind: LogType) -> Result<String, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    match kind {
        LogType::Installer => {
            Ok(printable::lines(&logs::text(&logs::newest_of(&mut connection, &node.id).await?)).into_owned())
        }
        LogType::HostBoot => {
            let log = boot_reports::newest_log(&mut connection, &node.id, HOST_BOOT_LOG).await?;
            log.map_or(Ok(String::new()), |log| unpacked(&log, &node))
        }
    }
}

/// Decompresses a log. Its size after decompression was checked before it was stored.
fn unpacked(log: &[u8], node: &Node) -> Result<String, Error> {
    let mut text = Vec::new();
    let failed = |source| Error::Log { node: node.label().to_owned(), source };
    flate2::read::GzDecoder::new(log).read_to_end(&mut text).map_err(failed)?;
    // The log is shown in terminals, and anyone with the token can write it.
    Ok(printable::lines(&String::from_utf8_lossy(&text)).into_owned())
}
