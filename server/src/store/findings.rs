//! What was found in the files of images.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use slipway_formats::image::made_for::MadeFor;
use slipway_protocol::Digest;

use crate::base::error::Error;
use crate::store::{Connection, database, enum_from_text, json, to_json};

/// What the file of an image was found to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The file in which it was found.
    pub file: Stamp,
    /// What was found.
    pub content: Content,
    /// What is in its file systems. None if nobody looked into them, as in earlier versions.
    #[serde(default)]
    pub inside: Option<Inside>,
}

/// What is in the file systems of an image, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Whether a boot loader is there whose configuration `kernel-args` can change, or make.
    pub has_boot_loader: Option<bool>,
    /// What cloud-init and ds-identify read in the root file system. Of boot texts, the lines that matter.
    pub cloud_init: Option<slipway_user_data::image::Image>,
}

/// What is in the file of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// An image that can be installed on what it is made for.
    MadeFor(MadeFor),
    /// Something that no machine can install, and why, in a whole sentence: `the image "debian.img" cannot be
    /// installed: it is a text file; ...`.
    Unusable(String),
    /// Other bytes than those that were added: they have another digest.
    Changed,
}

/// A file as it was: another size or time says that it may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// When it was changed last, in nanoseconds since 1970.
    pub changed: i64,
}

impl Stamp {
    /// The stamp of a file.
    pub fn of(file: &Metadata) -> Self {
        let changed = file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec());
        Self { size: file.len(), changed }
    }
}

/// Stores a finding in place of an earlier one.
pub async fn save(connection: &mut Connection, digest: &Digest, finding: &Finding) -> Result<(), Error> {
    let sql = "INSERT INTO findings (digest, finding_json) VALUES ($1, $2) \
               ON CONFLICT (digest) DO UPDATE SET finding_json = excluded.finding_json";
    let query = sqlx::query(sql).bind(digest.to_string()).bind(to_json(finding));
    query.execute(connection).await.map(drop).map_err(database("storing what an image is"))
}

/// The finding in the image with this digest.
pub async fn get(connection: &mut Connection, digest: &Digest) -> Result<Option<Finding>, Error> {
    let query = sqlx::query("SELECT finding_json FROM findings WHERE digest = $1").bind(digest.to_string());
    let row = query.fetch_optional(connection).await.map_err(database("reading what an image is"))?;
    row.map(|row| json(&row, "finding_json")).transpose()
}

/// Every finding, by the digest of the image.
pub async fn all(connection: &mut Connection) -> Result<HashMap<Digest, Finding>, Error> {
    let rows = sqlx::query("SELECT digest, finding_json FROM findings").fetch_all(connection).await;
    let rows = rows.map_err(database("reading what images are"))?;
    rows.iter().map(|row| Ok((enum_from_text(row, "digest")?, json(row, "finding_json")?))).collect()
}

/// Removes the finding in the image with this digest.
pub async fn remove(connection: &mut Connection, digest: &Digest) -> Result<(), Error> {
    let query = sqlx::query("DELETE FROM findings WHERE digest = $1").bind(digest.to_string());
    query.execute(connection).await.map(drop).map_err(database("removing what an image is"))
}
