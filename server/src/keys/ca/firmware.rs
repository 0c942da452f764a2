//! A second root, with an RSA key, for firmware and network boot loaders that support only RSA. It signs only a second
//! certificate of the server. Machines do not trust it after they have booted.
//!
//! Unlike the first root, it is not limited to names, because iPXE rejects certificates with critical name constraints.

use std::collections::BTreeSet;

use rcgen::{Issuer, KeyPair};
use slipway_secure_boot::{KeySize, generate_rsa_key};

use super::files::{certificate, key_pair, unreadable};
use super::{ServerIdentity, certificate_error, kept_or_signed, template};
use crate::base::data::DataDir;
use crate::base::error::Error;

const ROOT: &str = "firmware-ca.pem";
const ROOT_KEY: &str = "firmware-ca.key";
/// Names of the files with the server's RSA certificate and key. A reverse proxy may use them too.
pub const SERVER: [&str; 2] = ["firmware-server.pem", "firmware-server.key"];

/// Returns the root that firmware must trust, in PEM. Makes it on first use.
pub fn root(data: &DataDir) -> Result<String, Error> {
    let _lock = data.lock()?;
    if let Some(root) = certificate(data, ROOT)? {
        return Ok(root.pem);
    }
    let key = match key_pair(data, ROOT_KEY)? {
        Some(key) => key,
        None => {
            let key = new_key()?;
            data.replace(ROOT_KEY, &key.serialize_pem())?;
            key
        }
    };
    let root = template::firmware_root().self_signed(&key);
    let root = root.map_err(certificate_error("creating the root for firmware"))?.pem();
    data.replace(ROOT, &root)?;
    Ok(root)
}

/// Reads the server's RSA certificate for these host names and addresses. Creates or renews it if needed. `None` if the
/// site has no root for firmware.
pub fn identity(data: &DataDir, names: &BTreeSet<String>) -> Result<Option<ServerIdentity>, Error> {
    let Some(root) = certificate(data, ROOT)? else { return Ok(None) };
    let key = key_pair(data, ROOT_KEY)?.ok_or_else(|| unreadable(data, ROOT_KEY, "a private key"))?;
    let issuer = Issuer::from_ca_cert_pem(&root.pem, key);
    let issuer = issuer.map_err(certificate_error("reading the root for firmware"))?;
    // The root itself is not sent, because a client that does not have it would not trust it.
    kept_or_signed(data, SERVER, &root, &issuer, new_key, names).map(Some)
}

fn new_key() -> Result<KeyPair, Error> {
    let made = generate_rsa_key(KeySize::Rsa3072);
    let pem = made.map_err(|source| Error::Tls { doing: "creating an RSA key", source: Box::new(source) })?;
    KeyPair::from_pem(&pem).map_err(certificate_error("creating an RSA key"))
}
