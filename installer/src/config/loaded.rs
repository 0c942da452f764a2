//! The configuration of this machine, from the time when metadata was not asked yet.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use slipway_protocol::{BootSettings, MachineSettings, MetadataSource, Proof, Secret};

use super::{Config, ConfigError, Settled, Source, merge, settle};

/// What a machine is told by its metadata. Nothing of it is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    /// Who says it.
    pub by: MetadataSource,
    /// HTTPS URL of the server.
    pub server: String,
    /// Bootstrap token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Secret>,
}

/// All settings of this machine, but perhaps the server.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The whole configuration. None if metadata is to say where the server is.
    pub config: Option<Config>,
    /// What the machine must have before it sends anything to the server.
    pub require: Proof,
    /// Settings that may differ from machine to machine. Metadata may add the token.
    pub machine: MachineSettings,
    /// The metadata that the boot image allows.
    pub metadata: BTreeSet<MetadataSource>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    sources: Vec<Source>,
    is_locked_down: bool,
}

impl Loaded {
    /// Merges these sources as [`merge`] does. Without a server in any of them, metadata must be allowed.
    pub fn of(sources: Vec<Source>, is_locked_down: bool) -> Result<Self, ConfigError> {
        let Settled { settings, warnings, .. } = settle(&sources, is_locked_down)?;
        let BootSettings { server, require, metadata, machine, .. } = settings;
        let config = server.map(|_| merge(&sources, is_locked_down)).transpose()?.map(|(config, _)| config);
        Ok(Self { config, require, machine, metadata, warnings, sources, is_locked_down })
    }

    /// Returns the whole configuration. `metadata` counts only if no other source has a server.
    pub fn complete(&self, metadata: Option<&Metadata>) -> Result<Config, ConfigError> {
        match (&self.config, metadata) {
            (Some(config), _) => Ok(config.clone()),
            (None, None) => Err(ConfigError::Missing { key: "server" }),
            (None, Some(Metadata { by, server, token })) => {
                let token = token.iter().map(|token| ("token".to_owned(), token.reveal().to_owned()));
                let values: BTreeMap<_, _> = token.chain([("server".to_owned(), server.clone())]).collect();
                let told = Source { place: by.title().to_owned(), values };
                // First, so that a token of any other source wins.
                let sources: Vec<Source> = std::iter::once(told).chain(self.sources.iter().cloned()).collect();
                merge(&sources, self.is_locked_down).map(|(config, _)| config)
            }
        }
    }
}
