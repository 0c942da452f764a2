//! Trouble of the site, and the limits beyond which something counts as trouble.

use slipway_protocol::{SiteEventKind, SiteStatus};

use super::did;
use crate::base::error::Error;
use crate::rules::limits::{self, Change, InForce, Limits};
use crate::rules::trouble;
use crate::store;
use crate::store::history::NewEvent;
use crate::store::{Store, flags, limits as stored};

/// Returns the trouble of the site as a whole, the worst first.
pub async fn site_status(store: &Store) -> Result<SiteStatus, Error> {
    let found = flags::all(&mut *store.read().await?, Some(flags::SITE)).await?;
    let mut flags: Vec<_> = found.into_iter().map(|(_, flag)| flag).collect();
    trouble::sort(&mut flags);
    Ok(SiteStatus { flags })
}

/// Returns all limits as they are in force, unless an operating system changes them.
pub async fn list_limits(store: &Store) -> Result<Vec<InForce>, Error> {
    let site = stored::read(&mut *store.read().await?).await?;
    Ok(Limits { site, ..Limits::default() }.all())
}

/// Changes a limit. What is left out gets its default.
pub async fn set_limit(store: &Store, name: &str, change: Change) -> Result<InForce, Error> {
    limits::check(name, &change)?;
    let mut transaction = store.write().await?;
    let mut site = stored::read(&mut transaction).await?;
    site.insert(name.to_owned(), change);
    stored::write(&mut transaction, &site).await?;
    let event = NewEvent::new(format!("the limit {name} was changed"));
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    in_force(Limits { site, ..Limits::default() }, name)
}

/// Gives a limit its default again.
pub async fn reset_limit(store: &Store, name: &str) -> Result<InForce, Error> {
    let mut transaction = store.write().await?;
    let mut site = stored::read(&mut transaction).await?;
    if limits::known(name).is_none() {
        return Err(limits::unknown(name));
    }
    if site.remove(name).is_some() {
        stored::write(&mut transaction, &site).await?;
        let event = NewEvent::new(format!("the limit {name} has its default again"));
        did(&mut transaction, SiteEventKind::Operator, event).await?;
        store::commit(transaction).await?;
    }
    in_force(Limits { site, ..Limits::default() }, name)
}

fn in_force(site: Limits, name: &str) -> Result<InForce, Error> {
    let all = site.all();
    // An action without a limit of its own is not in the list.
    let found =
        all.iter().find(|limit| limit.name == name).or_else(|| all.iter().find(|limit| limit.name == limits::STEP));
    found.cloned().ok_or_else(|| limits::unknown(name))
}
