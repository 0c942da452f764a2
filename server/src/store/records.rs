//! Which columns have values of the protocol crate or of the server, and whether this version can read them.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use slipway_media::Measurements;
use slipway_protocol::{
    Afterwards, AgentStatus, BootStatus, BootTiming, BootWay, ClaimReason, Digest, DiskHints, Event, ExternalStep,
    Flag, FlagKind, Identity, Inventory, Network, NodeClass, NodeKey, NodeState, NodeTpm, PowerActState,
    PowerActStatus, PowerState, Proof, RunState, SiteEventKind, Step, StepStatus, TaskState, TaskStatus, TpmKeys,
    TpmProof,
};

use crate::base::error::Error;
use crate::rules::changes::{MachineFacts, Named};
use crate::store::claimants::Report;
use crate::store::findings::Finding;
use crate::store::power;
use crate::store::systems::System;
use crate::store::{Row, optional_json, optional_word};

type Decoder = fn(&Row, &'static str) -> Result<(), Error>;

/// Table, column and decoder.
const DECODERS: &[(&str, &str, Decoder)] = &[
    ("nodes", "state", word::<NodeState>),
    ("nodes", "class", word::<NodeClass>),
    ("nodes", "required", word::<Proof>),
    ("nodes", "identity_json", json::<Identity>),
    ("nodes", "inventory_json", json::<Inventory>),
    ("nodes", "timing_json", json::<BootTiming>),
    ("nodes", "network_json", json::<Network>),
    ("nodes", "ssh_keys_json", json::<Vec<String>>),
    ("nodes", "disk_json", json::<DiskHints>),
    ("nodes", "key_json", json::<NodeKey>),
    ("nodes", "tpm_json", json::<NodeTpm>),
    ("nodes", "labels_json", json::<BTreeMap<String, String>>),
    ("node_key_changes", "key_json", json::<NodeKey>),
    ("runs", "state", word::<RunState>),
    ("runs", "required", word::<Proof>),
    ("runs", "workflow_json", json::<Vec<Step>>),
    ("runs", "steps_json", json::<Vec<StepStatus>>),
    ("runs", "phone_home_json", json::<BTreeMap<String, String>>),
    ("runs", "image", word::<Digest>),
    ("runs", "afterwards", word::<Afterwards>),
    ("run_facts", "settings_json", json::<Named>),
    ("run_facts", "machine_json", json::<MachineFacts>),
    ("events", "event_json", json::<Event>),
    ("loose_steps", "step_json", json::<ExternalStep>),
    ("boot_reports", "status_json", json::<BootStatus>),
    ("claimants", "reason", word::<ClaimReason>),
    ("claimants", "identity_json", json::<Identity>),
    ("claimants", "report_json", json::<Report>),
    ("attestations", "keys_json", json::<TpmKeys>),
    ("attestations", "proof_json", json::<TpmProof>),
    ("boot_builds", "measurements_json", json::<Vec<Measurements>>),
    ("boot_fetches", "way", word::<BootWay>),
    ("images", "digest", word::<Digest>),
    ("images", "raw_digest", word::<Digest>),
    ("findings", "digest", word::<Digest>),
    ("findings", "finding_json", json::<Finding>),
    ("systems", "system_json", json::<System>),
    ("history", "kind", word::<SiteEventKind>),
    ("history", "report_json", json::<serde_json::Value>),
    ("power", "settings_json", json::<power::Settings>),
    ("power", "state", word::<PowerState>),
    ("power", "act_json", json::<power::Act>),
    ("power", "failed_json", json::<PowerActStatus>),
    ("power", "act_state", word::<PowerActState>),
    ("agents", "status_json", json::<AgentStatus>),
    ("tasks", "state", word::<TaskState>),
    ("tasks", "task_json", json::<TaskStatus>),
    ("flags", "kind", word::<FlagKind>),
    ("flags", "flag_json", json::<Flag>),
];

fn json<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<(), Error> {
    optional_json::<T>(row, column).map(drop)
}

fn word<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<(), Error> {
    optional_word::<T>(row, column).map(drop)
}

/// Returns why values of a row cannot be read.
pub fn errors(table: &str, row: &Row) -> Vec<Error> {
    let of_table = DECODERS.iter().filter(|(of, ..)| *of == table);
    of_table.filter_map(|(_, column, decoder)| decoder(row, column).err()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Store, schema};

    #[tokio::test]
    async fn each_column_with_json_has_a_decoder() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let store = Store::open(&folder.path().join("slipway.db")).await?;
        for table in schema::tables(&mut *store.read().await?).await? {
            for column in table.columns.iter().filter(|column| column.name.ends_with("_json")) {
                let is_known = DECODERS.iter().any(|(of, name, _)| *of == table.name && *name == column.name);
                assert!(is_known, "{}.{}", table.name, column.name);
            }
        }
        Ok(())
    }
}
