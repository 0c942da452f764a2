//! Recovery keys of encrypted disks: nodes leave them here before they encrypt, operators ask for them.

use slipway_protocol::{Action, ErrorCode, RecoveryKey};

use crate::store::recovery_keys::{self, Stored};
use crate::store::{self, Connection, Store, runs};
use crate::time::now;
use crate::{Error, state};

/// Length of a UUID as text (RFC 9562, 4).
const UUID: usize = 36;
/// Length of a key: eight groups of eight digits, joined by hyphens.
const KEY: usize = 71;
/// Digits of systemd's recovery keys (src/shared/recovery-key.c).
const MODHEX: &[u8] = b"cbdefghijklnrtuv";
/// Most keys of one node. Each attempt of a step makes one.
const MOST_KEYS: usize = 1000;

/// Stores a key of a node in a run that encrypts. Once this returns it survives a power cut. The same again changes nothing.
pub async fn store_key(store: &Store, node: &str, run: &str, key: &RecoveryKey) -> Result<(), Error> {
    check_key(key)?;
    let mut transaction = store.write().await?;
    check_allowed(&mut transaction, node, run).await?;
    let known = recovery_keys::of_node(&mut transaction, node).await?;
    match known.iter().find(|known| known.key.volume == key.volume) {
        Some(known) if known.key == *key => return Ok(()),
        Some(_) => {
            let message = format!("there is another key of volume {} already", key.volume);
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        None if known.len() >= MOST_KEYS => {
            return Err(Error::refused(
                ErrorCode::TooLarge,
                format!("this node has {MOST_KEYS} recovery keys already"),
            ));
        }
        None => {}
    }
    recovery_keys::insert(&mut transaction, node, run, key, now()).await?;
    store::commit(transaction).await?;
    tracing::info!(node, run, volume = key.volume, "recovery key stored");
    Ok(())
}

fn check_key(RecoveryKey { volume, key }: &RecoveryKey) -> Result<(), Error> {
    let is_uuid = volume.len() == UUID && volume.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_key = key.reveal().len() == KEY && key.reveal().bytes().all(|byte| MODHEX.contains(&byte) || byte == b'-');
    if is_uuid && is_key {
        return Ok(());
    }
    let what = if is_uuid { "the key is no recovery key of systemd-cryptenroll" } else { "the volume is no UUID" };
    Err(Error::refused(ErrorCode::InvalidRequest, what))
}

async fn check_allowed(connection: &mut Connection, node: &str, run: &str) -> Result<(), Error> {
    let Some(known) = runs::get_by_id(connection, run).await?.filter(|known| known.node == node) else {
        return Err(Error::refused(ErrorCode::NotFound, format!("this node has no run {run:?}")));
    };
    if !known.workflow.iter().any(|step| matches!(step.action, Action::EncryptRoot(_))) {
        return Err(Error::refused(ErrorCode::Forbidden, format!("no step of run {run} encrypts anything")));
    }
    if !state::is_open(known.progress.state) {
        return Err(Error::refused(ErrorCode::Conflict, format!("run {run} is over")));
    }
    Ok(())
}

/// The keys of a node, the newest first, for an operator who asks for them, which is noted and logged.
pub async fn show_keys(store: &Store, node: &str, label: &str) -> Result<Vec<Stored>, Error> {
    let mut transaction = store.write().await?;
    let keys = recovery_keys::of_node(&mut transaction, node).await?;
    if keys.is_empty() {
        return Err(Error::refused(ErrorCode::NotFound, format!("there is no recovery key of node {label}")));
    }
    recovery_keys::note_shown(&mut transaction, node, now()).await?;
    store::commit(transaction).await?;
    let volumes: Vec<&str> = keys.iter().map(|stored| stored.key.volume.as_str()).collect();
    tracing::warn!(node = label, volumes = volumes.join(" "), "recovery keys shown to an operator");
    Ok(keys)
}
