//! Finds out where the server keeps everything: by options, or else by environment variables.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use slipway_protocol::shared::given::is_blank;
use slipway_server::base::data::{DatabaseUrl, Place};

/// Returns the data folder, and the database if it is on a PostgreSQL server.
pub fn find(data: Option<PathBuf>, database: Option<String>, password: Option<&Path>) -> anyhow::Result<Place> {
    let root = match data {
        Some(data) => data,
        None => variable("SLIPWAY_DATA")?.map_or_else(|| "/var/lib/slipway".into(), PathBuf::from),
    };
    Ok(Place { root, postgres: postgres(database, password)? })
}

fn postgres(given: Option<String>, password: Option<&Path>) -> anyhow::Result<Option<DatabaseUrl>> {
    let text = match given {
        Some(text) => {
            DatabaseUrl::check_without_password(&text)?;
            text
        }
        None => match variable("SLIPWAY_DATABASE")? {
            Some(text) => text.into_string().map_err(|_| anyhow!("SLIPWAY_DATABASE is not text in UTF-8"))?,
            None => {
                ensure!(password.is_none(), "--database-password-file needs --database or SLIPWAY_DATABASE");
                return Ok(None);
            }
        },
    };
    let url = DatabaseUrl::new(&text)?;
    Ok(Some(match password {
        Some(file) => url.with_password(super::read(file)?.trim_end_matches(['\r', '\n'])),
        None => url,
    }))
}

/// Returns the value of an environment variable. A blank value is refused, because it would mean another place than
/// intended.
fn variable(name: &str) -> anyhow::Result<Option<OsString>> {
    let value = std::env::var_os(name);
    let is_blank = value.as_ref().and_then(|value| value.to_str()).is_some_and(is_blank);
    ensure!(!is_blank, "{name} is set but has no value: unset it, or give it one");
    Ok(value)
}
