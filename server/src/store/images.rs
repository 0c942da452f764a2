//! Records of the images in the data folder.

use serde::{Deserialize, Serialize};
use slipway_protocol::Digest;

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{Connection, Row, database, db, enum_from_text, get, number, optional_number, optional_word};

/// An image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Image {
    /// Digest of the file as it is delivered, before decompression.
    pub digest: Digest,
    /// Name of the file it was added from, or the name it was captured under. For people.
    pub file_name: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// Size after decompression in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// Digest after decompression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_digest: Option<Digest>,
    /// When it was added, in milliseconds since 1970.
    pub added_at: Millis,
    /// Whether a node captured it from a disk. It is for nodes and operators alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub captured: bool,
}

impl Image {
    /// Returns whether it is a qcow2 image, the only kind whose raw image has a known size but no known digest.
    pub fn is_qcow2(&self) -> bool {
        self.raw_size.is_some() && self.raw_digest.is_none()
    }
}

/// Stores an image. Adding it again updates its record. A captured image stays marked as captured.
pub async fn save(connection: &mut Connection, image: &Image) -> Result<(), Error> {
    let sql = "INSERT INTO images (digest, file_name, size, raw_size, raw_digest, added_at, captured) \
               VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (digest) DO UPDATE SET file_name = excluded.file_name, \
               raw_size = COALESCE(excluded.raw_size, images.raw_size), \
               raw_digest = COALESCE(excluded.raw_digest, images.raw_digest)";
    let done = db::query(sql)
        .bind(image.digest.to_string())
        .bind(&image.file_name)
        .bind(image.size.cast_signed())
        .bind(image.raw_size.map(u64::cast_signed))
        .bind(image.raw_digest.as_ref().map(ToString::to_string))
        .bind(image.added_at.cast_signed())
        .bind(image.captured)
        .execute(connection)
        .await;
    done.map(drop).map_err(database("storing an image"))
}

/// Returns the image with this digest.
pub async fn get_by_digest(connection: &mut Connection, digest: &Digest) -> Result<Option<Image>, Error> {
    let query = db::query("SELECT * FROM images WHERE digest = $1").bind(digest.to_string());
    let row = query.fetch_optional(connection).await.map_err(database("reading an image"))?;
    row.as_ref().map(from_row).transpose()
}

/// Returns the oldest image with this name.
pub async fn get_by_name(connection: &mut Connection, name: &str) -> Result<Option<Image>, Error> {
    let query = db::query("SELECT * FROM images WHERE file_name = $1 ORDER BY added_at LIMIT 1").bind(name);
    let row = query.fetch_optional(connection).await.map_err(database("reading an image"))?;
    row.as_ref().map(from_row).transpose()
}

/// Returns all images, oldest first.
pub async fn all(connection: &mut Connection) -> Result<Vec<Image>, Error> {
    let rows = db::query("SELECT * FROM images ORDER BY added_at, digest").fetch_all(connection).await;
    rows.map_err(database("reading the images"))?.iter().map(from_row).collect()
}

/// Removes the record of the image with this digest. The caller removes its file.
pub async fn remove(connection: &mut Connection, digest: &Digest) -> Result<(), Error> {
    let query = db::query("DELETE FROM images WHERE digest = $1").bind(digest.to_string());
    query.execute(connection).await.map(drop).map_err(database("removing an image"))
}

fn from_row(row: &Row) -> Result<Image, Error> {
    Ok(Image {
        digest: enum_from_text(row, "digest")?,
        file_name: get(row, "file_name")?,
        size: number(row, "size")?,
        raw_size: optional_number(row, "raw_size")?,
        raw_digest: optional_word(row, "raw_digest")?,
        added_at: number(row, "added_at")?,
        captured: get(row, "captured")?,
    })
}
