//! Results of examining the files of images.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use slipway_formats::image::made_for::MadeFor;
use slipway_protocol::Digest;

use crate::base::error::Error;
use crate::base::objects::Stamp;
use crate::store::{Connection, database, db, enum_from_text, json, to_json};

/// The result of examining an image's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Size and modification time of the file that was examined.
    pub file: Stamp,
    /// What the file contains.
    pub content: Content,
    /// What the file systems in the image contain. `None` if they were not examined, as in earlier versions.
    #[serde(default)]
    pub inside: Option<Inside>,
}

/// What the file systems of an image contain. Fields are `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Whether there is a boot loader whose configuration `kernel-args` can change or create.
    pub has_boot_loader: Option<bool>,
    /// What cloud-init and ds-identify read in the root file system. Only the relevant lines of boot texts.
    pub cloud_init: Option<slipway_user_data::image::Image>,
}

/// Content of an image's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// An image that can be installed, with the kind of disk and machine that it is made for.
    MadeFor(MadeFor),
    /// Not an image that a machine can install. A whole sentence says why: `the image "debian.img" cannot be installed:
    /// it is a text file; ...`.
    Unusable(String),
    /// The bytes changed since the image was added: they have another digest.
    Changed,
}

/// Stores a finding, replacing the previous one.
pub async fn save(connection: &mut Connection, digest: &Digest, finding: &Finding) -> Result<(), Error> {
    let sql = "INSERT INTO findings (digest, finding_json) VALUES ($1, $2) \
               ON CONFLICT (digest) DO UPDATE SET finding_json = excluded.finding_json";
    let query = db::query(sql).bind(digest.to_string()).bind(to_json(finding));
    query.execute(connection).await.map(drop).map_err(database("storing the findings on an image"))
}

/// Returns the finding for the image with this digest.
pub async fn get(connection: &mut Connection, digest: &Digest) -> Result<Option<Finding>, Error> {
    let query = db::query("SELECT finding_json FROM findings WHERE digest = $1").bind(digest.to_string());
    let row = query.fetch_optional(connection).await.map_err(database("reading the findings on an image"))?;
    row.map(|row| json(&row, "finding_json")).transpose()
}

/// Returns all findings, by the digest of the image.
pub async fn all(connection: &mut Connection) -> Result<HashMap<Digest, Finding>, Error> {
    let rows = db::query("SELECT digest, finding_json FROM findings").fetch_all(connection).await;
    let rows = rows.map_err(database("reading the findings on images"))?;
    rows.iter().map(|row| Ok((enum_from_text(row, "digest")?, json(row, "finding_json")?))).collect()
}

/// Removes the finding for the image with this digest.
pub async fn remove(connection: &mut Connection, digest: &Digest) -> Result<(), Error> {
    let query = db::query("DELETE FROM findings WHERE digest = $1").bind(digest.to_string());
    query.execute(connection).await.map(drop).map_err(database("removing the findings on an image"))
}
