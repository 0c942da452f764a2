//! When something counts as trouble: the limits of [`crate::rules::trouble`]. A site and an operating system can change
//! them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slipway_protocol::shared::duration;
use slipway_protocol::{ErrorCode, HEARTBEAT_SECONDS};

use crate::base::error::Error;
use crate::base::time::Millis;

const MINUTE: u64 = 60;

/// Seconds after which a machine that works is silent; see [`crate::node::admission::SILENT`].
pub const SILENT_IN_A_STEP: u64 = 3 * HEARTBEAT_SECONDS + 2;

/// What a limit is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// A number of times.
    Times,
}

/// A limit, and its value unless it is changed.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Its name: kind of trouble and stage.
    pub name: &'static str,
    /// What it is counted in.
    pub unit: Unit,
    /// When it flags.
    pub flag_after: u64,
    /// Whether there is an unfinished run that it can end.
    pub can_end: bool,
    /// What it limits, for people.
    pub what: &'static str,
}

const fn time(name: &'static str, seconds: u64, can_end: bool, what: &'static str) -> Limit {
    Limit { name, unit: Unit::Seconds, flag_after: seconds, can_end, what }
}

const fn times(name: &'static str, times: u64, what: &'static str) -> Limit {
    Limit { name, unit: Unit::Times, flag_after: times, can_end: false, what }
}

/// Name of the limit on a step without progress. With `.` and an action behind it, that of the steps of this action.
pub const STEP: &str = "stuck.step";

/// All limits. Those of actions are for steps that report bytes all the time, or that a drive works on for long.
pub const LIMITS: &[Limit] = &[
    time("silent.step", SILENT_IN_A_STEP, true, "nothing heard from a machine in a step"),
    time("silent.waiting", 5 * MINUTE, false, "nothing heard from a machine in slipway that waits"),
    time("silent.agent", 5 * MINUTE, false, "nothing heard from the agent of a running system"),
    time("stuck.pending", 15 * MINUTE, true, "a run that its machine has not fetched"),
    time("stuck.boot-files", 15 * MINUTE, false, "nothing heard after boot files were fetched"),
    time("stuck.enrolled", 5 * MINUTE, true, "a run that was fetched and has not begun"),
    time(STEP, 10 * MINUTE, true, "a step without progress"),
    time("stuck.step.capture-disk", 5 * MINUTE, true, "the same, in a capture"),
    time("stuck.step.encrypt-root", 60 * MINUTE, true, "the same, while a disk is encrypted"),
    time("stuck.step.erase-disk", 60 * MINUTE, true, "the same, while a disk is erased"),
    time("stuck.step.run-in-target", 30 * MINUTE, true, "the same, in a command"),
    time("stuck.step.stream-image", 5 * MINUTE, true, "the same, while an image is written"),
    time("stuck.step.unpack-archive", 5 * MINUTE, true, "the same, while an archive is unpacked"),
    time("stuck.booting", 15 * MINUTE, false, "no report of an installed system that is to report"),
    time("stuck.draining", 30 * MINUTE, false, "a machine that is being drained"),
    time("stuck.external", 15 * MINUTE, false, "no report of an external step that began"),
    times("looping.begins", 3, "the same run begun"),
    times("looping.boots", 3, "boots in an hour"),
    times("looping.keys", 3, "new keys of a node in an hour"),
    times("looping.external", 3, "the same external step begun"),
    times("slow.times", 2, "a step takes so many times as long as the median"),
    times("slow.runs", 5, "runs with the step that a median needs"),
];

/// Actions whose steps can have a limit of their own.
const ACTIONS: &[&str] = &[
    "boot-reporter",
    "capture-disk",
    "efi-boot-order",
    "encrypt-root",
    "enrol-secure-boot",
    "erase-disk",
    "kernel-args",
    "kexec",
    "make-filesystem",
    "partition",
    "reboot",
    "run-in-target",
    "seed-cloud-init",
    "stream-image",
    "unpack-archive",
    "write-file",
];

/// A change of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = LimitChange)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Flag after so many seconds, or times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub flag_after: Option<u64>,
    /// End the run, as failed, after so many seconds. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub end_after: Option<u64>,
}

/// Changes by the names of limits.
pub type Changes = BTreeMap<String, Change>;

/// Longest limit: ten years.
const MOST: u64 = 315_360_000;

/// A limit as it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[schema(as = LimitStatus)]
pub struct InForce {
    /// Its name: kind of trouble and stage.
    pub name: String,
    /// What it limits.
    pub what: String,
    /// What it is counted in.
    pub unit: Unit,
    /// It flags after so many seconds, or times.
    pub flag_after: u64,
    /// It ends the run after so many seconds. Absent if never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_after: Option<u64>,
    /// Whether the site changed it.
    pub changed: bool,
}

/// The limits in force for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// What the site changed.
    pub site: Changes,
    /// What the operating system of the node's run changes.
    pub system: Changes,
}

impl Limits {
    /// Returns the number of times of a limit.
    pub fn times(&self, name: &str) -> u64 {
        self.value(name).unwrap_or(u64::MAX)
    }

    /// Returns the length of a limit in milliseconds.
    pub fn millis(&self, name: &str) -> Millis {
        self.value(name).unwrap_or(u64::MAX).saturating_mul(1000)
    }

    /// Returns the name of the limit on a step of an action without progress.
    pub fn name_of_step(&self, action: &str) -> String {
        let own = format!("{STEP}.{action}");
        if self.value(&own).is_some() { own } else { STEP.to_owned() }
    }

    /// Returns the length of the limit on a step of an action without progress, in milliseconds.
    pub fn of_step(&self, action: &str) -> Millis {
        self.millis(&self.name_of_step(action))
    }

    /// Returns after how many milliseconds a limit ends a run. `None` if never. No run ends before it is flagged.
    pub fn end(&self, name: &str) -> Option<Millis> {
        self.end_alone(name).map(|end| end.max(self.millis(name)))
    }

    /// Like [`Self::end`], for a step of an action. The limit of all steps may be shorter than the action's own.
    pub fn end_of_step(&self, action: &str) -> Option<Millis> {
        let end = self.end_alone(&format!("{STEP}.{action}")).or_else(|| self.end_alone(STEP));
        end.map(|end| end.max(self.of_step(action)))
    }

    fn end_alone(&self, name: &str) -> Option<Millis> {
        let end = |changes: &Changes| changes.get(name).and_then(|change| change.end_after);
        end(&self.system).or_else(|| end(&self.site)).map(|seconds| seconds.saturating_mul(1000))
    }

    fn value(&self, name: &str) -> Option<u64> {
        let changed = |changes: &Changes| changes.get(name).and_then(|change| change.flag_after);
        let preset = || LIMITS.iter().find(|limit| limit.name == name).map(|limit| limit.flag_after);
        changed(&self.system).or_else(|| changed(&self.site)).or_else(preset)
    }

    /// Returns all limits of the site.
    pub fn all(&self) -> Vec<InForce> {
        let extra = self.site.keys().filter(|name| LIMITS.iter().all(|limit| limit.name != *name));
        let extra = extra.filter_map(|name| Some((name.clone(), known(name)?)));
        let all = LIMITS.iter().map(|limit| (limit.name.to_owned(), *limit)).chain(extra);
        all.map(|(name, limit)| InForce {
            what: limit.what.to_owned(),
            unit: limit.unit,
            flag_after: self.value(&name).unwrap_or(limit.flag_after),
            end_after: self.site.get(&name).and_then(|change| change.end_after),
            changed: self.site.contains_key(&name),
            name,
        })
        .collect()
    }
}

/// Returns the limit of this name. An action without a limit of its own has the one of all steps.
pub fn known(name: &str) -> Option<Limit> {
    let of_action = || name.strip_prefix(STEP)?.strip_prefix('.').filter(|action| ACTIONS.contains(action));
    let general = || LIMITS.iter().find(|limit| limit.name == STEP).filter(|_| of_action().is_some());
    LIMITS.iter().find(|limit| limit.name == name).or_else(general).copied()
}

/// Returns the full name of a limit, from a name that may lack the kind of trouble: `booting` is `stuck.booting`.
pub fn full_name(name: &str) -> Option<String> {
    if known(name).is_some() {
        return Some(name.to_owned());
    }
    let kinds = ["silent", "stuck", "looping", "slow"].map(|kind| format!("{kind}.{name}"));
    kinds.into_iter().find(|name| known(name).is_some())
}

/// Returns the refusal of a limit that does not exist.
pub fn unknown(name: &str) -> Error {
    let names = LIMITS.iter().map(|limit| limit.name).collect::<Vec<_>>().join(", ");
    Error::refused(ErrorCode::NotFound, format!("there is no limit {name:?}; the limits are {names}"))
}

/// Refuses a change of a limit that does not exist, or that makes no sense.
pub fn check(name: &str, change: &Change) -> Result<(), Error> {
    let refused = |message: String| Err(Error::refused(ErrorCode::InvalidRequest, message));
    let limit = known(name).ok_or_else(|| unknown(name))?;
    let given = [change.flag_after, change.end_after];
    if given.into_iter().flatten().any(|value| !(1..=MOST).contains(&value)) {
        return refused(format!("the limit {name} must be 1 to {MOST}"));
    }
    if name.starts_with("looping.") && change.flag_after == Some(1) {
        return refused(format!("the limit {name} must be 2 or more: what happens once is no loop"));
    }
    if given == [None, None] {
        let message = format!("nothing is given for the limit {name}: give flag_after, end_after or both");
        return refused(message);
    }
    if change.end_after.is_some() && !limit.can_end {
        let message = format!("the limit {name} cannot end a run: there is none then, or it is not known to be lost");
        return refused(message);
    }
    let flag_after = change.flag_after.unwrap_or(limit.flag_after);
    if change.end_after.is_some_and(|end| end < flag_after) {
        let message = format!("the limit {name} would end a run before it flags, which is after {flag_after} s");
        return refused(message);
    }
    Ok(())
}

/// Reads `NAME=VALUE`, where the name may lack the kind of trouble, and the value is a length of time or a number.
pub fn parse(text: &str) -> Result<(String, Change), String> {
    let (name, value) = text.split_once('=').ok_or("give NAME=DURATION, such as booting=30m")?;
    let name = full_name(name).ok_or_else(|| format!("there is no limit {name:?}; `limits list` shows them all"))?;
    let change = Change { flag_after: Some(parse_value(&name, value)?), end_after: None };
    check(&name, &change).map_err(|error| error.to_string())?;
    Ok((name, change))
}

/// Reads the value of a limit: a length of time such as `15m`, or a number of times.
pub fn parse_value(name: &str, value: &str) -> Result<u64, String> {
    match known(name).map(|limit| limit.unit) {
        Some(Unit::Times) => value.parse().map_err(|_| format!("{value:?} is not a number of times")),
        _ => duration::parse(value).map(|value| value.as_secs()),
    }
}

/// Formats a value of a limit for people.
pub fn words(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Times => format!("{value} times"),
        Unit::Seconds => duration::words(Duration::from_secs(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(flag_after: u64) -> Change {
        Change { flag_after: Some(flag_after), end_after: None }
    }

    #[test]
    fn a_system_changes_what_the_site_changed_and_an_action_has_its_own_limit() {
        let mut limits = Limits::default();
        assert_eq!((limits.millis("stuck.booting"), limits.times("looping.keys")), (900_000, 3));
        limits.site.insert("stuck.booting".to_owned(), change(60));
        assert_eq!(limits.millis("stuck.booting"), 60_000);
        limits.system.insert("stuck.booting".to_owned(), change(30));
        assert_eq!(limits.millis("stuck.booting"), 30_000);

        assert_eq!((limits.of_step("stream-image"), limits.of_step("partition")), (300_000, 600_000));
        limits.site.insert("stuck.step".to_owned(), change(7));
        assert_eq!((limits.of_step("stream-image"), limits.of_step("partition")), (300_000, 7000));
        limits.site.insert("stuck.step.partition".to_owned(), change(8));
        assert_eq!(limits.of_step("partition"), 8000);
        assert!(limits.all().iter().any(|limit| limit.name == "stuck.step.partition" && limit.changed));

        assert_eq!((limits.end("silent.step"), limits.end_of_step("reboot")), (None, None));
        limits.site.insert("stuck.step".to_owned(), Change { flag_after: Some(9), end_after: Some(10) });
        assert_eq!((limits.end_of_step("reboot"), limits.of_step("kexec")), (Some(10_000), 9000));
        // No run ends before it is flagged.
        limits.system.insert("stuck.step.reboot".to_owned(), change(11));
        assert_eq!(limits.end_of_step("reboot"), Some(11_000));
        let erasing = limits.of_step("erase-disk");
        assert_eq!(limits.end_of_step("erase-disk"), Some(erasing));
        assert!(erasing > 10_000, "{erasing}");
    }

    #[test]
    fn limits_are_named_with_or_without_the_kind_of_trouble() {
        let read = |text| parse(text).map(|(name, change)| (name, change.flag_after.unwrap_or_default())).ok();
        assert_eq!(read("booting=30m"), Some(("stuck.booting".to_owned(), 1800)));
        assert_eq!(read("stuck.step.kexec=90s"), Some(("stuck.step.kexec".to_owned(), 90)));
        assert_eq!(read("step.stream-image=1h"), Some(("stuck.step.stream-image".to_owned(), 3600)));
        assert_eq!(read("boots=10"), Some(("looping.boots".to_owned(), 10)));
        for bad in ["booting", "boot=1m", "booting=", "booting=0", "boots=1m", "stuck.step.x=1m", "stuck.step.=1m"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_limits_of_unfinished_runs_end_them() {
        let end = |name, end| check(name, &Change { flag_after: None, end_after: Some(end) }).is_ok();
        assert!(end("stuck.pending", 901) && end("stuck.step.reboot", 601));
        assert!(!end("stuck.pending", 899), "before the flag");
        assert!(!end("stuck.booting", 901), "its run is over");
        let loops = |times| check("looping.boots", &Change { flag_after: Some(times), end_after: None }).is_ok();
        assert!(loops(2) && !loops(1), "what happens once is no loop");
        assert!(!end("looping.keys", 5) && check("stuck.pending", &Change::default()).is_err());
    }

    #[test]
    fn each_action_can_have_a_limit() {
        for limit in LIMITS.iter().filter_map(|limit| limit.name.strip_prefix("stuck.step.")) {
            assert!(ACTIONS.contains(&limit), "{limit}");
        }
    }
}
