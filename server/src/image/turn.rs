//! Turns of those who store or remove the file of an image: one at a time, on whichever server. A turn is a lease, so
//! that no transaction waits for a bucket. A removal first takes the image from the database, and then its file from
//! the bucket; until that is done, nobody may begin to need the file.

use std::time::Duration;

use slipway_protocol::{Digest, ErrorCode};

use crate::base::error::Error;
use crate::base::random;
use crate::site::leases::{Held, Lease};
use crate::store::{Connection, Store, images, leases};

/// What the names of the leases begin with. The digest of the image follows.
const PREFIX: &str = "image ";
/// How long to wait for a turn. Longer than a request to an object store that does not answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// A turn to store or remove the file of an image.
#[derive(Debug)]
pub struct Turn {
    lease: Lease,
    digest: Digest,
}

impl Turn {
    /// Names the turn for the image with this digest. Takes nothing yet.
    pub fn of(store: &Store, digest: &Digest) -> Self {
        let lease = Lease::new(store, &format!("{PREFIX}{digest}"), &random::id());
        Self { lease, digest: digest.clone() }
    }

    /// Takes the turn if it is free.
    pub async fn take(&self) -> Result<Option<Held>, Error> {
        self.lease.take().await
    }

    /// Waits for the turn, and works during it. The work is dropped if the turn is lost, because the database could not
    /// be reached.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let busy = || self.unavailable("is being added, captured or removed by another command or server");
        let held = self.lease.wait_for(PATIENCE).await?.ok_or_else(busy)?;
        held.during(work).await.unwrap_or_else(|| Err(self.lost()))
    }

    /// Fails if the turn was lost. In the transaction that stores what the work led to, so that nothing of it is stored
    /// once others may have begun.
    pub async fn check(&self, connection: &mut Connection) -> Result<(), Error> {
        if self.lease.is_held(connection).await? { Ok(()) } else { Err(self.lost()) }
    }

    /// The error when the turn was lost.
    pub fn lost(&self) -> Error {
        self.unavailable("is left as it is, because the database could not be reached for too long")
    }

    fn unavailable(&self, why: &str) -> Error {
        Error::refused(ErrorCode::Unavailable, format!("the image {} {why}; try again", self.digest))
    }
}

/// Refuses steps that name a file which is just stored or removed and is no image. Whoever removes the file has looked
/// for runs that need it already. `steps` is the workflow in JSON.
pub async fn check_steady(connection: &mut Connection, steps: &str) -> Result<(), Error> {
    let steps = steps.to_ascii_lowercase();
    for name in leases::held(connection, PREFIX).await? {
        let Some(Ok(digest)) = name.strip_prefix(PREFIX).map(str::parse::<Digest>) else { continue };
        if steps.contains(digest.hex()) && images::get_by_digest(connection, &digest).await?.is_none() {
            let message = format!("the image {digest} is being added or removed; start the run when that is done");
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
    }
    Ok(())
}
