//! Whether a BMC is the one that it is taken for: by the CA that signed its certificate, or by the certificate itself.
//! Most BMCs have a certificate that they made themselves.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest as _, Sha256};
use slipway_protocol::Redfish;

/// The certificate that was not trusted: its SHA-256, and why.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<Option<(String, String)>>>);

impl Seen {
    /// Says what to do about a certificate that was not trusted.
    pub fn advice(&self) -> Option<String> {
        let (seen, why) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!(
            "the certificate of the BMC is not trusted ({why}); compare its SHA-256 with what the BMC itself shows, \
             then trust it with `node power set NODE --pin {seen}`, or give the CA with --ca"
        ))
    }
}

/// Makes the settings of a TLS client that trusts one BMC. Fails with the reason.
pub fn client(settings: &Redfish) -> Result<(ClientConfig, Seen), String> {
    // Another provider may be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let by = match (&settings.pin, &settings.ca) {
        (Some(pin), _) => By::Certificate(pin.clone()),
        (None, Some(ca)) => {
            let verifier = WebPkiServerVerifier::builder(Arc::new(roots(ca)?)).build();
            let verifier = verifier.map_err(|error| format!("using the CA of the BMC: {error}"))?;
            let given = CertificateDer::pem_slice_iter(ca.as_bytes()).flatten().map(|given| digest(&given)).collect();
            By::Ca(verifier, given)
        }
        (None, None) => By::Nothing,
    };
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let seen = Seen::default();
    let verifier = Arc::new(Verifier { by, algorithms, seen: seen.clone() });
    let tls = ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    Ok((tls, seen))
}

/// Reads CA certificates in PEM. Fails with the reason.
pub fn roots(pem: &str) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("the CA of the BMC cannot be read: {error}"))?;
        roots.add(certificate).map_err(|error| format!("the CA of the BMC cannot be used: {error}"))?;
    }
    if roots.is_empty() {
        return Err("the CA of the BMC has no certificate in PEM".to_owned());
    }
    Ok(roots)
}

fn digest(certificate: &CertificateDer<'_>) -> String {
    format!("sha256:{}", base16ct::lower::encode_string(&Sha256::digest(certificate)))
}

/// What a certificate is trusted by.
#[derive(Debug)]
enum By {
    /// By a CA that signed it, or because it is itself among what was given as CA: these digests. Many BMCs have a
    /// certificate that they signed themselves.
    Ca(Arc<WebPkiServerVerifier>, Vec<String>),
    /// By the SHA-256 of the certificate, whatever name and dates it has.
    Certificate(String),
    /// By nothing yet.
    Nothing,
}

#[derive(Debug)]
struct Verifier {
    by: By,
    algorithms: WebPkiSupportedAlgorithms,
    seen: Seen,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let seen = digest(end_entity);
        let verdict = match &self.by {
            By::Ca(_, given) if given.contains(&seen) => Ok(ServerCertVerified::assertion()),
            By::Ca(ca, _) => ca.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            By::Certificate(pin) if pin.eq_ignore_ascii_case(&seen) => Ok(ServerCertVerified::assertion()),
            By::Certificate(_) | By::Nothing => Err(CertificateError::ApplicationVerificationFailure.into()),
        };
        if let Err(error) = &verdict {
            let why = match &self.by {
                By::Ca(..) => error.to_string(),
                By::Certificate(_) => "it is not the one that is trusted".to_owned(),
                By::Nothing => "none is yet".to_owned(),
            };
            *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((seen, why));
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
