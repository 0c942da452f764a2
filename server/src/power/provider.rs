//! What switches a machine: whichever provider its node has.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use slipway_protocol::shared::printable;
use slipway_protocol::{PowerState, Redfish, Secret};
use tokio::time::timeout;

use super::hook::{self, Call, Ended, Failure};
use super::qemu::{self, Machines, Profile};
use super::{password, redfish};
use crate::store::Store;
use crate::store::nodes::Node;
use crate::store::power::{By, Power};

/// Most characters of a reason.
const MAX_REASON: usize = 600;

/// What providers need of this server.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Opens the passwords.
    pub store: &'a Store,
    /// Where hooks are looked for in turn.
    pub folders: &'a [PathBuf],
    /// The virtual machines of this server.
    pub machines: &'a Machines,
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
        By::Redfish(settings) => {
            let password = password.unwrap_or_default();
            in_time(power, (settings, &password), redfish::look(settings, &password, node)).await.map(Some)
        }
        By::Qemu { .. } => qemu::look(means.machines, node, limit(power)).await.map(Some),
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
            let password = password.unwrap_or_default();
            in_time(power, (settings, &password), redfish::tell(settings, &password, node, to, is_boot)).await
        }
        By::Qemu { options } => {
            let profile = Profile::parse(options).map_err(Failure::lasting)?;
            qemu::tell(means.machines, &profile, node, to, is_boot, limit(power)).await
        }
    }
}

fn limit(power: &Power) -> Duration {
    Duration::from_secs(power.settings.limit_seconds.into())
}

fn open(means: Means<'_>, power: &Power) -> Result<Option<Secret>, Failure> {
    let sealed = power.password.as_deref();
    sealed.map(|sealed| password::open(means.store, &power.node, sealed).map_err(Failure::lasting)).transpose()
}

/// Has a machine that booted slipway once boot as usual the next time.
pub async fn settle(means: Means<'_>, power: &Power, node: &Node) -> Result<(), Failure> {
    let By::Redfish(settings) = &power.settings.by else { return Ok(()) };
    let password = open(means, power)?.unwrap_or_default();
    in_time(power, (settings, &password), redfish::settle(settings, &password, node)).await
}

/// Asks a BMC. What it says in a failure is cut, and has neither the password nor the header with it.
async fn in_time<T>(
    power: &Power,
    (settings, password): (&Redfish, &Secret),
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let seconds = power.settings.limit_seconds;
    let late = || Failure::lasting(format!("the BMC did not answer within {seconds} s"));
    let asked = timeout(Duration::from_secs(seconds.into()), asking).await.unwrap_or_else(|_| Err(late()));
    asked.map_err(|mut failure| {
        if !password.is_empty() {
            let header = STANDARD.encode(format!("{}:{}", settings.username, password.reveal()));
            for secret in [password.reveal(), &header] {
                failure.reason = failure.reason.replace(secret, "(secret)");
            }
        }
        failure.reason = printable::short_line(&failure.reason, MAX_REASON);
        failure
    })
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
