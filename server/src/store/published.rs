//! The boot files that the servers of a site take from the bucket.

use serde::{Deserialize, Serialize};
use slipway_protocol::Digest;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, settings, to_json, undecodable};

/// Number of builds that stay published: a machine may be booting from the one before the newest.
const KEPT: usize = 2;

/// A build of boot files that is in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Id of the build.
    pub id: String,
    /// SHA-256 of its manifest, which names all of its files.
    pub manifest: Digest,
    /// When it was published, in milliseconds since 1970.
    pub at: Millis,
    /// Version of slipway that made it.
    pub version: String,
}

/// Returns the builds that are published, the newest first. The servers hand out that one; the one before stays for
/// machines that began with it.
pub async fn all(connection: &mut Connection) -> Result<Vec<Published>, Error> {
    let Some(text) = settings::read(connection, settings::PUBLISHED).await? else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(undecodable(settings::PUBLISHED))
}

/// Publishes a build in place of the newest, which stays as the one before.
pub async fn add(connection: &mut Connection, new: Published) -> Result<(), Error> {
    let mut builds = all(connection).await?;
    builds.retain(|build| build.id != new.id);
    builds.insert(0, new);
    builds.truncate(KEPT);
    settings::write(connection, settings::PUBLISHED, &to_json(&builds)).await
}
