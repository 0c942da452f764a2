//! The server's certificates, which are renewed without a restart before they expire.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::base::data::DataDir;
use crate::base::error::{Error, chain};
use crate::keys::ca::{Authority, ServerIdentity, firmware};

/// Interval at which the certificate's expiry is checked, much shorter than its lifetime.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// The certificates in use, for the server's host names and addresses.
#[derive(Debug)]
pub struct Certificate {
    names: BTreeSet<String>,
    current: RwLock<Current>,
}

#[derive(Clone, Debug)]
struct Current {
    /// Certificate for nodes, installed systems and operators, with an elliptic curve key.
    usual: Arc<CertifiedKey>,
    /// Certificate for firmware that supports only RSA. `None` if the site has no root for such firmware.
    firmware: Option<Arc<CertifiedKey>>,
}

impl Certificate {
    /// Opens the certificates in the data folder. Creates or renews them if needed.
    pub fn open(authority: &Authority, data: &DataDir, names: BTreeSet<String>) -> Result<Self, Error> {
        let current = RwLock::new(load(authority, data, &names)?);
        Ok(Self { names, current })
    }

    /// Renews each certificate that is due, with a new key. New connections use the new certificates.
    pub fn renew(&self, authority: &Authority, data: &DataDir) -> Result<(), Error> {
        let fresh = load(authority, data, &self.names)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Renews the certificates when needed, as long as the server runs.
    pub async fn keep_fresh(&self, authority: &Authority, data: &DataDir) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if let Err(error) = self.renew(authority, data) {
                tracing::error!("renewing the server's certificate: {}", chain(&error));
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Current { usual, firmware } = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        match usual.key.choose_scheme(client.signature_schemes()) {
            Some(_) => Some(usual),
            None => firmware.or(Some(usual)),
        }
    }
}

fn load(authority: &Authority, data: &DataDir, names: &BTreeSet<String>) -> Result<Current, Error> {
    let certified = |ServerIdentity { chain, key }| {
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let wrong =
            |source| Error::Tls { doing: "using the server's certificate with its key", source: Box::new(source) };
        key.map(Arc::new).map_err(wrong)
    };
    let usual = certified(authority.server_identity(data, names)?)?;
    Ok(Current { usual, firmware: firmware::identity(data, names)?.map(certified).transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_made_anew_is_shown_without_a_restart() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let data = DataDir::make(folder.path())?;
        let authority = Authority::open_or_make(&data, &BTreeSet::from(["localhost".to_owned()]))?;
        let certificate = Certificate::open(&authority, &data, BTreeSet::from(["localhost".to_owned()]))?;
        let shown = || {
            certificate.current.read().map(|current| current.usual.cert[0].clone()).map_err(|error| error.to_string())
        };
        let first = shown()?;
        certificate.renew(&authority, &data)?;
        assert_eq!(shown()?, first, "it lasts for long");
        std::fs::remove_file(folder.path().join("server.pem"))?;
        certificate.renew(&authority, &data)?;
        assert_ne!(shown()?, first);
        Ok(())
    }
}
