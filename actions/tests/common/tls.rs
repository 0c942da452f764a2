//! Certificate authorities, and servers with certificates from them.

use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
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

/// Accepts TLS connections as localhost and 127.0.0.1.
pub struct Acceptor(Arc<ServerConfig>);

impl Acceptor {
    pub fn new(issuer: &Authority) -> Self {
        Self::valid(issuer, 1975..4096)
    }

    /// With a certificate that is valid from the beginning of a year to that of another.
    pub fn valid(issuer: &Authority, years: Range<i32>) -> Self {
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(years.start, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.end, 1, 1);
        let leaf = params.signed_by(&key, issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
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
