//! Certificates of endorsement keys (TCG EK Credential Profile for TPM 2.0, section 3). TLS verifiers refuse them,
//! because their subject is empty and a critical extension names the TPM instead.

use std::collections::BTreeMap;

use thiserror::Error;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA384WITHRSA, OID_PKCS1_SHA512WITHRSA, OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384, Oid, asn1_rs::oid,
};
use x509_parser::prelude::{ASN1Time, FromDer, Pem, X509Certificate};

use super::keys::Keys;

/// Maximum number of certificates between an endorsement key's certificate and the root.
const MAX_INTERMEDIATES: u32 = 8;
/// tcg-kp-EKCertificate: extended key usage of endorsement key certificates.
const EK_CERTIFICATE: Oid<'static> = oid!(2.23.133.8.1);
/// Accepted signature algorithms. SHA-1 is not accepted.
const SIGNATURES: [Oid<'static>; 5] = [
    OID_PKCS1_SHA256WITHRSA,
    OID_PKCS1_SHA384WITHRSA,
    OID_PKCS1_SHA512WITHRSA,
    OID_SIG_ECDSA_WITH_SHA256,
    OID_SIG_ECDSA_WITH_SHA384,
];

/// What the certificate of an endorsement key proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endorsement {
    /// Nothing: the machine sent no certificate.
    None,
    /// Nothing: the manufacturer is not trusted, or an intermediate certificate is missing.
    Unknown {
        /// Name of the missing issuer.
        issuer: String,
    },
    /// Nothing: the certificate is not valid.
    Bad {
        /// Why the certificate is not valid.
        reason: String,
    },
    /// A trusted manufacturer states that the endorsement key is in one of its TPMs.
    Chain,
}

/// Trusted certificates of manufacturers (roots and intermediates) in DER, indexed by their subject. Self-issued ones
/// come first.
#[derive(Clone, Debug, Default)]
pub struct Roots(BTreeMap<Vec<u8>, Vec<Vec<u8>>>);

/// Why a text cannot be read as certificates of manufacturers.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RootsError {
    /// The text has no certificate.
    #[error("it has no certificate in PEM (-----BEGIN CERTIFICATE-----)")]
    Empty,
    /// A certificate in the text cannot be read.
    #[error("its certificate {number} is not a certificate in PEM")]
    Unreadable {
        /// Position in the text, from 1.
        number: usize,
    },
}

impl Roots {
    /// Reads certificates in PEM. Text between them is ignored.
    ///
    /// # Errors
    /// If there is none, or one that cannot be read.
    pub fn from_pem(text: &str) -> Result<Self, RootsError> {
        let mut roots = Self::default();
        for (index, pem) in Pem::iter_from_buffer(text.as_bytes()).enumerate() {
            let unreadable = || RootsError::Unreadable { number: index + 1 };
            let pem = pem.ok().filter(|pem| pem.label == "CERTIFICATE").ok_or_else(unreadable)?;
            let (rest, certificate) = X509Certificate::from_der(&pem.contents).map_err(|_| unreadable())?;
            if !rest.is_empty() {
                return Err(unreadable());
            }
            let subject = roots.0.entry(certificate.subject().as_raw().to_vec()).or_default();
            let place = if is_self_issued(&certificate) { 0 } else { subject.len() };
            subject.insert(place, pem.contents.clone());
        }
        if roots.0.is_empty() { Err(RootsError::Empty) } else { Ok(roots) }
    }

    fn with_subject(&self, subject: &[u8]) -> impl Iterator<Item = X509Certificate<'_>> {
        let certificates = self.0.get(subject).into_iter().flatten();
        certificates.filter_map(|der| X509Certificate::from_der(der).ok()).map(|(_, certificate)| certificate)
    }
}

impl Keys {
    /// What the manufacturer's certificate proves about the endorsement key, at a time in seconds since 1970.
    ///
    /// Revocation is not checked. Bytes after the certificate are ignored, because a TPM may store it in a longer
    /// index.
    pub fn endorsement(&self, roots: &Roots, now_unix_seconds: u64) -> Endorsement {
        let Some(der) = &self.ek_certificate else { return Endorsement::None };
        let bad = |reason: &str| Endorsement::Bad { reason: reason.to_owned() };
        let now = i64::try_from(now_unix_seconds).ok().and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
        let (Some(now), Ok((_, certificate))) = (now, X509Certificate::from_der(der)) else {
            return bad("it cannot be read");
        };
        if *certificate.public_key().subject_public_key.data != *self.ek.bits() {
            return bad("it is for another key");
        }
        match fault(&certificate, now).or_else(|| other_use(&certificate)) {
            Some(reason) => bad(reason),
            None => chain(certificate, roots, now),
        }
    }
}

/// Follows the issuers of a certificate that has no fault itself to a root.
fn chain<'a>(mut certificate: X509Certificate<'a>, roots: &'a Roots, now: ASN1Time) -> Endorsement {
    for below in 0..=MAX_INTERMEDIATES {
        let mut fault = None;
        let issuer = roots.with_subject(certificate.issuer().as_raw()).find(|issuer| {
            fault = issuer_fault(issuer, &certificate, below, now);
            fault.is_none()
        });
        certificate = match (issuer, fault) {
            // A root is signed with its own key.
            (Some(issuer), _) if issuer.verify_signature(None).is_ok() => return Endorsement::Chain,
            (Some(issuer), _) => issuer,
            (None, Some(reason)) => {
                return Endorsement::Bad { reason: format!("{reason}: {}", certificate.issuer()) };
            }
            (None, None) => return Endorsement::Unknown { issuer: certificate.issuer().to_string() },
        };
    }
    Endorsement::Bad { reason: format!("more than {MAX_INTERMEDIATES} certificates are between it and a root") }
}

/// Why a certificate is not valid at a time, whoever signed it.
fn fault(certificate: &X509Certificate<'_>, now: ASN1Time) -> Option<&'static str> {
    let is_known = |extension: &ParsedExtension<'_>| {
        matches!(
            extension,
            ParsedExtension::BasicConstraints(_)
                | ParsedExtension::KeyUsage(_)
                | ParsedExtension::ExtendedKeyUsage(_)
                | ParsedExtension::SubjectAlternativeName(_)
                | ParsedExtension::CertificatePolicies(_)
        )
    };
    if !certificate.validity().is_valid_at(now) {
        return Some("it has expired, or is not valid yet");
    }
    let mut critical = certificate.extensions().iter().filter(|extension| extension.critical);
    let is_unknown = critical.any(|extension| !is_known(extension.parsed_extension()));
    is_unknown.then_some("it has an unknown critical extension")
}

/// Why a certificate is not for an endorsement key. One without an extended key usage is accepted.
fn other_use(certificate: &X509Certificate<'_>) -> Option<&'static str> {
    match certificate.extended_key_usage() {
        Ok(None) => None,
        Ok(Some(uses)) if uses.value.any || uses.value.other.contains(&EK_CERTIFICATE) => None,
        _ => Some("its extended key usage is not that of an endorsement key"),
    }
}

/// Why a certificate cannot be the issuer of another, with this number of intermediate certificates below it.
fn issuer_fault(
    issuer: &X509Certificate<'_>,
    issued: &X509Certificate<'_>,
    below: u32,
    now: ASN1Time,
) -> Option<&'static str> {
    let Ok(Some(constraints)) = issuer.basic_constraints() else { return Some("its issuer is not a CA") };
    let may_sign = issuer.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()));
    if !constraints.value.ca || !may_sign {
        return Some("its issuer is not a CA");
    }
    if constraints.value.path_len_constraint.is_some_and(|most| below > most) {
        return Some("the chain is longer than an issuer allows");
    }
    // Only the second of the two is covered by the signature (RFC 5280, section 4.1.1.2).
    let is_alike = issued.signature_algorithm == issued.tbs_certificate.signature;
    if !is_alike || !SIGNATURES.contains(&issued.signature_algorithm.algorithm) {
        return Some("its signature algorithm is not accepted");
    }
    if issued.verify_signature(Some(issuer.public_key())).is_err() {
        return Some("the signature of its issuer is wrong");
    }
    fault(issuer, now)
        .map(|_| "the certificate of its issuer has expired, is not valid yet, or has an unknown critical extension")
}

fn is_self_issued(certificate: &X509Certificate<'_>) -> bool {
    certificate.subject().as_raw() == certificate.issuer().as_raw()
}
