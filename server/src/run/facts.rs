//! This server's URL and its objects, loaded once, to compose and judge runs.

use crate::base::error::Error;
use crate::store::findings::{self, Finding};
use crate::store::images::{self, Image};
use crate::store::{Connection, settings};
use slipway_protocol::Digest;

/// The server's URL and images.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The URL at which machines reach the server, without a trailing slash. `None` before the server's first start.
    pub server: Option<String>,
    /// The server's images, oldest first.
    pub images: Vec<Stored>,
    /// The CA certificates, in PEM, that machines verify the object store with, if they are redirected there.
    pub images_ca: Option<String>,
}

/// An image of this server, and what was found in its file.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The image.
    pub image: Image,
    /// What was found. `None` if the file was not examined yet.
    pub finding: Option<Finding>,
}

impl Facts {
    /// Loads everything. The findings are those of [examinations](crate::image::examine) that were made before.
    pub async fn load(connection: &mut Connection) -> Result<Self, Error> {
        let mut findings = findings::all(connection).await?;
        let stored = |image: Image| Stored { finding: findings.remove(&image.digest), image };
        let images = images::all(connection).await?.into_iter().map(stored).collect();
        let server = settings::read(connection, settings::SERVER_URL).await?;
        Ok(Self { server, images, images_ca: settings::read(connection, settings::IMAGES_CA).await? })
    }

    /// Returns the server's URL. Refuses before the first start of the server.
    pub fn server(&self) -> Result<&str, Error> {
        self.server.as_deref().ok_or_else(settings::no_server_url)
    }

    /// Returns the image with this digest, if this server has it.
    pub fn image(&self, digest: &Digest) -> Option<&Stored> {
        self.images.iter().find(|stored| stored.image.digest == *digest)
    }
}
