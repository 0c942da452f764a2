//! Single values that all processes that use this database must agree on.

use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::store::{Connection, database, db, get};

/// Name of the setting with the URL at which machines reach the server, without a trailing slash.
pub const SERVER_URL: &str = "server-url";
/// Name of a setting that exists while machines are admitted by their TPMs whatever they booted.
pub const ATTESTED_BOOT: &str = "attested-boot";
/// Name of a setting that exists while the operator that came with the data folder stays removed.
pub const FIRST_REMOVED: &str = "first-operator-removed";

/// Name of the setting with the CA certificates, in PEM, that machines verify the object store with. It exists while
/// machines are redirected there for images.
pub const IMAGES_CA: &str = "images-ca";

/// Name of the setting with the name of the bucket that has the images. It does not exist while they are in the data
/// folder.
pub const OBJECTS: &str = "objects";

/// Name of the setting with the boot files that all servers of the site take from the bucket: those that were published
/// last, and the ones before, in JSON.
pub const PUBLISHED: &str = "published-boot-files";

/// Returns the refusal of a command that needs the URL before a server was started on this database.
pub fn no_server_url() -> Error {
    let message = "the server's URL is not known yet; start the server once with `serve --url`";
    Error::refused(ErrorCode::Conflict, message)
}

/// Returns the value of a setting.
pub async fn read(connection: &mut Connection, name: &str) -> Result<Option<String>, Error> {
    let row = db::query("SELECT value FROM settings WHERE name = $1").bind(name).fetch_optional(connection).await;
    row.map_err(database("reading a setting"))?.map(|row| get(&row, "value")).transpose()
}

/// Sets a setting.
pub async fn write(connection: &mut Connection, name: &str, value: &str) -> Result<(), Error> {
    let sql =
        "INSERT INTO settings (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    let done = db::query(sql).bind(name).bind(value).execute(connection).await;
    done.map(drop).map_err(database("writing a setting"))
}

/// Removes a setting, if it exists.
pub async fn remove(connection: &mut Connection, name: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM settings WHERE name = $1").bind(name).execute(connection).await;
    done.map(drop).map_err(database("removing a setting"))
}
