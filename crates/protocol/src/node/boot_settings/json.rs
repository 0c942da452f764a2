//! Reads and writes a network in the settings as a text of JSON, because every source of settings has only texts.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::shared::given::{self, Rule};
use crate::shared::network::Network;

pub(super) fn serialize<S: Serializer>(network: &Option<Network>, writer: S) -> Result<S::Ok, S::Error> {
    network.as_ref().map(serde_json::to_string).transpose().map_err(ser::Error::custom)?.serialize(writer)
}

/// The error is the end of a sentence about the value.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<Option<Network>, D::Error> {
    let text = String::deserialize(reader)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let read = given::read(Rule::Settings, &mut json).and_then(|network| json.end().map(|()| Some(network)));
    read.map_err(|error| de::Error::custom(format_args!("is not a network in JSON ({error})")))
}
