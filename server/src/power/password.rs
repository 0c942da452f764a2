//! The passwords for hooks and BMCs, as they are stored: encrypted, each for its node.

use slipway_protocol::Secret;

use crate::base::error::{Error, chain};
use crate::store::Store;

/// Encrypts the password for the provider of a node.
pub fn seal(store: &Store, node: &str, password: &Secret) -> Result<Vec<u8>, Error> {
    Ok(store.vault()?.seal(&place(node), password.reveal()))
}

/// Decrypts the password for the provider of a node. Fails with the reason.
pub fn open(store: &Store, node: &str, sealed: &[u8]) -> Result<Secret, String> {
    let vault = store.vault().map_err(|error| chain(&error))?;
    let other = "the password was encrypted with another jwt.key than that of this server: give it again with `node \
                 power set NODE --password-file FILE`";
    vault.open(&place(node), sealed).ok_or_else(|| other.to_owned())
}

fn place(node: &str) -> String {
    format!("power password of node {node}")
}
