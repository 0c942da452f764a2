//! TLS in slipway. Connections are always verified, and only against the CA of the boot medium.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Why no TLS connection can be set up.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum TlsError {
    /// The configured CA is not PEM, contains no certificate, or contains one that cannot sign others.
    #[error("reading the CA certificate in the configuration")]
    Ca { source: Box<dyn std::error::Error + Send + Sync> },
    /// The node's own certificate or key is unusable.
    #[error("using the node's certificate")]
    Identity {
        /// Error of parsing the certificate or key.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// A node's certificate chain and private key, both in PEM.
#[derive(Clone, Debug)]
pub struct NodeCertificate {
    /// Certificates, leaf first.
    pub chain: String,
    /// Private key as PKCS #8.
    pub key: slipway_protocol::Secret,
}

/// Makes ring the process's cryptography provider. Call this once, before any other use of TLS.
pub fn install_provider() {
    // Fails if a provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Reads the root certificates in a PEM text.
pub fn roots(ca: &str) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        let certificate = certificate.map_err(|e| TlsError::Ca { source: Box::new(e) })?;
        roots.add(certificate).map_err(|e| TlsError::Ca { source: Box::new(e) })?;
    }
    if roots.is_empty() {
        return Err(TlsError::Ca { source: "it contains no certificate".into() });
    }
    Ok(roots)
}

/// Makes the settings of a TLS client that trusts the CAs in `ca` and presents the node's certificate, if any.
pub fn client(ca: &str, node: Option<&NodeCertificate>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder().with_root_certificates(roots(ca)?);
    let Some(node) = node else { return Ok(builder.with_no_client_auth()) };
    let wrong = |source: Box<dyn std::error::Error + Send + Sync>| TlsError::Identity { source };
    let chain = CertificateDer::pem_slice_iter(node.chain.as_bytes()).collect::<Result<Vec<_>, _>>();
    let key = PrivateKeyDer::from_pem_slice(node.key.reveal().as_bytes());
    builder
        .with_client_auth_cert(chain.map_err(|e| wrong(Box::new(e)))?, key.map_err(|e| wrong(Box::new(e)))?)
        .map_err(|e| wrong(Box::new(e)))
}

/// Makes the settings of a TLS client for use before the clock is right. Chain and name are verified as usual, but
/// validity dates are not: a certificate is checked at the nearest time at which it was valid. The machine's clock may
/// be wrong by years, and the verified server's time is better.
pub fn client_for_clock(ca: &str) -> Result<ClientConfig, TlsError> {
    let strict = WebPkiServerVerifier::builder(Arc::new(roots(ca)?))
        .build()
        .map_err(|e| TlsError::Ca { source: Box::new(e) })?;
    let verifier = Arc::new(IgnoreExpiry { strict });
    Ok(ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

#[derive(Debug)]
struct IgnoreExpiry {
    strict: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for IgnoreExpiry {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify = |at| self.strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, at);
        match verify(now) {
            Err(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                verify(not_before)
            }
            Err(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => verify(not_after),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.strict.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

/// Returns the result of the certificate check, if the check made the request fail.
pub fn certificate_verdict(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    slipway_actions::certificate_verdict(error, || {
        "its certificate is not signed by the CA that this machine trusts; build the boot image again with this \
         server's CA (or pass the CA with --ca), or check which server answers at this address"
            .to_owned()
    })
}
