//! Trouble of installed systems: they do not come up, come back to slipway, have failed units, or their agent could not
//! do its task.

use slipway_protocol::node::boot_report::MAINTENANCE;
use slipway_protocol::workflow::agent::DRAIN;
use slipway_protocol::{Flag, FlagKind, NodeClass, NodeState, Severity, TaskState};

use super::{BOOTS, HOST_LOG, LOOPING, Look, STUCK, WINDOW, system_heard_at};
use crate::base::time::Millis;

/// Most failed units that are named.
const NAMED: usize = 3;

impl Look<'_> {
    pub(super) fn booting(&self) -> Option<Flag> {
        let run = self.run.filter(|_| self.node.state == NodeState::Booting && self.node.came_back_at.is_none())?;
        // After a newer run was withdrawn, from then on.
        let heard = run.finished_at.max(system_heard_at(run))?;
        let limit = "stuck.booting";
        let since = self.beyond(heard, self.limits.millis(limit))?;
        let flag = match &run.boot {
            Some(_) => {
                let cause = "a unit takes long or waits for ever; the log of the boot tells which";
                self.flag(STUCK, since, "has not finished starting its installed system", cause, HOST_LOG)
            }
            None => {
                let cause = "it did not start from the disk, its network did not come up, or it cannot reach or verify \
                             the server; look at its console";
                self.flag(STUCK, since, "has not reported from its installed system", cause, "events --node NODE")
            }
        };
        Some(flag.by_limit(limit))
    }

    /// An installed system that is not up and boots too often.
    pub(super) fn system_boots(&self) -> Option<Flag> {
        let boot = self.run?.boot.as_ref().filter(|_| self.node.state == NodeState::Booting)?;
        let (boots, most) = (u64::from(boot.boots), self.limits.times(BOOTS));
        let hours = boot.at.saturating_sub(boot.first_at).div_ceil(WINDOW).max(1);
        if boots < most.saturating_mul(hours) || self.age(boot.at) > WINDOW {
            return None;
        }
        let reason = format!("started its installed system {boots} times");
        let cause = "the installed system restarts before it is up; the log of its boot may tell why";
        Some(self.flag(LOOPING, boot.first_at, reason, cause, HOST_LOG).by_limit(BOOTS))
    }

    pub(super) fn came_back(&self) -> Option<Flag> {
        let since = self.node.came_back_at?;
        if self.node.class == NodeClass::Ephemeral {
            let reason = "booted slipway again, and was not reinstalled";
            let cause = "its system had not reported before that, it proved too little, or the run could not be \
                         started";
            let command = "events --node NODE --kind run-refused,state";
            return Some(self.flag((FlagKind::CameBack, Severity::Bad), since, reason, cause, command));
        }
        let reason = "booted slipway again instead of the installed system";
        let vendor = self.node.inventory.as_ref().and_then(|inventory| inventory.system.vendor.as_deref());
        let in_emulation = match vendor {
            Some("QEMU") => {
                " (QEMU: give the disk the first `bootindex`, or none to any device: with one, OVMF drops BootNext)"
            }
            _ => "",
        };
        let cause = format!("check the boot order, or remove the boot medium{in_emulation}");
        Some(self.flag((FlagKind::CameBack, Severity::Bad), since, reason, cause, "status NODE"))
    }

    /// The last task of the agent, if it failed.
    pub(super) fn task(&self) -> Option<Flag> {
        self.node.agent.as_ref().filter(|_| self.has_system())?;
        let task = self.node.task.as_ref().filter(|task| task.state == TaskState::Failed)?;
        // The system that it was done in may be another one.
        let installed = self.run.and_then(|run| run.started_at).unwrap_or_default();
        if task.ended_at <= Some(installed) {
            return None;
        }
        let reason = task.in_words();
        let cause = match task.name == DRAIN {
            true => {
                "what the task printed tells more; mend that and ask for it again, or give the work back with `node \
                     drain --undo`"
            }
            false => "what the task printed tells more; mend that, and ask for it again",
        };
        let severity = if task.run.is_some() { Severity::Bad } else { Severity::Warn };
        Some(self.flag((FlagKind::Task, severity), task.ended_at?, reason, cause, "node agent NODE"))
    }

    pub(super) fn draining(&self) -> Option<Flag> {
        let task = self.node.task.as_ref().filter(|task| task.state.is_open())?;
        self.node.agent.as_ref().filter(|_| self.node.state == NodeState::Draining)?;
        let limit = "stuck.draining";
        let since = self.beyond(task.asked_at, self.limits.millis(limit))?;
        let cause = "what runs on it does not stop; what the task printed says what";
        Some(self.flag(STUCK, since, "has not been drained", cause, "node agent NODE").by_limit(limit))
    }

    /// The failed units of the installed system, its state, and since when, by its agent or its boot reporter.
    fn units(&self) -> Option<(&[String], Option<&str>, Millis)> {
        match &self.node.agent {
            Some(agent) => Some((&agent.failed_units, agent.system_state.as_deref(), agent.changed_at)),
            None => {
                let boot = self.run?.boot.as_ref()?;
                Some((&boot.report.failed_units, boot.report.system_state.as_deref(), boot.at))
            }
        }
    }

    pub(super) fn degraded(&self) -> Option<Flag> {
        let (units, state, at) = self.units().filter(|_| self.has_system())?;
        let named = units.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = units.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (severity, reason) = match state {
            Some(MAINTENANCE) => (Severity::Bad, "stopped in the emergency or rescue shell".to_owned()),
            _ if units.is_empty() => return None,
            _ => (Severity::Warn, format!("has failed units in its installed system: {named}{more}")),
        };
        let cause = "the log of the boot says why";
        Some(self.flag((FlagKind::Degraded, severity), at, reason, cause, HOST_LOG))
    }

    /// Whether an installed system is there, or is to be.
    fn has_system(&self) -> bool {
        use NodeState::{Booting, Draining, Installed, Running};
        matches!(self.node.state, Booting | Installed | Running | Draining)
    }
}
