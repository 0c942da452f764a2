//! The certificate authority of this installation. It is created on first start, and signs the certificates of the
//! server and the nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use slipway_protocol::ErrorCode;

use crate::data::DataDir;
use crate::error::Error;
use crate::jwt::Subject;
use crate::random;
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const CA_LIFETIME: Duration = Duration::days(3650);
const SERVER_LIFETIME: Duration = Duration::days(365);
/// A server certificate that expires sooner than this is renewed.
const SERVER_RENEWAL: Duration = Duration::days(30);
/// How far the start of validity lies in the past, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::days(1);
/// Seconds for which a node's certificate and JWT are valid. The node renews them after half of that.
pub const NODE_LIFETIME: u64 = 24 * 60 * 60;

/// Signs certificates.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate chain and key of a TLS server.
pub struct ServerIdentity {
    /// Leaf first, then the authority.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's key.
    pub key: PrivateKeyDer<'static>,
}

impl Authority {
    /// Opens the authority of the data folder. Creates it on first use.
    pub fn open(data: &DataDir) -> Result<Self, Error> {
        let key = key_pair(data, "ca.key")?;
        let pem = data.read_or_create("ca.pem", || {
            let certificate = ca_params().self_signed(&key);
            certificate.map(|made| made.pem()).map_err(certificate_error("creating the certificate authority"))
        })?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(certificate_error("reading ca.pem"))?;
        Ok(Self { pem, issuer })
    }

    /// The authority's certificate in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The authority's certificate.
    pub fn der(&self) -> Result<CertificateDer<'static>, Error> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).map_err(tls_error("reading ca.pem"))
    }

    /// The server's certificate for these host names and addresses, created or renewed as needed.
    pub fn server_identity(&self, data: &DataDir, names: &BTreeSet<String>) -> Result<ServerIdentity, Error> {
        let key = key_pair(data, "server.key")?;
        let mut leaf = data.read("server.pem")?;
        if !leaf.as_deref().is_some_and(|pem| serves(pem, names)) {
            let made = server_params(names)?.signed_by(&key, &self.issuer);
            let pem = made.map_err(certificate_error("signing the server's certificate"))?.pem();
            data.replace("server.pem", &pem)?;
            leaf = Some(pem);
        }
        let leaf = CertificateDer::from_pem_slice(leaf.unwrap_or_default().as_bytes());
        let leaf = leaf.map_err(tls_error("reading server.pem"))?;
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes());
        let key = key.map_err(tls_error("reading server.key"))?;
        Ok(ServerIdentity { chain: vec![leaf, self.der()?], key })
    }

    /// Returns a certificate for a node and the authority's own, in PEM. Only the public key of the request is used.
    /// The request's signature proves that the node has the private key.
    pub fn sign_node(&self, node: &str, request: &NodeRequest) -> Result<String, Error> {
        let mut params = params(node, Duration::seconds(NODE_LIFETIME.cast_signed()));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let leaf = params.signed_by(&request.0.public_key, &self.issuer);
        let leaf = leaf.map_err(certificate_error("signing the node's certificate"))?;
        Ok(leaf.pem() + &self.pem)
    }
}

/// A certificate request whose signature was checked.
pub struct NodeRequest(CertificateSigningRequestParams);

impl NodeRequest {
    /// Reads a PKCS #10 request in PEM.
    pub fn from_pem(pem: &str) -> Result<Self, Error> {
        CertificateSigningRequestParams::from_pem(pem).map(Self).map_err(|error| Error::Refused {
            code: ErrorCode::InvalidRequest,
            message: "the csr is not a PKCS #10 certificate request in PEM that is signed with its own key".to_owned(),
            causes: vec![error.to_string()],
        })
    }

    /// Fingerprint of the key that signed the request.
    pub fn fingerprint(&self) -> String {
        random::fingerprint(&self.0.public_key.subject_public_key_info())
    }
}

/// The node that a certificate was issued for: its common name, and its key.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    Some(Subject { node: name.to_owned(), key: random::fingerprint(certificate.public_key().raw) })
}

fn key_pair(data: &DataDir, name: &str) -> Result<KeyPair, Error> {
    let pem = data.read_or_create(name, || {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256);
        key.map(|key| key.serialize_pem()).map_err(certificate_error("creating a private key"))
    })?;
    KeyPair::from_pem(&pem).map_err(certificate_error("reading a private key"))
}

fn params(common_name: &str, lifetime: Duration) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = now - BACKDATED;
    params.not_after = now + lifetime;
    // Positive and at most 20 octets (RFC 5280, section 4.1.2.2).
    params.serial_number = Some(SerialNumber::from_slice(&random::bytes::<16>().map(|byte| byte & 0x7f)));
    params.use_authority_key_identifier_extension = true;
    params
}

fn ca_params() -> CertificateParams {
    // The random part lets people tell the authorities of different installations apart.
    let mut params = params(&format!("slipway CA {}", random::id()), CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = false;
    params
}

fn server_params(names: &BTreeSet<String>) -> Result<CertificateParams, Error> {
    let mut params = params("slipway-server", SERVER_LIFETIME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into().map_err(|_| {
                let message = format!("{name:?} is neither a host name nor an IP address");
                Error::refused(ErrorCode::InvalidRequest, message)
            })?),
        });
    }
    Ok(params)
}

/// Whether the certificate is for exactly these names and lasts long enough.
fn serves(pem: &str, names: &BTreeSet<String>) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&der) else { return false };
    let expires = certificate.validity().not_after.to_datetime();
    let Ok(Some(sans)) = certificate.subject_alternative_name() else { return false };
    let found: BTreeSet<String> = sans.value.general_names.iter().filter_map(general_name).collect();
    found == *names && expires - OffsetDateTime::now_utc() > SERVER_RENEWAL
}

fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 => <[u8; 4]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
            _ => <[u8; 16]>::try_from(*octets).ok().map(|octets| IpAddr::from(octets).to_string()),
        },
        _ => None,
    }
}

fn certificate_error(doing: &'static str) -> impl FnOnce(rcgen::Error) -> Error {
    move |source| Error::Certificate { doing, source }
}

fn tls_error<E: std::error::Error + Send + Sync + 'static>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Tls { doing, source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_server_certificate_is_kept_until_its_names_change() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let authority = Authority::open(&data)?;
        let first = authority.server_identity(&data, &names(&["localhost", "127.0.0.1", "::1"]))?;
        let again = authority.server_identity(&data, &names(&["localhost", "127.0.0.1", "::1"]))?;
        assert_eq!(first.chain, again.chain);
        let other = authority.server_identity(&data, &names(&["localhost", "192.0.2.1"]))?;
        assert_ne!(first.chain[0], other.chain[0]);
        assert_eq!(first.chain[1], other.chain[1], "the authority stays");
        Ok(())
    }

    #[test]
    fn a_node_certificate_carries_the_nodes_id_and_nothing_of_the_request() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::open(&DataDir::make(folder.path())?)?;
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
