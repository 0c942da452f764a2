//! Switches machines through their BMC by Redfish (DMTF DSP0266, and the schemas of DSP2046).
//!
//! A BMC may lie, hang, redirect or answer nonsense, so what it says is read with bounds, its links lead to the BMC
//! itself only, and what it was told is read back. Requests follow one another, because many BMCs cannot do two things
//! at once.

mod client;
pub mod trust;

use std::time::Duration;

use slipway_protocol::{PowerBoot, PowerState, Redfish, Secret};
use tokio::time::sleep;

use self::client::{Answer, Client};
use super::hook::Failure;
use crate::store::nodes::Node;

/// Most members of a collection that are looked at.
const MOST_MEMBERS: usize = 64;
/// Seconds after which the requests of a look or of an order end by default. There may be a dozen, one after another.
pub const LIMIT: u32 = 120;
/// How often is looked whether a BMC shows what it was told, and the interval.
const LOOKS: u32 = 4;
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Asks whether a machine is on.
pub async fn look(settings: &Redfish, password: &Secret, node: &Node) -> Result<PowerState, Failure> {
    let client = Client::new(settings, password)?;
    let system = system(&client, settings, node).await?;
    // While it changes, it is not yet as it is to be (DSP2046, Resource, "PowerState").
    match system.text("/PowerState") {
        Some("On" | "PoweringOff" | "Paused") => Ok(PowerState::On),
        Some("Off" | "PoweringOn") => Ok(PowerState::Off),
        // As of a BMC that restarts.
        _ => Err(Failure::new("the BMC does not say whether the machine is on")),
    }
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
    if is_boot {
        boot_once(&client, settings, &system).await?;
    }
    let done = reset(&client, &system, to).await;
    if is_boot && done.is_err() {
        // Whoever switches it on by hand does not expect slipway.
        let _ = set_boot(&client, &system.path, &usual_boot()).await;
    }
    done
}

/// Has a machine that was told to boot slipway once boot as usual the next time, if its BMC does not know "once".
pub async fn settle(settings: &Redfish, password: &Secret, node: &Node) -> Result<(), Failure> {
    let client = Client::new(settings, password)?;
    let system = system(&client, settings, node).await?;
    let is_ours = system.text("/Boot/BootSourceOverrideTarget") == Some(target(settings, &system));
    if is_ours && system.text("/Boot/BootSourceOverrideEnabled") == Some("Continuous") {
        return set_boot(&client, &system.path, &usual_boot()).await;
    }
    Ok(())
}

/// No boot source is preferred to those of the boot order.
fn usual_boot() -> serde_json::Value {
    serde_json::json!({ "BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "Hdd" })
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
            let wanted = node.identity.uuid.as_ref();
            if uuid.is_some_and(|uuid| wanted.is_some_and(|wanted| uuid == *wanted || uuid == swapped(wanted))) {
                return Ok(system);
            }
        }
        return Err(Failure::lasting(format!(
            "the BMC has {} systems, none of which has the UUID of the node: name one (--system): {}",
            members.len(),
            members.join(", ")
        )));
    };
    let system = client.get(only).await?;
    let is_other = system
        .text("/UUID")
        .zip(node.identity.uuid.as_deref())
        .is_some_and(|(is, wanted)| !is.eq_ignore_ascii_case(wanted) && !is.eq_ignore_ascii_case(&swapped(wanted)));
    if is_other {
        return Err(Failure::lasting(format!(
            "the machine of the BMC has another UUID than the node: {}; if it is the right one all the same, name it \
             (--system)",
            system.text("/UUID").unwrap_or_default()
        )));
    }
    Ok(system)
}

/// Returns a UUID with the bytes of its first three fields in the other order, in which some BMCs show it (SMBIOS,
/// System Information, "System - UUID").
fn swapped(uuid: &str) -> String {
    let mut fields: Vec<String> = uuid.split('-').map(str::to_owned).collect();
    for field in fields.iter_mut().take(3) {
        let bytes: Vec<&str> = (0..field.len()).step_by(2).rev().filter_map(|at| field.get(at..at + 2)).collect();
        *field = bytes.concat();
    }
    fields.join("-")
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

/// What a machine boots from (DSP2046, ComputerSystem, "BootSource").
fn target(settings: &Redfish, system: &Answer) -> &'static str {
    let offered = system.texts("/Boot/BootSourceOverrideTarget@Redfish.AllowableValues");
    let is_supermicro = system.text("/Manufacturer").is_some_and(|maker| maker.eq_ignore_ascii_case("supermicro"));
    match settings.boot {
        PowerBoot::Network => "Pxe",
        PowerBoot::Http => "UefiHttp",
        // Their virtual drive is a USB drive, and they boot nothing from "Cd".
        PowerBoot::Media if is_supermicro && offered.iter().any(|offered| offered == "UsbCd") => "UsbCd",
        PowerBoot::Media => "Cd",
    }
}

/// Has the machine boot slipway the next time only.
async fn boot_once(client: &Client, settings: &Redfish, system: &Answer) -> Result<(), Failure> {
    let (target, url) = (target(settings, system), settings.boot_url.as_deref().unwrap_or_default());
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
    // Some need a moment until they show it.
    let mut is = String::new();
    for _ in 0..LOOKS {
        let after = client.get(&system.path).await?;
        is = after.text("/Boot/BootSourceOverrideTarget").unwrap_or("nothing").to_owned();
        if is == target {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err(Failure::lasting(format!("the BMC was told to boot from {target} once and accepted it, but now says {is}")))
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
            let Some(target) = action("InsertMedia") else {
                // Some of Lenovo's have no such action, and change the drive itself.
                let image = serde_json::json!({ "Image": url, "Inserted": true, "WriteProtected": true });
                return client.patch(path, &image).await;
            };
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
