//! Switches machines through their BMC by Redfish (DMTF DSP0266, and the schemas of DSP2046).
//!
//! A BMC may lie, hang, redirect or answer nonsense, so what it says is read with bounds, its links lead to the BMC
//! itself only, and what it was told is read back. Requests follow one another, because many BMCs cannot do two things
//! at once.

mod client;
pub mod trust;

use slipway_protocol::{PowerBoot, PowerState, Redfish, Secret};

use self::client::{Answer, Client};
use super::hook::Failure;
use crate::store::nodes::Node;

/// Most members of a collection that are looked at.
const MOST_MEMBERS: usize = 64;

/// Asks whether a machine is on. `None` if the BMC cannot tell.
pub async fn look(settings: &Redfish, password: &Secret, node: &Node) -> Result<Option<PowerState>, Failure> {
    let client = Client::new(settings, password)?;
    let system = system(&client, settings, node).await?;
    // While it changes, it is not yet as it is to be (DSP2046, Resource, "PowerState").
    Ok(match system.text("/PowerState") {
        Some("On" | "PoweringOff" | "Paused") => Some(PowerState::On),
        Some("Off" | "PoweringOn") => Some(PowerState::Off),
        _ => None,
    })
}

/// Tells a machine to be on or off. With `is_boot`, it boots slipway once.
pub async fn tell(
    settings: &Redfish,
    password: &Secret,
    node: &Node,
    to: PowerState,
    is_boot: bool,
) -> Result<(), Failure> {
    let client = Client::new(settings, password)?;
    let system = system(&client, settings, node).await?;
    let before = if is_boot { boot_once(&client, settings, &system).await? } else { None };
    reset(&client, &system, to).await?;
    match before {
        Some(before) => set_boot(&client, &system.path, &before).await,
        None => Ok(()),
    }
}

/// Finds the machine among those of the BMC: the one that is named, the one that has the node's UUID, or the only one.
async fn system(client: &Client, settings: &Redfish, node: &Node) -> Result<Answer, Failure> {
    let root = client.get("/redfish/v1/").await?;
    let systems = root.link("/Systems").ok_or_else(|| Failure::lasting("the BMC names no systems at /redfish/v1/"))?;
    let members = client.get(&systems).await?.members();
    if let Some(wanted) = &settings.system {
        let found = members.iter().find(|path| path.rsplit('/').find(|part| !part.is_empty()) == Some(wanted));
        let known = || members.join(", ");
        let path =
            found.ok_or_else(|| Failure::lasting(format!("the BMC has no system {wanted:?}, but {}", known())))?;
        return client.get(path).await;
    }
    let [only] = members.as_slice() else {
        for path in members.iter().take(MOST_MEMBERS) {
            let system = client.get(path).await?;
            let uuid = system.text("/UUID").map(str::to_ascii_lowercase);
            if uuid.is_some() && uuid == node.identity.uuid {
                return Ok(system);
            }
        }
        return Err(Failure::lasting(format!(
            "the BMC has {} systems, none of which has the UUID of the node: name one (--system): {}",
            members.len(),
            members.join(", ")
        )));
    };
    client.get(only).await
}

/// Switches a machine on or off (DSP2046, ComputerSystem, "Reset").
async fn reset(client: &Client, system: &Answer, to: PowerState) -> Result<(), Failure> {
    let action = "/Actions/#ComputerSystem.Reset";
    let target = system.path_at(&format!("{action}/target"));
    let target = target.ok_or_else(|| Failure::lasting("the BMC offers no action that switches the machine"))?;
    let mut allowed = system.texts(&format!("{action}/ResetType@Redfish.AllowableValues"));
    if allowed.is_empty()
        && let Some(info) = system.path_at(&format!("{action}/@Redfish.ActionInfo"))
    {
        allowed = client.get(&info).await?.allowed_values("ResetType");
    }
    let wanted: &[&str] = match to {
        PowerState::On => &["On", "ForceOn"],
        PowerState::Off => &["ForceOff"],
    };
    // A BMC that says nothing knows at least the first.
    let known = wanted.iter().find(|kind| allowed.is_empty() || allowed.iter().any(|allowed| allowed == *kind));
    let kind = known.ok_or_else(|| {
        Failure::lasting(format!("the BMC cannot switch the machine {to}: it offers {}", allowed.join(", ")))
    })?;
    client.post(&target, &serde_json::json!({ "ResetType": kind })).await
}

/// Has the machine boot slipway the next time only. Returns what has to be set afterwards, if the BMC does not know
/// "once".
async fn boot_once(client: &Client, settings: &Redfish, system: &Answer) -> Result<Option<serde_json::Value>, Failure> {
    let target = match settings.boot {
        PowerBoot::Network => "Pxe",
        PowerBoot::Http => "UefiHttp",
        PowerBoot::Media => "Cd",
    };
    let url = settings.boot_url.as_deref().unwrap_or_default();
    if settings.boot == PowerBoot::Media {
        insert(client, system, url).await?;
    }
    let offered = system.texts("/Boot/BootSourceOverrideTarget@Redfish.AllowableValues");
    if !offered.is_empty() && !offered.iter().any(|offered| offered == target) {
        return Err(Failure::lasting(format!(
            "the BMC cannot boot from {target} once: it offers {}",
            offered.join(", ")
        )));
    }
    let mut boot = serde_json::json!({ "BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target });
    // Many BMCs refuse the mode while it is as it should be.
    if system.text("/Boot/BootSourceOverrideMode") == Some("Legacy") {
        boot["BootSourceOverrideMode"] = "UEFI".into();
    }
    if settings.boot == PowerBoot::Http {
        boot["HttpBootUri"] = url.into();
    }
    set_boot(client, &system.path, &boot).await?;
    let after = client.get(&system.path).await?;
    let is = after.text("/Boot/BootSourceOverrideTarget").unwrap_or("nothing");
    if is != target {
        return Err(Failure::lasting(format!(
            "the BMC was told to boot from {target} once and accepted it, but now says {is}"
        )));
    }
    let is_once = after.text("/Boot/BootSourceOverrideEnabled") == Some("Once");
    Ok(if is_once { None } else { Some(as_before(system)) })
}

/// The settings of the next boot as they were.
fn as_before(system: &Answer) -> serde_json::Value {
    let or = |pointer: &str, default: &str| system.text(pointer).unwrap_or(default).to_owned();
    let enabled = or("/Boot/BootSourceOverrideEnabled", "Disabled");
    let target = or("/Boot/BootSourceOverrideTarget", "None");
    serde_json::json!({ "BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": target })
}

async fn set_boot(client: &Client, system: &str, boot: &serde_json::Value) -> Result<(), Failure> {
    client.patch(system, &serde_json::json!({ "Boot": boot })).await
}

/// Inserts an image as a virtual disc, in place of one that is there (DSP2046, VirtualMedia).
async fn insert(client: &Client, system: &Answer, url: &str) -> Result<(), Failure> {
    let mut collections: Vec<String> = system.link("/VirtualMedia").into_iter().collect();
    // Older BMCs have the media with the manager.
    if collections.is_empty() {
        for manager in system.links("/Links/ManagedBy") {
            collections.extend(client.get(&manager).await?.link("/VirtualMedia"));
        }
    }
    for collection in collections {
        for path in client.get(&collection).await?.members().iter().take(MOST_MEMBERS) {
            let medium = client.get(path).await?;
            if !medium.texts("/MediaTypes").iter().any(|kind| kind == "CD" || kind == "DVD") {
                continue;
            }
            let action = |name: &str| medium.path_at(&format!("/Actions/#VirtualMedia.{name}/target"));
            let Some(target) = action("InsertMedia") else { continue };
            if medium.is_true("/Inserted")
                && let Some(eject) = action("EjectMedia")
            {
                client.post(&eject, &serde_json::json!({})).await?;
            }
            return client.post(&target, &serde_json::json!({ "Image": url })).await;
        }
    }
    Err(Failure::lasting("the BMC has no virtual disc drive into which an image could be inserted"))
}
