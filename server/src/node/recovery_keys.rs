//! Recovery keys of encrypted disks. Nodes store them before encrypting, and operators can retrieve them. If operators
//! have added public keys, recovery keys are stored encrypted to those, and the server cannot read them.

use std::collections::BTreeSet;

use age::x25519::Recipient;
use slipway_protocol::{Action, ErrorCode, NodeState, RecoveryKey, SiteEventKind, StepState};

use crate::base::error::Error;
use crate::base::random;
use crate::base::time::now;
use crate::keys::seal;
use crate::rules::state;
use crate::store;
use crate::store::history::{self, NewEvent};
use crate::store::recovery_keys::{self, Stored, recipients};
use crate::store::runs::{self, Run};
use crate::store::{Connection, Store, Transaction, nodes};

/// Length of a UUID as text (RFC 9562, section 4).
const UUID: usize = 36;
/// Length of a recovery key as text: eight groups of eight digits, joined by hyphens.
const KEY: usize = 71;
/// Digits of systemd's recovery keys (src/shared/recovery-key.c).
const MODHEX: &[u8] = b"cbdefghijklnrtuv";
/// Maximum number of keys of a node. Each attempt of an `encrypt-root` step makes a key.
const MOST_KEYS: usize = 1000;

/// Stores a key for a run that encrypts a disk. When this returns, the key survives a power cut. Storing the same key
/// again changes nothing.
pub async fn store_key(store: &Store, node: &str, run: &str, key: &RecoveryKey) -> Result<(), Error> {
    check_key(key)?;
    let mut transaction = store.write().await?;
    check_allowed(&mut transaction, node, run).await?;
    let known = recovery_keys::of_node(&mut transaction, node).await?;
    match known.iter().find(|known| known.key.volume == key.volume) {
        Some(known) if is_same(known, key) => return Ok(()),
        Some(_) => {
            let message = format!("another key is already stored for volume {}", key.volume);
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        None if known.len() >= MOST_KEYS => {
            let message = format!(
                "this node already has {MOST_KEYS} recovery keys; an operator must forget the keys of volumes that no \
                 longer exist, with `node recovery-key --forget`"
            );
            return Err(Error::refused(ErrorCode::TooLarge, message));
        }
        None => {}
    }
    match recipients(&mut transaction).await?.as_slice() {
        [] => recovery_keys::insert(&mut transaction, node, run, key, None, now()).await?,
        recipients => {
            // Encryption yields a different text each time. The hash recognises a key that is stored again.
            let (sealed, hash) = (sealed(recipients, key)?, random::token_hash(key.key.reveal()));
            recovery_keys::insert(&mut transaction, node, run, &sealed, Some(&hash), now()).await?;
        }
    }
    store::commit(transaction).await?;
    tracing::info!(node, run, volume = key.volume, "recovery key stored");
    Ok(())
}

fn is_same(known: &Stored, key: &RecoveryKey) -> bool {
    match &known.hash {
        Some(hash) => *hash == random::token_hash(key.key.reveal()),
        None => known.key == *key,
    }
}

/// Encrypts a key together with the UUID of its volume. Decryption yields the same line that is printed for an
/// unencrypted key.
fn sealed(recipients: &[Recipient], RecoveryKey { volume, key }: &RecoveryKey) -> Result<RecoveryKey, Error> {
    let sealed = seal::text(recipients, &format!("{volume} {}\n", key.reveal()))?;
    Ok(RecoveryKey { volume: volume.clone(), key: sealed })
}

async fn recipients(connection: &mut Connection) -> Result<Vec<Recipient>, Error> {
    recipients::all(connection).await?.iter().map(|recipient| seal::recipient(recipient)).collect()
}

/// What adding a recipient changed for the stored recovery keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// Number of keys that were unencrypted before, and are encrypted now.
    pub sealed: usize,
    /// Number of keys that were already encrypted, only to the earlier recipients.
    pub older: usize,
}

/// Adds a public key. Unencrypted recovery keys are then encrypted to all recipients.
pub async fn add_recipient(store: &Store, recipient: &str) -> Result<Added, Error> {
    seal::recipient(recipient)?;
    let mut transaction = store.write().await?;
    if !recipients::insert(&mut transaction, recipient, now()).await? {
        return Err(Error::refused(ErrorCode::Conflict, "recovery keys are already encrypted to this recipient"));
    }
    let recipients = recipients(&mut transaction).await?;
    let mut added = Added { sealed: 0, older: 0 };
    for (node, stored) in recovery_keys::all(&mut transaction).await? {
        if seal::is_sealed(&stored.key.key) {
            added.older += 1;
            continue;
        }
        let (sealed, hash) = (sealed(&recipients, &stored.key)?, random::token_hash(stored.key.key.reveal()));
        recovery_keys::seal(&mut transaction, &node, &stored.key.volume, &sealed.key, &hash).await?;
        added.sealed += 1;
    }
    did(&mut transaction, NewEvent::new(format!("recovery keys are encrypted to {recipient} too"))).await?;
    store::commit(transaction).await?;
    tracing::warn!(recipient, sealed = added.sealed, "recovery keys are now also encrypted to another recipient");
    Ok(added)
}

/// Returns the public keys to which recovery keys are encrypted.
pub async fn list_recipients(store: &Store) -> Result<Vec<String>, Error> {
    recipients::all(&mut *store.read().await?).await
}

/// Removes a public key. Returns whether other public keys remain.
pub async fn remove_recipient(store: &Store, recipient: &str) -> Result<bool, Error> {
    let mut transaction = store.write().await?;
    if !recipients::remove(&mut transaction, recipient).await? {
        let message = "there is no such recipient; `escrow recipient list` lists them";
        return Err(Error::refused(ErrorCode::NotFound, message));
    }
    let left = recipients::all(&mut transaction).await?.len();
    did(&mut transaction, NewEvent::new(format!("recovery keys are no longer encrypted to {recipient}"))).await?;
    store::commit(transaction).await?;
    tracing::warn!(recipient, "recovery keys are no longer encrypted to a recipient");
    Ok(left > 0)
}

fn check_key(RecoveryKey { volume, key }: &RecoveryKey) -> Result<(), Error> {
    let is_uuid = volume.len() == UUID && volume.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_key = key.reveal().len() == KEY && key.reveal().bytes().all(|byte| MODHEX.contains(&byte) || byte == b'-');
    if is_uuid && is_key {
        return Ok(());
    }
    let what = if is_uuid { "the key is not a systemd-cryptenroll recovery key" } else { "the volume is not a UUID" };
    Err(Error::refused(ErrorCode::InvalidRequest, what))
}

async fn check_allowed(connection: &mut Connection, node: &str, run: &str) -> Result<(), Error> {
    let Some(known) = runs::get_by_id(connection, run).await?.filter(|known| known.node == node) else {
        return Err(Error::refused(ErrorCode::NotFound, "this node has no run with this id"));
    };
    if !known.workflow.iter().any(|step| matches!(step.action, Action::EncryptRoot(_))) {
        return Err(Error::refused(ErrorCode::Forbidden, format!("no step of run {run} encrypts anything")));
    }
    if !state::is_open(known.progress.state) {
        return Err(Error::refused(ErrorCode::Conflict, format!("run {run} is over")));
    }
    Ok(())
}

/// Returns the keys of a node, newest first, for a list that does not print the keys themselves.
pub async fn list_keys(store: &Store, node: &str, label: &str) -> Result<Vec<Stored>, Error> {
    known_keys(&mut *store.read().await?, node, label).await
}

async fn known_keys(connection: &mut Connection, node: &str, label: &str) -> Result<Vec<Stored>, Error> {
    let keys = recovery_keys::of_node(connection, node).await?;
    if keys.is_empty() {
        return Err(Error::refused(ErrorCode::NotFound, format!("node {label} has no recovery keys")));
    }
    Ok(keys)
}

/// Returns the keys of these volumes of a node, or of all if `volumes` is empty, newest first. Records and logs that an
/// operator was shown the keys.
pub async fn show_keys(store: &Store, node: &str, label: &str, volumes: &[String]) -> Result<Vec<Stored>, Error> {
    let mut transaction = store.write().await?;
    let mut keys = known_keys(&mut transaction, node, label).await?;
    keys.retain(|stored| volumes.is_empty() || volumes.contains(&stored.key.volume));
    for stored in &keys {
        recovery_keys::note_shown(&mut transaction, node, &stored.key.volume, now()).await?;
    }
    let volumes: Vec<&str> = keys.iter().map(|stored| stored.key.volume.as_str()).collect();
    let shown = format!("the recovery keys of these volumes were shown: {}", volumes.join(", "));
    did(&mut transaction, NewEvent::new(shown).of_id(node)).await?;
    store::commit(transaction).await?;
    tracing::warn!(node = label, volumes = volumes.join(" "), "recovery keys shown to an operator");
    Ok(keys)
}

/// Fails like [`forget_keys`], but removes nothing.
pub async fn check_unused(store: &Store, id: &str, label: &str, volumes: &[String]) -> Result<(), Error> {
    check_all_unused(&mut *store.read().await?, id, label, volumes).await
}

/// Removes the keys of these volumes of a node, all or none, and logs it. Keys are never removed automatically, because
/// the server cannot see which disks exist. While the node is in service, removing a key is refused if its disk is
/// probably in use.
pub async fn forget_keys(store: &Store, id: &str, label: &str, volumes: &[String]) -> Result<(), Error> {
    let mut transaction = store.write().await?;
    check_all_unused(&mut transaction, id, label, volumes).await?;
    for volume in volumes {
        recovery_keys::remove(&mut transaction, id, volume).await?;
    }
    let removed = format!("the recovery keys of these volumes were removed: {}", volumes.join(", "));
    did(&mut transaction, NewEvent::new(removed).of_id(id)).await?;
    store::commit(transaction).await?;
    tracing::warn!(node = label, volumes = volumes.join(" "), "recovery keys removed by an operator");
    Ok(())
}

async fn did(transaction: &mut Transaction, event: NewEvent<'_>) -> Result<(), Error> {
    history::did(transaction, SiteEventKind::Operator, event, now()).await
}

async fn check_all_unused(connection: &mut Connection, id: &str, label: &str, volumes: &[String]) -> Result<(), Error> {
    let keys = known_keys(connection, id, label).await?;
    let node = nodes::get_by_id(connection, id).await?;
    let in_service = node.is_some_and(|node| node.state != NodeState::Decommissioned);
    let in_use = if in_service { runs_in_use(connection, &keys).await? } else { BTreeSet::new() };
    for volume in volumes {
        let Some(stored) = keys.iter().find(|stored| stored.key.volume == *volume) else {
            let message = format!("node {label} has no recovery key for volume {volume:?}; no key was forgotten");
            return Err(Error::refused(ErrorCode::NotFound, message));
        };
        let is_newest = in_service && keys.first().is_some_and(|newest| newest.key.volume == *volume);
        if is_newest || in_use.contains(&stored.run) {
            let message = format!(
                "volume {volume} may be in use: its key is from run {}, the last run of node {label} that encrypted a \
                 disk or may have done so; forget the key after another run has encrypted a disk, or when the node is \
                 out of service; no key was forgotten",
                stored.run
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
    }
    Ok(())
}

/// Returns the runs that stored `keys` and have not ended, and the newest that encrypted a disk. Runs before that are
/// not looked at. `keys` are sorted newest first.
async fn runs_in_use(connection: &mut Connection, keys: &[Stored]) -> Result<BTreeSet<String>, Error> {
    let (mut in_use, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for stored in keys {
        if !seen.insert(&stored.run) {
            continue;
        }
        let Some(run) = runs::get_by_id(connection, &stored.run).await? else { continue };
        let has_encrypted = has_encrypted(&run);
        if has_encrypted || state::is_open(run.progress.state) {
            in_use.insert(run.id);
        }
        if has_encrypted {
            break;
        }
    }
    Ok(in_use)
}

/// Returns whether a step of the run encrypted a disk, even if a later step failed.
fn has_encrypted(run: &Run) -> bool {
    let mut steps = run.workflow.iter().zip(&run.progress.steps);
    steps.any(|(step, status)| matches!(step.action, Action::EncryptRoot(_)) && status.state == StepState::Succeeded)
}
