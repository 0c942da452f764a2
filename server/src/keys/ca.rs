//! The site's certificate authority. A root, whose key may be kept offline, signs an intermediate. The intermediate
//! signs the certificates of the server and the nodes.
//!
//! Root and intermediate are limited to the server's names and addresses (RFC 5280, section 4.2.1.10). Installed
//! systems trust them, but even a stolen key cannot sign for any other name.

mod certificate;
mod files;
pub mod firmware;
mod rotation;
mod template;

use std::collections::BTreeSet;
use std::ops::Range;

use rcgen::{CertificateSigningRequestParams, Issuer, KeyPair, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slipway_protocol::ErrorCode;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use self::certificate::Certificate;
use self::files::{CURRENT, Generation, NEXT, key_pair};
pub use self::rotation::{begin as begin_rotation, cancel as cancel_rotation, finish as finish_rotation};
use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::random;
use crate::keys::jwt::Subject;

/// A server certificate that expires sooner than this is renewed.
const SERVER_RENEWAL: Duration = Duration::days(30);
/// An authority that expires sooner than this should be rotated, because machines need time to trust the next one.
const ROTATION: Duration = Duration::days(365);
/// Names that every server certificate has, because commands on the same host use them.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Seconds for which a node's certificate and JWT are valid. The node renews them after half of that.
pub const NODE_LIFETIME: u64 = 24 * 60 * 60;

/// Signs the certificates of the server and the nodes.
pub struct Authority {
    current: Generation,
    /// The next generation, while a rotation is in progress.
    next: Option<Generation>,
    anchors: String,
}

/// Certificate chain and key of a TLS server.
pub struct ServerIdentity {
    /// Certificates, leaf first, then the intermediate if there is one.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKeyDer<'static>,
}

/// The certificates that machines trust, in PEM: the root, and during a rotation the next root.
pub fn anchors(data: &DataDir) -> Result<String, Error> {
    let root = data.read(CURRENT.root)?.ok_or_else(|| files::no_root(data, &CURRENT))?;
    Ok(root + &data.read(NEXT.root)?.unwrap_or_default())
}

impl Authority {
    /// Opens the authority of a data folder on which a server has run. Waits while another process replaces its files.
    pub fn open(data: &DataDir) -> Result<Self, Error> {
        let _lock = data.lock()?;
        Self::read(data)
    }

    fn read(data: &DataDir) -> Result<Self, Error> {
        let next = data.path(NEXT.root).exists().then(|| Generation::open(data, &NEXT)).transpose()?;
        Ok(Self { current: Generation::open(data, &CURRENT)?, next, anchors: anchors(data)? })
    }

    /// Opens the authority for a server with these names and addresses. Creates it on first use. If an older version
    /// made it, adds an intermediate, or signs the intermediate again for names that it lacks.
    pub fn open_or_make(data: &DataDir, names: &BTreeSet<String>) -> Result<Self, Error> {
        let _lock = data.lock()?;
        rotation::recover(data)?;
        let names = &with_loopback(names);
        let root = files::certificate(data, CURRENT.root)?;
        let intermediate = files::certificate(data, CURRENT.intermediate)?;
        match (root, intermediate) {
            (None, _) if data.path("server.pem").exists() => return Err(files::no_root(data, &CURRENT)),
            (None, _) => Generation::make(data, &CURRENT, names)?,
            (Some(root), None) => {
                check_permitted(data, &root, names)?;
                let what = format!("{} is missing", CURRENT.intermediate);
                let key = key_pair(data, CURRENT.root_key)?.ok_or_else(|| files::renew(data, &what))?;
                Generation::renew(data, &CURRENT, key, names, false)?;
                tracing::info!("the certificate authority has a new intermediate, limited to the server's names");
            }
            // A root of an older version may sign for any name, so its intermediate can be renewed for the server's
            // names.
            (Some(root), Some(intermediate)) if root.permitted.is_none() => {
                if let Some(name) = names.iter().find(|name| !intermediate.permits(name)) {
                    let what = format!("{} may not issue certificates for {name}", CURRENT.intermediate);
                    let key = key_pair(data, CURRENT.root_key)?.ok_or_else(|| files::renew(data, &what))?;
                    Generation::renew(data, &CURRENT, key, names, false)?;
                }
            }
            _ => {}
        }
        let authority = Self::read(data)?;
        if let Some(warning) = validity_warning(authority.valid(), OffsetDateTime::now_utc()) {
            tracing::warn!("{warning}");
        }
        Ok(authority)
    }

    /// When the authority in use is valid.
    fn valid(&self) -> Range<OffsetDateTime> {
        let Generation { root, intermediate, .. } = &self.current;
        root.not_before.max(intermediate.not_before)..root.not_after.min(intermediate.not_after)
    }

    /// Says why no machine can verify the server at this time, and what to do. `None` if machines can.
    pub fn invalid_at(&self, now: OffsetDateTime) -> Option<String> {
        let valid = self.valid();
        if valid.contains(&now) { None } else { validity_warning(valid, now) }
    }

    /// The certificates that machines trust, in PEM: the root, and during a rotation the next root.
    pub fn pem(&self) -> &str {
        &self.anchors
    }

    /// The root in use.
    pub fn root(&self) -> &Certificate {
        &self.current.root
    }

    /// The intermediate in use.
    pub fn intermediate(&self) -> &Certificate {
        &self.current.intermediate
    }

    /// The next root, while a rotation is in progress.
    pub fn next_root(&self) -> Option<&Certificate> {
        self.next.as_ref().map(|next| &next.root)
    }

    /// Returns the roots that nodes' certificates may lead to: the current one, and during a rotation the next.
    pub fn roots(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        [Some(&self.current), self.next.as_ref()].into_iter().flatten().map(|generation| generation.root.der.clone())
    }

    /// Reads the server's certificate for these host names and addresses. Creates or renews it if needed, each time
    /// with a new key.
    pub fn server_identity(&self, data: &DataDir, names: &BTreeSet<String>) -> Result<ServerIdentity, Error> {
        let names = self.allowed(data, names)?;
        let Generation { intermediate, issuer, .. } = &self.current;
        let files = ["server.pem", "server.key"];
        let mut identity = kept_or_signed(data, files, intermediate, issuer, files::new_key, &names)?;
        identity.chain.push(intermediate.der.clone());
        Ok(identity)
    }

    /// Returns those names that the server's certificate can have now. During a rotation, a name that only the next
    /// root permits has to wait.
    fn allowed(&self, data: &DataDir, names: &BTreeSet<String>) -> Result<BTreeSet<String>, Error> {
        let (now, later): (BTreeSet<String>, BTreeSet<String>) =
            names.iter().cloned().partition(|name| self.current.intermediate.permits(name));
        match &self.next {
            Some(next) => check_permitted(data, &next.intermediate, &later)?,
            None => check_permitted(data, &self.current.intermediate, &later)?,
        }
        for name in later {
            tracing::warn!(
                name,
                "the server's certificate lacks this name until `slipway-server ca rotate --finish`, because only the \
                 new certificate authority permits it"
            );
        }
        Ok(now)
    }

    /// Returns a node's certificate and the intermediate's, in PEM. Of the request only the public key is used; its
    /// signature proves that the node has the private key. Only the server verifies node certificates, so the next
    /// authority can sign immediately.
    pub fn sign_node(&self, node: &str, request: &NodeRequest) -> Result<String, Error> {
        let signing = self.next.as_ref().unwrap_or(&self.current);
        let leaf = template::node(node).signed_by(&request.0.public_key, &signing.issuer);
        let leaf = leaf.map_err(certificate_error("signing the node's certificate"))?;
        Ok(leaf.pem() + &signing.intermediate.pem)
    }
}

/// Signs a new intermediate, with a new key, using the root's key from the data folder or the given PEM. It may sign
/// for the names of the previous intermediate and the names in `further`.
pub fn renew_intermediate(data: &DataDir, root_key: Option<&str>, further: &BTreeSet<String>) -> Result<(), Error> {
    let _lock = data.lock()?;
    rotation::recover(data)?;
    let key = match root_key {
        Some(pem) => KeyPair::from_pem(pem).map_err(certificate_error("reading the root key"))?,
        None => key_pair(data, CURRENT.root_key)?.ok_or_else(root_key_is_offline)?,
    };
    let root = files::certificate(data, CURRENT.root)?.ok_or_else(|| files::no_root(data, &CURRENT))?;
    let known = files::certificate(data, CURRENT.intermediate)?.and_then(|before| before.permitted);
    let mut names = with_loopback(&known.or_else(|| root.permitted.clone()).unwrap_or_default());
    names.extend(further.iter().cloned());
    check_permitted(data, &root, &names)?;
    Generation::renew(data, &CURRENT, key, &names, true)
}

fn root_key_is_offline() -> Error {
    let message = "the root key is not in the data folder (offline); give it with --root-key FILE";
    Error::refused(ErrorCode::Conflict, message)
}

/// Whether the key of the current or the next root is in the data folder.
pub fn has_root_key(data: &DataDir, next: bool) -> bool {
    data.path(if next { NEXT.root_key } else { CURRENT.root_key }).exists()
}

/// The newest root's key in PEM, to be stored in a safe place. [`remove_root_key`] then removes it from the folder.
pub fn root_key(data: &DataDir) -> Result<String, Error> {
    let name = newest_root_key(data);
    data.read(name)?
        .ok_or_else(|| Error::refused(ErrorCode::NotFound, "the root key is not in the data folder (offline)"))
}

/// Removes the newest root's key from the data folder.
pub fn remove_root_key(data: &DataDir) -> Result<(), Error> {
    data.remove(newest_root_key(data))
}

fn newest_root_key(data: &DataDir) -> &'static str {
    if data.path(NEXT.root).exists() { NEXT.root_key } else { CURRENT.root_key }
}

fn with_loopback(names: &BTreeSet<String>) -> BTreeSet<String> {
    names.iter().cloned().chain(LOOPBACK.map(str::to_owned)).collect()
}

/// Refuses names that the authority may not sign for.
fn check_permitted(data: &DataDir, authority: &Certificate, names: &BTreeSet<String>) -> Result<(), Error> {
    let outside: Vec<&String> = names.iter().filter(|name| !authority.permits(name)).collect();
    let Some(first) = outside.first() else { return Ok(()) };
    let permitted: Vec<String> = authority.permitted.iter().flatten().cloned().collect();
    let options: String = outside.iter().map(|name| format!(" --san {name}")).collect();
    let message = format!(
        "the certificate authority may not issue certificates for {first:?}: it is limited to {}; to make one that \
         may, run `slipway-server --data {} ca rotate{options}`",
        permitted.join(", "),
        data.root().display()
    );
    Err(Error::refused(ErrorCode::Conflict, message))
}

/// A certificate request whose signature was verified.
pub struct NodeRequest(CertificateSigningRequestParams);

impl NodeRequest {
    /// Reads a PKCS #10 request in PEM.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        CertificateSigningRequestParams::from_pem(pem).map(Self).map_err(|error| Error::Refused {
            code: ErrorCode::InvalidRequest,
            message: "the csr is not a PKCS #10 certificate request in PEM with a valid signature".to_owned(),
            causes: vec![error.to_string()],
        })
    }

    /// Fingerprint of the public key in the request.
    pub fn fingerprint(&self) -> String {
        random::fingerprint(&self.0.public_key.subject_public_key_info())
    }
}

/// Reads from a certificate which node it was issued for: the node's id, from the common name, and the key.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(Subject { node: name.to_owned(), key: random::fingerprint(certificate.public_key().raw) })
}

/// Reads a server certificate and its key from two files of the data folder. If it is not for these names, or is due
/// for renewal, replaces both. The chain is the certificate alone.
fn kept_or_signed(
    data: &DataDir,
    [pem, key_file]: [&'static str; 2],
    authority: &Certificate,
    issuer: &Issuer<'_, KeyPair>,
    new_key: fn() -> Result<KeyPair, Error>,
    names: &BTreeSet<String>,
) -> Result<ServerIdentity, Error> {
    let stored = (files::certificate(data, pem).ok().flatten(), key_pair(data, key_file)?);
    let (leaf, key) = match stored {
        (Some(leaf), Some(key)) if leaf.is_of(&key) && serves(&leaf, authority, names) => (leaf.der, key),
        _ => {
            let key = new_key()?;
            let made = template::server(names, authority, &key)?.signed_by(&key, issuer);
            let made = made.map_err(certificate_error("signing the server's certificate"))?;
            data.replace(key_file, &key.serialize_pem())?;
            data.replace(pem, &made.pem())?;
            (made.der().clone(), key)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes());
    let doing = "reading the key of the server's certificate";
    let key = key.map_err(|source| Error::Tls { doing, source: Box::new(source) })?;
    Ok(ServerIdentity { chain: vec![leaf], key })
}

/// Returns a warning if the authority is not valid now, or not for much longer.
fn validity_warning(valid: Range<OffsetDateTime>, now: OffsetDateTime) -> Option<String> {
    let clock = "if this server's clock was or is wrong, set it; then replace the certificate authority with \
                 `slipway-server ca rotate`";
    let (begins, ends) = (valid.start.date(), valid.end.date());
    if now < valid.start {
        Some(format!("no machine can verify this server: its certificate authority begins on {begins}; {clock}"))
    } else if now >= valid.end {
        Some(format!("no machine can verify this server: its certificate authority expired on {ends}; {clock}"))
    } else if valid.end - now < ROTATION {
        Some(format!("the certificate authority expires on {ends}; replace it with `slipway-server ca rotate`"))
    } else {
        None
    }
}

/// Whether the certificate is for exactly these names, from this authority, valid, and not due for renewal. A
/// certificate made while the clock was ahead is not valid yet.
fn serves(leaf: &Certificate, authority: &Certificate, names: &BTreeSet<String>) -> bool {
    let now = OffsetDateTime::now_utc();
    // If the authority expires soon, so does its certificate.
    let renewal = SERVER_RENEWAL.min((authority.not_after - now) / 2);
    let is_valid = leaf.not_before <= now && leaf.not_after - now > renewal;
    leaf.names == *names && leaf.is_issued_by(authority) && is_valid
}

fn certificate_error(doing: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate { doing, source }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType};

    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_server_certificate_is_kept_until_its_names_change() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let authority = Authority::open_or_make(&data, &names(&["192.0.2.1"]))?;
        let first = authority.server_identity(&data, &names(&["localhost", "127.0.0.1", "::1"]))?;
        let again = authority.server_identity(&data, &names(&["localhost", "127.0.0.1", "::1"]))?;
        assert_eq!(first.chain, again.chain);
        let other = authority.server_identity(&data, &names(&["localhost", "192.0.2.1"]))?;
        assert_ne!(first.chain[0], other.chain[0]);
        assert_eq!(first.chain[1], other.chain[1], "the authority stays");
        Ok(())
    }

    #[test]
    fn a_certificate_that_was_made_while_the_clock_was_ahead_is_replaced() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let names = names(&["localhost"]);
        let authority = Authority::open_or_make(&data, &names)?;
        authority.server_identity(&data, &names)?;
        let mut leaf = files::certificate(&data, "server.pem")?.ok_or("no certificate")?;
        let issuer = &authority.current.intermediate;
        assert!(serves(&leaf, issuer, &names));
        leaf.not_before = OffsetDateTime::now_utc() + time::Duration::HOUR;
        assert!(!serves(&leaf, issuer, &names));
        Ok(())
    }

    #[test]
    fn an_authority_that_is_not_valid_at_the_servers_time_is_told() {
        let at = |day: i64| OffsetDateTime::UNIX_EPOCH + time::Duration::days(day);
        let check = |now: i64, expect: Option<&str>| {
            let found = validity_warning(at(1000)..at(4000), at(now));
            assert_eq!(found.is_some(), expect.is_some(), "{found:?}");
            assert!(found.is_none_or(|found| found.contains(expect.unwrap_or_default())));
        };
        check(999, Some("authority begins on 1972-09-27; if this server's clock was or is wrong"));
        check(1000, None);
        check(3999, Some("the certificate authority expires on 1980-12-14"));
        check(4000, Some("authority expired on 1980-12-14; if this server's clock was or is wrong"));
    }

    #[test]
    fn a_node_certificate_carries_the_nodes_id_and_nothing_of_the_request() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::open_or_make(&DataDir::make(folder.path())?, &names(&[]))?;
        let key = KeyPair::generate()?;
        let mut wish = CertificateParams::new(vec!["evil.example".to_owned()])?;
        wish.distinguished_name.push(DnType::CommonName, "someone-else");
        let request = NodeRequest::from_pem(&wish.serialize_request(&key)?.pem()?)?;
        let pem = authority.sign_node("n1", &request)?;
        let leaf = CertificateDer::from_pem_slice(pem.as_bytes())?;
        assert_eq!(subject(&leaf), Some(Subject { node: "n1".to_owned(), key: request.fingerprint() }));
        let (_, parsed) = X509Certificate::from_der(&leaf)?;
        assert!(parsed.subject_alternative_name()?.is_none());
        assert!(!parsed.is_ca());
        Ok(())
    }

    #[test]
    fn a_request_that_is_none_is_refused() {
        let refused = NodeRequest::from_pem("-----BEGIN NONSENSE-----").map(|_| ()).expect_err("no request");
        assert_eq!(refused.body().code, ErrorCode::InvalidRequest);
    }
}
