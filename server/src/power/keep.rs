//! Does what was asked for, on one server of the site at a time.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use slipway_protocol::{PowerAct, PowerActState, PowerMode, PowerState, SiteEventKind};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::ask::end;
use super::hook::{self, Failure};
use super::next::{Next, next};
use super::provider::{self, Means};
use super::wanted::{ASKS, Known, Wanted, wanted};
use crate::base::error::{Error, chain};
use crate::base::time::{Millis, now};
use crate::site::leases::Lease;
use crate::store::history::{self, NewEvent};
use crate::store::power::{self, Act, Power};
use crate::store::{self, Connection, clock, nodes};

/// Name of the lease of the server that switches machines.
const LEASE: &str = "power";
/// Interval at which is looked for what was asked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which a machine is looked at that was told to be on or off, or that is to fetch its run.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// How long a machine may take to be on or off once it was told. The firmware of some servers takes a minute, and some
/// BMCs do not answer meanwhile.
const OBEYS: Duration = Duration::from_secs(120);
/// Milliseconds after which nobody expects any more what was asked for, if no server could begin it.
const STALE: Millis = 10 * 60 * 1000;
/// Milliseconds after which what is known of a machine is stored again.
const FRESH: Millis = 10_000;
/// Providers that are asked at the same time.
const AT_ONCE: usize = 32;
/// How often in a row a provider is asked that fails, and what is waited in between. BMCs are busy now and then.
const ATTEMPTS: u32 = 3;
const AGAIN: Duration = Duration::from_secs(3);

/// Does what is asked for, as long as the server runs, if no other server does. `server` is the id of this one.
pub async fn keep(means: Means<'_>, server: &str) {
    loop {
        let lease = Lease::new(means.store, LEASE, server);
        let held = lease.wait().await;
        let turns = Semaphore::new(AT_ONCE);
        let here = Here { means, lease: &lease, since: Instant::now(), turns };
        // It ends when the lease is lost, as in an outage of the database.
        let _: Option<()> = held.during(here.work()).await;
    }
}

/// This server, while it has the lease.
struct Here<'a> {
    means: Means<'a>,
    lease: &'a Lease,
    /// Since when it has the lease. Machines may have been silent before because no server listened.
    since: Instant,
    /// How many providers may still be asked at the same time.
    turns: Semaphore,
}

impl Here<'_> {
    async fn work(&self) {
        let (mut busy, mut acts, mut is_failing) = (HashSet::new(), FuturesUnordered::new(), false);
        loop {
            let mut look = std::pin::pin!(async {
                sleep(LOOK_EVERY).await;
                power::with_open_acts(&mut *self.means.store.read().await?).await
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
        let begun = Instant::now();
        let mut switching = Switching { here: self, node: &node, begun, told: None, unknown: 0, untold: 0 };
        if let Err(error) = switching.finish().await {
            // What is stored is still asked for, so it is tried again.
            tracing::error!(node, error = chain(&error), "could not switch a machine on or off");
        }
        node
    }
}

/// An act that is being done. It measures by a clock that nobody sets.
struct Switching<'a> {
    here: &'a Here<'a>,
    node: &'a str,
    /// Since when this server does it.
    begun: Instant,
    /// Since when this server has waited for the machine to do what it was told.
    told: Option<Instant>,
    /// How often in a row nobody could tell whether the machine is on.
    unknown: u32,
    /// How often in a row the machine could not be told.
    untold: u32,
}

impl Switching<'_> {
    async fn finish(&mut self) -> Result<(), Error> {
        let mut connection = self.here.means.store.read().await?;
        let Some(Known { power, act, .. }) = known(&mut connection, self.node).await? else { return Ok(()) };
        let now = clock::now(&mut connection).await?;
        drop(connection);
        // A time in the future was taken by a clock that was wrong.
        if !act.status.switched && now.abs_diff(act.status.asked_at) > STALE {
            let reason = "no server could begin it within 10 minutes".to_owned();
            return self.end(&act, PowerActState::Failed, Some(reason)).await;
        }
        if let Some(seconds) = power.busy_for {
            // A provider that was asked by a server that was killed. Afterwards, it cannot do anything any more.
            sleep(hook::longest(seconds)).await;
        }
        while let Some(pause) = self.step().await? {
            sleep(pause).await;
        }
        Ok(())
    }

    /// Does what comes next. Returns how long to wait after it. `None` if there is nothing left to do.
    async fn step(&mut self) -> Result<Option<Duration>, Error> {
        let mut connection = self.here.means.store.read().await?;
        let Some(known) = known(&mut connection, self.node).await? else { return Ok(None) };
        let act = &known.act;
        // Before anything is asked: who is here needs no BMC.
        let before = wanted(&mut connection, &known, known.power.state, self.here.since).await?;
        drop(connection);
        if !matches!(before, Wanted::Yes)
            && let Some(ended) = self.not_wanted(act, before).await?
        {
            return Ok(ended);
        }
        let is = match self.look(&known).await? {
            Ok(is) => is,
            Err(failure) => return self.not_known(act, failure).await,
        };
        let after = wanted(&mut *self.here.means.store.read().await?, &known, is, self.here.since).await?;
        if let Some(ended) = self.not_wanted(act, after).await? {
            return Ok(ended);
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
            Next::Done => self.settle(&known).await,
        }
    }

    /// Ends an act whose machine is as it is to be. Returns how long to wait if that has to be tried again.
    async fn settle(&mut self, known: &Known) -> Result<Option<Duration>, Error> {
        let Known { power, node, act } = known;
        if act.status.act == PowerAct::Boot && power.settings.mode == PowerMode::Real {
            let turn = self.here.turns.acquire().await;
            let settled = provider::settle(self.here.means, power, node).await;
            drop(turn);
            if let Err(failure) = settled {
                self.untold += 1;
                return self.again_or_end(act, self.untold, failure).await;
            }
        }
        self.end(act, PowerActState::Done, None).await.map(|()| None)
    }

    /// Ends or puts off an act that is not wanted. Returns what [`Self::step`] does, or nothing if it is wanted.
    async fn not_wanted(&self, act: &Act, wanted: Wanted) -> Result<Option<Option<Duration>>, Error> {
        let (state, reason) = match wanted {
            Wanted::Yes => return Ok(None),
            // It had the time to fetch its run. Why it did not is another matter.
            Wanted::Later if self.begun.elapsed() > ASKS * 2 => {
                let state = if act.status.switched { PowerActState::Failed } else { PowerActState::Withdrawn };
                (state, "it runs slipway already".to_owned())
            }
            Wanted::Later => return Ok(Some(Some(WATCH_EVERY))),
            Wanted::No(state, reason) => (state, reason),
        };
        self.end(act, state, Some(reason)).await?;
        Ok(Some(None))
    }

    /// Asks whether the machine is on, and stores the answer.
    async fn look(&mut self, known: &Known) -> Result<Result<Option<PowerState>, Failure>, Error> {
        let Known { power, node, act } = known;
        if power.settings.mode == PowerMode::Recorder {
            // Not known at first: then it is switched as if it was not as it should be.
            return Ok(Ok(power.state));
        }
        let turn = self.here.turns.acquire().await;
        let is = match provider::look(self.here.means, power, node).await {
            Ok(is) => is,
            Err(failure) => return Ok(Err(failure)),
        };
        drop(turn);
        self.unknown = 0;
        let is_fresh = power.state_at.is_some_and(|at| now().saturating_sub(at) < FRESH);
        if power.state != is || !is_fresh || act.status.act == PowerAct::Status {
            let mut transaction = self.here.means.store.write().await?;
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

    /// Tells the machine to be on or off. Returns how long to wait after it.
    async fn tell(&mut self, known: &Known, is: Option<PowerState>, to: PowerState) -> Result<Option<Duration>, Error> {
        let Known { power, node, act } = known;
        let is_boot = act.status.act == PowerAct::Boot && to == PowerState::On;
        let is_recorder = power.settings.mode == PowerMode::Recorder;
        let turn = self.here.turns.acquire().await;
        if !self.begin(known, is).await? {
            return Ok(Some(WATCH_EVERY));
        }
        let told = match is_recorder {
            true => Ok(()),
            false => provider::tell(self.here.means, power, node, to, is_boot).await,
        };
        drop(turn);
        self.note(known, to, is_boot, told.as_ref().err()).await?;
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

    /// Stores that the machine is about to be switched, unless anything is different by now from what is known: looking
    /// takes its time. Returns whether it is to be switched.
    async fn begin(&self, known: &Known, is: Option<PowerState>) -> Result<bool, Error> {
        let mut transaction = self.here.means.store.write().await?;
        let Some(mut fresh) = self::known(&mut transaction, self.node).await? else { return Ok(false) };
        let is_same = (&fresh.act, &fresh.power.settings) == (&known.act, &known.power.settings);
        if !is_same
            || !self.here.lease.is_held(&mut transaction).await?
            || !matches!(wanted(&mut transaction, &fresh, is, self.here.since).await?, Wanted::Yes)
        {
            return Ok(false);
        }
        let is_recorder = known.power.settings.mode == PowerMode::Recorder;
        fresh.power.busy_for = (!is_recorder).then_some(known.power.settings.limit_seconds);
        fresh.act.status.switched = true;
        fresh.power.act = Some(fresh.act);
        power::save(&mut transaction, &fresh.power).await?;
        store::commit(transaction).await?;
        Ok(true)
    }

    /// Stores whether the machine was told to be on or off.
    async fn note(
        &self,
        Known { power, act, .. }: &Known,
        to: PowerState,
        is_boot: bool,
        failure: Option<&Failure>,
    ) -> Result<(), Error> {
        let is_recorder = power.settings.mode == PowerMode::Recorder;
        let mut transaction = self.here.means.store.write().await?;
        let Some(mut newest) = power::get_by_node(&mut transaction, self.node).await? else { return Ok(()) };
        newest.busy_for = None;
        if is_recorder && newest.settings == power.settings {
            (newest.state, newest.state_at) = (Some(to), Some(now()));
        }
        if let Some(open) = newest.act.as_mut().filter(|newest| newest.is_open(&act.status.id)) {
            open.is_told = failure.is_none();
            open.status.reason = failure.map(|failure| failure.reason.clone());
        }
        power::save(&mut transaction, &newest).await?;
        // The machine was switched, also if something else is asked for by now.
        if failure.is_none() {
            let how = if is_boot { format!("{to}, to boot slipway once") } else { to.to_string() };
            let message = match is_recorder {
                true => format!("recorded only: the machine would be switched {how}"),
                false => format!("the machine was switched {how}"),
            };
            let event = NewEvent::new(message).of_id(self.node);
            let event = act.status.run.iter().fold(event, |event, run| event.of_run_id(run));
            history::record(&mut transaction, SiteEventKind::Power, event, now()).await?;
        }
        store::commit(transaction).await
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

    /// Notes that a provider failed so often in a row. Returns how long to wait until it is asked again, if it is.
    async fn again_or_end(&self, act: &Act, times: u32, failure: Failure) -> Result<Option<Duration>, Error> {
        if times < ATTEMPTS && !failure.is_final {
            self.change(act, |act| act.status.reason = Some(failure.reason)).await?;
            return Ok(Some(AGAIN));
        }
        self.end(act, PowerActState::Failed, Some(failure.reason)).await.map(|()| None)
    }

    async fn end(&self, act: &Act, state: PowerActState, reason: Option<String>) -> Result<(), Error> {
        let mut transaction = self.here.means.store.write().await?;
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
        let mut transaction = self.here.means.store.write().await?;
        if let Some(Known { mut power, act: mut newest, .. }) = known(&mut transaction, self.node).await?
            && newest.status.id == act.status.id
        {
            change(&mut newest);
            power.act = Some(newest);
            power::save(&mut transaction, &power).await?;
        }
        store::commit(transaction).await
    }
}

/// Returns what there is to do for a node. `None` if there is nothing.
async fn known(connection: &mut Connection, node: &str) -> Result<Option<Known>, Error> {
    let power = power::get_by_node(connection, node).await?;
    let node = nodes::get_by_id(connection, node).await?;
    let known = |(power, node): (Power, _)| {
        let act = power.open_act()?.clone();
        Some(Known { power, node, act })
    };
    Ok(power.zip(node).and_then(known))
}
