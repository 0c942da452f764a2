//! Logs of nodes.

use std::io::Read;

use serde::{Deserialize, Serialize};
use slipway_protocol::shared::printable;
use slipway_protocol::{ErrorCode, HOST_BOOT_LOG};

use super::known_node;
use crate::base::error::Error;
use crate::store::logs::{self, LoggedBoot};
use crate::store::nodes::Node;
use crate::store::{Connection, Store, boot_reports};

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

/// Returns the boots of a node whose logs of a kind are kept, newest first.
pub async fn list_boots(store: &Store, reference: &str, kind: LogType) -> Result<Vec<LoggedBoot>, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    boots(&mut connection, &node, kind).await
}

async fn boots(connection: &mut Connection, node: &Node, kind: LogType) -> Result<Vec<LoggedBoot>, Error> {
    match kind {
        LogType::Installer => logs::boots(connection, &node.id).await,
        LogType::HostBoot => boot_reports::boots(connection, &node.id, HOST_BOOT_LOG).await,
    }
}

/// Returns a log of a node. `boot` is the id of a boot, or its number in the list of boots, where 1 is the newest boot;
/// it is the newest boot if left out. Empty if the node has no log.
pub async fn node_log(store: &Store, reference: &str, kind: LogType, boot: Option<&str>) -> Result<String, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    let boots = boots(&mut connection, &node, kind).await?;
    let number = |boot: &str| boot.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    let found = match boot {
        None => boots.first(),
        Some(boot) => {
            let of_id = boots.iter().find(|known| known.boot_id == boot);
            let Some(found) = of_id.or_else(|| boots.get(number(boot)?)) else {
                let message = format!(
                    "no log of boot {boot:?} of node {} is kept; `node log {} --list` shows the boots",
                    node.label(),
                    node.label()
                );
                return Err(Error::refused(ErrorCode::NotFound, message));
            };
            Some(found)
        }
    };
    let Some(LoggedBoot { boot_id, .. }) = found else { return Ok(String::new()) };
    match kind {
        LogType::Installer => {
            let chunks = logs::of_boot(&mut connection, &node.id, boot_id).await?;
            Ok(printable::lines(&logs::text(&chunks)).into_owned())
        }
        LogType::HostBoot => {
            let log = boot_reports::log_of_boot(&mut connection, &node.id, HOST_BOOT_LOG, boot_id).await?;
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
