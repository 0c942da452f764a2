//! The one judgement of a seed: user-data, vendor-data, network configuration and Ignition config, the same on the
//! server, on a machine, and by hand.

use slipway_protocol::workflow::is_ignition;
use slipway_protocol::{Action, SeedCloudInit, Step};

use crate::check::{check, unpacked};
use crate::ignition::{self, Additions};
use crate::inject::inject_phone_home;
use crate::network;
use crate::refusal::Refusal;

/// Why a seed is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {input} cannot be used: {source}")]
pub struct Unusable {
    /// The input: "user-data", "vendor-data", "network configuration" or "Ignition config".
    pub input: &'static str,
    /// What is wrong with the input, and where.
    pub source: Refusal,
}

/// Refuses a seed that the installed system would not understand, or whose additions cannot be made. Does not repeat
/// [`SeedCloudInit::validate`].
pub fn judge(seed: &SeedCloudInit) -> Result<(), Unusable> {
    let refused = |input| move |source| Unusable { input, source };
    if seed.is_for_ignition() {
        return ignition::complete(&seed.user_data, &Additions::of(seed)).map(drop).map_err(refused("Ignition config"));
    }
    match &seed.phone_home {
        Some(phone_home) => inject_phone_home(&seed.user_data, phone_home).map(drop),
        None => check(seed.user_data.as_bytes()),
    }
    .map_err(refused("user-data"))?;
    if let Some(vendor_data) = &seed.vendor_data {
        check(vendor_data.as_bytes()).map_err(refused("vendor-data"))?;
    }
    match &seed.network_config {
        Some(config) => network::check(config).map_err(refused("network configuration")),
        None => Ok(()),
    }
}

/// What is wrong with the seeds among some steps, in words. Seeds that fail [`SeedCloudInit::validate`] are skipped.
pub fn problems(steps: &[Step]) -> Vec<String> {
    let problem = |step: &Step| match &step.action {
        Action::SeedCloudInit(seed) if seed.validate().is_empty() => {
            judge(seed).err().map(|unusable| format!("step {:?}: {unusable}", step.name))
        }
        _ => None,
    };
    steps.iter().filter_map(problem).collect()
}

/// Refuses user-data that neither cloud-init nor, if it is a JSON object, Ignition would understand.
pub fn check_user_data(user_data: &[u8]) -> Result<(), Refusal> {
    let text = unpacked(user_data)?;
    match is_ignition(&text) {
        true => ignition::complete(&text, &Additions::default()).map(drop),
        false => check(user_data),
    }
}
