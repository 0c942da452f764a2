//! Templates of this site's certificates.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints, SanType, SerialNumber,
};
use slipway_protocol::ErrorCode;
use time::{Duration, OffsetDateTime};

use super::NODE_LIFETIME;
use super::certificate::Certificate;
use crate::base::error::Error;
use crate::base::random;

const CA_LIFETIME: Duration = Duration::days(3650);
const SERVER_LIFETIME: Duration = Duration::days(365);
/// How far before the time of signing a certificate's validity starts, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::days(1);

/// A root that may sign only for these names. It signs only intermediates.
pub fn root(names: &BTreeSet<String>) -> CertificateParams {
    // The random part distinguishes the authorities of different sites for people.
    let mut params = authority(&format!("slipway CA {}", random::id()), 1, names);
    params.use_authority_key_identifier_extension = false;
    params
}

/// An intermediate that may sign only for these names, and is valid as long as its root.
pub fn intermediate(root: &Certificate, names: &BTreeSet<String>) -> CertificateParams {
    // Roots of older versions allow no intermediate, except one with the root's own name, because path length does not
    // count self-issued certificates (RFC 5280, section 4.2.1.9).
    let name = match root.path_length {
        Some(0) => root.common_name.clone(),
        _ => format!("{} intermediate {}", root.common_name, random::id()),
    };
    let mut params = authority(&name, 0, names);
    params.not_after = root.not_after;
    params
}

fn authority(name: &str, path_length: u8, names: &BTreeSet<String>) -> CertificateParams {
    let mut params = params(name, CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_length));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Only for TLS, not for mail or programs.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: names.iter().map(|name| subtree(name)).collect(),
        excluded_subtrees: Vec::new(),
    });
    params
}

/// A name constraint: an address, or a host name including the names below it (RFC 5280, section 4.2.1.10).
fn subtree(name: &str) -> GeneralSubtree {
    match name.parse::<IpAddr>() {
        Ok(address) => {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            GeneralSubtree::IpAddress(CidrSubnet::from_addr_prefix(address, bits))
        }
        Err(_) => GeneralSubtree::DnsName(name.to_owned()),
    }
}

/// A root for firmware. It signs only certificates of the server.
pub fn firmware_root() -> CertificateParams {
    let mut params = params(&format!("slipway firmware CA {}", random::id()), CA_LIFETIME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = false;
    params
}

/// The server's certificate for this key. It does not outlive its issuer.
pub fn server(names: &BTreeSet<String>, issuer: &Certificate, key: &KeyPair) -> Result<CertificateParams, Error> {
    // GnuTLS takes the common name as a host name if the certificate has only addresses.
    let has_host_name = names.iter().any(|name| name.parse::<IpAddr>().is_err());
    let mut params = params(if has_host_name { "slipway-server" } else { "localhost" }, SERVER_LIFETIME);
    params.not_after = params.not_after.min(issuer.not_after);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    if key.algorithm() == &rcgen::PKCS_RSA_SHA256 {
        // Old firmware supports no key exchange except RSA encryption with this key (RFC 5246, section 7.4.2).
        params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
    }
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

/// A node's certificate.
pub fn node(id: &str) -> CertificateParams {
    let mut params = params(id, Duration::seconds(NODE_LIFETIME.cast_signed()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
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
