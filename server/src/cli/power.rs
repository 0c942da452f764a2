//! `slipway-server node power`.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use slipway_protocol::shared::duration;
use slipway_protocol::shared::printable::line;
use slipway_protocol::{
    NodePower, NodeStatus, PowerAct, PowerActState, PowerBoot, PowerMode, PowerProvider, PowerState, Redfish, Secret,
};
use slipway_server::base::time::utc;
use slipway_server::operate::{self, PowerChange, PowerRequest};
use slipway_server::site::presence;
use slipway_server::store::Store;

use super::ask::{self, Yes};
use super::words::{label, word};
use super::{print, print_json, print_line, read};

/// Interval at which is looked whether an act is done.
const LOOK_EVERY: Duration = Duration::from_millis(300);

#[derive(Subcommand)]
pub enum PowerCommand {
    /// Switch a machine on.
    On(Switched),
    /// Switch a machine off, without telling its operating system.
    Off {
        #[command(flatten)]
        switched: Switched,
        #[command(flatten)]
        yes: Yes,
    },
    /// Switch a machine off and on again, or on if it is off.
    Cycle {
        #[command(flatten)]
        switched: Switched,
        #[command(flatten)]
        yes: Yes,
    },
    /// Have a machine boot slipway once: switch it off and on again, or on if it is off.
    Boot {
        #[command(flatten)]
        switched: Switched,
        #[command(flatten)]
        yes: Yes,
    },
    /// Ask whether a machine is on.
    Status(Switched),
    /// Show what switches a machine, and what was last asked for.
    Show {
        /// Id, name or claim code.
        node: String,
        /// Print JSON instead of lines.
        #[arg(long)]
        json: bool,
    },
    /// Set what switches a machine.
    Set(Box<PowerSet>),
}

#[derive(Args)]
pub struct Switched {
    /// Id, name or claim code.
    node: String,
    /// Do not wait until it is done.
    #[arg(long)]
    no_wait: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  slipway-server node power set web1 --hook ipmi --option ip=192.0.2.71 --option username=slipway \
--password-file bmc.password
  slipway-server node power set web2 --hook wake-on-lan --option broadcast=192.0.2.255
  slipway-server node power set web3 --url https://192.0.2.73 --username slipway --password-file bmc.password
  slipway-server node power set web4 --provider qemu --option memory=1G --option disk=8G
  slipway-server node power set web1 --mode recorder
  slipway-server node power set web1 --provider none")]
#[command(group(clap::ArgGroup::new("what").required(true).multiple(true)))]
pub struct PowerSet {
    /// Id, name or claim code.
    node: String,
    /// What switches it, if that does not follow from the other options; none removes all settings.
    #[arg(long, value_enum, group = "what", hide_default_value = true)]
    provider: Option<PowerProvider>,
    /// Hook that switches the machine: a program in a folder of hooks on each server, such as /etc/slipway/power.
    #[arg(long, value_name = "NAME", group = "what")]
    hook: Option<String>,
    /// What the hook is told, or what a virtual machine consists of; may be given several times, and replaces the
    /// options from before.
    #[arg(long = "option", value_name = "KEY=VALUE", value_parser = option, group = "what")]
    options: Vec<(String, String)>,
    /// Remove what the hook is told.
    #[arg(long, conflicts_with = "options", group = "what")]
    no_options: bool,
    /// File with the password for the hook or the BMC, without a line break or with one at its end. The server keeps it
    /// encrypted.
    #[arg(long, value_name = "FILE", group = "what")]
    password_file: Option<PathBuf>,
    /// Remove the password.
    #[arg(long, conflicts_with = "password_file", group = "what")]
    no_password: bool,
    /// Whether it is really switched: the recorder only records what would be done.
    #[arg(long, value_enum, group = "what")]
    mode: Option<PowerMode>,
    /// BMC that switches the machine by Redfish: https://HOST.
    #[arg(long, group = "what", conflicts_with_all = ["hook", "options", "no_options"])]
    url: Option<String>,
    /// User of the BMC.
    #[arg(long, value_name = "NAME", group = "what")]
    username: Option<String>,
    /// Id of the machine, if its BMC has several. By default, it is the one with the node's UUID.
    #[arg(long, value_name = "ID", group = "what")]
    system: Option<String>,
    /// File with the CA certificates that the BMC is verified with, in PEM.
    #[arg(long, value_name = "FILE", group = "what", conflicts_with = "pin")]
    ca: Option<PathBuf>,
    /// SHA-256 of the BMC's certificate, as sha256: and hexadecimal, in place of a CA.
    #[arg(long, value_name = "DIGEST", group = "what")]
    pin: Option<String>,
    /// What the machine boots once by Redfish. [default: network]
    #[arg(long, value_enum, value_name = "WHAT", group = "what")]
    boot: Option<PowerBoot>,
    /// URL of the file that it boots by HTTP, or of the disc image for a virtual drive of the BMC.
    #[arg(long, value_name = "URL", group = "what")]
    boot_url: Option<String>,
    /// Time after which the hook or the BMC is not waited for any more, such as 30s. [default: 30s, for a BMC
    /// 2m]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, group = "what")]
    limit: Option<Duration>,
}

/// Runs a command about the power of machines.
pub async fn run(store: &Store, command: PowerCommand) -> anyhow::Result<()> {
    match command {
        PowerCommand::On(switched) => switch(store, switched, PowerRequest::On).await,
        PowerCommand::Status(switched) => switch(store, switched, PowerRequest::Status).await,
        PowerCommand::Off { switched, yes } => {
            let node = operate::show_node(store, &switched.node).await?;
            yes.ask("switching the machine off", &ask::power_off(&node, ""))?;
            switch(store, switched, PowerRequest::Off).await
        }
        PowerCommand::Cycle { switched, yes } => {
            let node = operate::show_node(store, &switched.node).await?;
            yes.ask("switching the machine off and on", &ask::power_off(&node, " and on again"))?;
            switch(store, switched, PowerRequest::Cycle).await
        }
        PowerCommand::Boot { switched, yes } => {
            let node = operate::show_node(store, &switched.node).await?;
            yes.ask("switching the machine off and on", &ask::power_off(&node, " and on again"))?;
            switch(store, switched, PowerRequest::Boot).await
        }
        PowerCommand::Show { node, json: true } => print_json(&operate::show_power(store, &node).await?),
        PowerCommand::Show { node, json: false } => {
            let known = operate::show_node(store, &node).await?;
            print(&lines(&known, &operate::show_power(store, &node).await?))
        }
        PowerCommand::Set(set) => {
            let node = set.node.clone();
            let before = operate::show_power(store, &node).await?.redfish;
            let power = operate::change_power(store, &node, change(*set, before)?).await?;
            let known = operate::show_node(store, &node).await?;
            print(&lines(&known, &power))
        }
    }
}

/// Parses an option: `KEY=VALUE`.
pub fn option(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("an option is given as KEY=VALUE, such as ip=192.0.2.71")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns how the BMC is reached after a change. `None` if that does not change.
fn redfish(set: &PowerSet, before: Option<Redfish>) -> anyhow::Result<Option<Redfish>> {
    let PowerSet { url, username, system, ca, pin, boot, boot_url, .. } = set;
    let ca = ca.as_ref().map(|file| read(file)).transpose()?;
    let mut after = before.clone().unwrap_or_default();
    after.url = url.clone().unwrap_or(after.url);
    after.username = username.clone().unwrap_or(after.username);
    after.system = system.clone().or(after.system);
    if ca.is_some() || pin.is_some() {
        (after.ca, after.pin) = (ca, pin.clone());
    }
    if let Some(boot) = boot {
        (after.boot, after.boot_url) = (*boot, after.boot_url.filter(|_| *boot != PowerBoot::Network));
    }
    after.boot_url = boot_url.clone().or(after.boot_url);
    Ok(Some(after).filter(|after| *after != before.unwrap_or_default()))
}

fn change(set: PowerSet, before: Option<Redfish>) -> anyhow::Result<PowerChange> {
    let redfish = redfish(&set, before)?;
    let password = match &set.password_file {
        Some(file) => {
            let password = Secret::from(read(file)?.trim_end_matches(['\r', '\n']).to_owned());
            ensure!(!password.is_empty(), "the file {file:?} is empty; to remove the password, use --no-password");
            Some(password)
        }
        None => set.no_password.then(Secret::default),
    };
    let keys: HashSet<&String> = set.options.iter().map(|(key, _)| key).collect();
    ensure!(keys.len() == set.options.len(), "an option is given twice: give each key once");
    let options = (set.no_options || !set.options.is_empty()).then(|| set.options.into_iter().collect());
    let limit_seconds = set.limit.map(|limit| u32::try_from(limit.as_secs()).unwrap_or(u32::MAX));
    let PowerSet { provider, hook, mode, .. } = set;
    Ok(PowerChange { provider, mode, hook, options, redfish, password, limit_seconds })
}

/// Asks that a machine is switched, waits until it is, and says how it is then.
async fn switch(store: &Store, switched: Switched, request: PowerRequest) -> anyhow::Result<()> {
    let Switched { node, no_wait } = switched;
    ensure!(
        !presence::live(store).await?.0.is_empty(),
        "no server runs that could switch the machine: start `slipway-server serve`, and try again"
    );
    let known = operate::show_node(store, &node).await?;
    let name = label(&known);
    let asked = operate::switch_power(store, &node, request).await?.act.map(|act| act.id);
    if no_wait {
        return print_line(&format!("a server does so; `node power show {name}` says how far it is"));
    }
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let power = operate::show_power(store, &known.id).await?;
        let Some(act) = power.act.as_ref().filter(|act| Some(&act.id) == asked.as_ref()) else {
            bail!("something else was asked for meanwhile: `node power show {name}` says what");
        };
        let reason = act.reason.as_ref().map_or("no reason is known".into(), |reason| line(reason));
        match act.state {
            PowerActState::Asked | PowerActState::SwitchingOff | PowerActState::SwitchingOn => ensure!(
                !presence::live(store).await?.0.is_empty(),
                "no server runs any more; the next one goes on, and `node power show {name}` says how far it is"
            ),
            PowerActState::Done => return print_line(&format!("{name} is {}", is(&power))),
            PowerActState::Failed => bail!("{name} could not be {}: {reason}", act.act.in_words()),
            PowerActState::Withdrawn => bail!("{name} is not {}: {reason}", act.act.in_words()),
        }
    }
}

fn is(power: &NodePower) -> String {
    let was_asked = power.act.as_ref().is_some_and(|act| act.act == PowerAct::Status);
    match (power.state, power.mode) {
        (None, _) if was_asked => "on or off: nobody can tell".to_owned(),
        (Some(state), PowerMode::Recorder) => format!("{state}, as recorded; nothing was switched"),
        (Some(state), _) => state.to_string(),
        (None, _) => "told so; its hook cannot tell whether it is on".to_owned(),
    }
}

fn redfish_rows(redfish: &Redfish) -> Vec<(&'static str, String)> {
    let trust = match (&redfish.pin, &redfish.ca) {
        (Some(pin), _) => format!("the certificate {pin}"),
        (None, Some(_)) => "a CA of its own".to_owned(),
        (None, None) => "nothing yet: give --pin or --ca".to_owned(),
    };
    let boot = redfish.boot_url.as_ref().map(|url| format!(": {}", line(url))).unwrap_or_default();
    let mut rows = vec![
        ("BMC", line(&redfish.url).into_owned()),
        ("User", line(&redfish.username).into_owned()),
        ("Trusts", trust),
        ("Boots", format!("{}{boot}", word(&redfish.boot))),
    ];
    rows.extend(redfish.system.iter().map(|system| ("System", line(system).into_owned())));
    rows
}

fn lines(node: &NodeStatus, power: &NodePower) -> String {
    let mut rows = vec![("Machine", label(node).to_owned()), ("Provider", word(&power.provider))];
    if power.provider != PowerProvider::None {
        rows.extend(power.hook.iter().map(|hook| ("Hook", hook.clone())));
        if let Some(redfish) = &power.redfish {
            rows.extend(redfish_rows(redfish));
        }
        rows.extend(power.options.iter().map(|(key, value)| ("Option", format!("{key}={}", line(value)))));
        if power.provider != PowerProvider::Qemu {
            rows.push(("Password", if power.has_password { "kept" } else { "none" }.to_owned()));
        }
        rows.push(("Mode", word(&power.mode)));
        rows.push(("Limit", duration::words(Duration::from_secs(power.limit_seconds.into()))));
        let at = power.state_at.map(|at| format!(", as of {}", utc(at))).unwrap_or_default();
        rows.push(("Power", power.state.map_or("unknown".to_owned(), |state: PowerState| state.to_string()) + &at));
    }
    if let Some(act) = &power.act {
        let at = act.ended_at.unwrap_or(act.asked_at);
        rows.push(("Last act", format!("{} {}", utc(at), line(&act.in_words()))));
    }
    rows.into_iter().map(|(key, value)| format!("{:<10}{value}\n", format!("{key}:"))).collect()
}
