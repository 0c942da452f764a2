//! Does what was asked for, on one server of the site at a time.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use slipway_protocol::{PowerAct, PowerActState, PowerMode, PowerState, RunState, SiteEventKind};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::ask::{end, is_here};
use super::hook::{self, Call, Ended, Failure};
use super::next::{Next, next};
use super::password;
use crate::base::error::{Error, chain};
use crate::base::time::{Millis, now};
use crate::rules::trouble::GONE;
use crate::site::leases::Lease;
use crate::store::history::{self, NewEvent};
use crate::store::nodes::{self, Node};
use crate::store::power::{self, Act, Power};
use crate::store::{self, Connection, Store, runs};

/// Name of the lease of the server that switches machines.
const LEASE: &str = "power";
/// Interval at which is looked for what was asked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which a machine is looked at that was told to be on or off, or that is to fetch its run.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// How long a machine may take to be on or off once it was told. The firmware of some servers takes a minute, and some
/// BMCs do not answer meanwhile.
const OBEYS: Duration = Duration::from_secs(120);
/// How long it takes until a machine that runs slipway has asked for work.
const ASKS: Duration = Duration::from_millis(GONE);
/// Milliseconds after which nobody expects any more what was asked for, if no server could begin it.
const STALE: Millis = 10 * 60 * 1000;
/// Hooks that run at the same time.
const MOST_HOOKS: usize = 32;
/// How often in a row a hook is called that fails, and what is waited in between. BMCs are busy now and then.
const ATTEMPTS: u32 = 3;
const AGAIN: Duration = Duration::from_secs(3);

/// Does what is asked for, as long as the server runs, if no other server does. `server` is the id of this one; hooks
/// are looked for in `folders`.
pub async fn keep(store: &Store, folders: &[PathBuf], server: &str) {
    loop {
        let lease = Lease::new(store, LEASE, server);
        let held = lease.wait().await;
        let here = Here { store, folders, lease: &lease, since: Instant::now(), hooks: Semaphore::new(MOST_HOOKS) };
        // It ends when the lease is lost, as in an outage of the database.
        let _: Option<()> = held.during(here.work()).await;
    }
}

/// This server, while it has the lease.
struct Here<'a> {
    store: &'a Store,
    folders: &'a [PathBuf],
    lease: &'a Lease,
    /// Since when it has the lease. Machines may have been silent before because no server listened.
    since: Instant,
    hooks: Semaphore,
}

impl Here<'_> {
    async fn work(&self) {
        let (mut busy, mut acts, mut is_failing) = (HashSet::new(), FuturesUnordered::new(), false);
        loop {
            let mut look = std::pin::pin!(async {
                sleep(LOOK_EVERY).await;
                power::with_open_acts(&mut *self.store.read().await?).await
            });
            let asked = loop {
                tokio::select! {
                    asked = &mut look => break asked,
                    Some(node) = acts.next(), if !acts.is_empty() => drop(busy.remove(&node)),
                }
            };
            match asked {
                Ok(nodes) => {
                    is_failing = false;
                    let new = nodes.into_iter().filter(|node| busy.insert(node.clone()));
                    acts.extend(new.map(|node| self.carry_out(node)));
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::error!(error = chain(&error), "could not look for machines to switch on or off");
                    }
                }
            }
        }
    }

    /// Does what is asked for a node to its end. Returns the node.
    async fn carry_out(&self, node: String) -> String {
        let mut switching = Switching { here: self, node: &node, told: None, unknown: 0, untold: 0 };
        if let Err(error) = switching.finish().await {
            // What is stored is still asked for, so it is tried again.
            tracing::error!(node, error = chain(&error), "could not switch a machine on or off");
        }
        node
    }
}

/// An act that is being done.
struct Switching<'a> {
    here: &'a Here<'a>,
    node: &'a str,
    /// Since when this server has waited for the machine to do what it was told. Clocks that are set do not matter.
    told: Option<Instant>,
    /// How often in a row nobody could tell whether the machine is on.
    unknown: u32,
    /// How often in a row the machine could not be told.
    untold: u32,
}

/// What is known before a step.
struct Known {
    power: Power,
    node: Node,
    act: Act,
}

impl Switching<'_> {
    async fn finish(&mut self) -> Result<(), Error> {
        let Some(Known { power, act, .. }) = self.read().await? else { return Ok(()) };
        if !act.begun && now().saturating_sub(act.status.asked_at) > STALE {
            let reason = "no server could begin it within 10 minutes".to_owned();
            return self.end(&act, PowerActState::Failed, Some(reason)).await;
        }
        if let Some(seconds) = power.busy_for {
            // The hook of a server that was killed. Afterwards, it cannot do anything any more.
            sleep(hook::longest(seconds)).await;
        }
        while let Some(pause) = self.step().await? {
            sleep(pause).await;
        }
        Ok(())
    }

    async fn read(&self) -> Result<Option<Known>, Error> {
        known(&mut *self.here.store.read().await?, self.node).await
    }

    /// Does what comes next. Returns how long to wait after it. `None` if there is nothing left to do.
    async fn step(&mut self) -> Result<Option<Duration>, Error> {
        let Some(known) = self.read().await? else { return Ok(None) };
        let act = &known.act;
        let is = match self.look(&known).await? {
            Ok(is) => is,
            Err(failure) => return self.not_known(act, failure).await,
        };
        match self.wanted(&mut *self.here.store.read().await?, &known, is).await? {
            Wanted::Yes => {}
            Wanted::Later => return Ok(Some(WATCH_EVERY)),
            Wanted::No(state, reason) => return self.end(act, state, Some(reason)).await.map(|()| None),
        }
        match next(act.status.act, act.status.state, is, act.is_told) {
            Next::Enter(state) => {
                (self.told, self.unknown, self.untold) = (None, 0, 0);
                let entered = |act: &mut Act| {
                    (act.status.state, act.status.reason, act.is_told) = (state, None, false);
                };
                self.change(act, entered).await?;
                Ok(Some(Duration::ZERO))
            }
            Next::Tell(to) => self.tell(&known, is, to).await,
            Next::Wait(to) if self.told.get_or_insert_with(Instant::now).elapsed() > OBEYS => {
                let not = if to == PowerState::On { "off" } else { "on" };
                let reason = format!("the machine is still {not} {} s after it was switched {to}", OBEYS.as_secs());
                self.end(act, PowerActState::Failed, Some(reason)).await.map(|()| None)
            }
            Next::Wait(_) => Ok(Some(WATCH_EVERY)),
            Next::Done => self.end(act, PowerActState::Done, None).await.map(|()| None),
        }
    }

    /// Asks whether the machine is on, and stores the answer.
    async fn look(&mut self, known: &Known) -> Result<Result<Option<PowerState>, Failure>, Error> {
        let Known { power, act, .. } = known;
        if power.settings.mode == PowerMode::Recorder {
            // Not known at first: then it is switched as if it was not as it should be.
            return Ok(Ok(power.state));
        }
        let is = match self.call(known, "status", false).await {
            Ok(Ended { code: 0, .. }) => Some(PowerState::On),
            Ok(Ended { code: 2, .. }) => Some(PowerState::Off),
            Ok(Ended { code: 3, .. }) => None,
            Ok(ended) => return Ok(Err(ended.failed("status"))),
            Err(failure) => return Ok(Err(failure)),
        };
        self.unknown = 0;
        if power.state != is || power.state_at.is_none() || act.status.act == PowerAct::Status {
            let mut transaction = self.here.store.write().await?;
            if let Some(mut newest) = power::get_by_node(&mut transaction, self.node).await?
                && newest.settings == power.settings
            {
                (newest.state, newest.state_at) = (is, Some(now()));
                power::save(&mut transaction, &newest).await?;
                store::commit(transaction).await?;
            }
        }
        Ok(Ok(is))
    }

    /// Says whether an act is to go on, for a machine that is on or off.
    async fn wanted(
        &self,
        connection: &mut Connection,
        known: &Known,
        is: Option<PowerState>,
    ) -> Result<Wanted, Error> {
        let Known { power, node, act } = known;
        if power.settings.mode == PowerMode::Disabled {
            let state = if act.begun { PowerActState::Failed } else { PowerActState::Withdrawn };
            return Ok(Wanted::No(state, "switching its power was disabled".to_owned()));
        }
        // Once a machine was told anything, it is brought to where it was to be.
        if act.begun || act.status.act != PowerAct::Boot {
            return Ok(Wanted::Yes);
        }
        let withdrawn = |reason: String| Ok(Wanted::No(PowerActState::Withdrawn, reason));
        let newest = runs::newest_of(connection, &node.id).await?;
        match (&act.status.run, &newest) {
            (Some(run), Some(newest)) if *run == newest.id => {
                if newest.progress.state != RunState::Pending || newest.is_held() {
                    return withdrawn("its run does not wait for it any more".to_owned());
                }
            }
            (Some(_), _) => return withdrawn("its run does not wait for it any more".to_owned()),
            (None, Some(newest)) if newest.progress.state == RunState::Running => {
                return withdrawn(format!(
                    "run {} is going on; `node power cycle` switches it all the same",
                    newest.id
                ));
            }
            (None, _) => {}
        }
        if is == Some(PowerState::Off) {
            return Ok(Wanted::Yes);
        }
        // What runs slipway fetches its run by itself. A server that has just begun to listen cannot tell.
        let may_ask = node.last_seen.is_some() && self.here.since.elapsed() < ASKS;
        match (is_here(connection, node, now()).await?, &act.status.run) {
            (true, None) => withdrawn("it runs slipway already".to_owned()),
            (true, Some(_)) => Ok(Wanted::Later),
            (false, _) if may_ask => Ok(Wanted::Later),
            (false, _) => Ok(Wanted::Yes),
        }
    }

    /// Tells the machine to be on or off. Returns how long to wait after it.
    async fn tell(&mut self, known: &Known, is: Option<PowerState>, to: PowerState) -> Result<Option<Duration>, Error> {
        let Known { power, act, .. } = known;
        let is_boot = act.status.act == PowerAct::Boot && to == PowerState::On;
        let how = if is_boot { format!("{to}, to boot slipway once") } else { to.to_string() };
        let is_recorder = power.settings.mode == PowerMode::Recorder;
        // What was looked at may be different by now, because hooks take their time.
        let mut transaction = self.here.store.write().await?;
        let Some(fresh) = self::known(&mut transaction, self.node).await? else { return Ok(None) };
        let is_same = (&fresh.act, &fresh.power.settings) == (act, &power.settings);
        let may = is_same
            && self.here.lease.is_held(&mut transaction).await?
            && matches!(self.wanted(&mut transaction, &fresh, is).await?, Wanted::Yes);
        if !may {
            return Ok(Some(WATCH_EVERY));
        }
        let busy_for = (!is_recorder).then_some(power.settings.limit_seconds);
        let begun = Power { busy_for, act: Some(Act { begun: true, ..fresh.act }), ..fresh.power };
        power::save(&mut transaction, &begun).await?;
        store::commit(transaction).await?;

        let told = if is_recorder { Ok(()) } else { self.told(known, to, is_boot).await };
        let mut transaction = self.here.store.write().await?;
        let Some(mut newest) = power::get_by_node(&mut transaction, self.node).await? else { return Ok(None) };
        newest.busy_for = None;
        let is_recorded = is_recorder && newest.settings == power.settings;
        if is_recorded {
            (newest.state, newest.state_at) = (Some(to), Some(now()));
        }
        if let Some(newest) = newest.act.as_mut().filter(|newest| newest.status.id == act.status.id) {
            newest.is_told = told.is_ok();
            newest.status.reason = told.as_ref().err().map(|failure| failure.reason.clone());
        }
        power::save(&mut transaction, &newest).await?;
        // The machine was switched, also if something else is asked for by now.
        if told.is_ok() {
            let message = match is_recorder {
                true => format!("recorded only: the machine would be switched {how}"),
                false => format!("the machine was switched {how}"),
            };
            let event =
                act.status.run.iter().fold(NewEvent::new(message).of_id(self.node), |event, run| event.of_run_id(run));
            history::record(&mut transaction, SiteEventKind::Power, event, now()).await?;
        }
        store::commit(transaction).await?;
        match told {
            Ok(()) => {
                (self.told, self.untold) = (Some(Instant::now()), 0);
                Ok(Some(Duration::ZERO))
            }
            Err(failure) => {
                self.untold += 1;
                self.again_or_end(act, self.untold, failure).await
            }
        }
    }

    async fn told(&self, known: &Known, to: PowerState, is_boot: bool) -> Result<(), Failure> {
        let ended = self.call(known, &to.to_string(), is_boot).await?;
        if ended.code == 0 { Ok(()) } else { Err(ended.failed(&to.to_string())) }
    }

    /// Calls the hook.
    async fn call(&self, known: &Known, action: &str, is_boot: bool) -> Result<Ended, Failure> {
        let Known { power, node, .. } = known;
        let password = match &power.password {
            Some(sealed) => Some(password::open(self.here.store, self.node, sealed).map_err(Failure::new)?),
            None => None,
        };
        let lines = lines(power, node, action, is_boot);
        let limit = power.settings.limit_seconds;
        let call = Call { hook: &power.settings.hook, lines, password: password.as_ref(), limit };
        let _turn = self.here.hooks.acquire().await;
        hook::run(self.here.folders, call).await
    }

    /// Notes that nobody can tell whether the machine is on. Returns how long to wait until somebody is asked again.
    async fn not_known(&mut self, act: &Act, failure: Failure) -> Result<Option<Duration>, Error> {
        self.unknown += 1;
        // A BMC may be away while the machine is switched.
        if act.is_told && self.told.get_or_insert_with(Instant::now).elapsed() < OBEYS {
            return Ok(Some(WATCH_EVERY));
        }
        self.again_or_end(act, self.unknown, failure).await
    }

    /// Notes that a hook failed so often in a row. Returns how long to wait until it is called again, if it is.
    async fn again_or_end(&self, act: &Act, times: u32, failure: Failure) -> Result<Option<Duration>, Error> {
        // What did not end in time was waited for long enough.
        if times < ATTEMPTS && !failure.is_late {
            self.change(act, |act| act.status.reason = Some(failure.reason)).await?;
            return Ok(Some(AGAIN));
        }
        self.end(act, PowerActState::Failed, Some(failure.reason)).await.map(|()| None)
    }

    async fn end(&self, act: &Act, state: PowerActState, reason: Option<String>) -> Result<(), Error> {
        let mut transaction = self.here.store.write().await?;
        if let Some(mut power) = power::get_by_node(&mut transaction, self.node).await?
            && power.open_act().is_some_and(|open| open.status.id == act.status.id)
        {
            end(&mut transaction, &mut power, state, reason).await?;
            power::save(&mut transaction, &power).await?;
        }
        store::commit(transaction).await
    }

    /// Changes an act, unless something else is asked for by now.
    async fn change(&self, act: &Act, change: impl FnOnce(&mut Act)) -> Result<(), Error> {
        let mut transaction = self.here.store.write().await?;
        let Some(Known { mut power, act: mut newest, .. }) = known(&mut transaction, self.node).await? else {
            return Ok(());
        };
        if newest.status.id == act.status.id {
            change(&mut newest);
            power.act = Some(newest);
            power::save(&mut transaction, &power).await?;
        }
        store::commit(transaction).await
    }
}

/// Whether an act is to go on.
enum Wanted {
    Yes,
    /// Not yet: it may turn out that it is not needed.
    Later,
    /// It ends in this state, with a reason.
    No(PowerActState, String),
}

/// Returns what there is to do for a node. `None` if there is nothing.
async fn known(connection: &mut Connection, node: &str) -> Result<Option<Known>, Error> {
    let power = power::get_by_node(connection, node).await?;
    let node = nodes::get_by_id(connection, node).await?;
    Ok(power.zip(node).and_then(|(power, node)| {
        let act = power.open_act()?.clone();
        Some(Known { power, node, act })
    }))
}

/// Returns what a hook is told about a machine.
fn lines(power: &Power, node: &Node, action: &str, is_boot: bool) -> Vec<(String, String)> {
    let identity = &node.identity;
    let macs = Some(identity.macs.join(",")).filter(|macs| !macs.is_empty());
    let of_machine = [
        ("node", Some(&node.id)),
        ("node_name", node.name.as_ref()),
        ("machine_uuid", identity.uuid.as_ref()),
        ("machine_serial", identity.serial.as_ref()),
        ("machine_macs", macs.as_ref()),
    ];
    let of_machine = of_machine.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.clone())));
    // A machine gives its serial number itself, and a line break in it would begin another line.
    let of_machine = of_machine.filter(|(_, value)| !value.contains(char::is_control));
    let options = power.settings.options.iter().map(|(key, value)| (key.clone(), value.clone()));
    let action = [("action", Some(action)), ("boot", is_boot.then_some("network"))];
    let action = action.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())));
    of_machine.chain(options).chain(action).collect()
}
