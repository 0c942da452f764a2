//! The limits that the site changed.

use crate::base::error::Error;
use crate::rules::limits::Changes;
use crate::store::{Connection, settings, to_json};

/// Name of the setting with the changes, as JSON. It exists while there are any.
const LIMITS: &str = "limits";

/// Returns the changes.
pub async fn read(connection: &mut Connection) -> Result<Changes, Error> {
    let Some(json) = settings::read(connection, LIMITS).await? else { return Ok(Changes::new()) };
    serde_json::from_str(&json)
        .map_err(|source| Error::Record { what: "the limits of the site", source: source.into() })
}

/// Stores the changes.
pub async fn write(connection: &mut Connection, changes: &Changes) -> Result<(), Error> {
    match changes.is_empty() {
        true => settings::remove(connection, LIMITS).await,
        false => settings::write(connection, LIMITS, &to_json(changes)).await,
    }
}
