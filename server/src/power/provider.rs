//! What switches a machine: whichever provider its node has.

use std::path::PathBuf;
use std::time::Duration;

use slipway_protocol::{PowerState, Secret};
use tokio::time::timeout;

use super::hook::{self, Call, Ended, Failure};
use super::{password, redfish};
use crate::store::Store;
use crate::store::nodes::Node;
use crate::store::power::{By, Power};

/// What providers need of this server.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Opens the passwords.
    pub store: &'a Store,
    /// Where hooks are looked for in turn.
    pub folders: &'a [PathBuf],
}

/// Asks whether a machine is on. `None` if its provider cannot tell.
pub async fn look(means: Means<'_>, power: &Power, node: &Node) -> Result<Option<PowerState>, Failure> {
    let password = open(means, power)?;
    match &power.settings.by {
        By::Command { .. } => {
            let ended = call(means, power, node, password.as_ref(), "status", false).await?;
            match ended.code {
                0 => Ok(Some(PowerState::On)),
                2 => Ok(Some(PowerState::Off)),
                3 => Ok(None),
                _ => Err(ended.failed("status")),
            }
        }
        By::Redfish(settings) => in_time(power, redfish::look(settings, &password.unwrap_or_default(), node)).await,
    }
}

/// Tells a machine to be on or off. With `is_boot`, it boots slipway once.
pub async fn tell(means: Means<'_>, power: &Power, node: &Node, to: PowerState, is_boot: bool) -> Result<(), Failure> {
    let password = open(means, power)?;
    match &power.settings.by {
        By::Command { .. } => {
            let action = to.to_string();
            let ended = call(means, power, node, password.as_ref(), &action, is_boot).await?;
            if ended.code == 0 { Ok(()) } else { Err(ended.failed(&action)) }
        }
        By::Redfish(settings) => {
            in_time(power, redfish::tell(settings, &password.unwrap_or_default(), node, to, is_boot)).await
        }
    }
}

fn open(means: Means<'_>, power: &Power) -> Result<Option<Secret>, Failure> {
    let sealed = power.password.as_deref();
    sealed.map(|sealed| password::open(means.store, &power.node, sealed).map_err(Failure::lasting)).transpose()
}

async fn in_time<T>(power: &Power, asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let seconds = power.settings.limit_seconds;
    let late = |_| Failure::lasting(format!("the BMC did not answer within {seconds} s"));
    timeout(Duration::from_secs(seconds.into()), asking).await.unwrap_or_else(|elapsed| Err(late(elapsed)))
}

async fn call(
    means: Means<'_>,
    power: &Power,
    node: &Node,
    password: Option<&Secret>,
    action: &str,
    is_boot: bool,
) -> Result<Ended, Failure> {
    let By::Command { hook, options } = &power.settings.by else {
        return Err(Failure::lasting("no hook switches the machine"));
    };
    let lines = hook::lines(node, options, action, is_boot);
    let limit = power.settings.limit_seconds;
    hook::run(means.folders, Call { hook, lines, password, limit }).await
}
