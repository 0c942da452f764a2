//! Signatures for Secure Boot that several processes of a site may make at once.

use slipway_protocol::ErrorCode;
use time::{Duration, OffsetDateTime};
use tokio::task::spawn_blocking;

use crate::base::data::DataDir;
use crate::base::error::Error;
use crate::base::random;
use crate::keys::jwt::Signer;
use crate::keys::pkcs11::{self, OfSite};
use crate::keys::secure_boot::{SecureBoot, Update};
use crate::site::leases::Lease;
use crate::store::{self, Store, clock, refused_pins, settings};

/// Name of the setting with the time stamp of the newest updates of firmware variables, in seconds since 1970.
const NEWEST: &str = "secure-boot-time";
/// Name of the lease of processes that sign with keys in tokens.
const TOKENS: &str = "PKCS #11 tokens";

/// Returns the time stamp for updates of firmware variables, to the second. It is later than all that were returned
/// before, to any process of the site: firmware accepts only updates that are later than those it has.
async fn next_time(store: &Store) -> Result<OffsetDateTime, Error> {
    let mut transaction = store.write().await?;
    let now = clock::now(&mut transaction).await? / 1000;
    let newest = settings::read(&mut transaction, NEWEST).await?;
    let newest: u64 = newest.map_or(Ok(0), |text| text.parse()).map_err(|source| Error::Record {
        what: "the time of the newest updates of firmware variables",
        source: Box::new(source),
    })?;
    let next = now.max(newest.saturating_add(1));
    settings::write(&mut transaction, NEWEST, &next.to_string()).await?;
    store::commit(transaction).await?;
    Ok(OffsetDateTime::UNIX_EPOCH + Duration::seconds(next.cast_signed()))
}

/// Signs updates of the firmware's variables, in a token if the keys are in one.
pub async fn updates(store: &Store, data: &DataDir, keys: SecureBoot) -> Result<Vec<Update>, Error> {
    let (time, is_in_token) = (next_time(store).await?, !keys.in_tokens().is_empty());
    let signing = async {
        let signed = spawn_blocking(move || keys.updates(time)).await;
        signed.map_err(|source| Error::SecureBoot { doing: "signing", source: source.into() })?
    };
    match is_in_token {
        true => with_tokens(store, data, signing).await?,
        false => signing.await,
    }
}

/// Does work that may sign with keys in PKCS #11 tokens, when no other process of the site does. A PIN that a token
/// refused to any process is not tried again: tokens lock after a few wrong ones.
pub async fn with_tokens<T>(store: &Store, data: &DataDir, work: impl Future<Output = T>) -> Result<T, Error> {
    let held = Lease::new(store, TOKENS, &random::id()).wait().await;
    let secret = Signer::open(data)?.derived("PINs that tokens refused");
    let before = refused_pins::all(&mut *store.read().await?).await?;
    pkcs11::set_refused(OfSite { secret, refused: before.clone() });
    let work = async {
        let done = work.await;
        // Before the lease ends, so that the next process knows of them.
        let mut refused = pkcs11::refused();
        refused.retain(|digest, at| before.get(digest) != Some(at));
        if !refused.is_empty() {
            let mut transaction = store.write().await?;
            refused_pins::add(&mut transaction, &refused).await?;
            store::commit(transaction).await?;
        }
        Ok(done)
    };
    held.during(work).await.unwrap_or_else(|| {
        let message = "signing with a key in a PKCS #11 token took so long, or the database was away so long, that \
                       another process may sign now: try again";
        Err(Error::refused(ErrorCode::Unavailable, message))
    })
}
