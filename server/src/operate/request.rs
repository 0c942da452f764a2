//! What runs were asked for, as it is kept so that they can be done again: encrypted, because it has user-data and
//! scripts.

use crate::base::error::Error;
use crate::run::new_run::NewRun;
use crate::store::{Store, to_json};

/// Encrypts what the run with this id was asked for. A retry never replaces another run.
pub fn seal(store: &Store, run: &str, new: &NewRun) -> Result<Vec<u8>, Error> {
    Ok(store.vault()?.seal(&owner(run), &to_json(&NewRun { replace: false, ..new.clone() })))
}

/// Decrypts what the run with this id was asked for. If that is not possible, returns why, after "what the run was
/// asked for".
pub fn open(store: &Store, run: &str, sealed: &[u8]) -> Result<Result<NewRun, &'static str>, Error> {
    let Some(text) = store.vault()?.open(&owner(run), sealed) else {
        return Ok(Err("was encrypted with another jwt.key than that of this server"));
    };
    // The parser's message is left out, because it may have secrets.
    Ok(serde_json::from_str(text.reveal()).map_err(|_| "has a format of another version of slipway"))
}

/// Returns the name by which the encrypted text is bound to its run.
fn owner(run: &str) -> String {
    format!("request of run {run}")
}
