//! The machine's key, by which the server recognises the machine. All installers of one boot use the same key.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use slipway_protocol::Secret;
use tracing::warn;

use crate::files::write_whole;
use crate::server::tls::TlsError;

/// Name of the file with the key, in PEM, in [`crate::Options::state`].
const FILE: &str = "machine.key";

/// A P-256 key that never leaves the machine and is lost when the machine restarts.
#[derive(Debug)]
pub struct MachineKey(KeyPair);

impl MachineKey {
    /// Reads the key that an earlier installer of this boot left in the folder, or makes one and leaves it there.
    ///
    /// If the folder cannot be read or written, only a warning is logged: the machine can be installed, but a restarted
    /// installer must wait until the server accepts it as the same machine.
    pub fn of_this_boot(folder: &Path) -> Result<Self, TlsError> {
        let path = folder.join(FILE);
        match fs::read_to_string(&path) {
            Ok(pem) => match KeyPair::from_pem(&pem) {
                Ok(key) => return Ok(Self(key)),
                Err(error) => warn!("reading the key of this machine from {path:?}: {error}; making a new one"),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => warn!("reading the key of this machine from {path:?}: {error}; making a new one"),
        }
        let key = KeyPair::generate().map_err(wrong)?;
        if let Err(error) = write_whole(&path, key.serialize_pem().as_bytes()) {
            warn!("storing the key of this machine in {path:?}: {error}");
        }
        Ok(Self(key))
    }

    /// Makes a certificate request in PEM. The server sets the subject.
    pub fn request(&self) -> Result<String, TlsError> {
        let request = CertificateParams::default().serialize_request(&self.0).map_err(wrong)?;
        request.pem().map_err(wrong)
    }

    /// Returns the private key in PEM.
    pub fn pem(&self) -> Secret {
        self.0.serialize_pem().into()
    }
}

fn wrong(source: rcgen::Error) -> TlsError {
    TlsError::Identity { source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_installers_of_one_boot_have_one_key() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let state = folder.path().join("slipway");
        let first = MachineKey::of_this_boot(&state)?;
        assert_eq!(MachineKey::of_this_boot(&state)?.pem().reveal(), first.pem().reveal());
        assert_eq!(fs::metadata(state.join(FILE))?.permissions().mode() & 0o777, 0o600);
        fs::write(state.join(FILE), "damaged")?;
        assert_ne!(MachineKey::of_this_boot(&state)?.pem().reveal(), first.pem().reveal());
        Ok(())
    }
}
