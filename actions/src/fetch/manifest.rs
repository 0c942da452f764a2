//! Manifests and indexes of artifacts, as far as they matter here.
//!
//! OCI image specification, manifest.md, image-index.md and descriptor.md. All else in them is passed over while it is read: kept as
//! values, the few megabytes that a registry may send could take hundreds.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer, StrDeserializer, U64Deserializer};
use serde::de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Most entries of a list; artifacts have a few, and an index has one for each platform.
const MAX_ENTRIES: usize = 4096;

/// A manifest, which has layers, or an index, which has manifests.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Manifest {
    manifests: Maybe<Entries>,
    config: Maybe<Config>,
    layers: Maybe<Entries>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    media_type: Maybe<String>,
}

/// A descriptor in a manifest or an index.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Entry {
    digest: Maybe<String>,
    size: Maybe<u64>,
    annotations: Maybe<Annotations>,
    platform: Maybe<Platform>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Annotations {
    #[serde(rename = "org.opencontainers.image.title")]
    title: Maybe<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Platform {
    os: Maybe<String>,
    architecture: Maybe<String>,
}

/// Reads a manifest or an index; fails with the reason in words.
pub(crate) fn parse(json: &[u8]) -> Result<Manifest, String> {
    let read: Result<Maybe<Manifest>, serde_json::Error> = serde_json::from_slice(json);
    let manifest = read.map_err(|error| format!("its manifest is no JSON: {error}"))?.0.unwrap_or_default();
    let lists = [manifest.index().unwrap_or_default(), manifest.layers()];
    if lists.iter().any(|list| list.len() > MAX_ENTRIES) {
        return Err(format!("its manifest has a list of more than {MAX_ENTRIES} entries"));
    }
    Ok(manifest)
}

impl Manifest {
    /// The manifests there are, if it is an index.
    pub(crate) fn index(&self) -> Option<&[Entry]> {
        self.manifests.0.as_ref().map(|entries| entries.0.as_slice())
    }

    /// The files of the artifact.
    pub(crate) fn layers(&self) -> &[Entry] {
        self.layers.0.as_ref().map(|entries| entries.0.as_slice()).unwrap_or_default()
    }

    /// Media type of the configuration, which tells what kind of artifact it is.
    pub(crate) fn config_type(&self) -> Option<&str> {
        self.config.0.as_ref()?.media_type.0.as_deref()
    }
}

impl Entry {
    /// Digest of what it leads to.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.digest.0.as_deref()
    }

    /// Size of what it leads to, in bytes.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size.0
    }

    /// Name of the file.
    pub(crate) fn title(&self) -> Option<&str> {
        self.annotations.0.as_ref()?.title.0.as_deref()
    }

    /// Operating system and architecture it is for.
    pub(crate) fn platform(&self) -> Option<(&str, &str)> {
        let platform = self.platform.0.as_ref()?;
        Some((platform.os.0.as_deref()?, platform.architecture.0.as_deref()?))
    }
}

/// A value, or none where there is one of another type, which the sender may have a meaning for.
#[derive(Debug, Default)]
struct Maybe<T>(Option<T>);

/// Whether a type is read from what has values in it, and from which.
trait Shape {
    const IS_LIST: bool = false;
    const IS_OBJECT: bool = false;
}

impl Shape for String {}

impl Shape for u64 {}

impl Shape for Entries {
    const IS_LIST: bool = true;
}

impl Shape for Manifest {
    const IS_OBJECT: bool = true;
}

impl Shape for Config {
    const IS_OBJECT: bool = true;
}

impl Shape for Entry {
    const IS_OBJECT: bool = true;
}

impl Shape for Annotations {
    const IS_OBJECT: bool = true;
}

impl Shape for Platform {
    const IS_OBJECT: bool = true;
}

impl<'de, T: Deserialize<'de> + Shape> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MaybeVisitor(PhantomData))
    }
}

struct MaybeVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Shape> Visitor<'de> for MaybeVisitor<T> {
    type Value = Maybe<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Maybe(None))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Maybe(None))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Maybe(None))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Maybe(None))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Maybe(T::deserialize(U64Deserializer::<E>::new(number)).ok()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Maybe(T::deserialize(StrDeserializer::<E>::new(text)).ok()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let value = match T::IS_LIST {
            true => Some(T::deserialize(SeqAccessDeserializer::new(&mut list))?),
            false => None,
        };
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Maybe(value))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let value = match T::IS_OBJECT {
            true => Some(T::deserialize(MapAccessDeserializer::new(&mut map))?),
            false => None,
        };
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Maybe(value))
    }
}

/// As many entries of a list as there may be, and one more if there is one.
#[derive(Debug, Default)]
struct Entries(Vec<Entry>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while entries.len() <= MAX_ENTRIES {
            let Some(Maybe(entry)) = list.next_element::<Maybe<Entry>>()? else { break };
            entries.push(entry.unwrap_or_default());
        }
        Ok(Entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_another_type_is_missing_and_all_else_is_passed_over() {
        let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let json = format!(
            r#"{{"schemaVersion": 2, "x": {deep}, "manifests": {{"digest": "a"}}, "config": [{deep}], "layers": [
                7, null, "a", {{"digest": {deep}, "size": "7", "annotations": -1, "platform": {{"os": "linux"}}}},
                {{"digest": "b", "y": {{"z": 1.5}}, "size": 9, "annotations": {{"n": 7, "org.opencontainers.image.title": "t"}},
                  "platform": {{"variant": "v8", "os": "linux", "architecture": "arm64"}}}}
            ]}}"#
        );
        let manifest = parse(json.as_bytes()).unwrap();
        assert!(manifest.index().is_none() && manifest.config_type().is_none(), "{manifest:?}");
        let (last, others) = manifest.layers().split_last().unwrap();
        assert_eq!((last.digest(), last.size(), last.title()), (Some("b"), Some(9), Some("t")));
        assert_eq!((last.platform(), others.len()), (Some(("linux", "arm64")), 4));
        for other in others {
            assert_eq!((other.digest(), other.size(), other.title(), other.platform()), (None, None, None, None));
        }
        assert!(parse(b"7").unwrap().layers().is_empty());
        let (open, escape, mixed) =
            (r#"{"layers": [}"#, r#"{"layers": [{"digest": "\q"}]}"#, r#"{"config": {"size": 1]}"#);
        for broken in ["", "{", open, escape, mixed] {
            let error = parse(broken.as_bytes()).unwrap_err();
            assert!(error.starts_with("its manifest is no JSON: "), "{broken}: {error}");
        }
    }

    #[test]
    fn lists_have_an_end() {
        let list = |name: &str, entries: usize| format!(r#"{{"{name}": [{}]}}"#, vec!["{}"; entries].join(","));
        for name in ["manifests", "layers"] {
            assert!(parse(list(name, MAX_ENTRIES).as_bytes()).is_ok());
            for entries in [MAX_ENTRIES + 1, 4 * MAX_ENTRIES] {
                let error = parse(list(name, entries).as_bytes()).unwrap_err();
                assert_eq!(error, "its manifest has a list of more than 4096 entries");
            }
        }
    }
}
