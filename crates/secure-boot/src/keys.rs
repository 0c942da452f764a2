//! Keys that sign, each with its certificate.

use std::error::Error as StdError;
use std::fmt;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use ring::rand::SystemRandom;
use ring::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey};
use rsa::pkcs8;
use time::OffsetDateTime;
use x509_parser::prelude::ASN1Time;

use crate::certificate::{Certificate, to_pem};
use crate::key_error::KeyError;
use crate::private_key::{self, KeySize, PKCS8};

/// The text that an external key signs to prove that the key is there. The text has no meaning for firmware.
const PROOF: &[u8] = b"slipway asks whether this key is that of its certificate";

/// Signs a message with an external private key, such as in a token: RSASSA-PKCS1-v1_5 with SHA-256.
pub type SignElsewhere = Box<dyn Fn(&[u8]) -> Result<Vec<u8>, Box<dyn StdError + Send + Sync>> + Send + Sync>;

/// An RSA signing key and its certificate.
pub struct SigningKey {
    private: Private,
    certificate: Certificate,
}

enum Private {
    Here { pkcs8: pkcs8::SecretDocument, pair: Box<RsaKeyPair> },
    Elsewhere(SignElsewhere),
}

impl SigningKey {
    /// Generates a key and its self-signed certificate for this common name and time.
    ///
    /// # Errors
    /// If no random bytes are available, or the times cannot be represented.
    pub fn generate(
        size: KeySize,
        common_name: &str,
        not_before: OffsetDateTime,
        not_after: OffsetDateTime,
    ) -> Result<Self, KeyError> {
        let document = private_key::generate(size)?;
        let certify = |source| KeyError::Certify { source };
        let pair = KeyPair::try_from(document.as_bytes()).map_err(certify)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        (params.not_before, params.not_after) = (not_before, not_after);
        // The certificate is a CA, because verifiers accept only a CA at the end of a chain.
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        // iPXE requires this usage of signers. Firmware does not.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
        let certificate = params.self_signed(&pair).map_err(certify)?;
        let certificate = Certificate::from_der(certificate.der());
        Self::new(document, certificate.map_err(|source| KeyError::Certificate { source })?)
    }

    /// Imports a key (PKCS#8 or PKCS#1) and its certificate, each the first of its kind in a PEM text. The dates of the
    /// certificate are not checked; see [`Self::check_validity`].
    ///
    /// # Errors
    /// If one of them is missing or cannot be read, if the key is not RSA of 2048 to 4096 bits, or if they do not
    /// match.
    pub fn from_pem(key: &str, certificate: &str) -> Result<Self, KeyError> {
        let certificate = Certificate::from_pem(certificate).map_err(|source| KeyError::Certificate { source })?;
        Self::new(private_key::read_key(key)?, certificate)
    }

    fn new(pkcs8: pkcs8::SecretDocument, certificate: Certificate) -> Result<Self, KeyError> {
        let pair = RsaKeyPair::from_pkcs8(pkcs8.as_bytes());
        let pair = pair.map_err(|rejected| KeyError::Unreadable { source: rejected.to_string().into() })?;
        let is_its = certificate
            .parsed()
            .is_some_and(|it| *it.public_key().subject_public_key.data == *pair.public_key().as_ref());
        if !is_its {
            return Err(KeyError::OtherKey { subject: certificate.subject().to_owned() });
        }
        Ok(Self { private: Private::Here { pkcs8, pair: Box::new(pair) }, certificate })
    }

    /// Takes an external key and its certificate, which is the first one in a PEM text. The key is not used yet; see
    /// [`Self::prove`].
    ///
    /// # Errors
    /// If the certificate cannot be read, or is not for an RSA key of 2048 to 4096 bits.
    pub fn elsewhere(certificate: &str, sign: SignElsewhere) -> Result<Self, KeyError> {
        let certificate = Certificate::from_pem(certificate).map_err(|source| KeyError::Certificate { source })?;
        let bits = certificate.rsa_bits().ok_or(KeyError::NotRsa)?;
        private_key::check_size(bits)?;
        Ok(Self { private: Private::Elsewhere(sign), certificate })
    }

    /// Signs a test message, which proves that the key is available and belongs to the certificate.
    ///
    /// # Errors
    /// If the key cannot sign, or is another one.
    pub fn prove(&self) -> Result<(), KeyError> {
        self.sign(PROOF).map(drop)
    }

    /// Checks the dates of the certificate at a time. Firmware ignores them, so an expired one works; this is a check
    /// for imports.
    ///
    /// # Errors
    /// If the certificate is not valid at that time.
    pub fn check_validity(&self, now: OffsetDateTime) -> Result<(), KeyError> {
        let Some(parsed) = self.certificate.parsed() else { return Ok(()) };
        let (validity, now) = (parsed.validity(), ASN1Time::from(now));
        let subject = self.certificate.subject().to_owned();
        match () {
            () if now < validity.not_before => {
                Err(KeyError::NotYetValid { subject, from: validity.not_before.to_string() })
            }
            () if now > validity.not_after => Err(KeyError::Expired { subject, until: validity.not_after.to_string() }),
            () => Ok(()),
        }
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The private key in PEM (PKCS#8), unencrypted. None if it is external.
    pub fn key_to_pem(&self) -> Option<String> {
        match &self.private {
            Private::Here { pkcs8, .. } => Some(to_pem(PKCS8, pkcs8.as_bytes())),
            Private::Elsewhere(_) => None,
        }
    }

    /// Signs a message: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, section 8.2), which is deterministic.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let subject = || self.certificate.subject().to_owned();
        match &self.private {
            Private::Here { pair, .. } => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature);
                signed.map_err(|_| KeyError::Sign { subject: subject() })?;
                Ok(signature)
            }
            Private::Elsewhere(sign) => {
                let signature = sign(message).map_err(|source| KeyError::Elsewhere { subject: subject(), source })?;
                // The external key may have been replaced. No machine would start what another key signed.
                match self.is_signature(message, &signature) {
                    true => Ok(signature),
                    false => Err(KeyError::Foreign { subject: subject() }),
                }
            }
        }
    }

    fn is_signature(&self, message: &[u8], signature: &[u8]) -> bool {
        self.certificate.parsed().is_some_and(|it| {
            let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &it.public_key().subject_public_key.data);
            key.verify(message, signature).is_ok()
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}
