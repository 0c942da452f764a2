//! The files of the certificate authority: a root, the intermediate that it signed, and their keys.

use std::collections::BTreeSet;

use rcgen::{Issuer, KeyPair};
use slipway_protocol::ErrorCode;

use super::certificate::Certificate;
use super::{certificate_error, template};
use crate::base::data::DataDir;
use crate::base::error::Error;

/// Names of the files of one generation.
pub struct Files {
    /// The root's certificate, which machines trust.
    pub root: &'static str,
    /// The root's key. It may be kept elsewhere, because only a new intermediate needs it.
    pub root_key: &'static str,
    /// The certificate of the intermediate, which signs for the server and the nodes.
    pub intermediate: &'static str,
    /// The intermediate's key.
    pub intermediate_key: &'static str,
}

/// The generation in use.
pub const CURRENT: Files = Files {
    root: "ca.pem",
    root_key: "ca.key",
    intermediate: "intermediate.pem",
    intermediate_key: "intermediate.key",
};
/// The next generation, during a rotation.
pub const NEXT: Files = Files {
    root: "next-ca.pem",
    root_key: "next-ca.key",
    intermediate: "next-intermediate.pem",
    intermediate_key: "next-intermediate.key",
};

/// A root and an intermediate.
pub struct Generation {
    /// The root's certificate.
    pub root: Certificate,
    /// The intermediate's certificate.
    pub intermediate: Certificate,
    /// Signs with the intermediate's key.
    pub issuer: Issuer<'static, KeyPair>,
}

impl Generation {
    /// Reads a generation. Refuses files that do not belong together.
    pub fn open(data: &DataDir, files: &Files) -> Result<Self, Error> {
        let root = certificate(data, files.root)?.ok_or_else(|| no_root(data, files))?;
        if let Some(key) = key_pair(data, files.root_key)?
            && !root.is_of(&key)
        {
            let message = format!(
                "{} does not belong to {}: put the right key there, or, if it is kept elsewhere, move this one away \
                 with `mv {} {}.other`",
                files.root_key,
                files.root,
                data.path(files.root_key).display(),
                data.path(files.root_key).display()
            );
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        let key = key_pair(data, files.intermediate_key)?;
        let (Some(intermediate), Some(key)) = (certificate(data, files.intermediate)?, key) else {
            return Err(renew(data, &format!("{} or {} is missing", files.intermediate, files.intermediate_key)));
        };
        if !intermediate.is_of(&key) {
            let what = format!("{} does not belong to {}", files.intermediate_key, files.intermediate);
            return Err(renew(data, &what));
        }
        if !intermediate.is_issued_by(&root) {
            return Err(renew(data, &format!("{} was not signed by {}", files.intermediate, files.root)));
        }
        let issuer = Issuer::from_ca_cert_pem(&intermediate.pem, key);
        Ok(Self { root, intermediate, issuer: issuer.map_err(certificate_error("reading the intermediate"))? })
    }

    /// Makes a root and an intermediate for these names. The root's certificate is written last, unless it already
    /// existed.
    pub fn make(data: &DataDir, files: &Files, names: &BTreeSet<String>) -> Result<(), Error> {
        let root_key = existing_or_new_key(data, files.root_key)?;
        let key = existing_or_new_key(data, files.intermediate_key)?;
        let root = template::root(names).self_signed(&root_key);
        let root = root.map_err(certificate_error("creating the root of the certificate authority"))?.pem();
        let root = Certificate::parse(&root).ok_or_else(|| unreadable(data, files.root, "a certificate"))?;
        let pem = sign(&root, root_key, &key, names)?;
        data.replace(files.intermediate, &pem)?;
        data.replace(files.root, &root.pem)
    }

    /// Signs a new intermediate for these names with the root's key. With `fresh`, the intermediate's key is new too.
    pub fn renew(
        data: &DataDir,
        files: &Files,
        root_key: KeyPair,
        names: &BTreeSet<String>,
        fresh: bool,
    ) -> Result<(), Error> {
        let root = certificate(data, files.root)?.ok_or_else(|| no_root(data, files))?;
        if !root.is_of(&root_key) {
            let message = format!("the root key does not belong to {}", files.root);
            return Err(Error::refused(ErrorCode::InvalidRequest, message));
        }
        let key = if fresh {
            let key = new_key()?;
            data.replace(files.intermediate_key, &key.serialize_pem())?;
            key
        } else {
            existing_or_new_key(data, files.intermediate_key)?
        };
        data.replace(files.intermediate, &sign(&root, root_key, &key, names)?)
    }
}

fn sign(root: &Certificate, root_key: KeyPair, key: &KeyPair, names: &BTreeSet<String>) -> Result<String, Error> {
    let failed = || certificate_error("signing the intermediate of the certificate authority");
    let issuer = Issuer::from_ca_cert_pem(&root.pem, root_key).map_err(failed())?;
    let made = template::intermediate(root, names).signed_by(key, &issuer).map_err(failed())?;
    Ok(made.pem())
}

/// Reads a certificate of the folder. `None` if it does not exist.
pub fn certificate(data: &DataDir, name: &str) -> Result<Option<Certificate>, Error> {
    let pem = data.read(name)?;
    pem.map(|pem| Certificate::parse(&pem).ok_or_else(|| unreadable(data, name, "a certificate"))).transpose()
}

/// Reads a private key of the folder. `None` if it does not exist.
pub fn key_pair(data: &DataDir, name: &str) -> Result<Option<KeyPair>, Error> {
    let pem = data.read(name)?;
    pem.map(|pem| KeyPair::from_pem(&pem).map_err(|_| unreadable(data, name, "a private key"))).transpose()
}

/// Makes a new P-256 key, which is not stored anywhere.
pub fn new_key() -> Result<KeyPair, Error> {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(certificate_error("creating a private key"))
}

fn existing_or_new_key(data: &DataDir, name: &str) -> Result<KeyPair, Error> {
    if let Some(key) = key_pair(data, name)? {
        return Ok(key);
    }
    let key = new_key()?;
    data.replace(name, &key.serialize_pem())?;
    Ok(key)
}

/// Returns the error that a file is not a certificate or key.
pub fn unreadable(data: &DataDir, name: &str, what: &str) -> Error {
    let message = format!("{:?} is not {what} in PEM; restore it from a backup", data.path(name));
    Error::refused(ErrorCode::Conflict, message)
}

/// Returns the error that the root's certificate is missing.
pub fn no_root(data: &DataDir, files: &Files) -> Error {
    let message = format!(
        "{:?}, the certificate that machines trust, is missing: restore it from a backup, or from a boot medium",
        data.path(files.root)
    );
    Error::refused(ErrorCode::Conflict, message)
}

/// Returns the error that the intermediate must be restored or replaced. `what` says what is wrong with it.
pub fn renew(data: &DataDir, what: &str) -> Error {
    let at = match data.path(CURRENT.root_key).exists() {
        true => "",
        false => ", and the root key is not in the data folder (offline)",
    };
    let root_key = if at.is_empty() { "" } else { " --root-key FILE" };
    let message = format!(
        "{what}{at}: restore it from a backup, or make a new intermediate with `slipway-server --data {} ca \
         renew{root_key}`",
        data.root().display()
    );
    Error::refused(ErrorCode::Conflict, message)
}
