//! The server's certificates.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::keys::ca::{Authority, ServerIdentity, firmware};

/// The server's certificates, for its host names and addresses.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Certificate for nodes, installed systems and operators, with an elliptic curve key.
    usual: Arc<CertifiedKey>,
    /// Certificate for firmware that supports only RSA. `None` if the site has no root for such firmware.
    firmware: Option<Arc<CertifiedKey>>,
}

impl Certificate {
    /// Opens the certificates in the data folder. Creates or renews them if needed, each time with a new key.
    pub fn open(authority: &Authority, data: &DataDir, names: &BTreeSet<String>) -> Result<Self, Error> {
        let certified = |ServerIdentity { chain, key }| {
            let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
            let wrong =
                |source| Error::Tls { doing: "using the server's certificate with its key", source: Box::new(source) };
            key.map(Arc::new).map_err(wrong)
        };
        let usual = certified(authority.server_identity(data, names)?)?;
        Ok(Self { usual, firmware: firmware::identity(data, names)?.map(certified).transpose()? })
    }
}

impl Certificate {
    /// Returns the names of the certificates, and when each expires, in seconds since 1970.
    pub fn expiries(&self) -> impl Iterator<Item = (&'static str, i64)> {
        let named = [("server", Some(&self.usual)), ("firmware_server", self.firmware.as_ref())];
        named.into_iter().filter_map(|(name, key)| {
            let (_, certificate) = x509_parser::parse_x509_certificate(key?.cert.first()?).ok()?;
            Some((name, certificate.validity().not_after.timestamp()))
        })
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Self { usual, firmware } = self.clone();
        match usual.key.choose_scheme(client.signature_schemes()) {
            Some(_) => Some(usual),
            None => firmware.or(Some(usual)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_kept_until_it_has_to_be_made_anew() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let names = BTreeSet::from(["localhost".to_owned()]);
        let authority = Authority::open_or_make(&data, &names)?;
        let shown = || Certificate::open(&authority, &data, &names).map(|opened| opened.usual.cert[0].clone());
        let first = shown()?;
        assert_eq!(shown()?, first, "it lasts for long");
        std::fs::remove_file(folder.path().join("server.pem"))?;
        assert_ne!(shown()?, first);
        Ok(())
    }
}
