//! The power of machines: what switches it, and what an operator asks for.

use std::collections::BTreeMap;
use std::str::FromStr;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use slipway_protocol::{
    Algorithm, Digest, ErrorCode, NodePower, NodeState, PowerAct, PowerBoot, PowerMode, PowerProvider, Redfish, Secret,
    SiteEventKind,
};
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::{did, known_node};
use crate::base::error::Error;
use crate::power::redfish::{self, trust};
use crate::power::{ask, hook, password, qemu};
use crate::store::history::NewEvent;
use crate::store::nodes::Node;
use crate::store::power::{self, By, Power, Settings};
use crate::store::{self, Store};

/// Most options of a hook, and most characters of a value, of the password and of names.
const MAX_OPTIONS: usize = 32;
const MAX_VALUE: usize = 256;
const MAX_NAME: usize = 128;
/// Most characters of a URL to boot from.
const MAX_URL: usize = 2000;
/// Keys that the server sets, beside those that begin with `machine_`.
const RESERVED: [&str; 4] = ["action", "boot", "node", "node_name"];
/// Parts of keys whose values are secrets.
const SECRET: [&str; 4] = ["passw", "secret", "token", "community"];

/// Changes to what switches the power of a machine. Settings that are left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PowerChange {
    /// What switches it. With `none`, all other settings are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<PowerProvider>,
    /// Whether it is really switched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PowerMode>,
    /// The name of the hook, a program on the hosts of the servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")]
    pub hook: Option<String>,
    /// What the hook is told, such as the address of the machine's BMC, or what a virtual machine consists of. The
    /// options replace those from before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = options, required = false)]
    pub options: Option<BTreeMap<String, String>>,
    /// How the machine's BMC is reached by Redfish. It replaces what was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redfish: Option<Redfish>,
    /// The password. It has to be given again with another hook, options or BMC, so that it goes nowhere else than its
    /// owner meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Seconds after which the hook or the requests to the BMC are stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 300)]
    pub limit_seconds: Option<u32>,
}

/// Returns the schema of options, as [`check_options`] requires them. It does not say which keys are refused.
fn options() -> Schema {
    let text = |pattern: &str| ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    let value = text("^[^\\x00-\\x1f\\x7f-\\x9f]*$").max_length(Some(MAX_VALUE));
    let options = ObjectBuilder::new().schema_type(Type::Object).max_properties(Some(MAX_OPTIONS));
    options.property_names(Some(text("^[A-Za-z0-9_-]{1,64}$"))).additional_properties(Some(value)).build().into()
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PowerRequest {
    /// Switch the machine on.
    On,
    /// Switch the machine off, without telling its operating system.
    Off,
    /// Switch the machine off and on again, or on if it is off.
    Cycle,
    /// Look whether the machine is on.
    Status,
    /// Have the machine boot slipway once: switch it off and on again, or on if it is off. Nothing is done if it runs
    /// slipway.
    Boot,
}

impl From<PowerRequest> for PowerAct {
    fn from(request: PowerRequest) -> Self {
        match request {
            PowerRequest::On => Self::On,
            PowerRequest::Off => Self::Off,
            PowerRequest::Cycle => Self::Cycle,
            PowerRequest::Status => Self::Status,
            PowerRequest::Boot => Self::Boot,
        }
    }
}

/// Returns how the power of a node's machine is switched, and whether it was on when last looked at.
pub async fn show_power(store: &Store, reference: &str) -> Result<NodePower, Error> {
    let mut connection = store.read().await?;
    let node = known_node(&mut connection, reference).await?;
    Ok(power::get_by_node(&mut connection, &node.id).await?.map(Power::status).unwrap_or_default())
}

/// Asks that a machine is switched. A server does so as soon as it can; what is asked for last counts.
pub async fn switch_power(store: &Store, reference: &str, request: PowerRequest) -> Result<NodePower, Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    let asked = ask::ask(&mut transaction, &node, request.into()).await?;
    store::commit(transaction).await?;
    Ok(asked)
}

/// Changes what switches the power of a node's machine.
pub async fn change_power(store: &Store, reference: &str, change: PowerChange) -> Result<NodePower, Error> {
    let mut transaction = store.write().await?;
    let node = known_node(&mut transaction, reference).await?;
    if node.state == NodeState::Decommissioned && change.provider != Some(PowerProvider::None) {
        let message = format!("node {} is out of service", node.label());
        return Err(Error::refused(ErrorCode::Conflict, message));
    }
    let mut known = power::get_by_node(&mut transaction, &node.id).await?;
    if change.provider == Some(PowerProvider::None) {
        if change != (PowerChange { provider: change.provider, ..PowerChange::default() }) {
            return Err(invalid("the provider none has no other settings: leave them out"));
        }
        power::remove(&mut transaction, &node.id).await?;
        let event = NewEvent::new("nothing switches the power of the machine any more").of(&node);
        did(&mut transaction, SiteEventKind::Operator, event).await?;
        store::commit(transaction).await?;
        return Ok(NodePower::default());
    }
    let before = known.as_ref().map(|power| power.settings.clone());
    let mut changed = changed(store, &node, known.take(), change)?;
    if before.as_ref() != Some(&changed.settings) {
        // What is being done is done with other settings, and what is known may be of another machine.
        ask::withdraw(&mut transaction, &mut changed, "what switches the machine was changed").await?;
        (changed.state, changed.state_at) = (None, None);
    }
    power::save(&mut transaction, &changed).await?;
    let what = match &changed.settings.by {
        By::Command { hook, .. } => format!("the hook {hook:?} switches the power of the machine"),
        By::Redfish(settings) => format!("the BMC at {} switches the power of the machine", settings.url),
        By::Qemu { .. } => "the machine is a virtual one of the server".to_owned(),
    };
    let how = match changed.settings.mode {
        PowerMode::Real => "",
        PowerMode::Recorder => ", but nothing is switched: it is only recorded",
        PowerMode::Disabled => ", but switching is disabled",
    };
    let event = NewEvent::new(format!("{what}{how}")).of(&node);
    did(&mut transaction, SiteEventKind::Operator, event).await?;
    store::commit(transaction).await?;
    Ok(changed.status())
}

fn changed(store: &Store, node: &Node, known: Option<Power>, change: PowerChange) -> Result<Power, Error> {
    let before = known.as_ref().map(|power| power.settings.clone());
    let limit_seconds = change.limit_seconds.or(before.as_ref().map(|before| before.limit_seconds));
    let mode = change.mode.or(before.as_ref().map(|before| before.mode));
    let by = provider(before.as_ref().map(|before| &before.by), &change)?;
    let limit = match by {
        By::Command { .. } => hook::LIMIT,
        By::Redfish(_) => redfish::LIMIT,
        By::Qemu { .. } => qemu::LIMIT,
    };
    let settings = Settings { mode: mode.unwrap_or_default(), limit_seconds: limit_seconds.unwrap_or(limit), by };
    if !(1..=hook::MAX_LIMIT).contains(&settings.limit_seconds) {
        return Err(invalid(format!("the limit is 1 to {} seconds", hook::MAX_LIMIT)));
    }
    let kept = known.as_ref().and_then(|power| power.password.clone());
    let is_same = |before: &Settings| goes_to_the_same(&before.by, &settings.by);
    let password = match change.password {
        None if matches!(settings.by, By::Qemu { .. }) => None,
        Some(password) if password.is_empty() => None,
        Some(password) => {
            check_value("password", password.reveal(), MAX_VALUE)?;
            Some(password::seal(store, &node.id, &password)?)
        }
        None if kept.is_some() && !before.as_ref().is_some_and(is_same) => {
            let message = "give the password again (--password-file), because what it is sent to changes; or remove it \
                           (--no-password)";
            return Err(Error::refused(ErrorCode::Conflict, message));
        }
        None => kept,
    };
    Ok(Power { settings: settings.clone(), password, ..known.unwrap_or_else(|| Power::new(&node.id, settings)) })
}

/// Whether a password goes to the same program or BMC. It was never sent to a BMC that nothing was trusted of.
fn goes_to_the_same(before: &By, after: &By) -> bool {
    match (before, after) {
        (By::Redfish(before), By::Redfish(after)) => {
            let is_trusted = before.ca.is_some() || before.pin.is_some();
            let is_same_trust = (&before.ca, &before.pin) == (&after.ca, &after.pin);
            (&before.url, &before.username) == (&after.url, &after.username) && (is_same_trust || !is_trusted)
        }
        (before, after) => before == after,
    }
}

/// Returns what switches the machine after a change. It may be another provider than before.
fn provider(before: Option<&By>, change: &PowerChange) -> Result<By, Error> {
    if let Some(options) = virtual_options(before, change) {
        if change.hook.is_some()
            || change.redfish.is_some()
            || change.password.as_ref().is_some_and(|given| !given.is_empty())
        {
            return Err(invalid("a virtual machine has neither a hook nor a BMC, and no password: leave them out"));
        }
        qemu::Profile::parse(&options).map_err(invalid)?;
        return Ok(By::Qemu { options });
    }
    let is_command =
        change.provider == Some(PowerProvider::Command) || change.hook.is_some() || change.options.is_some();
    let is_redfish = change.provider == Some(PowerProvider::Redfish) || change.redfish.is_some();
    match (is_command, is_redfish, before) {
        (true, true, _) => Err(invalid("a machine has one provider: give the settings of a hook, or of Redfish")),
        (true, false, _) => {
            let (known, kept) = match before {
                Some(By::Command { hook, options }) => (Some(hook.clone()), options.clone()),
                _ => (None, BTreeMap::new()),
            };
            let name = change.hook.clone().or(known);
            let hook = name.ok_or_else(|| invalid("name the hook that switches the machine (--hook)"))?;
            if !hook::is_name(&hook) {
                let message = format!("{hook:?} is not the name of a hook: give the name of a file, without a path");
                return Err(invalid(message));
            }
            let options = change.options.clone().unwrap_or(kept);
            check_options(&options)?;
            Ok(By::Command { hook, options })
        }
        (false, true, before) => match (&change.redfish, before) {
            (Some(settings), _) => {
                check_redfish(settings)?;
                Ok(By::Redfish(settings.clone()))
            }
            (None, Some(By::Redfish(settings))) => Ok(By::Redfish(settings.clone())),
            (None, _) => Err(invalid("name the BMC (--url) and its user (--username)")),
        },
        (false, false, Some(before)) => Ok(before.clone()),
        (false, false, None) => {
            Err(invalid("name what switches the machine: a hook (--hook), or its BMC (--url, --username)"))
        }
    }
}

/// Returns the options of a machine that is a virtual one after a change.
fn virtual_options(before: Option<&By>, change: &PowerChange) -> Option<BTreeMap<String, String>> {
    let kept = match before {
        Some(By::Qemu { options }) => Some(options.clone()),
        _ => None,
    };
    let is_other = change.hook.is_some() || change.redfish.is_some();
    match change.provider {
        Some(PowerProvider::Qemu) => {}
        None if kept.is_some() && !is_other => {}
        _ => return None,
    }
    Some(change.options.clone().or(kept).unwrap_or_default())
}

fn check_redfish(settings: &Redfish) -> Result<(), Error> {
    let wrong = || invalid(format!("{:?} is not the URL of a BMC, such as https://192.0.2.71", settings.url));
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:[]-".contains(&byte);
    let host = settings.url.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let host = host.filter(|host| (1..=260).contains(&host.len()) && host.bytes().all(is_plain));
    if host.is_none() || Url::parse(&settings.url).is_err() {
        return Err(wrong());
    }
    check_value("user", &settings.username, MAX_NAME)?;
    if settings.username.is_empty() || settings.username.contains(':') {
        return Err(invalid("a user is needed (--username), whose name has no colon"));
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte);
    let is_id = |system: &String| (1..=MAX_NAME).contains(&system.len()) && system.bytes().all(is_plain);
    if let Some(system) = settings.system.as_ref().filter(|system| !is_id(system)) {
        return Err(invalid(format!("{system:?} is not the id of a system: use letters, digits and _ . : @ -")));
    }
    if let Some(ca) = &settings.ca {
        if ca.contains("PRIVATE KEY") {
            return Err(invalid(
                "the CA of the BMC has a private key, which would be shown: give the certificates alone",
            ));
        }
        trust::roots(ca).map_err(invalid)?;
    }
    let is_digest = |pin: &String| Digest::from_str(pin).is_ok_and(|pin| pin.algorithm() == Algorithm::Sha256);
    if let Some(pin) = settings.pin.as_ref().filter(|pin| !is_digest(pin)) {
        return Err(invalid(format!("{pin:?} is not the SHA-256 of a certificate: sha256: and 64 hexadecimal digits")));
    }
    match (settings.boot, &settings.boot_url) {
        (PowerBoot::Network, Some(_)) => Err(invalid("a machine that boots from the network has no URL to boot from")),
        (PowerBoot::Network, None) => Ok(()),
        (_, None) => Err(invalid("give the URL that the machine boots from (--boot-url)")),
        (_, Some(url)) => {
            let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
            let is_plain =
                |rest: &str| (1..=MAX_URL).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_graphic());
            let known = Url::parse(url).ok().filter(|_| rest.is_some_and(is_plain));
            match known.is_some_and(|url| url.username().is_empty() && url.password().is_none()) {
                true => Ok(()),
                false => Err(invalid(format!("{url:?} is not an http or https URL without a user"))),
            }
        }
    }
}

fn check_options(options: &BTreeMap<String, String>) -> Result<(), Error> {
    if options.len() > MAX_OPTIONS {
        return Err(invalid(format!("a hook has at most {MAX_OPTIONS} options, not {}", options.len())));
    }
    options.iter().try_for_each(|(key, value)| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if !(1..=64).contains(&key.len()) || !key.bytes().all(is_plain) {
            return Err(invalid(format!(
                "{key:?} is not a valid option: use letters, digits, hyphens and underscores"
            )));
        }
        let lower = key.to_ascii_lowercase();
        if SECRET.iter().any(|part| lower.contains(part)) {
            return Err(invalid(format!(
                "the option {key} would be shown: give the password as a file (--password-file), and other secrets in \
                 a file that the hook reads on the server's host"
            )));
        }
        if RESERVED.contains(&key.as_str()) || key.starts_with("machine_") {
            return Err(invalid(format!("the server sets the option {key} itself")));
        }
        check_value(&format!("value of the option {key}"), value, MAX_VALUE)
    })
}

/// Refuses a value that a hook or a BMC would read as something else.
fn check_value(what: &str, value: &str, most: usize) -> Result<(), Error> {
    if value.chars().count() > most {
        return Err(invalid(format!("the {what} is longer than {most} characters")));
    }
    if value.contains(char::is_control) {
        return Err(invalid(format!("the {what} has a line break or another control character")));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::refused(ErrorCode::InvalidRequest, message)
}
