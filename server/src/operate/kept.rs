//! What a run was asked for, as it is kept for a retry: encrypted, because it has user-data and scripts.

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::run::compose::Secrets;
use crate::run::new_run::NewRun;
use crate::store::{Store, to_json};

/// What a run is composed of.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Kept {
    /// What an operator asked for.
    pub new: NewRun,
    /// The random texts in its steps.
    pub secrets: Secrets,
    /// Number of steps that an earlier run did, and that are left out.
    pub done: usize,
}

/// Why what was kept cannot be read, after "what run X was asked for ".
pub(super) type Unreadable = &'static str;

impl Kept {
    /// Returns what is kept of a run with new secrets.
    pub fn new(new: NewRun) -> Self {
        Self { new, secrets: Secrets::draw(), done: 0 }
    }

    /// Encrypts it for the run with this id.
    pub fn seal(&self, store: &Store, run: &str) -> Result<Vec<u8>, Error> {
        Ok(store.vault()?.seal(&place(run), &to_json(self)))
    }

    /// Decrypts what is kept of the run with this id.
    pub fn open(store: &Store, run: &str, sealed: &[u8]) -> Result<Result<Self, Unreadable>, Error> {
        let Some(text) = store.vault()?.open(&place(run), sealed) else {
            return Ok(Err("was encrypted with another jwt.key than that of this server"));
        };
        // Without the parser's message, which may have secrets.
        Ok(serde_json::from_str(text.reveal()).map_err(|_| "has a format of another version of slipway"))
    }
}

/// What the encrypted text belongs to.
fn place(run: &str) -> String {
    format!("request of run {run}")
}
