//! Certificate authorities, and servers with certificates from them.

use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub type Authority = CertifiedIssuer<'static, KeyPair>;

pub fn authority() -> Authority {
    authority_named("CA")
}

pub fn authority_named(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn usual() -> CertificateParams {
    CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// Accepts TLS connections as localhost and 127.0.0.1.
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    pub fn new(issuer: &Authority) -> Self {
        Self::with(issuer, |_| {})
    }

    /// With a certificate that is changed so.
    pub fn with(issuer: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = usual();
        change(&mut params);
        let leaf = params.signed_by(&key, issuer).unwrap();
        Self::of(&leaf, &key)
    }

    /// With a certificate that nobody else has signed, and that certificate in PEM.
    pub fn self_signed(is_ca: IsCa) -> (Self, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = usual();
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).unwrap();
        (Self::of(&certificate, &key), certificate.pem())
    }

    fn of(certificate: &Certificate, key: &KeyPair) -> Self {
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        Self(Arc::new(config))
    }

    pub fn accept(&self, connection: TcpStream) -> StreamOwned<ServerConnection, TcpStream> {
        StreamOwned::new(ServerConnection::new(Arc::clone(&self.0)).unwrap(), connection)
    }
}

impl super::Stream for StreamOwned<ServerConnection, TcpStream> {
    fn end(&mut self) {
        self.conn.send_close_notify();
        drop(std::io::Write::flush(self));
    }
}
