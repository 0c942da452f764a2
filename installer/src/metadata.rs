//! Metadata of virtual machines: a config drive, and the services that clouds have at 169.254.169.254. It says where
//! the server is, and may have a bootstrap token.
//!
//! Nothing here is trusted. Anybody on the network may answer at that address, and any disk may have the label of a
//! config drive. So an answer is read with bounds, two texts are taken from it, and the configuration checks them as it
//! checks its other sources ([`crate::config`]). The server is then verified by the CA of the boot medium: who forges
//! metadata can keep the machine from its server, or send it to another server of the same CA, with a token that he
//! knows. No error shows what was answered.

mod answers;
mod service;

use slipway_actions::{ConfigDrive, ConfigDriveError};
use slipway_protocol::MetadataSource;

use crate::config::Metadata;

pub use self::answers::{Answer, Unusable, of_meta_data, of_user_data};
pub use self::service::{ADDRESS, Service, ServiceError};

/// Path of the file with the keys that the owner of an OpenStack machine set, on the config drive and at the service.
const META_DATA: &str = "openstack/latest/meta_data.json";
/// Path of the file with the owner's user-data, in the same places.
const USER_DATA: &str = "openstack/latest/user_data";

/// Why a config drive does not say where the server is.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum DriveError {
    /// A file cannot be read.
    #[error("asking the config drive for the server")]
    Read {
        #[from]
        source: ConfigDriveError,
    },
    /// A file was read, but cannot be used.
    #[error("asking the config drive for the server: reading {path}")]
    Unusable { path: &'static str, source: Unusable },
    /// There are files, but they do not name a server.
    #[error(
        "asking the config drive for the server: it names none; set slipway.server in the machine's metadata, or \
         server below slipway in its user-data"
    )]
    NoServer,
}

/// Reads where the server is from a config drive. The metadata counts before the user-data.
pub fn of_config_drive(drive: &ConfigDrive) -> Result<Answer, DriveError> {
    read_drive(|path| drive.read(path))
}

fn read_drive(read: impl Fn(&str) -> Result<Option<String>, ConfigDriveError>) -> Result<Answer, DriveError> {
    for (path, parse) in [(META_DATA, of_meta_data as answers::Parse), (USER_DATA, of_user_data)] {
        let Some(text) = read(path)? else { continue };
        let answer = parse(MetadataSource::ConfigDrive, &text);
        if let Some(answer) = answer.map_err(|source| DriveError::Unusable { path, source })? {
            return Ok(answer);
        }
    }
    Err(DriveError::NoServer)
}

impl Answer {
    fn new(by: MetadataSource, server: String, token: Option<String>, ignored: Vec<String>) -> Self {
        Self { metadata: Metadata { by, server, token: token.map(Into::into) }, ignored }
    }
}

#[cfg(test)]
mod tests;
