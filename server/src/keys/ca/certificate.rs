//! A parsed certificate, with the fields that are used here.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A parsed certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM, as it is stored.
    pub pem: String,
    /// DER, as it is sent.
    pub der: CertificateDer<'static>,
    /// Common name of the subject.
    pub common_name: String,
    /// Start of validity.
    pub not_before: OffsetDateTime,
    /// End of validity.
    pub not_after: OffsetDateTime,
    /// Path length constraint: how many CA certificates may follow this one in a chain. `None` if unlimited.
    pub path_length: Option<u32>,
    /// Permitted host names and addresses (name constraints). `None` if unlimited.
    pub permitted: Option<BTreeSet<String>>,
    /// Subject alternative names: host names and addresses.
    pub names: BTreeSet<String>,
    public_key: Vec<u8>,
    key_id: Vec<u8>,
    issuer_key_id: Option<Vec<u8>>,
}

impl Certificate {
    /// Parses a certificate in PEM.
    pub fn parse(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let constraints = parsed.name_constraints().ok()?;
        let permitted = constraints.map(|constraints| {
            let subtrees = constraints.value.permitted_subtrees.as_deref().unwrap_or_default();
            subtrees.iter().filter_map(|subtree| general_name(&subtree.base)).collect()
        });
        let names = parsed.subject_alternative_name().ok()?.map(|names| &names.value.general_names);
        let (mut key_id, mut issuer_key_id) = (Vec::new(), None);
        for extension in parsed.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => key_id = id.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    issuer_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
                }
                _ => {}
            }
        }
        Some(Self {
            common_name: parsed.subject().iter_common_name().next()?.as_str().ok()?.to_owned(),
            not_before: parsed.validity().not_before.to_datetime(),
            not_after: parsed.validity().not_after.to_datetime(),
            path_length: parsed.basic_constraints().ok()?.and_then(|basic| basic.value.path_len_constraint),
            permitted,
            names: names.into_iter().flatten().filter_map(general_name).collect(),
            public_key: parsed.public_key().raw.to_vec(),
            key_id,
            issuer_key_id,
            pem: pem.to_owned(),
            der: der.clone().into_owned(),
        })
    }

    /// Whether the certificate has this public key.
    pub fn is_of(&self, key: &KeyPair) -> bool {
        self.public_key == key.subject_public_key_info()
    }

    /// Whether its issuer is this authority, by the key identifiers. Does not verify the signature.
    pub fn is_issued_by(&self, authority: &Certificate) -> bool {
        self.issuer_key_id.as_ref() == Some(&authority.key_id)
    }

    /// Whether it may sign for this host name or address. A permitted host name includes all names below that name.
    pub fn permits(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let is_address = name.parse::<IpAddr>().is_ok();
        let covers = |permitted: &String| {
            let permitted = permitted.to_ascii_lowercase();
            name == permitted || (!is_address && name.ends_with(&format!(".{permitted}")))
        };
        self.permitted.as_ref().is_none_or(|permitted| permitted.iter().any(covers))
    }
}

/// Formats a host name or an address. An address in a constraint is followed by a mask, which here always has all bits
/// set.
fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => match octets.len() {
            4 | 8 => octets.first_chunk::<4>().map(|octets| IpAddr::from(*octets).to_string()),
            _ => octets.first_chunk::<16>().map(|octets| IpAddr::from(*octets).to_string()),
        },
        _ => None,
    }
}
