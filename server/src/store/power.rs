//! How the power of machines is switched, and what was asked for.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use slipway_protocol::{
    NodePower, PowerAct, PowerActState, PowerActStatus, PowerMode, PowerProvider, PowerState, Redfish,
};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::store::{
    Connection, Row, database, db, get, json, node_changes, optional_json, optional_number, optional_word, to_json,
    to_word,
};

/// How the power of a machine is switched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it is really switched.
    pub mode: PowerMode,
    /// Seconds after which the provider is stopped.
    pub limit_seconds: u32,
    /// What switches it.
    pub by: By,
}

/// What switches a machine, with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// A program on the server's host.
    Command {
        /// The name of the hook.
        hook: String,
        /// What the hook is told, without the password.
        options: BTreeMap<String, String>,
    },
    /// The machine's BMC.
    Redfish(Redfish),
    /// The server, which has the machine in QEMU.
    Qemu {
        /// What the machine consists of.
        options: BTreeMap<String, String>,
    },
}

/// What was asked for, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// How operators see it.
    #[serde(flatten)]
    pub status: PowerActStatus,
    /// Whether the machine was told to be on or off, as the state of the act says.
    pub is_told: bool,
}

impl Act {
    /// Whether it is the act with this id, and a server has yet to do something for it.
    pub fn is_open(&self, id: &str) -> bool {
        self.status.id == id && self.status.state.is_open()
    }
}

/// The power of a node's machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// Id of the node.
    pub node: String,
    /// How it is switched.
    pub settings: Settings,
    /// The encrypted password for the hook.
    pub password: Option<Vec<u8>>,
    /// Whether the machine was on when that was last asked.
    pub state: Option<PowerState>,
    /// When that was asked.
    pub state_at: Option<Millis>,
    /// The newest act.
    pub act: Option<Act>,
    /// The last act that failed, until a later one succeeds.
    pub failed: Option<PowerActStatus>,
    /// The limit in seconds of a hook that was called and is not known to have ended.
    pub busy_for: Option<u32>,
}

/// Milliseconds in which a machine that was asked to boot slipway may fetch its boot files.
const BOOTS: Millis = 15 * 60 * 1000;

impl Power {
    /// Whether the machine was asked to boot slipway a short time ago, without a run, and has not enrolled since.
    /// `enrolled_at` is when it last did.
    pub fn is_to_boot_slipway(&self, enrolled_at: Option<Millis>, now: Millis) -> bool {
        let is_asked = |act: &Act| {
            let PowerActStatus { act, state, asked_at, run, .. } = &act.status;
            *act == PowerAct::Boot
                && run.is_none()
                && !matches!(state, PowerActState::Failed | PowerActState::Withdrawn)
                && enrolled_at.is_none_or(|at| at < *asked_at)
                && now.saturating_sub(*asked_at) <= BOOTS
        };
        self.settings.mode == PowerMode::Real && self.act.as_ref().is_some_and(is_asked)
    }

    /// Whether the machine is a virtual one of the server, which nothing else switches.
    pub fn is_virtual(&self) -> bool {
        matches!(self.settings.by, By::Qemu { .. }) && self.settings.mode == PowerMode::Real
    }

    /// The power of a machine of which nothing is known but what switches it.
    pub fn new(node: &str, settings: Settings) -> Self {
        Self {
            node: node.to_owned(),
            settings,
            password: None,
            state: None,
            state_at: None,
            act: None,
            failed: None,
            busy_for: None,
        }
    }

    /// Returns the power as operators see it.
    pub fn status(self) -> NodePower {
        let Settings { mode, limit_seconds, by } = self.settings;
        let (provider, hook, options, redfish) = match by {
            By::Command { hook, options } => (PowerProvider::Command, Some(hook), options, None),
            By::Redfish(settings) => (PowerProvider::Redfish, None, BTreeMap::new(), Some(settings)),
            By::Qemu { options } => (PowerProvider::Qemu, None, options, None),
        };
        NodePower {
            provider,
            mode,
            hook,
            options,
            redfish,
            has_password: self.password.is_some(),
            limit_seconds,
            state: self.state,
            state_at: self.state_at,
            failed: self.failed,
            act: self.act.map(|act| act.status),
        }
    }

    /// Returns the newest act, if a server has yet to do something for it.
    pub fn open_act(&self) -> Option<&Act> {
        self.act.as_ref().filter(|act| act.status.state.is_open())
    }
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT node, settings_json, password, state, state_at, act_json, failed_json, busy_for FROM power ",
            $rest
        )
    };
}

/// Returns the power of a node's machine, if something switches it.
pub async fn get_by_node(connection: &mut Connection, node: &str) -> Result<Option<Power>, Error> {
    let row = db::query(select!("WHERE node = $1")).bind(node).fetch_optional(connection).await;
    row.map_err(database("reading the power of a machine"))?.as_ref().map(from_row).transpose()
}

/// Returns the power of the machines of these nodes, or of all, by the ids of the nodes.
pub async fn of_nodes(connection: &mut Connection, ids: Option<&[String]>) -> Result<HashMap<String, Power>, Error> {
    let queries = match ids {
        Some(ids) => db::by_ids(select!("WHERE node IN ({ids})"), ids),
        None => vec![db::query(select!(""))],
    };
    let mut found = HashMap::new();
    for query in queries {
        let rows = query.fetch_all(&mut *connection).await.map_err(database("reading the power of machines"))?;
        for row in &rows {
            let power = from_row(row)?;
            found.insert(power.node.clone(), power);
        }
    }
    Ok(found)
}

/// Returns the ids of the nodes for which a server has something to do.
pub async fn with_open_acts(connection: &mut Connection) -> Result<Vec<String>, Error> {
    // With the condition of the index.
    let sql = "SELECT node FROM power WHERE act_state IS NOT NULL \
               AND act_state IN ('asked', 'switching-off', 'switching-on') ORDER BY node";
    let rows = db::query(sql).fetch_all(connection).await.map_err(database("looking for power acts"))?;
    rows.iter().map(|row| get(row, "node")).collect()
}

/// Stores the power of a node's machine.
pub async fn save(connection: &mut Connection, power: &Power) -> Result<(), Error> {
    let sql = "INSERT INTO power (node, settings_json, password, state, state_at, act_json, failed_json, act_state, \
               busy_for) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (node) DO UPDATE SET \
               settings_json = excluded.settings_json, password = excluded.password, state = excluded.state, \
               state_at = excluded.state_at, act_json = excluded.act_json, failed_json = excluded.failed_json, \
               act_state = excluded.act_state, busy_for = excluded.busy_for";
    let done = db::query(sql)
        .bind(&power.node)
        .bind(to_json(&power.settings))
        .bind(power.password.as_deref())
        .bind(power.state.as_ref().map(to_word))
        .bind(power.state_at.map(u64::cast_signed))
        .bind(power.act.as_ref().map(to_json))
        .bind(power.failed.as_ref().map(to_json))
        .bind(power.act.as_ref().map(|act| to_word(&act.status.state)))
        .bind(power.busy_for.map(i64::from))
        .execute(&mut *connection)
        .await;
    done.map_err(database("storing the power of a machine"))?;
    node_changes::record(connection, &power.node).await
}

/// Removes how the power of a node's machine is switched.
pub async fn remove(connection: &mut Connection, node: &str) -> Result<(), Error> {
    let done = db::query("DELETE FROM power WHERE node = $1").bind(node).execute(&mut *connection).await;
    done.map_err(database("removing the power of a machine"))?;
    node_changes::record(connection, node).await
}

fn from_row(row: &Row) -> Result<Power, Error> {
    Ok(Power {
        node: get(row, "node")?,
        settings: json(row, "settings_json")?,
        password: get(row, "password")?,
        state: optional_word(row, "state")?,
        state_at: optional_number(row, "state_at")?,
        act: optional_json(row, "act_json")?,
        failed: optional_json(row, "failed_json")?,
        busy_for: optional_number(row, "busy_for")?.and_then(|seconds| u32::try_from(seconds).ok()),
    })
}
