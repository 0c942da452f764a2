//! What is taken from the texts of metadata. Errors and warnings never repeat the text.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use slipway_protocol::MetadataSource;

use crate::config::{self, Metadata};

/// Beginning of slipway's keys in OpenStack's metadata, as on the kernel command line.
const PREFIX: &str = "slipway.";
/// The key of user-data that has slipway's keys below it.
const KEY: &str = "slipway";

/// What metadata says, and what of it is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Server and token, not yet checked.
    pub metadata: Metadata,
    /// Other keys of slipway, each as words for a message.
    pub ignored: Vec<String>,
}

/// Why a text is not used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are")]
pub enum Unusable {
    /// The text is not the expected JSON.
    #[error("it is not JSON with an object of texts under meta, at line {line}, column {column}")]
    Json { line: usize, column: usize },
    /// A key of slipway has another value than a text.
    #[error("{key} in it is not a text: write it in quotes")]
    NoText { key: &'static str },
    /// A key of slipway has two values.
    #[error("{key} is in it twice: leave one of them out")]
    Twice { key: &'static str },
    /// The text is not the expected YAML.
    #[error("line {line}, column {column}: {reason}")]
    Yaml { line: usize, column: usize, reason: String },
}

/// Reads a text that a place gave. None if it does not name a server.
pub(super) type Parse = fn(MetadataSource, &str) -> Result<Option<Answer>, Unusable>;

/// Reads OpenStack's `meta_data.json`: an object whose `meta` has the keys that the owner set. None if
/// it does not name a server.
pub fn of_meta_data(by: MetadataSource, json: &str) -> Result<Option<Answer>, Unusable> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let entries = reader.deserialize_map(MetaData).and_then(|entries| reader.end().map(|()| entries));
    // The error's own words may repeat a value.
    let entries = entries.map_err(|error| Unusable::Json { line: error.line(), column: error.column() })?;
    let mut keys = Keys::default();
    for (key, value) in entries {
        let Some(key) = key.strip_prefix(PREFIX) else { continue };
        keys.take(key, value.as_str())?;
    }
    Ok(keys.into_answer(by))
}

/// Reads user-data: YAML, such as a cloud-config, whose key `slipway` has `server` and `token` below it. None
/// if it does not name a server.
pub fn of_user_data(by: MetadataSource, text: &str) -> Result<Option<Answer>, Unusable> {
    let values = config::from_yaml_below(KEY, text).map_err(|refusal| {
        // After the colon, the parser may name a character of the text.
        let reason = match refusal.reason.split_once(": ") {
            Some((reason @ "this is not YAML", _)) => reason.to_owned(),
            _ => refusal.reason,
        };
        Unusable::Yaml { line: refusal.line, column: refusal.column, reason }
    })?;
    let mut keys = Keys::default();
    for (key, value) in values.unwrap_or_default() {
        keys.take(&key, Some(&value))?;
    }
    Ok(keys.into_answer(by))
}

/// Keys without the prefix.
#[derive(Default)]
struct Keys {
    server: Option<String>,
    token: Option<String>,
    ignored: Vec<String>,
}

impl Keys {
    fn take(&mut self, key: &str, value: Option<&str>) -> Result<(), Unusable> {
        let (key, place) = match key {
            "server" => ("slipway.server", &mut self.server),
            "token" => ("slipway.token", &mut self.token),
            other => {
                let known = config::known_key(other).map(|key| format!("slipway.{key}"));
                self.ignored.push(known.unwrap_or_else(|| "a key that slipway does not know".to_owned()));
                return Ok(());
            }
        };
        let value = value.ok_or(Unusable::NoText { key })?;
        if place.replace(value.to_owned()).is_some() { Err(Unusable::Twice { key }) } else { Ok(()) }
    }

    fn into_answer(self, by: MetadataSource) -> Option<Answer> {
        let Self { server, token, ignored } = self;
        server.map(|server| Answer::new(by, server, token, ignored))
    }
}

/// Reads the entries of `meta`, in which a key may be twice.
struct MetaData;

impl<'de> Visitor<'de> for MetaData {
    type Value = Vec<(String, Value)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "meta" {
                entries.extend(map.next_value::<Meta>()?.0);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(entries)
    }
}

/// The object `meta` itself.
struct Meta(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Meta {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Meta;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Meta, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Meta(entries))
            }
        }
        reader.deserialize_map(Entries)
    }
}
