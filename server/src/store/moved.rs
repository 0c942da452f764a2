//! The mark on a database whose tables were copied to another one: a setting that says where to.

use slipway_protocol::ErrorCode;

use crate::base::error::Error;
use crate::base::time::{Millis, now, utc};
use crate::store::{Connection, settings};

/// Name of the setting: the time in milliseconds since 1970, and the name of the other database.
const NAME: &str = "moved-to";

/// Where tables were copied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// When, in milliseconds since 1970.
    pub at: Millis,
    /// Name of the other database.
    pub to: String,
}

/// Reads the mark, if there is one.
pub async fn read(connection: &mut Connection) -> Result<Option<Moved>, Error> {
    let value = settings::read(connection, NAME).await?;
    Ok(value.map(|value| {
        let (at, to) = value.split_once(' ').unwrap_or(("", &value));
        Moved { at: at.parse().unwrap_or_default(), to: to.to_owned() }
    }))
}

/// Refuses to use a database with the mark.
pub async fn check(connection: &mut Connection, name: &str) -> Result<(), Error> {
    read(connection).await?.map_or(Ok(()), |moved| Err(moved.refusal(name)))
}

impl Moved {
    /// Says where the tables of the database `name` are now.
    pub fn refusal(&self, name: &str) -> Error {
        let Moved { at, to } = self;
        let way = match to.starts_with("postgres://") {
            true => "give --database with the URL of that database, or set SLIPWAY_DATABASE",
            false => "leave out --database and unset SLIPWAY_DATABASE, on the host that has this file",
        };
        let message = format!(
            "the tables of {name} were copied to {to} at {}: {way}; if that has no tables because the copy was \
             interrupted, run `slipway-server database copy` again",
            utc(*at)
        );
        Error::refused(ErrorCode::Conflict, message)
    }
}

/// Sets the mark: the tables were copied to the database `to`.
pub async fn record(connection: &mut Connection, to: &str) -> Result<(), Error> {
    settings::write(connection, NAME, &format!("{} {to}", now())).await
}

/// Removes the mark.
pub async fn forget(connection: &mut Connection) -> Result<(), Error> {
    settings::remove(connection, NAME).await
}
